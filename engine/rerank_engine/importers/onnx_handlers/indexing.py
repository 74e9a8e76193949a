"""Operators that read and write at positions, or make what others select with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Dim
from rerank_engine.importers.onnx import ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles, inputs
from rerank_engine.importers.positions import cut, given, iota, known_shape, numbers
from rerank_engine.importers.shapes import ShapeValue
from rerank_engine.ops.layout import END

if TYPE_CHECKING:
    import onnx

_MOST_MASK = 1 << 20
"""A mask of more elements than this is computed when the model runs."""


@handles("Gather")
def _gather(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 0})["axis"]
    picks = builder.shape_value(node.input[1])
    known = builder.shapes.get(node.input[0])
    if known is not None and not known.is_scalar and axis in (0, -1) and picks is not None and picks.is_known:
        chosen = tuple(known.entries[pick] for pick in picks.entries if isinstance(pick, int))
        builder.shapes[node.output[0]] = ShapeValue(chosen, picks.is_scalar, known.dtype)
        return
    source = builder.value(node.input[0])
    axis = builder.axis(axis, len(source.shape))
    dim = source.shape[axis]
    if picks is not None:
        _check_picks(builder, picks, dim)
        if len(picks.entries) == 1 and source.name not in builder.graph.constants:
            (pick,) = picks.entries
            part = cut(builder, source.name, axis, pick, pick + 1 if pick != -1 else END)
            keep = () if picks.is_scalar else (1,)
            builder.emit_shaped("Reshape", part, source.shape[:axis] + keep + source.shape[axis + 1 :], node.output[0])
            return
    builder.emit("Gather", inputs(builder, node), {"axis": axis} if axis else {}, node.output[0])


def _check_picks(builder: OnnxBuilder, picks: ShapeValue, dim: int | Dim) -> None:
    for pick in picks.entries:
        if isinstance(pick, int) and isinstance(dim, int) and not -dim <= pick < dim:
            raise builder.refuse(f"id {pick} is outside a table of {dim} rows")


@handles("GatherND")
def _gather_nd(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    batch_dims = builder.attributes({"batch_dims": 0})["batch_dims"]
    data, places = (builder.value(name) for name in node.input)
    if batch_dims == 0 and places.shape and places.shape[-1] == 1 and data.shape:
        ids = builder.emit_shaped("Reshape", places.name, places.shape[:-1])
        builder.emit("Gather", [data.name, ids], output=node.output[0])
        return
    builder.emit("GatherND", [data.name, places.name], {"batch_dims": int(batch_dims)}, node.output[0])


@handles("GatherElements")
def _gather_elements(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 0})["axis"]
    axis = builder.axis(axis, len(builder.value(node.input[0]).shape))
    builder.emit("GatherElements", inputs(builder, node), {"axis": axis}, node.output[0])


@handles("Scatter", "ScatterElements")
def _scatter_elements(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 0, **_reductions(builder, node)})
    axis = builder.axis(found["axis"], len(builder.value(node.input[0]).shape))
    attributes = {"axis": axis, "reduction": _text(found.get("reduction", "none"))}
    builder.emit("ScatterElements", inputs(builder, node), attributes, node.output[0])


@handles("ScatterND")
def _scatter_nd(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(_reductions(builder, node))
    reduction = _text(found.get("reduction", "none"))
    builder.emit("ScatterND", inputs(builder, node), {"reduction": reduction}, node.output[0])


def _reductions(builder: OnnxBuilder, node: onnx.NodeProto) -> dict[str, Any]:
    """The attribute that came with opset 16."""
    return {"reduction": "none"} if builder.opset >= 16 and node.op_type != "Scatter" else {}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@handles("TensorScatter")
def _tensor_scatter(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": -2, "mode": "linear"})
    mode = _text(found["mode"])
    past, update = (builder.value(name) for name in node.input[:2])
    rank = len(past.shape)
    axis = builder.axis(found["axis"], rank)
    if axis == 0 or len(update.shape) != rank or mode not in ("linear", "circular"):
        raise builder.refuse(f"axis {axis} or mode {mode!r} does not fit {past} and {update}")
    batch, size, length = past.shape[0], past.shape[axis], update.shape[axis]
    perm = (0, axis, *(other for other in range(1, rank) if other != axis))
    back = tuple(perm.index(other) for other in range(rank))
    steps = builder.emit_shaped("Reshape", iota(builder, length), (1, length))
    if given(node, 2):
        first = builder.value(node.input[2])
        begin = builder.emit("Cast", [first.name], {"to": "int64"}) if first.dtype != "int64" else first.name
        begin = builder.emit_shaped("Reshape", begin, (batch, 1))
    else:
        begin = builder.emit_shaped("Expand", numbers(builder, [0], is_scalar=True), (batch, 1))
    zero, whole = (numbers(builder, [entry], is_scalar=True) for entry in (0, size))
    # A negative position would count from the end; here it is an error.
    negative = builder.emit("Less", [begin, zero])
    begin = builder.emit("Where", [negative, numbers(builder, [END], is_scalar=True), begin])
    places = builder.emit("Add", [begin, steps])
    if mode == "circular":
        over = builder.emit("GreaterOrEqual", [places, whole])
        places = builder.emit("Where", [over, builder.emit("Sub", [places, whole]), places])
    rows = builder.emit_shaped("Reshape", iota(builder, batch), (batch, 1, 1))
    rows = builder.emit_shaped("Expand", rows, (batch, length, 1))
    places = builder.emit_shaped("Reshape", places, (batch, length, 1))
    places = builder.emit("Concat", [rows, places], {"axis": 2})
    moved = [builder.emit("Transpose", [value.name], {"perm": perm}) for value in (past, update)]
    written = builder.emit("ScatterND", [moved[0], places, moved[1]])
    builder.emit("Transpose", [written], {"perm": back}, node.output[0])


@handles("ReverseSequence")
def _reverse_sequence(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"batch_axis": 1, "time_axis": 0})
    source, lengths = (builder.value(name) for name in node.input)
    if sorted((found["batch_axis"], found["time_axis"])) != [0, 1] or len(source.shape) < 2:
        raise builder.refuse(f"batch and time must be axes 0 and 1 of {source}, are {found}")
    swap = (1, 0, *range(2, len(source.shape)))
    name = source.name
    if found["time_axis"] == 0:
        name = builder.emit("Transpose", [name], {"perm": swap})
    batch, time = builder.graph.values[name].shape[:2]
    length = builder.emit("Cast", [lengths.name], {"to": "int64"}) if lengths.dtype != "int64" else lengths.name
    length = builder.emit_shaped("Reshape", length, (batch, 1))
    steps = builder.emit_shaped("Reshape", iota(builder, time), (1, time))
    one = numbers(builder, [1], is_scalar=True)
    mirrored = builder.emit("Sub", [builder.emit("Sub", [length, one]), steps])
    inside = builder.emit("Less", [steps, length])
    places = builder.emit("Where", [inside, mirrored, steps])
    places = builder.emit_shaped("Reshape", places, (batch, time, 1))
    turn = found["time_axis"] == 0
    picked = builder.emit("GatherND", [name, places], {"batch_dims": 1}, None if turn else node.output[0])
    if turn:
        builder.emit("Transpose", [picked], {"perm": swap}, node.output[0])


@handles("OneHot")
def _one_hot(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": -1})["axis"]
    indices, values = builder.value(node.input[0]), builder.value(node.input[2])
    depths = _depth(builder, node.input[1])
    if values.shape != (2,):
        raise builder.refuse(f"values must be (off, on), are {values}")
    rank = len(indices.shape) + 1
    axis = builder.axis(axis, rank)
    ids = builder.emit("Cast", [indices.name], {"to": "int64"}) if indices.dtype != "int64" else indices.name
    below = builder.emit("Less", [ids, numbers(builder, [0], is_scalar=True)])
    from_end = builder.emit("Add", [ids, numbers(builder, [depths], is_scalar=True)])
    ids = builder.emit("Where", [below, from_end, ids])
    ids = builder.emit_shaped("Reshape", ids, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    classes = builder.emit_shaped("Reshape", iota(builder, depths), (depths, *(1,) * (rank - 1 - axis)))
    hot = builder.emit("Equal", [ids, classes])
    off, on = (_element(builder, values.name, index) for index in (0, 1))
    builder.emit("Where", [hot, on, off], output=node.output[0])


def _depth(builder: OnnxBuilder, name: str) -> int | Dim:
    array = builder.array(name)
    if array is not None and array.size == 1 and array.dtype.kind == "f" and float(array.item()).is_integer():
        return int(array.item())
    entries = known_shape(builder, name, "the depth").entries
    if len(entries) != 1 or (isinstance(entries[0], int) and entries[0] < 0):
        raise builder.refuse(f"the depth must be one number that is not negative, is {entries}")
    return entries[0]


def _element(builder: OnnxBuilder, name: str, index: int) -> str:
    """One element of a vector, without dimensions."""
    array = builder.graph.constants.get(name)
    if array is not None:
        return builder.own_constant(f"{name}/{index}", np.array(array[index]))
    return builder.emit_shaped("Reshape", cut(builder, name, 0, index, index + 1), ())


@handles("Trilu")
def _trilu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    upper = bool(builder.attributes({"upper": 1})["upper"])
    source = builder.value(node.input[0])
    if len(source.shape) < 2:
        raise builder.refuse(f"needs a matrix, has {source}")
    rows, columns = source.shape[-2:]
    diagonal: int | Dim | None = 0
    if given(node, 1):
        known = builder.shape_value(node.input[1])
        diagonal = known.entries[0] if known is not None and len(known.entries) == 1 else None
    if (
        isinstance(rows, int)
        and isinstance(columns, int)
        and isinstance(diagonal, int)
        and rows * columns <= _MOST_MASK
    ):
        offset = np.arange(columns) - np.arange(rows)[:, None]
        kept = builder.own_constant("triangle", offset >= diagonal if upper else offset <= diagonal)
    else:
        limit = _scalar_of(builder, node.input[1]) if diagonal is None else numbers(builder, [diagonal], is_scalar=True)
        across = builder.emit_shaped("Reshape", iota(builder, columns), (1, columns))
        down = builder.emit_shaped("Reshape", iota(builder, rows), (rows, 1))
        distance = builder.emit("Sub", [across, down])
        kept = builder.emit("GreaterOrEqual" if upper else "LessOrEqual", [distance, limit])
    zero = builder.own_constant("zero", np.zeros((), DTYPES[source.dtype]))
    builder.emit("Where", [kept, source.name, zero], output=node.output[0])


def _scalar_of(builder: OnnxBuilder, name: str) -> str:
    value = builder.value(name)
    if any(dim != 1 for dim in value.shape) or value.dtype != "int64":
        raise builder.refuse(f"the diagonal must be one int64, is {value}")
    return value.name if not value.shape else builder.emit_shaped("Reshape", value.name, ())


@handles("EyeLike")
def _eye_like(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"dtype": None, "k": 0})
    source = builder.value(node.input[0])
    if len(source.shape) != 2:
        raise builder.refuse(f"needs a matrix, has {source}")
    if found["dtype"] not in (None, *ONNX_DTYPES):
        raise builder.refuse(f"dtype {found['dtype']} is not supported")
    dtype = source.dtype if found["dtype"] is None else ONNX_DTYPES[found["dtype"]]
    rows, columns = source.shape
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _MOST_MASK:
        builder.constant(node.output[0], np.eye(rows, columns, int(found["k"]), dtype=DTYPES[dtype]))
        return
    across = builder.emit_shaped("Reshape", iota(builder, columns), (1, columns))
    down = builder.emit_shaped("Reshape", iota(builder, rows), (rows, 1))
    down = builder.emit("Add", [down, numbers(builder, [int(found["k"])], is_scalar=True)])
    builder.emit("Cast", [builder.emit("Equal", [across, down])], {"to": dtype}, node.output[0])


@handles("Compress")
def _compress(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": None})["axis"]
    condition = _known_array(builder, node.input[1], "the condition")
    source = builder.value(node.input[0])
    name, dim = source.name, math.prod(dim for dim in source.shape if isinstance(dim, int))
    if axis is None:
        if any(isinstance(entry, Dim) for entry in source.shape):
            raise builder.refuse(f"without an axis the shape of {source} must be known")
        name, axis = builder.emit_shaped("Reshape", name, (dim,)), 0
    axis = builder.axis(axis, len(builder.graph.values[name].shape))
    picks = np.flatnonzero(condition.reshape(-1)).astype(np.int64)
    size = builder.graph.values[name].shape[axis]
    if condition.ndim != 1 or (isinstance(size, int) and len(condition) > size):
        raise builder.refuse(f"a condition of shape {condition.shape} does not fit dimension {size}")
    ids = builder.own_constant(f"{node.output[0]}/kept", picks)
    builder.emit("Gather", [name, ids], {"axis": axis}, node.output[0])


@handles("NonZero")
def _non_zero(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    ones = _filled_vector(builder, node.input[0])
    if ones is not None:
        builder.emit_shaped("Reshape", iota(builder, ones), (1, ones), node.output[0])
        return
    array = _known_array(builder, node.input[0], "where its input is zero")
    places = np.nonzero(np.atleast_1d(array)) if array.ndim else ()
    count = int(np.count_nonzero(array))
    builder.constant(node.output[0], np.array(places, np.int64).reshape(array.ndim, count))


def _filled_vector(builder: OnnxBuilder, name: str) -> Dim | None:
    """Length of a vector that repeats a constant other than zero, as exporters write to count from 0."""
    value = builder.value(name)
    if len(value.shape) != 1 or not isinstance(value.shape[0], Dim):
        return None
    made = next((each for each in builder.graph.nodes if value.name in each.outputs), None)
    filled = builder.graph.constants.get(made.inputs[0]) if made is not None and made.op == "Expand" else None
    return value.shape[0] if filled is not None and filled.size == 1 and bool(filled.reshape(-1)[0]) else None


@handles("Unique")
def _unique(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": None, "sorted": 1})
    array = _known_array(builder, node.input[0], "its input")
    axis = None if found["axis"] is None else builder.axis(found["axis"], array.ndim)
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not found["sorted"]:
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=axis or 0)
        first, counts = first[order], counts[order]
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        inverse = rank[inverse]
    for name, result in zip(node.output, (values, first, inverse, counts), strict=False):
        if name:
            builder.constant(name, result if result is values else result.astype(np.int64))


def _known_array(builder: OnnxBuilder, name: str, what: str) -> NDArray[Any]:
    """A constant; what is computed from other numbers would make a result of unknown size."""
    array = builder.array(name)
    if array is None:
        raise builder.refuse(
            f"{what} ({name!r}) must be known when the model is converted, as the size of the result depends on it"
        )
    return array
