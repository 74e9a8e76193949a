"""``rerank convert``: a trained model of any kind becomes a model file, or with a feature spec a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank_sdk.cli.describe import describe_model, describe_passes
from rerank_sdk.cli.options import JsonFlag, named_arrays, named_integers, named_texts
from rerank_sdk.cli.output import print_json, say, size_text
from rerank_sdk.cli.show_model import show_model, show_passes
from rerank_sdk.cli.sources import prepare_output


def _existing(source: str) -> str:
    """Check that the file of a source exists; a factory may be named behind a Python file."""
    file, mark, factory = source.rpartition(":")
    path = Path(file if mark and file.endswith(".py") and factory.isidentifier() else source)
    if not path.exists():
        raise typer.BadParameter(f"{str(path)!r} does not exist")
    return source


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            callback=_existing,
            help="ONNX, TFLite, LightGBM, XGBoost or Caffe file, SavedModel folder, or model.py:factory for PyTorch.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The file to write: .rrm, with --spec .rrb.")],
    spec: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A feature spec in TOML: write a bundle of model and spec."),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Name of the dimension that counts candidates; by default the only one that stands first."),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="Fix an input for good, for example k=10; may be repeated."),
    ] = None,
    unknown_row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ROW", help="Row for ids outside the table of an input; may be repeated."),
    ] = None,
    maximum: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Largest size of a named dimension; may be repeated."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The .caffemodel of a Caffe .prototxt.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="For trees: prediction, or raw for the sum of the leaves.")] = None,
    signature: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which signature of a SavedModel or TFLite file.")
    ] = None,
    dimension: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=NAME",
            help="SavedModel, TFLite: name of a first dimension that does not count candidates; may be repeated.",
        ),
    ] = None,
    shared: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUT", help="PyTorch: an input without rows of candidates; may be repeated."),
    ] = None,
    expose_head: Annotated[
        bool, typer.Option("--expose-head", help="Add the output that learning for each user needs.")
    ] = False,
    skip_pass: Annotated[
        list[str] | None, typer.Option("--skip-pass", metavar="NAME", help="Leave a pass out; may be repeated.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Convert a trained model to a model file or a bundle."""
    from rerank_engine import convert as convert_model

    model = convert_model(
        source,
        candidates=candidates,
        constants=named_arrays(constant, "--constant") or None,
        unknown_rows=named_integers(unknown_row, "--unknown-row"),
        maxima=named_integers(maximum, "--maximum"),
        weights=weights,
        output=output,
        signature=signature,
        dimensions=named_texts(dimension, "--dimension") or None,
        shared=shared or None,
        expose_head=expose_head,
        skip_passes=skip_pass or (),
    )
    if spec is None:
        model.save(prepare_output(out))
    else:
        from rerank_features import FeatureSpec
        from rerank_sdk.bundle import Bundle

        Bundle.build(out.stem, model, FeatureSpec.from_toml(spec)).save(prepare_output(out))
    described = describe_model(model)
    passes = describe_passes(model.reports)
    if json:
        print_json({"out": str(out), "bytes": out.stat().st_size, "model": described, "passes": passes})
        return
    show_model(described)
    show_passes(passes)
    say(f"written to {out} ({size_text(out.stat().st_size)})")
