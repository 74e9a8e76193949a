"""Copies: blocks of rows for Concat and Slice, any order of dimensions for Transpose."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, Emitter, Index, i64, pieces

_UNROLL_LIMIT = 8
"""A row of at most this many vectors is copied without an inner loop."""


def copy_row(e: Emitter, source: ir.Value, target: ir.Value, length: Index, dtype: str) -> None:
    """Copy ``length`` neighbouring elements."""
    element, size = ELEMENT_TYPES[dtype], ELEMENT_BYTES[dtype]
    if not isinstance(length, int):
        start: Index = 0
        for width in (e.lanes, 1):

            def part(index: ir.Value, _: list[ir.Value], width: int = width) -> None:
                offset = e.b.mul(index, i64(size))
                e.store(e.load(e.at(source, offset), element, width), e.at(target, offset))

            start, _ = e.loop(start, length, width, part)
        return
    whole = length // e.lanes
    done = 0
    if whole > _UNROLL_LIMIT:

        def step(index: ir.Value, _: list[ir.Value]) -> None:
            offset = e.b.mul(index, i64(size))
            e.store(e.load(e.at(source, offset), element, e.lanes), e.at(target, offset))

        done = whole * e.lanes
        e.loop(0, done, e.lanes, step)
    for start, width in pieces(length - done, e.lanes):
        offset = (done + start) * size
        e.store(e.load(e.at(source, offset), element, width), e.at(target, offset))


def block_copy(
    e: Emitter,
    *,
    source: ir.Value,
    target: ir.Value,
    rows: Index,
    length: Index,
    source_stride: Index,
    target_stride: Index,
    source_start: Index = 0,
    target_start: Index = 0,
    dtype: str,
) -> None:
    """Copy ``length`` elements of each row; strides and starts are in elements."""
    size = ELEMENT_BYTES[dtype]
    if isinstance(length, int) and length == 0:
        return

    def row(index: ir.Value) -> None:
        here = e.at(source, e.mul(e.add(e.mul(index, source_stride), source_start), size))
        there = e.at(target, e.mul(e.add(e.mul(index, target_stride), target_start), size))
        copy_row(e, here, there, length, dtype)

    e.each(rows, row)


def strided_copy(
    e: Emitter,
    *,
    source: ir.Value,
    target: ir.Value,
    sizes: Sequence[Index],
    strides: Sequence[Index],
    dtype: str,
) -> None:
    """Write the target in order while reading the source with ``strides`` (in elements) per target dimension."""
    size, element = ELEMENT_BYTES[dtype], ELEMENT_TYPES[dtype]
    outer, steps, run = _joined(e, sizes, strides)

    def walk(axis: int, source_index: Index, target_index: Index) -> None:
        if axis == len(outer):
            here = e.at(source, e.mul(source_index, size))
            there = e.at(target, e.mul(e.mul(target_index, run), size))
            if isinstance(run, int) and run == 1:
                e.store(e.load(here, element), there)
            else:
                copy_row(e, here, there, run, dtype)
            return
        e.each(
            outer[axis],
            lambda index: walk(
                axis + 1,
                e.add(source_index, e.mul(index, steps[axis])),
                e.add(e.mul(target_index, outer[axis]), index),
            ),
        )

    walk(0, 0, 0)


def _joined(
    e: Emitter, sizes: Sequence[Index], strides: Sequence[Index]
) -> tuple[Sequence[Index], Sequence[Index], Index]:
    """Take the innermost dimensions that lie without a gap in the source as one run of elements.

    Returns the sizes and strides of the other dimensions, and the length of the run.
    """
    axis, run = len(sizes), 1
    while axis > 0:
        stride, size = strides[axis - 1], sizes[axis - 1]
        if not isinstance(stride, int) or stride != run:
            break
        axis -= 1
        if not isinstance(size, int):
            return sizes[:axis], strides[:axis], e.mul(size, run)
        run *= size
    return sizes[:axis], strides[:axis], run
