"""Reductions, selections, scans and normalisations over any axis: long rows, named dimensions, chosen numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rerank_engine.codegen.target import named_target
from rerank_engine.errors import GraphError, InputError, UnsupportedOperatorError
from rerank_engine.ops import check_nodes
from rerank_engine.plan import make_plan
from rerank_engine.reference import evaluate

Array = NDArray[Any]
LONG = 20_000
NAN, INF = float("nan"), float("inf")


def both(tools: Any, builder: Any, feeds: dict[str, Array]) -> list[Array]:
    """Results of machine code, after the check that the NumPy reference gives the same ones exactly."""
    graph = builder.finish()
    compiled, expected = tools.Compiled(graph)(feeds), evaluate(graph, feeds)
    for name, array in compiled.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert array.dtype == expected[name].dtype
    return list(compiled.values())


def assert_precise(
    tools: Any, builder: Any, feeds: dict[str, Array], tolerance: float = 2e-6, absolute: float = 0.0
) -> None:
    graph = builder.finish()
    compiled, expected = tools.Compiled(graph)(feeds), evaluate(graph, feeds, precise=True)
    for name, array in compiled.items():
        np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=absolute, err_msg=name)


# --- long rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [None, 0.1])
@pytest.mark.parametrize("shape", [("N", LONG), ("N", "T"), ("N", LONG, 3), ("T", "N"), ("N", 150, 133)])
def test_long_sums_stay_exact(tools: Any, shape: tuple[Any, ...], fill: float | None) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", *shape)
    axis = 0 if shape[0] == "T" else 1
    axes = (1, 2) if shape == ("N", 150, 133) else (axis,)
    b.output(*(b.node(op, x, axes=axes, keepdims=0) for op in ("ReduceSum", "ReduceMean")))
    sizes = {"N": 2, "T": LONG}
    numbers = tuple(sizes.get(dim, dim) for dim in shape)
    array = np.random.default_rng(1).random(numbers) if fill is None else np.full(numbers, fill)
    assert_precise(tools, b, {x: array.astype(np.float32)}, tolerance=5e-7)


@pytest.mark.parametrize("shape", [("N", LONG), ("N", "T"), ("N", LONG, 2)])
def test_long_softmax_and_normalisation_stay_exact(tools: Any, shape: tuple[Any, ...]) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", *shape)
    b.output(b.node("Softmax", x, axis=1), b.node("LogSoftmax", x, axis=1))
    b.output(*b.nodes("LayerNormalization", [x], 3, axis=1), b.node("RMSNormalization", x, axis=1))
    numbers = tuple({"N": 2, "T": LONG}.get(dim, dim) for dim in shape)
    array = np.random.default_rng(2).normal(3, 1, numbers).astype(np.float32)
    assert_precise(tools, b, {x: array}, absolute=1e-6)


def test_long_running_sums_stay_exact(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", LONG)
    b.output(b.node("CumSum", x, axis=1), b.node("CumSum", x, axis=1, exclusive=1, reverse=1))
    assert_precise(tools, b, {x: np.random.default_rng(3).random((2, LONG)).astype(np.float32)}, tolerance=1e-7)


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6])
def test_a_mean_far_above_the_deviation_costs_no_digits(tools: Any, mean: float) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 33)
    b.output(*b.nodes("LayerNormalization", [x], 3))
    array = np.random.default_rng(4).normal(mean, 1 + mean * 1e-5, (50, 33)).astype(np.float32)
    assert_precise(tools, b, {x: array}, absolute=1e-6)


def test_equal_elements_normalise_to_the_bias(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 24)
    bias = np.linspace(-1, 1, 24, dtype=np.float32)
    b.output(b.node("LayerNormalization", x, b.constant(np.ones(24)), b.constant(bias), epsilon=1e-12))
    graph = b.finish()
    array = np.repeat(np.array([[0.1], [1e6], [-3e7], [0.0]], np.float32), 24, axis=1)
    for row in tools.Compiled(graph)({x: array})[graph.outputs[0]]:
        np.testing.assert_allclose(row, bias, atol=1e-6)


# --- chosen numbers ----------------------------------------------------------------------------------------------


def test_top_k_vectors(tools: Any) -> None:
    b = tools.GraphBuilder()
    ties, nans = b.input("float32", "N", 8), b.input("float32", "N", 5)
    b.output(*b.nodes("TopK", [ties], 2, k=3), *b.nodes("TopK", [nans], 2, k=3))
    b.output(*b.nodes("TopK", [nans], 2, k=4, largest=0))
    feeds = {ties: np.array([[1, 5, 5, 5, 2, 5, 1, 5]], np.float32), nans: np.array([[1, NAN, 3, 2, NAN]], np.float32)}
    results = both(tools, b, feeds)
    assert results[0].tolist() == [[5, 5, 5]]
    assert results[1].tolist() == [[1, 2, 3]]
    np.testing.assert_array_equal(results[2], [[NAN, NAN, 3]])
    assert results[3].tolist() == [[1, 4, 2]]
    np.testing.assert_array_equal(results[4], [[1, 2, 3, NAN]])
    assert results[5].tolist() == [[0, 3, 2, 1]]


def test_top_k_beyond_the_axis(tools: Any) -> None:
    b = tools.GraphBuilder()
    fixed = b.input("float32", "N", 2)
    with pytest.raises(UnsupportedOperatorError, match=r"TopK node 'topk\d': cannot choose k = 3 along axis 1"):
        b.nodes("TopK", [fixed], 2, k=3)
    with pytest.raises(UnsupportedOperatorError, match="cannot choose k = -1"):
        b.nodes("TopK", [fixed], 2, k=-1)
    b.output(*b.nodes("TopK", [fixed], 2, k=3, axis=0))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for count in (0, 2):
        feeds = {fixed: np.zeros((count, 2), np.float32)}
        with pytest.raises(InputError, match=rf"TopK node 'topk\d' chooses k = 3 along dimension N, which is {count}"):
            compiled(feeds)
        with pytest.raises(InputError, match=r"cannot choose k = 3 along axis 0 of an array of shape"):
            evaluate(graph, feeds)
    values, indices = compiled({fixed: np.array([[1, 2], [3, 0], [2, 2]], np.float32)}).values()
    assert values.tolist() == [[3, 2], [2, 2], [1, 0]]
    assert indices.tolist() == [[1, 0], [2, 2], [0, 1]]


@pytest.mark.parametrize("order", ["sorted", "backwards", "equal", "random"])
def test_a_whole_list_is_sorted(tools: Any, order: str) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N")
    b.output(*b.nodes("TopK", [x], 2, k="N", axis=0), *b.nodes("TopK", [x], 2, k="N", axis=0, largest=0))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for count in (0, 1, 2, 3, 64, 999):
        array = np.arange(count, dtype=np.float32)
        if order == "random":
            array = np.random.default_rng(count).integers(0, 9, count).astype(np.float32)
        array = {"backwards": array[::-1].copy(), "equal": np.ones_like(array)}.get(order, array)
        values, indices, least, least_indices = compiled({x: array}).values()
        expected = sorted(range(count), key=lambda index, array=array: (-array[index], index))  # type: ignore[misc]
        assert indices.tolist() == expected
        assert values.tolist() == array[expected].tolist()
        expected = sorted(range(count), key=lambda index, array=array: (array[index], index))  # type: ignore[misc]
        assert least_indices.tolist() == expected
        assert least.tolist() == array[expected].tolist()


def test_nan_and_infinity_in_reductions(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 5)
    for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"):
        b.output(b.node(op, x, axes=(1,), keepdims=0))
    for op in ("ArgMax", "ArgMin"):
        b.output(b.node(op, x, axis=1, keepdims=0), b.node(op, x, axis=1, keepdims=0, select_last_index=1))
    rows = [[1, NAN, 3, 2, NAN], [INF, 1, -INF, INF, -INF], [-INF] * 5, [0.0, -0.0, 0.0, -0.0, 0.0]]
    results = both(tools, b, {x: np.array(rows, np.float32)})
    np.testing.assert_array_equal(results[0], [NAN, INF, -INF, 0])
    np.testing.assert_array_equal(results[1], [NAN, -INF, -INF, 0])
    np.testing.assert_array_equal(results[2], [NAN, NAN, -INF, 0])
    np.testing.assert_array_equal(results[3], [NAN, INF, -INF, 0])
    assert [row.tolist() for row in results[4:]] == [[1, 0, 0, 0], [4, 3, 4, 4], [1, 2, 0, 0], [4, 4, 4, 4]]


def test_a_masked_row_of_a_plain_softmax_is_nan(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4)
    b.output(b.node("Softmax", x), b.node("LogSoftmax", x), b.node("Hardmax", x))
    rows = np.array([[-INF] * 4, [-INF, 0, -INF, -INF], [INF, 0, 0, 0]], np.float32)
    soft, logarithm, hard = both(tools, b, {x: rows})
    np.testing.assert_array_equal(soft, [[NAN] * 4, [0, 1, 0, 0], [NAN] * 4])
    np.testing.assert_array_equal(logarithm, [[NAN] * 4, [-INF, 0, -INF, -INF], [NAN] * 4])
    assert hard.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]


def test_reductions_over_nothing(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, whole, truth = b.input("float32", "N", 3), b.input("int32", "N", 3), b.input("bool", "N", 3)
    for op in ("ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin"):
        b.output(b.node(op, x, axes=(0,), keepdims=0), b.node(op, whole, axes=(0,), keepdims=0))
    b.output(b.node("ReduceMax", truth, axes=(0,), keepdims=0), b.node("ReduceMin", truth, axes=(0,), keepdims=0))
    empty = {x: np.zeros((0, 3), np.float32), whole: np.zeros((0, 3), np.int32), truth: np.zeros((0, 3), np.bool_)}
    limits = np.iinfo(np.int32)
    expected = [0, 0, 1, 1, NAN, 0, -INF, limits.min, INF, limits.max, False, True]
    for array, number in zip(both(tools, b, empty), expected, strict=True):
        np.testing.assert_array_equal(array, [number] * 3)


def test_integers_wrap_and_means_truncate(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, y = b.input("int32", "N", 2), b.input("uint64", "N", 2)
    b.output(*(b.node(op, x, axes=(1,), keepdims=0) for op in ("ReduceSum", "ReduceProd", "ReduceMean")))
    b.output(b.node("ReduceMean", y, axes=(1,), keepdims=0), b.node("ReduceMax", y, axes=(1,), keepdims=0))
    most = np.iinfo(np.int32).max
    signed: Array = np.array([[most, 1], [-3, -4], [3, 4]], np.int32)
    feeds = {x: signed, y: np.array([[2**63, 1], [5, 2], [0, 0]], np.uint64)}
    sums, products, means, unsigned, largest = both(tools, b, feeds)
    assert sums.tolist() == [np.iinfo(np.int32).min, -7, 7]
    assert products.tolist() == [most, 12, 12]
    assert means.tolist() == [np.iinfo(np.int32).min // 2, -3, 3]
    assert unsigned.tolist() == [2**62, 3, 0]
    assert largest.tolist() == [2**63, 5, 0]


def test_the_place_of_an_extreme_of_nothing(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", "T")
    b.output(b.node("ArgMax", x, axis=1))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    assert compiled({x: np.zeros((0, 0), np.float32)})[graph.outputs[0]].shape == (0, 1)
    assert evaluate(graph, {x: np.zeros((0, 0), np.float32)})[graph.outputs[0]].shape == (0, 1)
    with pytest.raises(InputError, match=r"ArgMax node 'argmax\d': dimension T is 0: nothing to choose from"):
        compiled({x: np.zeros((2, 0), np.float32)})
    with pytest.raises(InputError, match="nothing to choose from along axis 1"):
        evaluate(graph, {x: np.zeros((2, 0), np.float32)})
    with pytest.raises(UnsupportedOperatorError, match="nothing to choose from along axis 1"):
        b.node("ArgMin", b.input("float32", "N", 0), axis=1)


# --- named dimensions anywhere -----------------------------------------------------------------------------------

_DIMS = st.sampled_from(["N", "T", 1, 2, 3, 5, 18, 40])
_SIZES = ({"N": 0, "T": 3}, {"N": 1, "T": 0}, {"N": 2, "T": 35}, {"N": 21, "T": 2}, {"N": 135, "T": 1})


def _add_reductions(b: Any, x: str, axes: tuple[int, ...]) -> None:
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        b.output(b.node(op, x, axes=axes, keepdims=len(axes) % 2))


def _add_along_axis(b: Any, x: str, axis: int) -> None:
    b.output(b.node("Softmax", x, axis=axis), b.node("LogSoftmax", x, axis=axis), b.node("Hardmax", x, axis=axis))
    b.output(b.node("CumSum", x, axis=axis, reverse=1), b.node("CumProd", x, axis=axis, exclusive=1))
    b.output(*b.nodes("LayerNormalization", [x], 3, axis=axis), b.node("RMSNormalization", x, axis=axis))
    size = b.graph.values[x].shape[axis]
    b.output(*b.nodes("TopK", [x], 2, k=size if isinstance(size, int) else str(size), axis=axis))


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@example(dims=["T", 5, "N"], chosen=[0, 2])
@example(dims=["N", "T", 40], chosen=[1])
@example(dims=["N", "T"], chosen=[0])
@example(dims=[3, "N", 2, "T"], chosen=[1, 3])
@given(dims=st.lists(_DIMS, min_size=1, max_size=4), chosen=st.lists(st.integers(0, 3), min_size=1, unique=True))
def test_any_axis_of_any_kind(tools: Any, dims: list[Any], chosen: list[int]) -> None:
    axes = tuple({axis % len(dims) for axis in chosen})
    b = tools.GraphBuilder()
    x = b.input("float32", *dims)
    _add_reductions(b, x, axes)
    _add_along_axis(b, x, axes[0])
    if isinstance(dims[axes[0]], int):
        b.output(b.node("ArgMax", x, axis=axes[0]))
        b.output(b.node("ArgMin", x, axis=axes[0], keepdims=0, select_last_index=1))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for sizes in _SIZES:
        shape = tuple(sizes.get(dim, dim) for dim in dims)
        if np.prod(shape) > 30_000:
            continue
        feeds = {x: np.random.default_rng(len(dims)).normal(1, 0.2, shape).astype(np.float32)}
        expected = evaluate(graph, feeds, precise=True)
        for name, array in compiled(feeds).items():
            label = f"{graph.values[name]} of {shape}"
            assert array.shape == expected[name].shape, label
            np.testing.assert_allclose(array, expected[name].astype(array.dtype), 3e-6, 3e-6, err_msg=label)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3"])
def test_other_vector_widths_give_the_same(tools: Any, cpu: str) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3, 43)
    _add_reductions(b, x, (2,))
    _add_reductions(b, x, (1,))
    _add_along_axis(b, x, 1)
    _add_along_axis(b, x, 2)
    graph = b.finish()
    feeds = {x: np.random.default_rng(6).normal(1, 0.2, (9, 3, 43)).astype(np.float32)}
    expected = evaluate(graph, feeds, precise=True)
    for name, array in tools.Compiled(graph, named_target(cpu))(feeds).items():
        np.testing.assert_allclose(array, expected[name].astype(array.dtype), 3e-6, 3e-6, err_msg=name)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "attributes", "why"),
    [
        ("ReduceSum", ("N", 3), "float32", {"axes": ()}, "must be one or more"),
        ("ReduceSum", ("N", 3), "float32", {"axes": (1, -1)}, "each named once"),
        ("ReduceSum", ("N", 3), "float32", {"axes": (2,)}, "axis 2 is out of range for rank 2"),
        ("ReduceSum", ("N", 3), "bool", {"axes": (1,)}, "dtype bool is not supported"),
        ("ReduceMean", ("N", 3), "int8", {"axes": (1,)}, "dtype int8 is not supported"),
        ("Softmax", ("N", 3), "int32", {}, "dtype int32 is not supported"),
        ("Softmax", (), "float32", {}, "axis -1 is out of range for rank 0"),
        ("ArgMax", ("N", 3), "bool", {}, "dtype bool is not supported"),
        ("TopK", ("N", 3), "float32", {"k": 2, "axis": 5}, "axis 5 is out of range"),
        ("CumSum", ("N", 3), "bool", {"axis": 0}, "dtype bool is not supported"),
        ("LayerNormalization", ("N", 3), "int64", {}, "inputs must be of one dtype"),
    ],
)
def test_refused_by_name(
    tools: Any, op: str, shape: tuple[Any, ...], dtype: str, attributes: dict[str, Any], why: str
) -> None:
    b = tools.GraphBuilder()
    with pytest.raises(UnsupportedOperatorError, match=why):
        b.nodes(op, [b.input(dtype, *shape)], 2 if op == "TopK" else 1, **attributes)


def test_parameters_that_do_not_fit(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3, 4)
    with pytest.raises(UnsupportedOperatorError, match=r"must have the shape \(3, 4\)"):
        b.node("LayerNormalization", x, b.constant(np.ones(4)), axis=1)
    with pytest.raises(UnsupportedOperatorError, match="takes 1 to 2 inputs"):
        b.node("RMSNormalization", x, b.constant(np.ones(4)), b.constant(np.ones(4)))
    with pytest.raises(UnsupportedOperatorError, match="has 1 or 3 outputs, not 2"):
        b.nodes("LayerNormalization", [x], 2)
    b.output(b.node("ReduceSum", x, axes=(1,), keepdims=0))
    b.graph.nodes[-1].attributes["axes"] = "one"
    with pytest.raises(GraphError, match="inputs or attributes do not fit"):
        check_nodes(b.graph)


# --- what is reduced is computed on the way ---------------------------------------------------------------------------


def _labels(b: Any) -> list[str]:
    return [step.label for step in make_plan(b.graph).steps]


REDUCTIONS_OF_PRODUCTS = [
    # shape of one operand, shape of the other, axes, whether it is computed on the way
    (("N", 16, 8), ("N", 16, 8), (1,), True),
    (("N", 16, 8), ("N", 16, 8), (2,), True),
    (("N", 16, 8), ("N", 16, 8), (1, 2), True),
    (("N", 50, 19), ("N", 50, 1), (1,), True),  # a masked sum over a history
    (("N", 50, 19), ("N", 50, 1), (2,), True),
    (("N", 50, 19), (50, 1), (1,), True),
    (("N", 50, 19), (19,), (1,), True),
    (("N", 50, 19), (19,), (2,), True),
    (("N", "T", 5), ("N", 1, 5), (1,), True),
    (("N", "T", 5), ("T", 1), (1,), True),
    (("N", 3, 4, 5), ("N", 3, 1, 5), (1, 2), False),  # its steps through the reduced axes are not even
    (("N", 3, 4, 5), ("N", 3, 1, 5), (2,), True),
    (("N", 3, 4, 5), (3, 1, 5), (1, 3), True),
    (("N", 6, 35), ("N", 6, 35), (0,), True),
]


@pytest.mark.parametrize(("left", "right", "axes", "is_absorbed"), REDUCTIONS_OF_PRODUCTS)
def test_what_is_reduced_is_computed_on_the_way(
    tools: Any, left: tuple[Any, ...], right: tuple[Any, ...], axes: tuple[int, ...], is_absorbed: bool
) -> None:
    for operator in ("ReduceSum", "ReduceMean", "ReduceMax"):
        b = tools.GraphBuilder()
        x, y = b.input("float32", *left, domain="plain"), b.input("float32", *right, domain="plain")
        half = b.constant(np.array([0.5], np.float32))
        joined = b.node("Mul", b.node("Tanh", x), b.node("Add", y, half))
        b.output(b.node(operator, joined, axes=axes, keepdims=0))
        b.finish()
        assert any(label.startswith("Tanh") and label.endswith(operator) for label in _labels(b)) == is_absorbed
        compiled = tools.Compiled(b.graph)
        for candidates in (0, 1, 7, 130):
            for history in (0, 1, 33) if "T" in left else (4,):
                feeds = b.feeds(candidates, T=history) if "T" in left else b.feeds(candidates)
                expected = tools.expect(b.graph, feeds)
                for name, array in compiled(feeds).items():
                    tools.assert_close(array, expected[name], f"{operator} N={candidates} T={history}", 2e-6, 2e-5)


def test_what_others_read_is_stored(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 6, domain="plain")
    square, double, third = b.node("Mul", x, x), b.node("Add", x, x), b.node("Neg", x)
    flat = b.node("Reshape", third, shape=("N", 2, 3))
    b.output(b.node("ReduceSum", square, axes=(1,), keepdims=0), b.node("ReduceMax", square, axes=(1,), keepdims=0))
    b.output(
        double, b.node("ReduceSum", double, axes=(1,), keepdims=0), b.node("ReduceSum", flat, axes=(1,), keepdims=0)
    )
    b.finish()
    assert sorted(_labels(b)) == ["Add", "Mul", "Neg", "ReduceMax", "ReduceSum", "ReduceSum", "ReduceSum"]
    feeds = b.feeds(9)
    expected = tools.expect(b.graph, feeds)
    for name, array in tools.Compiled(b.graph)(feeds).items():
        tools.assert_close(array, expected[name], name, 2e-6, 2e-6)


def test_a_constant_that_is_repeated_is_reduced(tools: Any) -> None:
    """Nothing is loaded at all; integers and bools alike."""
    b = tools.GraphBuilder()
    b.input("float32", "N", 3)
    for dtype, operator in (("float32", "ReduceSum"), ("int64", "ReduceSum"), ("bool", "ReduceMax")):
        one = b.constant(np.ones(1, dtype))
        wide = b.node("Expand", one, shape=("N", 37))
        b.output(b.node(operator, wide, axes=(1,), keepdims=0))
    b.finish()
    feeds = b.feeds(5)
    expected = tools.expect(b.graph, feeds)
    for name, array in tools.Compiled(b.graph)(feeds).items():
        np.testing.assert_array_equal(array, expected[name])
