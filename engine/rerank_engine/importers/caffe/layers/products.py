"""Layers with a weight matrix: products, and rows of a table."""

from __future__ import annotations

import numpy as np

from rerank_engine.importers.caffe.layers.registry import converts
from rerank_engine.importers.caffe.writer import LayerWriter


@converts(
    "InnerProduct",
    "inner_product_param",
    "num_output bias_term axis transpose",
    "weight_filler bias_filler",
)
def inner_product(layer: LayerWriter) -> None:
    """Product of everything from ``axis`` on with a weight, plus a bias."""
    (x,) = layer.bottoms
    axis, outputs = layer.axis(), layer.positive("num_output")
    transposed, biased = bool(layer.parameter.transpose), bool(layer.parameter.bias_term)
    inputs = layer.count(x.dims[axis:])
    layer.need_weights(1 + biased)
    weight = layer.weight(0, (inputs, outputs) if transposed else (outputs, inputs))
    bias = [layer.constant("bias", layer.weight(1, (outputs,)))] if biased else []
    dims = (*x.dims[:axis], outputs)
    if axis == 1:
        rows = x.name if x.rank == 2 else layer.node("Flatten", [x.name], axis=1)
        layer.finish("Gemm", [rows, layer.constant("weight", weight), *bias], dims, transB=int(not transposed))
        return
    source = x.name
    if axis != x.rank - 1:
        source = layer.node("Reshape", [x.name, layer.shape_vector((*x.dims[:axis], inputs))])
    factors = [source, layer.constant("weight", weight if transposed else np.ascontiguousarray(weight.T))]
    if biased:
        layer.finish("Add", [layer.node("MatMul", factors), *bias], dims)
    else:
        layer.finish("MatMul", factors, dims)


@converts("Embed", "embed_param", "num_output input_dim bias_term", "weight_filler bias_filler")
def embed(layer: LayerWriter) -> None:
    """Rows of a table by id, plus a bias; an id that is no integer is cut, as Caffe does."""
    from onnx import TensorProto

    (x,) = layer.bottoms
    rows, outputs, biased = layer.positive("input_dim"), layer.positive("num_output"), bool(layer.parameter.bias_term)
    layer.need_weights(1 + biased)
    table = layer.constant("weight", layer.weight(0, (rows, outputs)))
    ids = x.name if x.dtype == "int64" else layer.node("Cast", [x.name], to=TensorProto.INT64)
    dims = (*x.dims, outputs)
    if biased:
        bias = layer.constant("bias", layer.weight(1, (outputs,)))
        layer.finish("Add", [layer.node("Gather", [table, ids], axis=0), bias], dims)
    else:
        layer.finish("Gather", [table, ids], dims, axis=0)
