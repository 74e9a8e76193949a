"""Rows brought to zero mean and unit variance, or to unit mean square."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, Emitter, Index
from rerank_engine.kernels import math
from rerank_engine.kernels.accumulate import Accumulator
from rerank_engine.kernels.lines import Line, each_line
from rerank_engine.kernels.math.formats import is_unordered
from rerank_engine.kernels.reduce import divide_by_count
from rerank_engine.kernels.views import load_elements, store_elements


@dataclass(frozen=True)
class Normalization:
    """Addresses and constants.

    Attributes
    ----------
    source, target
        (rows, length).
    scale, bias
        (length,), or None.
    mean, inverse_deviation
        Where these results go, (rows,), or None.
    epsilon
        Added to the variance or mean square.
    dtype
        "float32" or "float64", of everything.
    """

    source: ir.Value
    target: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    mean: ir.Value | None
    inverse_deviation: ir.Value | None
    epsilon: float
    dtype: str


def normalize_rows(e: Emitter, parts: Normalization, rows: Index, length: Index, *, is_centered: bool) -> None:
    """Normalise each row of (rows, length).

    The mean is taken away before squares are summed, and what the rounding of the mean left over is corrected
    (corrected two-pass algorithm: Chan, Golub and LeVeque, *Algorithms for Computing the Sample Variance*, 1983), so
    that a mean far above the deviation costs no digits.
    """
    b, dtype = e.b, parts.dtype
    sums = Accumulator("sum", dtype)

    def loaded(one: Line, position: ir.Value, width: int) -> ir.Value:
        return one.load(parts.source, position, dtype, width)

    def over_length(total: ir.Value) -> ir.Value:
        return divide_by_count(e, total, length, dtype)

    def inverse(mean_square: ir.Value) -> ir.Value:
        padded = b.fadd(mean_square, e.like(mean_square, parts.epsilon))
        return sums.result(e, b.fdiv(e.like(padded, 1.0), math.square_root(e, padded)))

    def finish(one: Line, position: ir.Value, width: int, value: ir.Value) -> None:
        place = e.mul(position, ELEMENT_BYTES[dtype])
        scale, bias = (
            load_elements(e, e.at(array, place), dtype, width) if array is not None else None
            for array in (parts.scale, parts.bias)
        )
        if scale is not None and bias is not None:
            value = e.fma(value, scale, bias)
        elif scale is not None:
            value = b.fmul(value, scale)
        elif bias is not None:
            value = b.fadd(value, bias)
        one.store(value, parts.target, position, dtype)

    def at_row(array: ir.Value, one: Line) -> ir.Value:
        return e.at(array, e.mul(one.number, ELEMENT_BYTES[dtype]))

    def centered(one: Line) -> None:
        (total,) = one.accumulate([sums], lambda position, width: [loaded(one, position, width)])
        mean = sums.result(e, over_length(total))

        def deviation(position: ir.Value, width: int) -> ir.Value:
            return b.fsub(loaded(one, position, width), e.splat(mean, width))

        def moments(position: ir.Value, width: int) -> list[ir.Value]:
            value = deviation(position, width)
            return [value, b.fmul(value, value)]

        left_over, mean_square = (over_length(part) for part in one.accumulate([sums, sums], moments))
        # Rounding alone can make the variance of equal elements negative.
        variance = b.fsub(mean_square, b.fmul(left_over, left_over))
        factor = inverse(e.maximum(variance, e.like(variance, 0.0)))
        left_over = sums.result(e, left_over)

        def apply(position: ir.Value, width: int) -> None:
            exact = b.fsub(deviation(position, width), e.splat(left_over, width))
            finish(one, position, width, b.fmul(exact, e.splat(factor, width)))

        one.each(apply)
        if parts.mean is not None:
            # Of infinities the mean is infinite and what is left over NaN.
            exact = b.fadd(mean, left_over)
            store_elements(e, b.select(is_unordered(e, exact), mean, exact), at_row(parts.mean, one), dtype)
        if parts.inverse_deviation is not None:
            store_elements(e, factor, at_row(parts.inverse_deviation, one), dtype)

    def plain(one: Line) -> None:
        def square(position: ir.Value, width: int) -> list[ir.Value]:
            value = loaded(one, position, width)
            return [b.fmul(value, value)]

        (total,) = one.accumulate([sums], square)
        factor = inverse(over_length(total))

        def apply(position: ir.Value, width: int) -> None:
            finish(one, position, width, b.fmul(loaded(one, position, width), e.splat(factor, width)))

        one.each(apply)

    each_line(e, rows, length, 1, centered if is_centered else plain)
