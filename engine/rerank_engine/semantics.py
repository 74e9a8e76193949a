"""What the inputs of a graph mean, read off the graph itself.

An integer input that reaches a table unchanged holds ids, and the table says how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rerank_engine.graph import DTYPES, Graph, Node


class _LookUp(NamedTuple):
    """Which inputs of an operator are a table and the ids that pick its rows."""

    table: int
    ids: int


_LOOK_UPS: Mapping[str, _LookUp] = {"Gather": _LookUp(table=0, ids=1)}

# Operators whose result holds nothing but elements of these inputs (None: of all). Arithmetic and limits are not
# among them: after Add or Clip an id is another one.
_MOVES: Mapping[str, tuple[int, ...] | None] = {
    "Cast": (0,),
    "Concat": None,
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Reshape": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}


def input_vocabulary(graph: Graph) -> dict[str, int]:
    """Derive how many ids each integer input may hold.

    An input holds ids when it reaches the index of a ``Gather`` through operators that only move elements. Where it
    reaches several tables, the one with the fewest rows counts.

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
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Value
    >>> graph = Graph("embed", inputs=["item", "price"], outputs=["row"])
    >>> graph.values["item"] = Value("item", "int64", (Dim("N"),))
    >>> graph.values["price"] = Value("price", "float32", (Dim("N"),))
    >>> graph.values["row"] = Value("row", "float32", (Dim("N"), 4))
    >>> table = graph.add_constant("table", np.zeros((1000, 4), np.float32))
    >>> graph.nodes.append(Node("Gather", "embed", (table, "item"), ("row",)))
    >>> input_vocabulary(graph)
    {'item': 1000}
    """
    rows: dict[str, int] = {}

    def limit(name: str, count: int) -> None:
        if DTYPES[graph.values[name].dtype].kind in "iu":
            rows[name] = min(rows.get(name, count), count)

    for node in reversed(graph.nodes):
        found = _table_rows(graph, node)
        if found is not None:
            limit(node.inputs[_LOOK_UPS[node.op].ids], found)
        counts = [rows[name] for name in node.outputs if name in rows]
        if counts and node.op in _MOVES:
            positions = _MOVES[node.op]
            for position, name in enumerate(node.inputs):
                if positions is None or position in positions:
                    limit(name, min(counts))
    return {name: rows[name] for name in graph.inputs if name in rows}


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
