"""Elements and rows at computed positions. Every position is checked before memory is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from llvmlite import ir

from rerank_engine.codegen.emitter import (
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    F32,
    F64,
    I1,
    I64,
    Emitter,
    Index,
    element_of,
    i64,
)
from rerank_engine.kernels.copy import copy_row
from rerank_engine.kernels.views import View

Reduction = Literal["none", "add", "mul", "max", "min"]
OnBad = Callable[[ir.Value], None]


def load_index(view: View, indices: Sequence[Index]) -> ir.Value:
    """Load one integer as 64 bits."""
    value = view.load(indices)
    if element_of(value) == I64:
        return value
    return view.e.b.zext(value, I64) if view.dtype.startswith("u") else view.e.b.sext(value, I64)


def normal_index(e: Emitter, index: ir.Value, size: Index) -> tuple[ir.Value, ir.Value]:
    """Count negative positions from the end; return the position and whether it lies inside."""
    rows = e.value(size)
    chosen = e.b.select(e.b.icmp_signed("<", index, i64(0)), e.b.add(index, rows), index)
    return chosen, e.b.icmp_unsigned("<", chosen, rows)


def gather_nd(e: Emitter, *, data: View, places: View, target: ir.Value, batch_dims: int, on_bad: OnBad) -> None:
    """Copy ``data[batch, place...]`` for the places in the last dimension of ``places``."""
    depth = places.sizes[-1]
    assert isinstance(depth, int)
    run, kind = _trailing(e, data, batch_dims + depth), data.dtype

    def one(indices: list[ir.Value]) -> None:
        offset, inside = _offset(data, places, indices, batch_dims, depth, on_bad)
        number = _row_number(e, indices, places.sizes[:-1])
        with e.b.if_then(inside):
            here = e.at(data.address, e.mul(offset, ELEMENT_BYTES[kind]))
            there = e.at(target, e.mul(e.mul(number, run), ELEMENT_BYTES[kind]))
            copy_row(e, here, there, run, kind)

    e.nest(places.sizes[:-1], one)


def scatter_nd(e: Emitter, *, data: View, places: View, updates: ir.Value, reduction: Reduction, on_bad: OnBad) -> None:
    """Write rows of ``updates`` into ``data`` at the places, one after the other."""
    depth = places.sizes[-1]
    assert isinstance(depth, int)
    run, kind = _trailing(e, data, depth), data.dtype

    def one(indices: list[ir.Value]) -> None:
        offset, inside = _offset(data, places, indices, 0, depth, on_bad)
        number = _row_number(e, indices, places.sizes[:-1])
        with e.b.if_then(inside):
            there = e.at(data.address, e.mul(offset, ELEMENT_BYTES[kind]))
            here = e.at(updates, e.mul(e.mul(number, run), ELEMENT_BYTES[kind]))
            if reduction == "none":
                copy_row(e, here, there, run, kind)
            else:
                _combine_row(e, here, there, run, kind, reduction)

    e.nest(places.sizes[:-1], one)


def gather_elements(e: Emitter, *, data: View, places: View, target: View, axis: int, on_bad: OnBad) -> None:
    """Take ``data`` at the indices of each element of ``places``, with the element itself along ``axis``."""

    def one(indices: list[ir.Value]) -> None:
        index = load_index(places, indices)
        chosen, inside = normal_index(e, index, data.sizes[axis])
        with e.b.if_else(inside) as (good, bad):
            with good:
                target.store(data.load([*indices[:axis], chosen, *indices[axis + 1 :]]), indices)
            with bad:
                on_bad(index)

    e.nest(places.sizes, one)


def scatter_elements(
    e: Emitter, *, data: View, places: View, updates: View, axis: int, reduction: Reduction, on_bad: OnBad
) -> None:
    """Write each element of ``updates`` into ``data``, at its own indices but for ``axis``, one after the other."""

    def one(indices: list[ir.Value]) -> None:
        index = load_index(places, indices)
        chosen, inside = normal_index(e, index, data.sizes[axis])
        with e.b.if_else(inside) as (good, bad):
            with good:
                place = [*indices[:axis], chosen, *indices[axis + 1 :]]
                value = updates.load(indices)
                if reduction != "none":
                    value = combine(e, reduction, data.dtype, data.load(place), value)
                data.store(value, place)
            with bad:
                on_bad(index)

    e.nest(places.sizes, one)


def combine(e: Emitter, reduction: Reduction, dtype: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Combine two numbers; NaN stays, integers wrap."""
    b, is_float = e.b, element_of(left) in (F32, F64)
    if reduction == "add":
        return b.fadd(left, right) if is_float else b.add(left, right)
    if reduction == "mul":
        return b.fmul(left, right) if is_float else b.mul(left, right)
    if is_float:
        return (e.maximum if reduction == "max" else e.minimum)(left, right)
    compare = b.icmp_unsigned if dtype.startswith("u") else b.icmp_signed
    return b.select(compare(">" if reduction == "max" else "<", left, right), left, right)


def _combine_row(e: Emitter, here: ir.Value, there: ir.Value, run: Index, dtype: str, reduction: Reduction) -> None:
    size, element = ELEMENT_BYTES[dtype], ELEMENT_TYPES[dtype]
    start: Index = 0
    for width in (e.lanes, 1):

        def part(index: ir.Value, _: list[ir.Value], width: int = width) -> None:
            offset = e.b.mul(index, i64(size))
            place = e.at(there, offset)
            old, new = e.load(place, element, width), e.load(e.at(here, offset), element, width)
            e.store(combine(e, reduction, dtype, old, new), place)

        start, _ = e.loop(start, run, width, part)


def _offset(
    data: View, places: View, indices: Sequence[ir.Value], batch_dims: int, depth: int, on_bad: OnBad
) -> tuple[Index, ir.Value]:
    """Elements from the start of ``data`` to the place, and whether it lies inside; a place outside is reported."""
    e = data.e
    offset: Index = 0
    every: ir.Value = ir.Constant(I1, 1)
    for index, stride in zip(indices[:batch_dims], data.strides[:batch_dims], strict=True):
        offset = e.add(offset, e.mul(index, stride))
    for part in range(depth):
        index = load_index(places, [*indices, i64(part)])
        axis = batch_dims + part
        chosen, inside = normal_index(e, index, data.sizes[axis])
        with e.b.if_then(e.b.not_(inside), likely=False):
            on_bad(index)
        every = e.b.and_(every, inside)
        offset = e.add(offset, e.mul(chosen, data.strides[axis]))
    return offset, every


def _trailing(e: Emitter, view: View, first: int) -> Index:
    run: Index = 1
    for size in view.sizes[first:]:
        run = e.mul(run, size)
    return run


def _row_number(e: Emitter, indices: Sequence[ir.Value], sizes: Sequence[Index]) -> Index:
    number: Index = 0
    for index, size in zip(indices, sizes, strict=True):
        number = e.add(e.mul(number, size), index)
    return number
