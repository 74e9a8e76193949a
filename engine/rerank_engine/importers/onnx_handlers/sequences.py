"""Sequences of tensors, whose length and members are known while importing: they become the tensors themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rerank_engine.graph import Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.importers.positions import cut, given, known_integers, known_shape
from rerank_engine.importers.sequences import joined_of, sequences_of
from rerank_engine.importers.shapes import ShapeValue

if TYPE_CHECKING:
    import onnx

MOST_MEMBERS = 1024
"""A sequence of more tensors than this is refused: each of its members becomes a node."""


def _members(builder: OnnxBuilder, name: str) -> tuple[str, ...]:
    members = sequences_of(builder).get(name)
    if members is None:
        raise builder.refuse(f"the members of sequence {name!r} must be known when the model is converted")
    return members


def _position(builder: OnnxBuilder, name: str, count: int, what: str) -> int:
    (position,) = known_integers(builder, name, what)
    if not -count <= position < count:
        raise builder.refuse(f"{what} {position} is outside a sequence of {count}")
    return position % count


@handles("SequenceEmpty")
def _empty(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({"dtype": 1})
    sequences_of(builder)[node.output[0]] = ()


@handles("SequenceConstruct")
def _construct(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    sequences_of(builder)[node.output[0]] = tuple(builder.value_name(name) for name in node.input)


@handles("SequenceInsert")
def _insert(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    members = _members(builder, node.input[0])
    at = len(members)
    if given(node, 2):
        (at,) = known_integers(builder, node.input[2], "the position")
        if not -len(members) <= at <= len(members):
            raise builder.refuse(f"the position {at} is outside a sequence of {len(members)}")
        at += len(members) if at < 0 else 0
    added = (*members[:at], builder.value_name(node.input[1]), *members[at:])
    if len(added) > MOST_MEMBERS:
        raise builder.refuse(f"a sequence of more than {MOST_MEMBERS} tensors")
    sequences_of(builder)[node.output[0]] = added


@handles("SequenceErase")
def _erase(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    members = _members(builder, node.input[0])
    at = len(members) - 1
    if given(node, 1):
        at = _position(builder, node.input[1], len(members), "the position")
    if not members:
        raise builder.refuse("the sequence is empty")
    sequences_of(builder)[node.output[0]] = members[:at] + members[at + 1 :]


@handles("SequenceAt")
def _at(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    members = _members(builder, node.input[0])
    name = members[_position(builder, node.input[1], len(members), "the position")]
    builder.emit("Identity", [name], output=node.output[0])


@handles("SequenceLength")
def _length(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.shapes[node.output[0]] = ShapeValue((len(_members(builder, node.input[0])),), is_scalar=True)


@handles("SplitToSequence")
def _split(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 0, "keepdims": 1})
    source = builder.value(node.input[0])
    axis = builder.axis(found["axis"], len(source.shape))
    dim = source.shape[axis]
    keeps = bool(found["keepdims"]) or bool(given(node, 1))
    sizes: list[int | Dim]
    if given(node, 1):
        split = known_shape(builder, node.input[1], "the sizes of the parts")
        sizes = list(split.entries)
        if split.is_scalar:
            sizes = _pieces(builder, dim, split.entries[0])
    else:
        sizes = _pieces(builder, dim, 1)
    total: int | Dim = 0
    members = []
    for size in sizes:
        part = cut(builder, source.name, axis, total, total + size)
        total = total + size
        if not keeps:
            part = builder.emit_shaped("Reshape", part, source.shape[:axis] + source.shape[axis + 1 :])
        members.append(part)
    if total != dim or any(isinstance(size, int) and size < 0 for size in sizes):
        raise builder.refuse(f"sizes {', '.join(map(str, sizes))} do not split dimension {dim}")
    sequences_of(builder)[node.output[0]] = tuple(members)


def _pieces(builder: OnnxBuilder, dim: int | Dim, size: int | Dim) -> list[int | Dim]:
    """Pieces of one size and a smaller last one."""
    if size == dim:
        return [size]
    if isinstance(dim, Dim) or isinstance(size, Dim) or size < 1 or -(-dim // size) > MOST_MEMBERS:
        raise builder.refuse(f"cannot tell into how many pieces of {size} dimension {dim} is cut")
    return [min(size, dim - start) for start in range(0, dim, size)]


@handles("ConcatFromSequence")
def _concat(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": None, "new_axis": 0})
    joined = joined_of(builder).get(node.input[0])
    if joined is not None and found == {"axis": 0, "new_axis": 0}:
        builder.emit("Identity", [joined], output=node.output[0])
        return
    members = _members(builder, node.input[0])
    if not members or found["axis"] is None:
        raise builder.refuse("an empty sequence has no tensors to join, and the axis must be given")
    shape = builder.graph.values[members[0]].shape
    axis = builder.axis(found["axis"], len(shape) + (1 if found["new_axis"] else 0))
    names = list(members)
    if found["new_axis"]:
        names = []
        for name in members:
            own = builder.graph.values[name].shape
            names.append(builder.emit_shaped("Reshape", name, (*own[:axis], 1, *own[axis:])))
    if len(names) == 1:
        builder.emit("Identity", names, output=node.output[0])
    else:
        builder.emit("Concat", names, {"axis": axis}, node.output[0])
