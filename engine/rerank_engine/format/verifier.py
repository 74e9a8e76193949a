"""A verifier for FlatBuffers: the Python runtime follows every offset it is given, so they are checked first.

The schema is data here (:data:`MODEL_SCHEMA`, the same as ``model.fbs``), and one walker checks a buffer
against it: each offset, vtable, vector, string and union lies inside the buffer, is aligned and has the
declared type. Every field of the schema is required. After :func:`verify_buffer` the generated accessors
cannot leave the buffer.

The format is FlatBuffers' own: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from rerank_engine.format.layout import Source

MAX_DEPTH = 16
"""Deepest nesting of tables."""

MAX_TABLES = 300_000
"""Most tables in one buffer."""

FILE_IDENTIFIER = b"RRM2"

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16_PAIR = struct.Struct("<HH")
_U32_BYTES = 4
_VTABLE_HEAD_BYTES = 4


@dataclass(frozen=True)
class Scalar:
    """A number of ``width`` bytes. ``largest`` bounds a one-byte kind, as 1 does for a bool."""

    width: int
    largest: int | None = None


@dataclass(frozen=True)
class Text:
    """UTF-8 with a closing NUL."""


@dataclass(frozen=True)
class Table:
    """A reference to a table, by its name in the schema."""

    name: str


@dataclass(frozen=True)
class Union:
    """A type number (one slot) and a reference to the member table of that number (the next slot)."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class Vector:
    """A counted sequence."""

    of: Scalar | Text | Table


Kind = Scalar | Text | Table | Union | Vector
Schema = Mapping[str, Mapping[str, Kind]]
"""Table name to field name to kind, in the order of the slots."""

_BOOL = Scalar(1, largest=1)
_U8, _U16, _U32_KIND, _U64 = Scalar(1), Scalar(2), Scalar(4), Scalar(8)
_TEXT = Text()
_INDICES = Vector(_U32_KIND)

MODEL_SCHEMA: Schema = {
    "DimensionName": {"name": _TEXT, "maximum": _U64},
    "Term": {"coefficient": _U64, "names": _INDICES},
    "Dimension": {"terms": Vector(Table("Term"))},
    "Value": {"name": _TEXT, "dtype": _U8, "shape": Vector(_U64)},
    "BoolAttribute": {"value": _BOOL},
    "IntAttribute": {"value": _U64},
    "FloatAttribute": {"value": _U64},
    "StringAttribute": {"value": _TEXT},
    "BoolsAttribute": {"value": Vector(_BOOL)},
    "IntsAttribute": {"value": Vector(_U64)},
    "FloatsAttribute": {"value": Vector(_U64)},
    "StringsAttribute": {"value": Vector(_TEXT)},
    "Attribute": {
        "name": _TEXT,
        "value": Union(
            (
                "BoolAttribute",
                "IntAttribute",
                "FloatAttribute",
                "StringAttribute",
                "BoolsAttribute",
                "IntsAttribute",
                "FloatsAttribute",
                "StringsAttribute",
            )
        ),
    },
    "Node": {
        "op": _TEXT,
        "op_version": _U16,
        "name": _TEXT,
        "inputs": _INDICES,
        "outputs": _INDICES,
        "attributes": Vector(Table("Attribute")),
    },
    "Input": {"value": _U32_KIND, "vocabulary": _U64, "out_of_range": _U8, "unknown_row": _U64},
    "Constant": {"value": _U32_KIND, "byte_offset": _U64, "byte_size": _U64},
    "SampleArray": {"value": _U32_KIND, "shape": Vector(_U64), "byte_offset": _U64, "byte_size": _U64},
    "Sample": {"inputs": Vector(Table("SampleArray")), "outputs": Vector(Table("SampleArray")), "tolerance": _U64},
    "Metadata": {"key": _TEXT, "value": _TEXT},
    "Graph": {
        "name": _TEXT,
        "dimension_names": Vector(Table("DimensionName")),
        "dimensions": Vector(Table("Dimension")),
        "values": Vector(Table("Value")),
        "inputs": Vector(Table("Input")),
        "outputs": _INDICES,
        "nodes": Vector(Table("Node")),
        "constants": Vector(Table("Constant")),
        "samples": Vector(Table("Sample")),
        "metadata": Vector(Table("Metadata")),
    },
}


