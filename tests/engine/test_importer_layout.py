"""ONNX operators that move, select and make elements: named dimensions on any axis, old opsets, shape arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import InputError
from rerank_engine.graph import Graph
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


@dataclass(frozen=True)
class Spec:
    """A small model: its outputs are all values that no node reads, unless they are named."""

    opset: int
    nodes: Sequence[onnx.NodeProto]
    inputs: str = "x"
    constants: Mapping[str, Array] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    kinds: Mapping[str, tuple[str, Sequence[Any]]] = field(default_factory=dict)
    least: int = 0
    """Smallest T for which the model means something."""
    fewest: int = 0
    """Smallest N."""

    def model(self) -> onnx.ModelProto:
        read = {name for one in self.nodes for name in one.input}
        outputs = self.outputs or [name for one in self.nodes for name in one.output if name and name not in read]
        kinds = {name: (INPUTS | self.kinds)[name] for name in self.inputs.split()}
        graph = helper.make_graph(
            list(self.nodes),
            "g",
            [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in kinds.items()],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        known = {entry.name: entry for entry in inferred.graph.output}
        for entry in model.graph.output:
            # Without a shape ONNX Runtime checks nothing, and ours is what is tested.
            entry.type.tensor_type.elem_type = known[entry.name].type.tensor_type.elem_type or TensorProto.FLOAT
        return model

    def feeds(self, candidates: int, length: int) -> dict[str, Array]:
        random = np.random.default_rng(candidates + 100 * length)
        feeds: dict[str, Array] = {}
        for name in self.inputs.split():
            dtype, dims = (INPUTS | self.kinds)[name]
            sizes = {"N": candidates, "T": length}
            shape = tuple(sizes.get(dim, dim) for dim in dims)
            if dtype == "float32":
                feeds[name] = random.normal(0, 2, shape).astype(np.float32)
            elif dtype == "bool":
                feeds[name] = random.random(shape) < 0.5
            else:
                feeds[name] = random.integers(0, 3, shape).astype(dtype)
        return feeds


def graph_of(spec: Spec) -> Graph:
    model = spec.model()
    for entry in model.graph.output:
        entry.type.tensor_type.shape.SetInParent()  # the checker asks for one; the importer finds its own
    named = {dim for name in spec.inputs.split() for dim in (INPUTS | spec.kinds)[name][1] if isinstance(dim, str)}
    return convert(model, candidates="N" if "N" in named else None).graph


ones = numpy_helper.from_array(integers(1))
half = numpy_helper.from_array(np.array([0.5], np.float32))

MOVES = {
    "transpose": Spec(13, [node("Transpose", ["x"], ["a"], perm=[1, 0, 2]), node("Transpose", ["x"], ["b"])]),
    "flatten": Spec(13, [node("Flatten", ["x"], [f"r{axis}"], axis=axis) for axis in (0, 1, 2, 3, -1)]),
    "old squeeze": Spec(
        7,
        [
            node("Unsqueeze", ["x"], ["u"], axes=[0, 3]),
            node("Squeeze", ["u"], ["s"], axes=[3]),
            node("Squeeze", ["w"], ["v"]),
        ],
        constants={"w": np.ones((1, 3, 1), np.float32)},
        outputs=["u", "s", "v"],
    ),
    "new squeeze": Spec(
        13,
        [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "b"], ["s"])],
        constants={"a": integers(-1, 0), "b": integers(-1)},
        outputs=["u", "s"],
    ),
    "concat over N and T": Spec(
        13,
        [node("Concat", ["x", "x"], [f"r{axis}"], axis=axis) for axis in (0, 1, 2)]
        + [node("Concat", ["x"], ["same"], axis=1)],
    ),
    "concat of lengths": Spec(
        13,
        [node("Concat", ["x", "y", "x"], ["r"], axis=1), node("ReduceSum", ["r", "one"], ["s"], keepdims=0)],
        "x y",
        {"one": integers(1)},
        outputs=["r", "s"],
    ),
    "token in front": Spec(
        13,
        [node("Concat", ["token", "h"], ["r"], axis=0), node("Slice", ["r", "b", "e", "zero"], ["back"])],
        "h",
        {"token": np.full((1, 6), 9, np.float32), "b": integers(1), "e": integers(LAST), "zero": integers(0)},
        outputs=["r", "back"],
    ),
    "tile": Spec(
        7,
        [node("Tile", ["x", name], [f"r{name}"]) for name in ("a", "b", "c", "zero")],
        constants={"a": integers(1, 1, 3), "b": integers(2, 3, 1), "c": integers(1, 1, 1), "zero": integers(1, 0, 2)},
    ),
    "tile as often as there are events": Spec(
        13,
        [
            node(
                "Shape",
                ["x"],
                ["s"],
            ),
            node("Slice", ["s", "b", "e"], ["t"]),
            node("Concat", ["one", "t", "one"], ["repeats"], axis=0),
            node("Tile", ["y1", "repeats"], ["r"]),
        ],
        "x y1",
        {"b": integers(1), "e": integers(2), "one": integers(1)},
        kinds={"y1": ("float32", ["N", 1, 4])},
    ),
    "old split": Spec(
        7, [node("Split", ["x"], ["a", "b"], axis=2), node("Split", ["x"], ["c", "d"], axis=2, split=[1, 3])]
    ),
    "split 13": Spec(
        13,
        [node("Split", ["x", "s"], ["a", "b", "c"], axis=-1), node("Split", ["x"], ["d", "e"], axis=2)],
        constants={"s": integers(2, 0, 2)},
    ),
    "split 18": Spec(18, [node("Split", ["h"], ["a", "b", "c", "d"], axis=1, num_outputs=4)], "h"),
    "depth to space": Spec(
        13,
        [
            node("DepthToSpace", ["p"], ["a"], blocksize=2),
            node("DepthToSpace", ["p"], ["b"], blocksize=2, mode="CRD"),
            node("SpaceToDepth", ["p"], ["c"], blocksize=2),
        ],
        "p",
        kinds={"p": ("float32", ["N", 8, 4, 6])},
    ),
}

SLICES = {
    "of opset 1": Spec(
        9,
        [
            node("Slice", ["y"], [f"r{k}"], starts=s, ends=e, **({"axes": a} if a else {}))
            for k, (s, e, a) in enumerate(
                [
                    ([0, 1], [LAST, 3], [0, 1]),
                    ([-2], [-1], [1]),
                    ([1], [9], [2]),
                    ([0, 0, 1], [LAST, 1, 2], []),
                    ([5], [9], [1]),
                    ([-9], [2], [2]),
                ]
            )
        ],
        "y",
    ),
    "with steps": Spec(
        11,
        [
            node("Slice", ["y", "b", "e", "a", "s"], ["r"]),
            node("Slice", ["y", "l", "f", "a", "m"], ["turned"]),
            node("Slice", ["y", "l", "f", "t", "n"], ["every second from the end"]),
        ],
        "y",
        {
            "b": integers(0, 1),
            "e": integers(LAST, 4),
            "a": integers(1, 2),
            "s": integers(2, 2),
            "l": integers(LAST, LAST)[:2],
            "f": integers(FIRST, FIRST),
            "m": integers(-1, -2),
            "t": integers(2, 1),
            "n": integers(-2, -3),
        },
    ),
    "of named dimensions": Spec(
        13,
        [node("Slice", ["x", f"b{k}", f"e{k}", "one"], [f"r{k}"]) for k in range(6)]
        + [
            node("Slice", ["x", "l", "f", "one", "m"], ["turned"]),
            node("Slice", ["x", "l", "f", "zero", "m"], ["candidates turned"]),
        ],
        constants={
            **{f"b{k}": integers(b) for k, (b, _) in enumerate([(0, 0), (1, 0), (-2, 0), (0, 0), (0, 0), (-3, 0)])},
            **{f"e{k}": integers(e) for k, e in enumerate([LAST, LAST, LAST, -1, 2, -1])},
            "one": integers(1),
            "zero": integers(0),
            "l": integers(-1),
            "f": integers(FIRST),
            "m": integers(-1),
        },
        least=3,
    ),
    "as long as another input": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "k"], ["t"]),
            node("Unsqueeze", ["t", "zero"], ["t1"]),
            node("Slice", ["table", "zero", "t1", "zero"], ["positions"]),
            node("Add", ["x", "positions"], ["r"]),
            node("Sub", ["t1", "one"], ["before"]),
            node("Slice", ["x", "before", "t1", "one"], ["last event"]),
            node("Slice", ["x", "zero", "before", "one"], ["history"]),
        ],
        constants={
            "k": number(1),
            "zero": integers(0),
            "one": integers(1),
            "table": np.arange(48, dtype=np.float32).reshape(12, 4),
        },
        outputs=["positions", "r", "last event", "history"],
        least=1,
    ),
    "from a size on": Spec(
        15,
        [
            node("Shape", ["h"], ["s"], start=0, end=1),
            node("Shape", ["w"], ["c"], start=1, end=2),
            node("Sub", ["c", "s"], ["from"]),
            node("Slice", ["w", "from", "c", "one"], ["newest"]),
        ],
        "h w",
        {"one": integers(1)},
        kinds={"w": ("float32", ["N", 9])},
    ),
    "every second of 2N": Spec(
        13,
        [
            node("Concat", ["y", "y"], ["d"], axis=0),
            node("Slice", ["d", "zero", "l", "zero", "two"], ["a"]),
            node("Slice", ["d", "one", "l", "zero", "two"], ["b"]),
            node("Slice", ["d", "l", "f", "zero", "minus"], ["c"]),
        ],
        "y",
        {
            "zero": integers(0),
            "one": integers(1),
            "two": integers(2),
            "l": integers(LAST),
            "f": integers(FIRST),
            "minus": integers(-2),
        },
    ),
}


def pad(
    opset: int, mode: str, pads: Sequence[int], inputs: str = "x", least: int = 0, value: float | None = None
) -> Spec:
    if opset < 11:
        more = {} if value is None else {"value": value}
        return Spec(opset, [node("Pad", [inputs], ["r"], mode=mode, pads=pads, **more)], inputs, least=least)
    constants = {"p": integers(*pads)} | ({} if value is None else {"v": np.array(value, np.float32)})
    return Spec(opset, [node("Pad", [inputs, *constants], ["r"], mode=mode)], inputs, constants, least=least)


PADS = {
    "old": pad(7, "constant", [1, 0, 2, 0, 3, 0], value=1.5),
    "old edge": pad(10, "edge", [0, 0, 2, 0, 1, 0], "y"),
    "constant": pad(13, "constant", [1, 2, 0, 0, 3, 1]),
    "constant, with a value": pad(18, "constant", [0, 1, 2, 0, 0, 1], value=-0.5),
    "negative": pad(13, "constant", [0, -1, 1, 0, 2, -2], "y"),
    "negative over T": pad(13, "constant", [0, -1, 0, 0, -1, 0], least=2),
    "reflect": pad(13, "reflect", [0, 2, 3, 0, 1, 1], "y"),
    "reflect over T": pad(13, "reflect", [0, 2, 0, 0, 1, 0], least=3),
    "edge over N and T": pad(13, "edge", [2, 1, 0, 1, 2, 0], least=1),
    "wrap": pad(19, "wrap", [0, 2, 3, 0, 1, 1], "y"),
    "wrap over T": pad(19, "wrap", [0, 2, 0, 0, 1, 0], least=2),
    "axes": Spec(
        18, [node("Pad", ["x", "p", "", "a"], ["r"])], constants={"p": integers(1, 0, 2, 3), "a": integers(-2, 2)}
    ),
}
PADS["up to a length"] = Spec(
    15,
    [
        node("Shape", ["h"], ["s"], start=0, end=1),
        node("Sub", ["nine", "s"], ["missing"]),
        node("Concat", ["zeros", "missing", "zero"], ["p"], axis=0),
        node("Pad", ["h", "p"], ["r"]),
    ],
    "h",
    {"nine": integers(9), "zeros": integers(0, 0), "zero": integers(0)},
)

INDEXING = {
    "gather over T": Spec(
        13,
        [node("Gather", ["x", name], [f"r{name}"], axis=1) for name in ("a", "b", "c", "d")],
        least=3,
        constants={"a": number(-1), "b": integers(0, 2), "c": integers(1), "d": integers(0, 1, 2, -1).reshape(2, 2)},
    ),
    "gather over N": Spec(
        13,
        [
            node("Gather", ["y", "zero"], ["first"]),
            node("Gather", ["y", "some"], ["r"]),
            node("Gather", ["y", "ids"], ["wide"]),
        ],
        "y ids",
        {"zero": number(0), "some": integers(0, -1)},
        kinds={"ids": ("int64", ["T"])},
        fewest=3,
    ),
    "columns by id": Spec(13, [node("Gather", ["h", "ids"], ["r"], axis=1)], "h ids"),
    "gather nd": Spec(
        13,
        [node("GatherND", ["t", "places"], ["a"]), node("GatherND", ["x", "ids1"], ["b"], batch_dims=1)],
        "x ids1 places",
        {"t": np.arange(60, dtype=np.float32).reshape(3, 4, 5)},
        kinds={"places": ("int64", ["T", "N", 2]), "ids1": ("int64", ["N", 2, 1])},
        least=3,
    ),
    "old gather nd": Spec(
        11,
        [node("GatherND", ["t", "places"], ["a"])],
        "places",
        {"t": np.arange(6, dtype=np.float32).reshape(3, 2)},
        kinds={"places": ("int64", ["N", 1])},
    ),
    "gather elements": Spec(
        11,
        [node("GatherElements", ["y", "at"], ["a"], axis=1), node("GatherElements", ["y", "at"], ["b"], axis=-1)],
        "y at",
        kinds={"at": ("int64", ["N", 3, 4])},
    ),
    "gather elements over N": Spec(
        11,
        [node("GatherElements", ["v", "at"], ["a"], axis=0)],
        "v at",
        kinds={"at": ("int32", ["T", 3]), "v": ("float32", ["N", 3])},
        fewest=3,
    ),
    "scatter elements": Spec(
        18,
        [
            node("ScatterElements", ["y", "at", "y"], [mode], axis=axis, reduction=mode)
            for axis, mode in ((1, "none"), (2, "add"), (1, "mul"), (2, "max"), (1, "min"))
        ],
        "y at",
        kinds={"at": ("int64", ["N", 3, 4])},
    ),
    "old scatter": Spec(
        9, [node("Scatter", ["y", "at", "y"], ["r"], axis=1)], "y at", kinds={"at": ("int64", ["N", 3, 4])}
    ),
    "scatter nd": Spec(
        18,
        [node("ScatterND", ["h", "at", "u"], [mode], reduction=mode) for mode in ("none", "add", "mul", "max", "min")],
        "h at u",
        kinds={"at": ("int64", ["N", 2]), "u": ("float32", ["N"])},
        least=3,
    ),
    "scatter rows": Spec(
        11,
        [node("ScatterND", ["x", "at", "u"], ["r"])],
        "x at u",
        least=1,
        fewest=3,
        kinds={"at": ("int64", [2, 1]), "u": ("float32", [2, "T", 4])},
    ),
    "one hot": Spec(
        11,
        [node("OneHot", ["ids", "depth", "values"], [f"r{axis}"], axis=axis) for axis in (-1, 0, 1, 2)]
        + [node("OneHot", ["minus", "depth", "values"], ["negative"])],
        "ids",
        {"depth": number(3), "values": np.array([0.25, 2], np.float32), "minus": integers(-1, -3, -4, 3)},
    ),
    "one hot of floats": Spec(
        9,
        [node("OneHot", ["f", "depth", "values"], ["r"])],
        "f",
        {"depth": np.array([3], np.float32), "values": np.array([0, 1], np.float32)},
        kinds={"f": ("float32", ["N"])},
    ),
    "one hot over T": Spec(
        11,
        [
            node("Shape", ["h"], ["s"]),
            node("Gather", ["s", "zero"], ["t"]),
            node("OneHot", ["i", "t", "values"], ["r"]),
        ],
        "h i",
        {"values": np.array([0, 1], np.float32), "zero": number(0)},
    ),
    "reverse sequence": Spec(
        10,
        [
            node("ReverseSequence", ["x", "lengths"], ["a"], batch_axis=0, time_axis=1),
            node("ReverseSequence", ["xt", "lengths"], ["b"]),
        ],
        "x xt lengths",
        kinds={"lengths": ("int64", ["N"]), "xt": ("float32", ["T", "N", 2])},
        least=3,
    ),
    "trilu": Spec(
        14,
        [
            node("Trilu", ["m", *more], [f"r{upper}{k}"], upper=upper)
            for upper in (0, 1)
            for k, more in enumerate(([], ["k"], ["minus"]))
        ],
        "m",
        {"k": number(1), "minus": number(-1)},
        kinds={"m": ("float32", ["N", "T", "T"])},
    ),
    "trilu of fixed size": Spec(14, [node("Trilu", ["y"], ["a"]), node("Trilu", ["y"], ["b"], upper=0)], "y"),
    "eye like": Spec(9, [node("EyeLike", ["h"], ["a"]), node("EyeLike", ["h"], ["b"], k=-1, dtype=7)], "h"),
    "compress": Spec(
        11,
        [node("Compress", ["x", "c"], ["r"], axis=2), node("Compress", ["w", "c"], ["flat"])],
        constants={"c": np.array([True, False, True]), "w": np.arange(6, dtype=np.float32).reshape(2, 3)},
    ),
    "non-zero of constants": Spec(
        13,
        [
            node("NonZero", ["w"], ["at"]),
            node("Transpose", ["at"], ["places"]),
            node("Gather", ["h", "ids1"], ["r"], axis=1),
        ],
        "h",
        {"w": np.array([[0, 2.0], [3, 0]], np.float32), "ids1": integers(1, 2)},
    ),
    "unique of constants": Spec(
        11,
        [
            node("Unique", ["w"], ["a", "b", "c", "d"]),
            node("Unique", ["w"], ["e", "f", "g", "k"], sorted=0),
            node("Unique", ["v"], ["l", "m"], axis=0),
            node("Identity", ["h"], ["same"]),
        ],
        "h",
        {"w": np.array([2, 1, 1, 3, 2], np.float32), "v": np.array([[1, 0], [0, 1], [1, 0]], np.float32)},
    ),
}


def counting(opset: int = 13) -> list[onnx.NodeProto]:
    """How exporters before ``Range`` count the candidates."""
    return [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("ConstantOfShape", ["n1"], ["filled"], value=ones),
        node("NonZero", ["filled"], ["at"]),
        node("Squeeze", ["at", "axis"], ["counted"]),
    ]


SHAPES = {
    "view(n, t, 2, -1)": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Unsqueeze", ["n", "axis"], ["n1"]),
            node("Unsqueeze", ["t", "axis"], ["t1"]),
            node("Concat", ["n1", "t1", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("Mul", ["n1", "t1"], ["nt"]),
            node("Concat", ["nt", "minus"], ["flat"], axis=0),
            node("Reshape", ["x", "flat"], ["rows"]),
        ],
        constants={
            "zero": number(0),
            "one": number(1),
            "axis": integers(0),
            "rest": integers(2, 2),
            "minus": integers(-1),
        },
        least=1,
    ),
    "expand as": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["three"], ["o"], value=ones),
            node("Mul", ["o", "minus"], ["m"]),
            node("Equal", ["s", "m"], ["e"]),
            node("Where", ["e", "o", "s"], ["target"]),
            node("Expand", ["w", "target"], ["r"]),
        ],
        constants={"three": integers(3), "minus": number(-1), "w": np.arange(4, dtype=np.float32)},
    ),
    "zeros of a shape": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "zero", "two"], ["nt"]),
            node("Concat", ["nt", "five"], ["target"], axis=0),
            node("ConstantOfShape", ["target"], ["r"], value=half),
        ],
        constants={"zero": integers(0), "two": integers(2), "five": integers(5)},
    ),
    "number of elements": Spec(
        13,
        [
            node("Size", ["x"], ["n"]),
            node("Unsqueeze", ["n", "axis"], ["n1"]),
            node("Reshape", ["x", "n1"], ["flat"]),
            node("Shape", ["x"], ["s"]),
            node("ReduceProd", ["s"], ["all"], keepdims=0),
            node("Add", ["n", "all"], ["twice"]),
        ],
        constants={"axis": integers(0)},
        outputs=["flat", "n", "twice"],
    ),
    "range over T": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Range", ["zero", "t", "one"], ["places"]),
            node("Cast", ["t"], ["tf"], to=TensorProto.FLOAT),
            node("Range", ["zf", "tf", "of"], ["floats"]),
            node("Range", ["one", "t", "one"], ["later"]),
            node("Sub", ["t", "one"], ["last"]),
            node("Range", ["last", "minus", "minus"], ["down"]),
            node("Unsqueeze", ["places", "axis"], ["row"]),
            node("Less", ["row", "i1"], ["mask"]),
        ],
        "x i1",
        {
            "one": number(1),
            "zero": number(0),
            "minus": number(-1),
            "zf": np.float32(0).reshape(()),
            "of": np.float32(1).reshape(()),
            "axis": integers(0),
        },
        outputs=["places", "floats", "later", "down", "mask"],
        kinds={"i1": ("int64", ["N", 1])},
        least=1,
    ),
    "range by a size": Spec(
        13,
        [
            node("Shape", ["ids"], ["s"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Size", ["ids"], ["all"]),
            node("Range", ["zero", "all", "t"], ["starts"]),
        ],
        "ids",
        {"one": number(1), "zero": number(0)},
        least=1,
    ),
    "constant ranges": Spec(
        11,
        [
            node("Range", ["a", "b", "c"], ["floats"]),
            node("Range", ["l", "m", "n"], ["whole"]),
            node("Range", ["m", "l", "n"], ["none"]),
            node("Identity", ["h"], ["same"]),
        ],
        "h",
        {
            "a": np.float32(1).reshape(()),
            "b": np.float32(3).reshape(()),
            "c": np.float32(0.3).reshape(()),
            "l": number(9),
            "m": number(-2),
            "n": number(-3),
        },
    ),
    "counting without Range": Spec(13, counting(), constants={"zero": number(0), "axis": integers(0)}),
    "arithmetic that is no size": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
            node("Sqrt", ["f"], ["root"]),
            node("Div", ["x", "root"], ["r"]),
        ],
        constants={"one": number(1)},
        least=1,
    ),
    "largest and smallest": Spec(
        15,
        [
            node("Shape", ["x"], ["s"], end=1),
            node("Max", ["s", "none"], ["a"]),
            node("Min", ["s", "none"], ["b"]),
            node("Concat", ["a", "four"], ["c"], axis=0),
            node("Expand", ["w", "c"], ["r"]),
            node("Neg", ["b"], ["d"]),
        ],
        constants={"none": integers(-1), "four": integers(4), "w": np.ones((1, 1), np.float32)},
        outputs=["r", "a", "b", "d"],
    ),
    "pieces of a shape": Spec(
        13,
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "minus", "first", "axis", "minus"], ["turned"]),
            node("Gather", ["s", "pick"], ["p"]),
            node("Slice", ["s", "minus", "l"], ["last"]),
            node("Concat", ["turned", "last", "p"], ["all"], axis=0),
        ],
        constants={
            "minus": integers(-1),
            "first": integers(FIRST),
            "axis": integers(0),
            "l": integers(LAST),
            "pick": integers(-2, 0),
        },
    ),
    "a size as a number": Spec(
        15,
        [
            node("Shape", ["h"], ["s"], end=1),
            node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            node("ReduceSum", ["h"], ["total"], keepdims=0),
            node("Div", ["total", "f"], ["mean"]),
        ],
        "h",
        least=1,
    ),
    "sequences": Spec(
        13,
        [
            node("SplitToSequence", ["y"], ["parts"], axis=1, keepdims=0),
            node("SequenceAt", ["parts", "one"], ["b"]),
            node("SequenceInsert", ["parts", "b"], ["more"]),
            node("ConcatFromSequence", ["more"], ["all"], axis=1),
            node("ConcatFromSequence", ["more"], ["stacked"], axis=1, new_axis=1),
            node("SequenceLength", ["more"], ["count"]),
        ],
        "y",
        {"one": number(1)},
        outputs=["b", "all", "stacked", "count"],
    ),
}

ALL = {
    f"{family}: {name}": spec
    for family, specs in (("move", MOVES), ("slice", SLICES), ("pad", PADS), ("index", INDEXING), ("shape", SHAPES))
    for name, spec in specs.items()
}


@pytest.mark.parametrize("case", ALL)
def test_like_onnxruntime(tools: Any, case: str) -> None:
    """Machine code and NumPy give what ONNX Runtime gives, at several sizes of both named dimensions."""
    spec = ALL[case]
    model, graph = spec.model(), graph_of(spec)
    compiled = tools.Compiled(graph)
    for candidates, length in ((2, 5), (1, max(spec.least, 1)), (7, 3), (50, max(spec.least, 4))):
        feeds = spec.feeds(max(candidates, spec.fewest), length)
        expected = tools.run_onnxruntime(model, feeds)
        for backend, results in (("machine code", compiled(feeds)), ("NumPy", evaluate(graph, feeds))):
            for name, want in expected.items():
                have, label = results[name], f"{backend}: {name} at N={candidates}, T={length}"
                assert have.dtype == want.dtype, f"{label} is {have.dtype}, expected {want.dtype}"
                assert have.shape == want.shape, f"{label} is {have.shape}, expected {want.shape}"
                np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5, err_msg=label)


@pytest.mark.parametrize("case", [name for name, spec in ALL.items() if spec.least == spec.fewest == 0])
def test_of_nothing(tools: Any, case: str) -> None:
    """Without candidates, without events, and without both: shapes are right, and both backends agree."""
    graph = graph_of(ALL[case])
    compiled = tools.Compiled(graph)
    for candidates, length in ((0, 5), (3, 0), (0, 0)):
        feeds = ALL[case].feeds(candidates, length)
        try:
            expected = evaluate(graph, feeds)
        except InputError:
            assert "index" in case  # an id into an empty list is outside it
            with pytest.raises(InputError):
                compiled(feeds)
            continue
        for name, array in compiled(feeds).items():
            assert array.shape == expected[name].shape
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, err_msg=name)


AT_RUN_TIME: Mapping[str, tuple[Spec, str]] = {
    "Gather": (INDEXING["columns by id"], "ids"),
    "GatherND": (INDEXING["gather nd"], "places"),
    "GatherND in batches": (INDEXING["gather nd"], "ids1"),
    "GatherElements": (INDEXING["gather elements"], "at"),
    "ScatterElements": (INDEXING["scatter elements"], "at"),
    "ScatterND": (INDEXING["scatter nd"], "at"),
    "ReverseSequence": (INDEXING["reverse sequence"], "lengths"),
}


# A negative length turns nothing, which is no wild read.
@pytest.mark.parametrize(
    ("case", "bad"),
    [
        (case, bad)
        for case in AT_RUN_TIME
        for bad in (1000, 2**62, -1000, FIRST)
        if bad > 0 or case != "ReverseSequence"
    ],
)
def test_a_bad_index_is_an_error(tools: Any, case: str, bad: int) -> None:
    """Never a wild read or write, on either backend; and the next call is right again."""
    spec, name = AT_RUN_TIME[case]
    graph = graph_of(spec)
    compiled = tools.Compiled(graph)
    good = spec.feeds(4, 5)
    feeds = dict(good)
    feeds[name] = good[name].copy()
    feeds[name].reshape(-1)[-1] = bad
    for run in (compiled, lambda given: evaluate(graph, given)):
        with pytest.raises(InputError, match="outside"):
            run(feeds)
    expected = evaluate(graph, good)
    for output, array in compiled(good).items():
        np.testing.assert_allclose(array, expected[output], rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "length"),
    [("slice: of named dimensions", 1), ("slice: as long as another input", 13), ("pad: reflect over T", 1)],
)
def test_a_range_that_does_not_fit_is_an_error(tools: Any, case: str, length: int) -> None:
    """What a slice of named dimensions takes for granted is checked when the model runs."""
    graph = graph_of(ALL[case])
    feeds = ALL[case].feeds(2, length)
    for run in (tools.Compiled(graph), lambda given: evaluate(graph, given)):
        with pytest.raises(InputError):
            run(feeds)
