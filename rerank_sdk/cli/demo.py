"""``rerank demo``: the whole loop on a public log, told as one list, as figures, and as a report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from rerank_engine.errors import MissingExtraError
from rerank_sdk.cli.metrics import lift_words, show_metrics
from rerank_sdk.cli.options import BundlePath, JsonFlag, picture_format
from rerank_sdk.cli.output import make_table, print_json, progress, say, show_table
from rerank_sdk.cli.sources import load_bundle, load_log, prepare_output

_REASONS = 2
_RELEVANT_MARK = "*"


def demo(
    bundle: BundlePath = None,
    report: Annotated[
        Path, typer.Option("--report", dir_okay=False, help="The HTML report to write; its figures go beside it.")
    ] = Path("out/demo.html"),
    picture: Annotated[
        Path | None,
        typer.Option("--picture", dir_okay=False, callback=picture_format, help="Also draw a picture, .png or .svg."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show on real lists what three events change."""
    if find_spec("matplotlib") is None:  # said now, not after a minute of work
        raise MissingExtraError("drawing a report", "simulator")
    from rerank_simulator.demo import run_demo
    from rerank_simulator.report import draw_picture, write_report

    prepare_output(report)
    if picture is not None:
        prepare_output(picture)
    loaded = load_bundle(bundle)
    log = load_log()
    with progress() as advance:
        result = run_demo(log, loaded, progress=advance)
    write_report(result, report)
    if picture is not None:
        draw_picture(result, picture)
    found = result.as_dict()
    written = {"report": str(report), "picture": None if picture is None else str(picture)}
    if json:
        print_json({**found, **written})
        return
    _show_story(found["story"])
    _show_figures(found)
    _show_latency(found["latency"])
    for warning in found["warnings"]:
        say(f"note: {warning}")
    say(f"report: {report}")
    if picture is not None:
        say(f"picture: {picture}")


def _show_story(story: Mapping[str, Any]) -> None:
    say(f"One list of user {story['user']} on {story['day']}", style="bold")
    say(f"{story['rule']} {story['past_events']:,} earlier events of the user are known.")
    events = make_table("event", "film", ("rating", "right"))
    for number, event in enumerate(story["events"], 1):
        events.add_row(f"{number} {event['kind']}", event["title"], f"{event['rating']:g}")
    show_table(events)
    table = make_table(("", "right"), "the server's list", "the new list", ("was", "right"), "because of")
    for place, (old, new) in enumerate(zip(story["server_top"], story["model_top"], strict=True), 1):
        table.add_row(str(place), _title(old), _title(new), str(new["server_place"]), _reasons(new))
    for column in table.columns[1:3]:
        column.no_wrap, column.overflow, column.ratio = True, "ellipsis", 3
    table.columns[4].no_wrap, table.columns[4].overflow, table.columns[4].ratio = True, "ellipsis", 4
    table.expand = True
    show_table(table)
    say(
        f"{_RELEVANT_MARK} rated 4 or more later; {story['relevant']} of {story['candidates']} candidates are."
        f" NDCG@10 of this list: {story['ndcg10_server']:.3f} in the server's order,"
        f" {story['ndcg10_model']:.3f} in the new one."
    )


def _title(item: Mapping[str, Any]) -> str:
    return f"{_RELEVANT_MARK if item['relevant'] else ' '} {item['title']}"


def _reasons(item: Mapping[str, Any]) -> str:
    strongest = item["reasons"][:_REASONS]
    return "\n".join(f"{one['effect']:+.2f} {one['group']}" for one in strongest)


def _show_figures(found: Mapping[str, Any]) -> None:
    facts = found["replay"]
    say()
    say(
        f"{facts['lists']:,} lists of {facts['list_users']:,} users, {facts['first_day']} to {facts['last_day']}"
        f" ({found['bundle']})",
        style="bold",
    )
    say("Server lists are constructed. Means over users; below each its 95% interval, resampled by user.")
    show_metrics({one["policy"]: one["metrics"] for one in found["policies"]})
    for lift in found["lifts"]:
        if lift["metric"] == "ndcg10":
            say(lift_words({**lift, **lift["lift"]}))


def _show_latency(latency: Mapping[str, Any]) -> None:
    say()
    say(f"Latency, {latency['candidates']} candidates, {latency['backend']}", style="bold")
    table = make_table("microseconds", ("calls", "right"), ("p50", "right"), ("p99", "right"))
    for row in latency["rows"]:
        table.add_row(row["stage"], f"{row['calls']:,}", f"{row['p50_us']:,.1f}", f"{row['p99_us']:,.1f}")
    show_table(table)
    say(f"{latency['machine']}. Warm: imports and the first compilation are not in these times.")
