"""Sums, means and maxima of neighbouring rows, with every offset checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, Carried, Emitter, Index, i64
from rerank_engine.kernels.indexing import load_index
from rerank_engine.kernels.views import View

Mode = Literal["sum", "mean", "max"]


def reduce_bags(
    e: Emitter,
    *,
    rows: ir.Value,
    dtype: str,
    row_count: Index,
    row_length: Index,
    offsets: View,
    kept: View | None,
    target: ir.Value,
    bags: Index,
    mode: Mode,
    empty_is_zero: bool,
    on_bad: Callable[[ir.Value], None],
) -> None:
    """Write for bag ``i`` what the mode makes of rows ``offsets[i]`` to ``offsets[i + 1]``.

    Offsets must not fall and must lie in [0, row_count]; ``on_bad`` gets one that does not, and its bag is left out.
    ``kept`` says which rows count at all.
    """
    b, size, element = e.b, ELEMENT_BYTES[dtype], ELEMENT_TYPES[dtype]
    limit = e.value(row_count)

    def columns(width: int, start: ir.Value, stop: ir.Value, there: ir.Value) -> Callable[[ir.Value, Carried], None]:
        def part(column: ir.Value, _: Carried) -> None:
            at = b.mul(column, i64(size))
            first = e.splat_constant(element, width, float("-inf") if mode == "max" else 0.0)

            def one(index: ir.Value, carried: Carried) -> Carried:
                total, count = carried
                place = e.at(e.at(rows, e.mul(e.mul(index, row_length), size)), at)
                value = e.load(place, element, width)
                grown = e.maximum(total, value) if mode == "max" else b.fadd(total, value)
                if kept is None:
                    return [grown, b.add(count, i64(1))]
                counts = kept.load([index])
                return [b.select(counts, grown, total), b.add(count, b.zext(counts, count.type))]

            _, (total, count) = e.loop(start, stop, 1, one, [first, i64(0)])
            if mode == "mean":
                total = b.fdiv(total, e.splat(b.sitofp(count, element), width))
            if empty_is_zero:
                total = b.select(b.icmp_signed("==", count, i64(0)), e.like(total, 0.0), total)
            e.store(total, e.at(there, at))

        return part

    def bag(index: ir.Value) -> None:
        start, stop = load_index(offsets, [index]), load_index(offsets, [b.add(index, i64(1))])
        ordered = b.and_(b.icmp_signed(">=", start, i64(0)), b.icmp_signed("<=", start, stop))
        inside = b.and_(ordered, b.icmp_signed("<=", stop, limit))
        with b.if_else(inside) as (good, bad):
            with good:
                there = e.at(target, e.mul(e.mul(index, row_length), size))
                rest: Index = 0
                for width in (e.lanes, 1):
                    rest, _ = e.loop(rest, row_length, width, columns(width, start, stop, there))
            with bad:
                on_bad(b.select(ordered, stop, start))

    e.each(bags, bag)
