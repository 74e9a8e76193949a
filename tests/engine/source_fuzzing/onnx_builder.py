"""ONNX models in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .source import ONNX, Source

ML = "ai.onnx.ml"

Dims = Sequence[int | str]


class Builder:
    """A model, one call a node.

    Parameters
    ----------
    name
        Of the model; the random weights follow from it.
    opset
        Version of ONNX's operators.
    ml
        Version of those of ``ai.onnx.ml``; 0 for none.
    """

    def __init__(self, name: str, opset: int = 17, ml: int = 0) -> None:
        self.name = name
        self.opsets = {"": opset, **({ML: ml} if ml else {})}
        self.random = np.random.default_rng(list(name.encode()))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self._count = 0

    def _new(self, base: str) -> str:
        self._count += 1
        return f"{base}{self._count}"

    def input(self, name: str, dims: Dims, dtype: Any = np.float32) -> str:
        """Declare an input."""
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims))
        return name

    def constant(self, entries: Any, dtype: Any = np.int64) -> str:
        """File an initializer."""
        name = self._new("c")
        self.constants.append(numpy_helper.from_array(np.asarray(entries, dtype), name))
        return name

    def weights(self, *shape: int) -> str:
        """File an initializer of random numbers."""
        return self.constant(self.random.normal(0, 0.5, shape), np.float32)

    def nodes_of(self, op: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Append a node with several results."""
        names = [self._new(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one result."""
        (name,) = self.nodes_of(op, inputs, 1, **attributes)
        return name

    def chain(self, value: str, *ops: str | tuple[str, Mapping[str, Any]]) -> str:
        """Append nodes of one input, one behind the other."""
        for op in ops:
            name, attributes = op if isinstance(op, tuple) else (op, {})
            value = self.node(name, value, **attributes)
        return value

    def sum(self, values: Sequence[str]) -> str:
        """Add values up."""
        return self.node("Sum", *values)

    def graph(self, inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
        """A subgraph whose values say nothing of their types."""
        return helper.make_graph(
            list(nodes),
            "body",
            [onnx.ValueInfoProto(name=name) for name in inputs],
            [onnx.ValueInfoProto(name=name) for name in outputs],
        )

    def model(self, *outputs: str) -> onnx.ModelProto:
        """Finish the model."""
        # Of what types they are nobody asks; without a shape they would be refused.
        declared = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, declared, self.constants)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in self.opsets.items()],
            functions=self.functions,
            ir_version=10,
        )

    def source(self, *outputs: str, **options: str) -> Source:
        """Finish the model as a source."""
        content = self.model(*outputs).SerializeToString(deterministic=True)
        return Source(ONNX, self.name, {"model.onnx": content}, "model.onnx", options)
