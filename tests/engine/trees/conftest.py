"""What the tests of trees share: rows with every odd value, and both ways of running a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rerank_engine
from rerank_engine.graph import Graph
from rerank_engine.model import Model
from rerank_engine.reference import evaluate

Array = NDArray[Any]
Run = Callable[[Graph, Mapping[str, Array]], dict[str, Array]]

_ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e-36, -1e-35, 1e-35, 3e38, -3e38, 1e30, -0.5, -1, -7, 2.5]
ODD = np.array([*_ODD, 1e9], dtype=np.float32)


def odd_rows(count: int, columns: int, seed: int = 0, *, infinite: bool = True) -> Array:
    """Normal numbers of several sizes, whole numbers, and a third of everything that goes wrong elsewhere."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, columns)) * random.choice([0.1, 1, 10, 1000], (count, columns))
    whole = random.random((count, columns)) < 0.3
    rows[whole] = random.integers(-3, 60, int(whole.sum()))
    odd = random.random((count, columns)) < 0.3
    rows[odd] = random.choice(ODD if infinite else ODD[np.isfinite(ODD) | np.isnan(ODD)], int(odd.sum()))
    return rows.astype(np.float32)


def _scale(array: Array) -> float:
    """The largest finite magnitude: sums of parts of that size are as exact as their parts."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


@pytest.fixture
def rows() -> Callable[..., Array]:
    """See :func:`odd_rows`."""
    return odd_rows


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a graph by NumPy and by machine code, check that both agree to a few bits, and return the latter."""

    def run_both(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
        reference = evaluate(graph, feeds)
        engine = rerank_engine.load(Model(graph), cache_dir=tmp_path)
        assert engine.backend == "cpu", engine.backend_reason
        found = engine.run(feeds)
        compiled = found if isinstance(found, dict) else {graph.outputs[0]: found}
        for name, expected in reference.items():
            actual = compiled[name]
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
            if expected.dtype.kind == "f":
                with np.errstate(invalid="ignore"):
                    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-7 * _scale(expected), err_msg=name)
            else:
                np.testing.assert_array_equal(actual, expected, err_msg=name)
        return compiled

    return run_both
