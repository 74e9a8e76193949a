"""What each pass does to the smallest graph that shows it, what it must leave alone, and the exposed last layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import ConversionError, GraphError, UnsupportedOperatorError
from rerank_engine.graph import Graph, Node
from rerank_engine.passes import run_passes
from rerank_engine.passes.expose_head import HEAD_INPUT, expose_last_layer
from rerank_engine.passes.fold_constants import fold_constants
from rerank_engine.passes.fuse_matmul import fuse_matmul
from rerank_engine.passes.pipeline import MOST_ROUNDS, PASSES
from rerank_engine.passes.remove_dead import remove_dead
from rerank_engine.passes.remove_identity import remove_identity
from rerank_engine.passes.split_concat import split_concat
from rerank_engine.passes.split_table import split_table
from rerank_engine.reference import evaluate


def ops(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_same_numbers(tools: Any, b: Any, changed: Any) -> None:
    """The changed graph is valid, and computes what the built one computes."""
    changed.verify()
    feeds = b.feeds(9, seed=2)
    expected = tools.expect(b.finish(), feeds)
    actual = tools.Compiled(changed)(feeds)
    for name, array in expected.items():
        tools.assert_close(actual[name], array, name, 1e-5, 1e-5)


def dense(b: Any, x: str, inner: int, columns: int) -> str:
    random = np.random.default_rng(inner * columns)
    return str(b.node("MatMul", x, b.constant(random.normal(size=(inner, columns)))))


def test_fold_constants(tools: Any) -> None:
    b = tools.GraphBuilder()
    table = b.node("Reshape", b.node("Exp", b.constant(np.arange(6) / 6)), shape=(2, 3))
    wide = b.node("Expand", b.node("Cast", b.constant([1, 2, 3], "int64"), to="float32"), shape=(2, 3))
    total = b.node("Add", b.node("Mul", table, wide), b.input("float32", "N", 1, 1, domain="plain"))
    changed = fold_constants(b.output(total).finish())
    assert ops(changed) == ["Add"]
    assert_same_numbers(tools, b, changed)


def test_fold_keeps_what_would_grow_the_model(tools: Any) -> None:
    b = tools.GraphBuilder()
    wide = b.node("Expand", b.constant(np.ones((1, 1024))), shape=(1024, 1024))
    b.output(b.node("MatMul", b.input("float32", "N", 1024, domain="plain"), wide))
    assert ops(fold_constants(b.finish())) == ["Expand", "MatMul"]


def test_fold_names_the_node_with_a_bad_constant_id(tools: Any) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("Gather", b.constant(np.ones((4, 2))), b.constant([[0], [4]], "int64")))
    with pytest.raises(ConversionError, match=r"Gather node 'gather\d+': id 4 is outside a table of 4 rows"):
        fold_constants(b.finish())


def test_remove_identity(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.node("Identity", b.input("float32", "N", 4, domain="plain"))
    x = b.node("Reshape", b.node("Cast", x, to="float32"), shape=("N", 4))
    x = b.node("Expand", b.node("Relu", x), shape=("N", 4))
    b.output(b.node("Neg", x), b.node("Cast", x, to="int64"), b.node("Reshape", x, shape=("N", 2, 2)))
    changed = remove_identity(b.finish())
    assert ops(changed) == ["Relu", "Neg", "Cast", "Reshape"]
    assert_same_numbers(tools, b, changed)


def attention_input(b: Any, axis: int = 2) -> tuple[str, int]:
    """Queries and keys repeated to (N, 5, 4) beside what depends on both, as target attention joins them."""
    queries, keys = b.input("float32", "N", 1, 4, domain="plain"), b.input("float32", 5, 4, domain="plain")
    wide = b.node("Expand", queries, shape=("N", 5, 4))
    long = b.node("Expand", keys, shape=("N", 5, 4))
    product = b.node("Mul", wide, long)
    total = b.node("ReduceSum", product, axes=(2,), keepdims=1)
    parts = (wide, long, product, total) if axis == 2 else (wide, long, product)
    return b.node("Concat", *parts, axis=axis), 13


def test_split_concat_multiplies_repeated_parts_once(tools: Any) -> None:
    b = tools.GraphBuilder()
    joined, inner = attention_input(b)
    b.output(b.node("Relu", dense(b, joined, inner, 6)))
    changed = remove_dead(split_concat(b.finish()))
    products = {node.outputs[0]: changed.values[node.inputs[0]].shape for node in changed.nodes if node.op == "MatMul"}
    assert sorted(map(len, products.values())) == [2, 3, 3]
    assert [shape[-1] for shape in products.values()] == [5, 4, 4]  # what depends on both, queries, keys
    assert_same_numbers(tools, b, changed)
    fused, _ = run_passes(b.finish())
    assert_same_numbers(tools, b, fused)


def test_split_concat_keeps_the_name_of_an_output(tools: Any) -> None:
    b = tools.GraphBuilder()
    joined, inner = attention_input(b)
    score = dense(b, joined, inner, 1)
    b.output(score, joined)
    changed = split_concat(b.finish())
    assert changed.outputs == [score, joined]
    assert_same_numbers(tools, b, changed)


@pytest.mark.parametrize("case", ["another axis", "repeated along the last axis", "nothing repeated", "all repeated"])
def test_split_concat_leaves_alone_what_gains_nothing(tools: Any, case: str) -> None:
    b = tools.GraphBuilder()
    if case == "another axis":
        joined, inner = attention_input(b, axis=1)[0], 4
    elif case == "repeated along the last axis":
        x = b.input("float32", "N", 5, 1, domain="plain")
        other = b.input("float32", "N", 5, 4, domain="plain")
        joined, inner = b.node("Concat", b.node("Expand", x, shape=("N", 5, 4)), other, axis=2), 8
    elif case == "nothing repeated":
        joined = b.node("Concat", *(b.input("float32", "N", 4, domain="plain") for _ in range(2)), axis=1)
        inner = 8
    else:
        x = b.input("float32", "N", 1, 4, domain="plain")
        wide = b.node("Expand", x, shape=("N", 5, 4))
        joined, inner = b.node("Concat", wide, wide, axis=2), 8
    b.output(dense(b, joined, inner, 3))
    graph = b.finish()
    assert ops(split_concat(graph)) == ops(graph)


def test_an_identity_that_is_an_output_stays(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4, domain="plain")
    first = b.node("Identity", x)
    b.output(first, b.node("Identity", first), b.node("Neg", first))
    changed = remove_identity(b.finish())
    assert ops(changed) == ["Identity", "Identity", "Neg"]
    assert_same_numbers(tools, b, changed)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "LeakyRelu"])
@pytest.mark.parametrize("bias_shape", [(5,), (1, 5), None])
def test_fuse_bias_and_activation(tools: Any, activation: str, bias_shape: Any) -> None:
    b = tools.GraphBuilder()
    x = dense(b, b.input("float32", "N", 4, domain="plain"), 4, 5)
    if bias_shape:
        x = b.node("Add", b.constant(np.linspace(-1, 1, 5).reshape(bias_shape)), x)
    b.output(b.node("Neg", b.node(activation, x)))
    changed = fuse_matmul(b.finish())
    assert ops(changed) == ["MatMul", "Neg"]
    node = changed.nodes[0]
    assert node.attributes["activation"] == activation
    assert len(node.inputs) == (3 if bias_shape else 2)
    assert_same_numbers(tools, b, changed)


def test_fuse_takes_the_default_slope(tools: Any) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("LeakyRelu", dense(b, b.input("float32", "N", 4, domain="plain"), 4, 5)))
    changed = fuse_matmul(b.finish())
    assert changed.nodes[0].attributes["alpha"] == 0.01
    assert_same_numbers(tools, b, changed)


def test_fuse_leaves_alone_what_is_no_bias(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4, domain="plain")
    b.output(b.node("Add", dense(b, x, 4, 5), b.constant(2.0)))
    b.output(b.node("Add", dense(b, x, 4, 5), b.input("float32", 5, domain="plain")))
    b.output(b.node("Add", dense(b, x, 4, 1), b.constant(np.ones(7))))
    deep = dense(b, b.input("float32", "N", 3, 4, domain="plain"), 4, 5)
    b.output(b.node("Add", deep, b.constant(np.arange(15.0).reshape(3, 5))))
    twice = dense(b, x, 4, 5)
    b.output(b.node("Add", twice, twice))
    shared = dense(b, x, 4, 5)
    b.output(b.node("Relu", shared), b.node("Neg", shared))
    b.output(b.node("Relu", b.node("Relu", dense(b, x, 4, 5))))
    changed = fuse_matmul(b.finish())
    assert ops(changed) == [*["MatMul", "Add"] * 5, "MatMul", "Relu", "Neg", "MatMul", "Relu"]
    assert_same_numbers(tools, b, changed)


def test_fuse_stops_at_an_activation(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.node("Relu", dense(b, b.input("float32", "N", 4, domain="plain"), 4, 5))
    b.output(b.node("Add", x, b.constant(np.ones(5))))
    changed = fuse_matmul(b.finish())
    assert ops(changed) == ["MatMul", "Add"]
    assert_same_numbers(tools, b, changed)


def test_two_products_share_a_bias_row_and_its_name_is_free(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4, domain="plain")
    bias = b.constant(np.arange(5.0).reshape(1, 5))
    other = b.graph.add_constant(f"{bias}.row", np.full(5, 9, np.float32))
    for _ in range(2):
        b.output(b.node("Add", dense(b, x, 4, 5), bias))
    b.output(b.node("Mul", dense(b, x, 4, 5), other))
    changed = fuse_matmul(b.finish())
    assert ops(changed) == ["MatMul", "MatMul", "MatMul", "Mul"]
    assert changed.nodes[0].inputs[2] == changed.nodes[1].inputs[2]
    assert_same_numbers(tools, b, changed)


def test_remove_dead(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, unused = b.input("float32", "N", 4), b.input("float32", "N", 2)
    dense(b, b.node("Relu", x), 4, 3)
    b.output(b.node("Neg", x))
    changed = remove_dead(b.finish())
    assert ops(changed) == ["Neg"]
    assert not changed.constants
    assert changed.inputs == [x, unused]
    assert set(changed.values) == {x, unused, *changed.outputs}


def chain(tools: Any) -> tuple[Any, list[str]]:
    """A model that every pass changes, and all its values."""
    b = tools.GraphBuilder()
    x = b.node("Identity", b.input("float32", "N", 4, domain="plain"))
    product = dense(b, x, 4, 5)
    added = b.node("Add", product, b.node("Mul", b.constant(np.ones(5)), b.constant(2.0)))
    active = b.node("Sigmoid", added)
    flat = b.node("Reshape", active, shape=(("N", 5),))
    again = b.node("Reshape", flat, shape=("N", 5))
    last = b.node("ReduceSum", b.node("Cast", again, to="float32"), axes=(1,), keepdims=0)
    b.node("Exp", last)
    return b.output(last), [node.outputs[0] for node in b.graph.nodes]


def test_every_output_is_pinned_through_all_passes(tools: Any) -> None:
    values = chain(tools)[1]
    for outputs in ([value, chain(tools)[0].graph.outputs[0]] for value in values):
        b, _ = chain(tools)
        b.graph.outputs[:] = dict.fromkeys(outputs)
        changed, _ = run_passes(b.finish())
        assert changed.outputs == b.graph.outputs
        feeds = b.feeds(9)
        expected = tools.expect(b.graph, feeds)
        for name, array in evaluate(changed, feeds).items():
            tools.assert_close(array, expected[name], name, 1e-5, 1e-5)
    b, _ = chain(tools)
    b.graph.outputs[:] = values
    assert_same_numbers(tools, b, run_passes(b.finish())[0])


def test_pipeline_reports_and_skips(tools: Any) -> None:
    b, _ = chain(tools)
    graph, reports = run_passes(b.finish())
    assert ops(graph) == ["MatMul", "ReduceSum"]
    first = [report for report in reports if report.round == 1]
    assert [report.name for report in first] == list(PASSES)
    changed = {report.name for report in reports if report.removed}
    assert changed == {"fold_constants", "remove_identity", "merge_copies", "fuse_matmul", "remove_dead"}
    assert [report.nodes_before for report in reports[1:]] == [report.nodes_after for report in reports[:-1]]
    assert reports[-1].nodes_after == len(graph.nodes)
    same, none = run_passes(b.finish(), skip=list(PASSES))
    assert same.nodes == b.graph.nodes
    assert not none
    without, _ = run_passes(b.finish(), skip=["fuse_matmul"])
    assert "Add" in ops(without)
    again, second = run_passes(graph)
    assert again.nodes == graph.nodes
    assert not any(report.removed or report.added for report in second)


def test_reports_name_what_came_and_went(tools: Any) -> None:
    b = tools.GraphBuilder()
    product = dense(b, b.input("float32", "N", 4, domain="plain"), 4, 5)
    added = b.node("Add", product, b.constant(np.ones(5)))
    b.output(b.node("Relu", added))
    reports = {report.name: report for report in run_passes(b.finish())[1]}
    fused = reports["fuse_matmul"]
    assert dict(zip(fused.removed_nodes, fused.removed, strict=True)) == {
        product: "MatMul",
        added: "Add",
        b.graph.outputs[0]: "Relu",
    }
    assert fused.added == ("MatMul",)
    assert fused.added_nodes == (product,)


def test_later_rounds_find_what_earlier_ones_made(tools: Any) -> None:
    """A product is split in the first round, so its bias and slope reach the sum's loop only in the second."""
    b = tools.GraphBuilder()
    joined, inner = attention_input(b)
    flat = b.node("Reshape", joined, shape=(("N", 5), inner))
    value = b.node("Add", dense(b, flat, inner, 6), b.constant(np.linspace(-1, 1, 6)))
    b.output(b.node("Relu", value))
    graph, reports = run_passes(b.finish())
    assert {report.name for report in reports if report.round == 2} >= {"move_to_product"}
    assert ops(graph)[-3:] == ["Add", "Relu", "Reshape"]
    assert max(report.round for report in reports) < MOST_ROUNDS
    assert_same_numbers(tools, b, graph)


