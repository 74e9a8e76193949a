"""The stored sample: inputs and expected outputs must be such as the graph could take and give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.binding import bind_sizes
from rerank_engine.errors import GraphError, InputError
from rerank_engine.format.shapes import unsolved_name
from rerank_engine.graph import Graph, concrete, shape_text


def verify_sample(graph: Graph) -> None:
    """Check a graph's sample: names, dtypes, and shapes for one size of each named dimension.

    Parameters
    ----------
    graph
        A graph that verifies.

    Raises
    ------
    GraphError
        Names the array and the rule that it breaks.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Sample, Value
    >>> graph = Graph("same", inputs=["x"], outputs=["x"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    >>> rows = np.zeros((2, 3), np.float32)
    >>> graph.sample = Sample({"x": rows}, {"x": rows[:1]})
    >>> verify_sample(graph)
    Traceback (most recent call last):
    rerank_engine.errors.GraphError: sample: output x: float32(N, 3) has shape (1, 3), expected (2, 3)
    """
    sample = graph.sample
    if sample is None:
        return
    if name := unsolved_name(graph.values[name].shape for name in graph.inputs):
        raise GraphError(f"sample: no input gives the size of {name!r} alone")
    _check_arrays(graph, "input", graph.inputs, sample.inputs)
    _check_arrays(graph, "output", graph.outputs, sample.outputs)
    try:
        sizes = bind_sizes([graph.values[name] for name in graph.inputs], sample.inputs, graph.maxima)
    except InputError as error:
        raise GraphError(f"sample: {error}") from None
    for name, array in sample.outputs.items():
        value = graph.values[name]
        if (expected := concrete(value.shape, sizes)) != array.shape:
            raise GraphError(f"sample: output {value} has shape {shape_text(array.shape)}, expected {expected}")
    tolerance = sample.tolerance
    if not isinstance(tolerance, int | float) or not math.isfinite(tolerance) or tolerance < 0:
        raise GraphError(f"sample: tolerance {tolerance!r}, expected a finite number of at least 0")


def _check_arrays(graph: Graph, kind: str, names: list[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    if set(arrays) != set(names):
        odd = min(set(arrays) ^ set(names))
        raise GraphError(f"sample: {kind} {odd!r} is {'missing' if odd in names else 'unknown'}")
    for name, array in arrays.items():
        value = graph.values[name]
        if not isinstance(array, np.ndarray) or array.dtype.name != value.dtype or not array.dtype.isnative:
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise GraphError(f"sample: {kind} {value} is {found}, expected an array of {value.dtype}")
