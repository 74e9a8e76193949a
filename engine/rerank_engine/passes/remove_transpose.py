"""Transposes merge, cancel, or turn out to move nothing.

    Transpose ─▶ Transpose                      becomes    one Transpose, or nothing
    Transpose that only moves dimensions of one becomes    Reshape, which costs nothing
    Transpose ─▶ Mul ─▶ Relu ─▶ Transpose       becomes    Mul ─▶ Relu, where the second undoes the first
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rerank_engine.graph import Graph, Node, shape_attribute
from rerank_engine.ops import lookup
from rerank_engine.passes.editing import Editor

_MOST = 32
"""Elementwise operators through which a transpose is followed."""


def remove_transpose(graph: Graph) -> Graph:
    """Rewrite every transpose that need not move elements, or not twice."""
    editor = Editor(graph)
    for node in editor.nodes():
        if node.op == "Transpose" and editor.has(node):
            _simplify(editor, node)
    return editor.finish()


def _simplify(editor: Editor, node: Node) -> None:
    perm = tuple(node.attributes["perm"])
    earlier = editor.maker(node.inputs[0], "Transpose")
    if earlier is not None:
        inner = earlier.attributes["perm"]
        perm = tuple(inner[axis] for axis in perm)
        node = editor.change(node, "Transpose", earlier.inputs, {"perm": perm})
        _drop_unread(editor, earlier.outputs[0])
    if perm == tuple(range(len(perm))):
        editor.change(node, "Identity", node.inputs)
        return
    shape = editor.shape(node.inputs[0])
    moved = [axis for axis in perm if shape[axis] != 1]
    if moved == sorted(moved):
        attributes = {"shape": shape_attribute(editor.shape(node.outputs[0]))}
        editor.change(node, "Reshape", node.inputs, attributes)
        return
    _cancel(editor, node, perm)


def _cancel(editor: Editor, node: Node, perm: Sequence[int]) -> None:
    """Take the transpose off where what it reads was made elementwise from transposes that it undoes."""
    source, inside = node.inputs[0], dict[str, Node]()
    undone = tuple(int(axis) for axis in np.argsort(perm))
    if not _collect(editor, source, undone, inside) or not inside or not editor.are_private(inside, node):
        return
    transposes: list[str] = []
    for member in (member for member in editor.nodes() if member.outputs[0] in inside):
        inputs = [name if name in inside else _undone(editor, name, perm) for name in member.inputs]
        transposes += (old for old, new in zip(member.inputs, inputs, strict=True) if old != new)
        editor.read(member, inputs)
    editor.change(node, "Identity", [source])
    for name in dict.fromkeys(transposes):
        _drop_unread(editor, name)


def _collect(editor: Editor, name: str, undone: Sequence[int], inside: dict[str, Node]) -> bool:
    """Whether ``name`` can be had before it was transposed; gathers the elementwise nodes that make it."""
    if name in inside or editor.array(name) is not None or not editor.shape(name):
        return True
    node = editor.maker(name)
    if node is None or len(editor.shape(name)) != len(undone):
        return False
    if node.op == "Transpose":
        return tuple(node.attributes["perm"]) == tuple(undone)
    if lookup(node).pointwise is None or node.op == "Expand" or len(inside) == _MOST:
        return False
    inside[name] = node
    return all(_collect(editor, entry, undone, inside) for entry in node.inputs)


def _undone(editor: Editor, name: str, perm: Sequence[int]) -> str:
    """A transposed value before it was, or a constant as it stands beside it."""
    array = editor.array(name)
    if array is None:
        node = editor.maker(name, "Transpose")
        return node.inputs[0] if node is not None else name
    if array.size == 1 and array.ndim <= len(perm):
        return name
    wide = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return editor.constant(f"{name}.transposed", np.ascontiguousarray(wide.transpose(perm)))


def _drop_unread(editor: Editor, name: str) -> None:
    node = editor.maker(name, "Transpose")
    if node is not None and not editor.readers(name) and name not in editor.outputs:
        editor.remove([name])
