"""Remainders of floats, exact for any two numbers.

The quotient of neighbouring sizes is subtracted at once; the remainder itself needs no rounding then. Where the
quotient has more than 26 bits, the whole numbers behind the floats are divided instead, eleven bits a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from rerank_engine.codegen.emitter import F64, I64, Carried, Emitter, i64
from rerank_engine.kernels.math.basic import absolute
from rerank_engine.kernels.math.formats import FLOAT64, copy_sign, integer_like, is_unordered, through_double, to_bits
from rerank_engine.kernels.math.lanes import replace_lanes, scalar_function
from rerank_engine.kernels.math.rounding import truncate

_QUOTIENT_LIMIT = 2.0**26
_SPLIT_BITS = 26
_SMALLEST_SPLIT = 2.0**-960
"""Below it the low part of a divisor is no normal number."""

_BITS_A_STEP = 11
"""What a float64's significand leaves free in a word."""


@through_double
def float_remainder(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """What is left of x after whole multiples of y, with the sign of x, as C's ``fmod``; NaN for ``y = 0``."""
    b, zero, infinity = e.b, e.like(x, 0.0), e.like(x, math.inf)
    size, divisor = absolute(e, x), absolute(e, y)
    quotient = truncate(e, b.fdiv(size, divisor))
    mask = integer_like(e, x, -1 << _SPLIT_BITS)
    high = b.bitcast(b.and_(to_bits(e, divisor), mask), x.type)
    rest = b.fsub(b.fsub(size, b.fmul(quotient, high)), b.fmul(quotient, b.fsub(divisor, high)))
    # The quotient may have been rounded up to a whole number.
    rest = b.select(b.fcmp_ordered("<", rest, zero), b.fadd(rest, divisor), rest)
    far = b.or_(
        b.fcmp_ordered(">=", size, b.fmul(divisor, e.like(x, _QUOTIENT_LIMIT))),
        b.fcmp_ordered("<", divisor, e.like(x, _SMALLEST_SPLIT)),
    )
    far = b.and_(far, b.and_(b.fcmp_ordered("<", size, infinity), b.fcmp_ordered(">", divisor, zero)))
    kind = ir.FunctionType(ir.LiteralStructType([F64]), [F64, F64])
    careful = scalar_function(e, "rerank_math_remainder_of_far", kind, _remainder_of_far)
    (rest,) = replace_lanes(e, far, [rest], careful, [size, divisor])
    rest = b.select(b.fcmp_ordered("<", size, divisor), size, rest)
    undefined = b.or_(b.fcmp_ordered("==", divisor, zero), b.fcmp_ordered("==", size, infinity))
    undefined = b.or_(undefined, b.or_(is_unordered(e, x), is_unordered(e, y)))
    return b.select(undefined, e.like(x, math.nan), copy_sign(e, rest, x))


def float_modulo(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """What is left of x after whole multiples of y, with the sign of y, as NumPy's and Python's ``%`` for floats."""
    b, zero = e.b, e.like(x, 0.0)
    rest = float_remainder(e, x, y)
    other = b.xor(b.fcmp_ordered("<", rest, zero), b.fcmp_ordered("<", y, zero))
    moved = b.select(other, b.fadd(rest, y), rest)
    return b.select(b.fcmp_ordered("==", rest, zero), copy_sign(e, zero, y), moved)


def _remainder_of_far(e: Emitter, arguments: Sequence[ir.Value]) -> ir.Value:
    b = e.b
    mantissas, exponents = [], []
    hidden = 1 << FLOAT64.mantissa_bits
    for argument in arguments:
        bits = b.bitcast(argument, I64)
        exponents.append(b.lshr(bits, i64(FLOAT64.mantissa_bits)))
        mantissas.append(b.or_(b.and_(bits, i64(hidden - 1)), i64(hidden)))
    dividend, divisor = mantissas
    apart = b.sub(exponents[0], exponents[1])
    apart = b.select(b.icmp_signed("<", apart, i64(0)), i64(0), apart)
    steps = b.udiv(b.add(apart, i64(_BITS_A_STEP - 1)), i64(_BITS_A_STEP))

    def step(_: ir.Value, carried: Carried) -> Carried:
        rest, left = carried
        shift = b.select(b.icmp_signed("<", left, i64(_BITS_A_STEP)), left, i64(_BITS_A_STEP))
        return [b.urem(b.shl(rest, shift), divisor), b.sub(left, shift)]

    _, (rest, _left) = e.loop(0, steps, 1, step, [b.urem(dividend, divisor), apart])
    # In two steps, as the unit of the divisor's last place may be no normal number.
    value = b.fmul(b.sitofp(rest, F64), ir.Constant(F64, 2.0**-FLOAT64.mantissa_bits))
    value = b.fmul(value, b.bitcast(b.shl(exponents[1], i64(FLOAT64.mantissa_bits)), F64))
    return b.insert_value(ir.Constant(ir.LiteralStructType([F64]), ir.Undefined), value, 0)
