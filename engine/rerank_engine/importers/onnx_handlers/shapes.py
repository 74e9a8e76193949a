"""Constants, shape arithmetic, and operators that move or rename elements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.dimensions import names_in, product
from rerank_engine.graph import Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import axes_of, handles, inputs
from rerank_engine.importers.shapes import ShapeValue, resolve_reshape

if TYPE_CHECKING:
    import onnx


@handles("Constant")
def _constant(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    from onnx import numpy_helper

    found = builder.attributes(
        {"value": None, "value_float": None, "value_floats": None, "value_int": None, "value_ints": None}
    )
    (value,) = (entry for entry in found.items() if entry[1] is not None)
    if value[0] == "value":
        array = numpy_helper.to_array(value[1])
    else:
        array = np.array(value[1], dtype=np.float32 if "float" in value[0] else np.int64)
    builder.constant(node.output[0], array)


@handles("ConstantOfShape")
def _constant_of_shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    from onnx import numpy_helper

    fill = builder.attributes({"value": None})["value"]
    number = numpy_helper.to_array(fill).reshape(()) if fill is not None else np.zeros((), np.float32)
    known = builder.shape_value(node.input[0])
    if known is None:
        raise builder.refuse("the shape must be known when the model is converted")
    if number.dtype == np.int64 and len(known.entries) == 1 and isinstance(known.entries[0], int):
        builder.shapes[node.output[0]] = ShapeValue((int(number),) * known.entries[0])
        return
    scalar = builder.own_constant(f"{node.output[0]}/fill", number)
    builder.emit_shaped("Expand", scalar, known.entries, node.output[0])


@handles("Shape")
def _shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"start": 0, "end": None})
    builder.shapes[node.output[0]] = ShapeValue(builder.value(node.input[0]).shape[found["start"] : found["end"]])


@handles("Reshape")
def _reshape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    allow_zero = bool(builder.attributes({"allowzero": 0})["allowzero"])
    target = builder.shape_value(node.input[1])
    if target is None:
        raise builder.refuse("the target shape must be known when the model is converted")
    if node.input[0] in builder.shapes:
        count = len(builder.shapes[node.input[0]].entries)
        if target.entries in ((-1,), (count,)) or (target.entries == () and count == 1):
            builder.shapes[node.output[0]] = replace(builder.shapes[node.input[0]], is_scalar=not target.entries)
            return
    source = builder.value(node.input[0])
    shape = resolve_reshape(target.entries, source.shape, allow_zero)
    if shape is None:
        raise builder.refuse(f"cannot resolve the target shape {target.entries} for {source}")
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
    axes = axes_of(builder, node, since=13)
    squeezing = node.op_type == "Squeeze"
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        if len(known.entries) == 1 and known.is_scalar != squeezing and set(axes) <= {0, -1}:
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
    target = builder.shape_value(node.input[1])
    if target is None:
        raise builder.refuse("the target shape must be known when the model is converted")
    source = builder.value(node.input[0])
    rank = max(len(target.entries), len(source.shape))
    wanted = (1,) * (rank - len(target.entries)) + target.entries
    own = (1,) * (rank - len(source.shape)) + source.shape
    shape = [have if want in (1, -1) else want for want, have in zip(wanted, own, strict=True)]
    builder.emit_shaped("Expand", source.name, shape, node.output[0])


@handles("Concat")
def _concat(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": None})["axis"]
    if any(name in builder.shapes for name in node.input):
        known = [builder.shape_value(name) for name in node.input]
        if all(value is not None for value in known):
            joined = [value for value in known if value is not None]
            if any(value.is_scalar or value.dtype != joined[0].dtype for value in joined) or axis not in (0, -1):
                raise builder.refuse("only vectors of one dtype can be joined, along axis 0")
            entries = tuple(entry for value in joined for entry in value.entries)
            builder.shapes[node.output[0]] = ShapeValue(entries, dtype=joined[0].dtype)
            return
    names = inputs(builder, node)
    axis = builder.axis(axis, len(builder.graph.values[names[0]].shape))
    builder.emit("Concat", names, {"axis": axis}, node.output[0])


@handles("Transpose")
def _transpose(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    source = builder.value(node.input[0])
    order = builder.attributes({"perm": None})["perm"]
    perm = tuple(order) if order is not None else tuple(reversed(range(len(source.shape))))
    builder.emit("Transpose", [source.name], {"perm": perm}, node.output[0])


@handles("Slice")
def _slice(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 10:
        found = builder.attributes({"starts": None, "ends": None, "axes": None})
        starts, ends = list(found["starts"]), list(found["ends"])
        axes, steps = found["axes"], [1] * len(starts)
    else:
        builder.attributes({})
        starts, ends = (builder.integers(name, "the range") for name in node.input[1:3])
        axes = builder.integers(node.input[3], "axes") if len(node.input) > 3 and node.input[3] else None
        steps = builder.integers(node.input[4], "steps") if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    axes = list(axes) if axes is not None else list(range(len(starts)))
    if any(step != 1 for step in steps):
        raise builder.refuse(f"steps {steps} are not supported; only 1 is")
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        if len(starts) != 1 or len(ends) != 1 or axes not in ([0], [-1]) or known.is_scalar:
            raise builder.refuse("a shape is cut along its only axis")
        builder.shapes[node.output[0]] = replace(known, entries=known.entries[starts[0] : ends[0]])
        return
    name = builder.value_name(node.input[0])
    if not axes:
        builder.emit("Identity", [name], output=node.output[0])
    for index, (start, end, axis) in enumerate(zip(starts, ends, axes, strict=True)):
        shape = builder.graph.values[name].shape
        axis = builder.axis(axis, len(shape))
        dim = shape[axis]
        if isinstance(dim, Dim):
            raise builder.refuse("cutting the candidate dimension is not supported")
        first, last, _ = slice(start, end).indices(dim)
        attributes = {"axis": axis, "start": first, "stop": max(first, last)}
        name = builder.emit("Slice", [name], attributes, node.output[0] if index == len(axes) - 1 else None)


@handles("Split")
def _split(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 0, "split": None, "num_outputs": None})
    source = builder.value(node.input[0])
    axis = builder.axis(found["axis"], len(source.shape))
    dim = source.shape[axis]
    if isinstance(dim, Dim):
        raise builder.refuse("cutting the candidate dimension is not supported")
    sizes = found["split"]
    if len(node.input) > 1 and node.input[1]:
        sizes = builder.integers(node.input[1], "split sizes")
    if found["num_outputs"] not in (None, len(node.output)):
        raise builder.refuse(f"num_outputs={found['num_outputs']} for {len(node.output)} outputs")
    if sizes is None:
        each = -(-dim // len(node.output))
        sizes = [min(each, dim - index * each) for index in range(len(node.output))]
        if builder.opset < 18 and dim % len(node.output):
            raise builder.refuse(f"dimension {dim} does not split into {len(node.output)} equal parts")
    if len(sizes) != len(node.output) or sum(sizes) != dim or min(sizes) < 0:
        raise builder.refuse(f"sizes {list(sizes)} do not split dimension {dim} into {len(node.output)} parts")
    start = 0
    for size, output in zip(sizes, node.output, strict=True):
        builder.emit("Slice", [source.name], {"axis": axis, "start": start, "stop": start + size}, output)
        start += size


@handles("Gather")
def _gather(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 0})["axis"]
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        picks = builder.shape_value(node.input[1])
        if picks is None or any(isinstance(pick, Dim) for pick in picks.entries):
            raise builder.refuse("an index into a shape must be constant")
        chosen = tuple(known.entries[pick] for pick in picks.entries if isinstance(pick, int))
        builder.shapes[node.output[0]] = replace(known, entries=chosen, is_scalar=picks.is_scalar)
        return
    source = builder.value(node.input[0])
    axis = builder.axis(axis, len(source.shape))
    if axis == 0:
        builder.emit("Gather", inputs(builder, node), output=node.output[0])
        return
    picks = builder.shape_value(node.input[1])
    dim = source.shape[axis]
    if picks is None or len(picks.entries) != 1 or isinstance(dim, Dim) or isinstance(picks.entries[0], Dim):
        raise builder.refuse(f"axis {axis}: only a single constant index is supported beyond axis 0")
    start = picks.entries[0] + dim if picks.entries[0] < 0 else picks.entries[0]
    cut = builder.emit("Slice", [source.name], {"axis": axis, "start": start, "stop": start + 1})
    keep = () if picks.is_scalar else (1,)
    builder.emit_shaped("Reshape", cut, source.shape[:axis] + keep + source.shape[axis + 1 :], node.output[0])
