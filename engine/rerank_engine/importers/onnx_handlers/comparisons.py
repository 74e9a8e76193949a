"""Comparisons, logic, bits, and the choice between two values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.elementwise import emit_elementwise, number, require_dtype
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.ops.elementwise import FLOATS, INTEGERS

if TYPE_CHECKING:
    import onnx


@handles("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where")
def _same_operator(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    emit_elementwise(builder, node)


@handles("And", "Or", "Xor", "Not")
def _logic(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, ("bool",))
    emit_elementwise(builder, node)


@handles("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
def _bits(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, INTEGERS)
    emit_elementwise(builder, node, node.op_type.removeprefix("Bitwise"))


@handles("IsNaN")
def _is_nan(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, FLOATS)
    x = builder.value_name(node.input[0])
    builder.emit("Not", [builder.emit("Equal", [x, x])], output=node.output[0])


@handles("IsInf")
def _is_infinite(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"detect_negative": 1, "detect_positive": 1})
    require_dtype(builder, node.input, FLOATS)
    source = builder.value(node.input[0])
    positive, negative = found["detect_positive"] != 0, found["detect_negative"] != 0
    limit = number(builder, np.inf if positive else -np.inf, source.dtype)
    # Nothing is below the lowest number: that is the answer when no sign is asked for.
    op = "Equal" if positive or negative else "Less"
    value = builder.emit("Abs", [source.name]) if positive and negative else source.name
    builder.emit(op, [value, limit], output=node.output[0])
