"""A product of joined columns becomes a sum of products, so that repeated parts are multiplied once.

    Concat(Expand(q), Expand(k), Expand(q) - Expand(k), p) ─▶ MatMul(·, W)
becomes
    MatMul(p, Wp) + MatMul(q, Wq + Wd) + MatMul(k, Wk - Wd)

In target attention q is the candidate, repeated for every event, and k the event, repeated for every candidate: the
first layer shrinks to what truly depends on both, and the part of k is computed once a call. A reshape between the two,
which joins the rows, goes behind the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, shape_attribute
from rerank_engine.passes.editing import Editor


@dataclass
class _Parts:
    """The columns of a product by where they come from.

    Attributes
    ----------
    repeated
        Rows of the weight for each value that is repeated.
    others
        Values that are none, each with its rows of the weight, in order.
    """

    repeated: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    others: list[tuple[str, NDArray[np.floating]]] = field(default_factory=list)


def split_concat(graph: Graph) -> Graph:
    """Split every product of a constant with a concatenation that repeats some of its parts."""
    editor = Editor(graph)
    for node in editor.nodes():
        parts = _find_parts(editor, node)
        if parts is not None:
            _emit_sum(editor, node, parts)
    return editor.finish()


def _find_parts(editor: Editor, node: Node) -> _Parts | None:
    """The parts of a product; None when nothing is to be gained."""
    if node.op != "MatMul" or len(node.inputs) != 2 or node.attributes.get("activation"):
        return None
    name, weight = node.inputs[0], editor.array(node.inputs[1])
    reshape = editor.maker(name, "Reshape")
    if reshape is not None and editor.shape(name)[-1:] == editor.shape(reshape.inputs[0])[-1:]:
        name = reshape.inputs[0]
    joined = editor.maker(name, "Concat")
    if joined is None or weight is None or weight.ndim != 2 or weight.dtype.kind != "f":
        return None
    rank = len(editor.shape(name))
    if rank < 2 or joined.attributes["axis"] % rank != rank - 1:
        return None
    parts, start = _Parts(), 0
    differences: list[tuple[str, NDArray[np.floating]]] = []
    for part in joined.inputs:
        columns = editor.shape(part)[-1]
        if not isinstance(columns, int):
            return None
        rows = weight[start : start + columns]
        source = _source(editor, part)
        if source is not None:
            _add(parts.repeated, source, rows)
        elif editor.maker(part, "Add", "Sub") is not None:
            differences.append((part, rows))
        else:
            parts.others.append((part, rows))
        start += columns
    for part, rows in differences:
        _split_difference(editor, part, rows, parts)
    return parts if parts.repeated and parts.others else None


def _add(repeated: dict[str, NDArray[np.floating]], source: str, rows: NDArray[np.floating]) -> None:
    before = repeated.get(source)
    total = rows.astype(np.float64) + (0.0 if before is None else before)
    repeated[source] = total.astype(rows.dtype)


def _split_difference(editor: Editor, part: str, rows: NDArray[np.floating], parts: _Parts) -> None:
    """Give the rows of a sum or difference of repeated parts to these parts, if they are there by themselves, too."""
    node = editor.maker(part)
    sources = [_source(editor, name) for name in node.inputs] if node is not None else []
    found = [source for source in sources if source is not None and source in parts.repeated]
    if node is None or len(found) != 2 or any(editor.shape(name) != editor.shape(part) for name in node.inputs):
        parts.others.append((part, rows))
        return
    _add(parts.repeated, found[0], rows)
    _add(parts.repeated, found[1], rows if node.op == "Add" else -rows)


def _source(editor: Editor, name: str) -> str | None:
    """What an expansion repeats, if it makes more rows and leaves the last axis alone."""
    node = editor.maker(name, "Expand")
    if node is None:
        return None
    source, target = editor.shape(node.inputs[0]), editor.shape(name)
    if len(source) < 2 or source[-1] != target[-1] or product(source[:-1]) == product(target[:-1]):
        return None
    return node.inputs[0]


def _emit_sum(editor: Editor, node: Node, parts: _Parts) -> None:
    """Replace the product by the products of all parts and their sum."""
    weight_name = node.inputs[1]
    names = [name for name, _ in parts.others]
    joined = names[0]
    if len(names) > 1:
        joined = editor.add("Concat", names, {"axis": len(editor.shape(joined)) - 1}, before=node)
    rest = editor.constant(f"{weight_name}.rest", np.concatenate([rows for _, rows in parts.others]))
    total = editor.add("MatMul", [joined, rest], before=node)
    sums = [(source, editor.constant(f"{weight_name}.part", rows)) for source, rows in parts.repeated.items()]
    for source, rows in sums[:-1]:
        total = editor.add("Add", [total, editor.add("MatMul", [source, rows], before=node)], before=node)
    last = [total, editor.add("MatMul", list(sums[-1]), before=node)]
    shape = editor.shape(node.outputs[0])
    if editor.shape(total) == shape:
        editor.change(node, "Add", last)
    else:
        whole = editor.add("Add", last, before=node)
        editor.change(node, "Reshape", [whole], {"shape": shape_attribute(shape)})
