"""Fused loops: random trees of elementwise operators, what may be drawn into a step and what must be stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rerank_engine.dimensions import Dim
from rerank_engine.kernels.pointwise import merge_dimensions
from rerank_engine.plan.steps import group_steps

OPERATORS = ("Add", "Sub", "Mul", "Max", "Min", "Sigmoid", "Tanh", "Relu", "Neg", "Where")
SHAPES: list[tuple[Any, ...]] = [("N", 3, 5), ("N", 1, 5), ("N", 3, 1), ("N", 1, 1), (3, 5), (5,), (3, 1), ()]


def random_tree(tools: Any, seed: int) -> Any:
    """A graph of twelve nodes that broadcast into each other, with some values pinned as outputs."""
    random = np.random.default_rng(seed)
    b = tools.GraphBuilder()
    values = [b.input("float32", *shape, domain="plain") for shape in SHAPES]
    values += [b.constant(random.normal(size=shape)) for shape in ((3, 5), (1, 5), (1, 1), ())]
    condition = b.input("bool", "N", 3, 1)
    for _ in range(12):
        op = OPERATORS[random.integers(len(OPERATORS))]
        # Later values are drawn more often, so that deep chains appear.
        weights = np.arange(1, len(values) + 1, dtype=float)
        left, right = random.choice(len(values), size=2, p=weights / weights.sum())
        if op == "Where":
            values.append(b.node(op, condition, values[left], values[right]))
        elif op in ("Sigmoid", "Tanh", "Relu", "Neg"):
            values.append(b.node(op, values[left]))
        else:
            values.append(b.node(op, values[left], values[right]))
    made = values[12:]
    pinned = set(random.choice(made, size=2).tolist())
    read = {name for node in b.graph.nodes for name in node.inputs}
    return b.output(*(name for name in made if name in pinned or name not in read))


@pytest.mark.parametrize("seed", range(8))
def test_random_trees(tools: Any, seed: int) -> None:
    b = random_tree(tools, seed)
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
