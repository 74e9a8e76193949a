"""The event store as an app sees it: append without waiting, read all that was appended, forget for good."""

from __future__ import annotations

import base64
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rerank_engine.errors import EventError, InputError, StoreError
from rerank_features.events import MAX_TIME_MS, Event, Item
from rerank_sdk.store import schema
from rerank_sdk.store.reader import Reader
from rerank_sdk.store.recorder import Recorder
from rerank_sdk.store.rows import (
    KEY_BYTES,
    Example,
    QueuedEvent,
    QueuedItem,
    QueuedPatch,
    StoredPatch,
    check_id,
    check_time,
)
from rerank_sdk.store.view import View
from rerank_sdk.store.writer import FORKED, BatchWriter

_log = logging.getLogger("rerank_sdk.store")


@dataclass(frozen=True)
class StoreHealth:
    """How the store is doing.

    Attributes
    ----------
    path
        The store's file.
    writable
        Whether the last attempt to write succeeded; opening counts as one.
    pending
        Operations that wait to be written.
    written
        Events that this store object has written.
    duplicates
        Events that were delivered again, and ignored.
    rejected
        Events that were accepted but break the rules of the border (made by ``model_construct``); they are
        dropped.
    last_error
        Why the last attempt to write failed; None after a success.
    schema_version
        Version of the tables.
    """

    path: str
    writable: bool
    pending: int
    written: int
    duplicates: int
    rejected: int
    last_error: str | None
    schema_version: int


