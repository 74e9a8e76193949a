"""ONNX models of every handler and of old and new opsets: the same numbers, dtypes and shapes as ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.importers.onnx_handlers import HANDLERS

Array = NDArray[Any]
Inputs = Mapping[str, tuple[str, Sequence[Any]]]
LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Spec:
    """A small model.

    Inputs are (dtype, shape) by name; outputs may be left out: then every value that no other node reads is one.
    """

    opset: int
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, tuple[str, Sequence[Any]]] = field(default_factory=lambda: {"x": ("float32", ["N", 4])})
    constants: Mapping[str, Array] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    low: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict)

    def build(self, tools: Any) -> onnx.ModelProto:
        read = {name for one in self.nodes for name in one.input}
        outputs = self.outputs or [name for one in self.nodes for name in one.output if name and name not in read]
        return tools.onnx_model(
            self.nodes, self.inputs, outputs, constants=self.constants, opset=self.opset, ranks=self.ranks
        )

    def feeds(self, candidates: int, seed: int) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        feeds: dict[str, Array] = {}
        for name, (dtype, dims) in self.inputs.items():
            shape = tuple(dim if isinstance(dim, int) else candidates for dim in dims)
            if dtype == "float32":
                feeds[name] = random.normal(0, 2, shape).astype(np.float32)
            elif dtype == "bool":
                feeds[name] = random.random(shape) < 0.5
            else:
                feeds[name] = random.integers(self.low, 6, shape).astype(dtype)
        return feeds


def integers(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.int64)


def floats(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def elementwise(op: str, opsets: Sequence[int], dtypes: Sequence[str] = ("float32",)) -> list[Spec]:
    """The oldest opset with the first dtype, the newest with the last one."""
    specs = []
    for opset, dtype in ((opsets[0], dtypes[0]), (opsets[-1], dtypes[-1])):
        inputs: Inputs = {"x": (dtype, ["N", 3, 4]), "y": (dtype, ["N", 1, 4]), "z": (dtype, [3, 1])}
        constants = {"c": np.array([1, 0, 2, 1], dtype), "one": np.array(1, dtype)}
        pairs = (("x", "y"), ("y", "x"), ("x", "z"), ("c", "x"), ("x", "one"), ("z", "c"), ("c", "c"))
        nodes = [node(op, pair, [f"r{index}"]) for index, pair in enumerate(pairs)]
        specs.append(Spec(opset, nodes, inputs, constants, low=-4))
    return specs


def one_input(op: str, opsets: Sequence[int], dtype: str = "float32") -> list[Spec]:
    constants = {"c": np.array([1, 0, 2, 1], dtype)}
    nodes = [node(op, ["x"], ["a"]), node(op, ["a"], ["b"]), node(op, ["c"], ["d"])]
    return [Spec(opset, nodes, {"x": (dtype, ["N", 4])}, constants, outputs=["a", "b", "d"]) for opset in opsets]


def variadic(op: str) -> list[Spec]:
    inputs: Inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 1])}
    nodes = [node(op, list(names), [f"r{names}"]) for names in ("x", "xy", "xyc", "cxyx", "xx")]
    return [Spec(opset, nodes, inputs, {"c": floats(4)}) for opset in (8, 13)]


def clip() -> list[Spec]:
    bounds = [{"min": -1.0, "max": 1.0}, {"min": 0.0}, {"max": 0.5}, {}]
    old = [node("Clip", ["x"], [f"r{index}"], **bound) for index, bound in enumerate(bounds)]
    forms = [["x"], ["x", "low"], ["x", "", "high"], ["x", "low", "high"], ["x", "high", "low"], ["x", "", ""]]
    new = [node("Clip", form, [f"r{index}"]) for index, form in enumerate(forms)]
    made = node("Constant", [], ["low"], value=numpy_helper.from_array(np.float32(-0.5).reshape(())))
    high = {"high": np.array(0.5, np.float32)}
    return [Spec(7, old), Spec(11, [made, *new], constants=high), Spec(13, [made, *new], constants=high)]


def power() -> list[Spec]:
    base = node("Abs", ["x"], ["a"])
    constants = {
        "two": np.array(2, np.float32),
        "half": np.array([0.5], np.float32),
        "one": np.array([[1]], np.float32),
    }
    nodes = [base, *(node("Pow", ["a", name], [f"r{name}"]) for name in constants)]
    whole = node("Pow", ["x", "two"], ["y"])
    return [Spec(7, nodes, constants=constants), Spec(15, [whole], constants={"two": integers(2)})]


def where() -> list[Spec]:
    inputs: Inputs = {"q": ("bool", ["N", 1]), "x": ("float32", ["N", 4]), "y": ("float32", ["N", 4])}
    constants = {
        "c": floats(4),
        "t": np.array([[True, False, True, True]]),
        "i": integers(1, 2, 3, 4),
        "j": integers(9),
    }
    nodes = [node("Where", list(names), [f"r{names}"]) for names in ("qxy", "qxc", "tcx", "tij")]
    return [Spec(opset, nodes, inputs, constants) for opset in (9, 16)]


def cast() -> list[Spec]:
    types = {"float32": 1, "int32": 6, "int64": 7, "bool": 9}
    inputs = {name: (name, ["N", 4]) for name in types}
    nodes = [node("Cast", [a], [f"{a}_{b}"], to=code) for a in types for b, code in types.items()]
    sized = [
        node("Shape", ["float32"], ["s"], start=1),
        node("Cast", ["s"], ["s32"], to=6),
        node("Cast", ["s"], ["sf"], to=1),
    ]
    return [Spec(9, nodes, inputs, low=-3), Spec(15, [*nodes, *sized], inputs, low=-3), Spec(19, nodes, inputs, low=-3)]


def dropout() -> list[Spec]:
    constants = {"ratio": np.array(0.3, np.float32), "off": np.array(False)}
    new = [node("Dropout", ["x", "ratio", "off"], ["y"]), node("Dropout", ["x"], ["z"], seed=3)]
    return [Spec(7, [node("Dropout", ["x"], ["y"], ratio=0.4)]), Spec(13, new, constants=constants)]


def constant() -> list[Spec]:
    values: list[dict[str, Any]] = [
        {"value": numpy_helper.from_array(floats(4))},
        {"value_float": 0.5},
        {"value_floats": [1.0, 2.0, 3.0, 4.0]},
    ]
    nodes = []
    for index, value in enumerate(values):
        nodes += [node("Constant", [], [f"c{index}"], **value), node("Add", ["x", f"c{index}"], [f"r{index}"])]
    nodes += [node("Constant", [], ["i"], value_int=3), node("Constant", [], ["is"], value_ints=[1, 2])]
    return [Spec(13, nodes, outputs=["r0", "r1", "r2", "i", "is", "c0"])]


def constant_of_shape() -> list[Spec]:
    fill = numpy_helper.from_array(np.array([2.5], np.float32))
    ones = numpy_helper.from_array(np.array([1], np.int64))
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["zeros"]),
        node("ConstantOfShape", ["s"], ["filled"], value=fill),
        node("ConstantOfShape", ["s"], ["whole"], value=ones),
        node("Add", ["x", "filled"], ["y"]),
        node("ConstantOfShape", ["fixed"], ["three"], value=ones),
        node("ConstantOfShape", ["none"], ["scalar"], value=fill),
    ]
    outputs = ["zeros", "y", "whole", "three", "scalar"]
    return [Spec(9, nodes, constants={"fixed": integers(3), "none": integers()}, outputs=outputs)]


def shape() -> list[Spec]:
    """The chain that exporters write for ``x.view(x.size(0), 2, -1)``, and arithmetic on sizes."""
    chain = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
        node("Gather", ["s", "minus"], ["width"]),
        node("Mul", ["n", "width"], ["count"]),
        node("Unsqueeze", ["count"], ["count1"], axes=[0]),
        node("Reshape", ["x", "count1"], ["flat"]),
        node("Div", ["width", "three"], ["third"]),
        node("Sub", ["third", "three"], ["minus2"]),
        node("Cast", ["minus2"], ["number"], to=1),
        node("Add", ["x", "number"], ["z"]),
        node("Slice", ["s", "from1", "to2"], ["tail"]),
        node("Squeeze", ["tail"], ["tail0"], axes=[0]),
        node("Identity", ["tail0"], ["tail1"]),
        node("Equal", ["tail1", "minus"], ["never"]),
    ]
    constants = {"zero": np.array(0), "minus": np.array(-1), "three": np.array(3), "rest": integers(2, -1)}
    constants |= {"from1": integers(1), "to2": integers(2)}
    ranges = [node("Shape", ["x"], [f"s{a}_{b}"], start=a, end=b) for a, b in ((1, 3), (-2, LAST), (2, 1), (-9, -9))]
    ranges += [node("Gather", ["s1_3", "pick"], ["g"]), node("Div", ["neg", "g"], ["d"])]
    expand = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["two"], ["ones"], value=numpy_helper.from_array(integers(1))),
        node("Mul", ["ones", "minus"], ["minuses"]),
        node("Equal", ["wanted", "minuses"], ["open"]),
        node("Where", ["open", "ones", "wanted"], ["sizes"]),
        node("Expand", ["x", "sizes"], ["y"]),
    ]
    x: Inputs = {"x": ("float32", ["N", 2, 4])}
    return [
        Spec(
            11,
            chain,
            {"x": ("float32", ["N", 4])},
            constants,
            outputs=["y", "flat", "z", "tail1", "never", "minus2"],
            ranks={"y": 3, "flat": 1, "never": 0},
        ),
        Spec(
            15,
            ranges,
            x,
            {"pick": integers(1, 0), "neg": integers(-7, -9)},
            outputs=["s1_3", "s-2_" + str(LAST), "s2_1", "s-9_-9", "g", "d"],
        ),
        Spec(
            12, expand, constants={"two": integers(2), "minus": integers(-1), "wanted": integers(-1, 4)}, outputs=["y"]
        ),
    ]


def reshape() -> list[Spec]:
    targets = {
        "a": (-1, 3, 4),
        "b": (0, 12),
        "c": (0, -1),
        "d": (-1, 4),
        "e": (0, 3, 2, 2),
        "f": (-1,),
        "g": (0, 1, -1),
    }
    nodes = [node("Reshape", ["x", name], [f"r{name}"]) for name in targets]
    constants = {name: integers(*target) for name, target in targets.items()}
    deep: Inputs = {"x": ("float32", ["N", 3, 4])}
    fixed = [node("Reshape", ["k", "to"], ["y"], allowzero=0), node("Add", ["v", "y"], ["z"])]
    sizes = {"k": floats(2, 3), "to": integers(3, 2)}
    return [
        *(Spec(opset, nodes, deep, constants) for opset in (7, 14)),
        Spec(14, fixed, {"v": ("float32", ["N", 3, 2])}, sizes),
    ]


def flatten() -> list[Spec]:
    nodes = [node("Flatten", ["x"], [f"r{axis}"], axis=axis) for axis in (1, 2, 3, -1, -2)] + [
        node("Flatten", ["x"], ["r"])
    ]
    nodes += [node("Flatten", ["c"], ["rc"], axis=0)]
    return [Spec(opset, nodes, {"x": ("float32", ["N", 2, 4])}, {"c": floats(2, 3)}) for opset in (11, 13)]


def squeeze(op: str) -> list[Spec]:
    wide: Inputs = {"x": ("float32", ["N", 1, 4, 1])}
    places = ([1], [3], [1, 3], [-1], [-3, -1]) if op == "Squeeze" else ([1], [-1], [2, 1], [4, 5])
    old = [node(op, ["x"], [f"r{index}"], axes=axes) for index, axes in enumerate(places)]
    new = [node(op, ["x", f"a{index}"], [f"r{index}"]) for index in range(len(places))]
    constants = {f"a{index}": integers(*axes) for index, axes in enumerate(places)}
    every = [node("Squeeze", ["k"], ["all"])] if op == "Squeeze" else []
    return [
        Spec(11, [*old, *every], wide, {"k": floats(1, 3, 1)}),
        Spec(13, [*new, *every], wide, constants | {"k": floats(1, 3, 1)}),
    ]


def expand() -> list[Spec]:
    inputs: Inputs = {"x": ("float32", ["N", 1, 4]), "y": ("float32", ["N", 3])}
    chain = [
        node("Shape", ["y"], ["s"]),
        node("Concat", ["s", "four"], ["t"], axis=0),
        node("Expand", ["x", "t"], ["r"]),
    ]
    fixed = [
        node("Expand", ["x", "to"], ["r2"]),
        node("Expand", ["x", "one"], ["r3"]),
        node("Expand", ["c", "t"], ["r4"]),
    ]
    constants = {"four": integers(4), "to": integers(5, 4), "one": integers(1), "c": floats(1, 1)}
    return [Spec(opset, chain + fixed, inputs, constants, outputs=["r", "r2", "r3", "r4"]) for opset in (8, 13)]


def concat() -> list[Spec]:
    inputs: Inputs = {"x": ("float32", ["N", 2, 4]), "y": ("float32", ["N", 3, 4]), "w": ("float32", ["N", 2, 1])}
    nodes = [node("Concat", ["x", "y", "x"], ["a"], axis=1), node("Concat", ["x", "w"], ["b"], axis=-1)]
    nodes += [node("Concat", ["x"], ["c"], axis=2), node("Concat", ["k", "k"], ["d"], axis=0)]
    return [Spec(opset, nodes, inputs, {"k": floats(2, 2)}, ranks={"b": 3}) for opset in (7, 13)]


def transpose() -> list[Spec]:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        node("Transpose", ["k"], ["b"]),
        node("Transpose", ["v"], ["c"]),
    ]
    inputs: Inputs = {"x": ("float32", ["N", 2, 4]), "v": ("float32", ["N"])}
    return [Spec(opset, nodes, inputs, {"k": floats(2, 3)}) for opset in (7, 13)]


def slices() -> list[Spec]:
    x: Inputs = {"x": ("float32", ["N", 5, 6])}
    cuts: list[tuple[list[int], list[int], list[int]]] = [
        ([1], [3], [1]),
        ([-4], [-1], [2]),
        ([0, 2], [9, LAST], [1, 2]),
        ([2], [LAST], [-1]),
        ([4], [2], [1]),
        ([-99], [2], [2]),
    ]
    old = [node("Slice", ["x"], [f"r{i}"], starts=s, ends=e, axes=a) for i, (s, e, a) in enumerate(cuts)]
    new, constants = [], {"one": integers(1)}
    for index, (starts, ends, axes) in enumerate(cuts):
        constants |= {f"s{index}": integers(*starts), f"e{index}": integers(*ends), f"a{index}": integers(*axes)}
        steps = ["one"] if len(axes) == 1 else []
        new.append(node("Slice", ["x", f"s{index}", f"e{index}", f"a{index}", *steps], [f"r{index}"]))
    whole = [node("Slice", ["k", "s0", "e0"], ["rk"]), node("Slice", ["x", "none", "none", "none"], ["same"])]
    constants |= {"k": floats(5, 2), "none": integers()}
    return [Spec(9, old, x), Spec(10, new + whole[:1], x, constants), Spec(13, new + whole, x, constants)]


def split() -> list[Spec]:
    x: Inputs = {"x": ("float32", ["N", 6, 4])}
    ragged: Inputs = {**x, "w": ("float32", ["N", 7])}
    even, uneven = node("Split", ["x"], ["a", "b", "c"], axis=1), node("Split", ["x", "sizes"], ["d", "e"], axis=-1)
    old = node("Split", ["x"], ["d", "e"], axis=-1, split=[1, 3])
    new = node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)
    last = node("Split", ["w"], ["f", "g", "h"], axis=1, num_outputs=3)
    sizes = {"sizes": integers(1, 3)}
    return [Spec(7, [even, old], x), Spec(13, [even, uneven], x, sizes), Spec(18, [new, uneven, last], ragged, sizes)]


def gather() -> list[Spec]:
    inputs: Inputs = {"x": ("float32", ["N", 5, 4]), "i": ("int64", ["N"]), "j": ("int32", ["N", 3])}
    constants = {
        "table": floats(6, 8),
        "flat": floats(6),
        "deep": floats(6, 2, 2),
        "s": np.array(2),
        "m": integers(-1),
        "two": integers(3, -6),
    }
    nodes = [node("Gather", ["table", "i"], ["a"]), node("Gather", ["table", "j"], ["b"], axis=0)]
    nodes += [
        node("Gather", ["flat", "j"], ["c"]),
        node("Gather", ["deep", "i"], ["d"]),
        node("Gather", ["x", "s"], ["e"], axis=1),
    ]
    nodes += [
        node("Gather", ["x", "m"], ["f"], axis=-1),
        node("Gather", ["x", "m"], ["g"], axis=1),
        node("Gather", ["table", "two"], ["h"]),
    ]
    return [Spec(opset, nodes, inputs, constants) for opset in (7, 13)]


def reduction(op: str, moved: int) -> list[Spec]:
    x: Inputs = {"x": ("float32", ["N", 3, 4])}
    places = ([1], [2], [1, 2], [-1], [-1, -2])
    old = [
        node(op, ["x"], [f"r{i}_{keep}"], axes=axes, keepdims=keep) for i, axes in enumerate(places) for keep in (0, 1)
    ]
    new = [node(op, ["x", f"a{i}"], [f"r{i}_{keep}"], keepdims=keep) for i in range(len(places)) for keep in (0, 1)]
    constants = {f"a{index}": integers(*axes) for index, axes in enumerate(places)} | {"k": floats(2, 3)}
    same = [node(op, ["x"], ["same"], noop_with_empty_axes=1), node(op, ["k"], ["all"], keepdims=0)]
    return [Spec(7, old, x), Spec(moved - 1, old, x), Spec(moved, [*new, *same], x, constants)]


def softmax() -> list[Spec]:
    deep: Inputs = {"x": ("float32", ["N", 3, 4]), "y": ("float32", ["N", 5]), "z": ("float32", ["N", 3, 1])}
    old = [node("Softmax", ["y"], ["a"]), node("Softmax", ["x"], ["b"], axis=2), node("Softmax", ["z"], ["c"], axis=1)]
    new = [node("Softmax", ["x"], ["a"]), node("Softmax", ["x"], ["b"], axis=1), node("Softmax", ["y"], ["c"], axis=-1)]
    return [Spec(7, old, deep), Spec(11, old, deep), Spec(13, new, deep)]


def matmul() -> list[Spec]:
    inputs: Inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 3, 4]), "z": ("float32", ["N", 4, 2])}
    pairs = (("x", "k"), ("y", "k"), ("y", "z"), ("y", "m"), ("k2", "z"))
    nodes = [node("MatMul", pair, [f"r{index}"]) for index, pair in enumerate(pairs)]
    return [
        Spec(opset, nodes, inputs, {"k": floats(4, 5), "m": floats(1, 4, 2), "k2": floats(3, 4)}) for opset in (7, 13)
    ]


def gemm() -> list[Spec]:
    constants = {"k": floats(4, 5), "t": floats(5, 4), "c": floats(5), "row": floats(1, 5), "s": floats(1)}
    variants: list[tuple[list[str], dict[str, Any]]] = [
        (["x", "k", "c"], {}),
        (["x", "t", "c"], {"transB": 1}),
        (["x", "k", "row"], {"alpha": 0.5, "beta": 2.0}),
        (["x", "t", "s"], {"alpha": -1.5, "transB": 1, "transA": 0}),
        (["x", "k", "c"], {"beta": 0.0}),
        (["x", "k", "y"], {"beta": 0.25}),
    ]
    nodes = [node("Gemm", names, [f"r{index}"], **extra) for index, (names, extra) in enumerate(variants)]
    inputs: Inputs = {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 5])}
    return [
        Spec(7, nodes, inputs, constants),
        Spec(11, [*nodes, node("Gemm", ["x", "k"], ["last"])], inputs, constants),
    ]


def batch_normalization() -> list[Spec]:
    constants = {name: floats(3, seed=index) for index, name in enumerate("gbm")} | {"v": np.abs(floats(3)) + 0.1}
    inputs: Inputs = {"x": ("float32", ["N", 3]), "y": ("float32", ["N", 3, 5])}
    nodes = [
        node("BatchNormalization", ["x", *"gbmv"], ["r1"]),
        node("BatchNormalization", ["y", *"gbmv"], ["r2"], epsilon=0.1, momentum=0.5),
    ]
    return [Spec(opset, nodes, inputs, constants) for opset in (9, 15)]


CASES: dict[str, Callable[[], list[Spec]]] = {
    **{op: lambda op=op: elementwise(op, (7, 17), ("float32", "int64")) for op in ("Add", "Sub", "Mul")},  # type: ignore[misc]
    **{op: lambda op=op: elementwise(op, (9, 13), ("float32", "int32")) for op in ("Greater", "Less")},  # type: ignore[misc]
    **{op: lambda op=op: elementwise(op, (12, 16)) for op in ("GreaterOrEqual", "LessOrEqual")},  # type: ignore[misc]
    **{op: lambda op=op: elementwise(op, (7, 17), ("bool",)) for op in ("And", "Or")},  # type: ignore[misc]
    **{op: lambda op=op: one_input(op, (7, 21)) for op in ("Abs", "Exp", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh")},  # type: ignore[misc]
    **{op: lambda op=op: variadic(op) for op in ("Max", "Min", "Sum")},  # type: ignore[misc]
    **{op: lambda op=op: squeeze(op) for op in ("Squeeze", "Unsqueeze")},  # type: ignore[misc]
    "ReduceSum": lambda: reduction("ReduceSum", 13),
    "ReduceMean": lambda: reduction("ReduceMean", 18),
    "ReduceMax": lambda: reduction("ReduceMax", 18),
    "Div": lambda: elementwise("Div", (7, 17)),
    "Equal": lambda: elementwise("Equal", (11, 19), ("float32", "int64")),
    "PRelu": lambda: [
        Spec(
            opset,
            [node("PRelu", ["x", name], [f"r{name}"]) for name in "csy"],
            {"x": ("float32", ["N", 4]), "y": ("float32", ["N", 1])},
            {"c": floats(4), "s": floats(1)},
        )
        for opset in (9, 16)
    ],
    "Not": lambda: [Spec(7, [node("Not", ["x"], ["y"])], {"x": ("bool", ["N", 4])})],
    "Identity": lambda: one_input("Identity", (7, 21)),
    "LeakyRelu": lambda: [
        Spec(opset, [node("LeakyRelu", ["x"], ["a"]), node("LeakyRelu", ["x"], ["b"], alpha=0.3)]) for opset in (7, 16)
    ],
    "Clip": clip,
    "Pow": power,
    "Where": where,
    "Cast": cast,
    "Dropout": dropout,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Shape": shape,
    "Reshape": reshape,
    "Flatten": flatten,
    "Expand": expand,
    "Concat": concat,
    "Transpose": transpose,
    "Slice": slices,
    "Split": split,
    "Gather": gather,
    "Softmax": softmax,
    "MatMul": matmul,
    "Gemm": gemm,
    "BatchNormalization": batch_normalization,
}


def assert_like_onnxruntime(tools: Any, spec: Spec, model: onnx.ModelProto) -> None:
    graph = convert(model).graph
    compiled = tools.Compiled(graph)
    for candidates in (5, 1):
        feeds = spec.feeds(candidates, seed=candidates)
        expected = tools.run_onnxruntime(model, feeds)
        actual = compiled(feeds)
        assert list(actual) == list(expected)
        for name, array in actual.items():
            assert array.dtype == expected[name].dtype, f"{name} is {array.dtype}, expected {expected[name].dtype}"
            assert array.shape == expected[name].shape, f"{name} is {array.shape}, expected {expected[name].shape}"
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_every_case_has_a_handler() -> None:
    own = {name for domain, name in HANDLERS if not domain}
    assert set(CASES) <= own


@pytest.mark.parametrize("op", sorted(CASES))
def test_like_onnxruntime(tools: Any, op: str) -> None:
    for spec in CASES[op]():
        model = spec.build(tools)
        assert op in {one.op_type for one in model.graph.node}
        assert_like_onnxruntime(tools, spec, model)
