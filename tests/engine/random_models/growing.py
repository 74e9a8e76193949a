"""A model while it grows: values with shapes over named dimensions, and the nodes that make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rerank_engine.dimensions import Dim, names_in
from rerank_engine.graph import DTYPES, concrete

Array = NDArray[Any]
Shape = tuple[int | Dim, ...]

N, T, S = Dim("N"), Dim("T"), Dim("S")
LARGEST_SIZES = {"N": 140, "T": 10, "S": 4}
"""Sizes up to which no value may have more than :data:`MOST_ELEMENTS` elements."""

MOST_ELEMENTS = 80_000
MOST_RANK = 5
OPSETS = (7, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 22, 23)
_SATURATING = (
    *("Sigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax", "Softsign", "Exp", "Softplus", "Elu", "Selu", "Celu", "Gelu"),
    *("Mish", "Hardmax", "Atan", "ReduceProd", "ReduceLogSumExp"),
)
_SATURATES = 3.0
SINCE = {
    **dict.fromkeys(("Erf", "IsNaN", "Sign", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Where", "ConstantOfShape"), 9),
    **dict.fromkeys(("OneHot", "EyeLike", "Shrink", "Scan", "MeanVarianceNormalization"), 9),
    **dict.fromkeys(("Mod", "IsInf", "ThresholdedRelu", "QuantizeLinear", "DequantizeLinear", "MatMulInteger"), 10),
    **dict.fromkeys(("ReverseSequence",), 10),
    **dict.fromkeys(("Round", "CumSum", "Range", "GatherElements", "GatherND", "ScatterElements", "ScatterND"), 11),
    **dict.fromkeys(("BitShift", "DynamicQuantizeLinear", "Loop", "DepthToSpace"), 11),
    **dict.fromkeys(("Einsum", "Celu", "GreaterOrEqual", "LessOrEqual"), 12),
    **dict.fromkeys(("HardSwish", "Trilu"), 14),
    "LayerNormalization": 17,
    **dict.fromkeys(("Mish", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), 18),
    "Gelu": 20,
    "GroupNormalization": 21,
    **dict.fromkeys(("RMSNormalization", "Attention"), 23),
    "Swish": 24,
}
"""Opsets in which operators came, or got the form that is used here; those of opset 7 are not listed."""

ONNX_TYPES = {name: int(helper.np_dtype_to_tensor_dtype(dtype)) for name, dtype in DTYPES.items()}


class DoesNotFit(Exception):
    """No value of the model suits this part, or what it would make is too large."""


@dataclass(frozen=True)
class Tensor:
    """A value of the model.

    Attributes
    ----------
    name, dtype, shape
        As in the graph.
    bound
        Largest magnitude, roughly.
    below
        For integers that may be indices: all of them lie in ``0 .. below - 1``.
    saturated
        Whether numbers may be so near to a limit that implementations differ in which of them are equal.
    """

    name: str
    dtype: str
    shape: Shape
    bound: float = 4.0
    below: int | Dim | None = None
    saturated: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype == "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)

Part = Callable[["Growing"], None]
PARTS: dict[str, tuple[float, Part]] = {}
"""Everything that a model may grow by: weight and function by name."""


def part(weight: float) -> Callable[[Part], Part]:
    """Put a function that adds nodes into the table."""

    def add(function: Part) -> Part:
        PARTS[function.__name__] = (weight, function)
        return function

    return add


@dataclass
class Growing:
    """The model.

    Attributes
    ----------
    random
        Source of all choices.
    opset
        Version of the operators.
    tensors
        Values that may be read, oldest first.
    parts
        What it has grown by.
    made
        Shapes of all results by name.
    """

    random: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    made: dict[str, Shape] = field(default_factory=dict)

    # --- choices -------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self.random.integers(low, high + 1))

    def one_of(self, options: Sequence[Any]) -> Any:
        if not options:
            raise DoesNotFit
        return options[self.integer(0, len(options) - 1)]

    def some_of(self, options: Sequence[Any], least: int = 1) -> list[Any]:
        """A part of the options, in their order."""
        if len(options) < least:
            raise DoesNotFit
        count = self.integer(least, len(options))
        chosen = sorted(self.random.permutation(len(options))[:count].tolist())
        return [options[index] for index in chosen]

    def pick(self, fits: Callable[[Tensor], bool] = lambda _: True) -> Tensor:
        """A value that fits; later ones are likelier, so that models grow deep."""
        fitting = [tensor for tensor in self.tensors if fits(tensor)]
        if not fitting:
            raise DoesNotFit
        if self.chance(0.6):
            return fitting[-self.integer(1, min(3, len(fitting)))]
        found: Tensor = self.one_of(fitting)
        return found

    def pick_float(self, fits: Callable[[Tensor], bool] = lambda _: True) -> Tensor:
        return self.pick(lambda tensor: tensor.is_float and fits(tensor))

    def pick_or_input(self, fits: Callable[[Tensor], bool], shape: Shape, below: int | None = None) -> Tensor:
        """A value that fits, or a new input: floats, or indices below a number."""
        dtype = "float32" if below is None else "int64"
        try:
            return self.pick(lambda tensor: tensor.dtype == dtype and fits(tensor))
        except DoesNotFit:
            if len(self.inputs) > 6:
                raise
            return self.input(dtype, shape, below)

    def pick_distinct(self, fits: Callable[[Tensor], bool]) -> Tensor:
        """A value whose order of elements does not hang on the last digits."""
        return self.pick_float(lambda tensor: not tensor.saturated and fits(tensor))

    def axis(self, tensor: Tensor, fits: Callable[[int | Dim], bool] = lambda _: True) -> int:
        found: int = self.one_of([axis for axis, dim in enumerate(tensor.shape) if fits(dim)])
        return found

    def signed(self, axis: int, rank: int) -> int:
        """The axis, sometimes counted from the end, which opsets before 11 do not know."""
        return axis - rank if self.opset >= 11 and self.chance(0.4) else axis

    # --- values --------------------------------------------------------------------------------------------

    def constant(self, array: Any, dtype: str | None = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, DTYPES[dtype] if dtype else None)
        return name

    def integers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> Tensor:
        """A constant of normal numbers."""
        array = np.clip(self.random.normal(0, scale, tuple(shape)), -3 * scale, 3 * scale).astype(np.float32)
        return Tensor(self.constant(array), "float32", tuple(shape), 3 * scale)

    def input(self, dtype: str, shape: Shape, below: int | None = None) -> Tensor:
        """Declare a further input."""
        if any(isinstance(dim, Dim) and dim not in (N, T, S) for dim in shape):
            raise DoesNotFit
        bound = 8.0 if dtype == "float32" else float(below or 20)
        tensor = Tensor(f"x{len(self.inputs)}", dtype, shape, bound, below)
        self.inputs.append(tensor)
        self.tensors.append(tensor)
        return tensor

    def add(
        self,
        op: str,
        inputs: Sequence[Tensor | str],
        shape: Sequence[int | Dim],
        dtype: str = "float32",
        *,
        bound: float = 4.0,
        below: int | Dim | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Add a node with one result."""
        (made,) = self.add_many(op, inputs, [(dtype, tuple(shape))], bound=bound, below=below, **attributes)
        return made

    def add_many(
        self,
        op: str,
        inputs: Sequence[Tensor | str],
        results: Sequence[tuple[str, Shape]],
        *,
        bound: float = 4.0,
        below: int | Dim | None = None,
        keep: Sequence[int] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Add a node; ``keep`` tells which results have names, by default all."""
        if SINCE.get(op, 1) > self.opset:
            raise DoesNotFit
        for _, shape in results:
            if len(shape) > MOST_RANK or math.prod(concrete(shape, LARGEST_SIZES)) > MOST_ELEMENTS:
                raise DoesNotFit
            if any(isinstance(size, int) and size < 0 for size in shape):
                raise DoesNotFit
        names = [
            f"v{len(self.nodes)}_{index}" if len(results) > 1 else f"v{len(self.nodes)}"
            for index in range(len(results))
        ]
        kept = range(len(results)) if keep is None else keep
        given = [entry if isinstance(entry, str) else entry.name for entry in inputs]
        outputs = [name if index in kept else "" for index, name in enumerate(names)]
        self.nodes.append(helper.make_node(op, given, outputs, **attributes))
        saturated = op in ("If", "Loop", "Scan") or any(
            entry.saturated or (op in _SATURATING and entry.bound > _SATURATES)
            for entry in inputs
            if isinstance(entry, Tensor)
        )
        made = [
            Tensor(name, dtype, shape, bound, below, saturated and dtype == "float32")
            for name, (dtype, shape) in zip(names, results, strict=True)
        ]
        self.made |= {tensor.name: tensor.shape for tensor in made}
        kept_tensors = [tensor for index, tensor in enumerate(made) if index in kept]
        self.tensors += kept_tensors
        return made if keep is None else kept_tensors

    def forget(self, tensor: Tensor) -> None:
        """Let no later part read a value."""
        self.tensors = [other for other in self.tensors if other.name != tensor.name]

    # --- common forms --------------------------------------------------------------------------------------

    def small(self, tensor: Tensor, most: float = 30.0) -> Tensor:
        """The value, squashed when it may be larger than ``most``."""
        if tensor.bound <= most:
            return tensor
        if self.chance(0.5):
            return self.add("Tanh", [tensor], tensor.shape, bound=1.0)
        return self.add("Sigmoid", [tensor], tensor.shape, bound=1.0)

    def positive(self, tensor: Tensor, least: float = 0.25) -> Tensor:
        """A value of at least ``least``."""
        size = self.add("Abs", [tensor], tensor.shape, tensor.dtype, bound=tensor.bound)
        number = self.constant(np.float32(least).reshape(()))
        return self.add("Add", [size, number], tensor.shape, tensor.dtype, bound=tensor.bound + least)

    def as_float(self, tensor: Tensor) -> Tensor:
        if tensor.is_float:
            return tensor
        return self.add("Cast", [tensor], tensor.shape, bound=tensor.bound, to=TensorProto.FLOAT)

    def partner(self, tensor: Tensor) -> Tensor:
        """A value of the same dtype that broadcasts with this one: another, a constant, or a new input."""
        fitting = [
            other
            for other in self.tensors
            if other.dtype == tensor.dtype and joined(other.shape, tensor.shape) is not None
        ]
        if fitting and self.chance(0.65):
            found: Tensor = self.one_of(fitting)
            return found
        shape = list(tensor.shape[self.integer(0, tensor.rank) :])
        shape = [1 if isinstance(dim, Dim) or self.chance(0.2) else dim for dim in shape]
        if tensor.is_float:
            return self.floats([dim for dim in shape if isinstance(dim, int)])
        sizes = fixed(shape)
        low = 0 if tensor.dtype == "bool" or tensor.dtype.startswith("u") else -5
        array: Array = self.random.integers(low, 2 if tensor.dtype == "bool" else 6, sizes)
        return Tensor(self.constant(array, tensor.dtype), tensor.dtype, tuple(shape), 5.0)

    def reduced(
        self, op: str, source: Tensor, axes: Sequence[int], keep: bool, since: int = 18, bound: float = 4.0
    ) -> Tensor:
        """A reduction over axes, in the form of the opset."""
        shape = [1 if axis in axes else dim for axis, dim in enumerate(source.shape) if keep or axis not in axes]
        given = [self.signed(axis, source.rank) for axis in axes]
        if self.opset >= (13 if op == "ReduceSum" else since):
            return self.add(op, [source, self.integers(*given)], shape, source.dtype, bound=bound, keepdims=int(keep))
        return self.add(op, [source], shape, source.dtype, bound=bound, axes=given, keepdims=int(keep))

    def squeezed(self, op: str, source: Tensor, axes: Sequence[int], shape: Sequence[int | Dim]) -> Tensor:
        """Squeeze or Unsqueeze, in the form of the opset."""
        if self.opset >= 13:
            return self.add(
                op, [source, self.integers(*axes)], shape, source.dtype, bound=source.bound, below=source.below
            )
        return self.add(op, [source], shape, source.dtype, bound=source.bound, below=source.below, axes=list(axes))

    # --- the model -----------------------------------------------------------------------------------------

    def grow(self, nodes: int) -> None:
        """Add parts until there are this many nodes."""
        names = list(PARTS)
        weights = np.array([PARTS[name][0] for name in names])
        tries = 0
        while len(self.nodes) < nodes and tries < 40 * nodes:
            tries += 1
            name = names[int(self.random.choice(len(names), p=weights / weights.sum()))]
            state = (list(self.nodes), dict(self.constants), list(self.inputs), list(self.tensors), dict(self.made))
            try:
                PARTS[name][1](self)
                self.parts.append(name)
            except DoesNotFit:
                self.nodes, self.constants, self.inputs, self.tensors, self.made = state

    def outputs(self) -> list[Tensor]:
        """What nothing reads, and some values in the middle."""
        read = {name for node in self.nodes for name in node.input}
        read |= {name for node in self.nodes for entry in node.attribute for name in _outer_reads(entry.g)}
        made = [tensor for tensor in self.tensors if tensor.name in self.made]
        chosen = [tensor for tensor in made if tensor.name not in read or self.chance(0.08)]
        return chosen or made[-1:] or self.tensors[:1]

    def model(self, outputs: Sequence[Tensor]) -> onnx.ModelProto:
        """The model with these outputs."""
        ranked = [
            helper.make_tensor_value_info(
                tensor.name, ONNX_TYPES[tensor.dtype], [f"{tensor.name}_{axis}" for axis in range(tensor.rank)]
            )
            for tensor in outputs
        ]
        inputs = [
            helper.make_tensor_value_info(
                tensor.name,
                ONNX_TYPES[tensor.dtype],
                [dim if isinstance(dim, int) else str(dim) for dim in tensor.shape],
            )
            for tensor in self.inputs
        ]
        initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "random", inputs, ranked, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def candidates(self) -> str | None:
        """A dimension that counts candidates: mostly N, where an input has it."""
        names = sorted(names_in(dim for tensor in self.inputs for dim in tensor.shape))
        if not names:
            return None
        return "N" if "N" in names and self.chance(0.8) else str(self.one_of(names))

    def has_empty(self, sizes: dict[str, int]) -> bool:
        """Whether some value has no element, or even less, at these sizes."""
        shapes = [*self.made.values(), *(tensor.shape for tensor in self.inputs)]
        return any(size <= 0 for shape in shapes for size in concrete(shape, sizes))

    def feeds(self, sizes: dict[str, int], seed: int, *, special: bool = False) -> dict[str, Array]:
        """Arrays for all inputs; with some NaN, infinities and zeros among them, or with none."""
        random = np.random.default_rng(seed)
        feeds: dict[str, Array] = {}
        for tensor in self.inputs:
            shape = concrete(tensor.shape, sizes)
            if tensor.dtype == "bool":
                feeds[tensor.name] = np.asarray(random.random(shape) < 0.6)
            elif tensor.dtype == "float32":
                array = np.asarray(np.clip(random.normal(0, 1.5, shape), -8, 8), np.float32)
                if special:
                    array = np.where(random.random(shape) < 0.06, random.choice(SPECIAL, shape), array)
                feeds[tensor.name] = array
            elif tensor.below is not None:
                assert isinstance(tensor.below, int)
                feeds[tensor.name] = np.asarray(random.integers(0, tensor.below, shape), DTYPES[tensor.dtype])
            else:
                low = 0 if tensor.dtype.startswith("u") else -20
                feeds[tensor.name] = np.asarray(random.integers(low, 21, shape), DTYPES[tensor.dtype])
        return feeds


def joined(left: Shape, right: Shape) -> Shape | None:
    """Shape of two broadcast together; None when they do not fit."""
    rank = max(len(left), len(right))
    one, other = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (left, right))
    result: list[int | Dim] = []
    for a, b in zip(one, other, strict=True):
        if a != b and 1 not in (a, b):
            return None
        result.append(b if a == 1 else a)
    return tuple(result)


def fixed(shape: Sequence[int | Dim]) -> list[int]:
    """The sizes of a shape, all known."""
    if any(isinstance(dim, Dim) for dim in shape):
        raise DoesNotFit
    return [dim for dim in shape if isinstance(dim, int)]


def with_bound(tensor: Tensor, bound: float) -> Tensor:
    return replace(tensor, bound=bound)


def _outer_reads(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.input}
    names |= {entry.name for entry in graph.output}
    for node in graph.node:
        for entry in node.attribute:
            names |= _outer_reads(entry.g)
    return names


_INPUT_SHAPES: tuple[Shape, ...] = (
    *((N,), (N, 1), (N, 4), (N, 8), (N, T), (N, N), (N, T, 3), (N, 3, 4), (N, 2, T), (N, 16, 2)),
    *((T,), (T, N), (T, 5), (T, 2, N), (1, T, 4), (2, N, 3), (N, S, 4), (S, T, 2), (N, 1, S), (S, 6), (N, T, 8)),
    *((N, 2, T, 4), (1, N, T, 4), (T, N, 4), (N, 4, 5), (2, T, 6), (N, 2, 3, 4), (T, 1, 4)),
    *((), (6,), (1, 4), (3, 4)),
)


def begin(random: np.random.Generator, opset: int | None = None) -> Growing:
    """A model with some inputs and no node."""
    model = Growing(random, opset or int(random.choice(OPSETS)))
    for _ in range(model.integer(1, 3)):
        model.input("float32", model.one_of(_INPUT_SHAPES))
    if model.chance(0.35):
        shape = model.one_of([(N,), (N, T), (T,), (N, 3), (2,), ()])
        model.input(model.one_of(["int64", "int32"]), shape, model.integer(1, 7))
    if model.chance(0.2):
        model.input(model.one_of(["int64", "int32", "int8", "uint8", "float32"]), model.one_of(_INPUT_SHAPES))
    if model.chance(0.2):
        model.input("bool", model.one_of([(N, T), (T,), (N,), (N, 1, T), (N, 4)]))
    return model
