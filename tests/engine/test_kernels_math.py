"""The elementary functions over the whole range of float32: error in units of the last place, limits, order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

STEP = 2053
"""Every so many bit patterns of float32, denormals, infinities and NaN among them."""

# What the docstring of rerank_engine.kernels.math states.
LIMITS: dict[str, tuple[float, Callable[[Any], Any]]] = {
    "Exp": (1.1, np.exp),
    "Sigmoid": (2.2, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "Tanh": (1.2, np.tanh),
}


@pytest.fixture(scope="module")
def functions(tools: Any) -> Callable[[NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    b = tools.GraphBuilder()
    x = b.input("float32", "N")
    names = {op: b.node(op, x) for op in (*LIMITS, "Sqrt", "Abs")}
    compiled = tools.Compiled(b.output(*names.values()).finish())

    def run(array: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        results = compiled({x: array})
        return {op: results[name] for op, name in names.items()}

    return run


@pytest.fixture(scope="module")
def sweep(tools: Any) -> NDArray[np.float32]:
    patterns = np.arange(0, 2**32, STEP, dtype=np.uint64).astype(np.uint32).view(np.float32)
    result: NDArray[np.float32] = tools.flush(patterns[~np.isnan(patterns)])
    return result


@pytest.mark.parametrize("op", sorted(LIMITS))
def test_error_over_all_of_float32(tools: Any, functions: Any, sweep: NDArray[np.float32], op: str) -> None:
    limit, function = LIMITS[op]
    actual = functions(sweep)[op].astype(np.float64)
    with np.errstate(all="ignore"):
        exact = function(sweep.astype(np.float64))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(exact) >= tools.TINY)
    error = np.abs(actual[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal])).astype(np.float64)
    assert normal.sum() > 1_000_000
    assert error.max() <= limit, f"{op} is {error.max():.2f} ULP off at {sweep[normal][error.argmax()]!r}"
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(actual[infinite], rounded[infinite])
    small = np.abs(exact) < tools.TINY
    assert not actual[small].any(), "a result below the smallest normal number must be zero"


def test_square_root_is_correctly_rounded(functions: Any, sweep: NDArray[np.float32]) -> None:
    positive = sweep[sweep >= 0]
    np.testing.assert_array_equal(functions(positive)["Sqrt"], np.sqrt(positive))


def test_limits_and_not_a_number(functions: Any) -> None:
    x = np.array([-np.inf, np.inf, np.nan, -np.nan, 0.0, -0.0, 88.72284, 88.722832, -87.4, -200.0, 200.0], np.float32)
    results = functions(x)
    nan = np.float32(np.nan)
    np.testing.assert_array_equal(results["Exp"][:6], np.array([0, np.inf, nan, nan, 1, 1], np.float32))
    assert np.isposinf(results["Exp"][6])
    assert np.isfinite(results["Exp"][7])
    np.testing.assert_array_equal(results["Exp"][8:], np.array([0, 0, np.inf], np.float32))
    np.testing.assert_array_equal(results["Sigmoid"][:6], np.array([0, 1, nan, nan, 0.5, 0.5], np.float32))
    np.testing.assert_array_equal(results["Tanh"][:6], np.array([-1, 1, nan, nan, 0, 0], np.float32))
    np.testing.assert_array_equal(results["Abs"], np.abs(x))
    assert np.isnan(results["Sqrt"][0])


def test_sigmoid_keeps_the_order_of_logits(functions: Any) -> None:
    random = np.random.default_rng(5)
    for logits in (np.linspace(-20, 20, 4000), np.sort(random.normal(0, 4, 4000)), np.linspace(-0.01, 0.01, 4000)):
        scores = functions(logits.astype(np.float32))["Sigmoid"]
        assert (np.diff(scores) >= 0).all(), f"falls at {logits[np.diff(scores).argmin()]}"


def test_tanh_is_odd_and_exp_does_not_fall_by_more_than_its_error(functions: Any) -> None:
    x = np.linspace(-12, 12, 200_001).astype(np.float32)
    results = functions(x)
    np.testing.assert_array_equal(results["Tanh"], -functions(-x)["Tanh"])
    assert (np.diff(results["Exp"]) >= -2 * np.spacing(results["Exp"][1:])).all()
