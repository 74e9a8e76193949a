"""``rerank bench``: benchmarks, one command each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rerank_sdk.cli.metrics import METRIC_NAMES, lift_words
from rerank_sdk.cli.options import BundlePath, JsonFlag, positive
from rerank_sdk.cli.output import (
    json_text,
    make_table,
    note,
    print_json,
    progress,
    say,
    show_facts,
    show_item,
    show_table,
)
from rerank_sdk.cli.sources import load_bundle, load_log

bench = typer.Typer(help="Measure speed and quality.", no_args_is_help=True, rich_markup_mode=None)


@bench.callback()
def group() -> None:
    """Measure speed and quality."""


@bench.command()
def loop(bundle: BundlePath = None, json: JsonFlag = False) -> None:
    """Measure the whole loop on MovieLens-100K."""
    from rerank_simulator.benchmark import benchmark_loop

    loaded = load_bundle(bundle)
    log = load_log()
    with progress() as report:
        measured = benchmark_loop(log, loaded, progress=report)
    if json:
        print_json(measured)
    else:
        _show(measured)


def _whole_numbers(text: str) -> str:
    """Check a list of numbers from 1, separated by commas."""
    if text and not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in text.split(",")):
        raise typer.BadParameter(f"{text!r}: expected whole numbers from 1, separated by commas")
    return text


@bench.command()
def engine(
    models: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Models to measure; build/bench/models when left out."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Peers to compare with; build/bench/peers when left out."),
    ] = None,
    only: Annotated[str, typer.Option(metavar="NAMES", help="Measure these models, separated by commas.")] = "",
    sizes: Annotated[
        str,
        typer.Option(metavar="NUMBERS", help="Numbers of candidates, separated by commas.", callback=_whole_numbers),
    ] = "1,10,50,200,1000",
    budget_s: Annotated[float, typer.Option(help="Seconds for each engine, model and size.", callback=positive)] = 0.5,
    json: JsonFlag = False,
) -> None:
    """Measure the inference engine beside its peers."""
    from rerank_engine.benchmark import DEFAULT_MODELS, DEFAULT_PEERS, benchmark_engine
    from rerank_sdk.cli.show_engines import show_engines

    with progress() as report:
        measured = benchmark_engine(
            models or DEFAULT_MODELS,
            peers or DEFAULT_PEERS,
            only=[name for name in only.split(",") if name],
            sizes=sorted({int(part) for part in sizes.split(",") if part}),
            budget_s=budget_s,
            progress=report,
        )
    if "peers" in measured["failures"]:
        note(f"measured without peers: {measured['failures']['peers']}")
    if json:
        sys.stdout.write(json_text(measured) + "\n")
    else:
        show_engines(measured)


@bench.command()
def features(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Log to build training sets from: KuaiRand, or the word movielens; else generated."
        ),
    ] = None,
    kill_rounds: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Processes to kill; 1000, or 3 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure little, to see that it works.")] = False,
    json: JsonFlag = False,
) -> None:
    """Measure event store and features, and kill processes that use them."""
    from rerank_simulator.feature_benchmark import benchmark_features

    with progress() as report:
        measured = benchmark_features(data, quick=quick, rounds=kill_rounds, progress=report)
    if json:
        print_json(measured)
    else:
        facts = {**measured, **{f"machine: {name}": value for name, value in measured["machine"].items()}}
        del facts["machine"]
        show_facts({name.replace("_", " "): value for name, value in facts.items()})
    if measured["lost_events"]:
        raise typer.Exit(1)


@bench.command("onnx-nodes")
def onnx_nodes(
    only: Annotated[
        str, typer.Option(metavar="REGEX", help="Run the cases whose name contains this regular expression.")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Run ONNX's own operator tests through import, machine code and the NumPy reference."""
    from rerank_engine.conformance import Conformance, node_cases, run_case

    cases = node_cases(only)
    results = []
    with progress() as report:
        for done, case in enumerate(cases):
            report(done, len(cases), case.name)
            results.append(run_case(case))
    counts = Conformance(tuple(results)).counts()
    if json:
        failures = {result.name: result.detail for result in results if result.status == "failed"}
        print_json({**counts, **({"failures": failures} if failures else {})})
    else:
        _show_conformance(results, counts)
    if counts["failed"]:
        raise typer.Exit(1)


def _show_conformance(results: list[Any], counts: Mapping[str, int]) -> None:
    """Failures one by one, refusals by reason, then the counts."""
    for result in results:
        if result.status == "failed":
            show_item(f"{result.name}: ", result.detail, style="red")
    reasons: dict[str, int] = {}
    for result in results:
        if result.status == "refused":
            reasons[result.detail] = reasons.get(result.detail, 0) + 1
    table = make_table(("cases", "right"), "refused because")
    for reason, count in sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0])):
        table.add_row(f"{count:,}", reason)
    if reasons:
        show_table(table)
    show_facts(counts)


def _show(measured: Mapping[str, Any]) -> None:
    """Times as a table of percentiles, qualities with their intervals, then everything else by name."""
    rest = dict(measured)
    times = make_table("microseconds", ("p50", "right"), ("p99", "right"))
    for name in [name for name in measured if name.endswith("_p50_us")]:
        part = name.removesuffix("_p50_us")
        tail = rest.pop(f"{part}_p99_us", None)
        times.add_row(part.replace("_", " "), f"{rest.pop(name):,.1f}", "-" if tail is None else f"{tail:,.1f}")
    show_table(times)
    quality = make_table("policy", ("NDCG@10", "right"), ("95% interval", "right"))
    for policy, value in rest.pop("ndcg10", {}).items():
        quality.add_row(policy, f"{value['mean']:.4f}", f"{value['low']:.4f} to {value['high']:.4f}")
    show_table(quality)
    lift = rest.pop("lift_over_server", None)
    if lift is not None:
        ratio = lift if lift["mean"] is not None else None
        say(lift_words({"policy": "model", "baseline": "server order", "metric": "ndcg10", "relative": ratio}))
    show_facts({METRIC_NAMES.get(name, name.replace("_", " ")): value for name, value in rest.items()})
