"""From events to a file, JSON lines or Parquet: the same bytes for the same events, and a whole file or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from rerank_engine.errors import EventError, InputError
from rerank_features.events import Event
from rerank_sdk.exchange.formats import FORMATS, format_named
from rerank_sdk.exchange.lines import write_lines
from rerank_sdk.exchange.parquet import CODECS, write_rows


def write_events(
    events: Iterable[Event],
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the command's option has this name
    codec: str = "zstd",
) -> int:
    """Write events to a file, one after the other; :func:`~rerank_sdk.exchange.read_events` gives them back.

    Parameters
    ----------
    events
        Such as ``store.read()`` gives. They are not held in memory.
    path
        The file; it appears when it is complete, and takes the place of what was there. A link to a file stays one.
    format
        ``jsonl`` or ``parquet``; by default the ending decides. JSON lines are packed where it ends with ``.gz``.
    codec
        Of Parquet: ``zstd``, ``snappy``, ``gzip`` or ``uncompressed``.

    Returns
    -------
    int
        How many events were written.

    Raises
    ------
    InputError
        The format or the codec is unknown, or cannot be written; the path means a folder, a device or a pipe.
    EventError
        Something is no event, or was made around the checks of ``Event``.
    MissingExtraError
        Parquet needs the extra ``parquet``.
    DataError, OSError
        The file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "events.jsonl.gz"
    ...     write_events([Event(user="u", item="i", kind="click", time_ms=5)], path)
    1
    """
    target = Path(path)
    form = format_named(format, target)
    if not FORMATS[form].is_written:
        can = ", ".join(name for name, known in FORMATS.items() if known.is_written)
        raise InputError(f"format: {form} can be read only: write one of {can}")
    if codec not in CODECS:
        raise InputError(f"codec: expected one of {', '.join(CODECS)}, got {codec!r}")
    if target.is_dir():
        raise InputError(f"{target} is a folder: give the path of a file")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is a device or a pipe, whose place a file would take: give the path of a file")
    # Where a link leads: the link stays.
    place = Path(os.path.realpath(target))
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that it can take its place in one step.
    with tempfile.TemporaryDirectory(prefix=".rerank-export-", dir=place.parent) as folder:
        draft = Path(folder) / "events"
        if form == "parquet":
            count = write_rows(_checked(events), draft, codec=codec)
        else:
            count = write_lines(_checked(events), draft, is_packed=target.suffix.lower() == ".gz")
        with draft.open("rb+") as written:
            os.fsync(written.fileno())  # before its name is: a power cut must not leave an empty file under it
        draft.replace(place)
    return count


def _checked(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if not isinstance(event, Event):
            raise EventError(f"expected an Event, got {type(event).__name__}: build it by Event(...)")
        yield event
