"""The drawings of a report. Each function fills one axes or one figure and says nothing beyond its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rerank_simulator.movielens import PERSONALISED, WITH_EVENTS, WITHOUT_EVENTS
from rerank_simulator.movielens import SERVER as SERVER_POLICY
from rerank_simulator.report.canvas import GOOD, GRID, INK, MODEL, MUTED, PAPER, SERVER
from rerank_simulator.report.result import DemoResult, EventsResult, Latency, PolicyResult, Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 5.4
"""Of each drawing on the page: wide enough for two columns of titles, legible on a phone."""

_POLICY_COLOURS = {SERVER_POLICY: SERVER, WITHOUT_EVENTS: INK, WITH_EVENTS: MODEL}
_TITLE_LENGTH, _BOLD_TITLE_LENGTH = 31, 28


def draw_policies(axes: Axes, policies: Sequence[PolicyResult], metric: str, name: str) -> None:
    """Forest plot: one row a policy, its mean and its interval."""
    for row, policy in enumerate(policies):
        interval = policy.metrics[metric]
        colour = MODEL if policy.policy in (WITH_EVENTS, PERSONALISED) else SERVER
        axes.plot([interval.low, interval.high], [row, row], color=colour, linewidth=2.5, solid_capstyle="round")
        axes.plot([interval.mean], [row], "o", color=colour, markersize=7, markeredgecolor=PAPER)
        axes.annotate(
            f"{interval.mean:.3f}", (interval.mean, row), (0, 7), textcoords="offset points", ha="center", color=INK
        )
    axes.set_yticks(range(len(policies)), [policy.policy for policy in policies])
    axes.set_ylim(len(policies) - 0.5, -0.75)
    axes.margins(x=0.08)
    _plain_axes(axes)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlabel(name, color=MUTED)


def draw_by_events(axes: Axes, rows: Sequence[EventsResult]) -> None:
    """NDCG@10 by the number of events before reordering, one line a policy."""
    policies = list(rows[0].ndcg10) if rows else []
    for number, policy in enumerate(policies):
        colour = _POLICY_COLOURS.get(policy, INK)
        # Side by side, so that intervals do not hide each other.
        places = [place + 0.07 * (number - (len(policies) - 1) / 2) for place in range(len(rows))]
        intervals = [row.ndcg10[policy] for row in rows]
        for place, interval in zip(places, intervals, strict=True):
            axes.plot([place, place], [interval.low, interval.high], color=colour, linewidth=1.4)
        means = [interval.mean for interval in intervals]
        style = "--" if policy == WITHOUT_EVENTS else "-"
        axes.plot(places, means, style, marker="o", color=colour, linewidth=1.6, markersize=5, label=policy)
    axes.set_xticks(range(len(rows)), [f"{row.label}\n{row.lists:,} lists" for row in rows])
    axes.set_xlim(-0.4, len(rows) - 0.6)
    _plain_axes(axes)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_xlabel("events of the visit before the list was reordered", color=MUTED)
    axes.set_ylabel("NDCG@10", color=MUTED)
    if rows:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8.5)


def draw_story(axes: Axes, story: Story) -> None:
    """Bump chart: the first ten places of the server's order on the left, of the model's order on the right."""
    left, right = 0.43, 0.57
    left_rows, right_rows = _story_rows(story)
    shown = {item.item: item for item in (*story.server_top, *story.model_top)}
    for item in sorted(shown.values(), key=lambda one: (one.relevant, -one.model_place)):
        start, end = left_rows[item.server_place], right_rows[item.model_place]
        colour = GOOD if item.relevant else SERVER
        axes.plot(
            [left, right],
            [start, end],
            color=colour,
            linewidth=2.2 if item.relevant else 1.1,
            linestyle="-" if item.model_place <= len(story.model_top) else (0, (2, 2)),
            solid_capstyle="round",
        )
        for x, y in ((left, start), (right, end)):
            axes.plot([x], [y], "o", color=colour, markersize=5 if item.relevant else 3.5)
        text_colour = GOOD if item.relevant else INK
        weight = "bold" if item.relevant else "normal"
        for x, y, place, align, step, top in (
            (left, start, item.server_place, "right", -1, story.server_top),
            (right, end, item.model_place, "left", 1, story.model_top),
        ):
            listed = place <= len(top)
            axes.text(x + 0.02 * step, y, f"{place}", ha=align, va="center", color=MUTED, fontsize=7.5 if listed else 7)
            if listed:
                title = _shorten(item.title, _BOLD_TITLE_LENGTH if item.relevant else _TITLE_LENGTH)
                axes.text(x + 0.058 * step, y, title, ha=align, va="center", color=text_colour, weight=weight, size=8.2)
    events = len(story.events)
    for x, align, heading, value in (
        (left, "right", "server's order", story.ndcg10_server),
        (right, "left", f"after {events} event{'s' if events > 1 else ''}", story.ndcg10_model),
    ):
        axes.text(x, -0.55, heading, ha=align, va="center", weight="bold", size=9)
        axes.text(x, 0.2, f"NDCG@10  {value:.3f}", ha=align, va="center", color=MUTED, size=8)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(*left_rows.values(), *right_rows.values()) + 0.7, -1.1)
    axes.set_axis_off()


def story_height_in(story: Story) -> float:
    """Height that the story's rows need."""
    left, right = _story_rows(story)
    return 0.25 * (max(*left.values(), *right.values()) + 1.8)


