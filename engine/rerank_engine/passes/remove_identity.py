"""Nodes that change nothing go away.

Identity, a cast to the same dtype, a reshape or expansion to the same shape, a product with 1, a difference to 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rerank_engine.graph import Graph, Node
from rerank_engine.ops import attribute

_MOVES = ("Identity", "Cast", "Reshape", "Expand")
_NEUTRAL = {"Mul": 1, "Div": 1, "Sub": 0}
"""Constants that change nothing. Adding 0 is not among them: it makes 0 of -0."""

_UNBOUNDED = (-math.inf, math.inf)


def remove_identity(graph: Graph) -> Graph:
    """Let readers read the source; outputs keep their names and stay computed."""
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        source = _same(graph, replace(node, inputs=inputs))
        if source is not None and node.outputs[0] not in graph.outputs:
            renamed[node.outputs[0]] = source
            continue
        nodes.append(replace(node, inputs=inputs))
    values = {name: value for name, value in graph.values.items() if name not in renamed}
    return replace(graph, nodes=nodes, values=values)


def _same(graph: Graph, node: Node) -> str | None:
    """The input that a node gives back as it is."""
    source = None
    if node.op in _MOVES or (node.op == "Clip" and (attribute(node, "low"), attribute(node, "high")) == _UNBOUNDED):
        source = node.inputs[0]
    elif node.op in _NEUTRAL:
        for index in (0, 1) if node.op == "Mul" else (1,):
            array = graph.constants.get(node.inputs[index])
            if array is not None and array.size and (array == _NEUTRAL[node.op]).all():
                source = node.inputs[1 - index]
    if source is None:
        return None
    before, after = graph.values[source], graph.values[node.outputs[0]]
    return source if (before.dtype, before.shape) == (after.dtype, after.shape) else None
