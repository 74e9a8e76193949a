"""One HTML file that needs nothing else, and its JSON twin."""

from __future__ import annotations

import json
from pathlib import Path

from rerank_simulator.movielens import SERVER, WITH_EVENTS
from rerank_simulator.report import plots, sections, words
from rerank_simulator.report.canvas import Draw, inline_svg, require_matplotlib, save_picture, write_whole
from rerank_simulator.report.markup import Html, tag, text
from rerank_simulator.report.result import AGAIN, METRIC_NAMES, TRACK, DemoResult
from rerank_simulator.report.style import STYLE

_PICTURE_SIZE_IN = (10.0, 4.9)


def write_report(result: DemoResult, path: str | Path) -> None:
    """Write the report and, as ``<path>.json``, its figures.

    The page needs no network and no other file. Equal results give equal bytes.

    Parameters
    ----------
    result
        Of :func:`~rerank_simulator.demo.run_demo`.
    path
        Where the page goes; an existing one is replaced.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed: it comes with the extra ``simulator``. Nothing is written.
    RerankError
        A file cannot be written.

    Examples
    --------
    >>> write_report(result, "report.html")  # doctest: +SKIP
    """
    path = Path(path)
    page = report_page(result)
    twin = json.dumps(result.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, page.encode())
    write_whole(path.with_name(path.name + ".json"), twin.encode())


def draw_picture(result: DemoResult, path: str | Path) -> None:
    """Draw one picture, the story beside the policies, into a ``.png`` or ``.svg`` file.

    Parameters
    ----------
    result
        Of :func:`~rerank_simulator.demo.run_demo`.
    path
        Its ending chooses the format; an existing file is replaced.

    Raises
    ------
    InputError
        The path has another ending.
    MissingExtraError
        matplotlib is not installed.
    RerankError
        The file cannot be written.

    Examples
    --------
    >>> draw_picture(result, "demo.png")  # doctest: +SKIP
    """
    save_picture(lambda figure: plots.draw_overview(figure, result), _PICTURE_SIZE_IN, Path(path))


def report_page(result: DemoResult) -> str:
    """The whole page as text.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    require_matplotlib()
    title = f"Replay of {result.replay.name}: lists reordered on the device"
    header = tag("header", tag("h1", title), tag("p", words.headline(result), css="lead"), _tiles(result))
    sections_after = (
        _section("What each term means", sections.definitions_list()),
        _section("What this does not show", sections.bullets(words.limits())),
        _section("What was replayed, and with what", sections.replay_table(result), sections.bundle_table(result)),
        _section(
            "Make this report again",
            tag("pre", tag("code", words.REPRODUCE)),
            tag("p", words.REPRODUCIBLE),
            tag("p", words.ATTRIBUTION, css="note"),
        ),
    )
    body = (header, *_warnings(result), _story(result), _policies(result), _events(result), _latency(result))
    return _document(title, tag("main", *body, *sections_after))


def _document(title: str, body: Html) -> str:
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _section(title: str, *content: object) -> Html:
    return Html("\n" + tag("section", tag("h2", title), *content))


def _tiles(result: DemoResult) -> Html:
    ndcg10 = {one.policy: one.metrics["ndcg10"].mean for one in result.policies}
    again, track = result.latency.row(AGAIN), result.latency.row(TRACK)
    tiles = (
        (
            f"{words.fraction(ndcg10[SERVER])} → {words.fraction(ndcg10[WITH_EVENTS])}",
            "NDCG@10, server's order to model",
        ),
        (f"{result.replay.lists:,} lists", f"of {result.replay.list_users:,} users judged"),
        (
            f"{again.p50_us:,.1f} µs",
            f"median to re-rank {result.latency.candidates:,} candidates; {track.p50_us:,.1f} µs to track an event",
        ),
    )
    return tag(
        "div", *(tag("div", tag("b", figure), tag("span", what), css="tile") for figure, what in tiles), css="tiles"
    )


def _warnings(result: DemoResult) -> tuple[Html, ...]:
    found = result.warnings
    return (_section("Before you read on", tag("div", sections.bullets(found), css="warnings")),) if found else ()


def _story(result: DemoResult) -> Html:
    story = result.story
    return _section(
        "One list, before and after",
        tag("p", "How it was chosen: ", story.rule),
        tag("p", words.story_summary(result)),
        sections.story_events_table(result),
        _drawing(
            lambda figure: plots.draw_story(figure.add_axes((0, 0, 1, 1)), story),
            (plots.WIDTH_IN, plots.story_height_in(story)),
            "story",
            "The server's first ten films on the left, the model's first ten on the right, lines join the same film.",
            words.STORY_NOTE,
        ),
        sections.story_tables(result),
    )


def _policies(result: DemoResult) -> Html:
    return _section(
        "Five orders of the same lists",
        _drawing(
            lambda figure: plots.draw_policies(
                figure.add_axes((0.31, 0.16, 0.66, 0.82)), result.policies, "ndcg10", "NDCG@10"
            ),
            (plots.WIDTH_IN, 0.8 + 0.42 * len(result.policies)),
            "policies",
            "NDCG@10 of each policy with its interval.",
            words.POLICIES_NOTE,
        ),
        sections.policies_table(result),
        sections.lifts_table(result),
    )


def _events(result: DemoResult) -> Html:
    if not result.by_events:
        return _section("More events, better order?", tag("p", words.NO_EVENTS_NOTE))
    return _section(
        "More events, better order?",
        _drawing(
            lambda figure: plots.draw_by_events(figure.add_axes((0.12, 0.22, 0.86, 0.67)), result.by_events),
            (plots.WIDTH_IN, 3.2),
            "events",
            f"{METRIC_NAMES['ndcg10']} by the number of events before the list was reordered.",
            words.EVENTS_NOTE,
        ),
        sections.events_table(result),
    )


def _latency(result: DemoResult) -> Html:
    return _section(
        "How long it takes",
        _drawing(
            lambda figure: plots.draw_latency(figure.add_axes((0.26, 0.17, 0.73, 0.82)), result.latency),
            (plots.WIDTH_IN, 0.6 + 0.29 * len(result.latency.rows)),
            "latency",
            "Median and 99th percentile of each stage on a logarithmic scale.",
            words.LATENCY_NOTE,
        ),
        sections.latency_table(result),
        tag("p", f"Measured on {result.latency.machine}; backend {result.latency.backend}.", css="note"),
    )


def _drawing(draw: Draw, size_in: tuple[float, float], name: str, label: str, note: str) -> Html:
    svg = Html(inline_svg(draw, size_in, name, label))
    return tag("figure", svg, tag("figcaption", note, css="note"))
