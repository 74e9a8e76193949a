"""Layers that work on each element, and Softmax."""

from __future__ import annotations

import math

import numpy as np

from rerank_engine.importers.caffe.layers.registry import converts
from rerank_engine.importers.caffe.writer import LayerWriter


@converts("ReLU", "relu_param", "negative_slope", "engine", in_place=True)
def relu(layer: LayerWriter) -> None:
    """``max(x, 0) + negative_slope * min(x, 0)``."""
    (x,) = layer.bottoms
    slope = layer.number("negative_slope")
    if slope:
        layer.finish("LeakyRelu", [x.name], x.dims, alpha=slope)
    else:
        layer.finish("Relu", [x.name], x.dims)


@converts("PReLU", "prelu_param", "channel_shared", "filler", in_place=True)
def prelu(layer: LayerWriter) -> None:
    """``x`` where positive, ``slope * x`` elsewhere, with one slope a channel (axis 1), or one for all."""
    (x,) = layer.bottoms
    if x.rank < 2:
        raise layer.wrong("its bottom needs a channel axis")
    layer.need_weights(1)
    if layer.parameter.channel_shared:
        slope = layer.weight(0, ()).reshape(1)
    else:
        slope = layer.weight(0, x.dims[1:2]).reshape(-1, *[1] * (x.rank - 2))
    layer.finish("PRelu", [x.name, layer.constant("slope", slope)], x.dims)


@converts("ELU", "elu_param", "alpha", in_place=True)
def elu(layer: LayerWriter) -> None:
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    (x,) = layer.bottoms
    layer.finish("Elu", [x.name], x.dims, alpha=layer.number("alpha"))


@converts("Sigmoid", "sigmoid_param", "", "engine", in_place=True)
def sigmoid(layer: LayerWriter) -> None:
    """``1 / (1 + exp(-x))``."""
    (x,) = layer.bottoms
    layer.finish("Sigmoid", [x.name], x.dims)


@converts("TanH", "tanh_param", "", "engine", in_place=True)
def tanh(layer: LayerWriter) -> None:
    """Hyperbolic tangent."""
    (x,) = layer.bottoms
    layer.finish("Tanh", [x.name], x.dims)


@converts("AbsVal", in_place=True)
def absolute(layer: LayerWriter) -> None:
    """``|x|``."""
    (x,) = layer.bottoms
    layer.finish("Abs", [x.name], x.dims)


@converts("BNLL", in_place=True)
def bnll(layer: LayerWriter) -> None:
    """``log(1 + exp(x))``, the binomial normal log likelihood, which ONNX calls Softplus."""
    (x,) = layer.bottoms
    layer.finish("Softplus", [x.name], x.dims)


@converts("Swish", "swish_param", "beta")
def swish(layer: LayerWriter) -> None:
    """``x * sigmoid(beta * x)``."""
    (x,) = layer.bottoms
    gate = layer.node("Sigmoid", [_scaled(layer, x.name, layer.number("beta"), "beta")])
    layer.finish("Mul", [x.name, gate], x.dims)


@converts("Clip", "clip_param", "min max", in_place=True)
def clip(layer: LayerWriter) -> None:
    """Limits to [min, max]."""
    (x,) = layer.bottoms
    for bound in ("min", "max"):
        if not layer.has(bound):
            raise layer.wrong("it is required", bound)
    low, high = layer.number("min"), layer.number("max")
    if low > high:
        raise layer.wrong(f"{low} is above max {high}", "min")
    layer.finish("Clip", [x.name, layer.scalar("min", low), layer.scalar("max", high)], x.dims)


@converts("Threshold", "threshold_param", "threshold", in_place=True)
def threshold(layer: LayerWriter) -> None:
    """1 where ``x`` is above the threshold, 0 elsewhere."""
    from onnx import TensorProto

    (x,) = layer.bottoms
    above = layer.node("Greater", [x.name, layer.scalar("threshold", layer.number("threshold"))])
    layer.finish("Cast", [above], x.dims, to=TensorProto.FLOAT)


