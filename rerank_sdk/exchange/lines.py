"""Files of lines, plain or gzip: read with a bound on memory, and written in the same bytes for the same events."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from pydantic_core import from_json

from rerank_engine.errors import DataError
from rerank_features.events import Event
from rerank_sdk.exchange.record import RefusedRecord, json_text, own_fields, shown

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longer lines are refused, and not kept in memory."""

_GZIP_SIGN = b"\x1f\x8b"


class LineFile:
    """The lines of a file.

    Parameters
    ----------
    path
        A file, or a pipe; gzip is recognised by its first bytes.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = path.open("rb")
        is_packed = self._raw.peek(2)[:2] == _GZIP_SIGN
        self._is_file = self._raw.seekable()
        self._stream: IO[bytes] = gzip.GzipFile(fileobj=self._raw, mode="rb") if is_packed else self._raw  # type: ignore[assignment]

    def __iter__(self) -> Iterator[bytes]:
        """Lines with their ends; of a line that is too long, its first :data:`MAX_LINE_BYTES` + 1 bytes.

        Raises
        ------
        DataError
            The file is damaged or cannot be read on.
        """
        number = 0
        try:
            while line := self._stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                rest = line
                while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                    rest = self._stream.readline(MAX_LINE_BYTES + 1)
                yield line
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(
                f"{self.path} cannot be read beyond line {number}: {error}: get the file again; events before it are "
                "kept, and recognised when they come again"
            ) from None

    def done_bytes(self) -> int:
        """Bytes of the file that have been read, packed as they are; 0 of a pipe."""
        return self._raw.tell() if self._is_file else 0

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._raw.close()


def parse_object(line: bytes) -> dict[str, Any]:
    """Read a line of JSON that holds an object.

    Raises
    ------
    RefusedRecord
        It is too long, no UTF-8, no JSON, or no object.

    Examples
    --------
    >>> parse_object(b'{"user": "u"}')
    {'user': 'u'}
    """
    if len(line) > MAX_LINE_BYTES:
        raise RefusedRecord("too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        record = from_json(line, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        record = _parsed_slowly(line)
    if type(record) is not dict:
        raise RefusedRecord("json", f"expected an object, one a line, got {shown(record)}")
    return record


def _parsed_slowly(line: bytes) -> Any:
    """By Python's own reader: it takes marks of byte order and lone surrogates, and says what is wrong, and where."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RefusedRecord("encoding", f"the line is no UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return _decode(text)
    except RefusedRecord:
        raise
    except (ValueError, RecursionError) as error:
        detail = str(error) if isinstance(error, json.JSONDecodeError) else "a number too long, or nested too deep"
        raise RefusedRecord("json", f"the line is no JSON: {detail}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise RefusedRecord("json", f"the line is no JSON: {name} is no JSON number")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def event_line(event: Event) -> bytes:
    r"""An event as a line of JSON: fields in a fixed order, those that say nothing left out.

    Examples
    --------
    >>> event_line(Event(user="u", item="i", kind="click", time_ms=5))
    b'{"user":"u","item":"i","kind":"click","time_ms":5}\n'
    """
    return json_text(own_fields(event)).encode() + b"\n"


def write_lines(events: Iterable[Event], path: Path, *, is_packed: bool) -> int:
    """Write events to a file; returns their number. No name and no time gets into a packed file."""
    count = 0
    with path.open("wb") as raw:
        stream: IO[bytes] = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if is_packed else raw  # type: ignore[assignment]
        try:
            for event in events:
                stream.write(event_line(event))
                count += 1
        finally:
            if stream is not raw:
                stream.close()
    return count
