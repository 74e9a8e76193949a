"""What no output needs goes away: nodes, constants, values. Inputs stay, as they are the caller's contract.

A node whose result has a shape for some sizes of the named dimensions only stays, too: it is what refuses the others.
"""

from __future__ import annotations

from dataclasses import replace

from rerank_engine.graph import Graph
from rerank_engine.ops.registry import keeps_its_node


def remove_dead(graph: Graph) -> Graph:
    """Keep only what leads to an output, and nodes that tell whether the sizes of the inputs are any that fit."""
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) and not keeps_its_node(graph, node):
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
