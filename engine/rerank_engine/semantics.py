"""What the inputs of a graph mean, read off the graph itself.

An integer input that reaches a table unchanged holds ids, and the table says how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rerank_engine.graph import DTYPES, Graph, Node


class Ids(NamedTuple):
    """What the tables behind an input expect of its ids.

    Attributes
    ----------
    vocabulary
        Number of ids, which count from 0: the rows of the smallest table.
    unknown_row
        Row that stands for any other id; None where such an id is an error.
    mixed
        Whether several tables treat such an id in different ways; ``unknown_row`` is then that of one of them.
    """

    vocabulary: int
    unknown_row: int | None
    mixed: bool = False

    def joined(self, other: Ids) -> Ids:
        """What holds for an input that reaches the tables of both."""
        mixed = self.mixed or other.mixed or self.unknown_row != other.unknown_row
        return Ids(min(self.vocabulary, other.vocabulary), self.unknown_row, mixed)


class _LookUp(NamedTuple):
    """Which inputs of an operator are a table and the ids that pick its rows."""

    table: int
    ids: int


_LOOK_UPS: Mapping[str, _LookUp] = {"Gather": _LookUp(table=0, ids=1)}

_RAISE = -1
"""Attribute ``unknown_row`` of a look-up that makes an id outside an error."""

# Operators whose result holds nothing but elements of these inputs (None: of all). Arithmetic and limits are not
# among them: after Add or Clip an id is another one.
_MOVES: Mapping[str, tuple[int, ...] | None] = {
    "Cast": (0,),
    "Concat": None,
    "Expand": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Reshape": (0,),
    "Slice": (0,),
    "Transpose": (0,),
    "Where": (1, 2),
}


def input_ids(graph: Graph) -> dict[str, Ids]:
    """Derive what each integer input that holds ids may hold.

    An input holds ids when it reaches the index of a ``Gather`` through operators that only move elements.

    Parameters
    ----------
    graph
        A graph that verifies.

    Returns
    -------
    dict
        By name of input, for the inputs that hold ids.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Value
    >>> graph = Graph("embed", inputs=["item", "price"], outputs=["row"])
    >>> graph.values["item"] = Value("item", "int64", (Dim("N"),))
    >>> graph.values["price"] = Value("price", "float32", (Dim("N"),))
    >>> graph.values["row"] = Value("row", "float32", (Dim("N"), 4))
    >>> table = graph.add_constant("table", np.zeros((1000, 4), np.float32))
    >>> graph.nodes.append(Node("Gather", "embed", (table, "item"), ("row",), {"unknown_row": 0}))
    >>> input_ids(graph)
    {'item': Ids(vocabulary=1000, unknown_row=0, mixed=False)}
    """
    found: dict[str, Ids] = {}

    def add(name: str, ids: Ids) -> None:
        if DTYPES[graph.values[name].dtype].kind in "iu":
            found[name] = found[name].joined(ids) if name in found else ids

    # Backwards, so that what a value's readers expect of it is known before its maker is met.
    for node in reversed(graph.nodes):
        if (rows := _table_rows(graph, node)) is not None:
            row = node.attributes.get("unknown_row", _RAISE)
            add(node.inputs[_LOOK_UPS[node.op].ids], Ids(rows, None if row == _RAISE else row))
        for ids in [found[name] for name in node.outputs if name in found]:
            for name in moved_inputs(node):
                add(name, ids)
    return {name: found[name] for name in graph.inputs if name in found}


def input_vocabulary(graph: Graph) -> dict[str, int]:
    """Derive how many ids each integer input may hold; see :func:`input_ids`.

    Parameters
    ----------
    graph
        A graph that verifies.

    Returns
    -------
    dict
        Number of ids by name of input, for the inputs that hold ids; they count from 0.

    Examples
    --------
    >>> input_vocabulary(Graph("empty"))
    {}
    """
    return {name: ids.vocabulary for name, ids in input_ids(graph).items()}


def _table_rows(graph: Graph, node: Node) -> int | None:
    """Rows of the table that a node looks up, None where it looks up none or their number varies."""
    look_up = _LOOK_UPS.get(node.op)
    if look_up is None or len(node.inputs) <= max(look_up):
        return None
    shape = graph.values[node.inputs[look_up.table]].shape
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    count = shape[axis]
    return count if isinstance(count, int) else None


def ids_inputs(node: Node) -> tuple[str, str] | None:
    """Names of a node's table and of the ids that pick its rows, along the first axis; None when it looks up none."""
    look_up = _LOOK_UPS.get(node.op)
    if look_up is None or len(node.inputs) <= max(look_up) or node.attributes.get("axis", 0) != 0:
        return None
    return node.inputs[look_up.table], node.inputs[look_up.ids]


def moved_inputs(node: Node) -> tuple[str, ...]:
    """Names of the inputs whose elements a node passes on unchanged."""
    if node.op not in _MOVES:
        return ()
    positions = _MOVES[node.op]
    return node.inputs if positions is None else tuple(node.inputs[at] for at in positions if at < len(node.inputs))
