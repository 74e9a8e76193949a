"""Universal Binary JSON, as XGBoost writes it.

Format: https://ubjson.org, draft 12, with big-endian numbers and 64-bit lengths. Typed arrays of numbers become NumPy
arrays. What a count promises must be there in bytes, so a small file cannot ask for much memory.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError

_DEEPEST = 64
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_LENGTHS = "iUIlL"
_CONSTANTS = {"Z": None, "T": True, "F": False}


def parse_ubjson(data: bytes) -> Any:
    r"""Parse a document.

    Parameters
    ----------
    data
        The whole document.

    Returns
    -------
    object
        Dictionaries, lists, texts, numbers, None, and arrays for typed lists of numbers.

    Raises
    ------
    ConversionError
        It is cut off, garbled, nested too deeply, or followed by something else.

    Examples
    --------
    >>> parse_ubjson(b"{U\x01aSU\x02okU\x01b[$U#U\x02\x07\x08}")
    {'a': 'ok', 'b': array([7, 8], dtype=uint8)}
    """
    reader = _Reader(data)
    value = reader.value(reader.marker(), 0)
    if reader.position != len(data):
        raise reader.bad("something follows the end of the document")
    return value


class _Reader:
    """Reads from a position onwards; every read checks what is left."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def bad(self, what: str) -> ConversionError:
        return ConversionError(f"UBJSON, byte {self.position}: {what}; the model is damaged")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise self.bad(f"{size} bytes are expected, {len(self.data) - self.position} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    def marker(self) -> str:
        """The next marker; no-operation markers are passed over."""
        found = self.take(1)
        while found == b"N":
            found = self.take(1)
        return found.decode("latin-1")

    def peek(self) -> str:
        return self.data[self.position : self.position + 1].decode("latin-1")

    def value(self, marker: str, depth: int) -> Any:
        if marker in _NUMBERS:
            return self.number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == "S":
            return self.text()
        if marker == "C":
            return self.take(1).decode("latin-1")
        if marker in "[{" and marker:
            if depth == _DEEPEST:
                raise self.bad(f"nested deeper than {_DEEPEST}")
            return self.list(depth + 1) if marker == "[" else self.object(depth + 1)
        raise self.bad(f"unknown marker {marker!r}")

    def number(self, marker: str) -> int | float:
        kind = np.dtype(_NUMBERS[marker])
        (number,) = struct.unpack(f">{kind.char}" if marker != "L" else ">q", self.take(kind.itemsize))
        return number

    def length(self) -> int:
        marker = self.marker()
        if marker not in _LENGTHS:
            raise self.bad(f"marker {marker!r} where a length is expected")
        length = self.number(marker)
        if length < 0:
            raise self.bad(f"negative length {length}")
        return int(length)

    def text(self) -> str:
        try:
            return self.take(self.length()).decode()
        except UnicodeDecodeError as error:
            raise self.bad(f"a text is not UTF-8: {error.reason}") from None

    def frame(self) -> tuple[str, int | None]:
        """Type and count of a container, where it has them."""
        kind, count = "", None
        if self.peek() == "$":
            self.take(1)
            kind = self.marker()
            if kind in _CONSTANTS:
                raise self.bad(f"a list of {kind!r} has no bytes")
            if self.peek() != "#":
                raise self.bad("a typed container has no count")
        if self.peek() == "#":
            self.take(1)
            count = self.length()
            if count > len(self.data) - self.position:
                raise self.bad(f"{count} entries are expected, {len(self.data) - self.position} bytes are left")
        return kind, count

    def list(self, depth: int) -> Any:
        kind, count = self.frame()
        if kind in _NUMBERS and count is not None and kind:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        entries: list[Any] = []
        while (marker := self.next_entry(kind, count, len(entries), "]")) != "":
            entries.append(self.value(marker, depth))
        return entries

    def next_entry(self, kind: str, count: int | None, done: int, end: str) -> str:
        """Marker of the next entry of a list; empty at its end."""
        if count is not None:
            return "" if done == count else kind or self.marker()
        marker = self.marker()
        return "" if marker == end else marker

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.frame()
        entries: dict[str, Any] = {}
        while True:
            if count is None:
                while self.peek() == "N":
                    self.take(1)
                if self.peek() == "}":
                    self.take(1)
                    return entries
            elif len(entries) == count:
                return entries
            key = self.text()
            if key in entries:
                raise self.bad(f"key {key!r} occurs twice")
            entries[key] = self.value(kind or self.marker(), depth)
