"""Powers, with every special case of C99's ``pow`` (annex F.9.4.4).

float32 computes ``exp(y log(x))`` in float64, whose 29 further bits are enough. float64 carries the logarithm as an
unevaluated sum of two floats (T. J. Dekker, *A floating-point technique for extending the available precision*, 1971),
with products made exact by splitting, since fused multiply-add is not on every target. A power of whole numbers that is
a float comes out exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter, widen, width_of
from rerank_engine.kernels.math.basic import absolute, negative
from rerank_engine.kernels.math.constants import pieces
from rerank_engine.kernels.math.exponential import LN2, exponential, exponential_series
from rerank_engine.kernels.math.formats import (
    FLOAT32,
    FLOAT64,
    clamp,
    format_of,
    integer_like,
    is_unordered,
    polynomial,
    to_bits,
    to_double,
)
from rerank_engine.kernels.math.logarithm import binade, logarithm
from rerank_engine.kernels.math.rounding import truncate

_SPLIT_BITS = 27
"""Low bits of a factor that are cut off, so that products of the parts are exact."""

_QUINTIC_SERIES = (
    0.11946183275647056,
    0.11680446554067639,
    0.13336011164225645,
    0.15384565764763447,
    0.18181818722570464,
    0.22222222218926443,
    0.28571428571438345,
    0.3999999999999999,
)
"""``(2 artanh(s) - 2 s - 2 s**3 / 3) / s**5`` in ``s**2``, minimax, its error relative to the whole below 2^-73."""

_TWO_THIRDS = pieces(Fraction(2, 3), (53,))
_LN2_PARTS = pieces(LN2, (40,))
_LARGEST_EXPONENT = 2.0**65
"""Of a base other than one, any larger exponent overflows or underflows too."""

_OVERFLOW_ABOVE, _UNDERFLOW_BELOW = 709.79, -708.4


class _Pair(NamedTuple):
    """An unevaluated sum whose second term is below the first one's last place."""

    high: ir.Value
    low: ir.Value


