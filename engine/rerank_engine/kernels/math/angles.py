"""Reduction of any angle to at most an eighth of a turn and the number of the quadrant.

Up to 2^20 the quarter turn is subtracted in parts of few bits (Cody and Waite, 1980), each product exact, as in
fdlibm's ``__ieee754_rem_pio2``. Beyond, the angle's own 53 bits are multiplied with those bits of ``2 / pi`` that
matter (M. Payne and R. Hanek, *Radian reduction for trigonometric functions*, 1983), in whole numbers of 128 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from llvmlite import ir

from rerank_engine.codegen.emitter import F64, I64, Emitter, i64
from rerank_engine.kernels.math.basic import absolute, negative
from rerank_engine.kernels.math.constants import pi, pieces
from rerank_engine.kernels.math.formats import FLOAT64, to_bits
from rerank_engine.kernels.math.lanes import replace_lanes, scalar_function

_I128 = ir.IntType(128)
_QUARTER_TURN = pieces(pi(240) / 2, (33, 33, 33))
_PARTS_HOLD_BELOW = 2.0**20

_WORDS = 20
"""64 zero bits, then ``2 / pi`` down to 2^-1216: the largest float64 needs bits to 2^-1162."""

_SMALLEST_SHIFT, _LARGEST_SHIFT = -32, 971
"""Of a float64 of at least 2^20, as a whole number of 53 bits times a power of two."""


def reduce_angle(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``x = quadrant * pi / 2 + rest``, ``|rest|`` at most a hair above pi / 4.

    Parameters
    ----------
    x
        float64, in radians. For an infinity or NaN the rest is NaN.

    Returns
    -------
    rest
        Right to about one unit in its last place, however near to a multiple of pi / 2 the angle is.
    quadrant
        Whole numbers whose two low bits count.
    """
    b = e.b
    magic = e.like(x, FLOAT64.round_magic)
    shifted = e.fma(x, e.like(x, 2 / math.pi), magic)
    whole = b.fsub(shifted, magic)
    first, second, third, last = (b.fmul(whole, e.like(x, part)) for part in _QUARTER_TURN)
    high = b.fsub(x, first)
    rest = b.fsub(high, second)
    # What the second subtraction lost comes back with the small parts.
    small = b.fadd(b.fsub(third, b.fsub(b.fsub(high, rest), second)), last)
    size = absolute(e, x)
    large = b.and_(
        b.fcmp_ordered(">=", size, e.like(x, _PARTS_HOLD_BELOW)), b.fcmp_ordered("<", size, e.like(x, math.inf))
    )
    kind = ir.FunctionType(ir.LiteralStructType([F64, I64]), [F64])
    careful = scalar_function(e, "rerank_math_reduce_large_angle", kind, _reduce_large)
    rest, quadrant = replace_lanes(e, large, [b.fsub(rest, small), to_bits(e, shifted)], careful, [x])
    return rest, quadrant


def _reduce_large(e: Emitter, arguments: Sequence[ir.Value]) -> ir.Value:
    b = e.b
    (x,) = arguments
    bits = b.bitcast(x, I64)
    exponent = b.and_(b.lshr(bits, i64(FLOAT64.mantissa_bits)), i64(0x7FF))
    shift = b.sub(exponent, i64(FLOAT64.exponent_bias + FLOAT64.mantissa_bits))
    # Other lanes come here too; for them any place of the table will do.
    shift = b.select(b.icmp_signed("<", shift, i64(_SMALLEST_SHIFT)), i64(_SMALLEST_SHIFT), shift)
    shift = b.select(b.icmp_signed(">", shift, i64(_LARGEST_SHIFT)), i64(_LARGEST_SHIFT), shift)
    hidden = 1 << FLOAT64.mantissa_bits
    mantissa = b.or_(b.and_(bits, i64(hidden - 1)), i64(hidden))
    # Bits of 2 / pi above this place give multiples of four quadrants.
    first, second, third = _bits_of_two_over_pi(e, b.add(shift, i64(62)))
    wide = b.zext(mantissa, _I128)
    sixty_four = ir.Constant(_I128, 64)
    product = b.shl(b.zext(b.mul(mantissa, first), _I128), sixty_four)
    product = b.add(product, b.mul(wide, b.zext(second, _I128)))
    product = b.add(product, b.lshr(b.mul(wide, b.zext(third, _I128)), sixty_four))
    # Two bits of quadrant, then 126 of fraction: rounded to the nearest quadrant, the fraction has a sign.
    rounded = b.add(product, ir.Constant(_I128, 1 << 125))
    quadrant = b.trunc(b.lshr(rounded, ir.Constant(_I128, 126)), I64)
    fraction = b.sub(product, b.shl(b.zext(quadrant, _I128), ir.Constant(_I128, 126)))
    below = b.icmp_signed("<", fraction, ir.Constant(_I128, 0))
    fraction = b.select(below, b.neg(fraction), fraction)
    zeros = e.intrinsic("llvm.ctlz", _I128, [fraction, ir.Constant(ir.IntType(1), 0)])
    # One bit less than 64 leaves the sign free for the conversion to float.
    top = b.trunc(b.lshr(b.shl(fraction, zeros), ir.Constant(_I128, 65)), I64)
    exponent = b.sub(i64(FLOAT64.exponent_bias - 61), b.trunc(zeros, I64))
    scale = b.bitcast(b.shl(exponent, i64(FLOAT64.mantissa_bits)), F64)
    rest = b.fmul(b.fmul(b.sitofp(top, F64), scale), ir.Constant(F64, math.pi / 2))
    turned = b.xor(below, b.fcmp_ordered("<", x, ir.Constant(F64, 0.0)))
    rest = b.select(turned, negative(e, rest), rest)
    quadrant = b.select(b.fcmp_ordered("<", x, ir.Constant(F64, 0.0)), b.neg(quadrant), quadrant)
    pair = b.insert_value(ir.Constant(ir.LiteralStructType([F64, I64]), ir.Undefined), rest, 0)
    return b.insert_value(pair, quadrant, 1)


def _bits_of_two_over_pi(e: Emitter, place: ir.Value) -> list[ir.Value]:
    """192 bits of the table from a bit's place on, as three words."""
    b = e.b
    table = _table(b.module)
    address = e.at(table, b.shl(b.lshr(place, i64(6)), i64(3)))
    words = [e.load(e.at(address, 8 * index), I64) for index in range(4)]
    within = b.and_(place, i64(63))
    return [e.intrinsic("llvm.fshl", I64, [high, low, within]) for high, low in pairwise(words)]


def _table(module: ir.Module) -> ir.GlobalVariable:
    name = "rerank_math_two_over_pi"
    known = module.globals.get(name)
    if known is not None:
        return known
    bits = 64 * (_WORDS - 1)
    fraction = int((1 << (bits + 1)) / pi(bits + 64))
    words = [0, *(fraction >> (64 * index) & (1 << 64) - 1 for index in reversed(range(_WORDS - 1)))]
    kind = ir.ArrayType(I64, _WORDS)
    table = ir.GlobalVariable(module, kind, name)
    table.linkage = "internal"
    table.global_constant = True
    table.initializer = ir.Constant(kind, words)
    return table
