"""Attention that exporters spelled out becomes one operator, which stores no matrix of scores.

    MatMul(q, k) ─▶ Mul(·, scale) ─▶ Add(·, mask) ─▶ Softmax ─▶ MatMul(·, v)
becomes
    Attention(q, k, v, mask; scale)

A scale may also stand on the queries or on the keys, on either side of the keys' transpose. A ``Where`` behind the mask
replaces scores, and one behind the softmax replaces weights that are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank_engine.graph import Graph, Node
from rerank_engine.ops import attribute
from rerank_engine.passes.editing import Editor, varying_input
from rerank_engine.passes.expressions import FLOATS


@dataclass
class _Parts:
    """What was found so far, from the end to the beginning."""

    values: str
    scale: float = 1.0
    mask: str | None = None
    condition: str | None = None
    keeps: bool = True
    fill: float = 0.0
    nan_to_zero: bool = False
    nodes: list[str] = field(default_factory=list)


def fuse_attention(graph: Graph) -> Graph:
    """Fuse each attention whose scores and weights nobody else reads."""
    editor = Editor(graph)
    for node in editor.nodes():
        if node.op == "MatMul" and editor.has(node) and _is_plain(node):
            _fuse(editor, node)
    return editor.finish()


def _is_plain(node: Node) -> bool:
    return len(node.inputs) == 2 and not node.attributes.get("activation")


def _fuse(editor: Editor, root: Node) -> None:
    parts = _Parts(root.inputs[1])
    weights = _through_nan(editor, root.inputs[0], parts)
    softmax = editor.maker(weights, "Softmax")
    if softmax is None or attribute(softmax, "axis") % len(editor.shape(weights)) != len(editor.shape(weights)) - 1:
        return
    parts.nodes.append(weights)
    product = _through_masks(editor, softmax.inputs[0], parts)
    if product is None or not _is_plain(product) or editor.value(product.outputs[0]).dtype not in FLOATS:
        return
    parts.nodes.append(product.outputs[0])
    queries, keys = product.inputs
    # A constant on the right makes it a layer of weights, which its own packing serves better.
    if editor.array(keys) is not None or editor.shape(weights) != editor.shape(product.outputs[0]):
        return
    if not editor.are_private(parts.nodes, root):
        return
    queries = _without_scale(editor, queries, parts, product)
    keys = _without_scale(editor, keys, parts, product)
    inputs = [queries, keys, parts.values]
    inputs += [name for name in (parts.mask, parts.condition) if name is not None]
    attributes: dict[str, Any] = {
        "scale": parts.scale,
        "has_mask": int(parts.mask is not None),
        "nan_to_zero": int(parts.nan_to_zero),
    }
    if parts.condition is not None:
        attributes |= {"condition": "keep" if parts.keeps else "drop", "fill": parts.fill}
    editor.change(root, "Attention", inputs, attributes)
    editor.remove(dict.fromkeys(parts.nodes))


def _through_nan(editor: Editor, name: str, parts: _Parts) -> str:
    """Pass a ``Where`` that makes zeros of NaN."""
    node = editor.maker(name, "Where")
    if node is None:
        return name
    condition, yes, no = node.inputs
    for test, chosen, other, negated in ((condition, yes, no, False), (condition, no, yes, True)):
        nodes = _nan_test(editor, test, other, is_negated=negated)
        if nodes is not None and editor.number(chosen) == 0.0 and editor.shape(other) == editor.shape(name):
            parts.nan_to_zero = True
            parts.nodes += [name, *nodes]
            return other
    return name


def _nan_test(editor: Editor, name: str, tested: str, *, is_negated: bool) -> list[str] | None:
    """The nodes that ask whether a value is NaN (negated: is none); None where they do not."""
    node = editor.maker(name)
    nodes = []
    while node is not None and node.op == "Not":
        nodes.append(node.outputs[0])
        is_negated = not is_negated
        node = editor.maker(node.inputs[0])
    if node is None or set(node.inputs) != {tested}:
        return None
    # What is not equal to itself is NaN.
    is_test = (node.op == "IsNaN" and not is_negated) or (node.op == "Equal" and is_negated)
    return [*nodes, node.outputs[0]] if is_test else None


def _through_masks(editor: Editor, name: str, parts: _Parts) -> Node | None:
    """Pass the steps between product and softmax; gives the product."""
    node = editor.maker(name)
    if node is not None and node.op == "Where" and _take_condition(editor, node, parts):
        parts.nodes.append(name)
        name = node.inputs[1 if parts.keeps else 2]
        node = editor.maker(name)
    while node is not None and node.op != "MatMul":
        factor = _factor(editor, node)
        if factor is not None:
            parts.scale *= factor[1]
            inner = factor[0]
        else:
            # A scale behind the mask would have to scale the mask, too.
            taken = _take_mask(editor, node, parts) if parts.mask is None and parts.scale == 1.0 else None
            if taken is None:
                return None
            inner = taken
        parts.nodes.append(node.outputs[0])
        node = editor.maker(inner)
    return node


def _take_condition(editor: Editor, node: Node, parts: _Parts) -> bool:
    """A ``Where`` between scores and one number that hides them."""
    condition, yes, no = node.inputs
    for scores, other, keeps in ((yes, no, True), (no, yes, False)):
        array = editor.array(other)
        is_fill = array is not None and array.size == 1 and not np.isnan(array).any()
        if is_fill and array is not None and editor.shape(scores) == editor.shape(node.outputs[0]):
            parts.condition, parts.keeps, parts.fill = condition, keeps, float(array.item())
            return True
    return False


def _take_mask(editor: Editor, node: Node, parts: _Parts) -> str | None:
    """What is added to the scores; gives the scores."""
    shape = editor.shape(node.outputs[0])
    for scores, mask in (node.inputs, node.inputs[::-1]) if node.op == "Add" else ():
        if editor.shape(scores) == shape and _leads_to_product(editor, scores):
            parts.mask = mask
            return scores
    return None


def _leads_to_product(editor: Editor, name: str) -> bool:
    """Whether scales alone lie between a product of two computed matrices and a value."""
    node = editor.maker(name)
    while node is not None and (factor := _factor(editor, node)) is not None:
        node = editor.maker(factor[0])
    return node is not None and node.op == "MatMul" and editor.array(node.inputs[1]) is None


def _factor(editor: Editor, node: Node) -> tuple[str, float] | None:
    """What a node multiplies by a number, and the number."""
    source = varying_input(editor, node) if node.op in ("Mul", "Div") else None
    if source is None:
        return None
    number = editor.number(next(name for name in node.inputs if name != source))
    if number is None or (node.op == "Div" and number == 0):
        return None
    return source, number if node.op == "Mul" else 1.0 / number


def _without_scale(editor: Editor, name: str, parts: _Parts, reader: Node) -> str:
    """Take a scale that only this product reads from queries or keys, also from before their transpose."""
    while (node := editor.maker(name)) is not None and _is_read_by(editor, name, reader):
        factor = _factor(editor, node)
        if factor is None:
            break
        parts.scale *= factor[1]
        parts.nodes.append(name)
        name, reader = factor[0], node
    turned = editor.maker(name, "Transpose", "Reshape")
    if turned is not None and _is_read_by(editor, name, reader):
        inner = editor.maker(turned.inputs[0])
        factor = _factor(editor, inner) if inner is not None else None
        if inner is not None and factor is not None and _is_read_by(editor, turned.inputs[0], turned):
            parts.scale *= factor[1]
            editor.read(turned, [factor[0]])
            editor.remove([inner.outputs[0]])
    return name


def _is_read_by(editor: Editor, name: str, reader: Node) -> bool:
    only = editor.only_reader(name)
    return only is not None and only.outputs == reader.outputs
