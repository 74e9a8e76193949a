"""Elementwise ONNX operators in their old and new forms and in every dtype, like ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.importers.onnx import ONNX_DTYPES
from rerank_engine.reference import evaluate

Array = NDArray[Any]
Inputs = dict[str, tuple[str, Sequence[Any]]]

CODES = {name: code for code, name in ONNX_DTYPES.items()}
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Spec:
    """A model of a few nodes over ``x`` and ``y``; every value that no node reads is an output."""

    opset: int
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, tuple[str, Sequence[Any]]] = field(default_factory=lambda: {"x": ("float32", ["N", 4])})
    constants: Mapping[str, Array] = field(default_factory=dict)
    low: float = -5
    high: float = 5

    def build(self, tools: Any) -> onnx.ModelProto:
        read = {name for one in self.nodes for name in one.input}
        outputs = [name for one in self.nodes for name in one.output if name and name not in read]
        return tools.onnx_model(self.nodes, self.inputs, outputs, constants=self.constants, opset=self.opset)

    def feeds(self, candidates: int) -> dict[str, Array]:
        random = np.random.default_rng(candidates)
        feeds: dict[str, Array] = {}
        for name, (dtype, dims) in self.inputs.items():
            shape = tuple(dim if isinstance(dim, int) else candidates for dim in dims)
            if dtype == "bool":
                feeds[name] = random.random(shape) < 0.5
            elif dtype in FLOATS:
                feeds[name] = random.uniform(self.low, self.high, shape).astype(dtype)
            else:
                low = max(int(self.low), np.iinfo(dtype).min)
                feeds[name] = random.integers(low, int(self.high), shape).astype(dtype)
        return feeds


def one_input(op: str, opset: int, dtype: str = "float32", low: float = -5, high: float = 5, **attributes: Any) -> Spec:
    return Spec(opset, [node(op, ["x"], ["r"], **attributes)], {"x": (dtype, ["N", 4])}, low=low, high=high)


def all_of(ops: Sequence[str], opset: int, dtype: str = "float32") -> Spec:
    """One model of many operators with one input, each result called like its operator."""
    return Spec(opset, [node(op, ["x"], [op]) for op in ops], {"x": (dtype, ["N", 4])})


def two_inputs(op: str, opset: int, dtype: str, low: float = -5, constant: Any = 3, **attributes: Any) -> Spec:
    inputs: Inputs = {"x": (dtype, ["N", 3, 4]), "y": (dtype, [3, 1])}
    nodes = [node(op, list(pair), [f"r{pair}"], **attributes) for pair in ("xy", "yx", "xc", "xx")]
    return Spec(opset, nodes, inputs, {"c": np.array(constant, dtype)}, low=low)


def divisions() -> dict[str, Spec]:
    """Divisors that are never zero, as a zero ends ONNX Runtime."""
    cases = {}
    for dtype in ("int32", "int64", "uint8", "int8"):
        low = 0 if dtype.startswith("u") else -100
        constants = {f"c{number}": np.array(number, dtype) for number in (3, 7, 1)}
        constants |= {} if low == 0 else {f"c{number}": np.array(number, dtype) for number in (-3, -1)}
        for op, opset, attributes in (("Div", 14, {}), ("Mod", 13, {}), ("Mod", 10, {"fmod": 1})):
            nodes = [node(op, ["x", name], [f"r{name}"], **attributes) for name in constants]
            label = f"{op}-{opset}-{dtype}"
            cases[label] = Spec(opset, nodes, {"x": (dtype, ["N", 4])}, constants, low=low, high=100)
    for dtype in FLOATS:
        cases[f"Mod-13-{dtype}"] = two_inputs("Mod", 13, dtype, constant=0.75, fmod=1)
    return cases


def clips() -> dict[str, Spec]:
    forms = [["x"], ["x", "low"], ["x", "", "high"], ["x", "low", "high"], ["x", "high", "low"], ["x", "", ""]]
    cases = {}
    for dtype in ("float32", "float64", "int32", "int64", "uint8", "int8", "uint64"):
        low, high = (1, 3) if dtype.startswith("u") else (-2, 2)
        constants = {"low": np.array(low, dtype), "high": np.array(high, dtype)}
        nodes = [node("Clip", form, [f"r{index}"]) for index, form in enumerate(forms)]
        cases[f"Clip-12-{dtype}"] = Spec(12, nodes, {"x": (dtype, ["N", 4])}, constants)
        inputs: Inputs = {"x": (dtype, ["N", 4]), "low": (dtype, []), "high": (dtype, [])}
        cases[f"Clip-13-{dtype}-computed"] = Spec(13, nodes, inputs)
    bounds = [{"min": -1.0, "max": 1.0}, {"min": 0.0}, {"max": 0.5}, {}]
    old = [node("Clip", ["x"], [f"r{index}"], **bound) for index, bound in enumerate(bounds)]
    new = Spec(11, [node("Clip", ["x", "c"], ["r"])], constants={"c": np.array(1, np.float32)})
    return cases | {"Clip-7": Spec(7, old), "Clip-11": new}


def powers() -> dict[str, Spec]:
    exponents = ("float32", "float64", "int32", "int64")
    cases = {}
    for base in exponents:
        inputs: Inputs = {"x": (base, ["N", 4])}
        constants = {
            f"c{number}": np.array(number, dtype) for number, dtype in zip(range(5), exponents * 2, strict=False)
        }
        if base in FLOATS:
            constants |= {f"c{number}": np.array(number, "float32") for number in (0.5, -0.5, -1, 1.7, -2)}
        nodes = [node("Pow", ["x", name], [f"r{name}"]) for name in constants]
        for exponent in exponents:
            inputs[f"y{exponent}"] = (exponent, ["N", 1])
            nodes.append(node("Pow", ["x", f"y{exponent}"], [f"r{exponent}"]))
        cases[f"Pow-15-{base}"] = Spec(15, nodes, inputs, constants, low=0, high=4)
    old = [node("Pow", ["x", name], [f"r{name}"]) for name in "ts"]
    constants = {"t": np.array([2.5], np.float32), "s": np.full((1, 1), 2, np.float32)}
    return cases | {"Pow-7": Spec(7, old, constants=constants, low=0), "Pow-12": cases["Pow-15-int32"]}


def casts() -> dict[str, Spec]:
    inputs: Inputs = {name: (name, ["N", 3]) for name in ONNX_DTYPES.values()}
    nodes = [node("Cast", [a], [f"{a}_{b}"], to=code) for a in inputs for b, code in CODES.items()]
    cases = {"Cast-9": Spec(9, nodes, inputs, low=0, high=100)}
    nodes = [node("Cast", ["x"], [f"x_{b}"], to=code) for b, code in CODES.items()]
    cases |= {f"Cast-{opset}": Spec(opset, nodes, low=0) for opset in (7, 13, 19, 24)}
    inputs = {"x": ("float32", ["N", 4]), "y": ("int64", [2]), "z": ("float64", ["N"])}
    nodes = [node("CastLike", [a, b], [f"{a}{b}"]) for a in inputs for b in inputs]
    return cases | {f"CastLike-{opset}": Spec(opset, nodes, inputs) for opset in (15, 19)}


def copies() -> dict[str, Spec]:
    constants = {"ratio": np.array(0.3, np.float32), "off": np.array(False)}
    new = [node("Dropout", ["x", "ratio", "off"], ["y", "mask"]), node("Dropout", ["x"], ["z"], seed=3)]
    cases = {
        "Dropout-7": Spec(7, [node("Dropout", ["x"], ["y"], ratio=0.4)]),
        "Dropout-10": Spec(10, [node("Dropout", ["x"], ["y"])]),
        "Dropout-12": Spec(12, new, constants=constants),
        "Dropout-22": Spec(22, new, constants=constants),
    }
    inputs: Inputs = {name: (name, ["N", 3]) for name in ONNX_DTYPES.values()}
    cases["Identity-14"] = Spec(14, [node("Identity", [name], [f"r{name}"]) for name in inputs], inputs)
    return cases


def choices() -> dict[str, Spec]:
    cases = {}
    for dtype in ("float32", "float64", "int32", "int64", "uint8"):
        inputs: Inputs = {"q": ("bool", ["N", 1]), "x": (dtype, ["N", 4]), "y": (dtype, [4])}
        constants = {"c": np.array(2, dtype), "t": np.array([[True, False, True, True]])}
        nodes = [node("Where", list(names), [f"r{names}"]) for names in ("qxy", "qxc", "tcx", "tyc")]
        cases[f"Where-9-{dtype}"] = Spec(9, nodes, inputs, constants)
    return cases


def many_inputs() -> dict[str, Spec]:
    cases = {}
    for op, dtypes in (("Max", ("float64", "int32", "uint64", "int8")), ("Sum", ("float64",)), ("Mean", ("float32",))):
        for opset, dtype in ((8, "float32"), *((13, dtype) for dtype in dtypes)):
            for name in (op, "Min") if op == "Max" else (op,):
                inputs: Inputs = {"x": (dtype, ["N", 4]), "y": (dtype, ["N", 1])}
                nodes = [node(name, list(names), [f"r{names}"]) for names in ("x", "xy", "xyc", "cxyx", "xx")]
                cases[f"{name}-{opset}-{dtype}"] = Spec(opset, nodes, inputs, {"c": np.array([1, 2, 3, 4], dtype)})
    return cases


SLOPES = {"c": [1, 2, -3, 0.5], "s": [0.25], "w": [[2]]}


def slopes() -> dict[str, Spec]:
    cases = {}
    for opset in (7, 9, 16):
        nodes = [node("PRelu", ["x", name], [f"r{name}"]) for name in "csyw"]
        inputs: Inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 1])}
        constants = {name: np.array(slope, np.float32) for name, slope in SLOPES.items()}
        cases[f"PRelu-{opset}"] = Spec(opset, nodes, inputs, constants)
    return cases


SINCE_7 = (
    *("Abs", "Neg", "Reciprocal", "Sqrt", "Exp", "Log", "Floor", "Ceil"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Tanh"),
    *("Relu", "Sigmoid", "Softplus", "Softsign", "Elu", "Selu", "HardSigmoid", "LeakyRelu"),
)
SINCE_9 = (*SINCE_7, "Sign", "Erf", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "IsNaN", "Shrink")
SINCE_14 = (*SINCE_9, "Round", "IsInf", "ThresholdedRelu", "Celu", "HardSwish", "Identity")
SINCE_20 = (*SINCE_14, "Mish", "Gelu")
DOUBLE = ("Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Floor", "Ceil", "Reciprocal", "Relu", "Round")


def comparisons() -> dict[str, Spec]:
    cases = {
        f"Equal-{opset}-{dtype}": two_inputs("Equal", opset, dtype) for opset, dtype in ((7, "bool"), (11, "int64"))
    }
    cases |= {f"{op}-7-float64": two_inputs(op, 7, "float64") for op in ("Greater", "Less")}
    cases |= {f"Equal-19-{dtype}": two_inputs("Equal", 19, dtype) for dtype in ("float64", "uint8", "bool")}
    for op, since in (("Greater", 9), ("Less", 9), ("GreaterOrEqual", 12), ("LessOrEqual", 12)):
        for opset, dtype in ((since, "float32"), (16, "uint64"), (16, "int32")):
            cases[f"{op}-{opset}-{dtype}"] = two_inputs(op, opset, dtype)
    return cases


def sums_and_bits() -> dict[str, Spec]:
    cases = {f"Div-7-{dtype}": two_inputs("Div", 7, dtype) for dtype in FLOATS}
    for op in ("Add", "Sub", "Mul"):
        for opset, dtype in (
            (7, "float64"),
            (7, "int64"),
            (14, "int32"),
            (14, "uint64"),
            (14, "int8"),
            (14, "float32"),
        ):
            cases[f"{op}-{opset}-{dtype}"] = two_inputs(op, opset, dtype)
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        cases[f"{op}-18"] = two_inputs(op, 18, "int16")
    for direction in ("LEFT", "RIGHT"):
        for dtype in ("uint8", "uint64"):
            label = f"BitShift-11-{direction}-{dtype}"
            cases[label] = two_inputs("BitShift", 11, dtype, low=0, direction=direction)
    return cases


CASES: dict[str, Spec] = {
    "one-input-7": all_of(SINCE_7, 7),
    "one-input-9": all_of(SINCE_9, 9),
    "one-input-14": all_of(SINCE_14, 14),
    "one-input-20": all_of(SINCE_20, 20),
    "one-input-22": all_of(SINCE_20, 22),
    "one-input-double": all_of(DOUBLE, 14, "float64"),
    "one-input-integers": all_of(("Abs", "Neg", "Sign", "Relu", "Identity"), 14, "int32"),
    "one-input-bytes": all_of(("Abs", "Neg", "Sign", "Relu", "Identity"), 14, "int8"),
    **{f"{op}-7": two_inputs(op, 7, "bool") for op in ("And", "Or", "Xor")},
    "Not-7": one_input("Not", 7, "bool"),
    "BitwiseNot-18": one_input("BitwiseNot", 18, "int16"),
    "Elu-alpha": one_input("Elu", 7, alpha=0.3),
    "Selu-alpha": one_input("Selu", 7, alpha=1.5, gamma=2.0),
    "Celu-alpha": one_input("Celu", 12, alpha=0.7),
    "LeakyRelu-alpha": one_input("LeakyRelu", 16, alpha=-0.3),
    "HardSigmoid-alpha": one_input("HardSigmoid", 7, alpha=0.4, beta=0.1),
    "Gelu-tanh": one_input("Gelu", 20, approximate="tanh"),
    "ThresholdedRelu-alpha": one_input("ThresholdedRelu", 22, alpha=-0.5),
    "Shrink-bias": one_input("Shrink", 9, bias=1.5, lambd=1.5),
    "Shrink-int32": one_input("Shrink", 9, "int32", bias=2.0, lambd=1.5),
    "Shrink-uint8": one_input("Shrink", 9, "uint8", low=0, bias=1.0, lambd=2.0),
    **comparisons(),
    **sums_and_bits(),
    **divisions(),
    **clips(),
    **powers(),
    **casts(),
    **copies(),
    **choices(),
    **many_inputs(),
    **slopes(),
}


def assert_like_onnxruntime(tools: Any, model: onnx.ModelProto, feeds: Sequence[dict[str, Array]]) -> None:
    """Machine code and the reference: dtypes, shapes and numbers."""
    graph = convert(model).graph
    compiled = tools.Compiled(graph)
    for given in feeds:
        expected = tools.run_onnxruntime(model, given)
        for results in (compiled(given), evaluate(graph, given)):
            assert list(results) == list(expected)
            for name, array in results.items():
                assert array.dtype == expected[name].dtype, f"{name} is {array.dtype}, expected {expected[name].dtype}"
                assert array.shape == expected[name].shape, f"{name} is {array.shape}, expected {expected[name].shape}"
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", sorted(CASES))
def test_like_onnxruntime(tools: Any, case: str) -> None:
    spec = CASES[case]
    assert_like_onnxruntime(tools, spec.build(tools), [spec.feeds(9)])
