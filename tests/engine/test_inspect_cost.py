"""What a model costs: rules for every operator, and whole models beside formulas written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rerank_engine.dimensions import Dim, names_in, resolve
from rerank_engine.errors import GraphError, UnsupportedOperatorError
from rerank_engine.graph import Graph, Node, Value
from rerank_engine.inspect import Cost, cost
from rerank_engine.inspect.cost import node_modes
from rerank_engine.inspect.flops import FLOPS_RULES, POINTWISE_WEIGHTS, count_flops
from rerank_engine.ops import OPERATORS
from rerank_engine.plan.steps import group_steps

N, T = Dim("N"), Dim("T")
SIGMOID, TANH = 13, 8


def only(counted: Cost) -> Any:
    """FLOPs of a graph of one node."""
    (node,) = counted.nodes
    return node.flops


# --- the table ---------------------------------------------------------------------------------------------


def test_every_operator_has_one_rule() -> None:
    assert set(FLOPS_RULES) | set(POINTWISE_WEIGHTS) == set(OPERATORS)
    assert not set(FLOPS_RULES) & set(POINTWISE_WEIGHTS)


def test_weights_are_of_pointwise_operators() -> None:
    pointwise = {name for name, operator in OPERATORS.items() if operator.pointwise is not None}
    assert set(POINTWISE_WEIGHTS) == pointwise - {"Gelu"}  # whose weight depends on an attribute


def test_an_operator_without_a_rule_is_named() -> None:
    graph = Graph("g", values={"y": Value("y", "float32", (N,))})
    with pytest.raises(UnsupportedOperatorError, match="Nonsense node 'odd'"):
        count_flops(graph, Node("Nonsense", "odd", (), ("y",)))


def case_graphs(tools: Any) -> Iterator[Graph]:
    """Graphs that use the operators in all their ways."""
    cases = tools.more("CASES")
    assert len(cases) > 60
    for case in cases.values():
        b = tools.GraphBuilder()
        case(b)
        yield b.finish()


def test_every_case_of_every_operator_counts(tools: Any) -> None:
    for graph in case_graphs(tools):
        counted = cost(graph)
        names = names_in(dim for name in graph.inputs for dim in graph.values[name].shape)
        for size in (1, 7):
            for node in counted.nodes:
                for amount in (node.flops, node.bytes_read, node.bytes_written):
                    assert resolve(amount, dict.fromkeys(names, size)) >= 0, node
        assert counted.flops == counted.flops_once + counted.flops_candidates
        read = {name for node in graph.nodes for name in node.inputs} & set(graph.constants)
        assert sum(node.constant_bytes for node in counted.nodes) == sum(graph.constants[name].nbytes for name in read)
        assert counted.parameters == graph.parameter_count()


def test_nodes_run_when_the_plan_says(tools: Any) -> None:
    for graph in case_graphs(tools):
        modes = dict(zip((node.outputs[0] for node in graph.nodes), node_modes(graph), strict=True))
        for step in group_steps(graph):
            assert modes[step.nodes[-1].outputs[0]] == step.mode, step.label


def test_a_wrong_shape_is_refused() -> None:
    values = {"x": Value("x", "float32", (N, 3)), "y": Value("y", "float32", (N, 4))}
    graph = Graph("g", ["x"], ["y"], [Node("Relu", "relu", ("x",), ("y",))], values=values)
    with pytest.raises(GraphError, match="'relu' makes"):
        cost(graph)


# --- single operators --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attributes", "weight"),
    [
        ("Relu", {}, 1),
        ("Sqrt", {}, 4),
        ("Exp", {}, 8),
        ("Sigmoid", {}, SIGMOID),
        ("Tanh", {}, TANH),
        ("Gelu", {}, 12),
        ("Gelu", {"approximate": "tanh"}, 16),
        ("LeakyRelu", {"alpha": 0.1}, 2),
        ("Identity", {}, 0),
        ("Softmax", {}, 15),
        ("CumSum", {"axis": 1}, 1),
    ],
)
def test_weight_of_each_element(build: Any, op: str, attributes: dict[str, Any], weight: int) -> None:
    b = build()
    b.output(b.node(op, b.input("float32", "N", 6), **attributes))
    assert only(cost(b.finish())) == weight * 6 * N


def test_a_broadcast_counts_its_result(build: Any) -> None:
    b = build()
    b.output(b.node("Add", b.input("float32", "N", 1), b.input("float32", 5)))
    assert only(cost(b.finish())) == 5 * N


def test_a_product_with_bias_and_activation(build: Any) -> None:
    b = build()
    weight, bias = b.constant(np.ones((64, 32))), b.constant(np.ones(32))
    b.output(b.node("MatMul", b.input("float32", "N", 64), weight, bias, activation="Sigmoid"))
    counted = cost(b.finish())
    assert only(counted) == N * (2 * 64 * 32 + 32 + SIGMOID * 32)
    assert (counted.parameters, counted.constant_bytes) == (64 * 32 + 32, 4 * (64 * 32 + 32))


def test_einsum_is_a_product(build: Any) -> None:
    b = build()
    b.output(b.node("Einsum", b.input("float32", "N", 3, 4), b.input("float32", "N", 4, 5), equation="bij,bjk->bik"))
    assert only(cost(b.finish())) == N * 2 * 3 * 4 * 5


@pytest.mark.parametrize(("equation", "each"), [("ij,ij->ij", 1), ("ij,ij->i", 2), ("ij,ij,ij->i", 3)])
def test_einsum_counts_products_and_sums(build: Any, equation: str, each: int) -> None:
    b = build()
    operands = [b.input("float32", "N", 4) for _ in equation.partition("->")[0].split(",")]
    b.output(b.node("Einsum", *operands, equation=equation))
    assert only(cost(b.finish())) == each * 4 * N


def test_reductions(build: Any) -> None:
    for op, expected in (("ReduceSum", 12 * N), ("ReduceMax", 12 * N), ("ReduceMean", 12 * N + 4 * 3 * N)):
        b = build()
        b.output(b.node(op, b.input("float32", "N", 3, 4), axes=(2,)))
        assert only(cost(b.finish())) == expected


def test_normalisations(build: Any) -> None:
    b = build()
    x, row = b.input("float32", "N", 3, 8), b.constant(np.ones(8))
    b.output(b.node("LayerNormalization", x, row, row), b.node("RMSNormalization", x, row))
    b.output(b.node("LogSoftmax", x))
    assert [node.flops for node in cost(b.finish()).nodes] == [
        N * (3 * 8 * 7 + 3 * 17),
        N * (3 * 8 * 4 + 3 * 13),
        N * (3 * 8 * 12 + 3 * 8),
    ]


@pytest.mark.parametrize("with_mask", [False, True])
def test_attention(build: Any, with_mask: bool) -> None:
    b = build()
    inputs = [b.input("float32", 2, "N", 8), b.input("float32", 2, 8, "N"), b.input("float32", 2, "N", 16)]
    attributes: dict[str, Any] = {"scale": 0.25}
    if with_mask:
        inputs.append(b.input("float32", "N", "N"))
        attributes["has_mask"] = 1
    b.output(b.node("Attention", *inputs, **attributes))
    counted = cost(b.finish())
    scores = 2 * N * N
    assert only(counted) == scores * (2 * 8 + 2 * 16 + 1 + 15 + with_mask)
    assert counted.flops_per_candidate == 2 * N * (2 * 8 + 2 * 16 + 1 + 15 + with_mask)
    assert counted.nodes[0].mode == "whole"


def recurrent(build: Any, op: str, gates: int, hidden: int, **attributes: Any) -> Any:
    """Cost of a layer over N sequences of T steps, for each step of each."""
    b = build()
    inputs = [b.input("float32", "N", "T", gates * hidden)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "RNN": [(hidden, hidden)],
        "GRU": [(hidden, 2 * hidden), (hidden, hidden), (hidden,)],
    }
    shapes["LSTM"] = [(hidden, 4 * hidden)]
    inputs += [b.constant(np.ones(shape)) for shape in shapes[op]]
    inputs += [b.constant(np.zeros((1, hidden))) for _ in range(2 if op == "LSTM" else 1)]
    if attributes.get("has_peepholes"):
        inputs.append(b.constant(np.ones(3 * hidden)))
    b.output(b.nodes(op, inputs, 3 if op == "LSTM" else 2, **attributes)[0])
    return only(cost(b.finish()))


def test_recurrent_layers(build: Any) -> None:
    h, steps = 16, N * T
    assert recurrent(build, "RNN", 1, h) == steps * (2 * h * h + h * (1 + TANH))
    assert recurrent(build, "RNN", 1, h, clip=1.0) == steps * (2 * h * h + h * (3 + TANH))
    gru = 2 * h * 3 * h + h * (2 * (1 + SIGMOID) + 3 + TANH + 4)
    assert recurrent(build, "GRU", 3, h) == steps * gru
    assert recurrent(build, "GRU", 3, h, linear_before_reset=1, reverse=1) == steps * gru
    assert recurrent(build, "GRU", 3, h, clip=1.0) == steps * (gru + h * 3 * 2)
    cell = 3 * (1 + SIGMOID) + (1 + TANH) + 3 + TANH + 1
    assert recurrent(build, "LSTM", 4, h) == steps * (2 * h * 4 * h + h * cell)
    assert recurrent(build, "LSTM", 4, h, has_peepholes=1) == steps * (2 * h * 4 * h + h * (cell + 6))
    coupled = cell - (1 + SIGMOID) + 1
    assert recurrent(build, "LSTM", 4, h, input_forget=1) == steps * (2 * h * 4 * h + h * coupled)


def test_trees_count_their_deepest_paths(build: Any) -> None:
    b = build()
    arrays = [
        (np.array([0, 1, 3]), "int32"),
        # The first tree asks once; the second one asks twice on its longest way.
        (np.array([[0, 0, ~0, ~1], [1, 0, 2, ~2], [0, 0, ~3, ~4]]), "int32"),
        (np.array([[0, 5], [0, 5], [0, 5]]), "int32"),
        (np.array([0]), "int32"),
        (np.arange(6), "int32"),
        (np.zeros(5), "int32"),
        (np.ones(5), "float32"),
        (np.zeros(1), "float32"),
    ]
    b.output(b.node("TreeEnsemble", b.input("float32", "N", 2), *(b.constant(*array) for array in arrays), features=2))
    assert only(cost(b.finish())) == N * ((1 + 2) + 2)


# --- bytes -------------------------------------------------------------------------------------------------


def test_a_look_up_reads_rows_and_not_the_table(build: Any) -> None:
    b = build()
    table = b.constant(np.zeros((1000, 16)))
    b.output(b.node("Gather", table, b.input("int64", "N")))
    (node,) = cost(b.finish()).nodes
    assert (node.flops, node.bytes_read, node.bytes_written) == (0, N * (4 * 16 + 8), N * 4 * 16)
    assert (node.parameters, node.constant_bytes) == (16_000, 64_000)


def test_bytes_of_arrays_that_are_read_twice_or_only_renamed(build: Any) -> None:
    b = build()
    x = b.input("float32", "N", 6)
    shared = b.constant(np.ones(6))
    square, first, second = b.node("Mul", x, x), b.node("Add", x, shared), b.node("Sub", x, shared)
    b.output(
        square, first, second, b.node("Reshape", x, shape=(("N", 2), 3)), b.node("Slice", x, axis=1, start=0, stop=2)
    )
    counted = cost(b.finish())
    assert [node.bytes_read for node in counted.nodes] == [24 * N, 24 * N + 24, 24 * N + 24, 0, 8 * N]
    assert [node.bytes_written for node in counted.nodes] == [24 * N, 24 * N, 24 * N, 0, 8 * N]
    assert [node.parameters for node in counted.nodes] == [0, 6, 0, 0, 0]
    assert counted.activation_bytes == 80 * N


# --- whole models ------------------------------------------------------------------------------------------


def test_an_mlp(build: Any) -> None:
    b = build()
    h = b.input("float32", "N", 13)
    for rows, columns, activation in ((13, 64, "Relu"), (64, 32, "Relu"), (32, 1, "Sigmoid")):
        weight, bias = b.constant(np.full((rows, columns), rows)), b.constant(np.full(columns, rows))
        h = b.node("MatMul", h, weight, bias, activation=activation)
    b.output(h)
    counted = cost(b.finish())
    assert counted.flops_per_candidate == 2 * (13 * 64 + 64 * 32 + 32) + 2 * 64 + 2 * 32 + 1 + SIGMOID
    assert counted.flops_once == 0
    assert counted.parameters == 13 * 64 + 64 + 64 * 32 + 32 + 32 + 1
    assert counted.at({"N": 100})["flops"] == 100 * counted.flops_per_candidate


def test_din_splits_what_runs_once_from_what_runs_for_candidates(build: Any) -> None:
    """Target attention over 50 events: the history is looked up and projected once, the rest for each candidate."""
    b = build()
    events, size, hidden = 50, 16, 8
    table = b.constant(np.zeros((1000, size)))
    history = b.node("Gather", table, b.input("int64", events))
    keys = b.node("MatMul", history, b.constant(np.ones((size, hidden))))
    target = b.node("MatMul", b.node("Gather", table, b.input("int64", "N")), b.constant(np.full((size, hidden), 2)))
    pairs = b.node("Add", b.node("Reshape", target, shape=("N", 1, hidden)), keys)
    scores = b.node("MatMul", b.node("Relu", pairs), b.constant(np.ones((hidden, 1))))
    weights = b.node("Softmax", b.node("Reshape", scores, shape=("N", events)))
    b.output(b.node("MatMul", weights, history))
    counted = cost(b.finish())
    assert counted.flops_once == 2 * events * size * hidden
    assert counted.flops_per_candidate == (
        2 * size * hidden  # the candidate's projection
        + 2 * events * hidden  # sum and ReLU of each pair
        + 2 * events * hidden  # scores
        + 15 * events  # softmax
        + 2 * events * size  # weighted sum
    )
    assert {node.mode for node in counted.nodes} == {"once", "block"}


def test_a_sum_over_the_list_is_no_multiple_of_the_candidates(build: Any) -> None:
    b = build()
    total = b.node("ReduceSum", b.input("float32", "N", 4), axes=(0,), keepdims=0)
    b.output(b.node("Relu", total))
    counted = cost(b.finish())
    assert [node.mode for node in counted.nodes] == ["whole", "whole"]
    assert (counted.flops_candidates, counted.flops_per_candidate) == (4 * N + 4, None)
