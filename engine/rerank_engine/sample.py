"""A stored input and what the model answers to it: made when a model is converted, checked wherever it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError
from rerank_engine.graph import CANDIDATES, DTYPES, Graph, Sample, Value, concrete, names_in
from rerank_engine.reference import evaluate
from rerank_engine.semantics import input_vocabulary

_CANDIDATES, _OTHER = 3, 4
"""Sizes of the candidate dimension and of every other named one."""

_LEAST_TOLERANCE, _ROUNDING_FACTOR = 1e-4, 64.0

MAX_SAMPLE_BYTES = 256 * 1024
"""A model whose sample would be larger is stored without one."""


def make_sample(graph: Graph, seed: int = 0) -> Sample | None:
    """Draw inputs as a recommender gives them and compute what the model answers, in float64.

    Parameters
    ----------
    graph
        A verified graph.
    seed
        Of the generator.

    Returns
    -------
    Sample or None
        None when no inputs were found that the model accepts, when they are large, or when an output of whole numbers
        changes with the last bit of a float: then right code may answer something else.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Node
    >>> graph = Graph("double", inputs=["x"], outputs=["y"])
    >>> graph.values |= {name: Value(name, "float32", (Dim("N"),)) for name in "xy"}
    >>> graph.nodes.append(Node("Add", "twice", ("x", "x"), ("y",)))
    >>> sample = make_sample(graph)
    >>> sample.inputs["x"].shape, bool(np.allclose(sample.outputs["y"], 2 * sample.inputs["x"]))
    ((3,), True)
    """
    values = [graph.values[name] for name in graph.inputs]
    sizes = {
        name: min(_CANDIDATES if name == CANDIDATES else _OTHER, graph.maxima.get(name, _OTHER))
        for name in names_in(dim for value in values for dim in value.shape)
    }
    try:
        shapes = {name: concrete(graph.values[name].shape, sizes) for name in (*graph.inputs, *graph.outputs)}
    except KeyError:
        return None
    total = sum(
        int(np.prod(shape, dtype=np.float64)) * DTYPES[graph.values[name].dtype].itemsize
        for name, shape in shapes.items()
    )
    if total > MAX_SAMPLE_BYTES:
        return None
    vocabulary = input_vocabulary(graph)
    for smallest_ids in (False, True):
        random = np.random.default_rng(seed)
        inputs = {
            value.name: np.asarray(
                _draw(random, value, shapes[value.name], 1 if smallest_ids else vocabulary.get(value.name, 2))
            )
            for value in values
        }
        try:
            exact = evaluate(graph, inputs, precise=True)
        except InputError:
            continue
        rounded = evaluate(graph, inputs)
        if not are_stable(graph, inputs, exact, rounded):
            return None
        with np.errstate(all="ignore"):  # What is beyond float32 becomes infinite there, as in the model itself.
            outputs = {name: exact[name].astype(DTYPES[graph.values[name].dtype]) for name in graph.outputs}
        return Sample(inputs, outputs, _tolerance(exact, rounded))
    return None


def are_stable(
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    exact: Mapping[str, NDArray[Any]],
    rounded: Mapping[str, NDArray[Any]],
) -> bool:
    """Whether outputs that are compared exactly stay the same under rounding, and under inputs one bit away."""
    whole = [name for name in graph.outputs if exact[name].dtype.kind != "f"]
    if not whole:
        return True
    nudged = {
        name: np.nextafter(array, np.array(np.inf, array.dtype)) if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }
    try:
        others = [rounded, evaluate(graph, nudged)]
    except InputError:  # An index that is computed from floats.
        return False
    return all(np.array_equal(exact[name], other[name]) for name in whole for other in others)


def _tolerance(exact: Mapping[str, NDArray[Any]], rounded: Mapping[str, NDArray[Any]]) -> float:
    """What rounding alone can do to a model: many times what it does in NumPy, as every backend rounds elsewhere."""
    worst = 0.0
    for name, want in exact.items():
        if want.dtype.kind == "f":
            finite = np.isfinite(want) & np.isfinite(rounded[name])
            scale = float(np.abs(want[finite]).max(initial=0.0))
            error = np.abs(rounded[name][finite].astype(np.float64) - want[finite]).max(initial=0.0)
            worst = max(worst, float(error) / scale if scale else 0.0)
    return max(_LEAST_TOLERANCE, _ROUNDING_FACTOR * worst)


def _draw(random: np.random.Generator, value: Value, shape: tuple[int, ...], ids: int) -> NDArray[Any]:
    dtype = DTYPES[value.dtype]
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    return random.integers(0, max(1, min(ids, np.iinfo(dtype).max)), size=shape).astype(dtype)
