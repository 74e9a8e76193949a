"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles, inputs

if TYPE_CHECKING:
    import onnx


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
