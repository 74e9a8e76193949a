"""Passes around matrix products: scales and shifts, batch normalisation, convolutions, repeated columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from rerank_engine import convert
from rerank_engine.graph import Graph
from rerank_engine.ops import check_nodes
from rerank_engine.passes import run_passes
from rerank_engine.passes.common_subexpressions import common_subexpressions
from rerank_engine.passes.fold_scale import fold_scale
from rerank_engine.passes.fuse_matmul import fuse_matmul
from rerank_engine.passes.move_to_product import move_to_product
from rerank_engine.passes.pipeline import PASSES
from rerank_engine.passes.remove_dead import remove_dead
from rerank_engine.passes.split_concat import split_concat
from rerank_engine.reference import evaluate

RANDOM = np.random.default_rng(11)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def changed_by(run: Callable[[Graph], Graph], b: Any, *, tolerance: float = 1e-6) -> Graph:
    """What a pass makes of a graph: valid, the same outputs and numbers, and left alone by the same pass."""
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
            scale = np.abs(array).max(initial=0.0)
            np.testing.assert_allclose(actual[name], array, rtol=tolerance, atol=tolerance * scale, err_msg=name)
    return after


def weights(b: Any, *shape: int) -> str:
    return str(b.constant(RANDOM.normal(size=shape)))


def plain(b: Any, *shape: Any) -> str:
    return str(b.input("float32", *shape, domain="plain"))


# --- scales ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Mul", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)])
def test_a_scale_behind_goes_into_the_weight(tools: Any, op: str, shape: tuple[int, ...]) -> None:
    b = tools.GraphBuilder()
    product = b.node("MatMul", plain(b, "N", 4), weights(b, 4, 5))
    b.output(b.node("Relu", b.node(op, product, b.constant(RANDOM.uniform(0.5, 2, size=shape)))))
    after = changed_by(fold_scale, b)
    assert ops(after) == ["MatMul", "Relu"]


def test_scale_and_shift_behind_a_bias(tools: Any) -> None:
    b = tools.GraphBuilder()
    value = b.node("MatMul", plain(b, "N", 4), weights(b, 4, 5))
    value = b.node("Add", weights(b, 5), value)
    value = b.node("Mul", weights(b, 5), value)
    value = b.node("Sub", value, weights(b, 1, 5))
    b.output(b.node("Relu", b.node("Div", value, b.constant(4.0))))
    after = changed_by(fold_scale, b)
    assert ops(after) == ["MatMul", "Add", "Relu"]
    assert ops(remove_dead(fuse_matmul(after))) == ["MatMul"]


@pytest.mark.parametrize("shape", [(), (4,), (1, 4)])
def test_a_scale_in_front_goes_into_the_weight(tools: Any, shape: tuple[int, ...]) -> None:
    b = tools.GraphBuilder()
    x = b.node("Mul", b.constant(RANDOM.normal(size=shape)), plain(b, "N", 3, 4))
    b.output(b.node("MatMul", b.node("Div", x, weights(b, 4)), weights(b, 4, 5)))
    assert ops(changed_by(fold_scale, b)) == ["MatMul"]


def test_batch_normalisation_in_front_goes_into_weight_and_bias(tools: Any) -> None:
    for written in ("scale first", "mean first"):
        b = tools.GraphBuilder()
        x, scale = plain(b, "N", 4), b.constant(RANDOM.uniform(0.5, 2, size=4))
        shift = b.constant(RANDOM.uniform(-0.5, 0.5, size=4))
        if written == "scale first":
            x = b.node("Add", b.node("Mul", x, scale), shift)
        else:
            x = b.node("Add", b.node("Mul", b.node("Sub", x, shift), scale), shift)
        b.output(b.node("Relu", b.node("MatMul", x, weights(b, 4, 5))))
        after = changed_by(fold_scale, b)
        assert ops(after) == ["MatMul", "Add", "Relu"]


def test_a_shift_that_keeps_digits_stays(tools: Any) -> None:
    """(x - mean) * scale of large x: were the mean taken behind the product, its digits would cancel there."""
    b = tools.GraphBuilder()
    x = b.node("Sub", plain(b, "N", 4), b.constant([1e4, -1e5, 3.0, 0.0]))
    b.output(b.node("MatMul", b.node("Mul", x, b.constant([1.0, 1.0, 0.1, 5.0])), weights(b, 4, 5)))
    b.output(b.node("MatMul", b.node("Add", plain(b, "N", 4), b.constant([1.0, 2, 3, 4])), weights(b, 4, 5)))
    assert ops(changed_by(fold_scale, b)) == ["Sub", "MatMul", "Add", "MatMul"]
    feeds = b.feeds(50)
    feeds[b.graph.inputs[0]] = (RANDOM.normal(size=(50, 4)) + np.array([1e4, -1e5, 3, 0])).astype(np.float32)
    expected = evaluate(b.graph, feeds, precise=True)
    for name, array in tools.Compiled(run_passes(b.graph)[0])(feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-6 * np.abs(expected[name]).max())


@pytest.mark.parametrize("factor", [1e-35, 1e35, np.inf, np.nan])
def test_a_scale_that_float32_cannot_hold_in_the_weight_stays(tools: Any, factor: float) -> None:
    b = tools.GraphBuilder()
    weight = b.constant(RANDOM.normal(size=(4, 5)) * (1e-6 if factor == 1e-35 else 1e6))
    b.output(b.node("Mul", b.node("MatMul", plain(b, "N", 4), weight), b.constant(factor)))
    b.output(b.node("MatMul", b.node("Mul", plain(b, "N", 4), b.constant(factor)), weight))
    assert fold_scale(b.finish()) is b.graph


def test_scales_that_are_no_row_of_the_product_stay(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = plain(b, "N", 5)
    square, wide = weights(b, 5, 5), weights(b, 5, 1)
    b.output(b.node("Mul", b.node("MatMul", x, square), plain(b, "N", 1)))  # not constant
    b.output(b.node("Mul", b.node("MatMul", x, wide), b.constant(np.arange(1.0, 8))))  # makes columns
    b.output(b.node("Mul", b.node("MatMul", plain(b, 3, 5), square), b.constant([[1.0], [2], [3]])))  # of rows
    product = b.node("MatMul", x, square)
    b.output(b.node("Mul", product, product))
    shared = b.node("MatMul", x, square)
    b.output(b.node("Mul", shared, b.constant(2.0)), b.node("Neg", shared))
    pinned = b.node("MatMul", x, square)
    b.output(pinned, b.node("Mul", pinned, b.constant(2.0)))
    b.output(b.node("Div", b.constant(2.0), b.node("MatMul", x, square)))
    b.output(b.node("Sub", b.constant(np.ones(5)), b.node("MatMul", x, square)))
    b.output(b.node("Mul", b.node("MatMul", x, square, activation="Relu"), b.constant(2.0)))
    b.output(b.node("Mul", b.node("MatMul", x, plain(b, 5, 5)), b.constant(2.0)))
    b.output(b.node("Div", b.node("MatMul", x, square), b.constant(np.array([0.0, 1, 2, 3, 4]))))
    assert fold_scale(b.finish()) is b.graph


def test_other_dtypes_are_left_alone(tools: Any) -> None:
    b = tools.GraphBuilder()
    for dtype in ("float64", "int32"):
        x, weight = b.input(dtype, "N", 4), b.constant(np.arange(20).reshape(4, 5), dtype)
        product = b.node("MatMul", x, weight)
        b.output(b.node("Mul", b.node("Add", product, b.constant(np.arange(5), dtype)), b.constant(3, dtype)))
    for run in (fold_scale, fuse_matmul):
        assert ops(run(b.finish())) == ops(b.graph)


# --- batch normalisation and convolutions ----------------------------------------------------------------------


def normalised(b: dict[str, Any], name: str, channels: int) -> list[str]:
    """Statistics of a batch normalisation, and the names of its inputs behind the first."""
    spread = {"scale": (0.5, 2), "bias": (-1, 1), "mean": (-1, 1), "variance": (0.5, 2)}
    for key, (low, high) in spread.items():
        b[f"{name}.{key}"] = RANDOM.uniform(low, high, size=channels).astype(np.float32)
    return [f"{name}.{key}" for key in spread]


def test_batch_normalisation_between_layers_costs_nothing(tools: Any) -> None:
    constants = {"w1": RANDOM.normal(size=(6, 8)), "b1": RANDOM.normal(size=8), "w2": RANDOM.normal(size=(8, 3))}
    constants = {name: array.astype(np.float32) for name, array in constants.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *normalised(constants, "n1", 8)], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *normalised(constants, "n2", 8)], ["d"]),
        helper.make_node("MatMul", ["d", "w2"], ["y"]),
    ]
    model = tools.onnx_model(nodes, {"x": ("float32", ["N", 6])}, ["y"], constants=constants)
    graph = convert(model).graph
    assert ops(graph) == ["MatMul", "MatMul"]
    feeds = {"x": RANDOM.normal(size=(9, 6)).astype(np.float32)}
    expected = tools.run_onnxruntime(model, feeds)
    np.testing.assert_allclose(tools.Compiled(graph)(feeds)["y"], expected["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spatial", [(7,), (5, 4)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_takes_in_batch_normalisation_and_activation(
    tools: Any, spatial: tuple[int, ...], has_bias: bool
) -> None:
    kernel = (3,) * len(spatial)
    constants = {"w": RANDOM.normal(size=(6, 4, *kernel)).astype(np.float32)}
    if has_bias:
        constants["b"] = RANDOM.normal(size=6).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", *constants], ["a"], pads=[1] * 2 * len(spatial)),
        helper.make_node("BatchNormalization", ["a", *normalised(constants, "n", 6)], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = tools.onnx_model(nodes, {"x": ("float32", ["N", 4, *spatial])}, ["y"], constants=constants)
    graph = convert(model).graph
    (product,) = (node for node in graph.nodes if node.op == "MatMul")
    assert (len(product.inputs), product.attributes["activation"]) == (3, "Relu")
    assert not {"Mul", "Add", "Sub", "Relu"} & {*ops(graph)}
    feeds = {"x": RANDOM.normal(size=(5, 4, *spatial)).astype(np.float32)}
    expected = tools.run_onnxruntime(model, feeds)
    np.testing.assert_allclose(tools.Compiled(graph)(feeds)["y"], expected["y"], rtol=1e-5, atol=1e-5)


def test_scales_move_through_reshapes_that_keep_their_axis(tools: Any) -> None:
    b = tools.GraphBuilder()
    product = b.node("MatMul", plain(b, "N", 6, 4), weights(b, 4, 5))
    turned = b.node("Transpose", product, perm=(0, 2, 1))
    shaped = b.node("Reshape", turned, shape=("N", 5, 2, 3))
    scaled = b.node("Mul", shaped, b.constant(RANDOM.normal(size=(5, 1, 1))))
    b.output(b.node("Tanh", b.node("Sub", scaled, b.constant(0.5))))
    after = changed_by(move_to_product, b)
    assert ops(after) == ["MatMul", "Mul", "Sub", "Tanh", "Transpose", "Reshape"]
    assert ops(remove_dead(run_passes(b.graph)[0])) == ["MatMul", "Transpose", "Reshape"]


def test_scales_that_cannot_move_stay(tools: Any) -> None:
    b = tools.GraphBuilder()
    product = b.node("MatMul", plain(b, "N", 6, 4), weights(b, 4, 6))
    joined = b.node("Reshape", product, shape=("N", 36))
    b.output(b.node("Mul", joined, weights(b, 36)))  # a row of the joined axes is none of either
    turned = b.node("Transpose", b.node("MatMul", plain(b, "N", 6, 4), weights(b, 4, 6)), perm=(0, 2, 1))
    b.output(b.node("Mul", turned, b.constant(2.0)), b.node("Neg", turned))  # read twice
    computed = b.node("Transpose", b.node("MatMul", plain(b, "N", 6, 4), plain(b, 4, 6)), perm=(0, 2, 1))
    b.output(b.node("Mul", computed, weights(b, 6, 1)))  # no constant matrix
    b.output(b.node("Relu", b.node("Reshape", plain(b, "N", 6), shape=(("N", 6),))))  # nothing before it
    assert move_to_product(b.finish()) is b.graph


def test_elementwise_operators_meet_before_a_reshape(tools: Any) -> None:
    b = tools.GraphBuilder()
    joined = b.node("Add", plain(b, "N", 5, 4), plain(b, "N", 1, 4))
    flat = b.node("Reshape", joined, shape=(("N", 5), 4))
    b.output(b.node("MatMul", b.node("PRelu", b.node("Add", flat, weights(b, 4)), weights(b, 1, 4)), weights(b, 4, 2)))
    assert ops(changed_by(move_to_product, b)) == ["Add", "Add", "PRelu", "Reshape", "MatMul"]


# --- repeated columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reshaped", [False, True])
def test_a_difference_of_repeated_parts_goes_into_their_weights(tools: Any, reshaped: bool) -> None:
    """The first layer of target attention over candidate, event, difference and product."""
    b = tools.GraphBuilder()
    query = b.node("Expand", plain(b, "N", 1, 4), shape=("N", 5, 4))
    key = b.node("Expand", plain(b, 5, 4), shape=("N", 5, 4))
    parts = [query, key, b.node("Sub", query, key), b.node("Mul", query, key), b.node("Add", key, query)]
    joined, shape = b.node("Concat", *parts, axis=2), ("N", 5, 6)
    if reshaped:
        joined, shape = b.node("Reshape", joined, shape=(("N", 5), 20)), (("N", 5), 6)
    b.output(b.node("Relu", b.node("MatMul", joined, weights(b, 20, 6))))
    after = remove_dead(changed_by(split_concat, b))
    assert sorted(ops(after)) == sorted(
        ["Expand", "Expand", "Mul", "MatMul", "MatMul", "MatMul", "Add", "Add", "Relu", *["Reshape"] * reshaped]
    )
    assert after.values[after.outputs[0]].shape == b.graph.values[b.graph.outputs[0]].shape
    assert len(shape) == len(after.values[after.outputs[0]].shape)


def test_a_difference_without_its_parts_stays_one(tools: Any) -> None:
    b = tools.GraphBuilder()
    query = b.node("Expand", plain(b, "N", 1, 4), shape=("N", 5, 4))
    key = b.node("Expand", plain(b, 5, 4), shape=("N", 5, 4))
    joined = b.node("Concat", query, b.node("Sub", query, key), b.node("Add", query, plain(b, "N", 5, 4)), axis=2)
    b.output(b.node("MatMul", joined, weights(b, 12, 6)))
    after = remove_dead(changed_by(split_concat, b))
    assert ops(after).count("MatMul") == 2
    assert {"Sub", "Concat"} <= {*ops(after)}


# --- equal values ----------------------------------------------------------------------------------------------


def test_equal_nodes_and_constants_become_one(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = plain(b, "N", 4)
    b.graph.constants["again"] = np.full(4, 2, np.float32)
    from rerank_engine.graph import Value

    b.graph.values["again"] = Value("again", "float32", (4,))
    first, second = (b.node("Mul", x, name) for name in (b.constant(np.full(4, 2.0)), "again"))
    b.output(b.node("Add", b.node("Sigmoid", first), b.node("Sigmoid", second)))
    after = changed_by(common_subexpressions, b)
    assert ops(after) == ["Mul", "Sigmoid", "Add"]


def test_what_only_looks_equal_stays(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = plain(b, "N", 4)
    b.output(b.node("Mul", x, b.constant(0.0)), b.node("Mul", x, b.constant(-0.0)))
    b.output(b.node("LeakyRelu", x, alpha=0.0), b.node("LeakyRelu", x, alpha=-0.0))
    b.output(b.node("Sub", x, b.constant(1.0)), b.node("Sub", b.constant(1.0), x))
    b.output(b.node("Cast", x, to="int32"), b.node("Cast", x, to="int64"))
    assert ops(changed_by(common_subexpressions, b)) == ops(b.graph)


def test_equal_outputs_keep_their_names(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = plain(b, "N", 4)
    b.output(*(b.node("Relu", x) for _ in range(2)), b.node("Neg", b.node("Relu", x)))
    assert ops(changed_by(common_subexpressions, b)) == ["Relu", "Relu", "Neg"]


def test_every_pass_here_can_be_left_out(tools: Any) -> None:
    """What ``fold_scale`` relies on is no other pass."""
    b = tools.GraphBuilder()
    product = b.node("MatMul", plain(b, "N", 4), weights(b, 4, 5))
    b.output(b.node("Mul", product, weights(b, 5)))
    graph, reports = run_passes(b.finish(), skip=[name for name in PASSES if name != "fold_scale"])
    assert ops(graph) == ["MatMul"]
    assert {report.name for report in reports} == {"fold_scale"}
