"""Elementary functions on scalars and vectors of float32 and float64, without a library call.

Every function takes an emitter and IR values of one type and gives a value of that type. NaN stays NaN; infinities and
signed zeros go as IEEE 754 and NumPy have them. Numbers below the smallest normal one count as zero, as arguments and
as results. Targets with fused multiply-add and without may differ in last bits; the lanes of a vector and a scalar do
not.

Largest errors in units of the last place (ULP), which ``tests/engine/test_kernels_math_functions.py`` holds for both
kinds of target, against float64 for float32 and against extended precision for float64:

=============================  =======  =======
function                       float32  float64
=============================  =======  =======
``exponential``                1.1      1.1
``exponential_minus_one``      1.6      2.1
``sigmoid``                    2.2      1.8
``logarithm``                  0.9      0.9
``logarithm_one_plus``         0.9      0.9
``softplus``                   2.9      1.8
``error_function``             1.9      1.7
``hyperbolic_tangent``         1.2      2.7
``hyperbolic_sine``            0.51     1.7
``hyperbolic_cosine``          0.51     1.5
``inverse_hyperbolic_sine``    0.51     1.8
``inverse_hyperbolic_cosine``  0.51     2.7
``inverse_hyperbolic_tangent`` 0.51     2.0
``sine``                       0.51     2.4
``cosine``                     0.51     2.5
``tangent``                    0.51     3.8
``arcsine``                    0.51     2.7
``arccosine``                  0.51     1.3
``arctangent``                 0.51     1.9
``power``                      0.51     1.3
=============================  =======  =======

Square root and reciprocal are rounded correctly; rounding to whole numbers, signs and remainders are exact. Angles may
be of any size.

Examples
--------
>>> from llvmlite import ir
>>> from rerank_engine.codegen.emitter import F32, Emitter
>>> from rerank_engine.kernels import math
>>> module = ir.Module()
>>> function = ir.Function(module, ir.FunctionType(F32, [F32]), "soft")
>>> e = Emitter(ir.IRBuilder(function.append_basic_block()), lanes=4)
>>> result = e.b.ret(math.softplus(e, function.args[0]))
>>> "call" in str(module) and "@log" not in str(module)
True
"""

from rerank_engine.kernels.math.basic import (
    absolute,
    is_inf,
    is_nan,
    negative,
    reciprocal,
    sign,
    square_root,
    zero,
)
from rerank_engine.kernels.math.error_function import error_function
from rerank_engine.kernels.math.exponential import exponential, exponential_minus_one, sigmoid
from rerank_engine.kernels.math.hyperbolic import (
    hyperbolic_cosine,
    hyperbolic_sine,
    hyperbolic_tangent,
    inverse_hyperbolic_cosine,
    inverse_hyperbolic_sine,
    inverse_hyperbolic_tangent,
)
from rerank_engine.kernels.math.logarithm import logarithm, logarithm_one_plus, softplus
from rerank_engine.kernels.math.power import power
from rerank_engine.kernels.math.remainder import float_modulo, float_remainder
from rerank_engine.kernels.math.rounding import ceiling, floor, round_half_even, truncate
from rerank_engine.kernels.math.trigonometric import arccosine, arcsine, arctangent, cosine, sine, tangent

__all__ = [
    "absolute",
    "arccosine",
    "arcsine",
    "arctangent",
    "ceiling",
    "cosine",
    "error_function",
    "exponential",
    "exponential_minus_one",
    "float_modulo",
    "float_remainder",
    "floor",
    "hyperbolic_cosine",
    "hyperbolic_sine",
    "hyperbolic_tangent",
    "inverse_hyperbolic_cosine",
    "inverse_hyperbolic_sine",
    "inverse_hyperbolic_tangent",
    "is_inf",
    "is_nan",
    "logarithm",
    "logarithm_one_plus",
    "negative",
    "power",
    "reciprocal",
    "round_half_even",
    "sigmoid",
    "sign",
    "sine",
    "softplus",
    "square_root",
    "tangent",
    "truncate",
    "zero",
]
