"""Rounding to whole numbers, exact, by additions alone.

LLVM's own ``floor`` and its kin are instructions only from SSE4.1 on and calls of the C library before, so
the rounding of the addition does the work: above 2^23 (2^52 for float64) a float has no fraction, so adding that number
and taking it away leaves the nearest whole number, ties to even.
"""

from __future__ import annotations

from llvmlite import ir

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels.math.basic import absolute
from rerank_engine.kernels.math.formats import copy_sign, format_of


def round_half_even(e: Emitter, x: ir.Value) -> ir.Value:
    """The nearest whole number, ties to the even one; the sign stays, that of zero too."""
    whole_above = e.like(x, 2.0 ** format_of(x).mantissa_bits)
    size = absolute(e, x)
    rounded = e.b.fsub(e.b.fadd(size, whole_above), whole_above)
    rounded = copy_sign(e, rounded, x)
    return e.b.select(e.b.fcmp_ordered("<", size, whole_above), rounded, x)


def floor(e: Emitter, x: ir.Value) -> ir.Value:
    """The largest whole number that is not above."""
    rounded = round_half_even(e, x)
    step = e.b.select(e.b.fcmp_ordered(">", rounded, x), e.like(x, 1.0), e.like(x, 0.0))
    return copy_sign(e, e.b.fsub(rounded, step), x)


def ceiling(e: Emitter, x: ir.Value) -> ir.Value:
    """The smallest whole number that is not below; -0 for what lies between -1 and 0."""
    rounded = round_half_even(e, x)
    step = e.b.select(e.b.fcmp_ordered("<", rounded, x), e.like(x, 1.0), e.like(x, 0.0))
    return copy_sign(e, e.b.fadd(rounded, step), x)


def truncate(e: Emitter, x: ir.Value) -> ir.Value:
    """The whole number next to it towards zero."""
    return copy_sign(e, floor(e, absolute(e, x)), x)
