"""One loop over the result of a group of fused elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, Emitter, Index, i64, pieces, width_of
from rerank_engine.graph import Dim, Shape
from rerank_engine.kernels.views import load_elements, store_elements

_UNROLL_LIMIT = 4
"""An inner dimension of at most this many vectors is written without a loop."""


@dataclass(frozen=True)
class Operand:
    """A tensor that the loop reads or writes.

    Attributes
    ----------
    address
        Of its first element.
    dtype
        Of its elements.
    strides
        Elements to the next index, per dimension of the loop; 0 where it is broadcast.
    """

    address: ir.Value
    dtype: str
    strides: Shape


def merge_dimensions(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Drop dimensions of one and join neighbours that every operand walks through without a gap.

    Returns the dimensions, and the strides of each operand for them.

    >>> merge_dimensions((8, 1, 4), [(4, 4, 1), (0, 0, 0)])
    ((32,), [(1,), (0,)])
    >>> merge_dimensions((Dim("N"), 50, 4), [(200, 4, 1), (0, 4, 1)])
    ((Dim('N'), 200), [(200, 1), (0, 1)])
    """
    dims: list[int | Dim] = []
    walked: list[list[int | Dim]] = [[] for _ in strides]
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        if size == 1:
            continue
        if dims and all(own[axis] == done[0] * dims[0] for own, done in zip(strides, walked, strict=True)):
            dims[0] = dims[0] * size
            continue
        dims.insert(0, size)
        for own, done in zip(strides, walked, strict=True):
            done.insert(0, own[axis])
    return tuple(dims), [tuple(done) for done in walked]


def pointwise_loop(
    e: Emitter,
    *,
    shape: Shape,
    size: Callable[[int | Dim], Index],
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    compute: Callable[[Emitter, Sequence[ir.Value]], Sequence[ir.Value]],
) -> None:
    """Compute every element of the result.

    ``size`` gives a dimension's size for the candidates at hand; ``compute`` gets one value (vector or scalar) for
    each read and gives one for each write.
    """
    operands = [*reads, *writes]
    dims, strides = merge_dimensions(shape, [operand.strides for operand in operands])

    def one_vector(addresses: Sequence[ir.Value], inner: Sequence[int | Dim], width: int) -> None:
        values = []
        for operand, address, stride in zip(reads, addresses, inner, strict=False):
            if stride == 1 or width == 1:
                values.append(load_elements(e, address, operand.dtype, width))
            else:
                # An innermost stride is 1 or 0: operands are contiguous, or broadcast.
                values.append(e.splat(load_elements(e, address, operand.dtype, 1), width))
        results = compute(e, values)
        for operand, address, value in zip(writes, addresses[len(reads) :], results, strict=True):
            wide = e.splat(value, width) if width_of(value) < width else value
            store_elements(e, wide, address, operand.dtype)

    def moved(addresses: Sequence[ir.Value], axis: int, index: ir.Value) -> list[ir.Value]:
        result = []
        for operand, address, own in zip(operands, addresses, strides, strict=True):
            step = e.mul(size(own[axis]), ELEMENT_BYTES[operand.dtype])
            result.append(e.at(address, e.mul(index, step)))
        return result

    def walk(axis: int, addresses: Sequence[ir.Value]) -> None:
        if axis == len(dims):
            one_vector(addresses, [0] * len(operands), 1)
            return
        extent = size(dims[axis])
        if axis < len(dims) - 1:
            e.each(extent, lambda index: walk(axis + 1, moved(addresses, axis, index)))
            return
        inner = [own[axis] for own in strides]

        def part(width: int) -> Callable[[ir.Value, list[ir.Value]], None]:
            return lambda index, _: one_vector(moved(addresses, axis, index), inner, width)

        if isinstance(extent, int):
            whole = extent // e.lanes * e.lanes
            if whole > _UNROLL_LIMIT * e.lanes:
                e.loop(0, whole, e.lanes, part(e.lanes))
            else:
                whole = 0
            for start, width in pieces(extent - whole, e.lanes):
                one_vector(moved(addresses, axis, i64(whole + start)), inner, width)
            return
        rest, _ = e.loop(0, extent, e.lanes, part(e.lanes))
        e.loop(rest, extent, 1, part(1))

    walk(0, [operand.address for operand in operands])
