"""Quantised operators: integers are computed as integers, scales in float32, results rounded half to even."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import DTYPES, Shape
from rerank_engine.importers.onnx import ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.onnx_handlers.convolutions import _COMMON, convolve, geometry
from rerank_engine.importers.onnx_handlers.products import matrix_product
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx

_QUANTISED = ("int8", "uint8", "int16", "uint16")


@handles("QuantizeLinear")
def _quantize(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 1, "saturate": 1, "block_size": 0, "output_dtype": 0}, only={"precision": 0})
    names = [*node.input, ""]
    zero = builder.value_name(names[2]) if names[2] else None
    dtype = builder.graph.values[zero].dtype if zero else ONNX_DTYPES.get(found["output_dtype"] or 2, "")
    if dtype not in _QUANTISED or (zero and found["output_dtype"] not in (0, builder.onnx_dtype(dtype))):
        raise builder.refuse(f"only {', '.join(_QUANTISED)} can be quantised to")
    source = builder.value(names[0])
    scale = _spread(builder, builder.value_name(names[1]), source.shape, found["axis"], found["block_size"])
    value = builder.emit("Div", [_float(builder, source.name), _float(builder, scale)])
    shift = _spread(builder, zero, source.shape, found["axis"], found["block_size"]) if zero else None
    quantise(builder, value, shift, dtype, node.output[0])


@handles("DequantizeLinear")
def _dequantize(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 1, "block_size": 0}, only={"output_dtype": 0})
    names = [*node.input, ""]
    source = builder.value(names[0])
    if source.dtype not in (*_QUANTISED, "int32"):
        raise builder.refuse(f"{source} is no quantised value")
    scale_value = builder.value(names[1])
    if scale_value.dtype != "float32":
        raise builder.refuse(f"only float32 scales are supported, has {scale_value}")
    scale = _spread(builder, scale_value.name, source.shape, found["axis"], found["block_size"])
    zero = builder.value_name(names[2]) if names[2] else None
    shift = _spread(builder, zero, source.shape, found["axis"], found["block_size"]) if zero else None
    centred = _centred(builder, source.name, shift)
    builder.emit("Mul", [builder.emit("Cast", [centred], {"to": "float32"}), scale], output=node.output[0])


@handles("MatMulInteger")
def _matmul_integer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    names = [*node.input, "", ""]
    left, right = _integer_operands(builder, names[0], names[1], names[2], names[3])
    matrix_product(builder, left, right, node.output[0])


@handles("QLinearMatMul")
def _qlinear_matmul(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    left, right = _integer_operands(builder, a, b, a_zero, b_zero)
    made = matrix_product(builder, left, right)
    rows = _as_rows(builder, builder.value_name(a_scale), len(builder.graph.values[made].shape))
    _rescale(builder, made, [rows, builder.value_name(b_scale)], y_scale, y_zero, node.output[0])


@handles("ConvInteger")
def _conv_integer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({**_COMMON, "group": 1})
    names = [*node.input, "", ""]
    source, weight = _integer_convolution(builder, names[0], names[1], names[2], names[3])
    shape, weights = builder.graph.values[source].shape, builder.graph.values[weight].shape
    where = geometry(builder, found, shape[2:], found["kernel_shape"] or weights[2:])
    convolve(builder, source, weight, None, where, found["group"], node.output[0])


@handles("QLinearConv")
def _qlinear_conv(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({**_COMMON, "group": 1})
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *rest = node.input
    source, weight = _integer_convolution(builder, x, w, x_zero, w_zero)
    shape, weights = builder.graph.values[source].shape, builder.graph.values[weight].shape
    where = geometry(builder, found, shape[2:], found["kernel_shape"] or weights[2:])
    bias = builder.value_name(rest[0]) if rest and rest[0] else None
    made = convolve(builder, source, weight, bias, where, found["group"], None)
    scale = builder.value(w_scale)
    per_channel = scale.name
    if scale.shape not in ((), (1,)):
        per_channel = builder.emit_shaped("Reshape", scale.name, (*scale.shape, *(1,) * (len(shape) - 2)))
    _rescale(builder, made, [builder.value_name(x_scale), per_channel], y_scale, y_zero, node.output[0])


def quantise(builder: OnnxBuilder, value: str, zero: str | None, dtype: str, output: str) -> None:
    """Round a float32 value, add the zero point and saturate to the range of ``dtype``."""
    rounded = builder.emit("Round", [value])
    if zero is not None:
        rounded = builder.emit("Add", [rounded, builder.emit("Cast", [zero], {"to": "float32"})])
    limits = np.iinfo(DTYPES[dtype])
    inside = builder.emit("Clip", [rounded], {"low": float(limits.min), "high": float(limits.max)})
    builder.emit("Cast", [inside], {"to": dtype}, output)


def _rescale(builder: OnnxBuilder, made: str, scales: list[str], y_scale: str, y_zero: str, output: str) -> None:
    factor = builder.emit("Mul", [_float(builder, scale) for scale in scales])
    factor = builder.emit("Div", [factor, _float(builder, builder.value_name(y_scale))])
    value = builder.emit("Mul", [builder.emit("Cast", [made], {"to": "float32"}), factor])
    zero = builder.value(y_zero)
    quantise(builder, value, zero.name, zero.dtype, output)


def _integer_operands(builder: OnnxBuilder, a: str, b: str, a_zero: str, b_zero: str) -> tuple[str, str]:
    left, right = builder.value(a), builder.value(b)
    rows = _as_rows(builder, builder.value_name(a_zero), len(left.shape)) if a_zero else None
    return (
        _centred(builder, left.name, rows),
        _centred(builder, right.name, builder.value_name(b_zero) if b_zero else None),
    )


def _integer_convolution(builder: OnnxBuilder, x: str, w: str, x_zero: str, w_zero: str) -> tuple[str, str]:
    source = _centred(builder, builder.value_name(x), builder.value_name(x_zero) if x_zero else None)
    zero = builder.value_name(w_zero) if w_zero else None
    weight = builder.value(w)
    if zero is not None and builder.graph.values[zero].shape not in ((), (1,)):
        zero = builder.emit_shaped("Reshape", zero, (weight.shape[0], *(1,) * (len(weight.shape) - 1)))
    return source, _centred(builder, weight.name, zero)


def _as_rows(builder: OnnxBuilder, name: str, rank: int) -> str:
    """A parameter for each row of a matrix, as a column that broadcasts over it; a single one stays."""
    shape = builder.graph.values[name].shape
    if len(shape) == 1 and shape != (1,) and rank > 1:
        return builder.emit_shaped("Reshape", name, (*shape, 1))
    return name


def _centred(builder: OnnxBuilder, name: str, zero: str | None) -> str:
    """A quantised value less its zero point, in int32."""
    wide = builder.emit("Cast", [name], {"to": "int32"})
    return wide if zero is None else builder.emit("Sub", [wide, builder.emit("Cast", [zero], {"to": "int32"})])


def _float(builder: OnnxBuilder, name: str) -> str:
    value = builder.graph.values[name]
    if value.dtype not in ("float32", "int32"):
        raise builder.refuse(f"only float32 is supported, has {value}")
    return name if value.dtype == "float32" else builder.emit("Cast", [name], {"to": "float32"})


def _spread(builder: OnnxBuilder, name: str, shape: Shape, axis: int, block: int) -> str:
    """A scale or zero point for one axis or for blocks along it, shaped so that it broadcasts over ``shape``."""
    own = builder.graph.values[name].shape
    if own in ((), (1,)):
        return name if not own or shape else builder.emit_shaped("Reshape", name, ())
    axis = builder.axis(axis, len(shape))
    if block == 0:
        if len(own) != 1 or own[0] != shape[axis]:
            raise builder.refuse(f"{builder.graph.values[name]} does not fit axis {axis} of shape {shape}")
        return builder.emit_shaped("Reshape", name, (*(1,) * axis, *own, *(1,) * (len(shape) - axis - 1)))
    size, blocks = shape[axis], own[axis] if len(own) == len(shape) else None
    if not isinstance(size, int) or not isinstance(blocks, int) or -(-size // block) != blocks:
        raise builder.refuse(f"block_size={block} does not fit {builder.graph.values[name]} and shape {shape}")
    wide = builder.emit_shaped("Reshape", name, (*own[: axis + 1], 1, *own[axis + 1 :]))
    wide = builder.emit_shaped("Expand", wide, (*own[: axis + 1], block, *own[axis + 1 :]))
    flat = builder.emit_shaped("Reshape", wide, (*own[:axis], blocks * block, *own[axis + 1 :]))
    return builder.emit("Slice", [flat], {"axis": axis, "start": 0, "stop": size})
