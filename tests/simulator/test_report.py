"""The report: one page that needs nothing else, escapes what it is given, and shows every figure of its twin."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from rerank_engine.errors import InputError, MissingExtraError, RerankError
from rerank_simulator.intervals import Interval, Lift
from rerank_simulator.movielens import PERSONALISED, SERVER, WITH_EVENTS, WITHOUT_EVENTS
from rerank_simulator.report import draw_picture, write_report
from rerank_simulator.report.html import report_page
from rerank_simulator.report.result import (
    AGAIN,
    FIRST,
    METRIC_NAMES,
    STAGES,
    TRACK,
    DemoResult,
    EventsResult,
    GainCounts,
    Latency,
    LatencyRow,
    LiftResult,
    PolicyResult,
    ReplayFacts,
    Story,
    StoryEvent,
    StoryItem,
    StoryReason,
)

POLICIES = (SERVER, "popularity", WITHOUT_EVENTS, WITH_EVENTS, PERSONALISED)
HOSTILE = "<script>alert('x')</script> & \"Co\" --> ${1}$"
LONG = "The Longest Film Title That Was Ever Cut " * 3
VOID = {"meta"}


def interval(mean: float, half: float = 0.0213) -> Interval:
    return Interval(mean, mean - half, mean + half, 77, 301, 0, 0.95)


def item(number: int, server_place: int, model_place: int, title: str | None = None) -> StoryItem:
    return StoryItem(
        item=f"f{number}",
        title=title or f"Film No. {number}",
        server_place=server_place,
        model_place=model_place,
        relevant=number % 3 == 0,
        reasons=(StoryReason("genres & more", 0.31 + number / 100), StoryReason("its age", -0.27)),
    )


def make_story() -> Story:
    """Film n stands at place n of the server's list; every second one is moved down, others come from below."""
    down = {number: number if number % 2 else 40 + number for number in range(1, 11)}
    up = {20 + number: number for number in range(2, 11, 2)}
    titles = {1: HOSTILE, 24: LONG, 3: "Amélie ★ 東京"}
    return Story(
        rule="The first list, chosen <blindly>.",
        user="u<7>",
        day="1998-03-09",
        past_events=1214,
        candidates=97,
        relevant=13,
        events=(StoryEvent(HOSTILE, "like", 5.0), StoryEvent("$ & $", "click", 3.5)),
        server_top=tuple(item(n, n, place, titles.get(n)) for n, place in down.items()),
        model_top=tuple(
            item(n, n, place, titles.get(n)) for place, n in sorted((place, n) for n, place in (down | up).items())[:10]
        ),
        ndcg10_server=0.17374,
        ndcg10_model=0.30312,
        lists_with_larger_gain=326,
    )


def make_result() -> DemoResult:
    means = dict(zip(POLICIES, (0.2429, 0.2388, 0.2587, 0.3172, 0.3182), strict=True))
    policies = tuple(
        PolicyResult(
            name, {metric: interval(mean + shift) for metric, shift in zip(METRIC_NAMES, (0, 0.1, 0.2), strict=True)}
        )
        for name, mean in means.items()
    )
    lifts = tuple(
        LiftResult(
            policy,
            baseline,
            metric,
            Lift(means[policy], means[baseline], interval(means[policy] - means[baseline]), interval(ratio, 0.104)),
        )
        for policy, baseline, ratio in (
            (WITH_EVENTS, SERVER, 0.3061),
            (WITH_EVENTS, WITHOUT_EVENTS, 0.2259),
            (PERSONALISED, WITH_EVENTS, 0.0031),
        )
        for metric in METRIC_NAMES
    )
    by_events = tuple(
        EventsResult(few, most, 1287, 197, {name: interval(means[name] + few / 700) for name in POLICIES[::2]})
        for few, most in ((1, 2), (3, 9), (10, None))
    )
    stages = (TRACK, *STAGES, AGAIN, FIRST)
    rows = tuple(LatencyRow(stage, 1302 + n, 27.9 + 100 * n, 5239.8 + n) for n, stage in enumerate(stages))
    return DemoResult(
        bundle="tiny <b>",
        model_hash="ab" * 32,
        bundle_facts={"options": {"learning_rate": 0.00001, "epochs": 4}, "best": [1, 2], "note": "<i>"},
        replay=ReplayFacts("Films & Co", 100_000, 943, 1682, "1998-03-07", "1998-04-22", 1031, 263, 370, 0.95),
        policies=policies,
        lifts=lifts,
        by_events=by_events,
        gains=GainCounts(506, 169, 356),
        story=make_story(),
        latency=Latency("Linux x86_64, 2 processors", "cpu", 100, 99, rows),
    )


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return make_result()


@pytest.fixture(scope="module")
def page(result: DemoResult) -> str:
    return report_page(result)


