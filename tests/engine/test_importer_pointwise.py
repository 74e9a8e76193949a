"""Elementwise ONNX operators in their old and new forms like ONNX Runtime, sizes among their inputs, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": (dtype, ["N", 3, 4]), "y": (dtype, [3, 1])}
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
        inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": (dtype, ["N", 4]), "low": (dtype, []), "high": (dtype, [])}
        cases[f"Clip-13-{dtype}-computed"] = Spec(13, nodes, inputs)
    bounds = [{"min": -1.0, "max": 1.0}, {"min": 0.0}, {"max": 0.5}, {}]
    old = [node("Clip", ["x"], [f"r{index}"], **bound) for index, bound in enumerate(bounds)]
    new = Spec(11, [node("Clip", ["x", "c"], ["r"])], constants={"c": np.float32(1)})
    return cases | {"Clip-7": Spec(7, old), "Clip-11": new}


def powers() -> dict[str, Spec]:
    exponents = ("float32", "float64", "int32", "int64")
    cases = {}
    for base in exponents:
        inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": (base, ["N", 4])}
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
    inputs: dict[str, tuple[str, Sequence[Any]]] = {name: (name, ["N", 3]) for name in ONNX_DTYPES.values()}
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
    inputs: dict[str, tuple[str, Sequence[Any]]] = {name: (name, ["N", 3]) for name in ONNX_DTYPES.values()}
    cases["Identity-14"] = Spec(14, [node("Identity", [name], [f"r{name}"]) for name in inputs], inputs)
    return cases


def choices() -> dict[str, Spec]:
    cases = {}
    for dtype in ("float32", "float64", "int32", "int64", "uint8"):
        inputs = {"q": ("bool", ["N", 1]), "x": (dtype, ["N", 4]), "y": (dtype, [4])}
        constants = {"c": np.array(2, dtype), "t": np.array([[True, False, True, True]])}
        nodes = [node("Where", list(names), [f"r{names}"]) for names in ("qxy", "qxc", "tcx", "tyc")]
        cases[f"Where-9-{dtype}"] = Spec(9, nodes, inputs, constants)
    return cases


def many_inputs() -> dict[str, Spec]:
    cases = {}
    for op, dtypes in (("Max", ("float64", "int32", "uint64", "int8")), ("Sum", ("float64",)), ("Mean", ("float32",))):
        for opset, dtype in ((8, "float32"), *((13, dtype) for dtype in dtypes)):
            for name in (op, "Min") if op == "Max" else (op,):
                inputs = {"x": (dtype, ["N", 4]), "y": (dtype, ["N", 1])}
                nodes = [node(name, list(names), [f"r{names}"]) for names in ("x", "xy", "xyc", "cxyx", "xx")]
                cases[f"{name}-{opset}-{dtype}"] = Spec(opset, nodes, inputs, {"c": np.array([1, 2, 3, 4], dtype)})
    return cases


def slopes() -> dict[str, Spec]:
    cases = {}
    for opset in (7, 9, 16):
        nodes = [node("PRelu", ["x", name], [f"r{name}"]) for name in "csyw"]
        inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 1])}
        constants = {"c": np.float32([1, 2, -3, 0.5]), "s": np.float32([0.25]), "w": np.float32(2).reshape(1, 1)}
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


# --- sizes among the inputs ------------------------------------------------------------------------------------

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
    spec = Spec(17, [*SIZE, *AT_RUN_TIME[case]], constants=SIZE_CONSTANTS)
    if case == "root":
        spec = Spec(17, [*spec.nodes, node("Mul", ["size", "y"], ["z"])], constants=SIZE_CONSTANTS)
    assert_like_onnxruntime(tools, spec.build(tools), [spec.feeds(count) for count in (0, 1, 7, 200)])


@pytest.mark.parametrize("case", sorted(KEPT))
def test_arithmetic_on_sizes_decides_shapes(tools: Any, case: str) -> None:
    last = [
        node("Unsqueeze", ["length", "axis"], ["target"]),
        node("ConstantOfShape", ["target"], ["zeros"]),
        node("Add", ["zeros", "half"], ["y"]),
    ]
    constants = SIZE_CONSTANTS | {"second": np.array(1)}
    spec = Spec(17, [*SIZE, *KEPT[case], *last], constants=constants)
    assert_like_onnxruntime(tools, spec.build(tools), [spec.feeds(count) for count in (0, 1, 7)])


def test_a_float_computed_size_that_is_not_whole_is_not_guessed(tools: Any) -> None:
    nodes = [
        node("Cast", ["size"], ["number"], to=1),
        node("Mul", ["number", "half"], ["part"]),
        node("Floor", ["part"], ["whole"]),
        node("Cast", ["whole"], ["length"], to=7),
        node("Unsqueeze", ["length", "axis"], ["target"]),
        node("ConstantOfShape", ["target"], ["y"]),
    ]
    spec = Spec(17, [*SIZE, *nodes], constants=SIZE_CONSTANTS)
    with pytest.raises(UnsupportedOperatorError, match="ConstantOfShape"):
        convert(spec.build(tools))


# --- compositions, at the limits -------------------------------------------------------------------------------

LIMITS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 50.0, -50.0, 1e30, -1e30, 3e38, -3e38, np.inf, -np.inf, np.nan]


def run(tools: Any, spec: Spec, feeds: dict[str, Array]) -> list[dict[str, Array]]:
    """Results of machine code and of the reference."""
    graph = convert(spec.build(tools)).graph
    return [tools.Compiled(graph)(feeds), evaluate(graph, feeds)]


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
        spec = Spec(opset, [node(op, ["x"], ["y"], **attributes)], {"x": (dtype, ["N"])})
        with np.errstate(all="ignore"):
            expected = np.asarray(formula(x.astype(np.float64)))
        for results in run(tools, spec, {"x": x}):
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
    spec = Spec(20, [node("IsInf", ["x"], ["y"], **attributes)], {"x": ("float32", ["N"])})
    x = np.array([np.inf, -np.inf, np.nan, 0, 3e38], np.float32)
    for results in run(tools, spec, {"x": x}):
        np.testing.assert_array_equal(results["y"], [bool(positive), bool(negative), False, False, False])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 1.5, np.inf, np.nan])
def test_powers_with_a_constant_exponent(tools: Any, dtype: str, exponent: float) -> None:
    """The quick forms of common exponents have every special case of the power."""
    x = np.array([0.0, -0.0, 1, -1, 2, -2, 0.25, 1e10, -1e10, np.inf, -np.inf, np.nan], dtype)
    spec = Spec(15, [node("Pow", ["x", "p"], ["y"])], {"x": (dtype, ["N"])}, {"p": np.array(exponent, dtype)})
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full(x.shape, exponent, dtype))
        expected[np.isneginf(x)] = np.power(-np.inf, exponent) if exponent not in (0.5, -0.5) else np.inf**exponent
    for results in run(tools, spec, {"x": x}):
        np.testing.assert_allclose(results["y"], expected, 1e-6, equal_nan=True)
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(results["y"][zeros]), np.signbit(expected[zeros]))


def test_powers_of_integers_are_exact_and_wrap(tools: Any) -> None:
    x = np.array([3, -3, 5, 10, -1, 0], np.int64)
    constants = {"f": np.array(39.0, np.float32), "i": np.array(39, np.int32), "m": np.array(-1, np.int64)}
    nodes = [node("Pow", ["x", name], [f"r{name}"]) for name in constants]
    spec = Spec(15, nodes, {"x": ("int64", ["N"])}, constants)
    wrapped = np.array([int(number) ** 39 % 2**64 for number in x.tolist()], np.uint64).astype(np.int64)
    for results in run(tools, spec, {"x": x}):
        np.testing.assert_array_equal(results["rf"], wrapped)
        np.testing.assert_array_equal(results["ri"], wrapped)
        np.testing.assert_array_equal(results["rm"], [0, 0, 0, 0, -1, 0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_no_division_traps(tools: Any, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([7, limits.max, limits.min, 0], dtype)
    constants = {"zero": np.array(0, dtype), "minus": np.array(-1 if limits.min else limits.max).astype(dtype)}
    inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": (dtype, ["N"]), "y": (dtype, ["N"])}
    nodes = [node(op, ["x", name], [f"{op}{name}"]) for op in ("Div", "Mod") for name in ("zero", "minus", "y")]
    spec = Spec(14, nodes, inputs, constants)
    for results in run(tools, spec, {"x": x, "y": np.zeros(4, dtype)}):
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
    spec = Spec(13, [node("Cast", ["x"], ["y"], to=CODES[dtype])], {"x": ("float32", ["N"])})
    for results in run(tools, spec, {"x": x}):
        expected = [0, limits.max, limits.min, limits.max, limits.min, 1, 0]
        np.testing.assert_array_equal(results["y"], np.array(expected, dtype))


def test_infinities_become_finite_where_a_bound_is_left_out(tools: Any) -> None:
    spec = Spec(
        13,
        [node("Clip", ["x"], ["y"]), node("Clip", ["x", "low"], ["z"])],
        {"x": ("float32", ["N"]), "low": ("float32", [])},
    )
    largest = np.finfo(np.float32).max
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    for results in run(tools, spec, {"x": x, "low": np.float32(0)}):
        np.testing.assert_array_equal(results["y"], np.array([largest, -largest, np.nan], np.float32))
        np.testing.assert_array_equal(results["z"], np.array([largest, 0, np.nan], np.float32))


def test_bits_are_read_as_another_dtype(tools: Any) -> None:
    nodes = [node("BitCast", ["x"], ["y"], to=CODES["int32"]), node("BitCast", ["q"], ["z"], to=CODES["uint8"])]
    inputs: dict[str, tuple[str, Sequence[Any]]] = {"x": ("float32", ["N"]), "q": ("bool", ["N"])}
    spec = Spec(26, nodes, inputs)
    x = np.array([1.0, -0.0, np.inf], np.float32)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "bits",
            [onnx.helper.make_tensor_value_info(name, CODES[dtype], dims) for name, (dtype, dims) in inputs.items()],
            [onnx.helper.make_tensor_value_info(name, code, ["N"]) for name, code in (("y", 6), ("z", 2))],
        ),
        opset_imports=[onnx.helper.make_opsetid("", spec.opset)],
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
    (13, [node("Mod", ["x", "x"], ["y"], fmod=2)], "fmod=2 is not supported"),
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
