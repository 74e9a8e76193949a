"""What is computed twice from the same values is computed once.

    Sigmoid(x) ─▶ a,  Sigmoid(x) ─▶ b        becomes        Sigmoid(x) ─▶ a, and readers of b read a

Equal constants become one, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph
from rerank_engine.ops import lookup


def common_subexpressions(graph: Graph) -> Graph:
    """Merge equal nodes and equal constants; outputs keep their names and stay computed."""
    renamed: dict[str, str] = {}
    known: dict[Any, tuple[str, ...]] = {}
    constants = {}
    kinds = Counter(_kind(array) for array in graph.constants.values())
    for name, array in graph.constants.items():
        # Large tables are alone of their kind, and are not read for nothing.
        content = hashlib.sha256(np.ascontiguousarray(array).data).digest() if kinds[_kind(array)] > 1 else b""
        first = known.setdefault((*_kind(array), content), (name,))[0]
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
        made_first = known.setdefault(key, node.outputs)
        if made_first != node.outputs and not set(node.outputs) & set(graph.outputs):
            renamed.update(zip(node.outputs, made_first, strict=True))
            continue
        nodes.append(replace(node, inputs=inputs))
    values = {name: value for name, value in graph.values.items() if name not in renamed}
    return replace(graph, nodes=nodes, constants=constants, values=values)


def _kind(array: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    return array.dtype.str, array.shape
