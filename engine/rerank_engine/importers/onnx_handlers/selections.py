"""Softmax and its kin, extremes and their places, running sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rerank_engine.dimensions import product
from rerank_engine.graph import Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx


@handles("Softmax", "LogSoftmax", "Hardmax")
def _softmax(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    joins = builder.opset < 13
    axis = builder.attributes({"axis": 1 if joins else -1})["axis"]
    source = builder.value(node.input[0])
    rank = len(source.shape)
    if not joins:
        builder.emit(node.op_type, [source.name], {"axis": builder.axis(axis, rank)}, node.output[0])
        return
    # Old versions see a matrix: all dimensions before the axis, and all from it on.
    axis = axis if axis == rank else builder.axis(axis, rank)
    flat = (product(source.shape[:axis]), product(source.shape[axis:]))
    matrix = builder.emit_shaped("Reshape", source.name, flat)
    result = builder.emit(node.op_type, [matrix], {"axis": 1})
    builder.emit_shaped("Reshape", result, source.shape, node.output[0])


@handles("ArgMax", "ArgMin")
def _extreme(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    understood = {"axis": 0, "keepdims": 1}
    if builder.opset >= 12:
        understood["select_last_index"] = 0
    found = builder.attributes(understood)
    source = builder.value(node.input[0])
    attributes = {name: int(number) for name, number in found.items()}
    attributes["axis"] = builder.axis(attributes["axis"], len(source.shape))
    builder.emit(node.op_type, [source.name], attributes, node.output[0])


@handles("TopK")
def _top_k(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    count: int | Dim
    largest = 1
    if builder.opset < 10:
        found = builder.attributes({"axis": -1, "k": None})
        count = int(found["k"])
    else:
        # What is not asked to be sorted may come in any order: it comes sorted.
        found = builder.attributes({"axis": -1} | ({"largest": 1, "sorted": 1} if builder.opset >= 11 else {}))
        largest = int(found.get("largest", 1))
        known = builder.shape_value(node.input[1])
        if known is None or len(known.entries) != 1:
            raise builder.refuse(
                f"k ({node.input[1]!r}) must be known when the model is converted; where it is an input of the model,"
                " give constants={...}"
            )
        (count,) = known.entries
    source = builder.value(node.input[0])
    attributes = {
        "k": str(count) if isinstance(count, Dim) else count,
        "axis": builder.axis(found["axis"], len(source.shape)),
        "largest": largest,
    }
    outputs = [*node.output, ""][:2]
    if not any(outputs):
        raise builder.refuse("has no output")
    builder.emit_many("TopK", [source.name], attributes, outputs)


@handles("CumSum", "CumProd")
def _running(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"exclusive": 0, "reverse": 0})
    source = builder.value(node.input[0])
    axes = builder.integers(node.input[1], "the axis")
    if len(axes) != 1:
        raise builder.refuse(f"the axis must be one number, is {axes}")
    attributes = {
        "axis": builder.axis(axes[0], len(source.shape)),
        "exclusive": int(bool(found["exclusive"])),
        "reverse": int(bool(found["reverse"])),
    }
    builder.emit(node.op_type, [source.name], attributes, node.output[0])
