"""The logarithm, that of one plus a number, and softplus.

``x = 2**k m`` with ``sqrt(1/2) <= m < sqrt(2)`` and ``log(x) = k ln 2 + log(m)``. With ``f = m - 1``, float32 fits
``(log(1 + f) - f + f**2 / 2) / f**3`` (the scheme of Cephes' ``logf``, S. Moshier), and float64 the series of
``2 artanh(f / (2 + f))`` (the scheme of fdlibm's ``log``, Sun Microsystems). All fits are minimax by Remez exchange,
their errors relative to the logarithm below 2^-30 for float32 and 2^-58 for float64.
"""

from __future__ import annotations

import math

from llvmlite import ir

from rerank_engine.codegen.emitter import I32, Emitter, widen, width_of
from rerank_engine.kernels.math.basic import absolute, negative
from rerank_engine.kernels.math.constants import pieces
from rerank_engine.kernels.math.exponential import LN2, exponential
from rerank_engine.kernels.math.formats import (
    FLOAT32,
    FLOAT64,
    copy_sign,
    format_of,
    integer_like,
    polynomial,
    to_bits,
)

_LN2 = {FLOAT32: pieces(LN2, (15,)), FLOAT64: pieces(LN2, (40,))}
_SQRT_HALF_BITS = {FLOAT32: 0x3F3504F3, FLOAT64: 0x3FE6A09E667F3BCD}

_CUBIC_SERIES = (
    6.92661740247892e-2,
    -1.1773784998835828e-1,
    1.1858490133798723e-1,
    -1.2386480896809998e-1,
    1.4221191436038577e-1,
    -1.6669190622678368e-1,
    2.0002075446843412e-1,
    -2.4999986210900824e-1,
    3.3333313270131903e-1,
)
"""``(log(1 + f) - f + f**2 / 2) / f**3`` for ``sqrt(1/2) - 1 <= f <= sqrt(2) - 1``."""

_ARTANH_SERIES = (
    0.14792111745271277,
    0.1531446335147866,
    0.18183546756487662,
    0.22222198947349983,
    0.28571428738255167,
    0.3999999999943654,
    0.6666666666666731,
)
"""``(2 artanh(s) - 2 s) / s**3`` in ``s**2``, for ``|s| <= (sqrt(2) - 1) / (sqrt(2) + 1)``."""

_ARTANH_OF_HALF_SERIES = (
    1.182331843583061e-4,
    4.1899642220676124e-4,
    2.2354967629827555e-3,
    1.2499681877375636e-2,
    8.333334274574912e-2,
)
"""``(2 artanh(d / 2) - d) / d**3`` in ``d**2``, for ``|d| <= 2/3``, float32."""


def binade(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split a positive normal number: ``x = 2**k m`` with ``sqrt(1/2) <= m < sqrt(2)``; returns k and m - 1, exact."""
    b, kind = e.b, format_of(x)
    bits = to_bits(e, x)
    base, shift = integer_like(e, x, _SQRT_HALF_BITS[kind]), integer_like(e, x, kind.mantissa_bits)
    # Moved so that the field of the exponent steps at sqrt(1/2) instead of at 1.
    moved = b.add(bits, integer_like(e, x, kind.bits_of_one - _SQRT_HALF_BITS[kind]))
    exponent = b.lshr(moved, shift)
    mantissa = b.and_(moved, integer_like(e, x, (1 << kind.mantissa_bits) - 1))
    fraction = b.fsub(b.bitcast(b.add(mantissa, base), x.type), e.like(x, 1.0))
    k = b.sub(exponent, integer_like(e, x, kind.exponent_bias))
    if kind is FLOAT64:
        k = b.trunc(k, widen(I32, width_of(x)))
    return b.sitofp(k, x.type), fraction


def _logarithm(e: Emitter, x: ir.Value, correction: ir.Value | None = None) -> ir.Value:
    """``log(x)`` plus a small correction."""
    b, kind = e.b, format_of(x)
    whole, f = binade(e, x)
    high, low = _LN2[kind]
    half_square = b.fmul(b.fmul(e.like(x, 0.5), f), f)
    small = b.fmul(whole, e.like(x, low)) if correction is None else e.fma(whole, e.like(x, low), correction)
    if kind is FLOAT32:
        series = polynomial(e, f, _CUBIC_SERIES)
        small = e.fma(b.fmul(b.fmul(f, f), f), series, small)
    else:
        s = b.fdiv(f, b.fadd(e.like(x, 2.0), f))
        square = b.fmul(s, s)
        tail = b.fmul(square, polynomial(e, square, _ARTANH_SERIES))
        small = e.fma(s, b.fadd(half_square, tail), small)
    value = e.fma(whole, e.like(x, high), b.fsub(f, b.fsub(half_square, small)))
    value = b.select(b.fcmp_ordered("==", x, e.like(x, math.inf)), x, value)
    value = b.select(b.fcmp_unordered("<", x, e.like(x, 0.0)), e.like(x, math.nan), value)
    return b.select(b.fcmp_ordered("==", x, e.like(x, 0.0)), e.like(x, -math.inf), value)


def logarithm(e: Emitter, x: ir.Value) -> ir.Value:
    """The natural logarithm; -infinity at zero (numbers below the smallest normal among them), NaN below."""
    return _logarithm(e, x)


def logarithm_one_plus(e: Emitter, x: ir.Value) -> ir.Value:
    """``log(1 + x)`` without loss near zero, where it is x; -infinity at -1, NaN below."""
    b, one = e.b, e.like(x, 1.0)
    sum_ = b.fadd(one, x)
    # What rounding took from the sum, by the larger of its terms first.
    x_is_small = b.fcmp_ordered("<", absolute(e, x), one)
    lost = b.select(x_is_small, b.fsub(x, b.fsub(sum_, one)), b.fsub(one, b.fsub(sum_, x)))
    return copy_sign(e, _logarithm(e, sum_, b.fdiv(lost, sum_)), x)


def softplus(e: Emitter, x: ir.Value) -> ir.Value:
    """``log(1 + exp(x))``: x far above zero, ``exp(x)`` far below."""
    b = e.b
    grown = exponential(e, negative(e, absolute(e, x)))
    if format_of(x) is FLOAT32:
        # 1 + grown lies in [1, 2], where the series needs no binade. Twice s, as s itself may be no normal number.
        double = b.fdiv(b.fadd(grown, grown), b.fadd(e.like(x, 2.0), grown))
        square = b.fmul(double, double)
        above = e.fma(b.fmul(square, polynomial(e, square, _ARTANH_OF_HALF_SERIES)), double, double)
    else:
        above = logarithm_one_plus(e, grown)
    positive = b.select(b.fcmp_ordered(">", x, e.like(x, 0.0)), x, e.like(x, 0.0))
    return b.fadd(positive, above)
