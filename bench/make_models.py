"""Write the representative re-ranking models that engines are compared on.

    python bench/make_models.py --out build/bench/models

Each is an ONNX file with a candidate axis N that varies, and beside it ``NAME.json``, which says how random inputs
are drawn. ``lambdamart`` is a LightGBM ranker, as ``.txt`` and as ``.onnx``. What is there already is left alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_definitions import DEFINITIONS, LONGEST_LIST, build, example

EXPORTED_SIZE = 50
TRACED = {"edgerec"}
"""Models for PyTorch's older exporter: the newer one writes the traced length into the result of a GRU."""

TREE_FEATURES = 64
TREE_INPUT = "features"  # as the importer of LightGBM models calls it
TREE_COUNT = 300
LEAF_COUNT = 31
TRAINING_LISTS, TRAINING_LIST_LENGTH = 400, 50


def main() -> int:
    """Make what is missing; print what was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench/models"))
    parser.add_argument("--again", action="store_true", help="make all models again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    for name in (*DEFINITIONS, "lambdamart"):
        if options.again or not (options.out / f"{name}.json").exists():
            if name == "lambdamart":
                make_trees(options.out)
            else:
                export(name, options.out / f"{name}.onnx")
                _write_card(options.out, name, f"{name}.onnx", DEFINITIONS[name].inputs)
            print(f"made {options.out / name}.onnx")
    return 0


def export(name: str, path: Path, *, fixed_size: int | None = None) -> None:
    """Export one PyTorch model, with the number of candidates as a named dimension or fixed."""
    inputs = DEFINITIONS[name].inputs
    varying = [key for key, spec in inputs.items() if spec["shape"][0] == "N" and fixed_size is None]
    settings: dict[str, Any]
    if name in TRACED:
        axes = {key: {0: "N"} for key in varying}
        settings = {"dynamo": False, "dynamic_axes": axes | {"score": {0: "N"}} if varying else {}, "opset_version": 17}
    else:
        candidates = torch.export.Dim("N", min=2, max=LONGEST_LIST)
        shapes = [{0: candidates} if key in varying else None for key in inputs]
        settings = {"dynamo": True, "dynamic_shapes": shapes, "opset_version": 18, "external_data": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters tell of their own deprecations
        torch.onnx.export(
            build(name),
            tuple(example(name, fixed_size or EXPORTED_SIZE).values()),
            path,
            input_names=list(inputs),
            output_names=["score"],
            verbose=False,
            **settings,
        )


def make_trees(folder: Path) -> None:
    """Train a LambdaMART ranker on synthetic lists with grades 0 to 4."""
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    generator = np.random.default_rng(5)
    rows = TRAINING_LISTS * TRAINING_LIST_LENGTH
    features = generator.standard_normal((rows, TREE_FEATURES)).astype(np.float32)
    relevance = features @ generator.standard_normal(TREE_FEATURES)
    relevance += 2 * np.sin(3 * features[:, 0]) * features[:, 1] + 2 * generator.standard_normal(rows)
    grades = np.digitize(relevance, np.quantile(relevance, [0.5, 0.75, 0.9, 0.97]))
    settings = {
        "objective": "lambdarank",
        "num_leaves": LEAF_COUNT,
        "learning_rate": 0.05,
        "num_threads": 1,
        "seed": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbose": -1,
    }
    lists = lightgbm.Dataset(features, grades, group=[TRAINING_LIST_LENGTH] * TRAINING_LISTS)
    booster = lightgbm.train(settings, lists, TREE_COUNT)
    booster.save_model(folder / "lambdamart.txt")
    # Read back, so that the ONNX model has the numbers of the text.
    booster = lightgbm.Booster(model_file=folder / "lambdamart.txt")
    model = convert_lightgbm(
        booster, initial_types=[(TREE_INPUT, FloatTensorType([None, TREE_FEATURES]))], zipmap=False, target_opset=15
    )
    (folder / "lambdamart.onnx").write_bytes(model.SerializeToString())
    inputs = {TREE_INPUT: {"shape": ["N", TREE_FEATURES], "dtype": "float32", "kind": "normal"}}
    _write_card(folder, "lambdamart", "lambdamart.txt", inputs)


def _write_card(folder: Path, name: str, source: str, inputs: Any) -> None:
    """Written last: a model without its card is not finished."""
    card = {"source": source, "inputs": {key: dict(spec) for key, spec in inputs.items()}}
    (folder / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
