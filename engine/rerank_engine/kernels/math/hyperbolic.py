"""Hyperbolic functions and their inverses.

The hyperbolic tangent is hot and has its own float32 form: the scheme of Cephes' ``tanhf`` (S. Moshier). The others
compute float32 through float64. Series are minimax fits by Remez exchange.
"""

from __future__ import annotations

import math

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels.math.basic import absolute, negative, square_root
from rerank_engine.kernels.math.exponential import exponential_minus_one, half_exponential, one_plus_exponential
from rerank_engine.kernels.math.formats import FLOAT64, copy_sign, format_of, polynomial, through_double
from rerank_engine.kernels.math.logarithm import logarithm_one_plus

_TANH_SERIES = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
"""``(tanh(x) - x) / x**3`` in ``x**2`` for ``|x| < 0.625``, float32."""

_TANH_SERIES_BELOW = 0.625

_TANH_IS_ONE_FROM = 10.0
"""In float32."""

_SINH_SERIES = (
    2.8483983624278064e-15,
    7.646476358283487e-13,
    1.6059050705915008e-10,
    2.5052108345641085e-08,
    2.7557319224120245e-06,
    1.984126984126959e-04,
    8.333333333333333e-03,
    1.6666666666666666e-01,
)
"""``(sinh(x) - x) / x**3`` in ``x**2`` for ``|x| <= 1``, float64; relative error below 2^-73."""

_SQUARE_IS_ALL_ABOVE = 2.0**60
"""From here on, one is nothing beside the square."""


def hyperbolic_tangent(e: Emitter, x: ir.Value) -> ir.Value:
    """The hyperbolic tangent: -1 to 1, x near zero."""
    b = e.b
    size = absolute(e, x)
    if format_of(x) is FLOAT64:
        fallen = exponential_minus_one(e, b.fmul(size, e.like(x, -2.0)))
        return copy_sign(e, b.fdiv(fallen, b.fadd(fallen, e.like(x, 2.0))), x)
    square = b.fmul(x, x)
    near = e.fma(b.fmul(polynomial(e, square, _TANH_SERIES), square), x, x)
    limit = e.like(x, _TANH_IS_ONE_FROM)
    bounded = b.select(b.fcmp_ordered(">", size, limit), limit, size)
    far = b.fsub(e.like(x, 1.0), b.fdiv(e.like(x, 2.0), one_plus_exponential(e, b.fadd(bounded, bounded))))
    value = b.select(b.fcmp_ordered("<", size, e.like(x, _TANH_SERIES_BELOW)), near, far)
    return copy_sign(e, value, x)


@through_double
def hyperbolic_sine(e: Emitter, x: ir.Value) -> ir.Value:
    """``(exp(x) - exp(-x)) / 2``: a series up to 1, half the exponential beyond."""
    b = e.b
    size, square = absolute(e, x), b.fmul(x, x)
    near = e.fma(b.fmul(polynomial(e, square, _SINH_SERIES), square), x, x)
    half = half_exponential(e, size)
    far = copy_sign(e, b.fsub(half, b.fdiv(e.like(x, 0.25), half)), x)
    return b.select(b.fcmp_ordered("<", size, e.like(x, 1.0)), copy_sign(e, near, x), far)


@through_double
def hyperbolic_cosine(e: Emitter, x: ir.Value) -> ir.Value:
    """``(exp(x) + exp(-x)) / 2``."""
    half = half_exponential(e, absolute(e, x))
    return e.b.fadd(half, e.b.fdiv(e.like(x, 0.25), half))


@through_double
def inverse_hyperbolic_sine(e: Emitter, x: ir.Value) -> ir.Value:
    """``log(x + sqrt(x**2 + 1))``, odd, and x near zero."""
    b, one = e.b, e.like(x, 1.0)
    size = absolute(e, x)
    large = b.fcmp_ordered(">", size, e.like(x, _SQUARE_IS_ALL_ABOVE))
    bounded = b.select(large, one, size)
    square = b.fmul(bounded, bounded)
    root = square_root(e, b.fadd(square, one))
    less_one = b.fadd(bounded, b.fdiv(square, b.fadd(root, one)))
    return copy_sign(e, _logarithm_of_sum(e, large, size, less_one), x)


@through_double
def inverse_hyperbolic_cosine(e: Emitter, x: ir.Value) -> ir.Value:
    """``log(x + sqrt(x**2 - 1))``; NaN below 1."""
    b, one = e.b, e.like(x, 1.0)
    large = b.fcmp_ordered(">", x, e.like(x, _SQUARE_IS_ALL_ABOVE))
    bounded = b.fsub(b.select(large, one, x), one)
    less_one = b.fadd(bounded, square_root(e, b.fmul(bounded, b.fadd(bounded, e.like(x, 2.0)))))
    value = _logarithm_of_sum(e, large, x, less_one)
    return b.select(b.fcmp_unordered("<", x, one), e.like(x, math.nan), value)


@through_double
def inverse_hyperbolic_tangent(e: Emitter, x: ir.Value) -> ir.Value:
    """``log((1 + x) / (1 - x)) / 2``, odd; infinite at 1, NaN beyond."""
    b = e.b
    size = absolute(e, x)
    ratio = b.fdiv(b.fadd(size, size), b.fadd(e.like(x, 1.0), negative(e, size)))
    return copy_sign(e, b.fmul(e.like(x, 0.5), logarithm_one_plus(e, ratio)), x)


def _logarithm_of_sum(e: Emitter, large: ir.Value, size: ir.Value, less_one: ir.Value) -> ir.Value:
    """``log(1 + less_one)``, or ``log(2 size)`` where the size is so large that its square may be infinite."""
    b = e.b
    doubled = b.select(large, e.like(size, math.log(2)), e.like(size, 0.0))
    return b.fadd(logarithm_one_plus(e, b.select(large, size, less_one)), doubled)
