"""Nodes whose inputs are all constant become constants."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rerank_engine.errors import ConversionError, InputError
from rerank_engine.graph import DTYPES, Dim, Graph, concrete
from rerank_engine.ops import lookup
from rerank_engine.reference import evaluate_node

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
        outputs = [values[name] for name in node.outputs]
        fixed = not any(isinstance(dim, Dim) for value in outputs for dim in value.shape)
        foldable = fixed and all(name in constants for name in node.inputs) and not lookup(node).uses_sizes
        if foldable:
            shapes = [concrete(value.shape, {}) for value in outputs]
            sizes = (
                math.prod(shape) * DTYPES[value.dtype].itemsize for shape, value in zip(shapes, outputs, strict=True)
            )
            foldable = sum(sizes) <= sum(constants[name].nbytes for name in set(node.inputs)) + _MAX_GROWTH_BYTES
        if not foldable:
            nodes.append(node)
            continue
        try:
            results = evaluate_node(node, [constants[name] for name in node.inputs], shapes)
        except InputError as error:
            raise ConversionError(f"{node.op} node {node.name!r}: {error}") from error
        for value, shape, result in zip(outputs, shapes, results, strict=True):
            constants[value.name] = np.ascontiguousarray(result, dtype=DTYPES[value.dtype]).reshape(shape)
    return replace(graph, constants=constants, values=values, nodes=nodes)
