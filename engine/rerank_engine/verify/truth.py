"""What a model should answer: every value in float64, and how far float32 may honestly be from it.

The truth is the NumPy reference in float64, with the range of float32: what a float32 cannot hold is infinite.

Where a result is far from the truth, either something is wrong, or the inputs make the computation so sensitive that
rounding alone moves it that far (a difference of near-equal numbers, a softmax of huge logits). The two are told apart
by computing a few times more with results rounded up or down at random, as the CESTAC method does (J. Vignes, "A
stochastic arithmetic for reliable scientific computation", Mathematics and Computers in Simulation 35, 1993): what
those runs disagree about, no float32 implementation can know.

The choice between up and down is a hash of the number itself. Equal numbers stay equal, so that ties are still ties,
and the same run gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rerank_engine.graph import Graph, Node
from rerank_engine.ops.registry import Array
from rerank_engine.reference import evaluate_node
from rerank_engine.verify.sizes import shape_at

TRIALS = 4
"""Runs with random rounding."""

_TABLE_READERS = ("Gather", "GatherElements", "GatherND")
"""Operators that read few numbers of a table that may be large: converted after they have picked, not before."""

Rounding = Callable[[Array], Array]


@dataclass(frozen=True)
class Noise:
    """How far rounding alone moves a value.

    Attributes
    ----------
    spread
        Largest distance from the truth in any trial, float64, one for each element.
    unstable
        Elements that a trial makes another integer, another truth value, or NaN or infinite where the truth is not.
    """

    spread: Array
    unstable: Array


def compute_truth(graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Evaluate every value of a graph in float64.

    Parameters
    ----------
    graph
        A verified graph.
    inputs
        An array for each input, in its dtype.
    sizes
        Sizes of the named dimensions.

    Returns
    -------
    dict
        Inputs and results by name; float32 values as float64.

    Raises
    ------
    InputError
        An id or index is out of range.
    """
    return _evaluate(graph, inputs, sizes, _widen, _limit_range)


def measure_noise(
    graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int], truth: Mapping[str, Array]
) -> dict[str, Noise]:
    """Find how far rounding alone moves every value.

    Parameters
    ----------
    graph, inputs, sizes
        As for :func:`compute_truth`.
    truth
        What it returned.

    Returns
    -------
    dict
        Noise of every value by name.
    """
    found = {name: Noise(np.zeros(value.shape), np.zeros(value.shape, np.bool_)) for name, value in truth.items()}
    for trial in range(TRIALS):
        seed = np.uint64(trial + 1)
        shaken = _evaluate(graph, inputs, sizes, lambda array: _shake(array, seed), lambda array: _round(array, seed))  # noqa: B023
        for name, value in truth.items():
            found[name] = _spread(found[name], value, shaken[name])
    return found


def _evaluate(
    graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int], leaf: Rounding, result: Rounding
) -> dict[str, Array]:
    """Run all nodes; ``leaf`` prepares inputs and constants, ``result`` what nodes of float32 make."""
    known = {name: leaf(np.asarray(inputs[name])) for name in graph.inputs}
    prepared: dict[str, Array] = {}
    for node in graph.nodes:
        from_table = node.op in _TABLE_READERS and node.inputs[0] in graph.constants
        arrays = []
        for position, name in enumerate(node.inputs):
            if name in known:
                arrays.append(known[name])
            elif from_table and position == 0:
                arrays.append(graph.constants[name])
            else:
                if name not in prepared:
                    prepared[name] = leaf(graph.constants[name])
                arrays.append(prepared[name])
        shapes = [shape_at(graph.values[name], sizes) for name in node.outputs]
        made = _run_node(node, arrays, shapes, sizes)
        for name, array in zip(node.outputs, made, strict=True):
            if from_table:
                array = leaf(array)
            known[name] = result(_widen(array)) if graph.values[name].dtype == "float32" else array
    outputs = {name: leaf(graph.constants[name]) for name in graph.outputs if name in graph.constants}
    return known | outputs


def _run_node(
    node: Node, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]
) -> list[Array]:
    with np.errstate(all="ignore"):
        return [np.asarray(array) for array in evaluate_node(node, arrays, shapes, sizes)]


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _limit_range(array: Array) -> Array:
    """Make infinite what a float32 cannot hold."""
    with np.errstate(all="ignore"):
        narrow = array.astype(np.float32)
    return np.where(np.isinf(narrow), narrow.astype(np.float64), array)


def _round(array: Array, seed: np.uint64) -> Array:
    """Round float64 to one of the two neighbours in float32; a number that float32 has stays."""
    with np.errstate(all="ignore"):
        near = array.astype(np.float32)
        towards = np.where(near < array, np.float32(np.inf), np.float32(-np.inf))
        other = np.nextafter(near, towards)
    choose = (near != array) & np.isfinite(near) & (_hash(array, seed) & np.uint64(1) == 1)
    return np.where(choose, other, near).astype(np.float64)


def _shake(array: Array, seed: np.uint64) -> Array:
    """Move inputs and weights by one unit in the last place at most; whole numbers stay, they are rarely rounded."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        move = np.isfinite(array) & (array != np.rint(array))
        choice = _hash(array.astype(np.float64), seed) % np.uint64(3)
        up = np.nextafter(array, array.dtype.type(np.inf))
        down = np.nextafter(array, array.dtype.type(-np.inf))
    return _widen(np.where(move & (choice == 1), up, np.where(move & (choice == 2), down, array)))


def _hash(array: Array, seed: np.uint64) -> Array:
    """Mix the bits of float64 numbers (the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014)."""
    bits = np.ascontiguousarray(array, np.float64).view(np.uint64).reshape(array.shape)
    with np.errstate(over="ignore"):
        bits = bits + seed * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def _spread(noise: Noise, truth: Array, trial: Array) -> Noise:
    if truth.shape != trial.shape:
        return Noise(noise.spread, np.ones(truth.shape, np.bool_))
    if truth.dtype.kind != "f":
        return Noise(noise.spread, noise.unstable | (truth != trial))
    finite = np.isfinite(truth) & np.isfinite(trial)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(trial - truth), 0.0)
        same = finite | (truth == trial) | (np.isnan(truth) & np.isnan(trial))
    return Noise(np.maximum(noise.spread, distance), noise.unstable | ~same)
