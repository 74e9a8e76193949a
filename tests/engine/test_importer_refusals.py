"""What the importer must not accept, by message; and names of a source that collide with names of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import ConversionError, MissingExtraError, UnsupportedOperatorError
from rerank_engine.importers.onnx import newest_opset
from rerank_engine.importers.onnx_handlers import HANDLERS
from rerank_engine.importers.shapes import divide, equal, resolve_reshape

Array = NDArray[Any]

INPUTS: dict[str, tuple[str, Sequence[Any]]] = {
    "x": ("float32", ["N", 4]),
    "d": ("float32", ["N", 3, 4]),
    "i": ("int64", ["N"]),
    "l": ("int64", ["N", 4]),
    "q": ("bool", ["N", 4]),
    "m": ("float32", [4, 2]),
    "b": ("bool", []),
}


def integers(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.int64)


CONSTANTS: dict[str, Array] = {
    "k": np.ones((4, 3), np.float32),
    "row": np.ones(4, np.float32),
    "row4": np.ones((2, 1, 4), np.float32),
    "deep": np.ones((2, 4, 3), np.float32),
    "double": np.ones(4, np.float64),
    "half": np.ones(4, np.float16),
    "on": np.array(True),
    "three": np.array(3.0, np.float32),
    "square": np.full((1, 1, 1), 2, np.float32),
    "zero": integers(0),
    "one": integers(1),
    "two": integers(2),
    "minus": integers(-1),
    "nine": integers(9),
    "empty": integers(),
    "ones": integers(1, 1),
    "five": integers(5, 5),
    "n": np.array(0),
    "bad": integers(7),
}

SHAPE = node("Shape", ["x"], ["s"])
SIZE = node("Gather", ["s", "n"], ["size"])

# (opset, nodes, what the message says): the last node is the one that is refused and named "it".
REFUSED: list[tuple[int, list[onnx.NodeProto], str]] = [
    (17, [node("LSTM", ["d", "deep", "deep"], ["y"], hidden_size=3)], "do not fit 1 direction(s)"),
    (17, [node("And", ["q", "x"], ["y"])], "dtype float32 of 'x' is not supported"),
    (17, [node("Add", ["x", "d"], ["y"])], "do not broadcast"),
    (17, [node("Clip", ["x", "row"], ["y"])], "bounds must be scalars"),
    (17, [node("Where", ["q", "x", "l"], ["y"])], "two values of one dtype"),
    (17, [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)], "a cast to float16 is not supported"),
    (17, [node("Dropout", ["x", "three", "on"], ["y"])], "training mode"),
    (17, [node("Dropout", ["x", "three", "b"], ["y"])], "training_mode must be known"),
    (17, [node("Constant", [], ["y"], value_string="text")], "'value_string' is not understood"),
    (17, [node("ConstantOfShape", ["i"], ["y"])], "the shape ('i') must be known"),
    (17, [node("Reshape", ["x", "i"], ["y"])], "the target shape ('i') must be known"),
    (17, [node("Reshape", ["x", "five"], ["y"])], "the size at export was written into the model"),
    (17, [node("Reshape", ["x", "ones"], ["y"])], "the size at export was written into the model"),
    (
        17,
        [node("Reshape", ["k", "minus"], ["z"]), node("Reshape", ["x", "bad"], ["y"])],
        "the size at export was written into the model",
    ),
    (
        17,
        [SHAPE, SIZE, node("Concat", ["two", "s"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
        "cannot reshape",
    ),
    (17, [SHAPE, node("Gather", ["s", "nine"], ["y"])], "do not fit"),
    (17, [SHAPE, SIZE, node("Concat", ["size", "s"], ["y"], axis=0)], "axis 0 is out of range for rank 0"),
    (17, [SHAPE, node("Slice", ["s", "zero", "one", "one"], ["y"])], "axis 1 is out of range for rank 1"),
    (17, [node("Flatten", ["x"], ["y"], axis=5)], "axis 5 is out of range for rank 2"),
    (17, [node("Squeeze", ["x"], ["y"])], "without axes"),
    (17, [node("Squeeze", ["x", "one"], ["y"])], "are not all 1"),
    (17, [node("Squeeze", ["x", "zero"], ["y"])], "are not all 1"),
    (17, [node("Squeeze", ["x", "nine"], ["y"])], "axis 9 is out of range"),
    (17, [node("Unsqueeze", ["x", "nine"], ["y"])], "axis 9 is out of range"),
    (17, [node("Unsqueeze", ["x", "ones"], ["y"])], "name a dimension twice"),
    (17, [node("Unsqueeze", ["x", "i"], ["y"])], "axes ('i') must be known"),
    (17, [node("Expand", ["x", "i"], ["y"])], "the target shape ('i') must be known"),
    (17, [node("Expand", ["x", "five"], ["y"])], "do not broadcast"),
    (17, [node("Concat", ["x", "d"], ["y"], axis=1)], "do not fit along axis 1"),
    (17, [node("Concat", ["x", "l"], ["y"], axis=1)], "differ in dtype"),
    (17, [node("Concat", ["x", "x"], ["y"], axis=2)], "axis 2 is out of range"),
    (17, [node("Transpose", ["d"], ["y"], perm=[0, 1, 1])], "does not fit shape"),
    (17, [node("Slice", ["x", "i", "one", "one"], ["y"])], "the range ('i') must be known"),
    (17, [node("Slice", ["x", "zero", "one", "nine"], ["y"])], "axis 9 is out of range"),
    (17, [node("Slice", ["x", "zero", "ones", "one"], ["y"])], "1 starts, 2 ends, 1 axes and 1 steps"),
    (17, [node("Split", ["x"], ["y", "z"])], "dimension N does not split into 2 equal parts"),
    (17, [node("Split", ["x", "five"], ["y", "z"], axis=1)], "do not split dimension 4"),
    (17, [node("Split", ["x", "ones"], ["y", "z"], axis=1)], "do not split dimension 4"),
    (17, [node("Split", ["x"], ["y", "z", "w"], axis=1)], "into 3 equal parts"),
    (18, [node("Split", ["x"], ["y", "z"], axis=1, num_outputs=3)], "num_outputs=3 for 2 outputs"),
    (17, [node("Gather", ["x", "nine"], ["y"], axis=1)], "id 9 is outside a table of 4 rows"),
    (17, [node("Gather", ["k", "x"], ["y"])], "ids must be int32 or int64"),
    (17, [node("Gather", ["x", "one"], ["y"], axis=7)], "axis 7 is out of range"),
    (17, [node("ReduceMax", ["x"], ["y"], axes=[4])], "axis 4 is out of range"),
    (17, [node("ReduceSum", ["x", "i"], ["y"])], "axes must be known"),
    (17, [node("Softmax", ["x"], ["y"], axis=3)], "axis 3 is out of range"),
    (17, [node("MatMul", ["x", "x"], ["y"])], "inner dimensions differ"),
    (17, [node("Gemm", ["x", "k"], ["y"], transA=1)], "inner dimensions differ"),
    (17, [node("Gemm", ["d", "k"], ["y"])], "needs matrices"),
    (17, [node("Gemm", ["x", "k"], ["y"], transB=1)], "inner dimensions differ"),
    (17, [node("BatchNormalization", ["x", "row", "row", "row", "m"], ["y"])], "must be floats of shape (4,)"),
    (17, [node("BatchNormalization", ["x", *["row"] * 4], ["y", "z", "w"], training_mode=1)], "training_mode=1"),
    (17, [node("BatchNormalization", ["x", *["row"] * 4], ["y", "z", "w"])], "only the normalised output"),
]

# Forms that look unusual and are right all the same: compared with ONNX Runtime.
UNUSUAL: list[tuple[int, list[onnx.NodeProto]]] = [
    (17, [node("Sin", ["x"], ["y"])]),
    (17, [node("ReduceL2", ["x"], ["y"], axes=[1])]),
    (17, [node("Abs", ["l"], ["y"])]),
    (17, [node("Add", ["x", "row4"], ["y"])]),
    (17, [node("Equal", ["q", "q"], ["y"])]),
    (17, [node("Clip", ["x", "three", "free"], ["y"])]),
    (17, [node("Clip", ["l", "one"], ["y"])]),
    (17, [node("Pow", ["x", "three"], ["y"])]),
    (17, [node("Pow", ["x", "x"], ["y"])]),
    (17, [node("Pow", ["x", "square"], ["y"])]),
    (17, [node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)]),
    (17, [node("Dropout", ["x"], ["y", "mask"])]),
    (17, [SHAPE, SIZE, node("Add", ["size", "n"], ["y"])]),
    (17, [SHAPE, SIZE, node("Mul", ["size", "size"], ["y"])]),
    (17, [SHAPE, SIZE, node("Div", ["size", "nine"], ["y"])]),
    (17, [SHAPE, node("Equal", ["s", "five"], ["y"])]),
    (17, [SHAPE, node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]),
    (17, [SHAPE, node("Gather", ["s", "i"], ["y"])]),
    (17, [node("Flatten", ["x"], ["y"], axis=0)]),
    (17, [node("Unsqueeze", ["x", "zero"], ["y"])]),
    (17, [node("Concat", ["x", "x"], ["y"], axis=0)]),
    (17, [node("Transpose", ["x"], ["y"])]),
    (17, [node("Transpose", ["d"], ["y"], perm=[1, 0, 2])]),
    (17, [node("Slice", ["x", "zero", "one"], ["y"])]),
    (17, [node("Slice", ["x", "zero", "one", "zero"], ["y"])]),
    (17, [node("Slice", ["x", "zero", "two", "one", "two"], ["y"])]),
    (17, [node("Slice", ["x", "nine", "zero", "one", "minus"], ["y"])]),
    (17, [node("Gather", ["x", "i"], ["y"])]),
    (17, [node("Gather", ["x", "i"], ["y"], axis=1)]),
    (17, [node("Gather", ["x", "ones"], ["y"], axis=1)]),
    (17, [node("ReduceSum", ["x"], ["y"])]),
    (17, [node("ReduceMean", ["x"], ["y"], axes=[0])]),
    (17, [node("ReduceMax", ["l"], ["y"], axes=[1])]),
    (17, [node("ReduceMax", ["d"], ["y"], axes=[0, 2])]),
    (17, [node("Softmax", ["x"], ["y"], axis=0)]),
    (11, [node("Softmax", ["d"], ["y"])]),
    (17, [node("MatMul", ["x", "row"], ["y"])]),
    (17, [node("MatMul", ["x", "deep"], ["y"])]),
    (17, [node("Gemm", ["x", "m"], ["y"])]),
    (7, [node("BatchNormalization", ["x", *["row"] * 4], ["y"], spatial=0)]),
]


def build(tools: Any, opset: int, nodes: Sequence[onnx.NodeProto], **more: Any) -> onnx.ModelProto:
    read = {name for one in nodes for name in one.input}
    inputs = {name: INPUTS[name] for name in INPUTS if name in read} or {"x": INPUTS["x"]}
    if "free" in read:
        inputs["free"] = ("float32", [])
    constants = {name: CONSTANTS[name] for name in CONSTANTS if name in read}
    outputs = [name for name in nodes[-1].output[:1] if name]
    ranks = dict.fromkeys(outputs, 1)
    return tools.onnx_model(nodes, inputs, outputs, constants=constants, opset=opset, ranks=ranks, **more)


@pytest.mark.parametrize(
    ("opset", "nodes", "why"), REFUSED, ids=lambda value: str(value)[:40] if isinstance(value, str) else ""
)
def test_refused_by_operator_node_and_reason(tools: Any, opset: int, nodes: list[onnx.NodeProto], why: str) -> None:
    last = onnx.NodeProto()
    last.CopyFrom(nodes[-1])
    last.name = "it"
    with pytest.raises(UnsupportedOperatorError) as caught:
        convert(build(tools, opset, [*nodes[:-1], last]))
    message = str(caught.value)
    assert why in message
    assert last.op_type in message.split(":")[0]
    assert "'it" in message.split(":")[0]


@pytest.mark.parametrize(
    ("opset", "nodes"), UNUSUAL, ids=lambda value: value[-1].op_type if isinstance(value, list) else ""
)
def test_unusual_forms_are_right(tools: Any, opset: int, nodes: list[onnx.NodeProto]) -> None:
    model = build(tools, opset, nodes)
    compiled = tools.Compiled(convert(model).graph)
    for candidates in (4, 2):
        random = np.random.default_rng(candidates)
        feeds = {}
        for entry in model.graph.input:
            dtype, dims = {**INPUTS, "free": ("float32", [])}[entry.name]
            shape = tuple(dim if isinstance(dim, int) else candidates for dim in dims)
            feeds[entry.name] = {
                "float32": random.normal(size=shape).astype(np.float32),
                "bool": np.asarray(random.random(shape) < 0.5),
                "int64": random.integers(0, 2, shape),
            }[dtype]
        expected = tools.run_onnxruntime(model, feeds)
        for name, array in compiled(feeds).items():
            assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
            np.testing.assert_allclose(array, expected[name], rtol=2e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("op", sorted({name for domain, name in HANDLERS if not domain} - {"Constant"}))
def test_an_unknown_attribute_is_refused_by_name(tools: Any, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Also where the checker of ONNX, which is older or newer than the model, would let it pass."""
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: None)
    opset = newest_opset()
    schema = onnx.defs.get_schema(op, opset)
    kinds = onnx.defs.OpSchema.AttrType
    samples = {kinds.INT: 1, kinds.INTS: [1], kinds.STRING: "x", kinds.FLOAT: 1.0}
    needed = {name: samples.get(one.type) for name, one in schema.attributes.items() if one.required}
    needed = {name: value for name, value in needed.items() if value is not None}
    outputs = [f"y{index}" for index in range(max(1, schema.min_output))]
    strange = node(op, ["x"] * max(1, schema.min_input), outputs, name="it", strange=1, **needed)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    outs = [helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)]
    graph = helper.make_graph([strange], "g", inputs, outs)
    with pytest.raises(UnsupportedOperatorError, match=f"{op} node 'it': attribute 'strange' is not understood"):
        convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def test_an_unknown_domain_is_refused(tools: Any) -> None:
    strange = node("Gelu", ["x"], ["y"], name="it", domain="com.example")
    with pytest.raises(UnsupportedOperatorError, match=r"Gelu node 'it': this operator of domain 'com\.example'"):
        convert(build(tools, 17, [strange], domains=["com.example"]))
    model = build(tools, 17, [strange], domains=["com.example"])
    del model.opset_import[1]
    with pytest.raises(ConversionError, match="cannot read the ONNX model"):
        convert(model)


