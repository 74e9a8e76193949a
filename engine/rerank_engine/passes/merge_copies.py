"""Copies of copies merge, and copies that put back together what was cut go away.

    Reshape ─▶ Reshape                      becomes    one Reshape
    Expand ─▶ Expand                        becomes    one Expand
    Slice(x, a:b), Slice(x, b:c) ─▶ Concat  becomes    Slice(x, a:c)
    Slice of everything, Concat of one      becomes    Identity

A value that others read, or that is an output, stays beside what it is merged into.
"""

from __future__ import annotations

from rerank_engine.graph import Graph, Node, shape_attribute
from rerank_engine.ops import attribute
from rerank_engine.passes.editing import Editor


def merge_copies(graph: Graph) -> Graph:
    """Merge what changes no number; values that others read, and outputs, stay."""
    editor = Editor(graph)
    for node in editor.nodes():
        if not editor.has(node):
            continue
        if node.op in ("Reshape", "Expand"):
            _merge_same(editor, node)
        elif node.op == "Slice" and _is_whole(editor, node):
            editor.change(node, "Identity", node.inputs)
        elif node.op == "Concat":
            _join(editor, node)
    return editor.finish()


def _merge_same(editor: Editor, node: Node) -> None:
    earlier = editor.maker(node.inputs[0], node.op)
    if earlier is None:
        return
    attributes = {"shape": shape_attribute(editor.shape(node.outputs[0]))}
    editor.change(node, node.op, earlier.inputs, attributes)
    _drop_unread(editor, earlier)


def _range(editor: Editor, node: Node | None) -> tuple[str, int, int, int] | None:
    """Source, axis, start and stop of a slice with step 1 inside a dimension of known size."""
    if node is None or node.op != "Slice" or attribute(node, "step") != 1:
        return None
    shape = editor.shape(node.inputs[0])
    axis = node.attributes["axis"] % len(shape)
    size, count = shape[axis], editor.shape(node.outputs[0])[axis]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    start = node.attributes["start"]
    start += size if start < 0 else 0
    return node.inputs[0], axis, start, start + count


def _is_whole(editor: Editor, node: Node) -> bool:
    is_plain = node.attributes["start"] == 0 and attribute(node, "step") == 1
    return is_plain and editor.shape(node.inputs[0]) == editor.shape(node.outputs[0])


def _join(editor: Editor, node: Node) -> None:
    """Replace slices that continue each other by one slice of their source."""
    axis = node.attributes["axis"] % len(editor.shape(node.outputs[0]))
    parts: list[tuple[str, tuple[str, int, int, int] | None]] = []
    slices: list[Node] = []
    for name in node.inputs:
        maker = editor.maker(name)
        found = _range(editor, maker)
        if found is not None and found[1] != axis:
            found = None
        previous = parts[-1][1] if parts else None
        if found and previous and maker and (previous[0], previous[3]) == (found[0], found[2]):
            before = editor.maker(parts[-1][0])
            slices += [entry for entry in (before, maker) if entry is not None]
            parts[-1] = ("", (*previous[:3], found[3]))
        else:
            parts.append((name, found))
    if len(parts) == len(node.inputs):
        if len(parts) == 1:
            editor.change(node, "Identity", node.inputs)
        return
    names = []
    for name, joined in parts:
        if name or joined is None:
            names.append(name)
            continue
        source, _, start, stop = joined
        whole = start == 0 and stop == editor.shape(source)[axis]
        cut = {"axis": axis, "start": start, "stop": stop}
        names.append(source if whole else editor.add("Slice", [source], cut, before=node))
    if len(names) == 1:
        editor.change(node, "Identity", names)
    else:
        editor.change(node, "Concat", names, {"axis": axis})
    for entry in slices:
        _drop_unread(editor, entry)


def _drop_unread(editor: Editor, node: Node) -> None:
    (name,) = node.outputs
    if editor.has(node) and not editor.readers(name) and name not in editor.outputs:
        editor.remove([name])
