"""Softmax and its logarithm along any axis."""

from __future__ import annotations

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter, Index
from rerank_engine.kernels import math
from rerank_engine.kernels.accumulate import Accumulator
from rerank_engine.kernels.lines import Line, each_line


def softmax(
    e: Emitter,
    *,
    source: ir.Value,
    target: ir.Value,
    outer: Index,
    length: Index,
    inner: Index,
    dtype: str,
    is_logarithm: bool,
) -> None:
    """Softmax over the middle of (outer, length, inner) floats; the largest element is taken away first.

    A line with NaN, with an infinity, or with nothing but negative infinities, becomes NaN.
    """
    b = e.b
    sums, extremes = Accumulator("sum", dtype), Accumulator("largest", dtype)

    def line(one: Line) -> None:
        def element(position: ir.Value, width: int) -> list[ir.Value]:
            return [one.load(source, position, dtype, width)]

        (largest,) = one.accumulate([extremes], element)

        def below(position: ir.Value, width: int) -> ir.Value:
            return b.fsub(one.load(source, position, dtype, width), one.spread(largest, width))

        def grown(position: ir.Value, width: int) -> list[ir.Value]:
            value = math.exponential(e, below(position, width))
            if not is_logarithm:
                one.store(value, target, position, dtype)
            return [value]

        (total,) = one.accumulate([sums], grown)

        def scale(position: ir.Value, width: int) -> None:
            value = b.fmul(one.load(target, position, dtype, width), one.spread(factor, width))
            one.store(value, target, position, dtype)

        def shift(position: ir.Value, width: int) -> None:
            one.store(b.fsub(below(position, width), one.spread(factor, width)), target, position, dtype)

        if is_logarithm:
            factor = math.logarithm(e, sums.result(e, total))
            one.each(shift)
        else:
            factor = sums.result(e, b.fdiv(e.like(total, 1.0), total))
            one.each(scale)

    each_line(e, outer, length, inner, line)
