"""The plan: places that never overlap, blocks that fit, what runs once, outputs that no step writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.arena import ALIGNMENT, PADDING, SIZES_OFFSET, Lifetime, place
from rerank_engine.graph import concrete
from rerank_engine.plan import make_plan
from rerank_engine.plan.plan import BLOCK_BYTES, MAX_BLOCK, MIN_BLOCK


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 12), st.integers(0, 6)), max_size=14),
    st.sampled_from([0, 64, 4096]),
)
def test_places_never_overlap_in_time_and_space(parts: list[tuple[int, int, int]], start: int) -> None:
    lifetimes = [Lifetime(f"v{i}", size, first, first + more) for i, (size, first, more) in enumerate(parts)]
    offsets, end = place(lifetimes, start)
    assert set(offsets) == {one.name for one in lifetimes}
    for one in lifetimes:
        assert offsets[one.name] >= start
        assert offsets[one.name] % ALIGNMENT == 0
        assert offsets[one.name] + one.size_bytes + PADDING <= end
        for other in lifetimes:
            together = one.first <= other.last and other.first <= one.last
            if one is not other and together:
                a, b = sorted((one, other), key=lambda each: offsets[each.name])
                assert offsets[a.name] + a.size_bytes + PADDING <= offsets[b.name]
    assert place(list(reversed(lifetimes)), start) == (offsets, end), "the order of the list does not matter"


def test_what_dies_makes_room() -> None:
    chain = [Lifetime(f"v{index}", 1000, index, index + 1) for index in range(20)]
    _, end = place(chain, 0)
    assert end <= 2 * (1000 + PADDING + ALIGNMENT)


def test_neighbours_are_not_whole_pages_apart() -> None:
    offsets, _ = place([Lifetime("a", 4096 - PADDING, 0, 1), Lifetime("b", 8192 - PADDING, 0, 1)], 0)
    assert abs(offsets["a"] - offsets["b"]) % 4096


def tower(tools: Any, width: int) -> Any:
    b = tools.GraphBuilder()
    query = b.node("Softmax", b.input("float32", 1, 8, domain="plain"))
    query = b.node("MatMul", query, b.constant(np.ones((8, width))))
    x = b.input("float32", "N", width, domain="plain")
    x = b.node("Softmax", b.node("Add", x, query))
    x = b.node("Softmax", b.node("Mul", b.node("Softmax", x), query))
    return b.output(b.node("ReduceSum", x, axes=(1,), keepdims=0))


@pytest.mark.parametrize(("width", "block"), [(8, MAX_BLOCK), (400, 64), (3000, 8), (100_000, MIN_BLOCK)])
def test_a_block_fits_the_cache_or_is_the_smallest(tools: Any, width: int, block: int) -> None:
    plan = make_plan(tower(tools, width).finish())
    assert plan.block == block
    once, per_block = plan.phases
    assert (once.mode, per_block.mode) == ("once", "block")
    assert sorted(step.label for step in once.steps) == ["MatMul", "Softmax"]

    def size(name: str, candidates: int) -> int:
        return 4 * int(np.prod(concrete(plan.values[name].shape, {"N": candidates})))

    end_of_once = max(plan.offsets[name] + size(name, 1) for step in once.steps for name in step.writes)
    for name, offset in plan.offsets.items():
        assert offset >= SIZES_OFFSET + 8 * len(plan.names)
        assert offset + size(name, plan.block) + PADDING <= plan.fixed_bytes
        if name in plan.per_block:
            assert offset >= end_of_once, "what is computed once must survive all blocks"
    if block > MIN_BLOCK:
        assert plan.fixed_bytes - end_of_once <= BLOCK_BYTES + 4096


@pytest.mark.parametrize("width", [3000, 20_000])
def test_small_blocks_give_the_same_numbers(tools: Any, width: int) -> None:
    b = tower(tools, width)
    graph = b.finish()
    compiled = tools.Compiled(graph)
    feeds = b.feeds(29)
    expected = tools.expect(graph, feeds)
    for name, array in compiled(feeds).items():
        tools.assert_close(array, expected[name], name, 1e-4)
    tools.assert_rows_alone(compiled, feeds, range(0, 29, 5))


def test_outputs_that_no_step_writes(tools: Any) -> None:
    """Inputs, constants, two names of the same bytes, at once and for each candidate."""
    b = tools.GraphBuilder()
    x, fixed = b.input("float32", "N", 6), b.input("int64", 4)
    constant = b.constant(np.arange(3.0))
    first = b.node("Neg", x)
    flat, other = (
        b.node("Reshape", first, shape=(("N", 6),)),
        b.node("Reshape", x, shape=("N", 2, 3)),
    )
    hidden = b.node("Abs", x)
    named = b.node("Reshape", hidden, shape=("N", 3, 2))
    twice = b.node("Reshape", hidden, shape=("N", 2, 3))
    column = b.node("Reshape", fixed, shape=(4, 1))
    graph = b.output(x, fixed, constant, flat, first, other, named, twice, column).finish()
    plan = make_plan(graph)
    assert [graph.outputs[index] for index in plan.copied_outputs] == [x, fixed, constant, first, other, twice, column]
    compiled = tools.Compiled(graph)
    for candidates in (0, 1, 131):
        feeds = b.feeds(candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], name)


def test_a_graph_without_nodes(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3, domain="plain")
    compiled = tools.Compiled(b.output(x, b.constant([[1.0, 2.0]])).finish())
    feeds = b.feeds(300)
    results = compiled(feeds)
    np.testing.assert_array_equal(results[x], feeds[x])
    np.testing.assert_array_equal(list(results.values())[1], [[1, 2]])


def test_a_value_computed_once_is_alive_for_every_block(tools: Any) -> None:
    """Large values of the blocks must not be placed over it, whatever the order of their first use."""
    b = tools.GraphBuilder()
    once = [b.node("Softmax", b.input("float32", 1, 50, domain="plain")) for _ in range(4)]
    x = b.input("float32", "N", 50, domain="plain")
    for value in reversed(once):
        x = b.node("Softmax", b.node("Add", x, value))
    graph = b.output(x).finish()
    compiled = tools.Compiled(graph)
    feeds = b.feeds(1000)
    expected = tools.expect(graph, feeds)
    tools.assert_close(compiled(feeds)[x], expected[x], "x", 1e-5)
