"""What a model does with each input, found by following it through the nodes: ids of a table, masks, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import DTYPES, Graph, Node, Value
from rerank_engine.ops.registry import Array
from rerank_engine.reference import evaluate
from rerank_engine.verify.sizes import shape_at

Use = Literal["ids", "mask", "number"]

INDEX_READERS = ("Gather", "GatherElements", "GatherND")
"""Operators that take ids as their second input, and a table as the first."""

_MOVES = (
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
"""Operators whose result holds elements of their (first) input as they are."""

_INTEGER_ARITHMETIC = ("Add", "Sub", "Mul", "Mod", "Max", "Min", "Clip", "Abs", "Where")
"""Operators through which ids pass: offsets of joined tables, hashing into buckets, limits."""

_CONDITIONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "Where")
"""Operators that a mask meets."""


@dataclass(frozen=True)
class Lookup:
    """A table that ids go to.

    Attributes
    ----------
    node
        The node that looks up.
    index
        Name of the value with the ids.
    table
        The value that is looked up in.
    axis
        Along which axis of the table.
    """

    node: str
    index: str
    table: Value
    axis: int

    def rows(self, sizes: Mapping[str, int]) -> int:
        """Entries of the table along its axis."""
        return shape_at(self.table, sizes)[self.axis]


@dataclass(frozen=True)
class InputUse:
    """What an input is for.

    Attributes
    ----------
    value
        The input.
    use
        ``"ids"``, ``"mask"`` or ``"number"``.
    lookups
        Where ids go.
    largest
        Largest value of a mask: 1, or one more than the largest integer that it is compared with.
    """

    value: Value
    use: Use
    lookups: tuple[Lookup, ...] = ()
    largest: int = 1


@dataclass(frozen=True)
class Bounds:
    """Which ids an input may hold.

    Attributes
    ----------
    low, high
        Integers of the input's shape: ``low <= id < high`` for each element.
    rows
        Size of the smallest table that each element goes to.
    """

    low: Array
    high: Array
    rows: Array


def find_uses(graph: Graph) -> list[InputUse]:
    """Tell what each input of a graph is for, in order.

    Examples
    --------
    >>> from rerank_engine.graph import Dim
    >>> graph = Graph("g", inputs=["item"], outputs=["row"])
    >>> graph.values["item"] = Value("item", "int64", (Dim("N"),))
    >>> graph.values["row"] = Value("row", "float32", (Dim("N"), 2))
    >>> table = graph.add_constant("table", np.zeros((9, 2), np.float32))
    >>> graph.nodes.append(Node("Gather", "embed", (table, "item"), ("row",)))
    >>> [(one.value.name, one.use, one.lookups[0].rows({})) for one in find_uses(graph)]
    [('item', 'ids', 9)]
    """
    readers = graph.consumers()
    return [_use_of(graph, readers, graph.values[name]) for name in graph.inputs]


def _use_of(graph: Graph, readers: Mapping[str, list[Node]], value: Value) -> InputUse:
    reached = _follow(readers, value.name, (*_MOVES, *_INTEGER_ARITHMETIC))
    lookups = tuple(_lookup(graph, node) for name in reached for node in readers[name] if _is_index(node, name))
    if lookups:
        return InputUse(value, "ids", tuple(dict.fromkeys(lookups)))
    if value.dtype == "bool":
        return InputUse(value, "mask")
    if DTYPES[value.dtype].kind in "iu":
        moved = _follow(readers, value.name, _MOVES)
        met = [
            (node, name)
            for name in moved
            for node in readers[name]
            if not (node.op in _MOVES and name == node.inputs[0])
        ]
        if met and all(node.op in _CONDITIONS or graph.values[name].dtype == "bool" for node, name in met):
            return InputUse(value, "mask", largest=_largest_compared(graph, [node for node, _ in met]))
    return InputUse(value, "number")


def _follow(readers: Mapping[str, list[Node]], start: str, through: Iterable[str]) -> list[str]:
    """Names of all values that an input reaches through the given operators, in order of the graph."""
    allowed, reached, waiting = set(through), {start: None}, [start]
    while waiting:
        name = waiting.pop()
        for node in readers[name]:
            if node.op not in allowed or _is_index(node, name) or (node.op == "Where" and name == node.inputs[0]):
                continue
            for output in node.outputs:
                if output not in reached:
                    reached[output] = None
                    waiting.append(output)
    return list(reached)


def _is_index(node: Node, name: str) -> bool:
    return node.op in INDEX_READERS and len(node.inputs) > 1 and node.inputs[1] == name


def _lookup(graph: Graph, node: Node) -> Lookup:
    table = graph.values[node.inputs[0]]
    axis = int(node.attributes.get("axis", node.attributes.get("batch_dims", 0)))
    return Lookup(node.name, node.inputs[1], table, axis % max(1, len(table.shape)))


def _largest_compared(graph: Graph, nodes: Iterable[Node]) -> int:
    """One more than the largest integer among the constants that nodes compare with; 1 when there is none."""
    largest = 0
    for node in nodes:
        for name in node.inputs:
            array = graph.constants.get(name)
            if array is not None and array.dtype.kind in "iu" and array.size:
                largest = max(largest, int(array.max()))
    return min(largest, 126) + 1


def id_bounds(graph: Graph, use: InputUse, sizes: Mapping[str, int], vocabulary: int | None = None) -> Bounds:
    """Find which ids an input may hold, for each element.

    A model may add an offset to ids before it looks them up, another one for each column. The offsets are read off
    the graph by running it with ids that tell their place.

    Parameters
    ----------
    graph
        The model, not optimised.
    use
        An input of ids.
    sizes
        Sizes of the named dimensions.
    vocabulary
        Number of ids, when the caller knows it: then the graph is not asked.
    """
    shape = shape_at(use.value, sizes)
    unknown = np.iinfo(np.int64).max
    low, high = np.full(shape, -unknown), np.full(shape, unknown)
    rows = np.full(shape, unknown)
    if vocabulary is not None:
        return Bounds(np.zeros(shape, np.int64), np.full(shape, vocabulary), np.full(shape, vocabulary))
    for lookup in use.lookups:
        size = lookup.rows(sizes)
        found = _offsets(graph, use.value, lookup.index, sizes)
        if found is None:
            continue
        places, offsets = found
        np.maximum.at(low.reshape(-1), places, -offsets)
        np.minimum.at(high.reshape(-1), places, size - offsets)
        np.minimum.at(rows.reshape(-1), places, size)
    # Where the way to the table is more than an offset, its size is all that is known.
    smallest = min((lookup.rows(sizes) for lookup in use.lookups), default=1)
    free = high == unknown
    low[free], high[free], rows[free] = 0, smallest, smallest
    return Bounds(low, high, rows)


def _offsets(graph: Graph, value: Value, index: str, sizes: Mapping[str, int]) -> tuple[Array, Array] | None:
    """Places in the input, and what is added to each on its way to an index; None when it is no such sum."""
    size = int(np.prod(shape_at(value, sizes), dtype=np.int64))
    part = _ancestors(graph, index)
    shape = shape_at(value, sizes)
    others = [graph.values[name] for name in graph.inputs]
    base = {other.name: np.zeros(shape_at(other, sizes), DTYPES[other.dtype]) for other in others}
    place = np.arange(1, size + 1).reshape(shape)
    if size and 2 * size > _largest_exact(DTYPES[value.dtype]):
        return None
    try:
        zero, once, twice = (
            evaluate(part, base | {value.name: (place * factor).astype(DTYPES[value.dtype])})[index].astype(np.int64)
            for factor in (0, 1, 2)
        )
    except InputError:
        return None  # an id on the way goes through a table of its own
    moved = (once - zero).reshape(-1)
    if (moved < 0).any() or (moved > size).any() or not np.array_equal(twice - zero, 2 * (once - zero)):
        return None
    holds = moved > 0
    return moved[holds] - 1, zero.reshape(-1)[holds]


def _largest_exact(dtype: np.dtype[Any]) -> int:
    """Up to where a dtype has every whole number."""
    return 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else int(np.iinfo(dtype).max)


def _ancestors(graph: Graph, name: str) -> Graph:
    """The part of a graph that makes one value."""
    wanted, nodes = {name}, []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    constants = {key: array for key, array in graph.constants.items() if key in wanted}
    return replace(graph, nodes=nodes[::-1], outputs=[name], constants=constants, sample=None)
