"""``rerank verify``: does the converted model give the numbers of its source?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerank_sdk.cli.options import JsonFlag, positive
from rerank_sdk.cli.output import make_table, print_json, progress, say, show_facts, show_item, show_table, value_text

if TYPE_CHECKING:
    from rerank_engine.verify import VerificationReport
    from rerank_engine.verify.report import CaseResult

_NOTHING = "-"


def _lengths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r}: expected whole numbers from 0 with commas between, such as 0,1,7,50")
    return tuple(int(part) for part in parts)


def _check_lengths(text: str) -> str:
    _lengths(text)
    return text


def verify(
    source: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX, LightGBM or XGBoost model.")],
    model: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The converted model, .rrm; left out, the source is converted."),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Name of the dimension that counts candidates; by default the only named dimension."),
    ] = None,
    lengths: Annotated[
        str, typer.Option(metavar="N,N,…", callback=_check_lengths, help="Numbers of candidates to try.")
    ] = "0,1,7,50",
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs; the same seed gives the same report.")] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(callback=positive, help="Allowed error in parts of an output's largest magnitude; 2e-6."),
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Compare every layer that both sides name.")] = False,
    vocabulary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Number of ids of an input, if its tables are not found; may be repeated."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compare a converted model with the framework that it came from."""
    vocabularies = _vocabularies(vocabulary or ())
    from rerank_engine.verify import verify as verify_model
    from rerank_engine.verify.compare import TOLERANCE

    with progress() as show_progress:
        report = verify_model(
            source,
            model,
            candidates=candidates,
            lengths=_lengths(lengths),
            seed=seed,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            layers=layers,
            vocabularies=vocabularies,
            progress=show_progress,
        )
    if json:
        print_json(report.to_dict())
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _vocabularies(texts: Iterable[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        # The count is behind the last sign: names of inputs may hold any character.
        name, sign, count = text.rpartition("=")
        if not (name and sign and count.isascii() and count.isdigit() and int(count)):
            message = f"{text!r}: expected the name of an input, = and a number of ids from 1"
            raise typer.BadParameter(message, param_hint="--vocabulary")
        found[name] = int(count)
    return found


def _show(report: VerificationReport) -> None:
    show_facts(
        [
            ("model", f"{report.model}, {report.model_hash[:12]}"),
            ("source", report.sources),
            ("backend", report.backend),
            ("cases", len(report.cases)),
            ("max error", f"{value_text(report.max_abs_error)} ({value_text(report.max_scaled_error)} of the scale)"),
        ]
    )
    _show_cases(report)
    if report.layers:
        _show_layers(report)
    for text in report.problems:
        show_item("differs  ", text, style="red")
    if report.first_difference is not None:
        show_item("first    ", report.first_difference.explain(), style="red")
        for one in report.first_difference.inputs:
            odd = f", {one.not_finite:,} not finite" if one.not_finite else ""
            span = f"{value_text(one.minimum)} to {value_text(one.maximum)}"
            show_item("  input  ", f"{one.name!r}: {span}{odd}", style="red")
    for text in report.policies:
        show_item("policy   ", text, style="yellow")
    for text in report.notes:
        show_item("note     ", text, style="yellow")
    say("verified: the model gives the numbers of its source" if report.passed else "not verified")


def _show_cases(report: VerificationReport) -> None:
    """One line for each list length."""
    table = make_table(
        "sizes",
        ("cases", "right"),
        ("refused", "right"),
        ("failed", "right"),
        ("source error", "right"),
        ("engine error", "right"),
        ("Kendall tau", "right"),
        ("top 1/5/10", "right"),
    )
    by_sizes: dict[str, list[CaseResult]] = {}
    for case in report.cases:
        by_sizes.setdefault(case.name.partition(":")[0], []).append(case)
    for sizes, cases in by_sizes.items():
        outputs = [output for case in cases for output in case.outputs]
        shares = [
            [output.top_k_agreement[count] for output in outputs if count in output.top_k_agreement]
            for count in (1, 5, 10)
        ]
        table.add_row(
            sizes,
            str(len(cases)),
            str(sum(case.outcome == "refused" for case in cases)),
            str(sum(case.outcome == "failed" for case in cases)),
            _worst([output.source.scaled_error for output in outputs if output.source is not None]),
            _worst([output.engine.scaled_error for output in outputs]),
            value_text(min((tau for output in outputs if (tau := output.kendall_tau) is not None), default=None)),
            "/".join(value_text(min(found, default=None)) for found in shares),
        )
    show_table(table)


def _show_layers(report: VerificationReport) -> None:
    table = make_table(
        "value", "operator", ("source error", "right"), ("engine error", "right"), ("differ", "right"), title="layers"
    )
    for layer in report.layers:
        table.add_row(
            layer.value,
            layer.operator,
            f"{layer.source_error:.1e}",
            f"{layer.engine_error:.1e}",
            f"{layer.outside:,}" if layer.outside else _NOTHING,
        )
    show_table(table)


def _worst(errors: Sequence[float]) -> str:
    return f"{max(errors):.1e}" if errors else _NOTHING
