"""``rerank tune``: look for faster kernels for a model on this machine, and keep them with its machine code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank_sdk.cli.options import JsonFlag, positive
from rerank_sdk.cli.output import make_table, print_json, progress, say, show_table

if TYPE_CHECKING:
    from rerank_engine.search.trials import Trial


def tune(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", exists=True, dir_okay=False, help="A model file .rrm or a bundle .rrb.")
    ],
    budget_s: Annotated[
        float, typer.Option(metavar="SECONDS", callback=positive, help="Time to search, without compiling.")
    ] = 20.0,
    json: JsonFlag = False,
) -> None:
    """Look for the fastest kernels for a model on this machine."""
    from rerank_engine.model import Model
    from rerank_engine.search.tune import tune_model
    from rerank_sdk.bundle import Bundle

    is_bundle = model.suffix.lower() == ".rrb"
    loaded = Bundle.read(model).model() if is_bundle else Model.read(model)
    with progress() as advance:
        started = perf_counter()

        def report_trial(trial: Trial) -> None:
            spent_ms = round(1000 * min(perf_counter() - started, budget_s))
            text = f"{trial.inner}x{trial.columns} as {trial.tiling}: {_outcome(trial)}"
            advance(spent_ms, round(1000 * budget_s), text)

        path, report = tune_model(loaded, budget_s=budget_s, progress=report_trial)
    if json:
        print_json({"model": str(model), "image": str(path), **report})
        return
    _show(path, report)


def _outcome(trial: Trial) -> str:
    return f"{trial.ratio:.2f}x" if trial.ratio is not None else trial.reason


def _show(path: Path, report: dict[str, Any]) -> None:
    if report["tilings"]:
        table = make_table("product", "default", "found", ("faster", "right"))
        for product, one in report["tilings"].items():
            table.add_row(product, one["default"], one["chosen"], f"{one['ratio']:.2f}x")
        show_table(table)
    say(report["reason"])
    failed = Counter(trial["reason"] for trial in report["trials"] if trial["ratio"] is None)
    for reason, count in failed.items():
        say(f"{count} candidate{'s' if count > 1 else ''} failed: {reason}")
    complete = "all that there are" if report.get("is_complete", True) else "as many as the time allowed"
    say(f"{len(report['trials'])} tried ({complete}) in {report['elapsed_s']:.1f} s; kept in {path}")
