"""Sliding windows laid out side by side, so that a convolution is a matrix product and pooling a reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product as combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import divide_exactly
from rerank_engine.graph import Dim, Node, Shape, Value
from rerank_engine.ops.registry import Array, Operator, attribute, refuse, register, rows_of_first

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Index
    from rerank_engine.codegen.lowering import Lowering


def window_count(size: int | Dim, kernel: int, stride: int, dilation: int, before: int, after: int) -> int | Dim | None:
    """Positions of a window along one dimension; None when that is no polynomial of a named dimension.

    >>> window_count(5, 3, 1, 1, 1, 1), window_count(Dim("T"), 3, 1, 1, 1, 1), window_count(Dim("T"), 2, 2, 1, 0, 0)
    (5, Dim('T'), None)
    """
    span = size + (before + after - dilation * (kernel - 1) - 1)
    if isinstance(span, int):
        return span // stride + 1
    steps = divide_exactly(span, stride)
    return None if steps is None else steps + 1


def _geometry(node: Node) -> list[tuple[int, int, int, int, int]]:
    """Kernel, stride, dilation, padding before and after, for each spatial dimension."""
    kernel = node.attributes["kernel"]
    rank = len(kernel)
    strides, dilations, pads = (attribute(node, name) for name in ("strides", "dilations", "pads"))
    if not rank or (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank):
        raise refuse(node, f"kernel {kernel}, strides {strides}, dilations {dilations} and pads {pads} do not fit")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise refuse(node, "kernel, strides and dilations must be at least 1, pads at least 0")
    return list(zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True))


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    geometry = _geometry(node)
    if len(value.shape) != len(geometry) + 2:
        raise refuse(node, f"needs (batch, channels, {len(geometry)} spatial dimensions), has {value}")
    counts = []
    for dim, (kernel, stride, dilation, before, after) in zip(value.shape[2:], geometry, strict=True):
        count = window_count(dim, kernel, stride, dilation, before, after)
        if count is None:
            raise refuse(node, f"stride {stride} over dimension {dim}, whose size is known only at run time")
        if isinstance(count, int) and count < 0:
            raise refuse(node, f"kernel {kernel} is larger than dimension {dim} with its padding")
        counts.append(count)
    size = math.prod(kernel for kernel, *_ in geometry)
    return [(value.dtype, (value.shape[0], *counts, value.shape[1], size))]


def _reference(
    inputs: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    (value,) = inputs
    kernel, strides, dilations = (attributes[name] for name in ("kernel", "strides", "dilations"))
    rank = len(kernel)
    pads = [(0, 0), (0, 0), *zip(attributes["pads"][:rank], attributes["pads"][rank:], strict=True)]
    fill = attributes["fill"] if value.dtype.kind == "f" else int(attributes["fill"])
    padded = np.pad(value, pads, constant_values=fill)
    counts = shapes[0][1 : 1 + rank]
    parts = []
    for offset in combinations(*map(range, kernel)):
        window = tuple(
            slice(at * dilation, at * dilation + count * stride, stride)
            for at, dilation, stride, count in zip(offset, dilations, strides, counts, strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        parts.append(part[(slice(None), slice(None), *(slice(0, count) for count in counts))])
    return [np.ascontiguousarray(np.moveaxis(np.stack(parts, axis=-1), 1, -2)).reshape(shapes[0])]


def _lower(lowering: Lowering, node: Node) -> None:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import ELEMENT_TYPES, I1

    e = lowering.emitter
    geometry = _geometry(node)
    rank = len(geometry)
    source, output = lowering.view(node.inputs[0]), lowering.view(node.outputs[0])
    kernel = [size for size, *_ in geometry]
    batch, channels = source.sizes[:2]
    number = attribute(node, "fill")
    element = I1 if source.dtype == "bool" else ELEMENT_TYPES[source.dtype]
    fill = ir.Constant(element, number if source.dtype.startswith("float") else int(number))

    def one(indices: list[ir.Value]) -> None:
        row, places, channel, offsets = indices[0], indices[1 : 1 + rank], indices[1 + rank], indices[2 + rank :]
        inside: ir.Value | None = None
        reads: list[Index] = [row, channel]
        flat: Index = 0
        for axis, (size, stride, dilation, before, after) in enumerate(geometry):
            flat = e.add(e.mul(flat, size), offsets[axis])
            at = e.value(e.sub(e.add(e.mul(places[axis], stride), e.mul(offsets[axis], dilation)), before))
            if before or after:
                here = e.b.icmp_unsigned("<", at, e.value(source.sizes[2 + axis]))
                inside = here if inside is None else e.b.and_(inside, here)
                at = e.b.select(here, at, e.value(0))
            reads.append(at)
        # An index outside reads the first element instead, which lies in memory even when the array is empty.
        value = source.load(reads)
        output.store(value if inside is None else e.b.select(inside, value, fill), [row, *places, channel, flat])

    e.nest([batch, *output.sizes[1 : 1 + rank], channels, *kernel], one)


register(
    Operator(
        "Windows",
        "windows that slide over (batch, channels, ...), as (batch, positions..., channels, elements of a window)",
        _infer,
        _reference,
        attributes={"kernel": None, "strides": (1,), "dilations": (1,), "pads": (0, 0), "fill": 0.0},
        lower=_lower,
        per_row=rows_of_first,
    )
)