def verify_buffer(
    buffer: bytes,
    source: Source,
    *,
    schema: Schema = MODEL_SCHEMA,
    root: str = "Graph",
    identifier: bytes = FILE_IDENTIFIER,
    unknown_fields: bool = False,
) -> None:
    """Check that ``buffer`` is a well-formed FlatBuffers buffer of ``schema``.

    Time and memory are linear in the size of the buffer: objects that share bytes are refused once their
    sizes together exceed the buffer's, so a small buffer cannot stand for a huge tree.

    Parameters
    ----------
    buffer
        The whole section.
    source
        For messages.
    schema, root, identifier
        What is expected.
    unknown_fields
        Allow further fields behind the known ones: the file is of a newer minor version.

    Raises
    ------
    ModelFileError
        Names the path of the offending object, such as ``section GRAPH, nodes[3].attributes[0].name``.

    Examples
    --------
    >>> verify_buffer(b"too short", Source("a.rrm"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rerank_engine.errors.ModelFileError: a.rrm: section GRAPH, root: identifier b'shor', expected b'RRM2'; ...
    """
    _Walker(buffer, source, schema, unknown_fields).root(root, identifier)


class _Walker:
    """Walks one buffer; every method checks before it reads."""

    def __init__(self, buffer: bytes, source: Source, schema: Schema, unknown_fields: bool) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.source = source
        self.schema = schema
        self.unknown_fields = unknown_fields
        self.unspent_bytes = len(buffer)
        self.tables = 0

    def fail(self, path: str, problem: str) -> NoReturn:
        raise self.source.damaged(f"section GRAPH, {path}", problem)

    def root(self, name: str, identifier: bytes) -> None:
        self.inside(0, 8, 1, "root")
        if (found := self.buffer[4:8]) != identifier:
            self.fail("root", f"identifier {found!r}, expected {identifier!r}")
        self.table(self.follow(0, "root"), name, "root", depth=1)

    def inside(self, position: int, size: int, alignment: int, path: str) -> None:
        """Check that ``size`` bytes at ``position`` lie in the buffer, aligned."""
        if position < 0 or position + size > self.size:
            self.fail(path, f"bytes {position} to {position + size} of a section of {self.size} bytes")
        if position % alignment:
            self.fail(path, f"byte {position} is not {alignment}-byte aligned")

    def spend(self, size: int, path: str) -> None:
        self.unspent_bytes -= size
        if self.unspent_bytes < 0:
            self.fail(path, "objects overlap: together they are larger than the section")

    def follow(self, position: int, path: str) -> int:
        """Resolve the reference at ``position``, which is known to be inside."""
        (offset,) = _U32.unpack_from(self.buffer, position)
        if offset == 0:
            self.fail(path, "null reference")
        return int(position + offset)

    def table(self, position: int, name: str, path: str, depth: int) -> None:
        self.tables += 1
        if self.tables > MAX_TABLES:
            self.fail(path, f"more than {MAX_TABLES} tables")
        if depth > MAX_DEPTH:
            self.fail(path, f"tables nested deeper than {MAX_DEPTH}")
        fields = self.schema[name]
        slots, table_size = self.vtable(position, fields, path)
        slot = 0
        for field_name, kind in fields.items():
            field_path = f"{path}.{field_name}" if path != "root" else field_name
            width = kind.width if isinstance(kind, Scalar) else _U32_BYTES
            if isinstance(kind, Union):
                at = self.field(position, table_size, slots[slot], 1, f"{field_path} (type)")
                member = self.member(self.buffer[at], kind, field_path)
                slot += 1
                at = self.field(position, table_size, slots[slot], width, field_path)
                self.table(self.follow(at, field_path), member, field_path, depth + 1)
            else:
                at = self.field(position, table_size, slots[slot], width, field_path)
                self.content(at, kind, field_path, depth)
            slot += 1

    def vtable(self, position: int, fields: Mapping[str, Kind], path: str) -> tuple[tuple[int, ...], int]:
        """Check a table's frame and return the known slots, zero where absent, and the table's size."""
        self.inside(position, _U32_BYTES, _U32_BYTES, path)
        vtable = position - _I32.unpack_from(self.buffer, position)[0]
        self.inside(vtable, _VTABLE_HEAD_BYTES, 2, f"{path} (vtable)")
        vtable_size, table_size = _U16_PAIR.unpack_from(self.buffer, vtable)
        known = len(fields) + sum(isinstance(kind, Union) for kind in fields.values())
        if vtable_size < _VTABLE_HEAD_BYTES or vtable_size % 2:
            self.fail(path, f"vtable of {vtable_size} bytes")
        if table_size < _U32_BYTES:
            self.fail(path, f"table of {table_size} bytes")
        self.inside(vtable, vtable_size, 2, f"{path} (vtable)")
        self.inside(position, table_size, _U32_BYTES, path)
        self.spend(table_size, path)
        count = (vtable_size - _VTABLE_HEAD_BYTES) // 2
        if count > known and not self.unknown_fields:
            self.fail(path, f"{count} fields, expected {known}")
        present = min(count, known)
        slots = struct.unpack_from(f"<{present}H", self.buffer, vtable + _VTABLE_HEAD_BYTES)
        return slots + (0,) * (known - present), table_size

    def field(self, position: int, table_size: int, offset: int, width: int, path: str) -> int:
        """Check one slot and return where its bytes are."""
        if offset == 0:
            self.fail(path, "required, but absent")
        if offset < _U32_BYTES or offset + width > table_size:
            self.fail(path, f"bytes {offset} to {offset + width} of a table of {table_size} bytes")
        if (position + offset) % width:
            self.fail(path, f"byte {position + offset} is not {width}-byte aligned")
        return position + offset

    def member(self, number: int, kind: Union, path: str) -> str:
        if not 1 <= number <= len(kind.members):
            self.fail(path, f"union type {number}, expected 1 to {len(kind.members)}")
        return kind.members[number - 1]

    def content(self, at: int, kind: Scalar | Text | Table | Vector, path: str, depth: int) -> None:
        if isinstance(kind, Scalar):
            if kind.largest is not None and self.buffer[at] > kind.largest:
                self.fail(path, f"{self.buffer[at]}, expected at most {kind.largest}")
        elif isinstance(kind, Text):
            self.text(self.follow(at, path), path)
        elif isinstance(kind, Table):
            self.table(self.follow(at, path), kind.name, path, depth + 1)
        else:
            self.vector(self.follow(at, path), kind.of, path, depth)

    def text(self, position: int, path: str) -> None:
        self.inside(position, _U32_BYTES, _U32_BYTES, path)
        (length,) = _U32.unpack_from(self.buffer, position)
        start = position + _U32_BYTES
        self.inside(start, length + 1, 1, path)
        self.spend(_U32_BYTES + length + 1, path)
        if self.buffer[start + length] != 0:
            self.fail(path, "text without its closing NUL")
        try:
            self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            self.fail(path, f"text is not UTF-8: {error.reason} at byte {error.start}")

    def vector(self, position: int, of: Scalar | Text | Table, path: str, depth: int) -> None:
        width = of.width if isinstance(of, Scalar) else _U32_BYTES
        self.inside(position, _U32_BYTES, _U32_BYTES, path)
        (count,) = _U32.unpack_from(self.buffer, position)
        start = position + _U32_BYTES
        self.inside(start, count * width, 1, path)
        if start % width and count:
            self.fail(path, f"elements at byte {start} are not {width}-byte aligned")
        self.spend(_U32_BYTES + count * width, path)
        if isinstance(of, Scalar):
            if of.largest is not None and max(self.buffer[start : start + count], default=0) > of.largest:
                self.fail(path, f"an element is larger than {of.largest}")
        elif isinstance(of, Text):
            for index in range(count):
                element = f"{path}[{index}]"
                self.text(self.follow(start + index * width, element), element)
        elif isinstance(of, Table):
            for index in range(count):
                element = f"{path}[{index}]"
                self.table(self.follow(start + index * width, element), of.name, element, depth + 1)
