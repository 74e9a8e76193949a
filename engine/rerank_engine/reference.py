"""The graph in NumPy: the oracle of the tests, the folder of constants, and the last resort where no code may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph, row_count
from rerank_engine.ops import lookup


def evaluate(
    graph: Graph, inputs: Mapping[str, NDArray[Any]], candidates: int, *, precise: bool = False
) -> dict[str, NDArray[Any]]:
    """Run every node in NumPy.

    Parameters
    ----------
    graph
        A verified graph.
    inputs
        An array for each input of the graph.
    candidates
        Number of candidates N.
    precise
        Compute float32 values in float64.

    Returns
    -------
    dict
        Every output by name.
    """

    def prepare(array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(np.float64) if precise and array.dtype == np.float32 else array

    known = {name: prepare(array) for name, array in graph.constants.items()}
    known |= {name: prepare(np.asarray(inputs[name])) for name in graph.inputs}
    for node in graph.nodes:
        operator = lookup(node)
        attributes = {key: node.attributes.get(key, default) for key, default in operator.attributes.items()}
        shapes = [row_count(graph.values[name].shape, candidates) for name in node.outputs]
        results = operator.reference([known[name] for name in node.inputs], attributes, shapes)
        known.update(zip(node.outputs, results, strict=True))
    return {name: known[name] for name in graph.outputs}
