"""What a converted model may be at most: a small file from others must not stand for a huge model."""

from __future__ import annotations

import math

from rerank_engine.errors import ConversionError, GraphError
from rerank_engine.format.shapes import least_elements
from rerank_engine.graph import DTYPES, Graph, concrete, names_in

MOST_ELEMENTS = 2**31
"""Elements of one value, for one candidate and one entry of every other named dimension."""

MOST_RESULT_BYTES = 2**26
"""A model whose results take more than this together is not run while it is converted."""


def check_sizes(graph: Graph) -> None:
    """See that no value is larger than any model needs.

    Raises
    ------
    ConversionError
        Names the value.

    Examples
    --------
    >>> from rerank_engine.graph import Value
    >>> graph = Graph("large")
    >>> graph.values["x"] = Value("x", "int8", (2**20, 2**20))
    >>> check_sizes(graph)
    Traceback (most recent call last):
    ...
    rerank_engine.errors.ConversionError: x: int8(1048576, 1048576) has more than 2147483648 elements
    """
    for value in graph.values.values():
        if least_elements(value.shape) > MOST_ELEMENTS:
            raise ConversionError(f"{value} has more than {MOST_ELEMENTS} elements")


def check_storable(graph: Graph) -> None:
    """See that the model file can hold a graph: names, ranks and sizes have limits there.

    Raises
    ------
    ConversionError
        Names the value or node.
    """
    from rerank_engine.format.writer import encode_model

    try:
        encode_model(graph)
    except GraphError as error:
        raise ConversionError(f"the converted model cannot be stored: {error}") from error


def is_quick_to_run(graph: Graph, size: int = 4) -> bool:
    """Tell whether all results together stay below :data:`MOST_RESULT_BYTES` when each named dimension has ``size``."""
    sizes = dict.fromkeys(names_in(dim for value in graph.values.values() for dim in value.shape), size)
    total = 0
    for node in graph.nodes:
        for value in (graph.values[name] for name in node.outputs):
            total += math.prod(max(dim, 0) for dim in concrete(value.shape, sizes)) * DTYPES[value.dtype].itemsize
    return total <= MOST_RESULT_BYTES
