"""Layers that combine blobs elementwise, scale and shift them, or reduce them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_engine.importers.caffe.layers.registry import ANY, converts
from rerank_engine.importers.caffe.writer import Blob, LayerWriter, dims_text


@converts("Eltwise", "eltwise_param", "operation coeff", "stable_prod_grad", bottoms=(2, ANY), in_place=True)
def eltwise(layer: LayerWriter) -> None:
    """Sum with coefficients, product or maximum of blobs of one shape."""
    first = layer.bottoms[0]
    for index, blob in enumerate(layer.bottoms):
        if blob.dims != first.dims:
            raise layer.wrong(f"bottom {index} has shape {dims_text(blob.dims)}, the first one {dims_text(first.dims)}")
    coefficients = list(layer.parameter.coeff) or [1.0] * len(layer.bottoms)
    word = layer.parameter.DESCRIPTOR.enum_types_by_name["EltwiseOp"].values_by_number[layer.parameter.operation].name
    if layer.parameter.coeff and word != "SUM":
        raise layer.wrong(f"operation {word} takes no coefficients", "coeff")
    if len(coefficients) != len(layer.bottoms):
        raise layer.wrong(f"{len(coefficients)} coefficients for {len(layer.bottoms)} bottoms", "coeff")
    if not np.isfinite(coefficients).all():
        raise layer.wrong("a coefficient is no finite number", "coeff")
    operator = {"SUM": "Add", "PROD": "Mul", "MAX": "Max"}[word]
    parts = [
        blob.name if factor == 1 else layer.node("Mul", [blob.name, layer.scalar("coeff", factor)])
        for blob, factor in zip(layer.bottoms, coefficients, strict=True)
    ]
    total = parts[0]
    for part in parts[1:-1]:
        total = layer.node(operator, [total, part])
    layer.finish(operator, [total, parts[-1]], first.dims)


@converts("Scale", "scale_param", "axis num_axes bias_term", "filler bias_filler", bottoms=(1, 2), in_place=True)
def scale(layer: LayerWriter) -> None:
    """Product with a trained blob, or with the second bottom, over the axes from ``axis`` on; then a trained bias."""
    biased = bool(layer.parameter.bias_term)
    factor, dims, axis = _operand(layer, "scale", extra_blobs=int(biased))
    x = layer.bottoms[0]
    if not biased:
        layer.finish("Mul", [x.name, factor], x.dims)
        return
    product = layer.node("Mul", [x.name, factor])
    bias = layer.weight(2 - len(layer.bottoms), dims)
    layer.finish("Add", [product, layer.constant("bias", _aligned(bias, axis, x))], x.dims)


@converts("Bias", "bias_param", "axis num_axes", "filler", bottoms=(1, 2), in_place=True)
def bias(layer: LayerWriter) -> None:
    """Sum with a trained blob, or with the second bottom, over the axes from ``axis`` on."""
    summand, _, _ = _operand(layer, "bias")
    layer.finish("Add", [layer.bottoms[0].name, summand], layer.bottoms[0].dims)


def _operand(layer: LayerWriter, role: str, extra_blobs: int = 0) -> tuple[str, tuple[int | str, ...], int]:
    """Find the second factor or summand: its name, ready to broadcast, its dimensions, and the axis it starts at."""
    x = layer.bottoms[0]
    if len(layer.bottoms) == 2:
        other = layer.bottoms[1]
        axis = layer.axis() if other.rank else 0
        if x.dims[axis : axis + other.rank] != other.dims:
            raise layer.wrong(f"shape {dims_text(other.dims)} does not fit {dims_text(x.dims)} from axis {axis} on")
        if extra_blobs:
            layer.need_weights(extra_blobs)
        behind = x.rank - axis - other.rank
        if not behind or not other.rank:
            return other.name, other.dims, axis
        axes = layer.integers("axes", range(other.rank, other.rank + behind))
        return layer.node("Unsqueeze", [other.name, axes]), other.dims, axis
    axis, length = layer.axis(), int(layer.parameter.num_axes)
    end = x.rank if length == -1 else axis + length
    if length < -1 or end > x.rank:
        raise layer.wrong(f"{length} axes from axis {axis} on do not fit shape {dims_text(x.dims)}", "num_axes")
    layer.need_weights(1 + extra_blobs)
    dims = x.dims[axis:end]
    return layer.constant(role, _aligned(layer.weight(0, dims), axis, x)), dims, axis


def _aligned(array: np.ndarray, axis: int, x: Blob) -> np.ndarray:
    """Shape a constant so that it broadcasts over the axes behind its own."""
    return array.reshape(array.shape + (1,) * (x.rank - axis - array.ndim)) if array.ndim else array


@converts("BatchNorm", "batch_norm_param", "use_global_stats eps", "moving_average_fraction", in_place=True)
def batch_norm(layer: LayerWriter) -> None:
    """``(x - mean) / sqrt(variance + eps)`` a channel; the stored sums are divided by the third blob first."""
    (x,) = layer.bottoms
    stored = layer.parameter.use_global_stats if layer.has("use_global_stats") else not layer.trains
    if not stored:
        raise layer.refuse(
            "statistics of the batch mix candidates; train with them, but deploy with true", "use_global_stats"
        )
    if x.rank < 2:
        raise layer.refuse("its bottom has no channel axis")
    layer.need_weights(3)
    mean, variance = layer.weight(0, x.dims[1:2]), layer.weight(1, x.dims[1:2])
    total = layer.weight(2, (1,))[0]
    epsilon = layer.number("eps")
    with np.errstate(all="ignore"):
        factor = np.float32(0) if total == 0 else np.float32(1) / total
        mean, variance = mean * factor, variance * factor
        if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance + np.float32(epsilon) > 0).all()):
            raise layer.wrong("its stored mean or variance is not finite, or variance + eps is not positive")
    channels = len(mean)
    names = [
        layer.constant("scale", np.ones(channels, np.float32)),
        layer.constant("shift", np.zeros(channels, np.float32)),
        layer.constant("mean", mean),
        layer.constant("variance", variance),
    ]
    layer.finish("BatchNormalization", [x.name, *names], x.dims, epsilon=epsilon)


@converts("Reduction", "reduction_param", "operation axis coeff")
def reduction(layer: LayerWriter) -> None:
    """Sum, mean, sum of absolute values or of squares over all axes from ``axis`` on, times ``coeff``."""
    (x,) = layer.bottoms
    axis, factor = layer.axis(), layer.number("coeff")
    axes, dims, source = list(range(axis, x.rank)), x.dims[:axis], x.name
    word = layer.parameter.DESCRIPTOR.enum_types_by_name["ReductionOp"].values_by_number[layer.parameter.operation].name
    if word == "ASUM":
        source = layer.node("Abs", [source])
    elif word == "SUMSQ":
        source = layer.node("Mul", [source, source])
    attributes: dict[str, Any] = {"keepdims": 0}
    operator, inputs = "ReduceSum", [source]
    if word == "MEAN":
        operator, attributes["axes"] = "ReduceMean", axes
    else:
        inputs.append(layer.integers("axes", axes))
    if factor == 1:
        layer.finish(operator, inputs, dims, **attributes)
    else:
        reduced = layer.node(operator, inputs, **attributes)
        layer.finish("Mul", [reduced, layer.scalar("coeff", factor)], dims)


@converts("ArgMax", "argmax_param", "out_max_val top_k axis")
def arg_max(layer: LayerWriter) -> None:
    """Place of the largest value, as a float: along ``axis``, or over all elements of a candidate. Ties: the last."""
    from onnx import TensorProto

    (x,) = layer.bottoms
    if layer.parameter.top_k != 1:
        raise layer.refuse(f"only the largest one is supported, not {layer.parameter.top_k}", "top_k")
    wants_value = bool(layer.parameter.out_max_val)
    if layer.has("axis"):
        axis = layer.axis()
        dims = (*x.dims[:axis], 1, *x.dims[axis + 1 :])
        if wants_value:
            layer.finish("ReduceMax", [x.name], dims, axes=[axis], keepdims=1)
        else:
            place = layer.node("ArgMax", [x.name], axis=axis, keepdims=1, select_last_index=1)
            layer.finish("Cast", [place], dims, to=TensorProto.FLOAT)
        return
    layer.count(x.dims[1:])
    flat = layer.node("Flatten", [x.name], axis=1)
    place = layer.node("ArgMax", [flat], axis=1, keepdims=1, select_last_index=1)
    found = layer.node("Cast", [place], to=TensorProto.FLOAT)
    if wants_value:
        found = layer.node("Concat", [found, layer.node("ReduceMax", [flat], axes=[1], keepdims=1)], axis=1)
    dims = (x.dims[0], 2 if wants_value else 1, 1, *[1] * (x.rank - 3))
    layer.finish("Reshape", [found, layer.shape_vector(dims)], dims)