@pytest.mark.parametrize(("opset", "good"), [(6, False), (7, True), (24, True), (1000, False)])
def test_opsets(tools: Any, opset: int, good: bool) -> None:
    model = build(tools, opset, [node("Relu", ["x"], ["y"])])
    if good:
        assert convert(model).graph.metadata["opset"] == str(opset)
    else:
        with pytest.raises(ConversionError, match=f"opset {opset} is not supported; supported: 7 to {newest_opset()}"):
            convert(model)


def test_constants_of_other_dtypes_are_refused(tools: Any) -> None:
    with pytest.raises(ConversionError, match="constant 'half' has dtype float16; supported: float32"):
        convert(build(tools, 17, [node("Add", ["x", "half"], ["y"])]))


def test_several_named_dimensions(tools: Any) -> None:
    inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["batch", 4])}
    model = tools.onnx_model([node("Relu", ["x"], ["z"]), node("Relu", ["y"], ["w"])], inputs, ["z", "w"])
    with pytest.raises(ConversionError, match=r"several named dimensions \(N, batch\); say which one"):
        convert(model)
    with pytest.raises(ConversionError, match="no dimension is called 'M'"):
        convert(model, candidates="M")
    described = [str(value) for value in convert(model, candidates="N").inputs]
    assert described == ["x: float32(N, 4)", "y: float32(batch, 4)"]
    described = [str(value) for value in convert(model, candidates="batch").inputs]
    assert described == ["x: float32(dim_N, 4)", "y: float32(N, 4)"]
    late = tools.onnx_model([node("Relu", ["x"], ["z"])], {"x": ("float32", ["batch", "seq.len"])}, ["z"])
    assert [str(value) for value in convert(late).inputs] == ["x: float32(N, seq_len)"]
    unnamed = tools.onnx_model([node("Relu", ["x"], ["z"])], {"x": ("float32", [None, 4])}, ["z"])
    assert [str(value) for value in convert(unnamed).inputs] == ["x: float32(N, 4)"]


