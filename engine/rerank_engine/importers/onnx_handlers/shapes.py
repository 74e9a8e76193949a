"""Constants, shape arithmetic, and operators that rename or repeat dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.dimensions import divide_exactly, names_in, product
from rerank_engine.graph import DTYPES, Dim, attribute_shape, shape_text
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_file import array_of
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.importers.positions import (
    MOST_POSITIONS,
    axes_known,
    iota,
    known_shape,
    numbers,
    scalar,
)
from rerank_engine.importers.shapes import MOST_ENTRIES, ShapeValue, resolve_reshape, take
from rerank_engine.ops.ranges import ceil_divide

if TYPE_CHECKING:
    import onnx


@handles("Constant")
def _constant(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {"value": None, "value_float": None, "value_floats": None, "value_int": None, "value_ints": None}
    )
    given_values = [(name, value) for name, value in found.items() if value is not None]
    if len(given_values) != 1:
        raise builder.refuse("exactly one of the attributes that hold a value must be given")
    ((name, value),) = given_values
    if name == "value":
        array = array_of(value)
    else:
        array = np.array(value, dtype=np.float32 if "float" in name else np.int64)
    builder.constant(node.output[0], array)


@handles("ConstantOfShape")
def _constant_of_shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    fill = builder.attributes({"value": None})["value"]
    number = array_of(fill).reshape(()) if fill is not None else np.zeros((), np.float32)
    known = known_shape(builder, node.input[0], "the shape")
    if any(isinstance(entry, int) and entry < 0 for entry in known.entries):
        raise builder.refuse(f"the shape {shape_text(known.entries)} has a negative dimension")
    count = known.entries[0] if len(known.entries) == 1 else None
    if number.dtype in (np.int32, np.int64) and isinstance(count, int) and count <= MOST_ENTRIES:
        builder.shapes[node.output[0]] = ShapeValue((int(number),) * count, dtype=number.dtype.name)
        return
    filled = builder.own_constant(f"{node.output[0]}/fill", number)
    builder.emit_shaped("Expand", filled, known.entries, node.output[0])


@handles("Shape")
def _shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"start": 0, "end": None})
    whole = ShapeValue(_shape_of(builder, node.input[0]))
    builder.shapes[node.output[0]] = take(whole, found["start"], found["end"])


@handles("Size")
def _size(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.shapes[node.output[0]] = ShapeValue((product(_shape_of(builder, node.input[0])),), is_scalar=True)


def _shape_of(builder: OnnxBuilder, name: str) -> tuple[int | Dim, ...]:
    """Shape of a value; that of a shape value is known without putting it into the graph."""
    if name in builder.shapes and name not in builder.names:
        known = builder.shapes[name]
        return () if known.is_scalar else (len(known.entries),)
    return builder.value(name).shape


@handles("Reshape")
def _reshape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    allow_zero = bool(builder.attributes({"allowzero": 0})["allowzero"])
    target = known_shape(builder, node.input[1], "the target shape")
    if node.input[0] in builder.shapes:
        count = len(builder.shapes[node.input[0]].entries)
        if target.entries in ((-1,), (count,)) or (target.entries == () and count == 1):
            builder.shapes[node.output[0]] = replace(builder.shapes[node.input[0]], is_scalar=not target.entries)
            return
    source = builder.value(node.input[0])
    shape = resolve_reshape(target.entries, source.shape, allow_zero)
    if shape is None:
        raise builder.refuse(f"cannot resolve the target shape {shape_text(target.entries)} for {source}")
    if product(shape) != product(source.shape) and names_in(source.shape) and not names_in(shape):
        raise builder.refuse(
            f"the target shape {shape_text(tuple(shape))} has no named dimension, {source} has: the size at export was"
            " written into the model; export it with dynamic dimensions"
        )
    builder.emit_shaped("Reshape", source.name, shape, node.output[0])


@handles("Flatten")
def _flatten(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 1})["axis"]
    source = builder.value(node.input[0])
    axis = builder.axis(axis, len(source.shape)) if axis != len(source.shape) else axis
    shape = (product(source.shape[:axis]), product(source.shape[axis:]))
    builder.emit_shaped("Reshape", source.name, shape, node.output[0])


@handles("Squeeze", "Unsqueeze")
def _squeeze(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes = axes_known(builder, node, since=13)
    squeezing = node.op_type == "Squeeze"
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        fits = set(axes) <= {0, -1} and (squeezing or len(axes) == 1)
        if len(known.entries) == 1 and known.is_scalar != squeezing and fits:
            builder.shapes[node.output[0]] = replace(known, is_scalar=squeezing)
            return
    source = builder.value(node.input[0])
    shape = list(source.shape)
    if squeezing:
        chosen = [builder.axis(axis, len(shape)) for axis in axes]
        if not axes:
            if names_in(source.shape):
                raise builder.refuse("without axes, a named dimension of size 1 would be lost; give axes")
            chosen = [axis for axis, dim in enumerate(shape) if dim == 1]
        if any(shape[axis] != 1 for axis in chosen):
            raise builder.refuse(f"axes {axes} of {source} are not all 1")
        shape = [dim for axis, dim in enumerate(shape) if axis not in chosen]
    else:
        rank = len(shape) + len(axes)
        places = sorted(builder.axis(axis, rank) for axis in axes)
        if len(set(places)) != len(places):
            raise builder.refuse(f"axes {axes} name a dimension twice")
        for axis in places:
            shape.insert(axis, 1)
    builder.emit_shaped("Reshape", source.name, shape, node.output[0])


@handles("Expand")
def _expand(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    target = known_shape(builder, node.input[1], "the target shape").entries
    source = builder.value(node.input[0])
    rank = max(len(target), len(source.shape))
    wanted = (1,) * (rank - len(target)) + target
    own = (1,) * (rank - len(source.shape)) + source.shape
    # A target of -1 is no part of the specification, but exporters write it for a dimension that stays.
    shape = [have if want in (1, -1) else want for want, have in zip(wanted, own, strict=True)]
    builder.emit_shaped("Expand", source.name, shape, node.output[0])


@handles("Tile")
def _tile(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    source = builder.value(node.input[0])
    repeats = known_shape(builder, node.input[1], "how often to repeat").entries
    if len(repeats) != len(source.shape):
        raise builder.refuse(f"{len(repeats)} repeats for {source}")
    if any(isinstance(count, int) and count < 0 for count in repeats):
        raise builder.refuse(f"repeats {shape_text(repeats)} are negative")
    inner: list[int | Dim] = []
    outer: list[int | Dim] = []
    for count, dim in zip(repeats, source.shape, strict=True):
        inner += [dim] if count == 1 else [1, dim]
        outer += [dim] if count == 1 else [count, dim]
    spread = builder.emit_shaped("Reshape", source.name, inner)
    spread = builder.emit_shaped("Expand", spread, outer)
    shape = [count * dim for count, dim in zip(repeats, source.shape, strict=True)]
    builder.emit_shaped("Reshape", spread, shape, node.output[0])


@handles("Range")
def _range(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({}, only={"stash_type": 1})
    arrays = [builder.array(name) for name in node.input]
    fixed = [array for array in arrays if array is not None]
    if len(fixed) == 3 and all(array.size == 1 for array in fixed):
        builder.constant(node.output[0], _constant_range(builder, fixed))
        return
    dtype = _range_dtype(builder, node.input)
    entries = [_symbol(builder, name) for name in node.input]
    known = [entry for entry in entries if entry is not None]
    if len(known) != 3:
        raise builder.refuse("start, limit and step must be known, or follow from named dimensions, at conversion")
    start, limit, step = known
    distance = limit - start
    count = ceil_divide(start - limit, -step) if isinstance(step, int) and step < 0 else ceil_divide(distance, step)
    if count is None or step == 0 or (isinstance(count, int) and count > MOST_POSITIONS):
        raise builder.refuse(f"cannot tell how many numbers {start}, {start} + {step}, ... below {limit} are")
    count = max(count, 0) if isinstance(count, int) else count
    integers = dtype if dtype in ("int32", "int64") else "int64"
    if isinstance(start, int) and isinstance(step, int) and isinstance(count, Dim):
        attributes = {"count": (str(count),), "start": start, "step": step, "dtype": integers}
        name = builder.emit("Range", [], attributes, node.output[0] if dtype == integers else None)
    else:
        name = iota(builder, count, integers)
        if step != 1:
            name = builder.emit("Mul", [name, numbers(builder, [step], integers, is_scalar=True)])
        begin = numbers(builder, [start], integers, is_scalar=True)
        name = builder.emit("Add", [name, begin], output=node.output[0] if dtype == integers else None)
    if dtype != integers:
        builder.emit("Cast", [name], {"to": dtype}, node.output[0])


def _constant_range(builder: OnnxBuilder, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    start, limit, step = (array.reshape(())[()] for array in arrays)
    if step == 0 or not all(math.isfinite(number) for number in (start, limit, step)):
        raise builder.refuse(f"a range from {start} to {limit} by {step} has no end")
    if arrays[0].dtype.kind == "f":
        count = math.ceil((float(limit) - float(start)) / float(step))
        if count <= MOST_POSITIONS:
            return (float(start) + float(step) * np.arange(max(count, 0), dtype=np.float64)).astype(arrays[0].dtype)
    else:
        whole = range(int(start), int(limit), int(step))
        count = len(whole)
        if count <= MOST_POSITIONS:
            return (int(start) + int(step) * np.arange(count, dtype=np.int64)).astype(arrays[0].dtype)
    raise builder.refuse(f"a range of {count} numbers is too long; at most {MOST_POSITIONS}")


def _range_dtype(builder: OnnxBuilder, names: Sequence[str]) -> str:
    for name in names:
        if name in builder.shapes and name not in builder.names:
            return builder.shapes[name].dtype
    return builder.value(names[0]).dtype


def _symbol(builder: OnnxBuilder, name: str) -> int | Dim | None:
    """The one number behind an ONNX name, if it is whole, also where a size was cast to float; None otherwise."""
    known = builder.shape_value(name)
    if known is not None:
        return known.entries[0] if len(known.entries) == 1 else None
    array = builder.array(name)
    if array is not None:
        number = scalar(array)
        return int(number) if number is not None and float(number).is_integer() else None
    producers = {node.outputs[0]: node for node in builder.graph.nodes if node.op in ("Cast", "Dimensions")}
    made = producers.get(builder.value_name(name))
    while made is not None and made.op == "Cast" and DTYPES[made.attributes["to"]].itemsize >= 4:
        made = producers.get(made.inputs[0])
    if made is None or made.op != "Dimensions":
        return None
    entries = attribute_shape(made.attributes["entries"])
    return entries[0] if len(entries) == 1 else None


@handles("Transpose")
def _transpose(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    source = builder.value(node.input[0])
    order = builder.attributes({"perm": None})["perm"]
    perm = tuple(order) if order is not None else tuple(reversed(range(len(source.shape))))
    if perm == tuple(range(len(source.shape))):
        builder.emit("Identity", [source.name], output=node.output[0])
        return
    builder.emit("Transpose", [source.name], {"perm": perm}, node.output[0])


@handles("DepthToSpace", "SpaceToDepth")
def _blocks(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"blocksize": 0, "mode": "DCR"})
    size, source = found["blocksize"], builder.value(node.input[0])
    mode = found["mode"].decode() if isinstance(found["mode"], bytes) else found["mode"]
    if len(source.shape) != 4 or size < 1 or mode not in ("DCR", "CRD"):
        raise builder.refuse(f"needs (N, C, H, W), a block size and mode DCR or CRD, has {source}, {size}, {mode!r}")
    batch, depth, height, width = source.shape
    depth_first = mode == "CRD"
    if node.op_type == "DepthToSpace":
        channels = divide_exactly(depth, size * size)
        if channels is None:
            raise builder.refuse(f"blocks of {size} do not divide the depth of {source}")
        parts = (channels, size, size) if depth_first else (size, size, channels)
        cut = builder.emit_shaped("Reshape", source.name, (batch, *parts, height, width))
        perm = (0, 1, 4, 2, 5, 3) if depth_first else (0, 3, 4, 1, 5, 2)
        shape = (batch, channels, height * size, width * size)
    else:
        rows, columns = divide_exactly(height, size), divide_exactly(width, size)
        if rows is None or columns is None:
            raise builder.refuse(f"blocks of {size} do not divide {source}")
        cut = builder.emit_shaped("Reshape", source.name, (batch, depth, rows, size, columns, size))
        perm = (0, 1, 3, 5, 2, 4) if depth_first else (0, 3, 5, 1, 2, 4)
        shape = (batch, depth * (size * size), rows, columns)
    turned = builder.emit("Transpose", [cut], {"perm": perm})
    builder.emit_shaped("Reshape", turned, shape, node.output[0])
