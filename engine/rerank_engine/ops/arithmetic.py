"""Arithmetic on floats and integers: sums, products, quotients, remainders, powers, extremes, signs, rounding.

Integers wrap around. No division traps: where the divisor is zero, quotient and remainder are 0, and the smallest
signed integer divided by -1 is itself, as it wraps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.ops.elementwise import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    Args,
    Attributes,
    add_operator,
    compare,
    emit_function,
    emit_instruction,
    infer_elementwise,
    is_float,
    is_unsigned,
)
from rerank_engine.ops.registry import Array, Pointwise

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Carried, Emitter


# --- quotients and remainders of integers ----------------------------------------------------------------------


def _safe_divisor(e: Emitter, divisor: ir.Value, unsigned: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """A divisor by which no processor traps, and where it stands for 0 and for -1; it is 1 there."""
    from rerank_engine.codegen.emitter import I1, width_of

    by_zero = e.b.icmp_signed("==", divisor, e.like(divisor, 0))
    if unsigned:
        never = e.splat_constant(I1, width_of(divisor), 0)
        return e.b.select(by_zero, e.like(divisor, 1), divisor), by_zero, never
    by_minus_one = e.b.icmp_signed("==", divisor, e.like(divisor, -1))
    return e.b.select(e.b.or_(by_zero, by_minus_one), e.like(divisor, 1), divisor), by_zero, by_minus_one


def _divide(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    left, right = args
    if is_float(left):
        return e.b.fdiv(left, right)
    unsigned = is_unsigned(attributes)
    safe, by_zero, by_minus_one = _safe_divisor(e, right, unsigned)
    quotient = e.b.udiv(left, safe) if unsigned else e.b.sdiv(left, safe)
    if not unsigned:
        quotient = e.b.select(by_minus_one, e.b.neg(left), quotient)
    return e.b.select(by_zero, e.like(left, 0), quotient)


def _remainder(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math

    left, right = args
    if is_float(left):
        return (math.float_remainder if attributes["fmod"] else math.float_modulo)(e, left, right)
    safe, _, _ = _safe_divisor(e, right, is_unsigned(attributes))
    if is_unsigned(attributes):
        return e.b.urem(left, safe)
    rest = e.b.srem(left, safe)
    if attributes["fmod"]:
        return rest
    zero = e.like(rest, 0)
    other_side = e.b.xor(e.b.icmp_signed("<", rest, zero), e.b.icmp_signed("<", safe, zero))
    moves = e.b.and_(other_side, e.b.icmp_signed("!=", rest, zero))
    return e.b.select(moves, e.b.add(rest, safe), rest)


def divide(left: Array, right: Array) -> Array:
    """Quotient; of integers cut toward zero, and 0 where the divisor is 0.

    >>> divide(np.array([7, -7, 7, -7, 7]), np.array([2, 2, -2, -2, 0]))
    array([ 3, -3, -3,  3,  0])
    """
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    quotient = _whole_quotient(left, right)
    rest = left - quotient * right
    cut = (rest != 0) & ((left < 0) != (right < 0)) & (right != 0)
    return np.asarray(np.where(cut, quotient + left.dtype.type(1), quotient), dtype=left.dtype)


def remainder(left: Array, right: Array, fmod: int = 0) -> Array:
    """Remainder with the sign of the divisor, or with that of the dividend (``fmod``); integers: 0 by a zero divisor.

    >>> remainder(np.array([7, -7, 7]), np.array([3, 3, 0])), remainder(np.array([-7]), np.array([3]), fmod=1)
    (array([1, 2, 0]), array([-1]))
    """
    if left.dtype.kind == "f":
        return np.asarray(np.fmod(left, right) if fmod else np.mod(left, right))
    quotient = divide(left, right) if fmod else _whole_quotient(left, right)
    return np.asarray(np.where(right == 0, left.dtype.type(0), left - quotient * right), dtype=left.dtype)


def _whole_quotient(left: Array, right: Array) -> Array:
    """Quotient of integers cut downwards, 0 by a zero divisor; what does not fit wraps."""
    one, zero = left.dtype.type(1), left.dtype.type(0)
    if left.dtype.kind == "u":
        return np.where(right == 0, zero, left // np.where(right == 0, one, right))
    by_minus_one = right == -1
    quotient = left // np.where((right == 0) | by_minus_one, one, right)
    return np.where(right == 0, zero, np.where(by_minus_one, np.negative(left), quotient))


# --- powers ----------------------------------------------------------------------------------------------------


def _power(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math

    base, exponent = args
    if is_float(base):
        return math.power(e, base, exponent)
    return _whole_power(e, base, exponent, is_unsigned(attributes))


def _whole_power(e: Emitter, base: ir.Value, exponent: ir.Value, unsigned: bool) -> ir.Value:
    """Squaring and multiplying, one bit of the exponent a round."""
    from rerank_engine.codegen.emitter import element_of

    b, one, zero = e.b, e.like(base, 1), e.like(base, 0)

    def one_bit(_: ir.Value, carried: Carried) -> Carried:
        value, square, left = carried
        is_set = b.icmp_signed("!=", b.and_(left, one), zero)
        return [b.select(is_set, b.mul(value, square), value), b.mul(square, square), b.lshr(left, one)]

    _, (value, _, _) = e.loop(0, element_of(base).width, 1, one_bit, [one, base, exponent])
    if unsigned:
        return value
    minus_one = e.like(base, -1)
    odd = b.icmp_signed("!=", b.and_(exponent, one), zero)
    alternating = b.select(odd, minus_one, one)
    inverse = b.select(b.icmp_signed("==", base, minus_one), alternating, zero)
    inverse = b.select(b.icmp_signed("==", base, one), one, inverse)
    return b.select(b.icmp_signed("<", exponent, zero), inverse, value)


def power(base: Array, exponent: Array) -> Array:
    """Power; of integers wrapped around, and cut toward zero where the exponent is negative (0 for a base of 0).

    >>> power(np.array([3, 2, -1, 0]), np.array([4, -1, -3, -1]))
    array([81,  0, -1,  0])
    """
    if base.dtype.kind == "f":
        # For one exponent of 0.5 NumPy takes the square root, which differs from the power in two points.
        differs = (exponent == 0.5) & ((base == 0) | np.isneginf(base))
        return np.asarray(np.where(differs, np.abs(base), np.power(base, exponent)))
    kind = base.dtype.type
    below = exponent < 0
    value = np.power(base, np.where(below, kind(0), exponent))
    if base.dtype.kind == "u":
        return np.asarray(value)
    alternating = np.where(exponent % 2 != 0, kind(-1), kind(1))
    inverse = np.where(base == 1, kind(1), np.where(base == -1, alternating, kind(0)))
    return np.asarray(np.where(below, inverse, value), dtype=base.dtype)


# --- extremes, signs, shifts -----------------------------------------------------------------------------------


def _extreme(name: str, symbol: str) -> Pointwise:
    def emit(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
        if is_float(args[0]):
            return getattr(e, name)(*args)
        return e.b.select(compare(e, symbol, *args, unsigned=is_unsigned(attributes)), *args)

    return emit


def _negate(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    return e.b.fneg(args[0]) if is_float(args[0]) else e.b.neg(args[0])


def _absolute(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math

    x = args[0]
    if is_float(x):
        return math.absolute(e, x)
    if is_unsigned(attributes):
        return x
    return e.b.select(e.b.icmp_signed("<", x, e.like(x, 0)), e.b.neg(x), x)


def _sign(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math

    x = args[0]
    if is_float(x):
        return math.sign(e, x)
    zero, one = e.like(x, 0), e.like(x, 1)
    above = e.b.select(e.b.icmp_signed("!=", x, zero), one, zero)
    if is_unsigned(attributes):
        return above
    return e.b.select(e.b.icmp_signed("<", x, zero), e.like(x, -1), above)


def _clip(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    value = args[0]
    if attributes["low"] != -np.inf:
        value = e.maximum(value, e.like(value, attributes["low"]))
    if attributes["high"] != np.inf:
        value = e.minimum(value, e.like(value, attributes["high"]))
    return value


def _reference_clip(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))


def _shift(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.codegen.emitter import element_of

    b, (x, count) = e.b, args
    most = element_of(x).width - 1
    # As unsigned numbers, negative counts are large ones.
    too_far = b.icmp_unsigned(">", count, e.like(count, most))
    inside = b.select(too_far, e.like(count, most), count)
    if attributes["left"]:
        return b.select(too_far, e.like(x, 0), b.shl(x, inside))
    if is_unsigned(attributes):
        return b.select(too_far, e.like(x, 0), b.lshr(x, inside))
    return b.ashr(x, inside)


def _reference_shift(x: Array, count: Array, left: int) -> Array:
    most = x.dtype.type(x.dtype.itemsize * 8 - 1)
    too_far = (count < 0) | (count > most)
    inside = np.where(too_far, most, count)
    if left:
        return np.where(too_far, x.dtype.type(0), np.left_shift(x, inside))
    shifted = np.right_shift(x, inside)
    return shifted if x.dtype.kind == "i" else np.where(too_far, x.dtype.type(0), shifted)


_ONE = infer_elementwise(FLOATS, 1)
_TWO = infer_elementwise(NUMBERS, 2)

add_operator("Add", "a + b", _TWO, np.add, emit_instruction("fadd", "add"))
add_operator("Sub", "a - b", _TWO, np.subtract, emit_instruction("fsub", "sub"))
add_operator("Mul", "a * b", _TWO, np.multiply, emit_instruction("fmul", "mul"))
add_operator("Div", "a / b; integers cut toward zero, 0 where b is 0", _TWO, divide, _divide)
add_operator(
    "Mod",
    "remainder of a / b with the sign of b, or of a (fmod); integers 0 where b is 0",
    _TWO,
    remainder,
    _remainder,
    {"fmod": 0},
)
add_operator("Pow", "a to the b; integers wrap, a negative b cuts toward zero", _TWO, power, _power)
add_operator("Max", "the larger of two; NaN when either is NaN", _TWO, np.maximum, _extreme("maximum", ">"))
add_operator("Min", "the smaller of two; NaN when either is NaN", _TWO, np.minimum, _extreme("minimum", "<"))
add_operator(
    "Clip",
    "limit to [low, high]; NaN stays",
    _ONE,
    _reference_clip,
    _clip,
    {"low": -np.inf, "high": np.inf},
)
add_operator("Neg", "-x", infer_elementwise(NUMBERS, 1), np.negative, _negate)
add_operator("Abs", "|x|; the smallest integer stays", infer_elementwise(NUMBERS, 1), np.abs, _absolute)
add_operator("Sign", "-1, 0 or 1; NaN stays", infer_elementwise(NUMBERS, 1), np.sign, _sign)
add_operator("Sqrt", "square root", _ONE, np.sqrt, emit_function("square_root"))
add_operator("Floor", "the whole number that is not above", _ONE, np.floor, emit_function("floor"))
add_operator("Ceil", "the whole number that is not below", _ONE, np.ceil, emit_function("ceiling"))
add_operator("Round", "the nearest whole number, ties to even", _ONE, np.rint, emit_function("round_half_even"))
add_operator(
    "BitShift",
    "the bits of a moved by b places; beyond the width all bits are the sign's",
    infer_elementwise(INTEGERS, 2),
    _reference_shift,
    _shift,
    {"left": 0},
)
