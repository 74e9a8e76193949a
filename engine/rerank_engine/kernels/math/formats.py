"""The two floating-point formats and what every elementary function does with them: bits, polynomials, widening."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps

from llvmlite import ir

from rerank_engine.codegen.emitter import F32, F64, I32, I64, Emitter, element_of, widen, width_of


@dataclass(frozen=True)
class FloatFormat:
    """A binary format of IEEE 754.

    Attributes
    ----------
    element
        LLVM's type of it.
    integer
        LLVM's integer of the same size.
    mantissa_bits
        Stored bits of the significand.
    exponent_bias
        What is added to the exponent in store.
    """

    element: ir.Type
    integer: ir.IntType
    mantissa_bits: int
    exponent_bias: int

    @property
    def round_magic(self) -> float:
        """Added and taken away again, it rounds to a whole number, whose low bits are then those of the sum."""
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def bits_of_one(self) -> int:
        """The number one as an integer."""
        return self.exponent_bias << self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The sign's place as an integer."""
        return 1 << (self.integer.width - 1)


FLOAT32 = FloatFormat(F32, I32, 23, 127)
FLOAT64 = FloatFormat(F64, I64, 52, 1023)


def format_of(x: ir.Value) -> FloatFormat:
    """The format of a scalar or of a vector's lanes."""
    return FLOAT64 if element_of(x) == F64 else FLOAT32


def to_bits(e: Emitter, x: ir.Value) -> ir.Value:
    """The same bits as integers."""
    return e.b.bitcast(x, widen(format_of(x).integer, width_of(x)))


def integer_like(e: Emitter, x: ir.Value, number: int) -> ir.Constant:
    """A constant of the integers that have the size of ``x``'s lanes."""
    return e.splat_constant(format_of(x).integer, width_of(x), number)


def polynomial(e: Emitter, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's scheme; coefficients from the highest power down to the constant."""
    value: ir.Value = e.like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = e.fma(value, x, e.like(x, coefficient))
    return value


def short_polynomial(e: Emitter, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Estrin's scheme: pairs side by side, then pairs of pairs; a shorter wait for a few more instructions.

    The coefficients are those of :func:`polynomial`.
    """
    terms: list[ir.Value] = [e.like(x, coefficient) for coefficient in reversed(coefficients)]
    power = x
    while len(terms) > 1:
        pairs = [e.fma(high, power, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
        if len(terms) > 1:
            power = e.b.fmul(power, power)
    return terms[0]


def is_unordered(e: Emitter, x: ir.Value) -> ir.Value:
    """One bit a lane: not a number."""
    return e.b.fcmp_unordered("uno", x, x)


def copy_sign(e: Emitter, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    """The first value's magnitude with the second's sign bit."""
    return e.intrinsic("llvm.copysign", magnitude.type, [magnitude, sign])


def clamp(e: Emitter, x: ir.Value, low: float, high: float) -> ir.Value:
    """Limit to [low, high] by comparisons that are false for NaN, so that NaN passes through."""
    upper, lower = e.like(x, high), e.like(x, low)
    inside = e.b.select(e.b.fcmp_ordered(">", x, upper), upper, x)
    return e.b.select(e.b.fcmp_ordered("<", inside, lower), lower, inside)


def to_double(e: Emitter, x: ir.Value) -> ir.Value:
    """Widen float32 to float64, exactly."""
    return e.b.fpext(x, widen(F64, width_of(x)))


def through_double(function: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """Make a function of float64 serve float32 too: widened, computed, rounded once at the end."""

    @wraps(function)
    def serve(e: Emitter, *values: ir.Value) -> ir.Value:
        if format_of(values[0]) is FLOAT64:
            return function(e, *values)
        return e.b.fptrunc(function(e, *(to_double(e, value) for value in values)), values[0].type)

    return serve