class Page(HTMLParser):
    """Reads a page and checks that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.cells: list[str] = []
        self.drawn: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("td", "caption"):
            self.cells.append("")
        if tag == "text":
            self.drawn.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "caption"} & set(self.open):
            self.cells[-1] += data
        if "text" in self.open:
            self.drawn[-1] += data


def test_page_stands_alone(page: str) -> None:
    read = Page(page)
    assert "http" not in page
    assert len(page.encode()) < 1_000_000
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(read.tags)
    references = [value for name, value in read.attributes if name in ("href", "src", "srcset", "xlink:href")]
    assert references
    assert all(value and value.startswith("#") for value in references)
    assert not re.search(r"@import|url\((?!#)", page)


def test_ids_are_unique_and_every_reference_has_one(page: str) -> None:
    ids = [value for name, value in Page(page).attributes if name == "id"]
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', page))
    assert len(ids) == len(set(ids))
    assert used == set(ids)


def test_page_holds_four_drawings_in_the_colours_of_the_page(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 4
    for drawing in drawings:
        assert not re.search(r"#[0-9a-fA-F]{6}\b", drawing)
        assert "font-family" not in drawing
        variables = set(re.findall(r"var\(--(\w+)\)", drawing))
        assert variables
        assert all(page.count(f"--{name}: #") == 2 for name in variables)
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_what_comes_from_data_is_escaped(page: str, result: DemoResult) -> None:
    assert "<script" not in page
    assert not re.search(
        r"<b>|<7>|<blindly>|<i>", re.sub(r"<b>[+\-\d][\d.,:]*(\s→ [\d.]+)?(\xa0%)?( \w+)?</b>", "", page)
    )
    read = Page(page)
    assert HOSTILE in read.cells
    assert any(cell.startswith(HOSTILE) for cell in read.cells if cell != HOSTILE)
    assert any("<i>" in cell for cell in read.cells)
    shown = {text for text in read.drawn if text.startswith("<script>")}
    assert shown == {"<script>alert('x')</script> &…"}
    # A dollar sign starts no formula, and words in other scripts stay as they are.
    assert "$ & $" in read.cells
    assert "Amélie ★ 東京" in read.drawn


def test_long_titles_are_cut_in_the_drawing_and_whole_in_the_table(page: str) -> None:
    read = Page(page)
    assert LONG not in page.split("<svg")[2].split("</svg>")[0]
    assert any(cell.startswith(LONG) for cell in read.cells)
    assert all(len(text) <= 60 for text in read.drawn)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*path, name))
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one, path)
    else:
        yield path, value


def written(path: tuple[str, ...], value: Any) -> str:
    """A figure as a reader meets it."""
    if path[0] == "bundle_facts":
        return json.dumps(value)
    if "relative" in path:
        return f"{100 * value:+.2f}\xa0%"
    if "absolute" in path:
        return f"{value:+.4f}"
    if path[-1] == "effect":
        return f"{value:+.2f}"
    if path[-1] in ("p50_us", "p99_us"):
        return f"{value:,.1f}"
    if path[-1] in ("rating", "level"):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def test_every_figure_of_the_twin_stands_in_a_table(page: str, result: DemoResult) -> None:
    cells = "\n".join(Page(page).cells)
    words = set(re.findall(r"[+-]?[\d][\d.,]*(?:\xa0%|e-\d+)?", cells))
    words |= {word.rstrip(".,") for word in words}
    figures = [
        (path, value)
        for path, value in leaves(result.as_dict())
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    assert len(figures) > 200
    missing = [(path, value) for path, value in figures if written(path, value) not in words]
    assert not missing
    for path, value in leaves(result.as_dict()):
        if isinstance(value, str) and path[0] in ("policies", "lifts", "bundle", "model_hash"):
            assert METRIC_NAMES.get(value, value) in cells


def test_twin_holds_the_result(result: DemoResult, tmp_path: Path) -> None:
    write_report(result, tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.html.json"]
    assert json.loads((tmp_path / "report.html.json").read_text("utf-8")) == result.as_dict()
    assert (tmp_path / "report.html").read_text("utf-8") == report_page(result)


def test_equal_results_give_equal_bytes(result: DemoResult, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_report(make_result(), tmp_path / f"{name}.html")
        for ending in ("png", "svg"):
            draw_picture(make_result(), tmp_path / f"{name}.{ending}")
    for ending in ("html", "html.json", "png", "svg"):
        first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("first", "second"))
        assert first == second
    other = replace(result, story=replace(result.story, ndcg10_model=0.4))
    assert report_page(other) != report_page(result)


def test_drawing_leaves_the_settings_of_the_caller_alone(result: DemoResult, page: str) -> None:
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "#ff0000", "text.usetex": False}):
        inside = dict(matplotlib.rcParams)
        assert report_page(result) == page
        assert dict(matplotlib.rcParams) == inside
    assert dict(matplotlib.rcParams) == before


# --- what is said --------------------------------------------------------------------------------------------


def with_lift(result: DemoResult, low: float, high: float, relative: Interval | None) -> DemoResult:
    absolute = Interval((low + high) / 2, low, high, 77, 301, 0, 0.95)
    lift = LiftResult(WITH_EVENTS, SERVER, "ndcg10", Lift(0.3, 0.2, absolute, relative))
    return replace(result, lifts=(lift,))


@pytest.mark.parametrize(
    ("low", "high", "relative", "expected"),
    [
        (
            0.01,
            0.05,
            interval(0.12, 0.02),
            "lifts NDCG@10 over the server&#x27;s order by +12.00\xa0% (95\xa0% interval",
        ),
        (0.01, 0.05, None, "by +0.0300 (95\xa0% interval over users: +0.0100 to +0.0500)"),
        (-0.05, -0.01, None, "is worse than the server&#x27;s order: NDCG@10 -0.0300"),
        (-0.01, 0.05, None, "cannot tell whether the model is better"),
    ],
)
def test_headline_says_what_the_interval_allows(
    result: DemoResult, low: float, high: float, relative: Interval | None, expected: str
) -> None:
    text = report_page(with_lift(result, low, high, relative))
    assert expected in text.split('class="lead">')[1].split("</p>")[0]
    assert ("no ratio" in text) == (relative is None)


def test_a_missing_comparison_is_said(result: DemoResult) -> None:
    assert "The model was not compared with the server&#x27;s order." in report_page(replace(result, lifts=()))


def test_warnings_come_first_and_only_where_there_are_any(result: DemoResult, page: str) -> None:
    assert "cannot tell, on NDCG@10, MRR, Recall@10. The interval of the difference contains zero." in page
    assert page.index("Before you read on") < page.index("One list, before and after")
    clear = replace(result, lifts=result.lifts[:6], replay=replace(result.replay, lists_without_relevant=0))
    assert clear.warnings == ()
    assert "Before you read on" not in report_page(clear)


def test_terms_are_explained(page: str) -> None:
    for text in (
        "Server lists are constructed",
        "alternating least squares",
        "Nobody ever saw these lists.",
        "1, 3, 10 and 30 events",
        "within 24 hours",
        "rerank demo --report report.html",
        "is not included",
        "forbid redistribution",
    ):
        assert text in page
    assert all(f"<dt>{policy}</dt>" in page for policy in POLICIES)


# --- little data ---------------------------------------------------------------------------------------------


def test_a_page_without_events_or_with_one_film_is_still_a_page(result: DemoResult) -> None:
    only = replace(item(1, 1, 1), reasons=())
    story = replace(result.story, server_top=(only,), model_top=(only,), events=result.story.events[:1])
    text = report_page(replace(result, by_events=(), story=story, bundle_facts={}))
    Page(text)
    assert text.count("<svg") == 3
    assert "No number of events has lists of two users or more" in text
    assert "after 1 event<" in text


def test_latencies_below_a_microsecond_are_drawn(result: DemoResult) -> None:
    rows = tuple(replace(row, p50_us=0.0, p99_us=0.4) for row in result.latency.rows)
    Page(report_page(replace(result, latency=replace(result.latency, rows=rows))))


# --- files ---------------------------------------------------------------------------------------------------


def test_picture_is_small_and_of_the_kind_that_was_asked_for(result: DemoResult, tmp_path: Path) -> None:
    draw_picture(result, tmp_path / "a.png")
    draw_picture(result, str(tmp_path / "a.SVG"))
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = (tmp_path / "a.SVG").read_text("utf-8")
    assert "<script" not in svg
    assert svg.rstrip().endswith("</svg>")
    assert all(path.stat().st_size <= 200_000 for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.pdf", "a", "png"])
def test_other_kinds_of_picture_are_refused(result: DemoResult, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png or an \.svg file"):
        draw_picture(result, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_report_without_matplotlib_names_the_extra(
    result: DemoResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for write, name in ((write_report, "a.html"), (draw_picture, "a.png")):
        with pytest.raises(MissingExtraError, match=r"rerank-sdk\[simulator\]"):
            write(result, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_told(result: DemoResult, tmp_path: Path) -> None:
    for write, name in ((write_report, "a.html"), (draw_picture, "a.png")):
        with pytest.raises(RerankError, match="choose a folder that exists"):
            write(result, tmp_path / "nowhere" / name)


def test_a_failed_report_leaves_the_old_one(result: DemoResult, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("old")
    broken = replace(result, latency=replace(result.latency, rows=()))
    with pytest.raises(RerankError, match="no stage"):
        write_report(broken, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
