"""What a source may ask for at most, and forms of damage that only one place sees: each is refused by name."""

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

from rerank_engine import convert, load
from rerank_engine.errors import ConversionError, InputError, RerankError
from rerank_engine.importers.functions import FunctionBody
from rerank_engine.importers.limits import MOST_ELEMENTS, is_quick_to_run
from rerank_engine.importers.onnx_file import MOST_NODES
from rerank_engine.importers.positions import MOST_POSITIONS
from rerank_engine.importers.protobuf_texts import check_texts
from rerank_engine.reference import evaluate

Array = NDArray[Any]


def model(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    dims: Sequence[Any] = ("N", 3),
    dtype: int = TensorProto.FLOAT,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model of one input ``x``."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "limits",
        [helper.make_tensor_value_info("x", dtype, dims)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in outputs],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def subgraph(inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """A body of a loop or a branch."""
    names = ([onnx.ValueInfoProto(name=name) for name in group] for group in (inputs, outputs))
    return helper.make_graph(list(nodes), "body", *names)


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Expand", ["x", "s"], ["y"])], {"s": [2**40, 1, 1]}),
        ([node("Tile", ["x", "s"], ["y"])], {"s": [2**31, 1]}),
        ([node("ConstantOfShape", ["s"], ["y"])], {"s": [2**20, 2**20]}),
        ([node("Pad", ["x", "s"], ["y"])], {"s": [0, 2**40, 0, 0]}),
        ([node("Expand", ["x", "s"], ["y"])], {"s": [2**31, 0, 1]}),
    ],
)
def test_values_beyond_any_model_are_refused(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> None:
    with pytest.raises(ConversionError, match=rf"more than {MOST_ELEMENTS} elements|factor beyond|do not broadcast"):
        convert(model(nodes, constants=constants))


@pytest.mark.parametrize("dims", [["N", 2**40], [2**20, 2**20], ["N"] * 3 + [2**62]])
def test_inputs_beyond_any_model_are_refused(dims: list[Any]) -> None:
    with pytest.raises(ConversionError, match=f"more than {MOST_ELEMENTS} elements|factor beyond"):
        convert(model([node("Relu", ["x"], ["y"])], dims=dims))


def test_long_axes_are_not_numbered() -> None:
    longer = MOST_POSITIONS + 1
    one_hot = node("OneHot", ["x", "depth", "values"], ["y"])
    constants = {"depth": np.array(longer), "values": np.array([0.0, 1.0], np.float32)}
    with pytest.raises(ConversionError, match=f"an axis of {longer} entries is too long to be numbered"):
        convert(model([one_hot], constants=constants, dims=["N"], dtype=TensorProto.INT64))


def doubled(operator: str, dims: Sequence[Any]) -> onnx.ModelProto:
    """The sizes of the input, doubled or squared 70 times."""
    nodes = [node("Shape", ["x"], ["s0"])]
    options = {"axis": 0} if operator == "Concat" else {}
    nodes += [node(operator, [f"s{i}", f"s{i}"], [f"s{i + 1}"], **options) for i in range(70)]
    return model(nodes, ["s70"], dims=dims)


@pytest.mark.parametrize("dims", [["N", 3], [2, 3]])
def test_a_list_of_sizes_that_doubles_and_doubles_again(dims: list[Any]) -> None:
    with pytest.raises(ConversionError, match=f"more than {MOST_ELEMENTS} elements"):
        convert(doubled("Concat", dims))


@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_sizes_that_double_and_double_again(operator: str) -> None:
    with pytest.raises(RerankError, match="a size has"):
        convert(doubled(operator, ["N", 3]))
    # Integers wrap, as in ONNX.
    expected = np.array([2, 3])
    for _ in range(70):
        expected = expected + expected if operator == "Add" else expected * expected
    graph = convert(doubled(operator, [2, 3])).graph
    np.testing.assert_array_equal(graph.constants[graph.outputs[0]], expected)


def test_a_list_that_grows_is_folded_no_further() -> None:
    nodes = [node("Concat", ["c", "c"], ["d0"], axis=0)]
    nodes += [node("Concat", [f"d{i}", f"d{i}"], [f"d{i + 1}"], axis=0) for i in range(18)]
    nodes += [node("ReduceMax", ["d18"], ["top"]), node("Add", ["x", "top"], ["y"])]
    made = convert(model(nodes, constants={"c": np.ones(64, np.float32)}))
    assert max(array.nbytes for array in made.graph.constants.values()) < 8 << 20
    assert made.graph.sample is None or made.graph.nodes


def test_a_model_with_large_results_is_not_run_while_it_is_converted() -> None:
    nodes = [node("Expand", ["x", "s"], ["e"]), node("ReduceSum", ["e"], ["y"], keepdims=0)]
    large, small = (convert(model(nodes, constants={"s": [size, 1, 1]})) for size in (2**24, 2**4))
    assert not is_quick_to_run(large.graph)
    assert is_quick_to_run(small.graph)
    assert (large.graph.sample is None, small.graph.sample is None) == (True, False)


def test_what_cannot_be_stored_is_refused() -> None:
    for name, words in (("a\0b", "contains NUL"), ("a" * 5000, "5000 characters")):
        with pytest.raises(ConversionError, match=f"the converted model cannot be stored: .*{words}"):
            convert(model([node("Relu", ["x"], [name])], [name]))


# --- loops and functions --------------------------------------------------------------------------------------------


def loops(depth: int, rounds: str = "rounds") -> onnx.NodeProto:
    """Loops in loops that only count."""
    nodes = [node("Identity", [f"{name}{depth}"], [f"{name}{depth}s"]) for name in ("going", "round")]
    if depth:
        nodes.append(loops(depth - 1, rounds))
    body = subgraph([f"round{depth}", f"going{depth}"], [f"going{depth}s", f"round{depth}s"], nodes)
    return node("Loop", [rounds, "yes"], [""], body=body, name=f"loop{depth}")


def test_loops_of_loops_are_counted() -> None:
    constants = {"rounds": np.array(1000), "yes": np.array(True)}
    with pytest.raises(ConversionError, match=f"with its loops written out the model has more than {MOST_NODES} nodes"):
        convert(model([node("Relu", ["x"], ["y"]), loops(3)], constants=constants))


def test_subgraphs_are_not_nested_without_end() -> None:
    inner = node("Relu", ["x"], ["deep"])
    for _ in range(20):
        branches = [subgraph([], ["deep"], [inside]) for inside in (inner, node("Neg", ["x"], ["deep"]))]
        inner = node("If", ["yes"], ["deep"], then_branch=branches[0], else_branch=branches[1])
    text = model([inner, node("Neg", ["deep"], ["y"])], constants={"yes": np.array(True)})
    assert [made.op for made in convert(text).graph.nodes] == ["Relu", "Neg"]


def functions(calls: Mapping[str, Sequence[str]]) -> onnx.ModelProto:
    """A model whose functions call others, each in a chain."""
    opset = [helper.make_opsetid("", 18), helper.make_opsetid("ours", 1)]
    made = model([node(next(iter(calls)), ["x"], ["y"], domain="ours")])
    made.opset_import.append(opset[1])
    for name, called in calls.items():
        nodes = [
            node(other, [f"v{i}"], [f"v{i + 1}"], domain="ours" if other in calls else "")
            for i, other in enumerate(called)
        ]
        made.functions.append(helper.make_function("ours", name, ["v0"], [f"v{len(called)}"], nodes, opset))
    return made


def test_functions_are_counted_before_they_are_written_out() -> None:
    made = convert(functions({"A": ["B", "B"], "B": ["Neg", "Relu"]}))
    assert [one.op for one in made.graph.nodes] == ["Neg", "Relu", "Neg", "Relu"]
    chain = {f"F{i}": [f"F{i + 1}"] * 2 for i in range(40)} | {"F40": ["Neg"]}
    with pytest.raises(ConversionError, match=f"with its functions written out it has more than {MOST_NODES} nodes"):
        convert(functions(chain))


@pytest.mark.parametrize("calls", [{"A": ["A"]}, {"A": ["B"], "B": ["Neg", "A"]}])
def test_functions_that_call_themselves_are_refused(calls: dict[str, list[str]]) -> None:
    with pytest.raises(ConversionError, match=r"calls itself|Cycle detected"):
        convert(functions(calls))


# --- tensors and texts ------------------------------------------------------------------------------------------------


def constant(tensor: TensorProto) -> onnx.ModelProto:
    return model([node("Constant", [], ["c"], value=tensor), node("Identity", ["c"], ["y"])])


def test_tensors_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.checker, "check_model", lambda _: None)
    cut = TensorProto(name="t", dims=[3], data_type=TensorProto.FLOAT, raw_data=b"123")
    unknown = TensorProto(name="t", dims=[1], data_type=99, raw_data=b"1234")
    words = TensorProto(name="t", dims=[1], data_type=TensorProto.STRING, string_data=[b"\xff"])
    away = TensorProto(name="t", dims=[1], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for tensor, words_of in ((cut, "cannot be read"), (unknown, "cannot be read"), (words, "holds texts")):
        with pytest.raises(ConversionError, match=f"tensor 't' of shape .* {words_of}"):
            convert(constant(tensor))
    with pytest.raises(ConversionError, match="the data of tensor 't' lies in another file"):
        convert(constant(away))


def test_a_text_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    content = model([node("Relu", ["x"], ["name"])], ["name"]).SerializeToString()
    path.write_bytes(content.replace(b"name", b"n\xffme"))
    with pytest.raises(ConversionError, match=r"field onnx\.\w+\.\w+ holds b'n\\xffme', which is no UTF-8 text"):
        convert(path)
    check_texts(onnx.ModelProto.FromString(content), "model.onnx")


def test_a_file_is_read_as_what_onnx_is_whatever_its_name(tmp_path: Path) -> None:
    content = model([node("Relu", ["x"], ["y"])]).SerializeToString()
    for name in ("model.json", "model.txt", "model.onnxtxt"):
        (tmp_path / name).write_bytes(content)
        assert convert(tmp_path / name).graph.nodes[0].op == "Relu"
    (tmp_path / "model.json").write_text('{"graph": {}}')
    with pytest.raises(ConversionError, match="cannot read the ONNX model"):
        convert(tmp_path / "model.json")


# --- values and errors of handlers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "flag", "value"),
    [
        (node("ReduceSum", ["x"], ["y"], keepdims=3), "keepdims", 3),
        (node("ReduceSum", ["x"], ["y"], noop_with_empty_axes=-1), "noop_with_empty_axes", -1),
        (node("TopK", ["x", "k"], ["y", "p"], largest=-2), "largest", -2),
        (node("Gemm", ["x", "w"], ["y"], transB=2), "transB", 2),
        (node("CumSum", ["x", "a"], ["y"], reverse=5), "reverse", 5),
    ],
)
def test_truth_values_are_0_or_1(given: onnx.NodeProto, flag: str, value: int) -> None:
    constants = {"k": np.array([1]), "w": np.ones((3, 3), np.float32), "a": np.array(1)}
    with pytest.raises(ConversionError, match=f"attribute {flag}={value} is no truth value; expected 0 or 1"):
        convert(model([given], constants=constants))


