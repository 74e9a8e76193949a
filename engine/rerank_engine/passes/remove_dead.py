"""What no output needs goes away: nodes, constants, values. Inputs stay, as they are the caller's contract."""

from __future__ import annotations

from dataclasses import replace

from rerank_engine.graph import Graph


def remove_dead(graph: Graph) -> Graph:
    """Keep only what leads to an output."""
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        needed.update(node.inputs)
        nodes.append(node)
    nodes.reverse()
    alive = needed | set(graph.inputs) | {name for node in nodes for name in node.outputs}
    return replace(
        graph,
        nodes=nodes,
        constants={name: array for name, array in graph.constants.items() if name in alive},
        values={name: value for name, value in graph.values.items() if name in alive},
    )