class EventStore:
    """Events, training examples, patches and remembered items of an app, in one SQLite file.

    Appending puts a value into a queue; a thread writes batches. Every reading method sees whatever was
    appended before, also what the disk refuses at the moment. Every method may be called from any thread,
    and several processes may have the same file open; after a fork each process opens it anew.

    **What can be lost.** Nothing by an exit of the interpreter, by a garbage-collected store, or by a failed
    write: a batch that fails stays queued and is tried again. When the process is killed: what was appended
    in the last `flush_interval_ms` and not flushed. When the power is cut: also the transactions since
    SQLite last synchronised its write-ahead log; the file stays consistent.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from rerank_features import Event
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = EventStore.open(pathlib.Path(folder.name) / "events.db")
    >>> event = Event(user="u1", item="i7", kind="click", time_ms=1_700_000_000_000)
    >>> store.append(event)
    >>> store.append(event)  # delivered again
    >>> list(store.read("u1")) == [event]
    True
    >>> store.health().duplicates
    1
    >>> store.forget("u1")
    1
    >>> store.close()
    >>> folder.cleanup()
    """

    def __init__(
        self, path: Path, recorder: Recorder, writer: BatchWriter, *, examples_per_user: int, unwritable: bool
    ) -> None:
        """Use :meth:`open`."""
        self._path = path
        self._recorder = recorder
        self._writer = writer
        self._reader = Reader(path)
        self._view = View(self._reader, writer, examples_per_user)
        self._opened_unwritable = unwritable
        self._close_lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _finish, writer, recorder, self._reader)
        _open_stores.add(self)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        batch_size: int = 256,
        flush_interval_ms: int = 50,
        read_only_ok: bool = False,
        examples_per_user: int = 2_000,
        items_limit: int = 200_000,
    ) -> EventStore:
        """Open a store; make the file, its folder and its tables where they are missing.

        Parameters
        ----------
        path
            The file.
        batch_size
            A batch is written as soon as so many operations wait.
        flush_interval_ms
            A smaller batch is written after this time.
        read_only_ok
            Open also when the file cannot be written. What the file holds can be read; what is appended
            stays in memory, and is written should the file become writable; closing drops the rest with a
            warning.
        examples_per_user
            So many training examples of each user are kept, the newest ones.
        items_limit
            So many remembered items are kept, the last ones that were new.

        Raises
        ------
        StoreError
            The path is a directory, no SQLite file, another application's database, damaged, of a newer
            schema version (none of these is changed), or cannot be written.
        InputError
            An option is out of range.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.health().writable
        True
        """
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("flush_interval_ms", flush_interval_ms, 0),
            ("examples_per_user", examples_per_user, 1),
            ("items_limit", items_limit, 1),
        ):
            if type(value) is not int or value < least:
                raise InputError(f"{name}: expected an int of at least {least}, got {value!r}")
        if not isinstance(path, str | os.PathLike) or "\0" in str(path):
            raise InputError(f"event store: expected the path of a file, got {path!r}")
        if not os.fspath(path) or str(path) == ":memory:":
            raise StoreError(f"event store: expected the path of a file, got {str(path)!r}: give a file")
        path = Path(path).absolute()
        recorder = Recorder(path, examples_per_user=examples_per_user, items_limit=items_limit)
        failure = None
        try:
            recorder.connect()
        except StoreError as error:
            if not read_only_ok or not schema.is_unwritable(error):
                raise
            failure = str(error)
            version = schema.inspect(path)
            if 0 < version < schema.SCHEMA_VERSION:
                raise StoreError(
                    f"event store {path}: its schema has version {version}, this release reads "
                    f"{schema.SCHEMA_VERSION}, and the file cannot be written to migrate it: "
                    "make it writable once"
                ) from error
        else:
            try:
                recorder.finish_erasures()
            except StoreError as error:
                _log.warning("event store: an interrupted erasure is still unfinished: %s", error)
        writer = BatchWriter(
            recorder.write, batch_size=batch_size, flush_interval_ms=flush_interval_ms, failure=failure
        )
        return cls(path, recorder, writer, examples_per_user=examples_per_user, unwritable=failure is not None)

    def append(self, event: Event, key: bytes | None = None, *, item: Item | None = None) -> None:
        """Take an event; it is in the file a moment later. Costs microseconds, never waits for the disk.

        Parameters
        ----------
        event
            An event that was checked by the border.
        key
            ``event.key()``, where the caller has computed it already. Of two events with one key the first
            counts.
        item
            An item to remember with the event, as by :meth:`save_items`: both are taken, or none.

        Raises
        ------
        StoreError
            Not accepted: 100,000 operations wait already, or the store is closed.
        EventError
            It is no event.
        InputError
            The key is not 16 bytes.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         store.count("u1")
        1
        """
        if not isinstance(event, Event):
            raise EventError(f"append: expected an Event, got {type(event).__name__}: build it by Event(...)")
        if key is not None and (type(key) is not bytes or len(key) != KEY_BYTES):
            raise InputError(f"key: expected the {KEY_BYTES} bytes of Event.key(), got {key!r}: leave it out")
        if item is None:
            self._writer.add(QueuedEvent(event, key))
        else:
            self._writer.add_many((QueuedItem(item.id, item), QueuedEvent(event, key)))

    def append_many(self, events: Iterable[Event]) -> None:
        """Take several events, all or none.

        Raises
        ------
        StoreError, EventError
            See :meth:`append`.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> events = [Event(user="u1", item=f"i{n}", kind="impression", time_ms=n) for n in range(3)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append_many(events)
        ...         [event.item for event in store.read("u1", start_ms=1)]
        ['i1', 'i2']
        """
        queued = []
        for event in events:
            if not isinstance(event, Event):
                raise EventError(f"append_many: expected Events, got {type(event).__name__}: build them by Event(...)")
            queued.append(QueuedEvent(event, None))
        self._writer.add_many(queued)

    def flush(self) -> None:
        """Return when everything that was appended before is committed.

        Raises
        ------
        StoreError
            It cannot be; it stays queued and is tried again by itself.
        """
        self._writer.flush()

    def read(
        self,
        user: str | None = None,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        kinds: Iterable[str] | None = None,
    ) -> Iterator[Event]:
        """Stream events in order of time, equal times in order of arrival.

        Parameters
        ----------
        user
            Whose; None for everybody's.
        start_ms, end_ms
            Only events with ``start_ms <= time_ms < end_ms``: milliseconds since 1970, UTC.
        kinds
            Only events of these kinds.

        Yields
        ------
        Event
            Read in pages: events that are appended or forgotten during the iteration may be met or not.

        Raises
        ------
        StoreError
            The file cannot be read.
        InputError
            A bound is no time, or `kinds` is a single text.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i1", kind="click", time_ms=20))
        ...         store.append(Event(user="u2", item="i2", kind="click", time_ms=10))
        ...         [event.user for event in store.read(kinds=["click"])]
        ['u2', 'u1']
        """
        start = 0 if start_ms is None else check_time(start_ms, "start_ms")
        end = MAX_TIME_MS + 1 if end_ms is None else check_time(end_ms, "end_ms")
        if isinstance(kinds, str):
            raise InputError(f"kinds: expected several kinds, got the text {kinds!r}: write [{kinds!r}]")
        wanted = None if kinds is None else tuple(dict.fromkeys(kinds))
        rows = self._view.events(user if user is None else check_id("user", user), start, end, wanted)
        return self._while_open(rows)

    def _while_open(self, rows: Iterator[Event]) -> Iterator[Event]:
        # A method, so that the iterator holds the store, and the store is not finalised under it.
        yield from rows

    def users(self) -> list[str]:
        """Everybody of whom something is held, sorted.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return self._view.users()

    def count(self, user: str | None = None) -> int:
        """How many events are held, of one user or of all.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return self._view.count(user if user is None else check_id("user", user))

    def append_example(self, example: Example) -> None:
        """Take a training example, like :meth:`append`. One with the same user, request and item is replaced.

        Raises
        ------
        StoreError
            Not accepted: see :meth:`append`.
        InputError
            It is no example.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import Example
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append_example(Example("u1", "r1", "i7", 0, 1.0, [0.5], "sha256:ab"))
        ...         [example.label for example in store.load_examples("u1")]
        [1.0]
        """
        self.save_examples((example,))

    def save_examples(self, examples: Iterable[Example]) -> None:
        """Take several training examples, all or none; see :meth:`append_example`.

        Raises
        ------
        StoreError, InputError
            See :meth:`append_example`.
        """
        queued = list(examples)
        for example in queued:
            if not isinstance(example, Example):
                raise InputError(f"examples: expected Example, got {type(example).__name__}: build Example(...)")
        self._writer.add_many(queued)

    def load_examples(self, user: str, *, base_model: str | None = None) -> list[Example]:
        """The user's training examples, by time.

        Parameters
        ----------
        user
            Whose.
        base_model
            Only examples whose features belong to this model.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        examples = self._view.examples(check_id("user", user))
        return [example for example in examples if base_model is None or example.base_model == base_model]

    def save_patch(self, user: str, patch: bytes, *, version: int, base_model: str, created_ms: int) -> None:
        """Keep a patch; returns when it is committed. The three newest versions of a user are kept.

        Parameters
        ----------
        user
            Whose.
        patch
            The bytes.
        version
            Larger than that of any kept patch; the newest version itself may be saved again and is replaced.
        base_model
            Content hash of the model that the patch belongs to.
        created_ms
            When it was trained: milliseconds since 1970, UTC.

        Raises
        ------
        StoreError
            An older version than the newest was given; or it cannot be committed: then it stays queued,
            :meth:`load_patch` sees it already, and it is written as soon as the file can be.
        InputError
            An argument has the wrong type or range.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.save_patch("u1", b"delta", version=1, base_model="sha256:ab", created_ms=0)
        ...         store.load_patch("u1")
        StoredPatch(patch=b'delta', version=1, base_model='sha256:ab', created_ms=0)
        """
        check_id("user", user)
        check_id("base_model", base_model)
        check_time(created_ms, "created_ms")
        if not isinstance(patch, bytes):
            raise InputError(f"patch: expected bytes, got {type(patch).__name__}")
        if type(version) is not int or not 0 <= version < 1 << 63:
            raise InputError(f"version: expected an int from 0 on, got {version!r}")
        kept = self.load_patch(user)
        if kept is not None and version < kept.version:
            raise StoreError(
                f"patch version {version} is older than version {kept.version}, which is kept: "
                "save it under a larger number"
            )
        self._writer.add(QueuedPatch(user, patch, version, base_model, created_ms))
        self._writer.flush()

    def load_patch(self, user: str, *, version: int | None = None) -> StoredPatch | None:
        """The user's newest patch, or the one of a version; None where there is none.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        kept = self._view.patches(check_id("user", user))
        if version is not None:
            kept = [patch for patch in kept if patch.version == version]
        return kept[-1] if kept else None

    def patch_versions(self, user: str) -> list[int]:
        """Versions of the user's patches that are kept, ascending.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return [patch.version for patch in self._view.patches(check_id("user", user))]

    def save_items(self, rows: Iterable[Item | tuple[str, bytes]]) -> None:
        """Remember items, so that their fields survive a restart; written like events; a newer text replaces.

        Parameters
        ----------
        rows
            Items, which the writer turns into JSON text later, or pairs of an id and the JSON text as bytes.

        Raises
        ------
        StoreError
            Not accepted: see :meth:`append`.
        InputError
            A row has the wrong type.
        """
        queued = []
        for row in rows:
            if isinstance(row, Item):
                queued.append(QueuedItem(row.id, row))
                continue
            item, fields = row
            check_id("item", item)
            if not isinstance(fields, bytes):
                raise InputError(f"fields: expected the JSON text of the item as bytes, got {type(fields).__name__}")
            queued.append(QueuedItem(item, fields))
        self._writer.add_many(queued)

    def load_items(self) -> dict[str, bytes]:
        """Remembered items: id to the JSON text of the item.

        Raises
        ------
        StoreError
            The file cannot be read.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.save_items([("i7", b'{"id":"i7"}')])
        ...         store.load_items()
        {'i7': b'{"id":"i7"}'}
        """
        return self._view.items()

    def forget(self, user: str) -> int:
        """Erase a user for good: events, patches, examples and requests, in the file and in the queue.

        The rows are deleted, the file is rewritten, and the write-ahead log is emptied, so that no old copy
        stays in any of the store's files; this takes about as long as copying the file. When the last user
        goes, the remembered items go too. What another process has queued is not known here: forget there as
        well.

        Parameters
        ----------
        user
            Who.

        Returns
        -------
        int
            How many events, patches and examples were erased, the queued ones included.

        Raises
        ------
        StoreError
            The file could not be rewritten. Calling again, or the next opening, finishes the work.
        """
        check_id("user", user)
        with self._writer.paused():
            queued = self._writer.discard(lambda operation: operation.user == user)
            erased = self._recorder.erase(user)
            somebody = any(operation.user is not None for operation in self._writer.waiting())
            if not somebody and not self._recorder.has_users():
                # The items in the file went with the last user; so do those on their way to it.
                self._writer.discard(lambda operation: isinstance(operation, QueuedItem))
            return queued + erased

    def export(self, user: str) -> dict[str, Any]:
        """Everything that is held about a user, as values that JSON knows.

        Returns
        -------
        dict
            ``user``; ``events`` as fields of :class:`~rerank_features.Event`; ``examples``; ``patches`` with
            their bytes in base64.

        Raises
        ------
        StoreError
            The file cannot be read.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         sorted(store.export("u1"))
        ['events', 'examples', 'patches', 'user']
        """
        return {
            "user": user,
            "events": [event.model_dump() for event in self.read(user)],
            "examples": [
                {
                    "request": example.request,
                    "item": example.item,
                    "time_ms": example.time_ms,
                    "label": example.label,
                    "features": example.features.tolist(),
                    "base_model": example.base_model,
                }
                for example in self.load_examples(user)
            ],
            "patches": [
                {**patch._asdict(), "patch": base64.b64encode(patch.patch).decode()}
                for patch in self._view.patches(check_id("user", user))
            ],
        }

    def health(self) -> StoreHealth:
        """How the store is doing; costs microseconds and reads no file."""
        state = self._writer.state()
        return StoreHealth(
            path=str(self._path),
            writable=not state.failing,
            pending=state.pending,
            written=state.written,
            duplicates=state.duplicates,
            rejected=state.rejected,
            last_error=state.last_error,
            schema_version=schema.SCHEMA_VERSION,
        )

    def close(self) -> None:
        """Write what waits and close the file. Closing again does nothing.

        Raises
        ------
        StoreError
            Something could not be written. The store stays open: make room and close again.
        """
        with self._close_lock:
            if not self._finalizer.alive:
                return
            self._writer.close(discard=self._opened_unwritable)
            self._finalizer()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _abandon(self) -> None:
        self._writer.abandon()
        self._reader.abandon(FORKED)


def _finish(writer: BatchWriter, recorder: Recorder, reader: Reader) -> None:
    """Close for good: at :meth:`EventStore.close`, at garbage collection, or when the interpreter exits."""

    def finish() -> None:
        writer.close(discard=True)
        reader.close()
        recorder.close()

    # A forked child holds copies of the parent's connections; closing them here could harm the parent's.
    if not writer.abandoned and not writer.close_after_thread(finish):
        finish()


_open_stores: weakref.WeakSet[EventStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
