"""The forms in which logs come: which files they are, and what a record of theirs is. One table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from rerank_engine.errors import InputError
from rerank_sdk.exchange.lines import LineFile, parse_object
from rerank_sdk.exchange.parquet import check_own_columns, own_record, read_rows, read_summary
from rerank_sdk.exchange.record import RefusedRecord
from rerank_sdk.exchange.snowplow import parse_enriched

_LINES_A_LOOK = 64
"""How far a file has been read is asked for so seldom, for asking costs a third of a microsecond."""


class Format(NamedTuple):
    """A form of log.

    Attributes
    ----------
    parse
        Turns a line into a record; None where the rows of Parquet are the records.
    mapping
        Name of the built-in mapping; None where records are events of ours.
    is_written
        Whether events can be written in it.
    """

    parse: Callable[[bytes], dict[str, Any]] | None
    mapping: str | None
    is_written: bool


FORMATS: dict[str, Format] = {
    "jsonl": Format(parse_object, None, True),
    "parquet": Format(None, None, True),
    "segment": Format(parse_object, "segment", False),
    "snowplow": Format(parse_enriched, "snowplow", False),
}
"""Every form, by its name."""


class Row(NamedTuple):
    """A record as a file holds it.

    Attributes
    ----------
    number
        Of its line or row, from 1.
    content
        The record, or why there is none.
    original
        The line, or the row.
    done_bytes
        How much of the file has been read, about.
    """

    number: int
    content: dict[str, Any] | RefusedRecord
    original: bytes | dict[str, Any]
    done_bytes: int


def format_named(name: str | None, path: Path) -> str:
    """Check a form's name; without one, a file's ending decides.

    Raises
    ------
    InputError
        There is no such form, or the ending tells none.

    Examples
    --------
    >>> format_named(None, Path("log.jsonl.gz")), format_named(None, Path("log.parquet"))
    ('jsonl', 'parquet')
    """
    if name is None:
        ending = "".join(path.suffixes[-2:]).lower().removesuffix(".gz")
        if ending.endswith(".parquet"):
            return "parquet"
        if ending.endswith((".jsonl", ".ndjson", ".json")):
            return "jsonl"
        raise InputError(f"{path}: its ending tells no format: name one of {', '.join(FORMATS)}")
    if name not in FORMATS:
        raise InputError(f"format: expected one of {', '.join(FORMATS)}, got {name!r}")
    return name


def rows_of(path: Path, form: str, *, is_mapped: bool) -> Iterator[Row]:
    """The records of a file.

    Parameters
    ----------
    path
        The file.
    form
        A name of :data:`FORMATS`.
    is_mapped
        Whether a mapping reads them; otherwise they are events of ours.

    Raises
    ------
    DataError
        The file is damaged, or its columns are not those of events.
    OSError
        The file cannot be opened.
    """
    parse = FORMATS[form].parse
    if parse is None:
        yield from _parquet_rows(path, is_mapped=is_mapped)
        return
    with closing(LineFile(path)) as lines:
        done_bytes = 0
        for number, line in enumerate(lines, 1):
            if number % _LINES_A_LOOK == 0:
                done_bytes = lines.done_bytes()
            content: dict[str, Any] | RefusedRecord
            try:
                content = parse(line)
            except RefusedRecord as refused:
                if not line.strip():
                    continue
                content = refused
            yield Row(number, content, line, done_bytes)


def _parquet_rows(path: Path, *, is_mapped: bool) -> Iterator[Row]:
    path.open("rb").close()  # the system's own error where it cannot be opened
    size = path.stat().st_size
    names, count = read_summary(path)
    if not is_mapped:
        check_own_columns(path, names)
    for number, row in enumerate(read_rows(path), 1):
        content: dict[str, Any] | RefusedRecord
        try:
            content = row if is_mapped else own_record(row)
        except RefusedRecord as refused:
            content = refused
        yield Row(number, content, row, size * number // max(number, count))
