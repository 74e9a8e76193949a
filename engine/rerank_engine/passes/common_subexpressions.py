"""What is computed twice from the same values is computed once.

    Sigmoid(x) ─▶ a,  Sigmoid(x) ─▶ b        becomes        Sigmoid(x) ─▶ a, and readers of b read a
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from rerank_engine.graph import Graph
from rerank_engine.ops import lookup


def common_subexpressions(graph: Graph) -> Graph:
    """Merge equal nodes and equal constants; outputs keep their names and stay computed."""
    renamed: dict[str, str] = {}
    known: dict[Any, tuple[str, ...]] = {}
    constants = {}
    for name, array in graph.constants.items():
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        first = known.setdefault(key, (name,))[0]
        if first != name and name not in graph.outputs:
            renamed[name] = first
        else:
            constants[name] = array
    nodes = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        attributes = {key: node.attributes.get(key, default) for key, default in lookup(node).attributes.items()}
        made = tuple(graph.values[name].dtype for name in node.outputs)
        # repr tells 0.0 from -0.0 and 1 from 1.0, which compare equal.
        key = (node.op, inputs, made, repr(sorted(attributes.items())))
        first = known.setdefault(key, node.outputs)
        if first != node.outputs and not set(node.outputs) & set(graph.outputs):
            renamed.update(zip(node.outputs, first, strict=True))
            continue
        nodes.append(replace(node, inputs=inputs))
    values = {name: value for name, value in graph.values.items() if name not in renamed}
    return replace(graph, nodes=nodes, constants=constants, values=values)
