"""Activations of neural networks that are no plain composition of other operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import Node, Shape, Value, shape_text
from rerank_engine.ops.elementwise import (
    FLOATS,
    NUMBERS,
    SIGNED,
    Args,
    Attributes,
    add_operator,
    compare,
    emit_function,
    infer_elementwise,
    is_float,
    is_unsigned,
)
from rerank_engine.ops.functions import per_element
from rerank_engine.ops.registry import Array, refuse

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715
"""The approximation of D. Hendrycks and K. Gimpel, *Gaussian Error Linear Units*, 2016."""


def _is_negative(e: Emitter, x: ir.Value) -> ir.Value:
    return compare(e, "<", x, e.like(x, 0))


def _relu(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    x = args[0]
    return e.b.select(_is_negative(e, x), e.like(x, 0), x)


def _leaky_relu(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    x = args[0]
    return e.b.select(_is_negative(e, x), e.b.fmul(x, e.like(x, attributes["alpha"])), x)


def _prelu(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    x, slope = args
    if is_float(x):
        return e.b.select(_is_negative(e, x), e.b.fmul(x, slope), x)
    return x if is_unsigned(attributes) else e.b.select(_is_negative(e, x), e.b.mul(x, slope), x)


def _infer_prelu(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    ((dtype, shape),) = infer_elementwise(NUMBERS, 2)(node, inputs)
    if shape != inputs[0].shape:
        raise refuse(node, f"the slope {shape_text(inputs[1].shape)} must broadcast to {shape_text(inputs[0].shape)}")
    return [(dtype, shape)]


def _elu(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math as kernels

    x = args[0]
    below = e.b.fmul(kernels.exponential_minus_one(e, x), e.like(x, attributes["alpha"]))
    return e.b.select(_is_negative(e, x), below, x)


def _gelu(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.kernels import math as kernels

    x, b = args[0], e.b
    if attributes["approximate"] == "tanh":
        square = b.fmul(x, x)
        inner = b.fmul(b.fmul(x, e.like(x, _TANH_SCALE)), e.fma(square, e.like(x, _TANH_CUBIC), e.like(x, 1.0)))
        share = kernels.hyperbolic_tangent(e, inner)
    else:
        share = kernels.error_function(e, b.fmul(x, e.like(x, math.sqrt(0.5))))
    return b.fmul(b.fmul(x, e.like(x, 0.5)), b.fadd(share, e.like(x, 1.0)))


def _infer_gelu(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if node.attributes.get("approximate", "none") not in ("none", "tanh"):
        raise refuse(node, f"approximate {node.attributes['approximate']!r} is not supported; supported: none, tanh")
    return infer_elementwise(FLOATS, 1)(node, inputs)


_complement = per_element(math.erfc)


def _reference_gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_TANH_SCALE * x * (1 + _TANH_CUBIC * x * x)))
    return 0.5 * x * _complement(x * -math.sqrt(0.5))


def _reference_elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, x.dtype.type(alpha) * np.expm1(x), x)


def _reference_softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_ONE = infer_elementwise(FLOATS, 1)

add_operator(
    "Relu",
    "max(x, 0); NaN stays",
    infer_elementwise((*FLOATS, *SIGNED), 1),
    lambda x: np.where(x < 0, x.dtype.type(0), x),
    _relu,
)
add_operator(
    "LeakyRelu",
    "x where positive, alpha * x elsewhere",
    _ONE,
    lambda x, alpha: np.where(x < 0, x.dtype.type(alpha) * x, x),
    _leaky_relu,
    {"alpha": 0.01},
)
add_operator(
    "PRelu",
    "x where positive, slope * x elsewhere",
    _infer_prelu,
    lambda x, slope: np.where(x < 0, slope * x, x),
    _prelu,
)
add_operator("Elu", "x where positive, alpha * (exp(x) - 1) elsewhere", _ONE, _reference_elu, _elu, {"alpha": 1.0})
add_operator(
    "Gelu",
    "x times the normal distribution's share below x, or its approximation by tanh",
    _infer_gelu,
    _reference_gelu,
    _gelu,
    {"approximate": "none"},
)
add_operator("Sigmoid", "1 / (1 + exp(-x))", _ONE, lambda x: 1 / (1 + np.exp(-x)), emit_function("sigmoid"))
add_operator("Softplus", "log(1 + exp(x))", _ONE, _reference_softplus, emit_function("softplus"))
