"""Train the bundled models on MovieLens-100K and write them to ``rerank_sdk/bundles``, their ONNX form to the tests.

Run by ``make bundles``. Options were chosen on the validation lists (70 to 80 % of the log); the replay part was not
looked at. About ten minutes on two cores.

With ``--convert-only`` nothing is trained: the ONNX files are converted again, for a new file format or new passes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rerank_engine import convert
from rerank_models.train import TrainOptions
from rerank_sdk.bundle import Bundle
from rerank_simulator.logs.movielens import load_movielens
from rerank_simulator.movielens import train_bundle

OPTIONS = {
    "mlp": TrainOptions(dropout=0.3, weight_decay=0.01),
    "deepfm": TrainOptions(dropout=0.3, weight_decay=0.01),
    "din": TrainOptions(dropout=0.2, weight_decay=0.01),
}
ROOT = Path(__file__).parent.parent
BUNDLES = ROOT / "rerank_sdk" / "bundles"
ONNX = ROOT / "tests" / "models" / "onnx"


def convert_again(names: list[str]) -> None:
    """Convert the ONNX files of the named bundles, or of all; spec and facts stay."""
    for name in names or list(OPTIONS):
        path = BUNDLES / f"movielens_{name}.rrb"
        old = Bundle.read(path)
        model = convert(ONNX / f"movielens_{name}.onnx", expose_head=True)
        Bundle.build(old.name, model, old.spec(), old.facts).save(path)
        sys.stderr.write(f"{path.name}: {path.stat().st_size} bytes\n")


def main(names: list[str]) -> None:
    """Train the named models, or all."""
    # One thread: sums come in the same order, so the same machine gives the same weights.
    torch.set_num_threads(1)
    log = load_movielens()
    for folder in (BUNDLES, ONNX):
        folder.mkdir(exist_ok=True)
    for name in names or list(OPTIONS):

        def report(done: int, total: int, text: str, name: str = name) -> None:
            sys.stderr.write(f"{name}: epoch {done} of {total}, {text}\n")

        onnx_path, path = ONNX / f"movielens_{name}.onnx", BUNDLES / f"movielens_{name}.rrb"
        bundle = train_bundle(name, log, options=OPTIONS[name], onnx_path=onnx_path, progress=report)
        bundle.save(path)
        sys.stderr.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--convert-only"]
    (convert_again if "--convert-only" in sys.argv[1:] else main)(arguments)
