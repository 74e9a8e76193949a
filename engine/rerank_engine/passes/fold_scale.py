"""A scale or shift by constants beside a matrix product with a constant matrix goes into its weight and bias.

    MatMul(x, W) ─▶ Mul(·, s) ─▶ Add(·, t)            becomes    MatMul(x, W * s) ─▶ Add(·, t)
    MatMul(x, W) ─▶ Add(·, b) ─▶ Mul(·, s)            becomes    MatMul(x, W * s) ─▶ Add(·, b * s)
    MatMul(x, W) ─▶ Add(·, b) ─▶ Add(·, t)            becomes    MatMul(x, W) ─▶ Add(·, b + t)
    Mul(x, s) ─▶ MatMul(·, W)                         becomes    MatMul(x, s[:, None] * W)
    Mul(x, s) ─▶ Add(·, t) ─▶ MatMul(·, W)            becomes    Mul(x, s) ─▶ MatMul(·, W) ─▶ Add(·, t @ W)
    Add(x, t) ─▶ Mul(·, s) ─▶ MatMul(·, W)            becomes    MatMul(x, s[:, None] * W) ─▶ Add(·, (t * s) @ W)

Batch normalisation is such a scale and shift once its statistics are constant. Div and Sub by constants are taken as
Mul and Add. Constants are computed in float64 and rounded once; where that would make one infinite, or lose one as too
small, nothing is folded.

A shift before a product stays where it is large beside the scaled values, or where no scale tells: it may be what
keeps the digits of large inputs (x - mean).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph, Node
from rerank_engine.passes.editing import Editor, varying_input

Row = NDArray[np.float64]

_MOST_SHIFT = 2.0
"""Largest shift of scaled values that goes through a product: two deviations after a normalisation, so that hardly a
digit cancels."""

_FLOAT32 = np.finfo(np.float32)


def fold_scale(graph: Graph) -> Graph:
    """Fold wherever the value in between has no other reader and is no output."""
    editor = Editor(graph)
    for node in editor.nodes():
        product: Node | None = node
        while product is not None and editor.has(product) and _is_plain(editor, product):
            product = _fold_behind(editor, product) or _fold_before(editor, product)
    return editor.finish()


def _is_plain(editor: Editor, node: Node) -> bool:
    """Whether a node multiplies by a constant matrix and does nothing else."""
    if node.op != "MatMul" or len(node.inputs) != 2 or node.attributes.get("activation"):
        return False
    weight = editor.array(node.inputs[1])
    return weight is not None and weight.ndim == 2 and weight.dtype == np.float32


def _scale(editor: Editor, node: Node | None, name: str, columns: int) -> Row | None:
    """What a node multiplies the columns of ``name`` by."""
    row = _row(editor, node, name, columns)
    if row is None or node is None or node.op not in ("Mul", "Div"):
        return None
    if node.op == "Mul":
        return row
    return 1.0 / row if row.all() else None


def _shift(editor: Editor, node: Node | None, name: str, columns: int) -> Row | None:
    """What a node adds to the columns of ``name``."""
    row = _row(editor, node, name, columns)
    if row is None or node is None or node.op not in ("Add", "Sub"):
        return None
    return row if node.op == "Add" else -row


def _row(editor: Editor, node: Node | None, name: str, columns: int) -> Row | None:
    if node is None or node.op not in ("Mul", "Div", "Add", "Sub") or varying_input(editor, node) != name:
        return None
    array = editor.array(next(entry for entry in node.inputs if entry != name))
    if array is None or not np.isfinite(array).all() or array.size not in (1, array.shape[-1] if array.ndim else 1):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), columns)


def _fold_behind(editor: Editor, product: Node) -> Node | None:
    """Fold what reads the product; gives the product as it is then, None when there is nothing to fold."""
    source, weight_name = product.inputs
    weight = editor.array(weight_name)
    assert weight is not None, "a plain product has a constant weight"
    columns, made = weight.shape[1], product.outputs[0]
    reader = editor.only_reader(made)
    scale = _scale(editor, reader, made, columns)
    if reader is None:
        return None
    if scale is not None:
        scaled = _constant(editor, f"{weight_name}.scaled", weight.astype(np.float64) * scale)
        if scaled is None:
            return None
        changed = editor.change(reader, "MatMul", [source, scaled])
        editor.remove([made])
        return changed
    shift = _shift(editor, reader, made, columns)
    if shift is None:
        return None
    bias_name = next(entry for entry in reader.inputs if entry != made)
    if reader.op == "Sub":
        bias = _constant(editor, f"{bias_name}.negative", shift)
        if bias is not None:
            editor.change(reader, "Add", [made, bias])
        return product if bias is not None else None
    following = editor.only_reader(reader.outputs[0])
    if following is None:
        return None
    scale, more = (part(editor, following, reader.outputs[0], columns) for part in (_scale, _shift))
    if scale is not None:
        scaled = _constant(editor, f"{weight_name}.scaled", weight.astype(np.float64) * scale)
        bias = _constant(editor, f"{bias_name}.scaled", shift * scale)
        if scaled is None or bias is None:
            return None
        product = editor.read(product, [source, scaled])
    elif more is not None:
        bias = _constant(editor, f"{bias_name}.shifted", shift + more)
        if bias is None:
            return None
    else:
        return None
    editor.change(following, "Add", [made, bias])
    editor.remove([reader.outputs[0]])
    return product


def _fold_before(editor: Editor, product: Node) -> Node | None:
    """Fold what the product reads; gives the product as it is then, None when there is nothing to fold."""
    name, weight_name = product.inputs
    weight = editor.array(weight_name)
    before = editor.maker(name)
    if weight is None or before is None or editor.only_reader(name) is None:
        return None
    source = varying_input(editor, before)
    if source is None:
        return None
    depth = weight.shape[0]
    scale, shift = (part(editor, before, source, depth) for part in (_scale, _shift))
    if scale is not None:
        scaled = _constant(editor, f"{weight_name}.scaled", weight * scale[:, None])
        if scaled is None:
            return None
        # A shift before the scale is one of the scaled values behind it.
        inner = editor.maker(source)
        origin = varying_input(editor, inner) if inner is not None and editor.only_reader(source) else None
        shift = _shift(editor, inner, origin, depth) if origin is not None else None
        bias = _shift_bias(editor, weight_name, None if shift is None else shift * scale)
        if origin is not None and bias is not None:
            return _put_behind(editor, product, origin, scaled, bias, [name, source])
        changed = editor.read(product, [source, scaled])
        editor.remove([name])
        return changed
    scaling = editor.maker(source)
    origin = varying_input(editor, scaling) if scaling is not None else None
    is_scaled = origin is not None and _scale(editor, scaling, origin, depth) is not None
    bias = _shift_bias(editor, weight_name, shift) if is_scaled else None
    return None if bias is None else _put_behind(editor, product, source, weight_name, bias, [name])


def _shift_bias(editor: Editor, weight_name: str, shift: Row | None) -> str | None:
    """What a shift of scaled values adds to the product; None where it is none, or too large."""
    weight = editor.array(weight_name)
    if weight is None or shift is None or np.abs(shift).max(initial=0.0) > _MOST_SHIFT:
        return None
    return _constant(editor, f"{weight_name}.shift", shift @ weight.astype(np.float64))


def _put_behind(
    editor: Editor, product: Node, source: str, weight_name: str, bias: str, removed: Sequence[str]
) -> Node | None:
    """Let the product read ``source``, and add the bias to its result."""
    bare = editor.add("MatMul", [source, weight_name], before=product)
    editor.change(product, "Add", [bare, bias])
    editor.remove(removed)
    return editor.maker(bare)


def _constant(editor: Editor, name: str, array: Row) -> str | None:
    """The name of a float32 constant; None where rounding makes a number infinite or too small to keep."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.ascontiguousarray(array, dtype=np.float32)
    is_lost = (np.abs(rounded) < _FLOAT32.tiny) & (array != 0)
    if not np.isfinite(rounded).all() or is_lost.any():
        return None
    return editor.constant(name, rounded)
