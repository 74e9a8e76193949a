"""What needs no approximation: signs, roots by the hardware, tests of bits."""

from __future__ import annotations

import math

from llvmlite import ir

from rerank_engine.codegen.emitter import F32, I1, Emitter, width_of
from rerank_engine.kernels.math.formats import is_unordered


def absolute(e: Emitter, x: ir.Value) -> ir.Value:
    """The value without its sign."""
    return e.intrinsic("llvm.fabs", x.type, [x])


def negative(e: Emitter, x: ir.Value) -> ir.Value:
    """The value with its sign turned."""
    return e.b.fneg(x)


def square_root(e: Emitter, x: ir.Value) -> ir.Value:
    """The square root, correctly rounded by the hardware; NaN below zero, -0 for -0."""
    return e.intrinsic("llvm.sqrt", x.type, [x])


def reciprocal(e: Emitter, x: ir.Value) -> ir.Value:
    """``1 / x``, correctly rounded; infinity with the sign of a zero."""
    return e.b.fdiv(e.like(x, 1.0), x)


def sign(e: Emitter, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; 0 for -0 as NumPy has it; NaN stays."""
    b = e.b
    below = b.select(b.fcmp_ordered("<", x, e.like(x, 0.0)), e.like(x, -1.0), e.like(x, 0.0))
    value = b.select(b.fcmp_ordered(">", x, e.like(x, 0.0)), e.like(x, 1.0), below)
    return b.select(is_unordered(e, x), x, value)


def is_nan(e: Emitter, x: ir.Value) -> ir.Value:
    """One bit a lane: not a number."""
    return is_unordered(e, x)


def is_inf(e: Emitter, x: ir.Value, positive: bool = True, negative: bool = True) -> ir.Value:
    """One bit a lane: an infinity of one of the chosen signs."""
    b = e.b
    if positive and negative:
        return b.fcmp_ordered("==", absolute(e, x), e.like(x, math.inf))
    if positive or negative:
        return b.fcmp_ordered("==", x, e.like(x, math.inf if positive else -math.inf))
    return e.splat_constant(I1, width_of(x), 0)


def zero(width: int) -> ir.Constant:
    """A float32 zero in every lane."""
    return ir.Constant(F32, 0.0) if width == 1 else ir.Constant(ir.VectorType(F32, width), [0.0] * width)
