"""What the handlers of elementwise operators share: constants, dtypes, and shapes that are folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import inputs
from rerank_engine.importers.shape_folding import fold_shape_node

if TYPE_CHECKING:
    import onnx


def emit_elementwise(
    builder: OnnxBuilder,
    node: onnx.NodeProto,
    op: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Compute a node over shapes now if that can be done, else append one node over all its inputs.

    Parameters
    ----------
    builder
        State of the import.
    node
        Its attributes have been read already.
    op
        Operator of the graph; that of the same name when left out.
    attributes
        Of the operator of the graph.
    """
    if not fold_shape_node(builder, node):
        builder.emit(op or node.op_type, inputs(builder, node), attributes, node.output[0])


def number(builder: OnnxBuilder, value: float, dtype: str) -> str:
    """File a constant of one element, one for all nodes that need it."""
    return builder.own_constant(f"{value:g}.{dtype}", np.array(value, DTYPES[dtype]))


def dtype_of(builder: OnnxBuilder, name: str) -> str:
    """Dtype behind an ONNX name; a shape stays a shape."""
    if name in builder.shapes and name not in builder.names:
        return builder.shapes[name].dtype
    return builder.value(name).dtype


def require_dtype(builder: OnnxBuilder, names: Sequence[str], dtypes: Sequence[str]) -> None:
    """Refuse inputs of a dtype that ONNX does not define the operator for."""
    for name in names:
        dtype = dtype_of(builder, name)
        if dtype not in dtypes:
            raise builder.refuse(f"dtype {dtype} of {name!r} is not supported; supported: {', '.join(dtypes)}")
