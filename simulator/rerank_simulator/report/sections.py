"""The parts of the page that are tables and texts. Every figure of the JSON twin stands in one of these tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rerank_simulator.intervals import Interval
from rerank_simulator.report import words
from rerank_simulator.report.markup import Html, table, tag, text
from rerank_simulator.report.result import METRIC_NAMES, DemoResult, StoryItem


def replay_table(result: DemoResult) -> Html:
    """How much was replayed."""
    facts, gains = result.replay, result.gains
    return table(
        "What was replayed",
        ("", "number"),
        [
            ("ratings in the log", f"{facts.ratings:,}"),
            ("users in the log", f"{facts.users:,}"),
            ("films in the log", f"{facts.items:,}"),
            ("first list delivered (UTC)", facts.first_day),
            ("last list delivered (UTC)", facts.last_day),
            ("lists judged", f"{facts.lists:,}"),
            ("users with judged lists", f"{facts.list_users:,}"),
            ("lists without a relevant candidate, left out", f"{facts.lists_without_relevant:,}"),
            ("lists on which the model's NDCG@10 is higher than the server order's", f"{gains.higher:,}"),
            ("lists on which both are equal", f"{gains.equal:,}"),
            ("lists on which it is lower", f"{gains.lower:,}"),
            ("coverage of each interval", f"{facts.level:g}"),
        ],
    )


def policies_table(result: DemoResult) -> Html:
    """Means and intervals of every policy."""
    rows = [(one.policy, *(_interval(one.metrics[metric]) for metric in METRIC_NAMES)) for one in result.policies]
    return table("Mean over users, with interval", ("policy", *METRIC_NAMES.values()), rows)


def lifts_table(result: DemoResult) -> Html:
    """Every comparison and what it allows to say."""
    rows = []
    for one in result.lifts:
        absolute, relative = one.lift.absolute, one.lift.relative
        rows.append(
            (
                one.policy,
                one.baseline,
                METRIC_NAMES[one.metric],
                tag("strong", one.verdict),
                words.fraction(one.lift.mean_a),
                words.fraction(one.lift.mean_b),
                _signed(absolute, words.difference),
                _signed(relative, words.percent) if relative is not None else "no ratio",
            )
        )
    head = ("policy", "against", "metric", "verdict", "policy's mean", "other's mean", "difference", "relative")
    return table("Differences on the same lists, with interval", head, rows, words=4)


def events_table(result: DemoResult) -> Html:
    """NDCG@10 by events of the visit."""
    policies = list(result.by_events[0].ndcg10) if result.by_events else []
    rows = [
        (
            one.label,
            f"{one.lists:,}",
            f"{one.users:,}",
            *(_interval(one.ndcg10[policy]) for policy in policies),
        )
        for one in result.by_events
    ]
    return table("NDCG@10 by events before reordering", ("events", "lists", "users", *policies), rows)


def story_events_table(result: DemoResult) -> Html:
    """The events of the story."""
    rows = [(number, one.title, one.kind, f"{one.rating:g}") for number, one in enumerate(result.story.events, 1)]
    return table("The events of the visit so far", ("", "film", "event", "rating"), rows, words=3)


def story_tables(result: DemoResult) -> Html:
    """The list before and after."""
    story = result.story
    after = [
        (item.model_place, _title(item), _reasons(item), item.server_place, _relevant(item)) for item in story.model_top
    ]
    before = [
        (item.server_place, _title(item), _reasons(item), item.model_place, _relevant(item))
        for item in story.server_top
    ]
    film, reasons, relevant = "film", "strongest reasons, effect on the score", "rated 4 or more later"
    facts = [
        ("events of this user before the visit", f"{story.past_events:,}"),
        ("candidates not yet rated", f"{story.candidates:,}"),
        ("of these relevant", f"{story.relevant:,}"),
        ("NDCG@10 of the server's order", words.fraction(story.ndcg10_server)),
        ("NDCG@10 of the model's order", words.fraction(story.ndcg10_model)),
        ("judged lists with a larger gain than this one", f"{story.lists_with_larger_gain:,}"),
    ]
    return Html(
        table(
            f"The model's first {len(after)} after these events",
            ("place", film, reasons, "server's place", relevant),
            after,
            words=3,
        )
        + tag(
            "details",
            tag("summary", "The server's list and the figures of this list"),
            table(
                f"The server's first {len(before)}",
                ("place", film, reasons, "model's place", relevant),
                before,
                words=3,
            ),
            table(f"User {story.user} on {story.day}", ("", "number"), facts),
        )
    )


def latency_table(result: DemoResult) -> Html:
    """Times by stage."""
    latency = result.latency
    rows = [(one.stage, f"{one.calls:,}", f"{one.p50_us:,.1f}", f"{one.p99_us:,.1f}") for one in latency.rows]
    caption = (
        f"Microseconds; lists of {latency.candidates:,} candidates,"
        f" after at most {latency.warmup_calls:,} calls to warm up"
    )
    return table(caption, ("stage", "calls", "median µs", "99th percentile µs"), rows)


def bundle_table(result: DemoResult) -> Html:
    """What was under test, as it describes itself."""
    rows: list[tuple[object, object]] = [
        ("bundle", result.bundle),
        ("model hash", tag("code", result.model_hash)),
        *_flat(result.bundle_facts),
    ]
    return table("The bundle under test", ("fact", "value"), rows, words=2)


def definitions_list() -> Html:
    """Every term and its meaning."""
    pairs = (Html(tag("dt", term) + tag("dd", meaning)) for term, meaning in words.definitions())
    return tag("dl", *pairs)


def bullets(texts: tuple[str, ...]) -> Html:
    """A list of sentences."""
    return tag("ul", *(tag("li", one) for one in texts))


def _interval(interval: Interval) -> Html:
    ends = f"{words.fraction(interval.low)} to {words.fraction(interval.high)}"
    return Html(tag("b", words.fraction(interval.mean)) + " " + tag("small", ends))


def _signed(interval: Interval, write: Any) -> Html:
    return Html(tag("b", write(interval.mean)) + " " + tag("small", f"{write(interval.low)} to {write(interval.high)}"))


def _title(item: StoryItem) -> Html:
    name = tag("span", item.title, css="good") if item.relevant else tag("span", item.title)
    return Html(name + " " + tag("small", f"#{item.item}"))


def _relevant(item: StoryItem) -> Html:
    return tag("span", "yes", css="good") if item.relevant else tag("span", "no")


def _reasons(item: StoryItem) -> Html:
    return Html(", ".join(text(one.group) + " " + tag("b", f"{one.effect:+.2f}") for one in item.reasons))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[object, object]]:
    """Nested facts as rows; numbers as JSON writes them."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}, ")
        else:
            yield f"{prefix}{name}".replace("_", " "), value if isinstance(value, str) else json.dumps(value)
