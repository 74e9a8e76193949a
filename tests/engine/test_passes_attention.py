"""Attention: the operator over the whole list, and the pass that finds it in the forms that exporters write."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import GraphError, UnsupportedOperatorError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.ops import check_nodes
from rerank_engine.passes import run_passes
from rerank_engine.passes.fuse_attention import fuse_attention
from rerank_engine.plan import make_plan
from rerank_engine.reference import evaluate

COUNTS = (0, 1, 2, 5, 6, 7, 16, 17, 50, 131)
INFINITY = float("inf")


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def plain(b: Any, *shape: Any, dtype: str = "float32") -> str:
    return str(b.input(dtype, *shape, domain="plain"))


def assert_compiled(tools: Any, graph: Graph, b: Any, before: Graph | None = None, counts: Any = COUNTS) -> None:
    compiled = tools.Compiled(graph)
    for candidates in counts:
        feeds = b.feeds(candidates, seed=candidates)
        expected = evaluate(before or graph, feeds, precise=True)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{name} at N={candidates}", 2e-6, 1e-5)


# --- the operator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_over_the_whole_list(tools: Any, dtype: str) -> None:
    """M = S = N: candidates look at each other, in heads, with masks over the list."""
    b = tools.GraphBuilder()

    def add(queries: Any, keys: Any, values: Any, *more: str, **attributes: Any) -> None:
        names = [plain(b, *shape, dtype=dtype) for shape in (queries, keys, values)]
        b.output(b.node("Attention", *names, *more, **attributes))

    mask, row, hidden = (b.input(dtype, *shape, domain="infinite") for shape in (("N", "N"), ("N",), (1, "N", 1)))
    shown = b.input("bool", "N", "N")
    add(("N", 8), (8, "N"), ("N", 5), scale=0.35)
    add((2, "N", 4), (2, 4, "N"), (2, "N", 17), mask, has_mask=1)
    add((2, "N", 4), (1, 4, "N"), ("N", 3), row, shown, has_mask=1, condition="drop", fill=-1e9)
    add((1, 2, "N", 4), (2, 4, "N"), (1, 2, "N", 33), hidden, has_mask=1, nan_to_zero=1)
    add((7, 4), (4, "N"), ("N", 3))
    add(("N", 4), (4, 9), (9, "N"))  # as many columns as candidates
    add((3, "N"), ("N", 5), (5, 2))  # as deep as there are candidates
    add((("N", 2), 4), (4, ("N", 2)), (("N", 2), 3), scale=-1.0)
    graph = b.finish()
    modes = {step.writes[0]: step.mode for step in make_plan(graph).steps}
    assert set(modes.values()) == {"whole"}
    assert_compiled(tools, graph, b)


def test_rows_of_one_history_run_over_blocks(tools: Any) -> None:
    b = tools.GraphBuilder()
    queries, keys, values = plain(b, "N", 8), plain(b, 8, 50), plain(b, 50, 4)
    b.output(b.node("Attention", queries, keys, values, b.input("float32", "N", 50, domain="plain"), has_mask=1))
    plan = make_plan(b.finish())
    assert [step.mode for step in plan.steps] == ["block"]
    sizes = [plan.values[name].shape for names in plan.scratch.values() for name in names]
    assert sizes == [(13, 66)], "no more than a tile of scores and a row of factors is stored"


def test_scores_of_a_named_history(tools: Any) -> None:
    """Keys and values of T events, T known when the model runs."""
    values = {
        "q": Value("q", "float32", (Dim("N"), 8)),
        "k": Value("k", "float32", (8, Dim("T"))),
        "v": Value("v", "float32", (Dim("T"), 5)),
        "mask": Value("mask", "float32", (Dim("T"),)),
        "y": Value("y", "float32", (Dim("N"), 5)),
    }
    node = Node("Attention", "attention", ("q", "k", "v", "mask"), ("y",), {"scale": 0.3, "has_mask": 1})
    graph = Graph("g", ["q", "k", "v", "mask"], ["y"], [node], {}, values)
    graph.verify()
    compiled = tools.Compiled(graph)
    random = np.random.default_rng(3)
    for candidates, events in ((0, 5), (1, 0), (3, 1), (7, 16), (50, 33), (6, 100)):
        feeds = {
            "q": random.normal(size=(candidates, 8)),
            "k": random.normal(size=(8, events)),
            "v": random.normal(size=(events, 5)),
            "mask": np.where(random.random(events) < 0.2, -INFINITY, 0.0),
        }
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        expected = evaluate(graph, feeds, precise=True)["y"]
        tools.assert_close(compiled(feeds)["y"], expected, f"{candidates}, {events}", 2e-6, 1e-6)


@pytest.mark.parametrize(
    ("inputs", "attributes", "why"),
    [
        ("qk", {}, "takes 3 inputs"),
        ("qkvm", {}, "takes 3 inputs"),
        ("qkv", {"has_mask": 1}, "takes 4 inputs"),
        ("qkv", {"has_mask": 2}, "has_mask and nan_to_zero are 0 or 1"),
        ("qkv", {"nan_to_zero": -1}, "has_mask and nan_to_zero are 0 or 1"),
        ("qkvb", {"condition": "maybe"}, "condition is empty, 'keep' or 'drop'"),
        ("qkvm", {"condition": "keep"}, "must be bool"),
        ("qkvb", {"has_mask": 1}, "one dtype"),
        ("qkvw", {"has_mask": 1}, "does not broadcast|do not broadcast"),
        ("qvk", {}, "inner dimensions differ"),
        ("qkd", {}, "one dtype"),
        ("rkv", {}, "needs matrices"),
        ("qkv", {"scale": float("nan")}, "scale nan is no float32"),
        ("qkv", {"fill": 1e300}, "fill 1e\\+300 is no float32"),
    ],
)
def test_what_does_not_fit_is_refused(inputs: str, attributes: dict[str, Any], why: str) -> None:
    shapes = {
        "q": (Dim("N"), 2, 4),
        "k": (4, 9),
        "v": (9, 3),
        "m": (9,),
        "b": (9,),
        "w": (5, 2, 9),
        "d": (9, 3),
        "r": (4,),
    }
    dtypes = {"b": "bool", "d": "float64"}
    values = {name: Value(name, dtypes.get(name, "float32"), shape) for name, shape in shapes.items()}
    values["y"] = Value("y", "float32", (Dim("N"), 2, 3))
    node = Node("Attention", "it", tuple(inputs), ("y",), attributes)
    with pytest.raises((GraphError, UnsupportedOperatorError), match=why):
        check_nodes(Graph("g", [*shapes], ["y"], [node], {}, values))


# --- the pass --------------------------------------------------------------------------------------------------


def changed_by_pass(tools: Any, b: Any, *, compiled: bool = True) -> Graph:
    before = b.finish()
    after = fuse_attention(before)
    after.verify()
    check_nodes(after)
    assert after.outputs == before.outputs
    assert fuse_attention(after) is after
    if compiled:
        assert_compiled(tools, after, b, before, (0, 1, 7, 20))
    return after


def attention(
    b: Any,
    scored: Callable[[Any, str], str] = lambda _, scores: scores,
    weighted: Callable[[Any, str], str] = lambda _, weights: weights,
) -> list[str]:
    """Two heads over the list; steps between product and softmax, and behind the softmax. Gives all values."""
    queries, keys, values = (plain(b, 2, "N", 4) for _ in range(3))
    scores = scored(b, b.node("MatMul", queries, b.node("Transpose", keys, perm=(0, 2, 1))))
    weights = weighted(b, b.node("Softmax", scores, axis=-1))
    b.output(b.node("Relu", b.node("MatMul", weights, values)))
    return [node.outputs[0] for node in b.graph.nodes]


def scaled(b: Any, scores: str) -> str:
    return str(b.node("Mul", b.constant(0.5), scores))


def divided(b: Any, scores: str) -> str:
    return str(b.node("Div", scores, b.constant(np.full((1, 1), math.sqrt(4)))))


def masked(b: Any, scores: str) -> str:
    return str(b.node("Add", scaled(b, scores), b.input("float32", "N", "N", domain="infinite")))


def masked_first(b: Any, scores: str) -> str:
    return str(b.node("Add", b.input("float32", 2, 1, "N", domain="plain"), scores))


def constant_mask(b: Any, scores: str) -> str:
    return str(b.node("Add", divided(b, scores), b.constant([[[-INFINITY]], [[0.0]]])))


def kept(b: Any, scores: str) -> str:
    return str(b.node("Where", b.input("bool", "N", "N"), masked(b, scores), b.constant(-INFINITY)))


def dropped(b: Any, scores: str) -> str:
    return str(b.node("Where", b.input("bool", 1, "N"), b.constant([-1e9]), scaled(b, scores)))


SCORED = [scaled, divided, masked, masked_first, constant_mask, kept, dropped]


@pytest.mark.parametrize("form", SCORED, ids=lambda form: form.__name__)
def test_every_form_is_fused(tools: Any, form: Callable[[Any, str], str]) -> None:
    b = tools.GraphBuilder()
    attention(b, form)
    after = changed_by_pass(tools, b)
    assert ops(after) == ["Transpose", "Attention", "Relu"]
    assert after.nodes[1].attributes["scale"] == (1.0 if form is masked_first else 0.5)
    assert after.nodes[1].attributes.get("condition", "") == {"kept": "keep", "dropped": "drop"}.get(form.__name__, "")


def test_weights_of_hidden_rows_become_zero(tools: Any) -> None:
    def zeroed(b: Any, weights: str) -> str:
        is_number = b.node("Equal", weights, weights)
        return str(b.node("Where", b.node("Not", is_number), b.constant(0.0), weights))

    def zeroed_too(b: Any, weights: str) -> str:
        return str(b.node("Where", b.node("Equal", weights, weights), weights, b.constant(0.0)))

    for form in (zeroed, zeroed_too):
        b = tools.GraphBuilder()
        attention(b, constant_mask, form)
        after = changed_by_pass(tools, b)
        assert ops(after) == ["Transpose", "Attention", "Relu"]
        assert after.nodes[1].attributes["nan_to_zero"] == 1
        (result,) = evaluate(after, b.feeds(3)).values()
        assert not np.isnan(result).any()


def test_a_row_that_is_hidden_altogether_is_nan_as_softmax_has_it(tools: Any) -> None:
    b = tools.GraphBuilder()
    attention(b, constant_mask)
    graph, _ = run_passes(b.finish())
    (result,) = tools.Compiled(graph)(b.feeds(4)).values()
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


def test_scales_on_queries_and_keys(tools: Any) -> None:
    """PyTorch scales both by the fourth root."""
    b = tools.GraphBuilder()
    root = b.constant(0.7)
    queries, first, second, values = (plain(b, "N", 3, 4) for _ in range(4))
    scaled = b.node("Mul", queries, root)
    for keys in (
        b.node("Mul", b.node("Transpose", first, perm=(0, 2, 1)), root),
        b.node("Transpose", b.node("Div", second, b.constant(2.0)), perm=(0, 2, 1)),
    ):
        query = b.node("Mul", queries, root)
        b.output(b.node("MatMul", b.node("Softmax", b.node("MatMul", query, keys), axis=2), values))
    after = changed_by_pass(tools, b)
    assert sorted(ops(after)) == ["Attention", "Attention", "Mul", "Transpose", "Transpose"]
    scales = [node.attributes["scale"] for node in after.nodes if node.op == "Attention"]
    np.testing.assert_allclose(scales, [0.49, 0.35], rtol=1e-6)
    assert scaled in after.values


def test_a_value_that_attends_to_itself(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.node("Mul", plain(b, "N", 4, 4), b.constant(0.5))
    b.output(b.node("MatMul", b.node("Softmax", b.node("MatMul", x, x), axis=-1), plain(b, "N", 4, 3)))
    after = changed_by_pass(tools, b)
    assert "Attention" in ops(after)


@pytest.mark.parametrize(
    "case",
    ["another axis", "weights on the right", "scaled behind the mask", "two masks", "mask makes rows", "a layer"],
)
def test_what_is_no_attention_stays(tools: Any, case: str) -> None:
    b = tools.GraphBuilder()
    queries, keys, values = plain(b, "N", 4, 4), plain(b, "N", 4, 4), plain(b, "N", 4, 4)
    if case == "a layer":
        keys = b.constant(np.eye(4))
    scores = b.node("MatMul", queries, keys)
    mask = plain(b, 4, 4)
    if case == "scaled behind the mask":
        scores = b.node("Mul", b.node("Add", scores, mask), b.constant(2.0))
    if case == "two masks":
        scores = b.node("Add", b.node("Add", scores, mask), plain(b, 4))
    if case == "mask makes rows":
        scores = b.node("Add", scores, plain(b, 5, 1, 4, 4))
    weights = b.node("Softmax", scores, axis=1 if case == "another axis" else -1)
    b.output(b.node("MatMul", *((values, weights) if case == "weights on the right" else (weights, values))))
    assert fuse_attention(b.finish()) is b.graph


@pytest.mark.parametrize("form", [masked, kept, dropped], ids=lambda form: form.__name__)
def test_no_value_that_is_asked_for_is_fused_away(tools: Any, form: Callable[[Any, str], str]) -> None:
    names = attention(tools.GraphBuilder(), form)
    for name in names:
        b = tools.GraphBuilder()
        attention(b, form)
        b.graph.outputs[:] = dict.fromkeys([names[-1], name])
        after = changed_by_pass(tools, b, compiled=False)
        feeds = b.feeds(5)
        expected, actual = evaluate(b.graph, feeds, precise=True), evaluate(after, feeds, precise=True)
        for key, array in expected.items():
            np.testing.assert_allclose(actual[key], array, rtol=1e-12, equal_nan=True, err_msg=f"{key} beside {name}")


def test_the_cases_of_the_operator_cover_blocks(tools: Any) -> None:
    """The cases beside this file run row by row; were one to need the whole list, rows would not be compared alone."""
    path = Path(__file__).parent / "op_cases_attention.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    b = tools.GraphBuilder()
    module.CASES["Attention"](b)
    assert {step.mode for step in make_plan(b.finish()).steps} == {"block", "once"}
