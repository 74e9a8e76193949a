"""Integer arithmetic on sizes is done now: exactly, as expressions over the named dimensions.

    Dimensions(N, 50) ─▶ Mul(·, 2) ─▶ Slice(0:1)        becomes    Dimensions(2*N)
    Dimensions(N, 50) ─▶ Slice(1:2)                     becomes    the constant 50

What would wrap around, or divide by a size, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Value, attribute_shape, shape_attribute
from rerank_engine.ops import attribute

if TYPE_CHECKING:
    from rerank_engine.importers.shapes import ShapeValue

_LARGEST_FACTOR = {"int32": 2**15, "int64": 2**31}
"""Expressions with larger factors are left alone: they could leave the range of their dtype, where integers wrap."""

_INTEGERS = ("int32", "int64")


def fold_shapes(graph: Graph) -> Graph:
    """Fold what depends on sizes and constants only, and is still a list of sizes."""
    known = {name: value for name, array in graph.constants.items() if (value := _of_constant(array)) is not None}
    constants, values = dict(graph.constants), dict(graph.values)
    nodes: list[Node] = []
    from_sizes: set[str] = set()
    for node in graph.nodes:
        folded = _fold(node, known, values) if node.op == "Dimensions" or from_sizes & {*node.inputs} else None
        if folded is None:
            nodes.append(node)
            continue
        (name,) = node.outputs
        if isinstance(folded, np.ndarray):
            constants[name] = folded
            continue
        known[name] = folded
        from_sizes.add(name)
        if folded.is_known:
            array = np.array(folded.entries, DTYPES[folded.dtype])
            constants[name] = array.reshape(()) if folded.is_scalar else array
        elif node.op == "Dimensions":
            nodes.append(node)
        else:
            attributes = {
                "entries": shape_attribute(folded.entries),
                "is_scalar": int(folded.is_scalar),
                "dtype": folded.dtype,
            }
            nodes.append(Node("Dimensions", node.name, (), node.outputs, attributes))
    return replace(graph, nodes=nodes, constants=constants, values=values)


def _of_constant(array: NDArray[np.generic]) -> ShapeValue | None:
    from rerank_engine.importers.shapes import MOST_ENTRIES, ShapeValue

    if str(array.dtype) not in _INTEGERS or array.ndim > 1 or array.size > MOST_ENTRIES:
        return None
    return ShapeValue(tuple(int(entry) for entry in array.reshape(-1)), array.ndim == 0, str(array.dtype))


def _fold(
    node: Node, known: Mapping[str, ShapeValue], values: Mapping[str, Value]
) -> ShapeValue | NDArray[np.bool_] | None:
    """The result as sizes, or as truth values; None where it is neither."""
    from rerank_engine.importers.shapes import COMPARISONS, MOST_ENTRIES, comparison

    if len(node.outputs) != 1 or any(name not in known for name in node.inputs):
        return None
    given = [known[name] for name in node.inputs]
    result = values[node.outputs[0]]
    if len(result.shape) > 1 or any(isinstance(dim, Dim) or dim > MOST_ENTRIES for dim in result.shape):
        return None
    try:
        if node.op in COMPARISONS:
            answers = comparison(node.op, given[0], given[1])
            return None if answers is None else np.array(answers, np.bool_).reshape(_fixed(result))
        folded = _evaluate(node, given)
    except GraphError:  # a factor beyond what an expression may have
        return None
    if folded is None or result.dtype not in _INTEGERS:
        return None
    folded = replace(folded, is_scalar=not result.shape, dtype=result.dtype)
    return folded if (len(folded.entries),) == (result.shape or (1,)) and _fits(folded) else None


def _fixed(value: Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.shape if isinstance(dim, int))


def _fits(value: ShapeValue) -> bool:
    limits, largest = np.iinfo(DTYPES[value.dtype]), _LARGEST_FACTOR[value.dtype]
    return all(
        all(abs(factor) <= largest for _, factor in entry.terms)
        if isinstance(entry, Dim)
        else limits.min <= entry <= limits.max
        for entry in value.entries
    )


def _evaluate(node: Node, given: list[ShapeValue]) -> ShapeValue | None:
    from rerank_engine.importers.shapes import ARITHMETIC, ShapeValue, arithmetic, reduction

    if node.op == "Dimensions":
        entries = attribute_shape(node.attributes["entries"])
        return ShapeValue(entries, bool(attribute(node, "is_scalar")), attribute(node, "dtype"))
    if node.op in ARITHMETIC:
        # What divides by a size may divide by zero, and a remainder may have the sign of either operand.
        is_exact = node.op not in ("Div", "Mod") or all(_is_divisor(entry) for entry in given[1].entries)
        return arithmetic(node.op, given) if is_exact and not node.attributes.get("fmod") else None
    if node.op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"):
        total = None if given[0].is_scalar else reduction(node.op, given[0])
        return None if total is None else ShapeValue((total,))
    if node.op == "Concat":
        return ShapeValue(tuple(entry for value in given for entry in value.entries))
    move = _MOVES.get(node.op)
    return ShapeValue(move(node, given)) if move is not None else None


def _is_divisor(entry: int | Dim) -> bool:
    return isinstance(entry, int) and entry != 0


def _cut(node: Node, given: list[ShapeValue]) -> tuple[int | Dim, ...]:
    from rerank_engine.ops.layout import slice_bounds

    entries = given[0].entries
    first, count = slice_bounds(node, len(entries))
    assert isinstance(first, int), "the number of entries is known"
    assert isinstance(count, int), "the number of entries is known"
    return tuple(entries[first + index * attribute(node, "step")] for index in range(count))


def _pick(_: Node, given: list[ShapeValue]) -> tuple[int | Dim, ...]:
    entries, ids = given[0].entries, given[1].entries
    inside = [index for index in ids if isinstance(index, int) and -len(entries) <= index < len(entries)]
    # An index outside is an error, which the node itself tells best.
    return tuple(entries[index] for index in inside) if len(inside) == len(ids) else ()


_MOVES: Mapping[str, Callable[[Node, list[ShapeValue]], tuple[int | Dim, ...]]] = {
    "Identity": lambda _, given: given[0].entries,
    "Reshape": lambda _, given: given[0].entries,
    "Transpose": lambda _, given: given[0].entries,
    "Cast": lambda _, given: given[0].entries,
    "Expand": lambda node, given: _repeat(node, given[0].entries),
    "Neg": lambda _, given: tuple(entry * -1 for entry in given[0].entries),
    "Slice": _cut,
    "Gather": _pick,
}


def _repeat(node: Node, entries: tuple[int | Dim, ...]) -> tuple[int | Dim, ...]:
    (count,) = attribute_shape(node.attributes["shape"]) or (1,)
    return entries * count if len(entries) == 1 and isinstance(count, int) else entries
