"""Operators that move elements or only rename dimensions: Reshape, Transpose, Concat, Slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.errors import InputError
from rerank_engine.graph import Dim, Node, Shape, Value, attribute_shape, shape_text
from rerank_engine.ops.ranges import ceil_divide
from rerank_engine.ops.registry import Array, Operator, attribute, normal_axis, refuse, register, rows_aligned

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]

END = 2**62
"""A ``stop`` of a slice that means the end of the dimension, whatever its size; its negative means the start."""


def _infer_reshape(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    shape = attribute_shape(node.attributes["shape"])
    if product(shape) != product(value.shape):
        raise refuse(node, f"cannot reshape {shape_text(value.shape)} to {shape_text(shape)}")
    return [(value.dtype, shape)]


def _reference_reshape(inputs: Sequence[Array], _: Attributes, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    return [inputs[0].reshape(shapes[0])]


def _infer_transpose(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    order = node.attributes["perm"]
    if sorted(order) != list(range(len(value.shape))):
        raise refuse(node, f"perm {tuple(order)} does not fit shape {shape_text(value.shape)}")
    return [(value.dtype, tuple(value.shape[axis] for axis in order))]


def _lower_transpose(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    source = lowering.view(node.inputs[0]).permuted(node.attributes["perm"])
    copy.strided_copy(
        lowering.emitter,
        source=source.address,
        target=lowering.address(node.outputs[0]),
        sizes=source.sizes,
        strides=source.strides,
        dtype=source.dtype,
    )


def _infer_concat(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    axis = normal_axis(node, node.attributes["axis"], len(inputs[0].shape))
    if any(value.dtype != inputs[0].dtype for value in inputs):
        raise refuse(node, f"inputs differ in dtype: {', '.join(map(str, inputs))}")
    total: int | Dim = 0
    for value in inputs:
        rest = value.shape[:axis] + value.shape[axis + 1 :]
        if len(value.shape) != len(inputs[0].shape) or rest != inputs[0].shape[:axis] + inputs[0].shape[axis + 1 :]:
            raise refuse(node, f"inputs do not fit along axis {axis}: {', '.join(map(str, inputs))}")
        total = total + value.shape[axis]
    return [(inputs[0].dtype, (*inputs[0].shape[:axis], total, *inputs[0].shape[axis + 1 :]))]


def _reference_concat(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    return [np.concatenate(inputs, axis=attributes["axis"])]


def _lower_concat(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    e = lowering.emitter
    output = lowering.values[node.outputs[0]]
    axis = node.attributes["axis"] % len(output.shape)
    row_length = lowering.rows(output.shape[axis:])
    start: Any = 0
    for name in node.inputs:
        length = lowering.rows(lowering.values[name].shape[axis:])
        copy.block_copy(
            e,
            source=lowering.address(name),
            target=lowering.address(node.outputs[0]),
            rows=lowering.rows(output.shape[:axis]),
            length=length,
            source_stride=length,
            target_stride=row_length,
            target_start=start,
            dtype=output.dtype,
        )
        start = e.add(start, length)


def slice_bounds(node: Node, dim: int | Dim) -> tuple[int | Dim, int | Dim]:
    """First index of a slice and its number of elements.

    The range must lie inside the dimension: nothing is cut to fit. With named dimensions that shows at run time.

    Raises
    ------
    UnsupportedOperatorError
        The number depends on a named dimension in a way that is no polynomial, or the range reaches outside.
    """
    start, step = node.attributes["start"], attribute(node, "step")
    (stop,) = attribute_shape((node.attributes["stop"],))
    if step == 0:
        raise refuse(node, "step 0 goes nowhere")
    first: int | Dim = dim + start if start < 0 else dim - 1 if step < 0 and start >= END else start
    last = stop
    if isinstance(stop, int):
        if stop <= -END:
            last = -1 if step < 0 else 0
        else:
            last = dim if stop >= END else dim + stop if stop < 0 else stop
    count = ceil_divide(last - first if step > 0 else first - last, abs(step))
    if count is None:
        raise refuse(node, f"range {start}:{stop}:{step} of dimension {dim}, whose size is known only at run time")
    if isinstance(dim, int) and isinstance(count, int) and isinstance(first, int):
        final = first + (count - 1) * step
        if count < 0 or (count > 0 and not (0 <= first < dim and 0 <= final < dim)):
            raise refuse(node, f"range {start}:{stop}:{step} reaches outside a dimension of {dim}")
    return first, count


def _infer_slice(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    axis = normal_axis(node, node.attributes["axis"], len(value.shape))
    _, count = slice_bounds(node, value.shape[axis])
    if isinstance(count, int) and count < 0:
        raise refuse(node, f"the range of dimension {value.shape[axis]} has {count} elements")
    return [(value.dtype, (*value.shape[:axis], count, *value.shape[axis + 1 :]))]


def _reference_slice(inputs: Sequence[Array], attributes: Attributes, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    axis, start, step = (attributes[name] for name in ("axis", "start", "step"))
    (source,), count = inputs, shapes[0][axis]
    size = source.shape[axis]
    first = size + start if start < 0 else size - 1 if step < 0 and start >= END else start
    final = first + (count - 1) * step
    if count and not (0 <= first < size and 0 <= final < size):
        raise InputError(f"cannot cut {count} elements from {first} by {step} along axis {axis} of {source.shape}")
    picked = np.arange(count) * step + first
    return [np.take(source, picked, axis=axis)]


def _rests_on_sizes(node: Node, inputs: Sequence[Value]) -> bool:
    """Whether the range may lie outside a named dimension."""
    dim = inputs[0].shape[node.attributes["axis"] % len(inputs[0].shape)]
    first, count = slice_bounds(node, dim)
    is_whole = first == 0 and count == dim and attribute(node, "step") == 1
    return not is_whole and any(isinstance(entry, Dim) for entry in (dim, first, count))


def _per_row_off_axis(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Rows stay independent when the axis at hand is not the first one."""
    return node.attributes["axis"] % len(outputs[0].shape) != 0 and rows_aligned(node, inputs, outputs)


