"""Sums, means, products and extremes over any axes of an array without gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import (
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    F32,
    F64,
    I64,
    Carried,
    Emitter,
    Index,
    element_of,
    i64,
    widen,
    width_of,
)
from rerank_engine.kernels.accumulate import Accumulator, accumulate_columns, accumulate_row
from rerank_engine.kernels.lines import each_vector
from rerank_engine.kernels.views import load_elements, row_strides, store_elements


@dataclass(frozen=True)
class Group:
    """Neighbouring dimensions of which all, or none, are reduced.

    Attributes
    ----------
    size
        Elements.
    is_reduced
        Whether they are reduced.
    """

    size: Index
    is_reduced: bool


@dataclass(frozen=True)
class Source:
    """An array that the reduced elements are computed from.

    Attributes
    ----------
    address
        Of the first element.
    dtype
        Key of :data:`rerank_engine.graph.DTYPES`.
    steps
        Elements from one index of each group to the next; in the last group 1, or 0 where it is broadcast.
    """

    address: ir.Value
    dtype: str
    steps: Sequence[Index]


def reduce_groups(
    e: Emitter,
    kind: str,
    dtype: str,
    *,
    sources: Sequence[Source],
    compute: Callable[[Emitter, Sequence[ir.Value]], ir.Value],
    target: ir.Value,
    groups: Sequence[Group],
) -> None:
    """Reduce every second group; ``kind`` is that of an :class:`Accumulator`, or ``"mean"``.

    Kept and reduced groups alternate, and at least one is reduced. Vectors lie along the last group. What is reduced
    is computed from the elements of the sources.
    """
    accumulator = Accumulator("sum" if kind == "mean" else kind, dtype)
    reduced = [(group.size, place) for place, group in enumerate(groups) if group.is_reduced]
    kept = [(group.size, place) for place, group in enumerate(groups) if not group.is_reduced]
    target_steps = row_strides(e, [size for size, _ in kept])
    has_columns = not groups[-1].is_reduced
    outer = kept[:-1] if has_columns else kept
    count: Index = 1
    for size, _ in reduced:
        count = e.mul(count, size)

    def finish(total: ir.Value) -> ir.Value:
        return accumulator.result(e, divide_by_count(e, total, count, dtype) if kind == "mean" else total)

    last = len(groups) - 1

    def moved(bases: Sequence[ir.Value], index: Index, place: int) -> list[ir.Value]:
        """Addresses after ``index`` steps in a group."""
        return [
            e.at(base, e.mul(e.mul(index, source.steps[place]), ELEMENT_BYTES[source.dtype]))
            for base, source in zip(bases, sources, strict=True)
        ]

    def load(addresses: Sequence[ir.Value], width: int) -> ir.Value:
        values = []
        for source, address in zip(sources, addresses, strict=True):
            is_broadcast = source.steps[last] == 0
            value = load_elements(e, address, source.dtype, 1 if is_broadcast else width)
            values.append(e.splat(value, width) if is_broadcast and width > 1 else value)
        element = compute(e, values)
        return e.splat(element, width) if width_of(element) < width else element

    def innermost(bases: Sequence[ir.Value], width: int) -> ir.Value:
        size, place = reduced[-1]

        def produce(position: ir.Value, lanes: int) -> list[ir.Value]:
            return [load(moved(bases, position, place), lanes)]

        if has_columns:
            return accumulate_columns(e, [accumulator], size, width, produce)[0]
        return accumulate_row(e, [accumulator], size, produce)[0]

    def total(bases: Sequence[ir.Value], width: int, level: int = 0) -> ir.Value:
        """Reduce the groups from ``level`` on."""
        if level == len(reduced) - 1:
            return innermost(bases, width)
        size, place = reduced[level]

        def more(index: ir.Value, carried: Carried) -> Carried:
            part = total(moved(bases, index, place), width, level + 1)
            return [accumulator.combine(e, carried[0], accumulator.as_far(e, part))]

        return e.loop(0, size, 1, more, [accumulator.start(e, accumulator.far, width)])[1][0]

    def one(indices: Sequence[ir.Value]) -> None:
        here = [source.address for source in sources]
        to_offset: Index = 0
        for index, (_, place), target_step in zip(indices, outer, target_steps, strict=False):
            here = moved(here, index, place)
            to_offset = e.add(to_offset, e.mul(index, target_step))
        there = e.at(target, e.mul(to_offset, ELEMENT_BYTES[dtype]))
        if not has_columns:
            store_elements(e, finish(total(here, 1)), there, dtype)
            return

        def columns(start: ir.Value, width: int) -> None:
            place = e.at(there, e.mul(start, ELEMENT_BYTES[dtype]))
            store_elements(e, finish(total(moved(here, start, last), width)), place, dtype)

        each_vector(e, kept[-1][0], columns)

    e.nest([size for size, _ in outer], one)


def divide_by_count(e: Emitter, total: ir.Value, count: Index, dtype: str) -> ir.Value:
    """A mean; NaN over no floats, 0 over no integers, whose quotient is truncated."""
    b, width = e.b, width_of(total)
    if element_of(total) in (F32, F64):
        if isinstance(count, int):
            return b.fdiv(total, e.like(total, float(count)))
        return b.fdiv(total, e.splat(b.sitofp(count, element_of(total)), width))
    # In 64 bits, where no count is -1 and none is cut to 0: such divisions trap.
    unsigned = dtype.startswith("u")
    wide = widen(I64, width)
    if total.type != wide:
        total = b.zext(total, wide) if unsigned else b.sext(total, wide)
    divisor = e.value(count)
    divisor = e.splat(b.select(b.icmp_signed(">", divisor, i64(0)), divisor, i64(1)), width)
    mean = b.udiv(total, divisor) if unsigned else b.sdiv(total, divisor)
    return mean if ELEMENT_TYPES[dtype] == I64 else b.trunc(mean, widen(ELEMENT_TYPES[dtype], width))
