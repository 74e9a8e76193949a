"""The exponential, what it is less one, and the logistic function.

``x = k ln 2 + r`` with ``|r| <= ln 2 / 2`` (Cody and Waite, *Software Manual for the Elementary Functions*, 1980), so
that ``exp(x) = 2**k exp(r)``. The series of ``(exp(r) - 1 - r) / r**2`` is a minimax fit by Remez exchange, its error
relative to r below 2^-31 for float32 and 2^-61 for float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels.math.basic import negative
from rerank_engine.kernels.math.constants import natural_logarithm_of_two, pieces
from rerank_engine.kernels.math.formats import (
    FLOAT32,
    FLOAT64,
    FloatFormat,
    clamp,
    copy_sign,
    format_of,
    integer_like,
    is_unordered,
    polynomial,
    short_polynomial,
    to_bits,
)

LN2 = natural_logarithm_of_two(160)


@dataclass(frozen=True)
class _Exponential:
    """What differs between the formats.

    Attributes
    ----------
    ln2
        High part, whose product with k is exact, and low part.
    overflow_from
        The smallest number whose exponential is infinite.
    finite_below
        A little less, whose exponential's inverse is below the smallest normal number.
    underflow_below
        The smallest number whose exponential is normal.
    minus_one_below
        Below it, ``exp(x) - 1`` is -1.
    series
        From the highest power down.
    power_series
        The same of ``(2**r - 1) / r`` for ``|r| <= 1/2``, its error relative to 2**r below 2^-28 and 2^-58.
    """

    ln2: tuple[float, ...]
    overflow_from: float
    finite_below: float
    underflow_below: float
    minus_one_below: float
    series: tuple[float, ...]
    power_series: tuple[float, ...]


_BY_FORMAT: dict[FloatFormat, _Exponential] = {
    FLOAT32: _Exponential(
        ln2=pieces(LN2, (15,)),
        overflow_from=88.72283935546875,
        finite_below=88.0,
        underflow_below=-87.33654022216797,
        minus_one_below=-20.0,
        series=(
            1.9913661074398779e-4,
            1.3940325785837706e-3,
            8.333274110434613e-3,
            4.166636604128892e-2,
            1.6666666811729275e-1,
            5.000000042270155e-1,
        ),
        power_series=(
            1.5353362069097277e-4,
            1.3398874393958847e-3,
            9.618437356956441e-3,
            5.550332471190932e-2,
            2.4022647913636862e-1,
            6.931472028550316e-1,
        ),
    ),
    FLOAT64: _Exponential(
        ln2=pieces(LN2, (40,)),
        overflow_from=709.7827128933841,
        finite_below=709.0,
        underflow_below=-708.3964185322641,
        minus_one_below=-40.0,
        series=(
            2.0924162796665793e-09,
            2.510869371030425e-08,
            2.7557243829918186e-07,
            2.7557245279852326e-06,
            2.4801587359038765e-05,
            1.9841269884956133e-04,
            1.3888888888867808e-03,
            8.33333333332215e-03,
            4.16666666666667e-02,
            1.6666666666666677e-01,
            0.5,
        ),
        power_series=(
            4.4347711353740444e-10,
            7.0737832428247669e-09,
            1.0178199572818942e-07,
            1.3215435282349214e-06,
            1.5252733493125614e-05,
            1.5403530457111993e-04,
            1.3333558146774622e-03,
            9.6181291075942012e-03,
            5.5504108664820083e-02,
            2.4022650695910131e-01,
            6.9314718055994533e-01,
        ),
    ),
}

_HALF_OVERFLOW_FROM = 710.475860073944
"""The smallest float64 whose exponential is infinite even when halved."""


def _reduce(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """``x = k ln 2 + r``: r, k, and an integer whose low bits are those of k."""
    kind = format_of(x)
    magic = e.like(x, kind.round_magic)
    shifted = e.fma(x, e.like(x, 1 / math.log(2)), magic)
    whole = e.b.fsub(shifted, magic)
    high, low = _BY_FORMAT[kind].ln2
    rest = e.fma(whole, e.like(x, -high), x)
    return e.fma(whole, e.like(x, -low), rest), whole, to_bits(e, shifted)


def exponential_series(e: Emitter, r: ir.Value) -> ir.Value:
    """``(exp(r) - 1 - r) / r**2`` for ``|r| <= ln 2 / 2``."""
    return polynomial(e, r, _BY_FORMAT[format_of(r)].series)


def bounded_exponential(e: Emitter, x: ir.Value, halvings: int = 0) -> ir.Value:
    """``exp(x) / 2**halvings`` where that is a normal number; anything elsewhere, also for NaN."""
    rest, _, k = _reduce(e, x)
    value = e.fma(e.b.fmul(exponential_series(e, rest), rest), rest, rest)
    value = e.b.fadd(value, e.like(x, 1.0))
    if halvings:
        k = e.b.sub(k, integer_like(e, x, halvings))
    shift = integer_like(e, x, format_of(x).mantissa_bits)
    return e.b.bitcast(e.b.add(to_bits(e, value), e.b.shl(k, shift)), x.type)


def exponential(e: Emitter, x: ir.Value) -> ir.Value:
    """``e**x``; infinity above 88.72 (float64: 709.78), zero below -87.34 (-708.39)."""
    b = e.b
    limits = _BY_FORMAT[format_of(x)]
    high, low = e.like(x, limits.overflow_from), e.like(x, limits.underflow_below)
    value = bounded_exponential(e, clamp(e, x, limits.underflow_below, limits.overflow_from))
    value = b.select(b.fcmp_ordered(">=", x, high), e.like(x, math.inf), value)
    value = b.select(b.fcmp_ordered("<", x, low), e.like(x, 0.0), value)
    return b.select(is_unordered(e, x), x, value)


def bounded_power_of_two(e: Emitter, x: ir.Value) -> ir.Value:
    """``2**x`` for x up to 1; zero where that is below the smallest normal number, anything above 1; NaN stays."""
    b, kind = e.b, format_of(x)
    magic = e.like(x, kind.round_magic)
    shifted = b.fadd(x, magic)
    rest = b.fsub(x, b.fsub(shifted, magic))
    value = e.fma(polynomial(e, rest, _BY_FORMAT[kind].power_series), rest, e.like(x, 1.0))
    shift, one = integer_like(e, x, kind.mantissa_bits), integer_like(e, x, kind.bits_of_one)
    scale = b.bitcast(b.add(b.shl(to_bits(e, shifted), shift), one), x.type)
    is_small = b.fcmp_ordered("<", x, e.like(x, 1.0 - kind.exponent_bias))
    return b.select(is_small, e.like(x, 0.0), b.fmul(value, scale))


def exponential_minus_one(e: Emitter, x: ir.Value) -> ir.Value:
    """``e**x - 1`` without loss near zero, where it is x; -1 far below."""
    b, kind = e.b, format_of(x)
    limits = _BY_FORMAT[kind]
    inside = clamp(e, x, limits.minus_one_below, limits.overflow_from)
    rest, whole, k = _reduce(e, inside)
    near = e.fma(b.fmul(exponential_series(e, rest), rest), rest, rest)
    # With half of 2^k: at k = 128 (1024) the whole of it is no number any more.
    shift = integer_like(e, x, kind.mantissa_bits)
    half_bits = b.add(b.shl(k, shift), integer_like(e, x, kind.bits_of_one - (1 << kind.mantissa_bits)))
    half = b.bitcast(half_bits, x.type)
    far = e.fma(half, near, b.fsub(half, e.like(x, 0.5)))
    far = b.fadd(far, far)
    value = b.select(b.fcmp_ordered("==", whole, e.like(x, 0.0)), near, far)
    value = b.select(b.fcmp_ordered(">=", x, e.like(x, limits.overflow_from)), e.like(x, math.inf), value)
    value = b.select(b.fcmp_ordered("<", x, e.like(x, limits.minus_one_below)), e.like(x, -1.0), value)
    return b.select(is_unordered(e, x), x, copy_sign(e, value, x))


def one_plus_exponential(e: Emitter, x: ir.Value) -> ir.Value:
    """``1 + e**x`` where that is finite and ``e**x`` is normal, by a short chain; anything elsewhere; NaN stays."""
    b, kind = e.b, format_of(x)
    rest, _, k = _reduce(e, x)
    series = short_polynomial(e, rest, _BY_FORMAT[kind].series)
    less_one = e.fma(series, b.fmul(rest, rest), rest)
    bits = b.add(b.shl(k, integer_like(e, x, kind.mantissa_bits)), integer_like(e, x, kind.bits_of_one))
    scale = b.bitcast(bits, x.type)
    return e.fma(scale, less_one, b.fadd(scale, e.like(x, 1.0)))


def sigmoid(e: Emitter, x: ir.Value) -> ir.Value:
    """``1 / (1 + exp(-x))``; zero where that is below the smallest normal number."""
    limits = _BY_FORMAT[format_of(x)]
    # Beyond these limits the result is 1, or below the smallest normal number.
    inside = clamp(e, negative(e, x), limits.underflow_below, limits.finite_below)
    return e.b.fdiv(e.like(x, 1.0), one_plus_exponential(e, inside))


def half_exponential(e: Emitter, x: ir.Value) -> ir.Value:
    """``e**x / 2`` of a float64 that is not negative, up to where that itself is infinite; NaN stays."""
    b = e.b
    value = bounded_exponential(e, clamp(e, x, 0.0, _HALF_OVERFLOW_FROM), halvings=1)
    value = b.select(b.fcmp_ordered(">=", x, e.like(x, _HALF_OVERFLOW_FROM)), e.like(x, math.inf), value)
    return b.select(is_unordered(e, x), x, value)
