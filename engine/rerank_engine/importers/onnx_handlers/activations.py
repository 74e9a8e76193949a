"""Activations: operators of the graph where it has them, else the compositions by which ONNX defines them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import DTYPES, Value
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.elementwise import emit_elementwise, number, require_dtype
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.ops.elementwise import FLOATS, NUMBERS

if TYPE_CHECKING:
    import onnx

_LEAKY_SLOPE, _HARD_SLOPE = 0.009999999776482582, 0.20000000298023224
"""0.01 and 0.2 in float32, as ONNX stores its defaults."""


@handles("Relu", "PRelu", "Sigmoid", "Softplus")
def _same_operator(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    emit_elementwise(builder, node)


@handles("LeakyRelu", "Elu")
def _with_alpha(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    alpha = builder.attributes({"alpha": _LEAKY_SLOPE if node.op_type == "LeakyRelu" else 1.0})["alpha"]
    emit_elementwise(builder, node, attributes={"alpha": float(alpha)})


@handles("Gelu")
def _gelu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    approximate = builder.attributes({"approximate": b"none"})["approximate"].decode()
    if approximate not in ("none", "tanh"):
        raise builder.refuse(f"attribute approximate={approximate!r} must be 'none' or 'tanh'")
    emit_elementwise(builder, node, attributes={"approximate": approximate})


def _source(builder: OnnxBuilder, node: onnx.NodeProto) -> Value:
    require_dtype(builder, node.input, FLOATS)
    return builder.value(node.input[0])


@handles("Selu")
def _selu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"alpha": 1.6732631921768188, "gamma": 1.0507010221481323})
    x = _source(builder, node)
    bent = builder.emit("Elu", [x.name], {"alpha": float(found["alpha"])})
    builder.emit("Mul", [bent, number(builder, found["gamma"], x.dtype)], output=node.output[0])


@handles("Celu")
def _celu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """``x`` where positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere."""
    alpha = builder.attributes({"alpha": 1.0})["alpha"]
    if not 0 < alpha < math.inf:
        raise builder.refuse(f"attribute alpha={alpha} is not supported; it must be positive")
    x = _source(builder, node)
    if alpha == 1:
        builder.emit("Elu", [x.name], {"alpha": 1.0}, node.output[0])
        return
    factor = number(builder, alpha, x.dtype)
    bent = builder.emit("Mul", [builder.emit("Elu", [builder.emit("Div", [x.name, factor])]), factor])
    below = builder.emit("Less", [x.name, number(builder, 0.0, x.dtype)])
    builder.emit("Where", [below, bent, x.name], output=node.output[0])


@handles("HardSigmoid", "HardSwish")
def _hard(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """A line between 0 and 1; HardSwish is ``x`` times such a line."""
    is_swish = node.op_type == "HardSwish"
    found = builder.attributes({} if is_swish else {"alpha": _HARD_SLOPE, "beta": 0.5})
    x = _source(builder, node)
    alpha, beta = number(builder, found.get("alpha", 1 / 6), x.dtype), number(builder, found.get("beta", 0.5), x.dtype)
    line = builder.emit("Add", [builder.emit("Mul", [x.name, alpha]), beta])
    limits = {"low": 0.0, "high": 1.0}
    if is_swish:
        builder.emit("Mul", [x.name, builder.emit("Clip", [line], limits)], output=node.output[0])
    else:
        builder.emit("Clip", [line], limits, node.output[0])


@handles("Mish")
def _mish(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    x = _source(builder, node).name
    builder.emit("Mul", [x, builder.emit("Tanh", [builder.emit("Softplus", [x])])], output=node.output[0])


@handles("Softsign")
def _softsign(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    x = _source(builder, node)
    below = builder.emit("Add", [builder.emit("Abs", [x.name]), number(builder, 1.0, x.dtype)])
    builder.emit("Div", [x.name, below], output=node.output[0])


@handles("Swish")
def _swish(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    alpha = builder.attributes({"alpha": 1.0})["alpha"]
    x = _source(builder, node)
    scaled = x.name if alpha == 1 else builder.emit("Mul", [x.name, number(builder, alpha, x.dtype)])
    builder.emit("Mul", [x.name, builder.emit("Sigmoid", [scaled])], output=node.output[0])


@handles("ThresholdedRelu")
def _thresholded_relu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """``x`` above alpha, else 0, also for NaN."""
    alpha = builder.attributes({"alpha": 1.0})["alpha"]
    x = _source(builder, node)
    above = builder.emit("Greater", [x.name, number(builder, alpha, x.dtype)])
    builder.emit("Where", [above, x.name, number(builder, 0.0, x.dtype)], output=node.output[0])


@handles("Shrink")
def _shrink(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """``x + bias`` below -lambd, ``x - bias`` above lambd, else 0, also for NaN."""
    found = builder.attributes({"bias": 0.0, "lambd": 0.5})
    require_dtype(builder, node.input, NUMBERS)
    x = builder.value(node.input[0])
    bias, lambd = float(found["bias"]), float(found["lambd"])
    low, high = -lambd, lambd
    if x.dtype not in FLOATS:
        # Integers are below -lambd where they are below the next integer, and lie in the dtype's range.
        limits = np.iinfo(DTYPES[x.dtype])
        is_whole = math.isfinite(bias) and bias == int(bias) and limits.min <= bias <= limits.max
        if not (is_whole and math.isfinite(lambd)):
            raise builder.refuse(f"bias={bias} and lambd={lambd} must be finite, and bias a whole number of {x.dtype}")
        low, high = max(limits.min, math.ceil(low)), min(limits.max, math.floor(high))
        if low > limits.max or high < limits.min:
            raise builder.refuse(f"lambd={lambd} is outside the range of {x.dtype}")
    shift, zero = number(builder, bias, x.dtype), number(builder, 0, x.dtype)
    below = builder.emit("Less", [x.name, number(builder, low, x.dtype)])
    above = builder.emit("Greater", [x.name, number(builder, high, x.dtype)])
    moved_down = builder.emit("Where", [above, builder.emit("Sub", [x.name, shift]), zero])
    builder.emit("Where", [below, builder.emit("Add", [x.name, shift]), moved_down], output=node.output[0])
