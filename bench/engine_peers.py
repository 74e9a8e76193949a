"""The engine beside onnxruntime on the three bundled models: interleaved rounds in one process, one thread.

    OMP_NUM_THREADS=1 python bench/engine_peers.py [--json]

Both engines get the same arrays; outputs are compared before anything is timed. The models are the bundled ones, as
``make bundles`` exported them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from rerank_engine import convert, load
from rerank_engine.graph import DTYPES, concrete

SIZES = (1, 10, 50, 100, 200, 1000)
ROUNDS = 400
MODELS = Path(__file__).parent.parent / "tests" / "models" / "onnx"


def main() -> None:
    """Print one line a model and size, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    rows = [row for path in sorted(MODELS.glob("*.onnx")) for row in measure(path, options.rounds)]
    if options.json:
        print(json.dumps(rows))
        return
    columns = f"{'ours p50/p99 us':>18}  {'onnxruntime p50/p99 us':>22}  {'ratio':>6}  {'relative error':>14}"
    print(f"{'model':16} {'N':>5}  {columns}")
    for row in rows:
        ours, peer = row["rerank_us"], row["onnxruntime_us"]
        print(
            f"{row['model']:16} {row['candidates']:5}  {ours['p50']:9.1f} {ours['p99']:8.1f}  "
            f"{peer['p50']:13.1f} {peer['p99']:8.1f}  {peer['p50'] / ours['p50']:6.2f}  {row['relative_error']:14.1e}"
        )


def measure(path: Path, rounds: int) -> list[dict[str, Any]]:
    """Time both engines on one model."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    engine = load(convert(path))
    rows = []
    for candidates in SIZES:
        generator = np.random.default_rng(candidates)
        inputs = {
            value.name: _random(generator, value.dtype, concrete(value.shape, {"N": candidates}))
            for value in engine.inputs
        }
        ours, theirs = engine.run(inputs), session.run(None, inputs)[0]
        assert isinstance(ours, np.ndarray)
        calls: dict[str, Callable[[], object]] = {
            "rerank_us": lambda inputs=inputs: engine.run(inputs),
            "onnxruntime_us": lambda inputs=inputs: session.run(None, inputs),
        }
        times = interleave(calls, rounds)
        rows.append(
            {
                "model": path.stem,
                "candidates": candidates,
                # Random inputs are larger than features are, and so are the scores: the error is told in their scale.
                "relative_error": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
                **{name: {"p50": float(np.median(t)), "p99": float(np.percentile(t, 99))} for name, t in times.items()},
            }
        )
    return rows


def interleave(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, NDArray[np.float64]]:
    """Time each call once a round, so that a busy moment of the machine meets all of them."""
    for call in calls.values():
        for _ in range(20):
            call()
    times = {name: np.empty(rounds) for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            started = perf_counter_ns()
            call()
            times[name][number] = (perf_counter_ns() - started) / 1e3
    return times


def _random(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype == "float32":
        return generator.standard_normal(shape).astype(np.float32)
    return generator.integers(0, 32, shape).astype(DTYPES[dtype])


if __name__ == "__main__":
    sys.exit(main())
