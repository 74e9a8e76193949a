"""From files into the store: no bad record stops it, and none is lost without a word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank_engine.errors import DataError, InputError
from rerank_features.events import Event
from rerank_sdk.exchange.files import is_of_store, is_same_file
from rerank_sdk.exchange.formats import FORMATS, Row, format_named, rows_of
from rerank_sdk.exchange.lines import MAX_LINE_BYTES
from rerank_sdk.exchange.mapper import Mapped, Mapper
from rerank_sdk.exchange.mapping import EventMapping
from rerank_sdk.exchange.record import RefusedRecord, json_text, read_own
from rerank_sdk.store import EventStore

Progress = Callable[[int, int, str], None]
"""Is told bytes done, bytes in all, and what is being read."""

SHOWN = 5
"""So many refused records are shown."""

MAX_REASONS = 100
"""So many different names of skipped records are kept; further ones are counted together."""

_BATCH = 4_096


@dataclass(frozen=True)
class Rejection:
    """A record, or an element of its list, that did not become an event.

    Attributes
    ----------
    file, line
        Where it is; lines and rows count from 1.
    reason
        One word, under which it is counted.
    detail
        What was expected, and what came.
    """

    file: str
    line: int
    reason: str
    detail: str


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes
    ----------
    files, records
        How many were read.
    events
        How many events the records became.
    new
        How many of them the store did not have. As the store counts: what else is appended through the same store
        object meanwhile is among them.
    duplicates
        How many it had, or met twice; counted alike.
    skipped
        Records that the mapping passes over: name to count.
    rejected
        Records, and elements of lists, that cannot become events: reason to count.
    shown
        The first rejections.
    """

    files: int
    records: int
    events: int
    new: int
    duplicates: int
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    shown: tuple[Rejection, ...] = ()

    @property
    def rejected_total(self) -> int:
        """How many were rejected, for whatever reason."""
        return sum(self.rejected.values())

    @property
    def skipped_total(self) -> int:
        """How many records were passed over, for whatever reason."""
        return sum(self.skipped.values())


