"""Elementary functions of floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.elementwise import emit_elementwise
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx


@handles("Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh")
@handles("Asinh", "Acosh", "Atanh")
def _same_operator(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    emit_elementwise(builder, node)
