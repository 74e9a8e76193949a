"""Arithmetic on the sizes of a model's inputs: kept as expressions where a shape needs them, computed otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.reference import evaluate

Array = NDArray[Any]


def build(tools: Any, nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array]) -> onnx.ModelProto:
    """A model over ``x``, N rows of four; every value that no node reads is an output."""
    read = {name for one in nodes for name in one.input}
    outputs = [name for one in nodes for name in one.output if name not in read]
    return tools.onnx_model(nodes, {"x": ("float32", ["N", 4])}, outputs, constants=constants)


def assert_like_onnxruntime(tools: Any, model: onnx.ModelProto, counts: Sequence[int]) -> None:
    """Machine code and the reference: dtypes, shapes and numbers."""
    graph = convert(model).graph
    compiled = tools.Compiled(graph)
    for count in counts:
        feeds = {"x": np.random.default_rng(count).uniform(-5, 5, (count, 4)).astype(np.float32)}
        expected = tools.run_onnxruntime(model, feeds)
        for results in (compiled(feeds), evaluate(graph, feeds)):
            assert list(results) == list(expected)
            for name, array in results.items():
                assert array.dtype == expected[name].dtype, f"{name} is {array.dtype}, expected {expected[name].dtype}"
                assert array.shape == expected[name].shape, f"{name} is {array.shape}, expected {expected[name].shape}"
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


SIZE = [node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "first"], ["size"])]
"""The number of candidates, a scalar of int64."""

SIZE_CONSTANTS: dict[str, Array] = {
    "first": np.array(0),
    "one": np.array([1]),
    "two": np.array(2),
    "five": np.array(5),
    "tenth": np.array(0.1, np.float32),
    "double": np.array(2.0, np.float32),
    "half": np.array(0.5, np.float32),
    "axis": np.array([0]),
}

# What cannot be kept as an expression of sizes is computed when the model runs.
AT_RUN_TIME: dict[str, list[onnx.NodeProto]] = {
    "half the list": [node("Div", ["size", "two"], ["y"])],
    "parity": [node("Mod", ["size", "two"], ["y"])],
    "fmod": [node("Mod", ["size", "two"], ["y"], fmod=1)],
    "comparison": [
        node(op, ["size", "five"], [op]) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    ],
    "limits": [node("Max", ["size", "five"], ["a"]), node("Min", ["size", "five", "two"], ["b"])],
    "clip": [node("Clip", ["size", "two", "five"], ["a"]), node("Clip", ["size", "", "five"], ["b"])],
    "choice": [node("Greater", ["size", "five"], ["long"]), node("Where", ["long", "size", "five"], ["y"])],
    "scale": [node("Cast", ["size"], ["number"], to=1), node("Mul", ["x", "number"], ["y"])],
    "mean": [node("Cast", ["size"], ["number"], to=1), node("Div", ["x", "number"], ["y"])],
    "like": [node("CastLike", ["size", "x"], ["number"]), node("Sub", ["x", "number"], ["y"])],
    "power": [node("Pow", ["size", "two"], ["y"]), node("Neg", ["size"], ["z"]), node("Abs", ["size"], ["a"])],
    "small": [node("Cast", ["size"], ["y"], to=3), node("Cast", ["size"], ["q"], to=9)],
    "root": [
        node("Cast", ["size"], ["number"], to=1),
        node("Sqrt", ["number"], ["root"]),
        node("Cast", ["root"], ["y"], to=7),
    ],
}

# What can: the result decides a shape, which must be known when the model is converted.
KEPT: dict[str, list[onnx.NodeProto]] = {
    "arithmetic": [
        node("Mul", ["size", "two"], ["twice"]),
        node("Add", ["twice", "five"], ["more"]),
        node("Sub", ["more", "five"], ["less"]),
        node("Div", ["less", "two"], ["length"]),
    ],
    "a limit that always holds": [node("Max", ["size", "first"], ["length"])],
    "a clip that changes nothing": [node("Clip", ["size", "first"], ["length"])],
    "negated twice": [node("Neg", ["size"], ["minus"]), node("Neg", ["minus"], ["length"])],
    "remainder": [
        node("Mul", ["size", "two"], ["twice"]),
        node("Mod", ["twice", "two"], ["nothing"]),
        node("Add", ["size", "nothing"], ["length"]),
    ],
    "through floats": [
        node("Cast", ["size"], ["number"], to=1),
        node("Mul", ["number", "double"], ["twice"]),
        node("Floor", ["twice"], ["whole"]),
        node("Div", ["whole", "double"], ["once"]),
        node("Ceil", ["once"], ["up"]),
        node("Cast", ["up"], ["length"], to=7),
    ],
    "a known size through floats": [
        node("Gather", ["shape", "second"], ["columns"]),
        node("Cast", ["columns"], ["number"], to=1),
        node("Mul", ["number", "half"], ["part"]),
        node("Floor", ["part"], ["whole"]),
        node("Cast", ["whole"], ["length"], to=7),
    ],
}


@pytest.mark.parametrize("case", sorted(AT_RUN_TIME))
def test_arithmetic_on_sizes_at_run_time(tools: Any, case: str) -> None:
    nodes = [*SIZE, *AT_RUN_TIME[case]]
    assert_like_onnxruntime(tools, build(tools, nodes, SIZE_CONSTANTS), (0, 1, 7, 200))


@pytest.mark.parametrize("case", sorted(KEPT))
def test_arithmetic_on_sizes_decides_shapes(tools: Any, case: str) -> None:
    last = [
        node("Unsqueeze", ["length", "axis"], ["target"]),
        node("ConstantOfShape", ["target"], ["zeros"]),
        node("Add", ["zeros", "half"], ["y"]),
    ]
    constants = SIZE_CONSTANTS | {"second": np.array(1)}
    assert_like_onnxruntime(tools, build(tools, [*SIZE, *KEPT[case], *last], constants), (0, 1, 7))


def test_a_float_computed_size_that_is_not_whole_is_not_guessed(tools: Any) -> None:
    nodes = [
        node("Cast", ["size"], ["number"], to=1),
        node("Mul", ["number", "half"], ["part"]),
        node("Floor", ["part"], ["whole"]),
        node("Cast", ["whole"], ["length"], to=7),
        node("Unsqueeze", ["length", "axis"], ["target"]),
        node("ConstantOfShape", ["target"], ["y"]),
    ]
    with pytest.raises(UnsupportedOperatorError, match="ConstantOfShape"):
        convert(build(tools, [*SIZE, *nodes], SIZE_CONSTANTS))
