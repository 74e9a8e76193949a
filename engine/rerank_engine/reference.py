"""The graph in NumPy: the oracle of the tests, the folder of constants, and the last resort where no code may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.binding import bind_sizes
from rerank_engine.errors import InputError
from rerank_engine.graph import Graph, Node, concrete
from rerank_engine.ops import lookup


def evaluate(graph: Graph, inputs: Mapping[str, NDArray[Any]], *, precise: bool = False) -> dict[str, NDArray[Any]]:
    """Run every node in NumPy.

    Parameters
    ----------
    graph
        A verified graph.
    inputs
        An array for each input of the graph, of its dtype; their shapes give the named dimensions their sizes.
    precise
        Compute float32 values in float64.

    Returns
    -------
    dict
        Every output by name.

    Raises
    ------
    InputError
        The shapes do not fit, or an id or index is out of range.
    """

    def prepare(array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(np.float64) if precise and array.dtype == np.float32 else array

    given = {name: np.asarray(inputs[name]) for name in graph.inputs}
    sizes = bind_sizes([graph.values[name] for name in graph.inputs], given, graph.maxima)
    known = {name: prepare(array) for name, array in graph.constants.items()}
    known |= {name: prepare(array) for name, array in given.items()}
    for node in graph.nodes:
        shapes = [concrete(graph.values[name].shape, sizes) for name in node.outputs]
        results = evaluate_node(node, [known[name] for name in node.inputs], shapes, sizes)
        known.update(zip(node.outputs, map(prepare, results), strict=True))
    return {name: known[name] for name in graph.outputs}


def evaluate_node(
    node: Node,
    inputs: Sequence[NDArray[Any]],
    shapes: Sequence[tuple[int, ...]],
    sizes: Mapping[str, int] | None = None,
) -> list[NDArray[Any]]:
    """Run one node in NumPy.

    Parameters
    ----------
    node
        The node.
    inputs
        Its inputs, in order.
    shapes
        Shapes of its outputs.
    sizes
        Sizes of the named dimensions, for the operators that ask for them.

    Raises
    ------
    InputError
        An output would have a negative size, or an id or index is out of range.
    """
    operator = lookup(node)
    if any(size < 0 for shape in shapes for size in shape):
        raise InputError(f"{node.op} node {node.name!r}: the inputs are too short: a result would have shape {shapes}")
    attributes = {key: node.attributes.get(key, default) for key, default in operator.attributes.items()}
    if operator.uses_sizes:
        attributes["sizes"] = sizes
    with np.errstate(all="ignore"):
        return operator.reference(inputs, attributes, shapes)
