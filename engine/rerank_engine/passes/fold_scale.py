"""A scale or shift by constants beside a matrix product with a constant matrix goes into its weight and bias.

    MatMul(x, W) ─▶ Mul(·, s) ─▶ Add(·, t)            becomes    MatMul(x, W * s) ─▶ Add(·, t)
    MatMul(x, W) ─▶ Add(·, b) ─▶ Mul(·, s)            becomes    MatMul(x, W * s) ─▶ Add(·, b * s)
    Mul(x, s) ─▶ MatMul(·, W)                         becomes    MatMul(x, s[:, None] * W)
    Add(x, t) ─▶ MatMul(·, W)                         becomes    MatMul(x, W) ─▶ Add(·, t @ W)

Batch normalisation is such a scale and shift once its statistics are constant. Products are computed in float64 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph, Node, Value

_ROUNDS = 16
"""Scales in a row that are followed; each round folds at least one of them."""


def fold_scale(graph: Graph) -> Graph:
    """Fold wherever the value in between has no other reader and is no output."""
    for _ in range(_ROUNDS):
        changed = _fold_once(graph)
        if changed is None:
            return graph
        graph = changed
    return graph


def _fold_once(graph: Graph) -> Graph | None:
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        if not _is_plain_product(graph, node):
            continue
        readers = consumers[node.outputs[0]]
        if len(readers) == 1 and node.outputs[0] not in graph.outputs:
            changed = _fold_behind(graph, node, readers[0], consumers)
            if changed is not None:
                return changed
        before = producers.get(node.inputs[0])
        if before is not None and len(consumers[node.inputs[0]]) == 1 and node.inputs[0] not in graph.outputs:
            changed = _fold_before(graph, before, node)
            if changed is not None:
                return changed
    return None


def _is_plain_product(graph: Graph, node: Node) -> bool:
    weight = graph.constants.get(node.inputs[1]) if node.op == "MatMul" else None
    return (
        weight is not None
        and weight.ndim == 2
        and weight.dtype == np.float32
        and len(node.inputs) == 2
        and not node.attributes.get("activation")
    )


def _row(graph: Graph, node: Node, other: str, columns: int) -> NDArray[np.float64] | None:
    """The constant operand of a Mul or Add as one row that leaves the shape of ``other`` alone."""
    if node.op not in ("Mul", "Add") or node.inputs.count(other) != 1:
        return None
    name = node.inputs[1 - node.inputs.index(other)]
    array, shape = graph.constants.get(name), graph.values[other].shape
    if array is None or graph.values[node.outputs[0]].shape != shape or array.size not in (1, columns):
        return None
    if array.size == columns and columns != 1 and array.shape[-1] != columns:
        return None
    row = np.broadcast_to(array.reshape(-1).astype(np.float64), columns)
    return row if np.isfinite(row).all() else None


def _fold_behind(graph: Graph, product: Node, reader: Node, consumers: Mapping[str, list[Node]]) -> Graph | None:
    weight = graph.constants[product.inputs[1]]
    columns = weight.shape[1]
    made = product.outputs[0]
    row = _row(graph, reader, made, columns)
    if row is None:
        return None
    if reader.op == "Mul":
        scaled = _constant(graph, product.inputs[1], weight.astype(np.float64) * row)
        if not scaled.is_finite:
            return None
        fused = replace(product, inputs=(product.inputs[0], scaled.name), outputs=reader.outputs)
        return _swap(graph, {product.outputs[0]: None, reader.outputs[0]: fused}, scaled)
    following = consumers[reader.outputs[0]]
    if len(following) != 1 or reader.outputs[0] in graph.outputs:
        return None
    scale = _row(graph, following[0], reader.outputs[0], columns)
    if scale is None or following[0].op != "Mul":
        return None
    scaled = _constant(graph, product.inputs[1], weight.astype(np.float64) * scale)
    if not scaled.is_finite or not (np.abs(row * scale) < np.finfo(np.float32).max).all():
        return None
    graph = replace(graph, constants={**graph.constants, scaled.name: scaled.array}, values=scaled.declare(graph))
    shift = _constant(graph, reader.inputs[1 - reader.inputs.index(made)], row * scale)
    fused = replace(product, inputs=(product.inputs[0], scaled.name))
    added = replace(reader, inputs=(made, shift.name), outputs=following[0].outputs)
    return _swap(graph, {made: fused, reader.outputs[0]: None, following[0].outputs[0]: added}, shift)


def _fold_before(graph: Graph, before: Node, product: Node) -> Graph | None:
    weight = graph.constants[product.inputs[1]].astype(np.float64)
    if before.op not in ("Mul", "Add"):
        return None
    sources = [name for name in before.inputs if name not in graph.constants]
    if len(sources) != 1:
        return None
    row = _row(graph, before, sources[0], weight.shape[0])
    if row is None:
        return None
    if before.op == "Mul":
        scaled = _constant(graph, product.inputs[1], weight * row[:, None])
        if not scaled.is_finite:
            return None
        fused = replace(product, inputs=(sources[0], scaled.name))
        return _swap(graph, {before.outputs[0]: None, product.outputs[0]: fused}, scaled)
    shift = _constant(graph, f"{product.inputs[1]}.shift", row @ weight)
    if not shift.is_finite:
        return None
    bare = replace(product, inputs=(sources[0], product.inputs[1]), outputs=before.outputs)
    value = graph.values[product.outputs[0]]
    values = {**graph.values, before.outputs[0]: replace(value, name=before.outputs[0])}
    added = Node("Add", before.name, (before.outputs[0], shift.name), product.outputs)
    # The product takes the place of the shift, and the shift that of the product: both keep a free name.
    return _swap(replace(graph, values=values), {before.outputs[0]: bare, product.outputs[0]: added}, shift)


class _Constant:
    """A new constant and its name."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.name, self.array = name, array

    @property
    def is_finite(self) -> bool:
        """Whether rounding to float32 kept every number finite."""
        return bool(np.isfinite(self.array).all())

    def declare(self, graph: Graph) -> dict[str, Value]:
        """The graph's values with this one."""
        return {**graph.values, self.name: Value(self.name, "float32", self.array.shape)}


def _constant(graph: Graph, base: str, array: NDArray[np.float64]) -> _Constant:
    name, count = f"{base}.folded", 1
    while name in graph.values:
        name, count = f"{base}.folded.{count}", count + 1
    with np.errstate(over="ignore"):
        return _Constant(name, np.ascontiguousarray(array, dtype=np.float32))


def _swap(graph: Graph, changed: Mapping[str, Node | None], constant: _Constant) -> Graph:
    """Replace the makers of some values; None takes value and node away."""
    nodes = []
    for node in graph.nodes:
        new = changed.get(node.outputs[0], node)
        if new is not None:
            nodes.append(new)
    gone = {name for name, node in changed.items() if node is None}
    values = {name: value for name, value in constant.declare(graph).items() if name not in gone}
    return replace(graph, nodes=nodes, values=values, constants={**graph.constants, constant.name: constant.array})
