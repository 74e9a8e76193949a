"""Nodes whose inputs are all constant become constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rerank_engine.errors import ConversionError, InputError
from rerank_engine.graph import DTYPES, Graph, is_per_candidate, row_count
from rerank_engine.ops import lookup

_MAX_GROWTH_BYTES = 1 << 20
"""A result may be this much larger than what it is made of; beyond it the computation is the smaller form."""


def fold_constants(graph: Graph) -> Graph:
    """Compute what can be computed now.

    Raises
    ------
    ConversionError
        A constant id is outside its constant table.
    """
    constants, values, nodes = dict(graph.constants), dict(graph.values), []
    for node in graph.nodes:
        output = node.outputs[0]
        value = values[output]
        foldable = all(name in constants for name in node.inputs) and not is_per_candidate(value.shape)
        if foldable:
            size = int(np.prod(row_count(value.shape, 0), dtype=np.int64)) * DTYPES[value.dtype].itemsize
            foldable = size <= sum(constants[name].nbytes for name in node.inputs) + _MAX_GROWTH_BYTES
        if not foldable:
            nodes.append(node)
            continue
        operator = lookup(node)
        attributes = {key: node.attributes.get(key, default) for key, default in operator.attributes.items()}
        shape = row_count(value.shape, 0)
        try:
            (result,) = operator.reference([constants[name] for name in node.inputs], attributes, [shape])
        except InputError as error:
            raise ConversionError(f"{node.op} node {node.name!r}: {error}") from error
        constants[output] = np.ascontiguousarray(result, dtype=DTYPES[value.dtype]).reshape(shape)
    return replace(graph, constants=constants, values=values, nodes=nodes)
