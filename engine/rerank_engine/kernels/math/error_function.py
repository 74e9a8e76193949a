"""The error function.

Up to 1 the odd series of ``erf(x) / x``. Beyond, float32 fits ``log(erfc(x))``, so that ``erf = 1 - exp(fit)`` needs no
division; float64 fits ``exp(x**2) erfc(x)`` in ``t = b / (b + x)``, the variable that C. Hastings used (*Approximations
for Digital Computers*, 1955). All are minimax fits by Remez exchange, their errors relative to erf below 2^-29 for
float32 and 2^-62 for float64.
"""

from __future__ import annotations

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels.math.basic import absolute, negative
from rerank_engine.kernels.math.exponential import bounded_exponential
from rerank_engine.kernels.math.formats import FLOAT32, FLOAT64, copy_sign, format_of, is_unordered, polynomial

_NEAR_SERIES = {
    FLOAT32: (
        7.889113449122474e-5,
        -8.020839072702401e-4,
        5.189535039241794e-3,
        -2.685444440215774e-2,
        1.1283600170708805e-1,
        -3.7612627135343923e-1,
        1.2837916591363369e-1,
    ),
    FLOAT64: (
        5.960676073335479e-11,
        -1.1374949067447646e-09,
        1.4660326646023797e-08,
        -1.6350395854324983e-07,
        1.64610084365668e-06,
        -1.4925595769145757e-05,
        1.2055331132807185e-04,
        -8.548326981420758e-04,
        5.2239776248283335e-03,
        -2.6866170645077864e-02,
        1.1283791670954885e-01,
        -3.761263890318375e-01,
        1.283791670955126e-01,
    ),
}
"""``erf(x) / x - 1`` in ``x**2`` for ``|x| <= 1``."""

_LOG_SERIES = (
    -2.1697587776327815e-5,
    4.414723853234185e-4,
    -4.205283663582831e-3,
    2.5210337458414903e-2,
    -1.084220970271126e-1,
    -6.332163981234556e-1,
    -1.1295803114482839,
    1.8846796280831316e-4,
)
"""``log(erfc(x))`` for ``0.99 <= x <= 3.95``."""

_SCALED_SERIES = (
    0.03021841585724944,
    -0.21488307137169152,
    0.6462682935825748,
    -1.0413021599226622,
    0.9708419311257905,
    -0.6337306482480004,
    0.3705498032301806,
    0.02244380989702496,
    0.19335217133472815,
    0.2047353958230881,
    0.2258184673722775,
    0.2256893629128758,
    -1.6920310398669364e-06,
)
"""``exp(x**2) erfc(x)`` in ``t = 2.5 / (2.5 + x)`` for ``1 <= x <= 5.95``."""

_SCALE = 2.5
_ONE_FROM = {FLOAT32: 3.95, FLOAT64: 5.95}
"""From here on the function rounds to one."""


def error_function(e: Emitter, x: ir.Value) -> ir.Value:
    """``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to x: -1 to 1, odd."""
    b, kind, one = e.b, format_of(x), e.like(x, 1.0)
    limit = e.like(x, _ONE_FROM[kind])
    size = absolute(e, x)
    size = b.select(b.fcmp_ordered(">", size, limit), limit, size)
    square = b.fmul(size, size)
    # Not size + size * series: without fused multiply-add the product may be no normal number.
    near = b.fmul(size, b.fadd(polynomial(e, square, _NEAR_SERIES[kind]), one))
    if kind is FLOAT32:
        complement = bounded_exponential(e, polynomial(e, size, _LOG_SERIES))
    else:
        t = b.fdiv(e.like(x, _SCALE), b.fadd(size, e.like(x, _SCALE)))
        complement = b.fmul(bounded_exponential(e, negative(e, square)), polynomial(e, t, _SCALED_SERIES))
    value = b.select(b.fcmp_ordered("<", size, one), near, b.fsub(one, complement))
    return b.select(is_unordered(e, x), x, copy_sign(e, value, x))
