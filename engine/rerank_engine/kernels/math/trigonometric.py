"""Sine, cosine, tangent and their inverses, in float64; float32 is widened and rounded once.

The angle is reduced by ``angles``, for any finite value. The series are minimax fits by Remez exchange with relative
errors below 2^-58; the ranges of the inverses are those of Cephes (S. Moshier): ``arctan`` by thirds of its range, the
arcsine beyond 1/2 by the half angle.
"""

from __future__ import annotations

import math
from fractions import Fraction

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels.math.angles import reduce_angle
from rerank_engine.kernels.math.basic import absolute, negative, square_root
from rerank_engine.kernels.math.constants import pi
from rerank_engine.kernels.math.formats import FLOAT64, copy_sign, integer_like, polynomial, through_double, to_bits

_SINE_SERIES = (
    1.5896795654054653e-10,
    -2.50507581150146e-08,
    2.755731369191568e-06,
    -1.9841269829807808e-04,
    8.333333333322413e-03,
    -1.6666666666666632e-01,
)
"""``(sin(x) - x) / x**3`` in ``x**2`` for ``|x| <= pi / 4``."""

_COSINE_SERIES = (
    -1.1359647835602578e-11,
    2.0875723273939322e-09,
    -2.7557314352338906e-07,
    2.480158728948221e-05,
    -1.3888888888874125e-03,
    4.16666666666666e-02,
)
"""``(cos(x) - 1 + x**2 / 2) / x**4`` in ``x**2``, there too."""

_ARCSINE_SERIES = (
    0.03270229335409885,
    -0.02111695860845088,
    0.021790845922474378,
    0.003672088969617743,
    0.010789351124376468,
    0.011397286743132293,
    0.01398101944400071,
    0.017351595410961557,
    0.022372215911718122,
    0.030381942675038767,
    0.044642857175291914,
    0.07499999999970092,
    0.16666666666666763,
)
"""``(arcsin(x) - x) / x**3`` in ``x**2`` for ``|x| <= 1/2``."""

_ARCTANGENT_SERIES = (
    -0.017919306040812568,
    0.038075661324867664,
    -0.050397431464009004,
    0.058479867470467926,
    -0.06663117418248306,
    0.07692061383953454,
    -0.09090897822692574,
    0.11111110785677773,
    -0.1428571428023972,
    0.19999999999954,
    -0.333333333333332,
)
"""``(arctan(x) - x) / x**3`` in ``x**2`` for ``|x| <= sqrt(2) - 1``."""

_TAN_EIGHTH_TURN_LESS = math.sqrt(2) - 1
_TAN_EIGHTH_TURN_MORE = math.sqrt(2) + 1
_HALF_PI, _QUARTER_PI = math.pi / 2, math.pi / 4
_HALF_PI_LOST = float(pi(120) / 2 - Fraction(math.pi / 2))
"""What rounding took from pi / 2."""