@converts("Power", "power_param", "power scale shift", in_place=True)
def power(layer: LayerWriter) -> None:
    """``(shift + scale * x) ** power``; a constant when ``scale`` or ``power`` is 0, whatever ``x`` is."""
    from onnx import numpy_helper

    (x,) = layer.bottoms
    exponent, scale, shift = (layer.number(name) for name in ("power", "scale", "shift"))
    if scale == 0 or exponent == 0:
        with np.errstate(all="ignore"):
            value = np.ones(1, np.float32) if exponent == 0 else np.array([shift], np.float32) ** np.float32(exponent)
        shape = layer.node("Shape", [x.name])
        layer.finish("ConstantOfShape", [shape], x.dims, value=numpy_helper.from_array(value))
        return
    base = _shifted(layer, _scaled(layer, x.name, scale, "scale"), shift)
    if exponent == 1:
        layer.finish("Identity", [base], x.dims)
    else:
        layer.finish("Pow", [base, layer.scalar("power", exponent)], x.dims)


@converts("Exp", "exp_param", "base scale shift", in_place=True)
def exponential(layer: LayerWriter) -> None:
    """``base ** (shift + scale * x)``, base e when it is -1; computed as Caffe does, with the shift as a factor."""
    (x,) = layer.bottoms
    scale, shift = layer.number("scale"), layer.number("shift")
    logarithm = _log_base(layer)
    with np.errstate(over="ignore", under="ignore"):
        factor = np.float32(np.exp(np.float64(logarithm * shift)))
    if not 0 < factor < math.inf:
        raise layer.wrong(f"base ** {shift} is {factor} in float32, so every result would be", "shift")
    raised = layer.node("Exp", [_scaled(layer, x.name, logarithm * scale, "scale")])
    if factor == 1:
        layer.finish("Identity", [raised], x.dims)
    else:
        layer.finish("Mul", [raised, layer.scalar("factor", float(factor))], x.dims)


@converts("Log", "log_param", "base scale shift", in_place=True)
def logarithm(layer: LayerWriter) -> None:
    """Logarithm to ``base`` (e when it is -1) of ``shift + scale * x``."""
    (x,) = layer.bottoms
    scale, shift = layer.number("scale"), layer.number("shift")
    log_base = _log_base(layer)
    if log_base == 0:
        raise layer.wrong("1 is no base of a logarithm", "base")
    found = layer.node("Log", [_shifted(layer, _scaled(layer, x.name, scale, "scale"), shift)])
    if log_base == 1:
        layer.finish("Identity", [found], x.dims)
    else:
        layer.finish("Mul", [found, layer.scalar("log_base", 1 / log_base)], x.dims)


@converts("Softmax", "softmax_param", "axis", "engine", in_place=True)
def softmax(layer: LayerWriter) -> None:
    """Softmax along one axis."""
    (x,) = layer.bottoms
    layer.finish("Softmax", [x.name], x.dims, axis=layer.axis())


@converts("Dropout", "dropout_param", "", "dropout_ratio", in_place=True)
def dropout(layer: LayerWriter) -> None:
    """Nothing, in phase TEST: Caffe scales while training."""
    (x,) = layer.bottoms
    if layer.trains:
        raise layer.refuse("phase: TRAIN on the layer keeps it random in inference; remove the field")
    layer.finish("Identity", [x.name], x.dims)


def _scaled(layer: LayerWriter, name: str, scale: float, role: str) -> str:
    return name if scale == 1 else layer.node("Mul", [name, layer.scalar(role, scale)])


def _shifted(layer: LayerWriter, name: str, shift: float) -> str:
    return name if shift == 0 else layer.node("Add", [name, layer.scalar("shift", shift)])


def _log_base(layer: LayerWriter) -> float:
    base = layer.number("base")
    if base == -1:
        return 1.0
    if base <= 0:
        raise layer.wrong(f"{base} must be positive, or -1 for e", "base")
    return math.log(base)
