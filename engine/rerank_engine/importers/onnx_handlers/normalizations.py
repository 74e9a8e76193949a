"""Normalisation of layers, batches, instances, groups and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import DTYPES, Dim, Value, shape_text
from rerank_engine.importers.onnx import ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.onnx_handlers.reductions import lp_norm
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx

_FLOATS = ("float32", "float64")
_SMALLEST_DEVIATION = 1e-9
"""What ONNX adds to the deviation in MeanVarianceNormalization."""


def _cast(builder: OnnxBuilder, source: str, dtype: str, output: str | None = None) -> str:
    if builder.graph.values[source].dtype == dtype:
        return builder.emit("Identity", [source], output=output) if output else source
    return builder.emit("Cast", [source], {"to": dtype}, output)


def _stash_dtype(builder: OnnxBuilder, stash_type: int) -> str:
    """The dtype in which the statistics are to be computed."""
    dtype = ONNX_DTYPES.get(stash_type, "")
    if dtype not in _FLOATS:
        raise builder.refuse(
            f"attribute stash_type={stash_type} is not supported; supported: 1 (float32), 11 (float64)"
        )
    return dtype


def _fitting(builder: OnnxBuilder, name: str, shape: Sequence[int | Dim]) -> str | None:
    """The value in exactly this shape; None where it does not broadcast to it."""
    value = builder.graph.values[name]
    if value.shape == tuple(shape):
        return name
    own: list[int | Dim] = list(value.shape)
    while len(own) > len(shape) and own[0] == 1:
        own.pop(0)
    own = [*([1] * (len(shape) - len(own))), *own]
    if len(own) != len(shape) or any(have not in (1, want) for have, want in zip(own, shape, strict=True)):
        return None
    name = builder.emit_shaped("Reshape", name, own)
    return name if own == list(shape) else builder.emit_shaped("Expand", name, shape)


@handles("LayerNormalization", "RMSNormalization")
def _layer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": -1, "epsilon": 1e-5, "stash_type": 1})
    source = builder.value(node.input[0])
    stash = _stash_dtype(builder, found["stash_type"])
    # Never less precise than the input itself.
    dtype = "float64" if "float64" in (stash, source.dtype) else "float32"
    axis = builder.axis(found["axis"], len(source.shape))
    if any(node.output[1:]) and node.op_type == "RMSNormalization":
        raise builder.refuse("has one output")
    parameters = [_cast(builder, builder.value_name(name), dtype) for name in node.input[1:] if name]
    fitting = [_fitting(builder, name, source.shape[axis:]) for name in parameters]
    inside = [name for name in fitting if name is not None] if None not in fitting else []
    outside = [] if inside else parameters
    attributes = {"axis": axis, "epsilon": float(found["epsilon"])}
    wide = _cast(builder, source.name, dtype)
    is_done = not outside and dtype == source.dtype
    first = node.output[0] if is_done else None
    if any(node.output[1:]):
        rest = [output if stash == dtype else "" for output in (*node.output[1:], "", "")[:2]]
        made = builder.emit_many(node.op_type, [wide, *inside], attributes, [first, *rest])
        for name, output in zip(made[1:], node.output[1:], strict=False):
            if output and stash != dtype:
                builder.emit("Cast", [name], {"to": stash}, output)
        result = made[0]
    else:
        result = builder.emit(node.op_type, [wide, *inside], attributes, first)
    if is_done:
        return
    for name, op in zip(outside, ("Mul", "Add"), strict=False):
        result = builder.emit(op, [result, name])
    if builder.graph.values[result].shape != source.shape:
        raise builder.refuse(f"scale and bias do not broadcast to {source}")
    _cast(builder, result, source.dtype, node.output[0])


def _standardized(builder: OnnxBuilder, source: str, axis: int, epsilon: float) -> str:
    return builder.emit("LayerNormalization", [source], {"axis": axis, "epsilon": float(epsilon)})


def _per_channel(builder: OnnxBuilder, name: str, source: Value, channels: int | Dim) -> str:
    """A vector over channels as (channels, 1, ...), in the dtype of the source."""
    value = builder.graph.values[name]
    if product(value.shape) != channels:
        raise builder.refuse(f"{value} must have one entry for each of the {channels} channels")
    shaped = builder.emit_shaped("Reshape", name, (channels, *(1 for _ in source.shape[2:])))
    return _cast(builder, shaped, source.dtype)


@handles("InstanceNormalization")
def _instance(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    epsilon = builder.attributes({"epsilon": 1e-5})["epsilon"]
    source = builder.value(node.input[0])
    if len(source.shape) < 3:
        raise builder.refuse(f"needs (N, C, ...), has {source}")
    scale, bias = (_per_channel(builder, builder.value_name(name), source, source.shape[1]) for name in node.input[1:3])
    standard = _standardized(builder, source.name, 2, epsilon)
    builder.emit("Add", [builder.emit("Mul", [standard, scale]), bias], output=node.output[0])


@handles("GroupNormalization")
def _group(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 21:
        raise builder.refuse("before opset 21 it has other parameters and is deprecated; export with opset 21 or newer")
    found = builder.attributes({"epsilon": 1e-5, "num_groups": None, "stash_type": 1})
    source, groups = builder.value(node.input[0]), found["num_groups"]
    # Never less precise than the input itself.
    dtype = "float64" if "float64" in (_stash_dtype(builder, found["stash_type"]), source.dtype) else "float32"
    if len(source.shape) < 2 or not isinstance(source.shape[1], int):
        raise builder.refuse(f"needs (N, C, ...) with a fixed number of channels, has {source}")
    channels = source.shape[1]
    if groups < 1 or channels % groups:
        raise builder.refuse(f"attribute num_groups={groups} does not divide the {channels} channels")
    grouped = (source.shape[0], groups, product((channels // groups, *source.shape[2:])))
    rows = builder.emit_shaped("Reshape", _cast(builder, source.name, dtype), grouped)
    standard = _standardized(builder, rows, 2, found["epsilon"])
    standard = _cast(builder, builder.emit_shaped("Reshape", standard, source.shape), source.dtype)
    scale, bias = (_per_channel(builder, builder.value_name(name), source, channels) for name in node.input[1:3])
    builder.emit("Add", [builder.emit("Mul", [standard, scale]), bias], output=node.output[0])


@handles("BatchNormalization")
def _batch(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    understood: dict[str, Any] = {"epsilon": 1e-5, "momentum": 0.9}
    if builder.opset < 9:
        understood["spatial"] = 1
    found = builder.attributes(understood, only={"training_mode": 0} if builder.opset >= 14 else None)
    if any(node.output[1:]):
        raise builder.refuse("only the normalised output is supported: the others belong to training")
    source = builder.value(node.input[0])
    if not source.shape:
        raise builder.refuse(f"needs (N, C, ...), has {source}")
    rank = len(source.shape)
    channels = source.shape[1] if rank > 1 else 1
    shape = (channels, *(1 for _ in source.shape[2:]))
    if not found.get("spatial", 1):
        shape = source.shape[1:]
    names = [builder.value_name(name) for name in node.input[1:5]]
    for name in names:
        value = builder.graph.values[name]
        if value.dtype not in _FLOATS or product(value.shape) != product(shape):
            raise builder.refuse(f"{value} must be floats of shape {shape_text(shape)}")
    arrays = [builder.graph.constants.get(name) for name in names]
    if all(array is not None for array in arrays):
        gain, bias, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
        with np.errstate(all="ignore"):  # A negative variance gives NaN, as it would when the model runs.
            factor = gain / np.sqrt(variance + found["epsilon"])
            offset = bias - mean * factor
        fixed = tuple(dim for dim in shape if isinstance(dim, int))
        scale, shift = (
            builder.own_constant(f"{node.output[0]}/{what}", array.astype(DTYPES[source.dtype]).reshape(fixed))
            for what, array in (("scale", factor), ("shift", offset))
        )
        builder.emit("Add", [builder.emit("Mul", [source.name, scale]), shift], output=node.output[0])
        return
    gain_name, bias_name, mean_name, variance_name = (
        _cast(builder, builder.emit_shaped("Reshape", name, shape), source.dtype) for name in names
    )
    epsilon = builder.own_constant(f"{node.output[0]}/epsilon", np.array(found["epsilon"], DTYPES[source.dtype]))
    deviation = builder.emit("Sqrt", [builder.emit("Add", [variance_name, epsilon])])
    factor_name = builder.emit("Div", [gain_name, deviation])
    centered = builder.emit("Sub", [source.name, mean_name])
    builder.emit("Add", [builder.emit("Mul", [centered, factor_name]), bias_name], output=node.output[0])


@handles("LpNormalization")
def _vector(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": -1, "p": 2})
    if found["p"] not in (1, 2):
        raise builder.refuse(f"attribute p={found['p']} is not supported; supported: 1, 2")
    source = builder.value(node.input[0])
    axis = builder.axis(found["axis"], len(source.shape))
    norm = lp_norm(builder, node, source.name, (axis,), found["p"])
    zero = builder.own_constant(f"{node.output[0]}/zero", np.zeros((), DTYPES[source.dtype]))
    ratio = builder.emit("Div", [source.name, norm])
    # A vector of zeros stays one.
    builder.emit("Where", [builder.emit("Equal", [norm, zero]), zero, ratio], output=node.output[0])


@handles("MeanVarianceNormalization")
def _mean_variance(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    source = builder.value(node.input[0])
    given = builder.attributes({"axes": [0, 2, 3]})["axes"]
    axes = tuple(sorted(builder.axis(axis, len(source.shape)) for axis in given))
    over = {"axes": axes, "keepdims": 1}
    centered = builder.emit("Sub", [source.name, builder.emit("ReduceMean", [source.name], over)])
    variance = builder.emit("ReduceMean", [builder.emit("Mul", [centered, centered])], over)
    least = builder.own_constant(f"{node.output[0]}/least", np.array(_SMALLEST_DEVIATION, DTYPES[source.dtype]))
    deviation = builder.emit("Add", [builder.emit("Sqrt", [variance]), least])
    builder.emit("Div", [centered, deviation], output=node.output[0])
