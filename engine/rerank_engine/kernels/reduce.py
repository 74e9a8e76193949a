"""Sums, means and maxima over neighbouring axes, and softmax over rows."""

from __future__ import annotations

from llvmlite import ir

from rerank_engine.codegen.emitter import F32, Emitter, i64, pieces
from rerank_engine.kernels import math

_FLOAT = 4


def _combine(e: Emitter, kind: str, left: ir.Value, right: ir.Value) -> ir.Value:
    return e.maximum(left, right) if kind == "max" else e.b.fadd(left, right)


def reduce_row(e: Emitter, kind: str, source: ir.Value, length: int) -> ir.Value:
    """Reduce ``length`` neighbouring float32 elements to a scalar; ``kind`` is sum or max."""
    whole = length // e.lanes
    parts: list[ir.Value] = []
    if whole:
        first = e.load(source, F32, e.lanes)

        def step(index: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            more = e.load(e.at(source, e.b.mul(index, i64(_FLOAT))), F32, e.lanes)
            return [_combine(e, kind, carried[0], more)]

        _, (total,) = e.loop(e.lanes, whole * e.lanes, e.lanes, step, [first])
        parts.append(_across(e, kind, total))
    for start, width in pieces(length - whole * e.lanes, e.lanes):
        part = e.load(e.at(source, (whole * e.lanes + start) * _FLOAT), F32, width)
        parts.append(_across(e, kind, part))
    result = parts[0]
    for part in parts[1:]:
        result = _combine(e, kind, result, part)
    return result


def _across(e: Emitter, kind: str, value: ir.Value) -> ir.Value:
    return e.max_lanes(value) if kind == "max" else e.sum_lanes(value)


def reduce_middle(
    e: Emitter,
    kind: str,
    *,
    source: ir.Value,
    target: ir.Value,
    rows: ir.Value | int,
    length: int,
    inner: int,
) -> None:
    """Reduce the middle of (rows, length, inner) float32 to (rows, inner); ``kind`` is sum, mean or max."""
    b = e.b
    across = "sum" if kind == "mean" else kind

    def finish(value: ir.Value) -> ir.Value:
        return b.fmul(value, e.like(value, 1.0 / length)) if kind == "mean" else value

    def row(index: ir.Value) -> None:
        here = e.at(source, b.mul(index, i64(length * inner * _FLOAT)))
        there = e.at(target, b.mul(index, i64(inner * _FLOAT)))
        if inner == 1:
            e.store(finish(reduce_row(e, across, here, length)), there)
            return
        for start, width in pieces(inner, e.lanes):
            column = e.at(here, start * _FLOAT)

            def step(
                position: ir.Value, carried: list[ir.Value], column: ir.Value = column, width: int = width
            ) -> list[ir.Value]:
                more = e.load(e.at(column, b.mul(position, i64(inner * _FLOAT))), F32, width)
                return [_combine(e, across, carried[0], more)]

            _, (total,) = e.loop(1, length, 1, step, [e.load(column, F32, width)])
            e.store(finish(total), e.at(there, start * _FLOAT))

    e.each(rows, row)


def softmax_rows(e: Emitter, *, source: ir.Value, target: ir.Value, rows: ir.Value | int, length: int) -> None:
    """Softmax over each row of (rows, length) float32; the largest element is taken away first."""
    b = e.b

    def row(index: ir.Value) -> None:
        offset = b.mul(index, i64(length * _FLOAT))
        here, there = e.at(source, offset), e.at(target, offset)
        largest = reduce_row(e, "max", here, length)
        for_pieces = _row_steps(length, e.lanes)
        total: ir.Value | None = None
        for start, stop, width in for_pieces:

            def step(position: ir.Value, carried: list[ir.Value], width: int = width) -> list[ir.Value]:
                at = b.mul(position, i64(_FLOAT))
                grown = math.exponential(e, b.fsub(e.load(e.at(here, at), F32, width), e.splat(largest, width)))
                e.store(grown, e.at(there, at))
                return [b.fadd(carried[0], grown)]

            _, (part,) = e.loop(start, stop, width, step, [math.zero(width)])
            summed = e.sum_lanes(part)
            total = summed if total is None else b.fadd(total, summed)
        scale = b.fdiv(ir.Constant(F32, 1.0), total)
        for start, stop, width in for_pieces:

            def scale_step(position: ir.Value, _: list[ir.Value], width: int = width) -> None:
                place = e.at(there, b.mul(position, i64(_FLOAT)))
                e.store(b.fmul(e.load(place, F32, width), e.splat(scale, width)), place)

            e.loop(start, stop, width, scale_step)

    if length:
        e.each(rows, row)


def _row_steps(length: int, lanes: int) -> list[tuple[int, int, int]]:
    """Cut a row into (start, stop, width): whole vectors as one range, then the pieces of the rest."""
    whole = length // lanes * lanes
    steps = [(0, whole, lanes)] if whole else []
    return steps + [(whole + start, whole + start + width, width) for start, width in pieces(length - whole, lanes)]