def test_a_negative_variance_is_no_number_and_no_warning() -> None:
    names = ("scale", "bias", "mean", "variance")
    constants = {name: np.full(3, -1.0 if name == "variance" else 1.0, np.float32) for name in names}
    made = convert(model([node("BatchNormalization", ["x", *names], ["y"])], constants=constants))
    sample = made.graph.sample
    assert sample is not None
    assert np.isnan(sample.outputs["y"]).all()


def test_numbers_beyond_float32_are_infinite_in_the_sample() -> None:
    nodes = [node("Mul", ["x", "c"], ["z"]), node("Mul", ["z", "c"], ["y"])]
    made = convert(model(nodes, constants={"c": np.float32(1e30)}))
    sample = made.graph.sample
    assert sample is not None
    assert np.isinf(sample.outputs["y"]).all()


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64])
def test_a_model_of_a_scalar_has_a_sample(kind: int) -> None:
    sample = convert(model([node("Identity", ["x"], ["y"])], dims=[], dtype=kind)).graph.sample
    assert sample is not None
    assert isinstance(sample.inputs["x"], np.ndarray)


@pytest.mark.parametrize(
    ("nodes", "kind", "has_sample"),
    [
        ([node("Exp", ["x"], ["s"]), node("BitCast", ["s"], ["y"], to=TensorProto.INT32)], TensorProto.INT32, False),
        ([node("BitCast", ["x"], ["y"], to=TensorProto.INT32)], TensorProto.INT32, False),
        ([node("ArgMax", ["x"], ["y"], axis=1)], TensorProto.INT64, True),
        ([node("Sigmoid", ["x"], ["s"]), node("Floor", ["s"], ["y"])], TensorProto.FLOAT, True),
        ([node("Less", ["x", "c"], ["y"])], TensorProto.BOOL, True),
    ],
)
def test_a_sample_is_kept_where_rounding_changes_no_whole_number(
    nodes: list[onnx.NodeProto], kind: int, has_sample: bool
) -> None:
    text = model(nodes, constants={"c": np.float32(0.3)}, opset=26)
    text.graph.output[0].type.tensor_type.elem_type = kind
    made = convert(text)
    assert (made.graph.sample is not None) is has_sample
    if has_sample:
        assert load(made).self_check() == ""


