"""Convolutions and pools. TFLite keeps channels last, ONNX first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles
from rerank_engine.importers.tflite.schema import PADDINGS

_TO_CHANNELS_FIRST = [0, 3, 1, 2]
_TO_CHANNELS_LAST = [0, 2, 3, 1]


def _pads(call: Call, options: dict[str, Any], window: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Padding of height and width, first at the starts, then at the ends."""
    if call.choice("padding", options["padding"], PADDINGS) == "VALID":
        return [0, 0, 0, 0]
    starts, ends = [], []
    for size, width, dilation, stride in zip(
        call.shape(0)[1:3], window, dilations, (options["stride_h"], options["stride_w"]), strict=True
    ):
        if size < 0:
            raise call.refuse(f"SAME padding of the varying shape {list(call.shape(0))} is not supported")
        reach = (width - 1) * dilation + 1
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        starts.append(total // 2)
        ends.append(total - total // 2)
    return starts + ends


def _window(call: Call, options: dict[str, Any], window: Sequence[int]) -> dict[str, Any]:
    """ONNX attributes that convolutions and pools share."""
    strides = [int(options["stride_h"]), int(options["stride_w"])]
    dilations = [int(options.get("dilation_h", 1)), int(options.get("dilation_w", 1))]
    if call.rank(0) != 4:
        raise call.refuse(f"rank {call.rank(0)} is not supported; 4 is")
    if min(*strides, *dilations, *window) < 1:
        raise call.refuse(f"strides {strides}, dilations {dilations} and window {list(window)} must be positive")
    return {
        "kernel_shape": list(window),
        "strides": strides,
        "pads": _pads(call, options, window, dilations),
        **({"dilations": dilations} if "dilation_h" in options else {}),
    }


def _convolve(call: Call, options: dict[str, Any], order: list[int], group: int) -> None:
    attributes = _window(call, options, call.shape(1)[1:3])
    value = call.emit("Transpose", call.input(0), perm=_TO_CHANNELS_FIRST)
    weights = call.transposed(1, order)
    bias = [call.input(2)] if call.has(2) else []
    value = call.emit("Conv", value, weights, *bias, group=group, **attributes)
    value = call.activate(value, options["fused_activation"])
    call.result(call.emit("Transpose", value, perm=_TO_CHANNELS_LAST))


def _check_weights(call: Call) -> None:
    if call.rank(0) != 4 or call.rank(1) != 4 or min(call.shape(1)) < 1 or call.shape(0)[3] < 1:
        raise call.refuse(
            f"an input of shape {list(call.shape(0))} and weights of shape {list(call.shape(1))} are not supported"
        )


@handles("CONV_2D")
def _convolution(call: Call) -> None:
    call.arity(2, 3)
    options = call.options("Conv2DOptions")
    _check_weights(call)
    channels, width = call.shape(0)[3], call.shape(1)[3]
    if channels % width or call.shape(1)[0] % (channels // width):
        raise call.refuse(f"{channels} channels do not fit weights of shape {list(call.shape(1))}")
    _convolve(call, options, _TO_CHANNELS_FIRST, channels // width)


@handles("DEPTHWISE_CONV_2D")
def _depthwise_convolution(call: Call) -> None:
    call.arity(2, 3)
    options = call.options("DepthwiseConv2DOptions")
    _check_weights(call)
    channels, width = call.shape(0)[3], call.shape(1)[3]
    # The multiplier is said twice; what the weights have is what counts, and files must agree.
    if call.shape(1)[0] != 1 or width % channels or options["depth_multiplier"] not in (0, width // channels):
        raise call.refuse(f"{channels} channels do not fit weights of shape {list(call.shape(1))}")
    _convolve(call, options, [3, 0, 1, 2], channels)


@handles("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(call: Call) -> None:
    call.arity(1)
    options = call.options("Pool2DOptions")
    attributes = _window(call, options, [options["filter_height"], options["filter_width"]])
    value = call.emit("Transpose", call.input(0), perm=_TO_CHANNELS_FIRST)
    op = "AveragePool" if call.operator.name == "AVERAGE_POOL_2D" else "MaxPool"
    value = call.activate(call.emit(op, value, **attributes), options["fused_activation"])
    call.result(call.emit("Transpose", value, perm=_TO_CHANNELS_LAST))
