"""A small reader of FlatBuffers that checks every offset before it follows it.

The Python runtime of FlatBuffers follows whatever a file says, backwards and past the end too. A reader of tables
whose slots are looked up by number is all that is needed here, and it is short enough to check each step.

The format: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct

from rerank_engine.errors import ConversionError

_FORMATS = {
    "bool": struct.Struct("<B"),
    "i8": struct.Struct("<b"),
    "u8": struct.Struct("<B"),
    "u16": struct.Struct("<H"),
    "i32": struct.Struct("<i"),
    "u32": struct.Struct("<I"),
    "i64": struct.Struct("<q"),
    "u64": struct.Struct("<Q"),
    "f32": struct.Struct("<f"),
}
_REFERENCE_BYTES = 4
_VTABLE_HEAD_BYTES = 4
_SLOT_BYTES = 2
_READS_PER_BYTE = 4
_READS_ALLOWANCE = 65_536


class Buffer:
    """The bytes of a file, and how much may still be read from them.

    Parts of a file may be shared, so a small damaged file could describe a huge model. Each part of a sound file is
    read about once; the number of reads is therefore bounded by the number of bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self._reads_left = _READS_PER_BYTE * len(data) + _READS_ALLOWANCE

    def charge(self, reads: int) -> None:
        """Count reads; more than a sound file can need stops the conversion."""
        self._reads_left -= reads
        if self._reads_left < 0:
            raise ConversionError("the file is damaged: it refers to its own parts over and over")

    def number(self, kind: str, position: int) -> int | float:
        """Read one number, or raise when it is not inside the file."""
        form = _FORMATS[kind]
        if not 0 <= position <= len(self.data) - form.size:
            raise ConversionError(f"the file is damaged: it refers to byte {position}, which it does not have")
        value: int | float = form.unpack_from(self.data, position)[0]
        return value

    def integer(self, kind: str, position: int) -> int:
        """Read one whole number."""
        return int(self.number(kind, position))

    def span(self, position: int, size: int) -> memoryview:
        """Bytes of the file, without a copy."""
        if position < 0 or size < 0 or position + size > len(self.data):
            raise ConversionError(
                f"the file is damaged: it refers to {size} bytes at {position}, and has {len(self.data)}"
            )
        return self.data[position : position + size]

    def follow(self, position: int) -> int:
        """Follow a reference, which is forward and never zero."""
        offset = self.integer("u32", position)
        if offset == 0:
            raise ConversionError(f"the file is damaged: an empty reference at byte {position}")
        return position + offset


class Table:
    """One table; its slots are read by number.

    Parameters
    ----------
    buffer
        The file.
    position
        Where the table starts.
    """

    def __init__(self, buffer: Buffer, position: int) -> None:
        buffer.charge(1)
        self._buffer = buffer
        self._position = position
        self._vtable = position - buffer.integer("i32", position)
        size = buffer.integer("u16", self._vtable)
        if size < _VTABLE_HEAD_BYTES or size % _SLOT_BYTES:
            raise ConversionError(f"the file is damaged: a table at byte {position} has no sound list of slots")
        buffer.span(self._vtable, size)
        self._slots = (size - _VTABLE_HEAD_BYTES) // _SLOT_BYTES

    @classmethod
    def root(cls, buffer: Buffer) -> Table:
        """Table that the file starts with."""
        return cls(buffer, buffer.follow(0))

    def used_slots(self) -> list[int]:
        """Numbers of the slots that the file fills."""
        self._buffer.charge(self._slots)
        return [slot for slot in range(self._slots) if self._find(slot) is not None]

    def number(self, slot: int, kind: str, default: int | float = 0) -> int | float:
        """Read a number, or its default."""
        position = self._find(slot)
        return default if position is None else self._buffer.number(kind, position)

    def integer(self, slot: int, kind: str, default: int = 0) -> int:
        """Read a whole number, or its default."""
        return int(self.number(slot, kind, default))

    def text(self, slot: int) -> str:
        """Read a string; without one it is empty."""
        found = self._vector(slot, 1)
        if found is None:
            return ""
        start, count = found
        try:
            return bytes(self._buffer.span(start, count)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConversionError(f"the file is damaged: a name at byte {start} is no UTF-8") from error

    def data(self, slot: int) -> memoryview | None:
        """Bytes of a vector of bytes, or None."""
        found = self._vector(slot, 1)
        return None if found is None else self._buffer.span(*found)

    def numbers(self, slot: int, kind: str) -> tuple[int | float, ...] | None:
        """Read a vector of numbers, or None."""
        form = _FORMATS[kind]
        found = self._vector(slot, form.size)
        if found is None:
            return None
        start, count = found
        self._buffer.charge(count)
        return tuple(entry[0] for entry in form.iter_unpack(self._buffer.span(start, count * form.size)))

    def integers(self, slot: int, kind: str = "i32") -> tuple[int, ...] | None:
        """Read a vector of whole numbers, or None."""
        found = self.numbers(slot, kind)
        return None if found is None else tuple(int(entry) for entry in found)

    def table(self, slot: int) -> Table | None:
        """Table behind a slot, or None."""
        position = self._find(slot)
        return None if position is None else Table(self._buffer, self._buffer.follow(position))

    def tables(self, slot: int) -> list[Table]:
        """Tables of a vector; without one the list is empty."""
        found = self._vector(slot, _REFERENCE_BYTES)
        if found is None:
            return []
        start, count = found
        self._buffer.charge(count)
        places = range(start, start + count * _REFERENCE_BYTES, _REFERENCE_BYTES)
        return [Table(self._buffer, self._buffer.follow(place)) for place in places]

    def _find(self, slot: int) -> int | None:
        if slot >= self._slots:
            return None
        offset = self._buffer.integer("u16", self._vtable + _VTABLE_HEAD_BYTES + slot * _SLOT_BYTES)
        return self._position + offset if offset else None

    def _vector(self, slot: int, width: int) -> tuple[int, int] | None:
        position = self._find(slot)
        if position is None:
            return None
        start = self._buffer.follow(position)
        count = self._buffer.integer("u32", start)
        self._buffer.span(start + _REFERENCE_BYTES, count * width)
        return start + _REFERENCE_BYTES, count
