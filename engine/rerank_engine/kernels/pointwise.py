"""One loop over the result of a group of fused elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import (
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    Emitter,
    i64,
    pieces,
    widen,
    width_of,
)

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
    strides: tuple[int, ...]


def load_elements(e: Emitter, address: ir.Value, dtype: str, width: int) -> ir.Value:
    """Load ``width`` elements; a stored bool (one byte) becomes one bit."""
    value = e.load(address, ELEMENT_TYPES[dtype], width)
    return e.b.icmp_unsigned("!=", value, e.like(value, 0)) if dtype == "bool" else value


def store_elements(e: Emitter, value: ir.Value, address: ir.Value, dtype: str) -> None:
    """Store elements; one bit becomes a byte."""
    if dtype == "bool":
        value = e.b.zext(value, widen(ELEMENT_TYPES["bool"], width_of(value)))
    e.store(value, address)


def merge_dimensions(
    sizes: Sequence[ir.Value | int], dynamic_scale: int | None, strides: Sequence[tuple[int, ...]]
) -> tuple[list[tuple[bool, int]], list[tuple[int, ...]]]:
    """Drop dimensions of one and join neighbours that every operand walks through without a gap.

    Returns the dimensions as (varies at run time, constant factor) and the strides of each operand for them.

    >>> merge_dimensions([8, 1, 4], None, [(4, 4, 1), (0, 0, 0)])
    ([(False, 32)], [(1,), (0,)])
    """
    dims: list[tuple[bool, int]] = []
    walked: list[list[int]] = [[] for _ in strides]
    for axis in reversed(range(len(sizes))):
        size = sizes[axis]
        dynamic = not isinstance(size, int)
        factor = (dynamic_scale or 1) if not isinstance(size, int) else size
        if not dynamic and factor == 1:
            continue
        if (
            dims
            and not dims[0][0]
            and all(own[axis] == done[0] * dims[0][1] for own, done in zip(strides, walked, strict=True))
        ):
            dims[0] = (dynamic, dims[0][1] * factor)
            continue
        dims.insert(0, (dynamic, factor))
        for own, done in zip(strides, walked, strict=True):
            done.insert(0, own[axis])
    return dims, [tuple(done) for done in walked]


def pointwise_loop(
    e: Emitter,
    *,
    sizes: Sequence[ir.Value | int],
    candidates: ir.Value,
    dynamic_scale: int | None,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    compute: Callable[[Emitter, Sequence[ir.Value]], Sequence[ir.Value]],
) -> None:
    """Compute every element of the result.

    ``compute`` gets one value (vector or scalar) for each read and gives one for each write.
    """
    operands = [*reads, *writes]
    dims, strides = merge_dimensions(sizes, dynamic_scale, [operand.strides for operand in operands])
    b = e.b

    def one_vector(addresses: Sequence[ir.Value], inner: Sequence[int], width: int) -> None:
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
            step = own[axis] * ELEMENT_BYTES[operand.dtype]
            result.append(e.at(address, b.mul(index, i64(step))) if step else address)
        return result

    def walk(axis: int, addresses: Sequence[ir.Value]) -> None:
        if axis == len(dims):
            one_vector(addresses, [0] * len(operands), 1)
            return
        dynamic, factor = dims[axis]
        extent: ir.Value | int = b.mul(candidates, i64(factor)) if dynamic else factor
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
