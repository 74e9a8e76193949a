"""A product of joined columns becomes a sum of products, so that repeated parts are multiplied once.

    Concat(Expand(q), Expand(k), p) ─▶ MatMul(·, W)
becomes
    MatMul(q, Wq) + MatMul(k, Wk) + MatMul(p, Wp)

In target attention q is the candidate, repeated for every event, and k the event, repeated for every candidate: the
first layer shrinks to what truly depends on both, and the part of k is computed once a call.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, Value
from rerank_engine.ops import lookup


def split_concat(graph: Graph) -> Graph:
    """Split every product of a constant with a concatenation that repeats some of its parts."""
    producers = graph.producers()
    result = replace(graph, nodes=[], constants=dict(graph.constants), values=dict(graph.values))
    for node in graph.nodes:
        parts = _parts(graph, node, producers)
        if parts is None:
            result.nodes.append(node)
        else:
            _emit_sum(result, node, *parts)
    return result


def _parts(
    graph: Graph, node: Node, producers: dict[str, Node]
) -> tuple[list[tuple[str, slice]], list[tuple[str, slice]]] | None:
    """Repeated and other parts with their rows of the weight; None when nothing is to be gained."""
    if node.op != "MatMul" or len(node.inputs) != 2 or node.attributes.get("activation"):
        return None
    joined, weight = producers.get(node.inputs[0]), graph.constants.get(node.inputs[1])
    if joined is None or joined.op != "Concat" or weight is None or weight.ndim != 2:
        return None
    shape = graph.values[node.inputs[0]].shape
    if joined.attributes["axis"] % len(shape) != len(shape) - 1:
        return None
    repeated: list[tuple[str, slice]] = []
    others: list[tuple[str, slice]] = []
    start = 0
    for name in joined.inputs:
        columns = graph.values[name].shape[-1]
        if not isinstance(columns, int):
            return None
        stop = start + columns
        source = _source(graph, name, producers)
        if source is not None:
            repeated.append((source, slice(start, stop)))
        else:
            others.append((name, slice(start, stop)))
        start = stop
    return (repeated, others) if repeated and others else None


def _source(graph: Graph, name: str, producers: dict[str, Node]) -> str | None:
    """What an expansion repeats, if it makes more rows and leaves the last axis alone."""
    node = producers.get(name)
    if node is None or node.op != "Expand":
        return None
    source, target = graph.values[node.inputs[0]].shape, graph.values[name].shape
    if len(source) < 2 or source[-1] != target[-1] or product(source[:-1]) == product(target[:-1]):
        return None
    return node.inputs[0]


def _emit_sum(graph: Graph, node: Node, repeated: list[tuple[str, slice]], others: list[tuple[str, slice]]) -> None:
    """Append the products of all parts and their sum, which keeps the name of the original result."""
    weight = graph.constants[node.inputs[1]]
    name = others[0][0]
    if len(others) > 1:
        axis = len(graph.values[name].shape) - 1
        name = _append(graph, node, "Concat", tuple(part for part, _ in others), {"axis": axis})
    rest = np.concatenate([weight[rows] for _, rows in others])
    total = _append(graph, node, "MatMul", (name, graph.add_constant(f"{node.inputs[1]}.rest", rest)))
    for index, (source, rows) in enumerate(repeated):
        part = graph.add_constant(f"{node.inputs[1]}.part", weight[rows])
        product = _append(graph, node, "MatMul", (source, part))
        last = index == len(repeated) - 1
        total = _append(graph, node, "Add", (total, product), output=node.outputs[0] if last else None)


def _append(
    graph: Graph,
    origin: Node,
    op: str,
    inputs: tuple[str, ...],
    attributes: dict[str, int] | None = None,
    output: str | None = None,
) -> str:
    if output is not None:
        node = Node(op, origin.name, inputs, (output,), attributes or {})
        graph.nodes.append(node)
        return output
    taken = {other.name for other in graph.nodes}
    count = 0
    while f"{origin.outputs[0]}/part{count}" in graph.values or f"{origin.name}/part{count}" in taken:
        count += 1
    made = f"{origin.outputs[0]}/part{count}"
    node = Node(op, f"{origin.name}/part{count}", inputs, (made,), attributes or {})
    ((dtype, shape),) = lookup(node).infer(node, [graph.values[name] for name in inputs])
    graph.nodes.append(node)
    graph.values[made] = Value(made, dtype, shape)
    return made
