"""Whole numbers that took a way through floats: sizes that a source casts to float, scales, rounds and casts back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Dim, Graph, Node, attribute_shape
from rerank_engine.importers.shapes import ARITHMETIC, MOST_ENTRIES, ShapeValue, arithmetic
from rerank_engine.reference import evaluate_node

_ROUNDING = ("Floor", "Ceil", "Round", "Identity")
_WIDE = ("float32", "float64", "int32", "int64")
_DEEPEST = 32
"""Nodes in a row that are followed."""


def whole_numbers(graph: Graph, name: str, dtype: str) -> ShapeValue | None:
    """Read a float value as integers that are known now, or as expressions over named dimensions.

    Parameters
    ----------
    graph
        What has been built so far.
    name
        A value of it, of at most one dimension.
    dtype
        ``"int32"`` or ``"int64"``, to which the value is cast: floats are cut toward zero.

    Returns
    -------
    ShapeValue or None
        None when the numbers are known only when the model runs.

    Examples
    --------
    >>> graph = Graph("sizes")
    >>> number = graph.add_constant("number", np.array([2.5], np.float32))
    >>> whole_numbers(graph, number, "int64")
    ShapeValue(entries=(2,), is_scalar=False, dtype='int64')
    """
    producers = graph.producers()
    array = _number(graph, producers, name, _DEEPEST)
    if array is None:
        found = _expression(graph, producers, name, _DEEPEST)
        return None if found is None else ShapeValue(found.entries, found.is_scalar, dtype)
    limits = np.iinfo(DTYPES[dtype])
    entries = [float(entry) for entry in array.reshape(-1)]
    if not all(limits.min < entry < limits.max for entry in entries):
        return None
    return ShapeValue(tuple(int(entry) for entry in entries), array.ndim == 0, dtype)


def _number(graph: Graph, producers: Mapping[str, Node], name: str, left: int) -> NDArray[np.generic] | None:
    """The array behind a name, computed as the model would, in its own dtypes."""
    known = graph.constants.get(name)
    shape = graph.values[name].shape
    sizes = tuple(size for size in shape if isinstance(size, int))
    if known is None and name in producers and left and len(shape) <= 1 and len(sizes) == len(shape):
        node = producers[name]
        if node.op in (*ARITHMETIC, *_ROUNDING, "Cast", "Sqrt"):
            arrays = [_number(graph, producers, source, left - 1) for source in node.inputs]
            given = [array for array in arrays if array is not None]
            if len(given) == len(arrays):
                known = np.asarray(evaluate_node(node, given, [sizes])[0], DTYPES[graph.values[name].dtype])
    return known if known is not None and known.ndim <= 1 and known.size <= MOST_ENTRIES else None


def _expression(graph: Graph, producers: Mapping[str, Node], name: str, left: int) -> ShapeValue | None:
    """The expressions behind a name; all that is computed on the way must be whole."""
    node = producers.get(name)
    if node is None:
        array = graph.constants.get(name)
        if array is None or array.ndim > 1 or array.size > MOST_ENTRIES or array.dtype.kind not in "iuf":
            return None
        if not np.all(np.isfinite(array)) or not np.array_equal(array, np.rint(array)):
            return None
        return ShapeValue(tuple(int(entry) for entry in array.reshape(-1)), array.ndim == 0)
    if left == 0 or len(graph.values[name].shape) > 1:
        return None
    if node.op == "Dimensions":
        entries = attribute_shape(node.attributes["entries"])
        return ShapeValue(entries, bool(node.attributes.get("is_scalar", 0)))
    parts = [_expression(graph, producers, source, left - 1) for source in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    if node.op in _ROUNDING or (node.op == "Cast" and node.attributes["to"] in _WIDE):
        return known[0]
    if node.op not in ARITHMETIC or (node.op == "Mod" and node.attributes.get("fmod")):
        return None
    result = arithmetic(node.op, known)
    if result is None or node.op != "Div":
        return result
    return result if _divides(known[0], known[1], result) else None


def _divides(left: ShapeValue, right: ShapeValue, quotient: ShapeValue) -> bool:
    """Whether no quotient was cut: floats keep what integers lose."""
    count = len(quotient.entries)

    def spread(value: ShapeValue) -> tuple[int | Dim, ...]:
        return value.entries * count if len(value.entries) == 1 else value.entries

    return all(a == b * c for a, b, c in zip(spread(left), spread(right), quotient.entries, strict=True))
