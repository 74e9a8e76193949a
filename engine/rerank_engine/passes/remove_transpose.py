"""Transposes merge, cancel, or turn out to move nothing.

    Transpose ─▶ Transpose                      becomes    one Transpose, or nothing
    Transpose that only moves dimensions of one becomes    Reshape, which costs nothing
    Transpose ─▶ Mul ─▶ Relu ─▶ Transpose       becomes    Mul ─▶ Relu, where the second undoes the first
    Transpose ─▶ Reshape ─▶ Transpose           becomes    Transpose ─▶ Reshape, where the reshape joins dimensions

Between two transposes that undo each other, what is elementwise works on the elements as they lay before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, Shape, shape_attribute
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
    node = _pass_reshape(editor, node)
    perm = tuple(node.attributes["perm"])
    earlier = editor.maker(node.inputs[0], "Transpose")
    if earlier is not None:
        inner = earlier.attributes["perm"]
        perm = tuple(inner[axis] for axis in perm)
        node = editor.change(node, "Transpose", earlier.inputs, {"perm": perm})
        _drop_unread(editor, earlier)
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


def _pass_reshape(editor: Editor, node: Node) -> Node:
    """Exchange a transpose with a reshape before it that joins dimensions of another transpose.

    Gives the transpose as it is then: in its new place, if it moved.
    """
    reshape = editor.maker(node.inputs[0], "Reshape")
    if reshape is None or editor.maker(reshape.inputs[0], "Transpose") is None:
        return node
    groups = _joined_axes(editor.shape(reshape.inputs[0]), editor.shape(reshape.outputs[0]))
    if groups is None:
        return node
    perm = tuple(axis for group in node.attributes["perm"] for axis in groups[group])
    made = editor.add("Transpose", reshape.inputs, {"perm": perm}, before=node)
    editor.change(node, "Reshape", [made], {"shape": shape_attribute(editor.shape(node.outputs[0]))})
    _drop_unread(editor, reshape)
    moved = editor.maker(made)
    assert moved is not None, "it was added just now"
    return moved


def _joined_axes(before: Shape, after: Shape) -> list[list[int]] | None:
    """The axes that a reshape joins to each of its own; None where it splits one."""
    groups: list[list[int]] = []
    axis = 0
    for dim in after:
        group: list[int] = []
        while axis < len(before) and product(before[entry] for entry in group) != dim:
            group.append(axis)
            axis += 1
        if product(before[entry] for entry in group) != dim:
            return None
        groups.append(group)
    if not groups or any(before[entry] != 1 for entry in range(axis, len(before))):
        return None
    groups[-1].extend(range(axis, len(before)))
    return groups


def _cancel(editor: Editor, node: Node, perm: Sequence[int]) -> None:
    """Take the transpose off where what it reads was made elementwise from transposes that it undoes."""
    source, inside = node.inputs[0], dict[str, Node]()
    undone = tuple(int(axis) for axis in np.argsort(perm))
    if not _collect(editor, source, undone, inside) or not inside or not editor.are_private(inside, node):
        return
    transposes: list[Node | None] = []
    for member in (member for member in editor.nodes() if member.outputs[0] in inside):
        inputs = [name if name in inside else _undone(editor, name, perm) for name in member.inputs]
        transposes += (editor.maker(name, "Transpose") for name in member.inputs if name not in inside)
        editor.read(member, inputs)
    editor.change(node, "Identity", [source])
    for transpose in transposes:
        _drop_unread(editor, transpose)


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


def _drop_unread(editor: Editor, node: Node | None) -> None:
    if node is None or not editor.has(node):
        return
    (name,) = node.outputs
    if not editor.readers(name) and name not in editor.outputs:
        editor.remove([name])