def test_the_length_of_a_sequence_that_only_runtime_knows(tmp_path: Path) -> None:
    with np.load(Path(__file__).parent / "data" / "embedding_bags.npz") as archive:
        text = onnx.ModelProto.FromString(archive["new fixed sum/model"].tobytes())
    (joining,) = (made for made in text.graph.node if made.op_type == "ConcatFromSequence")
    assert len(convert(text).graph.outputs) == 1
    for op, attributes in (("SequenceLength", {}), ("ConcatFromSequence", {"axis": 0, "new_axis": 1})):
        joining.CopyFrom(node(op, joining.input, joining.output, **attributes))
        with pytest.raises(ConversionError, match=r"the members of sequence .* must be known"):
            convert(text)


def test_a_function_that_onnx_cannot_write_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> FunctionBody:
        raise RuntimeError("by design")

    monkeypatch.setattr("rerank_engine.importers.functions.function_body", broken)
    with pytest.raises(ConversionError, match="inputs or attributes do not fit each other: by design"):
        convert(model([node("Bernoulli", ["x"], ["y"])]))


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (2, 5), (-3, 2**31 - 1)])
def test_a_cut_whose_shape_alone_is_used_still_refuses_shorter_lists(start: int, stop: int) -> None:
    """How many rows there are is made use of; that there are as many must not go away with the rows."""
    nodes = [
        node("Slice", ["x", "start", "stop", "axis"], ["part"]),
        node("Shape", ["part"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Range", ["zero", "rows", "one"], ["y"]),
    ]
    constants: dict[str, Any] = {"start": [start], "stop": [stop], "axis": [0], "zero": np.int64(0), "one": np.int64(1)}
    text = model(nodes, constants=constants)
    text.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    made = convert(text)
    engine = load(made)
    np.testing.assert_array_equal(engine.run({"x": np.zeros((7, 3), np.float32)}), [0, 1, 2])
    for rows in range(max(stop, 3) if start >= 0 else 3):
        x = np.zeros((rows, 3), np.float32)
        for run in (engine.run, lambda feeds: evaluate(made.graph, feeds)):
            with pytest.raises(InputError, match=r"too short|cannot cut"):
                run({"x": x})
