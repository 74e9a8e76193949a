"""Convolution and pooling over one to three spatial axes behind the channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_engine.importers.caffe.layers.registry import converts
from rerank_engine.importers.caffe.writer import LayerWriter, dims_text

_LONGEST_AXIS = 1 << 16


def _per_axis(layer: LayerWriter, field: str, stem: str, axes: int, default: int | None) -> list[int]:
    """Read a size that is given once, once an axis, or as ``stem_h`` and ``stem_w``."""
    named = [f"{stem}_h", f"{stem}_w"]
    value = getattr(layer.parameter, field)
    plain = [int(value)] if isinstance(value, int) else [int(entry) for entry in value]
    given = layer.has(field) if isinstance(value, int) else bool(plain)
    if any(layer.has(name) for name in named):
        if given or axes != 2:
            raise layer.wrong(f"{named[0]} and {named[1]} need two spatial axes, and {field} left out", field)
        return [int(getattr(layer.parameter, name)) for name in named]
    if not given:
        if default is None:
            raise layer.wrong("it is required", field)
        return [default] * axes
    if len(plain) not in (1, axes):
        raise layer.wrong(f"{len(plain)} values for {axes} spatial axes", field)
    return plain * axes if len(plain) == 1 else plain


def _at_least_one(layer: LayerWriter, field: str, sizes: list[int]) -> None:
    if min(sizes) < 1:
        raise layer.wrong(f"{sizes} must be 1 or more on every axis", field)


@converts(
    "Convolution",
    "convolution_param",
    "num_output bias_term pad pad_h pad_w kernel_size kernel_h kernel_w stride stride_h stride_w dilation group axis",
    "weight_filler bias_filler engine force_nd_im2col",
)
def convolution(layer: LayerWriter) -> None:
    """Convolution with groups and dilation; output sizes are rounded down."""
    (x,) = layer.bottoms
    axes = x.rank - 2
    if layer.axis() != 1:
        raise layer.refuse("channels must be on axis 1", "axis")
    if not 1 <= axes <= 3:
        raise layer.refuse(f"{axes} spatial axes are not supported; 1 to 3 are")
    outputs, groups = layer.positive("num_output"), layer.positive("group")
    kernel = _per_axis(layer, "kernel_size", "kernel", axes, None)
    stride = _per_axis(layer, "stride", "stride", axes, 1)
    pad = _per_axis(layer, "pad", "pad", axes, 0)
    dilation = [int(entry) for entry in layer.parameter.dilation] or [1]
    dilation = dilation * axes if len(dilation) == 1 else dilation
    if len(dilation) != axes:
        raise layer.wrong(f"{len(dilation)} values for {axes} spatial axes", "dilation")
    for field, sizes in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        _at_least_one(layer, field, sizes)
    channels, *lengths = (int(dim) for dim in x.dims[1:])
    if channels % groups or outputs % groups:
        raise layer.wrong(f"{channels} channels and {outputs} outputs cannot be split into {groups}", "group")
    dims: list[int | str] = [x.dims[0], outputs]
    for size, edge, reach, step, gap in zip(lengths, pad, kernel, stride, dilation, strict=True):
        left = size + 2 * edge - (gap * (reach - 1) + 1)
        if left < 0:
            raise layer.wrong(
                f"the kernel does not fit into the padded bottom of shape {dims_text(x.dims)}", "kernel_size"
            )
        dims.append(left // step + 1)
    biased = bool(layer.parameter.bias_term)
    layer.need_weights(1 + biased)
    names = [layer.constant("weight", layer.weight(0, (outputs, channels // groups, *kernel)))]
    if biased:
        names.append(layer.constant("bias", layer.weight(1, (outputs,))))
    layer.finish(
        "Conv",
        [x.name, *names],
        dims,
        kernel_shape=kernel,
        strides=stride,
        pads=pad * 2,
        dilations=dilation,
        group=groups,
    )


@converts(
    "Pooling",
    "pooling_param",
    "pool kernel_size kernel_h kernel_w stride stride_h stride_w pad pad_h pad_w global_pooling round_mode",
    "engine",
)
def pooling(layer: LayerWriter) -> None:
    """Largest or mean value of each window.

    Caffe rounds output sizes up, lets the last window reach over the edge, and divides a mean by the part of the
    window inside of bottom and padding. Padding at the end and a factor for the last row and column say that in ONNX.
    """
    (x,) = layer.bottoms
    if x.rank != 4:
        raise layer.refuse(f"its bottom of shape {dims_text(x.dims)} needs two spatial axes")
    lengths = [int(dim) for dim in x.dims[2:]]
    kernel, stride, pad = _windows(layer, lengths)
    enums = layer.parameter.DESCRIPTOR
    word = enums.fields_by_name["pool"].enum_type.values_by_number[layer.parameter.pool].name
    if word not in ("MAX", "AVE"):
        raise layer.refuse(f"{word} is not supported; MAX and AVE are", "pool")
    if layer.parameter.global_pooling:
        operator = "GlobalMaxPool" if word == "MAX" else "GlobalAveragePool"
        layer.finish(operator, [x.name], (*x.dims[:2], 1, 1))
        return
    rounds_down = layer.parameter.round_mode == enums.enum_types_by_name["RoundMode"].values_by_name["FLOOR"].number
    counts, ends = [], []
    for size, reach, step, edge in zip(lengths, kernel, stride, pad, strict=True):
        count, end = _window_count(layer, size, reach, step, edge, rounds_down, any(pad))
        counts.append(count)
        ends.append(end)
    dims = (*x.dims[:2], *counts)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": pad + ends}
    if word == "MAX":
        layer.finish("MaxPool", [x.name], dims, **attributes)
        return
    factors = [_mean_factors(*entry) for entry in zip(counts, lengths, kernel, stride, pad, strict=True)]
    pending = [
        layer.constant("factor", factor.reshape((1, 1, -1, 1) if index == 0 else (1, 1, 1, -1)))
        for index, factor in enumerate(factors)
        if (factor != 1).any()
    ]
    attributes["count_include_pad"] = 1
    if not pending:
        layer.finish("AveragePool", [x.name], dims, **attributes)
        return
    mean = layer.node("AveragePool", [x.name], **attributes)
    for factor in pending[:-1]:
        mean = layer.node("Mul", [mean, factor])
    layer.finish("Mul", [mean, pending[-1]], dims)


def _windows(layer: LayerWriter, lengths: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Kernel, stride and padding for both axes."""
    stride = _per_axis(layer, "stride", "stride", 2, 1)
    pad = _per_axis(layer, "pad", "pad", 2, 0)
    if layer.parameter.global_pooling:
        if any(layer.has(field) for field in ("kernel_size", "kernel_h", "kernel_w")):
            raise layer.wrong("it takes the bottom as its window; leave out the kernel size", "global_pooling")
        if stride != [1, 1] or any(pad):
            raise layer.wrong("it goes with stride 1 and no padding", "global_pooling")
        kernel = lengths
    else:
        kernel = _per_axis(layer, "kernel_size", "kernel", 2, None)
    _at_least_one(layer, "kernel_size", kernel)
    _at_least_one(layer, "stride", stride)
    if any(edge >= reach for edge, reach in zip(pad, kernel, strict=True)):
        raise layer.wrong(f"padding {pad} must be smaller than the kernel {kernel}", "pad")
    if max(lengths) > _LONGEST_AXIS:
        raise layer.refuse(f"a spatial axis is longer than {_LONGEST_AXIS}")
    return kernel, stride, pad


def _window_count(
    layer: LayerWriter, size: int, reach: int, step: int, edge: int, rounds_down: bool, padded: bool
) -> tuple[int, int]:
    """Number of windows along an axis, and the padding that the last one needs behind the end."""
    left = size + 2 * edge - reach
    if left < 0:
        raise layer.refuse(f"a window of {reach} is longer than the padded axis of {size + 2 * edge}", "kernel_size")
    count = (left // step if rounds_down else -(-left // step)) + 1
    if padded and (count - 1) * step >= size + edge:
        count -= 1
    last = (count - 1) * step
    if last - edge >= size:
        raise layer.refuse("the last window lies outside of the bottom; use a smaller stride", "stride")
    return count, max(0, last + reach - size - edge)


def _mean_factors(count: int, size: int, reach: int, step: int, edge: int) -> np.ndarray:
    """Window length over the length that Caffe divides by, for each window along an axis."""
    starts = np.arange(count) * step - edge
    inside = np.minimum(starts + reach, size + edge) - starts
    return (reach / inside).astype(np.float32)
