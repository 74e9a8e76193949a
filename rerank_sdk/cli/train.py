"""``rerank train``: train a model of the zoo on MovieLens and pack it as a bundle."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rerank_engine.errors import MissingExtraError
from rerank_sdk.cli.options import JsonFlag, not_negative, positive, share
from rerank_sdk.cli.output import print_json, progress, show_facts, size_text
from rerank_sdk.cli.sources import load_log, prepare_output


class ModelName(StrEnum):
    """Models of the zoo."""

    MLP = "mlp"
    DEEPFM = "deepfm"
    DIN = "din"


def train(
    model: Annotated[ModelName, typer.Option("--model", help="Which model of the zoo.")],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The bundle to write, .rrb.")],
    epochs: Annotated[int, typer.Option(min=1, help="At most so many passes over the lists.")] = 30,
    patience: Annotated[int, typer.Option(min=1, help="Stop after so many epochs that were no better.")] = 5,
    batch_lists: Annotated[int, typer.Option(min=1, help="Lists in a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(callback=positive, help="Of AdamW.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(callback=not_negative, help="Of AdamW.")] = 1e-3,
    dropout: Annotated[float, typer.Option(callback=share, help="Share of hidden units that are dropped.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, order and dropout.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Train a model on MovieLens-100K, write a bundle."""
    try:
        from rerank_models.train import TrainOptions
    except ImportError as error:
        raise MissingExtraError("training", "train") from error
    from rerank_simulator.movielens import train_bundle

    options = TrainOptions(
        epochs=epochs,
        patience=patience,
        batch_lists=batch_lists,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        dropout=dropout,
        seed=seed,
    )
    prepare_output(out)
    log = load_log()
    with progress() as report:
        bundle = train_bundle(str(model), log, options=options, progress=report)
    bundle.save(out)
    size = out.stat().st_size
    if json:
        print_json({"out": str(out), "bytes": size, "name": bundle.name, "facts": dict(bundle.facts)})
        return
    facts = ((name.replace("_", " "), value) for name, value in bundle.facts.items())
    show_facts([("bundle", bundle.name), *facts, ("written to", f"{out} ({size_text(size)})")])