def import_events(
    store: EventStore,
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the command's option has this name
    mapping: EventMapping | None = None,
    rejects: str | Path | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    r"""Read logs into a store. Doing it again adds nothing: the store recognises its events.

    Parameters
    ----------
    store
        Where the events go; they are committed in batches.
    paths
        One file or several, in this order; gzip is recognised.
    format
        ``jsonl``, ``parquet``, ``segment`` or ``snowplow``; by default each file's ending decides.
    mapping
        How records become events, instead of the format's own way.
    rejects
        A file for the rejected records: JSON lines with file, line, reason, detail and the original. Written anew.
    strict
        Stop at the first record that cannot become an event. What came before it stays in the store.
    progress
        Is told how far the import is.

    Raises
    ------
    DataError
        A file is damaged, has other columns than expected, or (with `strict`) has a bad record.
    InputError
        An option is wrong, or no files are given.
    MissingExtraError
        Parquet needs the extra ``parquet``.
    StoreError
        The store does not take the events.
    OSError
        A file cannot be opened or written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EventStore.open(f"{folder}/events.db") as store:
    ...     log = Path(folder) / "log.jsonl"
    ...     _ = log.write_text('{"user":"u","item":"i","kind":"click","time_ms":5}\n{"user":"u"}\n')
    ...     report = import_events(store, log)
    >>> report.new, report.rejected
    (1, {'item': 1})
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise InputError("paths: expected at least one file, got none")
    forms = [format_named(format, path) for path in files]
    _check_rejects(rejects, files, store)
    sizes = [path.stat().st_size for path in files]
    mappers = {form: _mapper(form, mapping) for form in dict.fromkeys(forms)}
    before = store.health()
    with ExitStack() as stack:
        run = _Import(store, strict=strict)
        if rejects is not None:
            stream = stack.enter_context(Path(rejects).open("w", encoding="utf-8", newline="\n"))
            run.write_reject = stream.write
        try:
            for number, (path, form, size) in enumerate(zip(files, forms, sizes, strict=True)):
                done = sum(sizes[:number])
                report = None if progress is None else _scaled(progress, done, size, sum(sizes), path.name)
                run.take(path, rows_of(path, form, is_mapped=mappers[form] is not None), mappers[form], report)
        finally:
            run.commit()
    after = store.health()
    return ImportReport(
        files=len(files),
        records=run.records,
        events=run.events,
        new=after.written - before.written,
        duplicates=after.duplicates - before.duplicates,
        skipped=dict(sorted(run.skipped.items(), key=lambda pair: (-pair[1], pair[0]))),
        rejected=dict(sorted(run.rejected.items(), key=lambda pair: (-pair[1], pair[0]))),
        shown=tuple(run.shown),
    )


def read_events(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    mapping: EventMapping | None = None,
) -> Iterator[Event]:
    """Read the events of a log, without a store; the first bad record ends it.

    Parameters
    ----------
    path, format, mapping
        As for :func:`import_events`.

    Raises
    ------
    DataError
        The file is damaged, or a record cannot become an event.
    InputError, MissingExtraError, OSError
        As for :func:`import_events`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder) / "log.jsonl"
    ...     _ = log.write_text('{"user":"u","item":"i","kind":"click","time_ms":5}')
    ...     [event.item for event in read_events(log)]
    ['i']
    """
    file = Path(path)
    form = format_named(format, file)
    mapper = _mapper(form, mapping)
    return _stream(file, rows_of(file, form, is_mapped=mapper is not None), mapper)


def _stream(file: Path, rows: Iterator[Row], mapper: Mapper | None) -> Iterator[Event]:
    for row in rows:
        mapped = _mapped(row, mapper)
        for refused in mapped.refused:
            raise _bad_record(file, row, refused)
        yield from mapped.events


def _bad_record(file: Path, row: Row, refused: RefusedRecord) -> DataError:
    return DataError(f"{file}: record {row.number} cannot become an event: {refused}")


def _mapper(form: str, mapping: EventMapping | None) -> Mapper | None:
    if mapping is not None and not isinstance(mapping, EventMapping):
        raise InputError(f"mapping: expected an EventMapping, got {type(mapping).__name__}: read it by from_toml")
    name = FORMATS[form].mapping
    chosen = mapping if mapping is not None else None if name is None else EventMapping.builtin(name)
    return None if chosen is None else Mapper(chosen)


def _mapped(row: Row, mapper: Mapper | None) -> Mapped:
    content = row.content
    if isinstance(content, RefusedRecord):
        return Mapped((), (content,))
    if mapper is not None:
        return mapper.map(content)
    try:
        return Mapped((read_own(content),))
    except RefusedRecord as refused:
        return Mapped((), (refused,))


def _check_rejects(rejects: str | Path | None, files: Sequence[Path], store: EventStore) -> None:
    if rejects is None:
        return
    if any(is_same_file(rejects, path) for path in files):
        raise InputError(f"rejects: {rejects} is a log that is to be read: give another file")
    if is_of_store(rejects, store.health().path):
        raise InputError(f"rejects: {rejects} is a file of the store: give another file")


def _scaled(progress: Progress, done: int, size: int, total: int, name: str) -> Callable[[int], None]:
    return lambda part: progress(done + min(part, size), total, name)


class _Import:
    """The counts of an import, and the batch that waits."""

    def __init__(self, store: EventStore, *, strict: bool) -> None:
        self.records = self.events = 0
        self.skipped: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.shown: list[Rejection] = []
        self.write_reject: Callable[[str], Any] | None = None
        self._store = store
        self._strict = strict
        self._waiting: list[Event] = []

    def take(
        self, file: Path, rows: Iterator[Row], mapper: Mapper | None, report: Callable[[int], None] | None
    ) -> None:
        for row in rows:
            self.records += 1
            mapped = _mapped(row, mapper)
            self._waiting.extend(mapped.events)
            if mapped.refused:
                self._refuse(file, row, mapped.refused)
            if mapped.skipped is not None:
                known = mapped.skipped in self.skipped or len(self.skipped) < MAX_REASONS
                self.skipped[mapped.skipped if known else "others"] += 1
            if len(self._waiting) >= _BATCH:
                self.commit()
            if report is not None and self.records % _BATCH == 0:
                report(row.done_bytes)

    def commit(self) -> None:
        """Hand over what waits, and return when it is written: so no queue grows, however fast the file is read."""
        waiting, self._waiting = self._waiting, []
        # A record may have become more events than the store's queue holds.
        for start in range(0, len(waiting), _BATCH):
            batch = waiting[start : start + _BATCH]
            self._store.append_many(batch)
            self._store.flush()
            self.events += len(batch)

    def _refuse(self, file: Path, row: Row, refusals: Sequence[RefusedRecord]) -> None:
        if self._strict:
            raise _bad_record(file, row, refusals[0])
        for refused in refusals:
            self.rejected[refused.reason] += 1
            if len(self.shown) < SHOWN:
                self.shown.append(Rejection(str(file), row.number, refused.reason, refused.detail))
        if self.write_reject is not None:
            original = _original_text(row.original)
            for refused in refusals:
                entry = {"file": str(file), "line": row.number, "reason": refused.reason, "detail": refused.detail}
                self.write_reject(json_text({**entry, "original": original}) + "\n")


def _original_text(original: bytes | dict[str, Any]) -> str:
    """The line without its end, or the row as JSON; bytes that are no UTF-8 as escapes."""
    if isinstance(original, bytes):
        return original[:MAX_LINE_BYTES].rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    # NaN can be in a row of Parquet; Python's own word for it says what it was.
    return json.dumps(original, separators=(",", ":"))