@pytest.mark.parametrize("dims", [["N", -1], ["N", None]])
def test_inputs_of_unknown_size_get_a_name(tools: Any, monkeypatch: pytest.MonkeyPatch, dims: Any) -> None:
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: None)
    model = build(tools, 17, [node("Relu", ["x"], ["y"])])
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
    graph = convert(model).graph
    assert str(graph.values["x"]) == "x: float32(N, x_1)"
    x = np.full((3, 5), -1.0, np.float32)
    np.testing.assert_array_equal(tools.Compiled(graph)({"x": x})["y"], np.zeros((3, 5)))


def test_inputs_that_are_refused(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: None)
    model = build(tools, 17, [node("Relu", ["x"], ["y"])])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(ConversionError, match="input 'x' has no shape"):
        convert(model)
    for kind, what in ((TensorProto.FLOAT16, "float16"), (TensorProto.STRING, "string"), (99, "99")):
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, ["N", 4]))
        with pytest.raises(ConversionError, match=f"input 'x' has ONNX type {what}; supported: float32"):
            convert(model)
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, ["N"]))
    with pytest.raises(ConversionError, match="input 'x' has ONNX type sequence_type"):
        convert(model)


def test_outputs(tools: Any) -> None:
    graph = convert(build(tools, 17, [SHAPE, SIZE])).graph
    assert tools.Compiled(graph)({"x": np.zeros((7, 4), np.float32)})["size"] == 7
    model = build(tools, 17, [node("Relu", ["x"], ["y"])])
    model.graph.output.append(model.graph.output[0])
    with pytest.raises(ConversionError, match="output 'y' is declared twice"):
        convert(model)


