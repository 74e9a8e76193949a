"""Elementwise ONNX operators at the limits of their dtypes, by formula; and what is refused, by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.importers.onnx import ONNX_DTYPES
from rerank_engine.reference import evaluate

Array = NDArray[Any]

CODES = {name: code for code, name in ONNX_DTYPES.items()}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")


def run(
    tools: Any,
    opset: int,
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
) -> list[dict[str, Array]]:
    """Results of machine code and of the reference; vectors have N elements."""
    inputs = {name: (str(array.dtype), ["N"] * array.ndim) for name, array in feeds.items()}
    outputs = [name for one in nodes for name in one.output]
    graph = convert(tools.onnx_model(nodes, inputs, outputs, constants=constants, opset=opset)).graph
    return [tools.Compiled(graph)(feeds), evaluate(graph, feeds)]


LIMITS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 50.0, -50.0, 1e30, -1e30, 3e38, -3e38, np.inf, -np.inf, np.nan]


def _celu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(x / alpha), x)


FORMULAS: dict[str, tuple[int, dict[str, Any], Any]] = {
    "Reciprocal": (13, {}, lambda x: 1 / x),
    "Selu": (22, {}, lambda x: 1.0507010221481323 * np.where(x < 0, 1.6732631921768188 * np.expm1(x), x)),
    "Celu": (12, {"alpha": 0.5}, lambda x: _celu(x, 0.5)),
    "HardSigmoid": (22, {}, lambda x: np.clip(0.20000000298023224 * x + 0.5, 0, 1)),
    "HardSwish": (22, {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Mish": (22, {}, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "Softsign": (22, {}, lambda x: x / (1 + np.abs(x))),
    "Swish": (24, {"alpha": 1.5}, lambda x: x / (1 + np.exp(-1.5 * x))),
    "ThresholdedRelu": (22, {"alpha": 0.5}, lambda x: np.where(x > 0.5, x, 0)),
    "Shrink": (
        9,
        {"bias": 0.25, "lambd": 0.75},
        lambda x: np.where(x < -0.75, x + 0.25, np.where(x > 0.75, x - 0.25, 0)),
    ),
    "IsNaN": (20, {}, np.isnan),
    "IsInf": (20, {}, np.isinf),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_compositions_at_the_limits(tools: Any, dtype: str) -> None:
    x = np.array([*LIMITS, *np.linspace(-8, 8, 100)], dtype)
    for op, (opset, attributes, formula) in FORMULAS.items():
        nodes = [node(op, ["x"], ["y"], **attributes)]
        with np.errstate(all="ignore"):
            expected = np.asarray(formula(x.astype(np.float64)))
        for results in run(tools, opset, nodes, {"x": x}):
            with np.errstate(over="ignore"):
                wanted = expected if expected.dtype == bool else expected.astype(dtype)
            tolerance = 1e-6 if dtype == "float32" else 1e-14
            np.testing.assert_allclose(
                results["y"], wanted, tolerance, tolerance, equal_nan=True, err_msg=f"{op} {dtype}"
            )
            assert results["y"].dtype == wanted.dtype


@pytest.mark.parametrize(("positive", "negative"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_infinities_by_sign(tools: Any, positive: int, negative: int) -> None:
    attributes = {"detect_positive": positive, "detect_negative": negative}
    nodes = [node("IsInf", ["x"], ["y"], **attributes)]
    x = np.array([np.inf, -np.inf, np.nan, 0, 3e38], np.float32)
    for results in run(tools, 20, nodes, {"x": x}):
        np.testing.assert_array_equal(results["y"], [bool(positive), bool(negative), False, False, False])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 1.5, np.inf, np.nan])
def test_powers_with_a_constant_exponent(tools: Any, dtype: str, exponent: float) -> None:
    """The quick forms of common exponents have every special case of the power."""
    x = np.array([0.0, -0.0, 1, -1, 2, -2, 0.25, 1e10, -1e10, np.inf, -np.inf, np.nan], dtype)
    nodes, constants = [node("Pow", ["x", "p"], ["y"])], {"p": np.array(exponent, dtype)}
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full(x.shape, exponent, dtype))
        expected[np.isneginf(x)] = np.power(-np.inf, exponent) if exponent not in (0.5, -0.5) else np.inf**exponent
    for results in run(tools, 15, nodes, {"x": x}, constants):
        np.testing.assert_allclose(results["y"], expected, 1e-6, equal_nan=True)
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(results["y"][zeros]), np.signbit(expected[zeros]))


def test_powers_of_integers_are_exact_and_wrap(tools: Any) -> None:
    x = np.array([3, -3, 5, 10, -1, 0], np.int64)
    constants: dict[str, Array] = {
        "f": np.array(39.0, np.float32),
        "i": np.array(39, np.int32),
        "m": np.array(-1, np.int64),
    }
    nodes = [node("Pow", ["x", name], [f"r{name}"]) for name in constants]
    wrapped = np.array([int(number) ** 39 % 2**64 for number in x.tolist()], np.uint64).astype(np.int64)
    for results in run(tools, 15, nodes, {"x": x}, constants):
        np.testing.assert_array_equal(results["rf"], wrapped)
        np.testing.assert_array_equal(results["ri"], wrapped)
        np.testing.assert_array_equal(results["rm"], [0, 0, 0, 0, -1, 0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_no_division_traps(tools: Any, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([7, limits.max, limits.min, 0], dtype)
    constants = {"zero": np.array(0, dtype), "minus": np.array(-1 if limits.min else limits.max).astype(dtype)}
    nodes = [node(op, ["x", name], [f"{op}{name}"]) for op in ("Div", "Mod") for name in ("zero", "minus", "y")]
    for results in run(tools, 14, nodes, {"x": x, "y": np.zeros(4, dtype)}, constants):
        for name in ("Divzero", "Modzero", "Divy", "Mody"):
            np.testing.assert_array_equal(results[name], np.zeros(4, dtype), err_msg=name)
        if limits.min:
            np.testing.assert_array_equal(results["Divminus"], [-7, limits.min + 1, limits.min, 0])
            np.testing.assert_array_equal(results["Modminus"], np.zeros(4, dtype))
        else:
            np.testing.assert_array_equal(results["Divminus"], [0, 1, 0, 0])
            np.testing.assert_array_equal(results["Modminus"], [7, 0, 0, 0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_casts_saturate_and_none_becomes_zero(tools: Any, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1.9, -0.9], np.float32)
    for results in run(tools, 13, [node("Cast", ["x"], ["y"], to=CODES[dtype])], {"x": x}):
        expected = [0, limits.max, limits.min, limits.max, limits.min, 1, 0]
        np.testing.assert_array_equal(results["y"], np.array(expected, dtype))


def test_infinities_become_finite_where_a_bound_is_left_out(tools: Any) -> None:
    nodes = [node("Clip", ["x"], ["y"]), node("Clip", ["x", "low"], ["z"])]
    largest = np.finfo(np.float32).max
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    for results in run(tools, 13, nodes, {"x": x, "low": np.array(0, np.float32)}):
        np.testing.assert_array_equal(results["y"], np.array([largest, -largest, np.nan], np.float32))
        np.testing.assert_array_equal(results["z"], np.array([largest, 0, np.nan], np.float32))


def test_bits_are_read_as_another_dtype(tools: Any) -> None:
    nodes = [node("BitCast", ["x"], ["y"], to=CODES["int32"]), node("BitCast", ["q"], ["z"], to=CODES["uint8"])]
    inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": ("float32", ["N"]), "q": ("bool", ["N"])}
    x = np.array([1.0, -0.0, np.inf], np.float32)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "bits",
            [onnx.helper.make_tensor_value_info(name, CODES[dtype], dims) for name, (dtype, dims) in inputs.items()],
            [onnx.helper.make_tensor_value_info(name, code, ["N"]) for name, code in (("y", 6), ("z", 2))],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 26)],
    )
    graph = convert(model).graph
    feeds = {"x": x, "q": np.array([True, False, True])}
    for results in (tools.Compiled(graph)(feeds), evaluate(graph, feeds)):
        np.testing.assert_array_equal(results["y"], x.view(np.int32))
        np.testing.assert_array_equal(results["z"], np.array([1, 0, 1], np.uint8))


# --- refusals --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[int, list[onnx.NodeProto], str]] = [
    (17, [node("And", ["q", "x"], ["y"])], "dtype float32 of 'x' is not supported; supported: bool"),
    (17, [node("And", ["l", "l"], ["y"])], "dtype int64 of 'l' is not supported"),
    (18, [node("BitwiseAnd", ["q", "q"], ["y"])], "dtype bool of 'q' is not supported"),
    (17, [node("Add", ["x", "l"], ["y"])], "inputs differ in dtype"),
    (17, [node("Add", ["q", "q"], ["y"])], "dtype bool is not supported"),
    (17, [node("Add", ["x", "wide"], ["y"])], "do not broadcast"),
    (17, [node("Sqrt", ["l"], ["y"])], "dtype int64 is not supported"),
    (17, [node("Sum", ["l", "l"], ["y"])], "dtype int64 of 'l' is not supported"),
    (17, [node("Clip", ["x", "row"], ["y"])], "bounds must be scalars; 'row' has shape"),
    (17, [node("Clip", ["x", "l"], ["y"])], "must be float32"),
    (17, [node("Clip", ["x", "nan"], ["y"])], "a bound is NaN"),
    (17, [node("Pow", ["x", "q"], ["y"])], "dtype bool of the exponent 'q'"),
    (17, [node("Pow", ["u", "x"], ["y"])], "dtype uint8 of 'u' is not supported"),
    (17, [node("PRelu", ["x", "cube"], ["y"])], "must broadcast to"),
    (17, [node("Where", ["q", "x", "l"], ["y"])], "two values of one dtype"),
    (17, [node("Where", ["x", "x", "x"], ["y"])], "takes a condition"),
    (17, [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)], "a cast to float16 is not supported"),
    (17, [node("Cast", ["x"], ["y"], to=TensorProto.STRING)], "a cast to string is not supported"),
    (13, [node("Mod", ["x", "x"], ["y"], fmod=2)], "fmod=2 is no truth value"),
    (13, [node("BitShift", ["u", "u"], ["y"], direction="UP")], "direction='UP' must be"),
    (20, [node("Gelu", ["x"], ["y"], approximate="fast")], "approximate='fast' must be"),
    (12, [node("Celu", ["x"], ["y"], alpha=-1.0)], "alpha=-1.0 is not supported; it must be positive"),
    (9, [node("Shrink", ["l"], ["y"], bias=0.5)], "bias a whole number"),
    (9, [node("Shrink", ["u"], ["y"], lambd=-300.0)], "outside the range of uint8"),
    (10, [node("Dropout", ["x"], ["y", "mask"])], "mask output has no defined value before opset 12"),
    (17, [node("Dropout", ["x", "ratio", "on"], ["y"])], "training mode is not supported"),
    (17, [node("Dropout", ["x", "ratio", "b"], ["y"])], "training_mode must be known"),
]


@pytest.mark.parametrize(("opset", "nodes", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_by_operator_node_and_reason(opset: int, nodes: list[onnx.NodeProto], message: str) -> None:
    one = onnx.NodeProto()
    one.CopyFrom(nodes[0])
    one.name = "it"
    inputs = {"x": (1, ["N", 4]), "l": (7, ["N", 4]), "q": (9, ["N", 4]), "u": (2, ["N", 4]), "b": (9, [])}
    constants = {
        "row": np.ones(4, np.float32),
        "wide": np.ones(3, np.float32),
        "cube": np.ones((1, 1, 4), np.float32),
        "nan": np.array(np.nan, np.float32),
        "ratio": np.array(0.5, np.float32),
        "on": np.array(True),
    }
    graph = onnx.helper.make_graph(
        [one],
        "g",
        [onnx.helper.make_tensor_value_info(name, code, dims) for name, (code, dims) in inputs.items()],
        [onnx.helper.make_tensor_value_info("y", 1, ["M"])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with pytest.raises(UnsupportedOperatorError) as caught:
        convert(model)
    assert str(caught.value).startswith(f"{one.op_type} node 'it': ")
    assert message in str(caught.value)
