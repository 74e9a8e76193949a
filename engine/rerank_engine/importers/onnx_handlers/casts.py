"""Casts and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import DTYPES
from rerank_engine.importers.onnx import ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.onnx_handlers.elementwise import dtype_of, emit_elementwise
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.importers.shape_folding import fold_shape_node
from rerank_engine.importers.whole_numbers import whole_numbers

if TYPE_CHECKING:
    import onnx

_EIGHT_BIT_FLOATS = {"saturate": 1, "round_mode": b"up"}
"""Attributes that say only what happens to floats of eight bits, which are refused anyway."""


@handles("Cast")
def _cast(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    dtype = _known_dtype(builder, builder.attributes({"to": 0, **_EIGHT_BIT_FLOATS})["to"])
    if fold_shape_node(builder, node) or _cast_back(builder, node, dtype):
        return
    builder.emit("Cast", [builder.value_name(node.input[0])], {"to": dtype}, node.output[0])


@handles("CastLike")
def _cast_like(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes(_EIGHT_BIT_FLOATS)
    dtype = dtype_of(builder, node.input[1])
    builder.emit("Cast", [builder.value_name(node.input[0])], {"to": dtype}, node.output[0])


@handles("BitCast")
def _bit_cast(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    dtype = _known_dtype(builder, builder.attributes({"to": 0})["to"])
    # A bool is a byte of 0 or 1.
    op = "Cast" if dtype_of(builder, node.input[0]) == "bool" and dtype in ("int8", "uint8") else "BitCast"
    builder.emit(op, [builder.value_name(node.input[0])], {"to": dtype}, node.output[0])


def _known_dtype(builder: OnnxBuilder, code: int) -> str:
    from onnx import TensorProto

    if code not in ONNX_DTYPES:
        name = TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else str(code)
        raise builder.refuse(f"a cast to {name} is not supported; supported: {', '.join(DTYPES)}")
    return ONNX_DTYPES[code]


def _cast_back(builder: OnnxBuilder, node: onnx.NodeProto, dtype: str) -> bool:
    """Keep a shape that went through floats, as exporters write for ``int(math.floor(float(size)))``."""
    if dtype not in ("int32", "int64") or dtype_of(builder, node.input[0]) not in ("float32", "float64"):
        return False
    known = whole_numbers(builder.graph, builder.value_name(node.input[0]), dtype)
    if known is None:
        return False
    builder.shapes[node.output[0]] = known
    return True


# --- copies ----------------------------------------------------------------------------------------------------


@handles("Identity")
def _identity(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    emit_elementwise(builder, node)


@handles("Dropout")
def _dropout(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """A copy, and a mask that keeps everything: nothing is dropped in inference."""
    builder.attributes({"seed": 0} if builder.opset >= 12 else {"ratio": 0.5})
    if len(node.input) > 2 and node.input[2]:
        training = builder.array(node.input[2])
        if training is None:
            raise builder.refuse("training_mode must be known when the model is converted; give constants={…}")
        ratio = builder.array(node.input[1]) if node.input[1] else np.array(0.5)
        if training.any() and (ratio is None or ratio.any()):
            raise builder.refuse("training mode is not supported; export the model for inference")
    if len(node.output) > 1 and node.output[1]:
        if builder.opset < 12:
            raise builder.refuse("the mask output has no defined value before opset 12; do not use it")
        kept = builder.own_constant("true.bool", np.array(True))
        builder.emit_shaped("Expand", kept, builder.value(node.input[0]).shape, node.output[1])
    builder.emit("Identity", [builder.value_name(node.input[0])], output=node.output[0])