def test_sources_that_are_no_models(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConversionError, match="no such file"):
        convert(tmp_path / "missing.onnx")
    with pytest.raises(ConversionError, match="is no model that is known; known: an ONNX file"):
        convert(tmp_path)
    (tmp_path / "garbage.onnx").write_bytes(b"\x89PNG\r\n\x1a\n" * 9)
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("garbage.onnx", "empty.onnx"):
        with pytest.raises(ConversionError, match="cannot read the ONNX model"):
            convert(str(tmp_path / name))
    for thing in (5, None, np.zeros(3), object()):
        with pytest.raises(ConversionError, match="is no model that is known"):
            convert(thing)
    good = tmp_path / "relu.onnx"
    onnx.save(build(tools, 17, [node("Relu", ["x"], ["y"])]), str(good))
    assert convert(good).name == "relu"
    truncated = good.read_bytes()[:-9]
    good.write_bytes(truncated)
    with pytest.raises(ConversionError, match="cannot read the ONNX model"):
        convert(good)
    with pytest.raises(ConversionError, match="no pass is called 'magic'; passes: fold_constants"):
        convert(build(tools, 17, [node("Relu", ["x"], ["y"])]), skip_passes=["magic"])
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"rerank-sdk\[convert\]"):
        convert(good)


def test_a_constant_id_outside_its_table_stops_the_conversion(tools: Any) -> None:
    nodes = [node("Gather", ["k", "nine"], ["g"], name="embed"), node("MatMul", ["d", "g"], ["y"])]
    with pytest.raises(ConversionError, match="Gather node 'embed': id 9 is outside a table of 4 rows"):
        convert(build(tools, 17, [nodes[0], node("Concat", ["g", "g"], ["y"], axis=0)]))