def _lower_slice(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    e = lowering.emitter
    source, output = lowering.values[node.inputs[0]], lowering.values[node.outputs[0]]
    axis, step = node.attributes["axis"] % len(source.shape), attribute(node, "step")
    dim = source.shape[axis]
    first, count = slice_bounds(node, dim)
    if _rests_on_sizes(node, [source]):
        _require_inside(lowering, node, dim, first, count)
    inner = lowering.rows(source.shape[axis + 1 :])
    here, there = lowering.address(node.inputs[0]), lowering.address(node.outputs[0])
    if step == 1:
        copy.block_copy(
            e,
            source=here,
            target=there,
            rows=lowering.rows(source.shape[:axis]),
            length=lowering.rows(output.shape[axis:]),
            source_stride=lowering.rows(source.shape[axis:]),
            target_stride=lowering.rows(output.shape[axis:]),
            source_start=e.mul(lowering.size(first), inner),
            dtype=source.dtype,
        )
        return
    view = lowering.view(node.inputs[0])
    start = e.at(here, e.mul(e.mul(lowering.size(first), inner), copy.ELEMENT_BYTES[source.dtype]))
    strides = [*view.strides[:axis], e.mul(view.strides[axis], step), *view.strides[axis + 1 :]]
    copy.strided_copy(
        e, source=start, target=there, sizes=lowering.sizes(node.outputs[0]), strides=strides, dtype=source.dtype
    )


def _require_inside(lowering: Lowering, node: Node, dim: int | Dim, first: int | Dim, count: int | Dim) -> None:
    """Report a dimension that does not hold the range; nothing is read then."""
    e, step = lowering.emitter, attribute(node, "step")
    b = e.b
    size, start, length = (e.value(lowering.size(entry)) for entry in (dim, first, count))
    zero = e.value(0)
    final = b.add(start, b.mul(b.sub(length, e.value(1)), e.value(step)))
    ends = [b.and_(b.icmp_signed(">=", end, zero), b.icmp_signed("<", end, size)) for end in (start, final)]
    filled = b.and_(b.icmp_signed(">", length, zero), b.and_(*ends))
    inside = b.or_(b.icmp_signed("==", length, zero), filled)
    message = (
        f"Slice node {node.name!r} cuts {node.attributes['start']}:{node.attributes['stop']}:{step} from dimension"
        f" {dim}, which is {{value}}: too short"
    )
    with b.if_then(b.not_(inside), likely=False):
        lowering.report(message, size)
        b.ret_void()


register(
    Operator(
        "Reshape",
        "other dimensions for the same elements; costs nothing",
        _infer_reshape,
        _reference_reshape,
        attributes={"shape": None},
    )
)
register(
    Operator(
        "Transpose",
        "reorder dimensions",
        _infer_transpose,
        lambda inputs, attributes, _: [np.asarray(np.transpose(inputs[0], attributes["perm"]), order="C")],
        attributes={"perm": None},
        lower=_lower_transpose,
        per_row=lambda node, inputs, outputs: node.attributes["perm"][0] == 0 and rows_aligned(node, inputs, outputs),
    )
)
register(
    Operator(
        "Concat",
        "join along an axis",
        _infer_concat,
        _reference_concat,
        attributes={"axis": None},
        lower=_lower_concat,
        per_row=_per_row_off_axis,
    )
)
register(
    Operator(
        "Slice",
        "a range inside one axis; a negative start or stop counts from the end, a stop may be an expression",
        _infer_slice,
        _reference_slice,
        attributes={"axis": None, "start": None, "stop": None, "step": 1},
        lower=_lower_slice,
        per_row=_per_row_off_axis,
        may_refuse_sizes=_rests_on_sizes,
    )
)