def test_a_pass_that_breaks_the_graph_is_caught(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass says of shapes is compared with what its nodes do, right after it ran."""
    b, _ = chain(tools)

    def lies(graph: Any) -> Any:
        from dataclasses import replace

        name = graph.outputs[0]
        values = {**graph.values, name: graph.values[name].replace(shape=(3,))}
        return replace(graph, values=values)

    monkeypatch.setitem(PASSES, "remove_identity", lies)
    with pytest.raises(GraphError, match="but the graph declares"):
        run_passes(b.finish())
    monkeypatch.setitem(PASSES, "remove_identity", lambda graph: Graph(**{**vars(graph), "nodes": graph.nodes[1:]}))
    with pytest.raises(GraphError, match="before anything makes it"):
        run_passes(b.finish())


def test_passes_without_end_stop(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b, _ = chain(tools)

    def grows(graph: Any) -> Any:
        changed = Graph(**{**vars(graph), "constants": dict(graph.constants), "values": dict(graph.values)})
        changed.add_constant(f"more{len(graph.constants)}", np.full(2, len(graph.constants), np.float32))
        return changed

    monkeypatch.setitem(PASSES, "remove_dead", grows)
    _, reports = run_passes(b.finish())
    assert max(report.round for report in reports) == MOST_ROUNDS


def test_passes_do_not_touch_their_input(tools: Any) -> None:
    b, _ = chain(tools)
    graph = b.finish()
    nodes, constants, values = list(graph.nodes), dict(graph.constants), dict(graph.values)
    run_passes(graph)
    assert (graph.nodes, list(graph.constants), graph.values) == (nodes, list(constants), values)


def head(tools: Any, *wrap: str, columns: int = 1, rows: tuple[Any, ...] = ("N",)) -> Any:
    """A last layer ``hidden @ w + other + b``, then what ``wrap`` names."""
    b = tools.GraphBuilder()
    x = b.input("float32", *rows, 4, domain="plain")
    hidden = b.node("Relu", dense(b, x, 4, 3))
    score = b.node("Add", b.node("Add", dense(b, hidden, 3, columns), b.input("float32", "N", 1)), b.constant([0.5]))
    for op in wrap:
        score = b.node(op, score, shape=("N",)) if op == "Reshape" else b.node(op, score)
    return b.output(score), hidden


def test_expose_head(tools: Any) -> None:
    for wrap in ((), ("Reshape",), ("Identity", "Reshape")):
        b, hidden = head(tools, *wrap)
        before = b.finish()
        changed, _ = run_passes(expose_last_layer(before))
        assert changed.outputs == [before.outputs[0], HEAD_INPUT]
        assert changed.values[HEAD_INPUT].shape == before.values[hidden].shape
        feeds = b.feeds(9)
        results = tools.Compiled(changed)(feeds)
        b.graph.outputs.append(hidden)
        expected = tools.expect(b.finish(), feeds)
        tools.assert_close(results[HEAD_INPUT], expected[hidden], "head", 1e-5, 1e-5)
        tools.assert_close(results[before.outputs[0]], expected[before.outputs[0]], "score", 1e-5, 1e-5)


def test_expose_head_is_refused_where_there_is_none(tools: Any) -> None:
    for wrap in (("Sigmoid",), ("Neg",)):
        with pytest.raises(ConversionError, match="has no last layer"):
            expose_last_layer(head(tools, *wrap)[0].finish())
    with pytest.raises(ConversionError, match="not one score for each candidate"):
        expose_last_layer(head(tools, columns=3)[0].finish())
    exposed = expose_last_layer(head(tools)[0].finish())
    with pytest.raises(ConversionError, match="called 'head_input' already"):
        expose_last_layer(exposed)


def test_a_graph_that_lies_about_shapes_is_not_compiled(tools: Any) -> None:
    """Shapes come from a file; code for a wrong one would write out of bounds."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4)
    y = b.output(b.node("Relu", x)).graph.outputs[0]
    good = b.graph.values[y]
    for lie in ({"shape": (*good.shape[:1], 2)}, {"shape": (4,)}, {"dtype": "int64"}):
        b.graph.values[y] = good.replace(**lie)
        with pytest.raises(GraphError, match=r"Relu node 'relu\d' makes float32\(N, 4\), but the graph declares relu"):
            tools.Compiled(b.finish())


@pytest.mark.parametrize(
    ("node", "error", "why"),
    [
        (Node("Nothing", "it", ("x",), ("y",)), UnsupportedOperatorError, "operator 'Nothing' of node 'it' is not"),
        (Node("Relu", "it", ("x",), ("y",), {"slope": 1}), UnsupportedOperatorError, "'slope' is not understood"),
        (Node("Relu", "it", ("x", "x"), ("y",)), UnsupportedOperatorError, "takes 1 input, has 2"),
        (Node("Concat", "it", ("x",), ("y",)), GraphError, "attribute 'axis' is missing"),
        (Node("Concat", "it", (), ("y",), {"axis": 0}), GraphError, "do not fit"),
        (Node("Concat", "it", ("x",), ("y",), {"axis": "one"}), GraphError, "do not fit"),
        (Node("Softmax", "it", ("x",), ("y",), {"axis": "one"}), GraphError, "attribute 'axis' is missing or wrong"),
        (Node("Softmax", "it", ("x", "x"), ("y",)), GraphError, "do not fit"),
        (Node("LeakyRelu", "it", ("x",), ("y",), {"alpha": "big"}), GraphError, "attribute 'alpha'"),
        (Node("Reshape", "it", ("x",), ("y",), {"shape": 3}), GraphError, "do not fit"),
        (Node("Reshape", "it", ("x",), ("y",), {"shape": (4,)}), UnsupportedOperatorError, "cannot reshape"),
        (Node("Relu", "it", ("x",), ("y", "z")), GraphError, "makes float32"),
    ],
)
def test_nodes_that_do_not_fit(tools: Any, node: Node, error: type[Exception], why: str) -> None:
    from rerank_engine.graph import Dim, Value
    from rerank_engine.plan import make_plan

    values = {name: Value(name, "float32", (Dim("N"), 4)) for name in "xyz"}
    graph = Graph("g", ["x"], ["y"], [node], {}, values)
    with pytest.raises(error, match=why):
        make_plan(graph)


def rows_cut_apart(tools: Any, *ranges: tuple[int, int], **options: Any) -> Any:
    """Rows of nine numbers, picked by id and cut into parts."""
    b = tools.GraphBuilder()
    table = b.constant(np.random.default_rng(0).normal(size=(20, 9)))
    rows = b.node("Gather", table, b.input("int64", "N", 3, domain="20"), **options)
    parts = [b.node("Slice", rows, axis=2, start=start, stop=stop) for start, stop in ranges]
    return b.output(*(b.node("Tanh", part) for part in parts)), rows


def test_split_table_picks_the_parts_apart(tools: Any) -> None:
    b, _ = rows_cut_apart(tools, (0, 8), (-1, 9), unknown_row=3)
    before = b.finish()
    after = remove_dead(split_table(before))
    assert sorted(ops(after)) == ["Gather", "Gather", "Tanh", "Tanh"]
    gathers = [node for node in after.nodes if node.op == "Gather"]
    assert [after.constants[node.inputs[0]].shape for node in gathers] == [(20, 8), (20, 1)]
    (source,) = (node for node in before.nodes if node.op == "Gather")
    assert {node.name for node in gathers} == {source.name}, "messages name the node of the source"
    assert all(node.attributes["unknown_row"] == 3 for node in gathers)
    for n in (0, 1, 7):
        feeds = b.feeds(n)
        feeds[before.inputs[0]].reshape(-1)[:1] = 99
        for name, want in evaluate(before, feeds).items():
            np.testing.assert_array_equal(evaluate(after, feeds)[name], want)


def test_split_table_leaves_alone_what_is_read_otherwise(tools: Any) -> None:
    for case in ("overlap", "whole", "output", "axis", "step", "computed"):
        ranges = [(0, 8), (7, 9)] if case == "overlap" else [(0, 8), (8, 9)]
        b, rows = rows_cut_apart(tools, *ranges)
        if case == "whole":
            b.output(b.node("Exp", rows))
        elif case == "output":
            b.output(rows)
        elif case == "axis":
            b.output(b.node("Slice", rows, axis=1, start=0, stop=1))
        elif case == "step":
            b.output(b.node("Slice", rows, axis=2, start=8, stop=0, step=-1))
        elif case == "computed":
            b = tools.GraphBuilder()
            table = b.input("float32", 20, 9)
            picked = b.node("Gather", table, b.input("int64", "N", domain="20"))
            b.output(b.node("Exp", b.node("Slice", picked, axis=1, start=0, stop=8)))
        graph = b.finish()
        assert split_table(graph) is graph, case
