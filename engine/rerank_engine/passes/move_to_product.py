"""What is elementwise moves in front of the reshapes and transposes between it and what makes its input.

    MatMul ─▶ Transpose ─▶ Reshape ─▶ Mul(·, s) ─▶ Relu
becomes
    MatMul ─▶ Mul(·, s') ─▶ Relu ─▶ Transpose ─▶ Reshape

A convolution is a product whose result is turned and reshaped. This brings the batch normalisation and the activation
behind it to where the product can take them in (``fold_scale``, ``fuse_matmul``). Any elementwise operator goes that
way in front of a reshape, which costs nothing: with others of its kind it makes one loop there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, Shape
from rerank_engine.ops import lookup
from rerank_engine.ops.matmul import FUSED_ACTIVATIONS
from rerank_engine.passes.editing import Editor

_MOVES = ("Reshape", "Transpose")
_SCALES = ("Mul", "Div", "Add", "Sub")


def move_to_product(graph: Graph) -> Graph:
    """Move what can reach a product with a constant matrix, or another elementwise operator.

    The values in between must have one reader.
    """
    editor = Editor(graph)
    for node in editor.nodes():
        moving: Node | None = node
        while moving is not None and (_reaches_product(editor, moving) or _joins_loop(editor, moving)):
            moving = _swap(editor, moving)
    return editor.finish()


def _source(editor: Editor, node: Node) -> str | None:
    """What an elementwise node works on beside constants, shape kept."""
    if lookup(node).pointwise is None or node.op == "Expand":
        return None
    names = [name for name in node.inputs if editor.array(name) is None]
    is_one = len(names) == 1 and editor.shape(names[0]) == editor.shape(node.outputs[0])
    return names[0] if is_one else None


def _joins_loop(editor: Editor, node: Node) -> bool:
    """Whether a reshape alone lies between a node and an elementwise one or a product."""
    name = _source(editor, node)
    reshape = editor.maker(name, "Reshape") if name is not None else None
    if name is None or reshape is None or editor.only_reader(name) is None:
        return False
    source = reshape.inputs[0]
    maker = editor.maker(source)
    return (
        maker is not None
        and editor.only_reader(source) is not None
        and maker.op != "Expand"
        and (maker.op == "MatMul" or lookup(maker).pointwise is not None)
    )


def _reaches_product(editor: Editor, node: Node) -> bool:
    """Whether moves, at least one of them right before the node, lead back to a product with a constant matrix."""
    name = _source(editor, node) if node.op in (*_SCALES, *FUSED_ACTIVATIONS) else None
    if name is None or editor.maker(name, *_MOVES) is None:
        return False
    while editor.only_reader(name) is not None and (maker := editor.maker(name)) is not None:
        if maker.op == "MatMul":
            weight = editor.array(maker.inputs[1])
            return weight is not None and weight.ndim == 2 and not maker.attributes.get("activation")
        source = _source(editor, maker) if maker.op in _SCALES else None
        if maker.op in _MOVES:
            (source,) = maker.inputs
        if source is None:
            return False
        name = source
    return False


def _swap(editor: Editor, node: Node) -> Node | None:
    """Exchange a node and the move before it; gives the node in its new place, None when it cannot go there."""
    name = _source(editor, node)
    move = editor.maker(name, *_MOVES) if name is not None else None
    if name is None or move is None:
        return None
    (source,) = move.inputs
    inputs = []
    for entry in node.inputs:
        array = editor.array(entry)
        if array is None:
            inputs.append(source)
            continue
        fitting = _before_move(move, array, editor.shape(source), editor.shape(name))
        if fitting is None:
            return None
        inputs.append(editor.constant(f"{entry}.moved", fitting))
    made = editor.add(node.op, inputs, node.attributes, before=move)
    editor.change(node, move.op, [made], move.attributes)
    editor.remove([name])
    return editor.maker(made)


def _before_move(move: Node, array: NDArray[Any], before: Shape, after: Shape) -> NDArray[Any] | None:
    """The constant that does to the value before the move what ``array`` does after it."""
    if array.size == 1:
        return array.reshape(())
    if not before:
        return None
    wide = array.reshape((1,) * (len(after) - array.ndim) + array.shape)
    if move.op == "Transpose":
        return np.ascontiguousarray(wide.transpose(np.argsort(move.attributes["perm"])))
    axes = [axis for axis, size in enumerate(wide.shape) if size != 1]
    axis = _same_axis(axes[0], before, after) if len(axes) == 1 else None
    return None if axis is None else wide.reshape((array.size, *(1 for _ in before[axis + 1 :])))


def _same_axis(axis: int, before: Shape, after: Shape) -> int | None:
    """The axis of one shape that a reshape makes ``axis`` of another; None where it is none of its own."""
    for candidate, dim in enumerate(before):
        if dim == after[axis] and product(before[:candidate]) == product(after[:axis]):
            return candidate
    return None
