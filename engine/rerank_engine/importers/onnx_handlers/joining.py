"""Operators that join, cut and pad along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.dimensions import divide_exactly
from rerank_engine.graph import DTYPES, Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles, inputs
from rerank_engine.importers.positions import cut, given, known_integers, known_shape
from rerank_engine.importers.shapes import MOST_ENTRIES, ShapeValue, is_at_least, take

if TYPE_CHECKING:
    import onnx

_MODES = {7: ("constant", "reflect", "edge"), 19: ("constant", "reflect", "edge", "wrap")}
"""Modes of Pad by the opset that brought them."""


@handles("Concat")
def _concat(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": None})["axis"]
    if axis is None:
        raise builder.refuse("attribute 'axis' is missing")
    if any(name in builder.shapes for name in node.input):
        known = [builder.shape_value(name) for name in node.input]
        joined = [value for value in known if value is not None]
        vectors = len(joined) == len(known) and not any(value.is_scalar for value in joined)
        if vectors and axis in (0, -1) and len({value.dtype for value in joined}) == 1:
            entries = tuple(entry for value in joined for entry in value.entries)
            if len(entries) <= MOST_ENTRIES:
                builder.shapes[node.output[0]] = ShapeValue(entries, dtype=joined[0].dtype)
                return
    names = inputs(builder, node)
    axis = builder.axis(axis, len(builder.graph.values[names[0]].shape))
    if len(names) == 1:
        builder.emit("Identity", names, output=node.output[0])
        return
    builder.emit("Concat", names, {"axis": axis}, node.output[0])


@handles("Slice")
def _slice(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    starts, ends, axes, steps = _slice_ranges(builder, node)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise builder.refuse(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    known = builder.shapes.get(node.input[0])
    if known is not None and not known.is_scalar and len(axes) == 1 and axes[0] in (0, -1):
        start, stop, step = starts[0], ends[0], steps[0]
        if isinstance(start, int) and isinstance(stop, int):
            if step == 0:
                raise builder.refuse("step 0 goes nowhere")
            builder.shapes[node.output[0]] = take(known, start, stop if stop >= -(2**31) else None, step)
            return
    name = builder.value_name(node.input[0])
    rank = len(builder.graph.values[name].shape)
    places = [builder.axis(axis, rank) for axis in axes]
    if len(set(places)) != len(places):
        raise builder.refuse(f"axes {axes} name a dimension twice")
    if not axes:
        builder.emit("Identity", [name], output=node.output[0])
    for index, (start, stop, axis, step) in enumerate(zip(starts, ends, places, steps, strict=True)):
        name = cut(builder, name, axis, start, stop, step, node.output[0] if index == len(axes) - 1 else None)


def _slice_ranges(
    builder: OnnxBuilder, node: onnx.NodeProto
) -> tuple[Sequence[int | Dim], Sequence[int | Dim], list[int], list[int]]:
    if builder.opset < 10:
        found = builder.attributes({"starts": None, "ends": None, "axes": None})
        if found["starts"] is None or found["ends"] is None:
            raise builder.refuse("attributes 'starts' and 'ends' must be given")
        starts, ends = tuple(found["starts"]), tuple(found["ends"])
        axes, steps = found["axes"], None
    else:
        builder.attributes({})
        starts, ends = (known_shape(builder, name, "the range").entries for name in node.input[1:3])
        axes = known_integers(builder, node.input[3], "axes") if given(node, 3) else None
        steps = known_integers(builder, node.input[4], "steps") if given(node, 4) else None
    return (
        starts,
        ends,
        list(axes) if axes is not None else list(range(len(starts))),
        list(steps) if steps is not None else [1] * len(starts),
    )


@handles("Split")
def _split(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    understood = {"axis": 0, **({"split": None} if builder.opset < 13 else {})}
    found = builder.attributes({**understood, **({"num_outputs": None} if builder.opset >= 18 else {})})
    source = builder.value(node.input[0])
    axis = builder.axis(found["axis"], len(source.shape))
    dim, parts = source.shape[axis], len(node.output)
    sizes: Sequence[int | Dim] | None = found.get("split")
    if given(node, 1):
        sizes = known_shape(builder, node.input[1], "the sizes of the parts").entries
    if found.get("num_outputs") not in (None, parts):
        raise builder.refuse(f"num_outputs={found['num_outputs']} for {parts} outputs")
    if sizes is None:
        sizes = _equal_parts(builder, dim, parts)
    total: int | Dim = 0
    for size in sizes:
        total = total + size
    if len(sizes) != parts or total != dim or any(isinstance(size, int) and size < 0 for size in sizes):
        raise builder.refuse(f"sizes {', '.join(map(str, sizes))} do not split dimension {dim} into {parts} parts")
    start: int | Dim = 0
    for size, output in zip(sizes, node.output, strict=True):
        if output:
            cut(builder, source.name, axis, start, start + size, output=output)
        start = start + size


def _equal_parts(builder: OnnxBuilder, dim: int | Dim, parts: int) -> list[int | Dim]:
    each = divide_exactly(dim, parts)
    if each is not None:
        return [each] * parts
    if builder.opset < 18 or isinstance(dim, Dim):
        raise builder.refuse(f"dimension {dim} does not split into {parts} equal parts")
    most = -(-dim // parts)
    return [max(0, min(most, dim - index * most)) for index in range(parts)]


@handles("Pad")
def _pad(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    source = builder.value(node.input[0])
    rank = len(source.shape)
    pads: Sequence[int | Dim]
    axes = list(range(rank))
    if builder.opset < 11:
        found = builder.attributes({"mode": "constant", "pads": None, "value": 0.0})
        if found["pads"] is None:
            raise builder.refuse("attribute 'pads' is missing")
        pads, fill = tuple(found["pads"]), ""
        value = builder.own_constant(f"{node.output[0]}/fill", np.array(found["value"], DTYPES[source.dtype]))
    else:
        found = builder.attributes({"mode": "constant"})
        pads, fill = known_shape(builder, node.input[1], "the pads").entries, given(node, 2)
        if given(node, 3):
            axes = [builder.axis(axis, rank) for axis in known_integers(builder, node.input[3], "axes")]
        value = _fill_value(builder, fill, source.dtype, node.output[0])
    mode = found["mode"].decode() if isinstance(found["mode"], bytes) else found["mode"]
    known = _MODES[max(opset for opset in _MODES if opset <= builder.opset)]
    if mode not in known:
        raise builder.refuse(f"mode {mode!r} is not one of {', '.join(known)}")
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise builder.refuse(f"{len(pads)} pads do not fit {len(axes)} axes")
    name = source.name
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        name = _crop(builder, name, axis, before, after)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        name = _pad_axis(builder, name, axis, _not_negative(before), _not_negative(after), mode, value)
    builder.emit("Identity", [name], output=node.output[0])


def _fill_value(builder: OnnxBuilder, fill: str, dtype: str, output: str) -> str:
    """Name of the number that fills constant padding, without dimensions."""
    if not fill:
        return builder.own_constant(f"{output}/fill", np.zeros((), DTYPES[dtype]))
    value = builder.value(fill)
    if value.dtype != dtype or any(dim != 1 for dim in value.shape):
        raise builder.refuse(f"the value to pad with must be one {dtype}, is {value}")
    return value.name if not value.shape else builder.emit_shaped("Reshape", value.name, ())


def _not_negative(pad: int | Dim) -> int | Dim:
    return max(pad, 0) if isinstance(pad, int) else pad


def _crop(builder: OnnxBuilder, name: str, axis: int, before: int | Dim, after: int | Dim) -> str:
    """Take away what negative pads say, before anything is added, as ONNX Runtime does."""
    for pad in (before, after):
        if isinstance(pad, Dim) and not is_at_least(pad, 0) and is_at_least(0, pad):
            raise builder.refuse(f"a pad of {pad} is negative; only constant pads may be")
    start = -before if isinstance(before, int) and before < 0 else 0
    stop = after if isinstance(after, int) and after < 0 else 2**31 - 1
    return name if (start, stop) == (0, 2**31 - 1) else cut(builder, name, axis, start, stop)


def _pad_axis(
    builder: OnnxBuilder, name: str, axis: int, before: int | Dim, after: int | Dim, mode: str, value: str
) -> str:
    if before == 0 and after == 0:
        return name
    shape = builder.graph.values[name].shape
    dim = shape[axis]
    if mode != "constant" and any(isinstance(pad, Dim) for pad in (before, after)):
        raise builder.refuse(f"mode {mode!r} with pads that depend on named dimensions is not supported")
    needed = (
        max(pad for pad in (before, after) if isinstance(pad, int)) + (mode == "reflect")
        if mode in ("reflect", "wrap")
        else 1
    )
    if mode != "constant" and isinstance(dim, int) and dim < needed:
        raise builder.refuse(f"mode {mode!r} needs at least {needed} elements along axis {axis}, there are {dim}")

    def part(pad: int | Dim, at_start: bool) -> str:
        if mode == "constant":
            return builder.emit_shaped("Expand", value, (*shape[:axis], pad, *shape[axis + 1 :]))
        assert isinstance(pad, int)
        if mode == "edge":
            edge = cut(builder, name, axis, 0, 1) if at_start else cut(builder, name, axis, -1, 2**31 - 1)
            return builder.emit_shaped("Expand", edge, (*shape[:axis], pad, *shape[axis + 1 :]))
        if mode == "wrap":
            return cut(builder, name, axis, -pad, 2**31 - 1) if at_start else cut(builder, name, axis, 0, pad)
        return cut(builder, name, axis, pad, 0, -1) if at_start else cut(builder, name, axis, -2, -2 - pad, -1)

    parts = [part(before, True)] if before != 0 else []
    parts.append(name)
    if after != 0:
        parts.append(part(after, False))
    return builder.emit("Concat", parts, {"axis": axis})
