"""Reductions, matrix products, normalisation."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import axes_of, handles, inputs

if TYPE_CHECKING:
    import onnx


@handles("ReduceSum", "ReduceMean", "ReduceMax")
def _reduce(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    since = 13 if node.op_type == "ReduceSum" else 18
    keep = builder.attributes({"axes": None, "keepdims": 1, "noop_with_empty_axes": 0})
    axes = axes_of(builder, node, since, keepdims=1, noop_with_empty_axes=0)
    source = builder.value(node.input[0])
    if not axes:
        if keep["noop_with_empty_axes"]:
            builder.emit("Identity", [source.name], output=node.output[0])
            return
        axes = list(range(len(source.shape)))
    attributes = {
        "axes": tuple(builder.axis(axis, len(source.shape)) for axis in axes),
        "keepdims": int(keep["keepdims"]),
    }
    builder.emit(node.op_type, [source.name], attributes, node.output[0])


@handles("Softmax")
def _softmax(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": -1 if builder.opset >= 13 else 1})["axis"]
    source = builder.value(node.input[0])
    rank = len(source.shape)
    axis = builder.axis(axis, rank)
    if axis == rank - 1:
        builder.emit("Softmax", [source.name], {"axis": axis}, node.output[0])
        return
    trailing = source.shape[axis + 1 :]
    if builder.opset < 13 and prod(dim for dim in trailing if isinstance(dim, int)) != 1:
        raise builder.refuse(f"axis {axis} before opset 13 joins several dimensions")
    order = (*(i for i in range(rank) if i != axis), axis)
    turned = builder.emit("Transpose", [source.name], {"perm": order})
    result = builder.emit("Softmax", [turned], {"axis": rank - 1})
    back = tuple(order.index(i) for i in range(rank))
    builder.emit("Transpose", [result], {"perm": back}, node.output[0])


@handles("MatMul")
def _matmul(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.emit("MatMul", inputs(builder, node), output=node.output[0])


@handles("Gemm")
def _gemm(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"alpha": 1.0, "beta": 1.0, "transB": 0}, only={"transA": 0})
    right = builder.array(node.input[1])
    if right is None or right.ndim != 2:
        raise builder.refuse("the right-hand matrix must be constant")
    weight = (right.T if found["transB"] else right) * np.float32(found["alpha"])
    name = builder.own_constant(f"{node.input[1]}.weight", np.ascontiguousarray(weight, dtype=np.float32))
    left = builder.value_name(node.input[0])
    if len(builder.graph.values[left].shape) != 2:
        raise builder.refuse(f"the left-hand side must be a matrix, is {builder.graph.values[left]}")
    if len(node.input) < 3 or not node.input[2] or found["beta"] == 0:
        builder.emit("MatMul", [left, name], output=node.output[0])
        return
    added = builder.value_name(node.input[2])
    if found["beta"] != 1.0:
        beta = builder.own_constant(f"{node.input[2]}.beta", np.array(found["beta"], np.float32))
        added = builder.emit("Mul", [added, beta])
    product = builder.emit("MatMul", [left, name])
    builder.emit("Add", [product, added], output=node.output[0])


@handles("BatchNormalization")
def _batch_normalization(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"epsilon": 1e-5, "momentum": 0.9}, only={"training_mode": 0, "spatial": 1})
    source = builder.value(node.input[0])
    arrays = [builder.array(name) for name in node.input[1:5]]
    if any(array is None for array in arrays):
        raise builder.refuse("scale, bias, mean and variance must be constant")
    if any(builder_output for builder_output in node.output[1:]):
        raise builder.refuse("only the normalised output is supported")
    gain, bias, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    scale = gain / np.sqrt(variance + found["epsilon"])
    if len(source.shape) < 2:
        raise builder.refuse(f"needs (N, C, ...), has {source}")
    tail = (1,) * (len(source.shape) - 2)
    factor = builder.own_constant(f"{node.output[0]}/scale", scale.astype(np.float32).reshape(-1, *tail))
    offset = (bias - mean * scale).astype(np.float32).reshape(-1, *tail)
    shift = builder.own_constant(f"{node.output[0]}/shift", offset)
    scaled = builder.emit("Mul", [source.name, factor])
    builder.emit("Add", [scaled, shift], output=node.output[0])
