"""Copies: blocks of rows for Concat and Slice, any order of dimensions for Transpose."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, Emitter, i64, pieces

_UNROLL_LIMIT = 8
"""A row of at most this many vectors is copied without an inner loop."""


def copy_row(e: Emitter, source: ir.Value, target: ir.Value, length: int, dtype: str) -> None:
    """Copy ``length`` neighbouring elements."""
    element, size = ELEMENT_TYPES[dtype], ELEMENT_BYTES[dtype]
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
    rows: ir.Value | int,
    length: int,
    source_stride: int,
    target_stride: int,
    source_start: int = 0,
    target_start: int = 0,
    dtype: str,
) -> None:
    """Copy ``length`` elements of each row; strides and starts are in elements."""
    size = ELEMENT_BYTES[dtype]
    if length == 0:
        return

    def row(index: ir.Value) -> None:
        here = e.at(source, e.b.add(e.b.mul(index, i64(source_stride * size)), i64(source_start * size)))
        there = e.at(target, e.b.add(e.b.mul(index, i64(target_stride * size)), i64(target_start * size)))
        copy_row(e, here, there, length, dtype)

    e.each(rows, row)


def strided_copy(
    e: Emitter,
    *,
    source: ir.Value,
    target: ir.Value,
    sizes: Sequence[ir.Value | int],
    strides: Sequence[int],
    dtype: str,
) -> None:
    """Write the target in order while reading the source with ``strides`` (in elements) per target dimension."""
    size, element = ELEMENT_BYTES[dtype], ELEMENT_TYPES[dtype]

    def walk(axis: int, source_index: ir.Value, target_index: ir.Value) -> None:
        if axis == len(sizes):
            value = e.load(e.at(source, e.b.mul(source_index, i64(size))), element)
            e.store(value, e.at(target, e.b.mul(target_index, i64(size))))
            return
        extent = sizes[axis]
        extent_value = i64(extent) if isinstance(extent, int) else extent
        e.each(
            extent,
            lambda index: walk(
                axis + 1,
                e.b.add(source_index, e.b.mul(index, i64(strides[axis]))),
                e.b.add(e.b.mul(target_index, extent_value), index),
            ),
        )

    walk(0, i64(0), i64(0))