COLLISIONS: Mapping[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "weight of a Gemm": (
        [node("Gemm", ["x", "k"], ["a"], alpha=2.0), node("Relu", ["a"], ["k.weight"])],
        ["k.weight", "a"],
    ),
    "intermediate of a Gemm": (
        [node("Gemm", ["x", "k", "c"], ["a"]), node("Neg", ["a"], ["a/matmul"]), node("Abs", ["a"], ["a/matmul.1"])],
        ["a/matmul", "a/matmul.1", "a"],
    ),
    "bias row": ([node("Gemm", ["x", "k", "r"], ["a"]), node("Mul", ["a", "r.row"], ["b"])], ["b"]),
    "scale of a normalisation": (
        [node("BatchNormalization", ["x", "w", "w", "w", "w"], ["a"]), node("Neg", ["a"], ["a/scale"])],
        ["a/scale"],
    ),
    "an input as an output": ([node("Relu", ["x"], ["a"])], ["a", "x"]),
    "a constant as an output": ([node("Relu", ["x"], ["a"])], ["a", "k"]),
    "a constant twice": (
        [node("Constant", [], ["c1"], value_float=2.0), node("Identity", ["c1"], ["c2"])],
        ["c1", "c2"],
    ),
    "a reshaped output": (
        [node("Relu", ["x"], ["a"]), node("Reshape", ["a", "wide"], ["b"]), node("Reshape", ["x", "wide"], ["e"])],
        ["a", "b", "e"],
    ),
}


