"""Fused loops: random trees of elementwise operators, what may be drawn into a step and what must be stored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rerank_engine.dimensions import Dim
from rerank_engine.graph import concrete
from rerank_engine.kernels.pointwise import merge_dimensions
from rerank_engine.plan.steps import group_steps

BINARY = ("Add", "Sub", "Mul", "Max", "Min")
UNARY = ("Sigmoid", "Tanh", "Relu", "Neg", "Erf", "Elu", "Gelu", "Softplus", "Floor", "Atan")
OPERATORS = (*BINARY, *UNARY, "Where")
SHAPES: list[tuple[Any, ...]] = [("N", 3, 5), ("N", 1, 5), ("N", 3, 1), ("N", 1, 1), (3, 5), (5,), (3, 1), ()]


def random_tree(tools: Any, seed: int, dtype: str) -> Any:
    """A graph of twelve nodes that broadcast into each other, with some values pinned as outputs."""
    random = np.random.default_rng(seed)
    b = tools.GraphBuilder()
    values = [b.input(dtype, *shape, domain="plain") for shape in SHAPES]
    values += [b.constant(random.normal(size=shape), dtype) for shape in ((3, 5), (1, 5), (1, 1), ())]
    condition = b.input("bool", "N", 3, 1)
    for _ in range(12):
        op = OPERATORS[random.integers(len(OPERATORS))]
        # Later values are drawn more often, so that deep chains appear.
        weights = np.arange(1, len(values) + 1, dtype=float)
        left, right = random.choice(len(values), size=2, p=weights / weights.sum())
        if op == "Where":
            values.append(b.node(op, condition, values[left], values[right]))
        elif op in UNARY:
            values.append(b.node(op, values[left]))
        else:
            values.append(b.node(op, values[left], values[right]))
    made = values[12:]
    pinned = set(random.choice(made, size=2).tolist())
    read = {name for node in b.graph.nodes for name in node.inputs}
    return b.output(*(name for name in made if name in pinned or name not in read))


@pytest.mark.parametrize("seed", range(8))
def test_random_trees(tools: Any, seed: int) -> None:
    b = random_tree(tools, seed, "float64" if seed % 4 == 3 else "float32")
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for candidates in (0, 1, 7, 131):
        feeds = b.feeds(candidates, seed)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
            tools.assert_close(array, expected[name], f"{graph.values[name]}", 1e-5, 1e-6 * scale)
    tools.assert_rows_alone(compiled, b.feeds(131, 3), (0, 64, 128, 130))


def labels(graph: Any) -> list[str]:
    return [step.label for step in group_steps(graph)]


def test_a_chain_is_one_step_and_a_pinned_value_is_stored(tools: Any) -> None:
    b = tools.GraphBuilder()
    first = b.node("Neg", b.input("float32", "N", 4))
    second = b.node("Tanh", first)
    third = b.node("Add", second, first)
    assert labels(b.output(third).finish()) == ["Neg+Tanh+Add"]
    b.output(second)
    assert labels(b.finish()) == ["Neg", "Tanh", "Add"]


def test_what_is_needed_twice_is_computed_once(tools: Any) -> None:
    b = tools.GraphBuilder()
    shared = b.node("Exp", b.input("float32", "N", 4))
    small = b.node("ReduceSum", shared, axes=(1,), keepdims=1)
    b.output(b.node("Div", shared, small))
    assert labels(b.finish()) == ["Exp", "ReduceSum", "Div"]


def test_smaller_work_is_not_repeated_for_every_element(tools: Any) -> None:
    b = tools.GraphBuilder()
    row = b.node("Sigmoid", b.input("float32", 4))
    column = b.node("Tanh", b.input("float32", "N", 1))
    b.output(b.node("Mul", b.node("Add", b.input("float32", "N", 4), row), column))
    assert sorted(labels(b.finish())) == ["Add+Mul", "Sigmoid", "Tanh"]


def test_an_expansion_is_drawn_into_every_reader(tools: Any) -> None:
    b = tools.GraphBuilder()
    wide = b.node("Expand", b.input("float32", "N", 1), shape=("N", 4))
    x = b.input("float32", "N", 4)
    b.output(b.node("Add", wide, x), b.node("Mul", wide, x))
    assert labels(b.finish()) == ["Expand+Add", "Expand+Mul"]


def test_an_expansion_that_two_kinds_of_work_read(tools: Any) -> None:
    """The producer of the expansion must be stored for the reader that cannot draw it in."""
    b = tools.GraphBuilder()
    fixed = b.node("Sigmoid", b.input("float32", 4, domain="plain"))
    lifted = b.node("Expand", fixed, shape=(1, 4))
    once = b.node("Add", lifted, b.input("float32", 1, 4, domain="plain"))
    each = b.node("Mul", lifted, b.input("float32", "N", 4, domain="plain"))
    graph = b.output(once, each, b.node("Concat", lifted, lifted, axis=1)).finish()
    compiled = tools.Compiled(graph)
    feeds = b.feeds(9)
    expected = tools.expect(graph, feeds)
    for name, array in compiled(feeds).items():
        tools.assert_close(array, expected[name], name, 1e-6)


def test_nothing_is_computed_for_nobody(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4)
    b.node("Exp", b.node("Neg", x))
    b.node("Softmax", x)
    graph = b.output(b.node("Relu", x)).finish()
    assert labels(graph) == ["Relu"]
    np.testing.assert_array_equal(tools.Compiled(graph)({x: np.full((1, 4), -1, np.float32)})[graph.outputs[0]], 0)


N, T = Dim("N"), Dim("T")


@pytest.mark.parametrize(
    ("shape", "strides", "merged"),
    [
        ((8, 1, 4), [(4, 4, 1), (0, 0, 0)], (32,)),
        ((8, 4), [(4, 1), (0, 1)], (8, 4)),
        ((1, 1), [(1, 1)], ()),
        ((), [()], ()),
        ((3, 0), [(0, 1)], (0,)),
        ((N, 3, 4), [(12, 4, 1)], (N * 12,)),
        ((N, T, 4), [(T * 4, 4, 1), (0, 4, 1)], (N, T * 4)),
        ((2, N), [(N, 1)], (N * 2,)),
    ],
)
def test_dimensions_are_merged(shape: Any, strides: list[Any], merged: Any) -> None:
    dims, walked = merge_dimensions(shape, strides)
    assert dims == merged
    assert all(len(own) == len(merged) for own in walked)


# --- numbers ---------------------------------------------------------------------------------------------------


def test_constants_of_one_element_keep_their_bits(tools: Any) -> None:
    """They stand in the code itself, not in memory."""
    largest = {dtype: np.iinfo(dtype).max for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")}
    numbers: list[tuple[str, Any]] = list(largest.items())
    numbers += [(dtype, -number - 1) for dtype, number in largest.items() if dtype.startswith("int")]
    numbers += [("bool", True), ("bool", False)]
    for dtype in ("float32", "float64"):
        numbers += [(dtype, number) for number in (0.1, -0.0, np.nan, np.inf, -np.inf, 1 / 3, 1e-38, 2.0**-120)]
    b = tools.GraphBuilder()
    condition = b.input("bool", "N", 3)
    for dtype, number in numbers:
        b.output(b.node("Where", condition, b.constant(number, dtype), b.input(dtype, "N", 3, domain="plain")))
    graph = b.finish()
    feeds = b.feeds(6)
    feeds[condition] = np.ones((6, 3), np.bool_)
    results = tools.Compiled(graph)(feeds)
    for (dtype, number), name in zip(numbers, graph.outputs, strict=True):
        assert results[name].tobytes() == np.full((6, 3), number, dtype).tobytes(), f"{number!r} of {dtype}"


def apply(tools: Any, op: str, x: Any, **attributes: Any) -> Any:
    """Machine code of one operator on a vector."""
    b = tools.GraphBuilder()
    graph = b.output(b.node(op, b.input(str(x.dtype), "N"), **attributes)).finish()
    return tools.Compiled(graph)({graph.inputs[0]: x})[graph.outputs[0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Softplus", "Erf", "Exp"])
def test_what_orders_candidates_keeps_their_order(tools: Any, op: str, dtype: str) -> None:
    logits = np.sort(np.random.default_rng(4).uniform(-12, 12, 4000)).astype(dtype)
    assert not (np.diff(apply(tools, op, logits)) < 0).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_gelu_everywhere(tools: Any, dtype: str) -> None:
    x = np.concatenate([np.linspace(-45, 45, 20001), -np.logspace(-30, 30, 500), np.logspace(-30, 30, 500)]).astype(
        dtype
    )
    expected = [0.5 * number * math.erfc(-number * math.sqrt(0.5)) for number in x.astype(np.float64).tolist()]
    result = apply(tools, "Gelu", x)
    error = np.abs(result.astype(np.float64) - expected) / np.maximum(1, np.abs(x.astype(np.float64)))
    assert error.max() < (2e-7 if dtype == "float32" else 4e-16)
    assert (result[x < 0] <= 0).all()
    assert np.signbit(apply(tools, "Gelu", np.array([-0.0, -30.0, -3e38], np.float32))).all()


def test_a_number_below_the_smallest_normal_one_counts_as_zero_in_every_operator(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N")
    half, zero = b.constant(0.5), b.constant(0.0)
    b.output(b.node("Pow", x, half), b.node("Less", x, zero), b.node("Equal", x, zero), b.node("Cast", x, to="bool"))
    graph = b.finish()
    results = tools.Compiled(graph)({x: np.full(33, -1e-40, np.float32)})
    power, less, equal, truth = (results[name] for name in graph.outputs)
    assert not power.any()
    assert not less.any()
    assert equal.all()
    assert not truth.any()


@pytest.mark.parametrize("history", [0, 1, 5, 40])
def test_two_named_dimensions_broadcast(tools: Any, history: int) -> None:
    b = tools.GraphBuilder()
    events, users, item = (b.input("float64", *shape) for shape in (("N", "T", 3), ("T", 1), ("N", 1, 1)))
    total = b.node("Mul", b.node("Add", events, users), item)
    wide = b.node("Expand", users, shape=("N", "T", 3))
    later = b.node("Where", b.node("Greater", total, wide), total, b.node("Abs", users))
    turned = b.node("Cast", b.node("Add", users, b.input("float64", "N")), to="int32")
    graph = b.output(later, b.node("Div", turned, turned)).finish()
    compiled = tools.Compiled(graph)
    for candidates in (0, 1, 17):
        random = np.random.default_rng(history)
        sizes = {"N": candidates, "T": history}
        feeds = {name: random.normal(size=concrete(graph.values[name].shape, sizes)) for name in graph.inputs}
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], name)
