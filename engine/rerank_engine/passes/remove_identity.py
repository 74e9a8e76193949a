"""Nodes that change nothing go away: Identity, a cast to the same dtype, a reshape or expansion to the same shape."""

from __future__ import annotations

from dataclasses import replace

from rerank_engine.graph import Graph

_MAYBE_NOTHING = ("Identity", "Cast", "Reshape", "Expand")


def remove_identity(graph: Graph) -> Graph:
    """Let readers read the source; outputs keep their names and stay computed."""
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        source, target = graph.values[inputs[0]] if inputs else None, graph.values[node.outputs[0]]
        same = source is not None and (source.dtype, source.shape) == (target.dtype, target.shape)
        if node.op in _MAYBE_NOTHING and same and node.outputs[0] not in graph.outputs:
            renamed[node.outputs[0]] = inputs[0]
            continue
        nodes.append(replace(node, inputs=inputs))
    values = {name: value for name, value in graph.values.items() if name not in renamed}
    return replace(graph, nodes=nodes, values=values)