def power(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """``x**y``; NaN for a base below zero and an exponent that is no whole number; one for ``y = 0`` and ``x = 1``."""
    b = e.b
    one, zero, infinity = e.like(x, 1.0), e.like(x, 0.0), e.like(x, math.inf)
    base = absolute(e, x)
    limited = clamp(e, y, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    if format_of(x) is FLOAT32:
        product = b.fmul(to_double(e, limited), logarithm(e, to_double(e, base)))
        size = b.fptrunc(exponential(e, product), x.type)
    else:
        size = _exponential_of_pair(e, _product(e, _logarithm(e, base), limited))
    at_end = b.or_(b.fcmp_ordered("==", base, zero), b.fcmp_ordered("==", base, infinity))
    at_end = b.or_(at_end, b.fcmp_ordered("==", absolute(e, y), infinity))
    grows = b.xor(b.fcmp_ordered(">", base, one), b.fcmp_ordered("<", y, zero))
    size = b.select(at_end, b.select(grows, infinity, zero), size)
    size = b.select(b.fcmp_ordered("==", base, one), one, size)
    whole = b.fcmp_ordered("==", truncate(e, y), y)
    half = b.fmul(y, e.like(y, 0.5))
    odd = b.and_(whole, b.fcmp_ordered("!=", truncate(e, half), half))
    below = b.icmp_signed("<", to_bits(e, x), integer_like(e, x, 0))
    value = b.select(b.and_(odd, below), negative(e, size), size)
    undefined = b.and_(b.fcmp_ordered("<", x, zero), b.fcmp_ordered(">", x, negative(e, infinity)))
    value = b.select(b.and_(undefined, b.not_(whole)), e.like(x, math.nan), value)
    value = b.select(b.or_(is_unordered(e, x), is_unordered(e, y)), e.like(x, math.nan), value)
    return b.select(b.or_(b.fcmp_ordered("==", y, zero), b.fcmp_ordered("==", x, one)), one, value)


def _split(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    mask = integer_like(e, x, -1 << _SPLIT_BITS)
    high = e.b.bitcast(e.b.and_(to_bits(e, x), mask), x.type)
    return high, e.b.fsub(x, high)


def _multiply(e: Emitter, left: ir.Value, right: ir.Value) -> _Pair:
    """The product of two floats and what rounding took from it."""
    b = e.b
    product = b.fmul(left, right)
    left_high, left_low = _split(e, left)
    right_high, right_low = _split(e, right)
    lost = b.fsub(b.fmul(left_high, right_high), product)
    lost = b.fadd(b.fadd(lost, b.fmul(left_high, right_low)), b.fmul(left_low, right_high))
    return _Pair(product, b.fadd(lost, b.fmul(left_low, right_low)))


def _add(e: Emitter, larger: ir.Value, smaller: ir.Value) -> _Pair:
    """The sum and what rounding took from it; the first term is the larger one, or zero."""
    total = e.b.fadd(larger, smaller)
    return _Pair(total, e.b.fsub(smaller, e.b.fsub(total, larger)))


def _logarithm(e: Emitter, x: ir.Value) -> _Pair:
    """The logarithm of a positive number, right to about 66 bits: ``k ln 2 + 2 artanh(f / (2 + f))``."""
    b, two = e.b, e.like(x, 2.0)
    whole, f = binade(e, x)
    below = _add(e, two, f)
    ratio = b.fdiv(f, below.high)
    back = _multiply(e, ratio, below.high)
    left = b.fsub(b.fsub(b.fsub(f, back.high), back.low), b.fmul(ratio, below.low))
    s = _Pair(ratio, b.fdiv(left, below.high))
    square = _multiply(e, s.high, s.high)
    square_low = e.fma(b.fmul(two, s.high), s.low, square.low)
    cube = _multiply(e, square.high, s.high)
    cube_low = b.fadd(cube.low, e.fma(square.high, s.low, b.fmul(square_low, s.high)))
    high, low = (e.like(x, part) for part in _TWO_THIRDS)
    third = _multiply(e, cube.high, high)
    third_low = b.fadd(third.low, e.fma(cube.high, low, b.fmul(cube_low, high)))
    quintic = b.fmul(b.fmul(cube.high, square.high), polynomial(e, square.high, _QUINTIC_SERIES))
    sum_ = _add(e, b.fmul(two, s.high), third.high)
    small = b.fadd(sum_.low, b.fadd(e.fma(two, s.low, third_low), quintic))
    ln2_high, ln2_low = _LN2_PARTS
    total = _add(e, b.fmul(whole, e.like(x, ln2_high)), sum_.high)
    small = b.fadd(total.low, e.fma(whole, e.like(x, ln2_low), small))
    return _add(e, total.high, small)


def _product(e: Emitter, pair: _Pair, factor: ir.Value) -> _Pair:
    exact = _multiply(e, pair.high, factor)
    return _Pair(exact.high, e.fma(pair.low, factor, exact.low))


def _exponential_of_pair(e: Emitter, x: _Pair) -> ir.Value:
    b, kind = e.b, FLOAT64
    high = clamp(e, x.high, _UNDERFLOW_BELOW, _OVERFLOW_ABOVE)
    magic = e.like(high, kind.round_magic)
    shifted = e.fma(high, e.like(high, 1 / math.log(2)), magic)
    whole = b.fsub(shifted, magic)
    ln2_high, ln2_low = (e.like(high, part) for part in _LN2_PARTS)
    first = b.fsub(high, b.fmul(whole, ln2_high))
    small = b.fsub(x.low, b.fmul(whole, ln2_low))
    rest = _add(e, first, small)
    # first may be the smaller one; then what is lost is below the last place of a rest that is small itself.
    tail = e.fma(b.fmul(rest.high, rest.high), exponential_series(e, rest.high), rest.low)
    start = _add(e, e.like(high, 1.0), rest.high)
    value = b.fadd(start.high, b.fadd(start.low, tail))
    # Scaled in two steps, the first towards one: at both ends the power of two itself is no normal number.
    grows = b.fcmp_ordered(">", high, e.like(high, 0.0))
    step = b.select(grows, integer_like(e, high, -1), integer_like(e, high, 1))
    k = b.add(to_bits(e, shifted), step)
    scaled = b.add(to_bits(e, value), b.shl(k, integer_like(e, high, kind.mantissa_bits)))
    factor = b.select(grows, e.like(high, 2.0), e.like(high, 0.5))
    value = b.fmul(b.bitcast(scaled, widen(kind.element, width_of(high))), factor)
    value = b.select(b.fcmp_ordered(">=", x.high, e.like(high, _OVERFLOW_ABOVE)), e.like(high, math.inf), value)
    return b.select(b.fcmp_ordered("<=", x.high, e.like(high, _UNDERFLOW_BELOW)), e.like(high, 0.0), value)
