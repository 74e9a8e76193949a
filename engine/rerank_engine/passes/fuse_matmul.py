"""A matrix product takes the bias and the activation that follow it into its own store.

MatMul(x, W) ─▶ Add(·, b) ─▶ Relu        becomes        MatMul(x, W, b; activation=Relu)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph, Node, Value
from rerank_engine.ops import attribute
from rerank_engine.ops.matmul import FUSED_ACTIVATIONS


def fuse_matmul(graph: Graph) -> Graph:
    """Fuse wherever the product's result has no other reader and is no output."""
    nodes = {node.outputs[0]: node for node in graph.nodes}
    constants, values = dict(graph.constants), dict(graph.values)
    for node in graph.nodes:
        current = nodes.get(node.outputs[0])
        while current is not None and current.op == "MatMul":
            reader = _only_reader(graph, nodes, current.outputs[0])
            fused = _fuse(graph, current, reader) if reader else None
            if reader is None or fused is None:
                break
            del nodes[current.outputs[0]]
            nodes[reader.outputs[0]] = fused
            bias = fused.inputs[2:]
            for name in bias:
                flat = constants[name].reshape(-1)
                if constants[name].shape != flat.shape:
                    graph_name = _row_name(f"{name}.row", flat, values, constants)
                    constants[graph_name] = flat
                    values[graph_name] = values[name].replace(name=graph_name, shape=flat.shape)
                    nodes[reader.outputs[0]] = fused = replace(fused, inputs=(*fused.inputs[:2], graph_name))
            current = fused
    order = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
    ordered = [nodes[name] for name in sorted(nodes, key=order.__getitem__)]
    alive = set(graph.inputs) | set(constants) | {name for node in ordered for name in node.outputs}
    return replace(
        graph,
        nodes=ordered,
        constants=constants,
        values={name: values[name] for name in values if name in alive},
    )


def _row_name(name: str, row: NDArray[Any], values: Mapping[str, Value], constants: Mapping[str, NDArray[Any]]) -> str:
    """Find a name that is free, or already stands for the same row."""
    while name in values:
        known = constants.get(name)
        if known is not None and known.dtype == row.dtype and np.array_equal(known, row):
            break
        name += ".row"
    return name


def _only_reader(graph: Graph, nodes: dict[str, Node], name: str) -> Node | None:
    readers = [node for node in nodes.values() if name in node.inputs]
    if len(readers) != 1 or name in graph.outputs or readers[0].inputs.count(name) != 1:
        return None
    return readers[0]


def _fuse(graph: Graph, product: Node, reader: Node) -> Node | None:
    """Build the fused node, or None when the reader is not one that a product can take in."""
    if product.attributes.get("activation") or graph.values[product.outputs[0]].dtype != "float32":
        return None
    shape = graph.values[product.outputs[0]].shape
    if graph.values[reader.outputs[0]].shape != shape:
        return None
    if reader.op == "Add" and len(product.inputs) == 2:
        (other,) = (name for name in reader.inputs if name != product.outputs[0])
        if other not in graph.constants or graph.constants[other].size != shape[-1]:
            return None
        if graph.constants[other].shape[-1:] != shape[-1:]:
            return None
        return replace(product, inputs=(*product.inputs, other), outputs=reader.outputs)
    if reader.op in FUSED_ACTIVATIONS:
        slope = float(attribute(reader, "alpha")) if reader.op == "LeakyRelu" else 0.0
        attributes = {"activation": reader.op, "alpha": slope}
        return replace(product, outputs=reader.outputs, attributes=attributes)
    return None