@pytest.mark.parametrize("name", sorted(COLLISIONS))
@pytest.mark.parametrize("passes", [True, False])
def test_names_that_collide_with_our_own(tools: Any, name: str, passes: bool) -> None:
    from rerank_engine.passes.pipeline import PASSES

    nodes, outputs = COLLISIONS[name]
    random = np.random.default_rng(1)
    constants = {
        "k": random.normal(size=(4, 3)).astype(np.float32),
        "c": random.normal(size=3).astype(np.float32),
        "r": random.normal(size=(1, 3)).astype(np.float32),
        "r.row": random.normal(size=3).astype(np.float32),
        "w": np.abs(random.normal(size=4)).astype(np.float32),
        "wide": integers(-1, 2, 2),
    }
    model = tools.onnx_model(nodes, {"x": ("float32", ["N", 4])}, outputs, constants=constants)
    if not any(entry.name == "k" for entry in model.graph.output) and "k" in outputs:
        raise AssertionError("the model lost its output")
    for entry in model.graph.output:
        if entry.name == "k":
            entry.CopyFrom(helper.make_tensor_value_info("k", TensorProto.FLOAT, [4, 3]))
    graph = convert(model, skip_passes=() if passes else PASSES).graph
    assert graph.outputs == outputs
    feeds = {"x": random.normal(size=(5, 4)).astype(np.float32)}
    expected = tools.run_onnxruntime(model, feeds)
    for output, array in tools.Compiled(graph)(feeds).items():
        np.testing.assert_allclose(array, expected[output], rtol=1e-5, atol=1e-6, err_msg=output)


def test_local_functions_are_inlined(tools: Any) -> None:
    opsets = [helper.make_opsetid("", 17)]
    body = [node("Mul", ["a", "a"], ["square"]), node("Add", ["square", "a"], ["out"])]
    function = helper.make_function("local", "Poly", ["a"], ["out"], body, opsets)
    model = build(tools, 17, [node("Poly", ["x"], ["y"], domain="local")], domains=["local"])
    model.functions.append(function)
    x = np.array([[1, 2, 3, 4]], np.float32)
    np.testing.assert_array_equal(tools.Compiled(convert(model).graph)({"x": x})["y"], x * x + x)


def test_sparse_initializers_are_refused(tools: Any) -> None:
    model = build(tools, 17, [node("Relu", ["x"], ["y"])])
    values, indices = numpy_helper.from_array(np.ones(1, np.float32), "sparse"), numpy_helper.from_array(integers(0))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(ConversionError, match="sparse initializers"):
        convert(model)


def test_arithmetic_on_sizes() -> None:
    from rerank_engine.graph import Dim

    n = Dim("N")
    assert divide(Dim("N", 6), 3) == Dim("N", 2)
    assert divide(Dim("N", 6), Dim("N", 3)) == 2
    assert divide(Dim("N", 6), 4) is divide(6, n) is divide(n, 0) is divide(3, 0) is None
    assert [divide(a, b) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [3, -3, -3, 3]
    assert equal(n, n) is equal(3, 3) is True
    assert equal(n, -1) is equal(-2, n) is equal(3, 4) is False
    assert equal(n, 5) is equal(0, n) is equal(n, Dim("N", 2)) is None
    assert resolve_reshape([-1, -1], [n, 4], allow_zero=False) != [n, 4]
    assert resolve_reshape([0, 0, 0], [n, 4], allow_zero=False) is None
    assert resolve_reshape([0, -1], [n, 4], allow_zero=True) is None
    assert resolve_reshape([3, -1], [n, 4], allow_zero=False) is None
