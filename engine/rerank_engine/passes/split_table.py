"""A table whose rows are cut apart right after they were picked becomes several tables.

    Gather(table, ids) ─▶ Slice(0:8), Slice(8:9)     becomes     Gather(table[:, 0:8], ids), Gather(table[:, 8:9], ids)

Factorisation machines keep a vector and a weight of each feature in one row. Picked apart, nothing is copied twice, and
rows of a power of two lie within cache lines.
"""

from __future__ import annotations

import numpy as np

from rerank_engine.graph import Graph, Node
from rerank_engine.ops import attribute
from rerank_engine.ops.layout import slice_bounds
from rerank_engine.passes.editing import Editor


def split_table(graph: Graph) -> Graph:
    """Split every constant table of which each row is only read in parts that do not overlap."""
    editor = Editor(graph)
    for node in editor.nodes():
        if node.op == "Gather":
            _split(editor, node)
    return editor.finish()


def _split(editor: Editor, node: Node) -> None:
    name, ids = node.inputs
    table, result = editor.array(name), node.outputs[0]
    readers = editor.readers(result)
    if table is None or table.ndim != 2 or attribute(node, "axis") != 0 or result in editor.outputs or not readers:
        return
    rank = len(editor.shape(result))
    parts = [_part(reader, rank, table.shape[1]) for reader in readers]
    covered = [column for part in parts if part is not None for column in range(*part)]
    if None in parts or len(covered) != len(set(covered)):
        return
    for reader, part in zip(readers, parts, strict=True):
        assert part is not None
        columns = editor.constant(f"{name}.columns", np.ascontiguousarray(table[:, slice(*part)]))
        # Under its own name: messages about bad ids tell where the source looks them up.
        editor.change(reader, "Gather", [columns, ids], node.attributes, called=node.name)


def _part(reader: Node, rank: int, width: int) -> tuple[int, int] | None:
    """The columns that a slice of picked rows takes, as first and end; None for any other reader."""
    if reader.op != "Slice" or reader.attributes["axis"] % rank != rank - 1 or reader.attributes.get("step", 1) != 1:
        return None
    first, count = slice_bounds(reader, width)
    return (first, first + count) if isinstance(first, int) and isinstance(count, int) else None
