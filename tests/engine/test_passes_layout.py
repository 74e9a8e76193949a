"""Passes over copies and sizes: transposes, reshapes, slices, identities, arithmetic on named dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.graph import Dim, Graph, Value
from rerank_engine.ops import check_nodes
from rerank_engine.passes import run_passes
from rerank_engine.passes.fold_shapes import fold_shapes
from rerank_engine.passes.merge_copies import merge_copies
from rerank_engine.passes.remove_dead import remove_dead
from rerank_engine.passes.remove_identity import remove_identity
from rerank_engine.passes.remove_transpose import remove_transpose
from rerank_engine.reference import evaluate

Pass = Callable[[Graph], Graph]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def changed_by(run: Pass, b: Any) -> Graph:
    """What a pass makes of a graph: valid, with the same outputs and numbers, and left alone by the same pass."""
    before = b.finish()
    after = run(before)
    after.verify()
    check_nodes(after)
    assert after.outputs == before.outputs
    assert run(after).nodes == after.nodes, "a second run finds something"
    for candidates in (0, 1, 5):
        feeds = b.feeds(candidates, seed=candidates)
        expected, actual = evaluate(before, feeds, precise=True), evaluate(after, feeds, precise=True)
        for name, array in expected.items():
            assert actual[name].shape == array.shape
            np.testing.assert_allclose(actual[name], array, rtol=1e-12, atol=1e-12, err_msg=name)
    return after


# --- transposes ------------------------------------------------------------------------------------------------


def test_transposes_merge(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 2, 3, 4, domain="plain")
    turned = b.node("Transpose", b.node("Transpose", x, perm=(0, 2, 1, 3)), perm=(0, 3, 1, 2))
    b.output(b.node("Relu", turned))
    after = changed_by(remove_transpose, b)
    assert ops(after) == ["Transpose", "Relu"]
    assert after.nodes[0].attributes["perm"] == (0, 3, 2, 1)


def test_transposes_that_undo_each_other_go(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 2, 3, domain="plain")
    b.output(b.node("Relu", b.node("Transpose", b.node("Transpose", x, perm=(1, 2, 0)), perm=(2, 0, 1))))
    assert ops(changed_by(remove_transpose, b)) == ["Identity", "Relu"]
    assert ops(changed_by(lambda graph: remove_identity(remove_transpose(graph)), b)) == ["Relu"]


def test_a_transpose_that_others_read_stays(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 2, 3, domain="plain")
    first = b.node("Transpose", x, perm=(0, 2, 1))
    b.output(b.node("Neg", first), b.node("Relu", b.node("Transpose", first, perm=(0, 2, 1))))
    assert ops(changed_by(remove_transpose, b)) == ["Transpose", "Neg", "Identity", "Relu"]
    pinned = tools.GraphBuilder()
    first = pinned.node("Transpose", pinned.input("float32", "N", 2, 3, domain="plain"), perm=(0, 2, 1))
    pinned.output(first, pinned.node("Transpose", first, perm=(0, 2, 1)))
    assert ops(changed_by(remove_transpose, pinned)) == ["Transpose", "Identity"]


def test_a_transpose_that_moves_only_ones_is_a_reshape(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 1, 4, domain="plain")
    b.output(b.node("Transpose", x, perm=(1, 0, 2)), b.node("Transpose", x, perm=(0, 2, 1)))
    b.output(b.node("Transpose", x, perm=(2, 1, 0)), b.node("Transpose", x, perm=(0, 1, 2)))
    assert ops(changed_by(remove_transpose, b)) == ["Reshape", "Reshape", "Transpose", "Identity"]


def test_a_transpose_goes_through_what_is_elementwise_where_it_cancels(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, y = (b.input("float32", "N", 3, 4, domain="plain") for _ in range(2))
    turned = b.node("Transpose", x, perm=(0, 2, 1))
    scaled = b.node("Mul", turned, b.constant(np.arange(12.0).reshape(4, 3)))
    shifted = b.node("Add", scaled, b.constant([1.0, 2.0, 3.0]))
    # Read twice within: the sum of a value and its sigmoid.
    joined = b.node("Add", b.node("Sigmoid", shifted), b.node("Mul", shifted, b.constant(2.0)))
    joined = b.node("Sub", joined, b.node("Transpose", y, perm=(0, 2, 1)))
    b.output(b.node("Transpose", joined, perm=(0, 2, 1)))
    after = changed_by(remove_transpose, b)
    assert "Transpose" not in ops(after)
    assert ops(after) == ["Mul", "Add", "Sigmoid", "Mul", "Add", "Sub", "Identity"]


@pytest.mark.parametrize("case", ["another leaf", "read elsewhere", "an output", "expanded", "another rank"])
def test_a_transpose_stays_where_it_does_not_cancel(tools: Any, case: str) -> None:
    b = tools.GraphBuilder()
    x = b.node("Transpose", b.input("float32", "N", 3, 4, domain="plain"), perm=(0, 2, 1))
    other = b.input("float32", "N", 4, 3, domain="plain")
    if case == "another rank":
        other = b.input("float32", 3, domain="plain")
    if case == "expanded":
        column = b.input("float32", "N", 4, 1, domain="plain")
        other = b.node("Expand", column, shape=("N", 4, 3))
    middle = b.node("Relu", x) if case in ("read elsewhere", "an output") else b.node("Add", x, other)
    last = b.node("Transpose", middle, perm=(0, 2, 1))
    if case == "read elsewhere":
        last = b.node("Add", b.node("Transpose", b.node("Neg", middle), perm=(0, 2, 1)), last)
    b.output(last)
    if case == "an output":
        b.output(middle)
    after = changed_by(remove_transpose, b)
    assert ops(after).count("Transpose") == ops(b.graph).count("Transpose")


def test_a_reshape_that_joins_dimensions_goes_behind_the_transpose(tools: Any) -> None:
    """The keys of attention as PyTorch exports them: heads are joined to the batch, turned, and split again."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 5, 2, 4, domain="plain")
    heads = b.node("Transpose", x, perm=(0, 2, 1, 3))
    joined = b.node("Reshape", heads, shape=(("N", 2), 5, 4))
    turned = b.node("Transpose", joined, perm=(0, 2, 1))
    b.output(b.node("Relu", b.node("Reshape", turned, shape=("N", 2, 4, 5))))
    after, _ = run_passes(b.finish())
    assert ops(after) == ["Transpose", "Relu"]
    assert after.nodes[0].attributes["perm"] == (0, 2, 3, 1)
    changed_by(remove_transpose, b)
    split = tools.GraphBuilder()
    x = split.node("Transpose", split.input("float32", "N", 4, 6, domain="plain"), perm=(0, 2, 1))
    split.output(split.node("Transpose", split.node("Reshape", x, shape=("N", 3, 8)), perm=(0, 2, 1)))
    assert ops(changed_by(remove_transpose, split)) == ["Transpose", "Reshape", "Transpose"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_chains_of_transposes_and_reshapes(tools: Any, data: Any) -> None:
    b = tools.GraphBuilder()
    shape: list[Any] = data.draw(st.permutations(["N", 2, 3, 1]))
    value = b.input("float32", *shape, domain="plain")
    for _ in range(data.draw(st.integers(1, 5))):
        rank = len(b.graph.values[value].shape)
        kind = data.draw(st.sampled_from(["turn", "join", "split", "act"]))
        dims = list(b.graph.values[value].shape)
        if kind == "turn":
            value = b.node("Transpose", value, perm=tuple(data.draw(st.permutations(range(rank)))))
        elif kind == "join" and rank > 1:
            at = data.draw(st.integers(0, rank - 2))
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
            value = _reshape(b, value, dims)
        elif kind == "split":
            value = _reshape(b, value, [1, *dims])
        else:
            value = b.node("Relu", value)
    b.output(value)
    before = b.finish()
    after, reports = run_passes(before)
    feeds = b.feeds(3)
    np.testing.assert_array_equal(evaluate(after, feeds)[value], evaluate(before, feeds)[value])
    assert ops(after).count("Transpose") <= ops(before).count("Transpose")
    assert run_passes(after)[0].nodes == after.nodes, reports


def _reshape(b: Any, value: str, dims: list[int | Dim]) -> str:
    name = f"reshaped{len(b.graph.nodes)}"
    from rerank_engine.graph import Node, shape_attribute

    b.graph.values[name] = Value(name, "float32", tuple(dims))
    b.graph.nodes.append(Node("Reshape", name, (value,), (name,), {"shape": shape_attribute(dims)}))
    return name


# --- copies ----------------------------------------------------------------------------------------------------


def test_reshapes_and_expansions_merge(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 6, domain="plain")
    flat = b.node("Reshape", b.node("Reshape", x, shape=(("N", 6),)), shape=("N", 2, 3))
    row = b.input("float32", 1, 3, domain="plain")
    wide = b.node("Expand", b.node("Expand", row, shape=(4, 3)), shape=("N", 4, 3))
    b.output(b.node("Relu", flat), b.node("Relu", wide))
    assert ops(changed_by(merge_copies, b)) == ["Reshape", "Expand", "Relu", "Relu"]


def test_slices_are_put_together_again(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, y = b.input("float32", "N", 10, domain="plain"), b.input("float32", "N", 4, domain="plain")

    def cut(value: str, start: int, stop: int, step: int = 1) -> str:
        return str(b.node("Slice", value, axis=1, start=start, stop=stop, step=step))

    b.output(b.node("Concat", cut(x, 0, 4), cut(x, 4, 10), axis=1))  # all of it
    b.output(b.node("Concat", y, cut(x, 1, 4), cut(x, 4, 5), cut(x, -5, 9), cut(y, 0, 2), axis=-1))
    b.output(b.node("Concat", cut(x, 0, 4), cut(x, 5, 10), axis=1))  # a gap
    b.output(b.node("Concat", cut(x, 4, 10), cut(x, 0, 4), axis=1))  # another order
    b.output(b.node("Concat", cut(x, 0, 4), cut(x, 4, 10, 2), axis=1))  # another step
    b.output(b.node("Concat", b.node("Relu", y), axis=1), b.node("Relu", cut(x, 0, 10)))
    after = remove_dead(changed_by(merge_copies, b))
    outputs = {name: after.producers()[name] for name in after.outputs}
    kinds = [(node.op, len(node.inputs)) for node in outputs.values()]
    assert kinds == [
        ("Identity", 1),
        ("Concat", 3),
        ("Concat", 2),
        ("Concat", 2),
        ("Concat", 2),
        *[kinds[5]],
        ("Relu", 1),
    ]
    assert kinds[5] == ("Identity", 1)
    joined = after.producers()[outputs[after.outputs[1]].inputs[1]]
    assert (joined.op, joined.attributes["start"], joined.attributes["stop"]) == ("Slice", 1, 9)


def test_slices_along_another_axis_or_of_named_dimensions_stay(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4, 6, domain="plain")
    parts = [b.node("Slice", x, axis=2, start=start, stop=start + 3) for start in (0, 3)]
    b.output(b.node("Concat", *parts, axis=1))
    whole = b.node("Slice", x, axis=0, start=0, stop="N")
    b.output(b.node("Relu", whole))
    after = changed_by(merge_copies, b)
    assert ops(after) == ["Slice", "Slice", "Concat", "Identity", "Relu"]


def test_slices_that_are_outputs_stay(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 6, domain="plain")
    parts = [b.node("Slice", x, axis=1, start=start, stop=start + 3) for start in (0, 3)]
    b.output(*parts, b.node("Concat", *parts, axis=1))
    assert ops(changed_by(merge_copies, b)) == ["Slice", "Slice", "Identity"]


def test_what_changes_nothing_goes(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3, domain="plain")
    value = b.node("Mul", b.constant(1.0), b.node("Div", b.node("Relu", x), b.constant([1.0, 1.0, 1.0])))
    value = b.node("Clip", b.node("Sub", value, b.constant(0.0)))
    b.output(b.node("Neg", value))
    assert ops(changed_by(remove_identity, b)) == ["Relu", "Neg"]
    kept = tools.GraphBuilder()
    x = kept.input("float32", "N", 3, domain="plain")
    kept.output(kept.node("Add", x, kept.constant(0.0)), kept.node("Mul", x, kept.constant([1.0, 1.0, 2.0])))
    kept.output(kept.node("Div", kept.constant(1.0), kept.node("Exp", x)), kept.node("Sub", kept.constant(0.0), x))
    kept.output(kept.node("Relu", kept.node("Mul", x, kept.constant(np.ones((1, 1, 1))))))
    assert ops(changed_by(remove_identity, kept)) == ops(kept.graph)


# --- sizes -----------------------------------------------------------------------------------------------------


def sizes_of(tools: Any, *entries: Any, dtype: str = "int64") -> tuple[Any, str]:
    b = tools.GraphBuilder()
    b.input("float32", "N", 2, domain="plain")
    return b, b.node("Dimensions", entries=entries, dtype=dtype)


def test_arithmetic_on_sizes(tools: Any) -> None:
    b, sizes = sizes_of(tools, "N", "50")

    def numbers(*values: int) -> str:
        return str(b.constant(values, "int64"))

    twice = b.node("Mul", sizes, numbers(2))
    b.output(b.node("Slice", twice, axis=0, start=0, stop=1))
    b.output(b.node("Add", twice, numbers(1, -1)), b.node("Neg", sizes))
    b.output(b.node("Div", b.node("Mul", sizes, numbers(6)), numbers(-3)))
    b.output(b.node("ReduceProd", sizes, axes=(0,), keepdims=0), b.node("ReduceSum", sizes, axes=(0,), keepdims=1))
    b.output(b.node("Cast", sizes, to="int32"), b.node("Reshape", b.node("Gather", sizes, numbers(0)), shape=()))
    b.output(b.node("Concat", numbers(3), sizes, b.node("Sub", sizes, sizes), axis=0))
    b.output(b.node("Max", sizes, numbers(0)), b.node("Expand", b.node("Gather", sizes, numbers(0)), shape=(3,)))
    after = changed_by(fold_shapes, b)
    assert set(ops(after)) == {"Dimensions"}
    entries = [after.producers()[name].attributes["entries"] for name in b.graph.outputs[:5]]
    assert entries == [("2*N",), ("2*N+1", "99"), ("-N", "-50"), ("-2*N", "-100"), ("50*N",)]


def test_what_becomes_a_number_is_a_constant(tools: Any) -> None:
    b, sizes = sizes_of(tools, "N", "50")
    fixed = b.node("Slice", sizes, axis=0, start=1, stop=2)
    none = b.node("Sub", b.node("Mul", sizes, b.constant([3], "int64")), b.node("Mul", sizes, b.constant(3, "int64")))
    is_large = b.node("GreaterOrEqual", sizes, b.constant(0, "int64"))
    alone = b.node("Dimensions", entries=(4, 5))
    b.output(b.node("Neg", b.node("Cast", fixed, to="float32")), b.node("Relu", b.node("Cast", none, to="float32")))
    b.output(b.node("Not", is_large), b.node("Identity", alone))
    after = changed_by(fold_shapes, b)
    assert [op for op in ops(after) if op != "Dimensions"] == ["Cast", "Neg", "Cast", "Relu", "Not"]
    assert "Dimensions" not in ops(remove_dead(after))
    assert all(name in after.constants for name in (fixed, none, is_large, alone, b.graph.outputs[-1]))


def test_arithmetic_that_is_no_size_stays(tools: Any) -> None:
    b, sizes = sizes_of(tools, "N", "50")
    seven = b.constant(7, "int64")
    b.output(b.node("Div", sizes, seven), b.node("Mod", sizes, seven), b.node("Max", sizes, seven))
    b.output(b.node("Div", seven, sizes), b.node("Greater", sizes, seven), b.node("Cast", sizes, to="float32"))
    b.output(b.node("Reshape", sizes, shape=(1, 2)), b.node("Mul", sizes, b.constant(2**40, "int64")))
    assert ops(changed_by(fold_shapes, b)) == ops(b.graph)


def test_expressions_that_could_wrap_stay(tools: Any) -> None:
    b, sizes = sizes_of(tools, "N", "50", dtype="int32")
    b.output(b.node("Mul", sizes, b.constant(2**17, "int32")), b.node("Mul", sizes, b.constant(2, "int32")))
    assert ops(changed_by(fold_shapes, b)) == ["Dimensions", "Mul", "Dimensions"]


def test_the_mean_over_a_history_needs_no_arithmetic_at_run_time(tools: Any) -> None:
    """Count of elements from their shape, as exporters write a mean by hand; folded and compiled."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4, domain="plain")
    shape = b.node("Dimensions", entries=("N", 4))
    count = b.node("Slice", b.node("Mul", shape, b.constant([1, 3], "int64")), axis=0, start=1, stop=2)
    total = b.node("ReduceSum", x, axes=(1,), keepdims=1)
    b.output(b.node("Div", total, b.node("Cast", count, to="float32")))
    after, _ = run_passes(b.finish())
    assert ops(after) == ["ReduceSum", "Div"]
    feeds = b.feeds(7)
    expected = tools.expect(b.graph, feeds)
    for name, array in tools.Compiled(after)(feeds).items():
        tools.assert_close(array, expected[name], name, 1e-6, 1e-6)
