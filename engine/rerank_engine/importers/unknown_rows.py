"""Give the ids of an input a row that stands for every id outside the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph
from rerank_engine.semantics import ids_inputs, moved_inputs


def set_unknown_rows(graph: Graph, rows: Mapping[str, int]) -> Graph:
    """Mark every look-up that the ids of an input reach.

    Parameters
    ----------
    graph
        A verified graph.
    rows
        Row of the table by name of input.

    Raises
    ------
    ConversionError
        No such input, it reaches no table, the table has no such row, or two inputs that meet in one look-up name
        different rows.

    Examples
    --------
    >>> set_unknown_rows(Graph("empty"), {"item": 0})
    Traceback (most recent call last):
    ...
    rerank_engine.errors.ConversionError: unknown_rows: the model has no input 'item'; inputs: none
    """
    origins: dict[str, set[str]] = {name: {name} for name in graph.inputs}
    nodes = []
    reached: set[str] = set()
    for name in rows:
        if name not in graph.inputs:
            raise ConversionError(
                f"unknown_rows: the model has no input {name!r}; inputs: {', '.join(graph.inputs) or 'none'}"
            )
    for node in graph.nodes:
        passed = set().union(*(origins.get(name, set()) for name in moved_inputs(node)))
        if passed:
            origins.update(dict.fromkeys(node.outputs, passed))
        looked_up = ids_inputs(node)
        if looked_up is not None and "unknown_row" not in node.attributes:
            table, ids = looked_up
            wanted = {rows[name] for name in origins.get(ids, set()) if name in rows}
            if len(wanted) > 1:
                raise ConversionError(f"unknown_rows: inputs that meet in node {node.name!r} name the rows {wanted}")
            if wanted:
                (row,) = wanted
                count = graph.values[table].shape[0]
                if not isinstance(count, int) or not 0 <= row < count:
                    raise ConversionError(
                        f"unknown_rows: row {row} is none of the {count} rows of the table of node {node.name!r}"
                    )
                reached |= {name for name in origins[ids] if name in rows}
                node = replace(node, attributes={**node.attributes, "unknown_row": row})
        nodes.append(node)
    if missed := set(rows) - reached:
        raise ConversionError(f"unknown_rows: input {sorted(missed)[0]!r} reaches no table, so it holds no ids")
    return replace(graph, nodes=nodes, unknown_rows=dict(rows))
