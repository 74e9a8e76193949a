"""Operators that move, select and make elements: what is refused by name, and what other engines get wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.ops import lookup
from rerank_engine.reference import evaluate

Array = NDArray[Any]
LAST = np.iinfo(np.int64).max
FIRST = np.iinfo(np.int64).min

INPUTS: Mapping[str, tuple[str, Sequence[Any]]] = {
    "x": ("float32", ["N", "T", 4]),
    "y": ("float32", ["N", 3, 4]),
    "h": ("float32", ["T", 6]),
    "ids": ("int64", ["N", "T"]),
    "i": ("int64", ["N"]),
    "q": ("bool", ["N", "T"]),
}
TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def number(value: int) -> Array:
    return np.array(value, np.int64)


S = node("Shape", ["x"], ["s"])
CONSTANTS: Mapping[str, Array] = {
    "zero": integers(0),
    "one": integers(1),
    "two": integers(2),
    "minus": integers(-1),
    "nine": integers(9),
    "many": integers(1, 1, 1),
    "last": integers(LAST),
    "yes": np.array([True, False]),
    "values": np.array([0, 1], np.float32),
    "half": np.array([0.5], np.float32),
    "text": np.array([1.5], np.float64),
}

REFUSED: list[tuple[int, list[onnx.NodeProto], str]] = [
    (13, [node("Reshape", ["h", "i"], ["r"])], r"the target shape \('i'\) must be known .* give constants=\{'i': …\}"),
    (13, [node("Reshape", ["x", "many"], ["r"])], "size at export was written into the model"),
    (13, [node("Expand", ["h", "i"], ["r"])], "must be known"),
    (13, [node("Tile", ["y", "two"], ["r"])], "1 repeats for y"),
    (13, [node("Squeeze", ["x", "zero"], ["r"])], "not all 1"),
    (13, [node("Squeeze", ["x"], ["r"])], "without axes"),
    (13, [node("Slice", ["x", "i", "last"], ["r"])], "must be known"),
    (13, [node("Slice", ["x", "zero", "last", "nine"], ["r"])], "axis 9 is out of range"),
    (13, [node("Slice", ["x", "zero", "last", "one", "zero"], ["r"])], "step 0 goes nowhere"),
    (13, [node("Slice", ["x", "zero", "last", "one", "two"], ["r"])], "length is no sum of named dimensions"),
    (
        13,
        [
            S,
            node("Gather", ["s", "one"], ["t"]),
            node("Neg", ["t"], ["m"]),
            node("Slice", ["x", "m", "last", "one"], ["r"]),
        ],
        "means something else where that is 0",
    ),
    (13, [node("Split", ["x"], ["a", "b"], axis=1)], "does not split into 2 equal parts"),
    (13, [node("Split", ["x", "many"], ["a", "b", "c"], axis=2)], "do not split dimension 4"),
    (18, [node("Split", ["h"], ["a", "b"], axis=1, num_outputs=3)], "num_outputs=3 for 2 outputs"),
    (13, [node("Concat", ["x", "y"], ["r"], axis=0)], "inputs do not fit along axis 0"),
    (13, [node("Pad", ["y", "many"], ["r"])], "3 pads do not fit 3 axes"),
    (13, [node("Pad", ["y", "i"], ["r"])], "the pads .* must be known"),
    (
        13,
        [node("Constant", [], ["p"], value_ints=[0, 0, 9, 0, 0, 0]), node("Pad", ["y", "p"], ["r"], mode="reflect")],
        "needs at least 10 elements",
    ),
    (
        13,
        [node("Constant", [], ["p"], value_ints=[0] * 6), node("Pad", ["y", "p"], ["r"], mode="wrap")],
        "'wrap' is not one of",
    ),
    (
        13,
        [node("Constant", [], ["p"], value_ints=[1] * 6), node("Pad", ["y", "p", "text"], ["r"])],
        "must be one float32",
    ),
    (13, [node("Gather", ["y", "nine"], ["r"], axis=1)], "id 9 is outside a table of 3 rows"),
    (13, [node("GatherND", ["x", "ids"], ["r"])], "last dimension of the indices"),
    (13, [node("GatherND", ["y", "at"], ["r"], batch_dims=1)], "first 1 dimensions .* differ"),
    (13, [node("GatherElements", ["y", "at"], ["r"])], "differ in rank"),
    (13, [node("ScatterElements", ["h", "at", "half1"], ["r"], axis=1)], "reach beyond"),
    (16, [node("ScatterND", ["y", "at", "y"], ["r"], reduction="mean")], "reduction 'mean' is not one of"),
    (11, [node("OneHot", ["i", "i", "values"], ["r"])], "the depth .* must be known"),
    (11, [node("OneHot", ["i", "two", "half"], ["r"])], r"values must be \(off, on\)"),
    (11, [node("NonZero", ["q"], ["r"])], "size of the result depends on it"),
    (11, [node("Compress", ["x", "q"], ["r"], axis=0)], "size of the result depends on it"),
    (11, [node("Compress", ["x", "yes"], ["r"])], "without an axis the shape"),
    (11, [node("Unique", ["i"], ["r"])], "size of the result depends on it"),
    (11, [node("Range", ["zero0", "i0", "one0"], ["r"])], "must be known, or follow from named dimensions"),
    (11, [node("Range", ["zero0", "one0", "zero0"], ["r"])], "has no end"),
    (11, [node("Range", ["zero0", "large", "one0"], ["r"])], "too long"),
    (
        13,
        [S, node("Gather", ["s", "one"], ["t"]), node("Range", ["zero0", "t", "two0"], ["r"])],
        "cannot tell how many",
    ),
    (10, [node("ReverseSequence", ["x", "i"], ["r"], batch_axis=0, time_axis=2)], "must be axes 0 and 1"),
    (13, [node("DepthToSpace", ["y4"], ["r"], blocksize=2)], "do not divide the depth"),
    (13, [node("SpaceToDepth", ["y4"], ["r"], blocksize=2)], "blocks of 2 do not divide"),
    (14, [node("Trilu", ["i"], ["r"])], "needs a matrix"),
    (
        13,
        [node("SplitToSequence", ["x"], ["parts"], axis=1), node("SequenceAt", ["parts", "zero0"], ["r"])],
        "how many pieces",
    ),
    (
        13,
        [node("SplitToSequence", ["y"], ["p"], axis=1), node("SequenceAt", ["p", "i0"], ["r"])],
        "the position .* must be known",
    ),
    (
        13,
        [node("SplitToSequence", ["y"], ["p"], axis=1), node("SequenceAt", ["p", "nine"], ["r"])],
        "position 9 is outside",
    ),
]
MORE: Mapping[str, tuple[str, Sequence[Any]]] = {
    "at": ("int64", [2, 1]),
    "half1": ("float32", [2, 1]),
    "i0": ("int64", []),
    "y4": ("float32", ["N", 3, 3, 5]),
}


@pytest.mark.parametrize("index", range(len(REFUSED)))
def test_refused_by_name(index: int) -> None:
    opset, nodes, message = REFUSED[index]
    read = {name for one in nodes for name in one.input} - {name for one in nodes for name in one.output}
    scalars = {"zero0": number(0), "one0": number(1), "two0": number(2), "large": number(2**40)}
    constants = {name: array for name, array in (*CONSTANTS.items(), *scalars.items()) if name in read}
    kinds = {name: kind for name, kind in (INPUTS | MORE).items() if name in read}
    made = {name for one in nodes for name in one.output}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in kinds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in made if name == nodes[-1].output[0]],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    candidates = "N" if any("N" in shape for _, shape in kinds.values()) else None
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        convert(model, candidates=candidates)
    assert str(caught.value).split(" node ")[0] in {one.op_type for one in nodes}


def test_a_text_constant_is_refused() -> None:
    made = node("Constant", [], ["c"], value_string="item", name="label")
    graph = helper.make_graph(
        [made, node("Identity", ["h"], ["r"])],
        "g",
        [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N", 2])],
    )
    with pytest.raises(ConversionError, match="Constant node 'label': attribute 'value_string' is not understood"):
        convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_gather_nd_with_batches_that_do_not_fit(tools: Any) -> None:
    """Data (3, 3), indices (2, 1), one batch dimension: elsewhere an integer division by zero."""
    inputs = {"d": ("float32", [3, 3]), "at": ("int64", [2, 1])}
    model = tools.onnx_model([node("Identity", ["d"], ["r"]), node("Identity", ["at"], ["q"])], inputs, ["r"], opset=13)
    del model.graph.node[:]
    model.graph.node.append(node("GatherND", ["d", "at"], ["r"], batch_dims=1))
    with pytest.raises(UnsupportedOperatorError, match="GatherND node 'r': the first 1 dimensions"):
        convert(model)


def test_one_hot_without_an_axis_adds_the_last_one(tools: Any) -> None:
    """The default is -1, which an engine that keeps its own default of 0 gets wrong."""
    constants = {"depth": number(4), "values": np.array([0, 1], np.float32)}
    one_hot = node("OneHot", ["i", "depth", "values"], ["r"])
    graph = convert(tools.onnx_model([one_hot], {"i": ("int64", ["N"])}, ["r"], constants=constants, opset=11)).graph
    (result,) = tools.Compiled(graph)({"i": integers(0, 2, -1)}).values()
    np.testing.assert_array_equal(result, np.eye(4, dtype=np.float32)[[0, 2, 3]])


def test_an_unknown_row_stands_for_every_id_outside(tools: Any) -> None:
    """On any axis; -1 is outside then, where it is the last row otherwise."""
    graph = Graph("rows", inputs=["ids"], outputs=["y", "z"])
    graph.values["ids"] = Value("ids", "int64", (Dim("N"),))
    graph.add_constant("table", np.arange(8, dtype=np.float32).reshape(2, 4))
    for name, attributes in (("y", {"unknown_row": 1}), ("z", {"axis": 1, "unknown_row": 2})):
        graph.nodes.append(Node("Gather", name, ("table", "ids"), (name,), attributes))
        ((dtype, shape),) = lookup(graph.nodes[-1]).infer(graph.nodes[-1], [graph.values["table"], graph.values["ids"]])
        graph.values[name] = Value(name, dtype, shape)
    graph.verify()
    feeds = {"ids": integers(0, 1, -1, 9, 2**40)}
    for results in (tools.Compiled(graph)(feeds), evaluate(graph, feeds)):
        np.testing.assert_array_equal(results["y"][:, 0], [0, 4, 4, 4, 4])
        np.testing.assert_array_equal(results["z"][0], [0, 1, 2, 2, 2])