def _sine_and_cosine(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Sine and cosine of the reduced angle, and its quadrant."""
    b, one = e.b, e.like(x, 1.0)
    rest, quadrant = reduce_angle(e, x)
    square = b.fmul(rest, rest)
    sine_ = e.fma(b.fmul(square, rest), polynomial(e, square, _SINE_SERIES), rest)
    half = b.fmul(e.like(x, 0.5), square)
    near = b.fsub(one, half)
    lost = b.fsub(b.fsub(one, near), half)
    cosine_ = b.fadd(near, e.fma(b.fmul(square, square), polynomial(e, square, _COSINE_SERIES), lost))
    return copy_sign(e, sine_, rest), cosine_, quadrant


def _is_odd(e: Emitter, x: ir.Value, quadrant: ir.Value) -> ir.Value:
    return e.b.icmp_unsigned("!=", e.b.and_(quadrant, integer_like(e, x, 1)), integer_like(e, x, 0))


def _turn_sign(e: Emitter, x: ir.Value, quadrant: ir.Value) -> ir.Value:
    """Turn the sign where the quadrant's bit of value 2 is set."""
    b = e.b
    bit = b.and_(quadrant, integer_like(e, x, 2))
    sign = b.shl(bit, integer_like(e, x, FLOAT64.integer.width - 2))
    return b.bitcast(b.xor(to_bits(e, x), sign), x.type)


@through_double
def sine(e: Emitter, x: ir.Value) -> ir.Value:
    """The sine of radians, for any finite number; NaN for an infinity."""
    sine_, cosine_, quadrant = _sine_and_cosine(e, x)
    return _turn_sign(e, e.b.select(_is_odd(e, x, quadrant), cosine_, sine_), quadrant)


@through_double
def cosine(e: Emitter, x: ir.Value) -> ir.Value:
    """The cosine of radians, for any finite number; NaN for an infinity."""
    sine_, cosine_, quadrant = _sine_and_cosine(e, x)
    value = e.b.select(_is_odd(e, x, quadrant), sine_, cosine_)
    return _turn_sign(e, value, e.b.add(quadrant, integer_like(e, x, 1)))


@through_double
def tangent(e: Emitter, x: ir.Value) -> ir.Value:
    """The tangent of radians, for any finite number; NaN for an infinity."""
    b = e.b
    sine_, cosine_, quadrant = _sine_and_cosine(e, x)
    odd = _is_odd(e, x, quadrant)
    return b.fdiv(b.select(odd, negative(e, cosine_), sine_), b.select(odd, sine_, cosine_))


def _arcsine_of_part(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Where ``|x|`` is above 1/2, and the arcsine of ``|x|`` below or of ``sqrt((1 - |x|) / 2)`` above."""
    b = e.b
    size = absolute(e, x)
    far = b.fcmp_ordered(">", size, e.like(x, 0.5))
    halved = b.fmul(b.fsub(e.like(x, 1.0), size), e.like(x, 0.5))
    square = b.select(far, halved, b.fmul(size, size))
    part = b.select(far, square_root(e, square), size)
    return far, e.fma(b.fmul(part, square), polynomial(e, square, _ARCSINE_SERIES), part)


@through_double
def arcsine(e: Emitter, x: ir.Value) -> ir.Value:
    """The angle of that sine, -pi/2 to pi/2; NaN outside [-1, 1]."""
    b = e.b
    far, angle = _arcsine_of_part(e, x)
    taken = b.fsub(b.fadd(angle, angle), e.like(x, _HALF_PI_LOST))
    return copy_sign(e, b.select(far, b.fsub(e.like(x, _HALF_PI), taken), angle), x)


@through_double
def arccosine(e: Emitter, x: ir.Value) -> ir.Value:
    """The angle of that cosine, 0 to pi; NaN outside [-1, 1]."""
    b = e.b
    far, angle = _arcsine_of_part(e, x)
    doubled = b.fadd(angle, angle)
    left = b.fsub(e.like(x, 2 * _HALF_PI), b.fsub(doubled, e.like(x, 2 * _HALF_PI_LOST)))
    beyond = b.select(b.fcmp_ordered("<", x, e.like(x, 0.0)), left, doubled)
    within = b.fsub(e.like(x, _HALF_PI), b.fsub(copy_sign(e, angle, x), e.like(x, _HALF_PI_LOST)))
    return b.select(far, beyond, within)


@through_double
def arctangent(e: Emitter, x: ir.Value) -> ir.Value:
    """The angle of that tangent, -pi/2 to pi/2, both reached at the infinities."""
    b, one = e.b, e.like(x, 1.0)
    size = absolute(e, x)
    middle = b.fcmp_ordered(">", size, e.like(x, _TAN_EIGHTH_TURN_LESS))
    large = b.fcmp_ordered(">", size, e.like(x, _TAN_EIGHTH_TURN_MORE))
    above = b.select(large, e.like(x, -1.0), b.select(middle, b.fsub(size, one), size))
    below = b.select(large, size, b.select(middle, b.fadd(size, one), one))
    t = b.fdiv(above, below)
    square = b.fmul(t, t)
    small = b.fmul(b.fmul(t, square), polynomial(e, square, _ARCTANGENT_SERIES))
    zero = e.like(x, 0.0)
    start = b.select(large, e.like(x, _HALF_PI), b.select(middle, e.like(x, _QUARTER_PI), zero))
    lost = b.select(large, e.like(x, _HALF_PI_LOST), b.select(middle, e.like(x, _HALF_PI_LOST / 2), zero))
    return copy_sign(e, b.fadd(start, b.fadd(t, b.fadd(small, lost))), x)