def draw_latency(axes: Axes, latency: Latency) -> None:
    """Median and 99th percentile of each stage on a logarithmic scale."""
    lowest = min(row.p50_us for row in latency.rows)
    start = 10.0 ** _floor_power(max(lowest, 0.1))
    highest = max(row.p99_us for row in latency.rows)
    for row, stage in enumerate(latency.rows):
        axes.barh(row, stage.p99_us - start, left=start, height=0.56, color=SERVER, alpha=0.4)
        axes.barh(row, stage.p50_us - start, left=start, height=0.56, color=MODEL)
        axes.annotate(
            f"{_microseconds(stage.p50_us)}  ·  {_microseconds(stage.p99_us)}",
            (stage.p99_us, row),
            (5, 0),
            textcoords="offset points",
            va="center",
            size=7.5,
        )
    axes.set_xscale("log")
    # Room for the figures behind the longest bar: they take about a third of the width.
    axes.set_xlim(start, highest * (highest / start) ** 0.5)
    axes.set_yticks(range(len(latency.rows)), [row.stage for row in latency.rows])
    axes.set_ylim(len(latency.rows) - 0.4, -0.6)
    _plain_axes(axes)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.tick_params(axis="x", which="minor", length=0)
    powers = range(_floor_power(start), _floor_power(highest) + 1)
    axes.set_xticks([10.0**power for power in powers], [_microseconds(10.0**power) for power in powers])
    axes.set_xlabel("median (blue) and 99th percentile (grey), logarithmic", color=MUTED)


def draw_overview(figure: Figure, result: DemoResult) -> None:
    """The story beside the forest plot, for a page that has room for one picture."""
    story, facts = result.story, result.replay
    draw_story(figure.add_axes((0.0, 0.02, 0.62, 0.83)), story)
    draw_policies(figure.add_axes((0.79, 0.21, 0.2, 0.58)), result.policies, "ndcg10", "NDCG@10")
    columns = (
        (0.02, "One list, reordered on the device", _told(story)),
        (0.65, f"{facts.lists:,} lists of {facts.list_users:,} users", f"{facts.name}, constructed server lists"),
    )
    for x, heading, text in columns:
        figure.text(x, 0.945, heading, weight="bold", size=11, va="center")
        figure.text(x, 0.885, text, color=MUTED, size=8, va="center")
    note = (
        f"Intervals: {100 * facts.level:g} %, over users.\n"
        "Green: rated 4 or more by this user afterwards.\nDashed: left the first ten."
    )
    figure.text(0.65, 0.065, note, color=MUTED, size=8, va="center", linespacing=1.4)


def _told(story: Story) -> str:
    """The events in one line."""
    return "Events:  " + "   ".join(f"{_shorten(event.title)} ({event.rating:g})" for event in story.events)


def _story_rows(story: Story) -> tuple[dict[int, float], dict[int, float]]:
    """Height of each place on the left and on the right."""
    items = (*story.server_top, *story.model_top)
    left = _rows(len(story.server_top), {item.server_place for item in items})
    return left, _rows(len(story.model_top), {item.model_place for item in items})


def _rows(listed: int, places: set[int]) -> dict[int, float]:
    """The first places take a row each; those beyond stand closer together, below a gap."""
    rows = {place: float(place) for place in range(1, listed + 1)}
    beyond = sorted(place for place in places if place > listed)
    return rows | {place: listed + 1.2 + 0.72 * number for number, place in enumerate(beyond)}


def _shorten(title: str, length: int = _TITLE_LENGTH) -> str:
    return title if len(title) <= length else title[: length - 1].rstrip(" ,") + "…"


def _floor_power(value: float) -> int:
    return math.floor(math.log10(value))


def _microseconds(value: float) -> str:
    if value >= 1_000:
        return f"{value / 1_000:.3g} ms"
    return f"{value:.3g} µs"


def _plain_axes(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(color=GRID, labelcolor=MUTED)
