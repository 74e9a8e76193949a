"""A model file taken apart into plain lists and dictionaries, and put together again with right lengths and hashes.

Both ways follow the schema that the verifier holds as data, so no field can be forgotten. Scalars are their raw
unsigned bits.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import flatbuffers

from rerank_engine.format.layout import HEADER_SIZE, Source, aligned, layout, pack_header, parse_header
from rerank_engine.format.verifier import FILE_IDENTIFIER, MODEL_SCHEMA, Kind, Scalar, Table, Text, Union, Vector

Tree = dict[str, Any]
"""A table: field to scalar, bytes, list, table, or (stated number, member, table) for a union."""

_CODES = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


def sections(data: bytes) -> tuple[bytes, bytes]:
    """GRAPH and WEIGHTS of a sound file."""
    header = parse_header(data, len(data), Source("file"))
    return data[header.graph_offset : header.graph_offset + header.graph_size], data[header.weights_offset :]


def sealed(graph: bytes, weights: bytes, minor_version: int | None = None) -> bytes:
    """A file around two sections, with right lengths, hashes and checksum, so that only their content is in doubt."""
    header = layout(len(graph), len(weights), hashlib.sha256(graph).digest(), hashlib.sha256(weights).digest())
    if minor_version is not None:
        header = header.replace(minor_version=minor_version)
    padding = bytes(aligned(HEADER_SIZE + len(graph)) - HEADER_SIZE - len(graph))
    return pack_header(header) + graph + padding + weights


def explode(section: bytes) -> Tree:
    """Take a sound GRAPH section apart."""
    return _table(section, struct.unpack_from("<I", section)[0], "Graph")


def assemble(tree: Tree) -> bytes:
    """Build a GRAPH section of any content."""
    builder = flatbuffers.Builder(4096)
    builder.ForceDefaults(True)
    builder.Finish(_build_table(builder, tree, "Graph"), file_identifier=FILE_IDENTIFIER)
    return bytes(builder.Output())


def copied(value: Any) -> Any:
    """A deep copy."""
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [copied(entry) for entry in value]
    if isinstance(value, tuple):
        return (*value[:2], copied(value[2]))
    return value


def _table(buffer: bytes, position: int, name: str) -> Tree:
    vtable = position - struct.unpack_from("<i", buffer, position)[0]
    slot = 4
    content: Tree = {}

    def at() -> int:
        nonlocal slot
        offset = struct.unpack_from("<H", buffer, vtable + slot)[0]
        slot += 2
        return int(position + offset)

    for field, kind in MODEL_SCHEMA[name].items():
        if isinstance(kind, Union):
            number = buffer[at()]
            member = kind.members[number - 1]
            content[field] = (number, member, _table(buffer, _follow(buffer, at()), member))
        else:
            content[field] = _value(buffer, at(), kind)
    return content


def _follow(buffer: bytes, position: int) -> int:
    return int(position + struct.unpack_from("<I", buffer, position)[0])


def _value(buffer: bytes, at: int, kind: Kind) -> Any:
    match kind:
        case Scalar(width=width):
            return struct.unpack_from(_CODES[width], buffer, at)[0]
        case Text():
            start = _follow(buffer, at)
            (length,) = struct.unpack_from("<I", buffer, start)
            return buffer[start + 4 : start + 4 + length]
        case Table(name=name):
            return _table(buffer, _follow(buffer, at), name)
        case Vector(of=of):
            start = _follow(buffer, at)
            (count,) = struct.unpack_from("<I", buffer, start)
            width = of.width if isinstance(of, Scalar) else 4
            return [_value(buffer, start + 4 + width * i, of) for i in range(count)]
    raise AssertionError(f"{kind} stands only in tables")


def _build_table(builder: flatbuffers.Builder, tree: Tree, name: str) -> int:
    fields = MODEL_SCHEMA[name]
    references = {
        field: _build(builder, tree[field], kind) for field, kind in fields.items() if not isinstance(kind, Scalar)
    }
    slots = len(fields) + sum(isinstance(kind, Union) for kind in fields.values())
    builder.StartObject(slots)
    slot = 0
    for field, kind in fields.items():
        if isinstance(kind, Scalar):
            _prepend[kind.width](builder)(slot, tree[field], 0)
        else:
            if isinstance(kind, Union):
                builder.PrependUint8Slot(slot, tree[field][0], 0)
                slot += 1
            builder.PrependUOffsetTRelativeSlot(slot, references[field], 0)
        slot += 1
    return int(builder.EndObject())


_prepend: dict[int, Any] = {
    1: lambda builder: builder.PrependUint8Slot,
    2: lambda builder: builder.PrependUint16Slot,
    4: lambda builder: builder.PrependUint32Slot,
    8: lambda builder: builder.PrependUint64Slot,
}


def _build(builder: flatbuffers.Builder, value: Any, kind: Kind) -> int:
    match kind:
        case Text():
            return int(builder.CreateString(value))
        case Table(name=name):
            return _build_table(builder, value, name)
        case Union():
            _, member, content = value
            return _build_table(builder, content, member)
        case Vector(of=Scalar(width=width)):
            builder.StartVector(width, len(value), width)
            packed = b"".join(struct.pack(_CODES[width], entry) for entry in value)
            builder.head = builder.head - len(packed)
            builder.Bytes[builder.head : builder.head + len(packed)] = packed
            return int(builder.EndVector())
        case Vector(of=of):
            entries = [_build(builder, entry, of) for entry in value]
            builder.StartVector(4, len(entries), 4)
            for entry in reversed(entries):
                builder.PrependUOffsetTRelative(entry)
            return int(builder.EndVector())
    raise AssertionError(f"{kind} is no reference")
