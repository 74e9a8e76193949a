"""The event store as an app sees it: append without waiting, read all that was appended, forget for good."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from rerank_engine.errors import EventError, InputError
from rerank_features.events import MAX_TIME_MS, Event, Item
from rerank_sdk.store import schema
from rerank_sdk.store.consent import ConsentError, ConsentGate
from rerank_sdk.store.health import StoreHealth
from rerank_sdk.store.keeping import Keeping
from rerank_sdk.store.opening import OnDamage, OpenOptions, check_path, open_recorder
from rerank_sdk.store.personal_rows import PersonalRows
from rerank_sdk.store.quotas import StoreLimits
from rerank_sdk.store.reader import Reader
from rerank_sdk.store.recorder import Durability, Recorder
from rerank_sdk.store.rows import KEY_BYTES, Operation, QueuedEvent, QueuedItem, check_id, check_time
from rerank_sdk.store.view import View
from rerank_sdk.store.writer import FORKED, BatchWriter


class EventStore(PersonalRows, Keeping):
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
        self,
        path: Path,
        recorder: Recorder,
        writer: BatchWriter,
        gate: ConsentGate,
        options: OpenOptions,
        *,
        unwritable: bool,
    ) -> None:
        """Use :meth:`open`."""
        self._path = path
        self._recorder = recorder
        self._writer = writer
        self._gate = gate
        self._durability = options.durability
        self._synchronous = options.durability == "fsync"
        self._strict_consent = options.strict_consent
        self._limits = options.limits
        self._pruned = None
        self._restored: str | None = None
        self._key = options.key
        self._file = None if options.durability == "memory" else path
        self._reader = Reader(path, recorder if options.durability == "memory" else None, options.key)
        self._view = View(self._reader, writer, options.examples_per_user)
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
        durability: Durability = "batched",
        limits: StoreLimits | None = None,
        require_consent: bool = False,
        strict_consent: bool = False,
        on_damage: OnDamage = "restore",
        key: bytes | None = None,
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
        durability
            What an acknowledged event survives.

            - ``"batched"``: what was appended before a :meth:`flush` returned, or more than
              `flush_interval_ms` and the time of writing one batch ago, survives the end of the process,
              however it comes. A power cut may lose the transactions since SQLite last synchronised its
              write-ahead log.
            - ``"fsync"``: :meth:`append` returns when the event is committed and synchronised: it survives a
              power cut, as far as the disk tells the truth. Threads that append at the same time share a
              transaction. Where that fails, :meth:`append` raises; the event stays queued and is tried again.
            - ``"memory"``: everything is in memory and gone with the store object. No file is read, made or
              changed.
        limits
            How much is kept; applied by :meth:`prune`, which the app calls.
        require_consent
            Who has not agreed by :meth:`set_consent` is not recorded.
        strict_consent
            Appending an event without consent raises, instead of dropping and counting it.
        on_damage
            ``"restore"``: a damaged file is replaced by its last backup, joined by every readable row of the
            damaged file; :meth:`health` and the log say what happened. ``"refuse"``: it raises and is not touched.
        key
            32 random bytes: the file and its backup are encrypted with them (SQLCipher; needs the extra
            ``encrypted``). The host keeps the key. None for a plain file.

        Raises
        ------
        StoreError
            The path is a directory, no SQLite file, another application's database, of a newer schema version
            (none of these is changed), damaged and to be refused, or cannot be written.
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
        options = OpenOptions(
            batch_size=batch_size,
            flush_interval_ms=flush_interval_ms,
            read_only_ok=read_only_ok,
            examples_per_user=examples_per_user,
            items_limit=items_limit,
            durability=durability,
            limits=StoreLimits() if limits is None else limits,
            require_consent=require_consent,
            strict_consent=strict_consent,
            on_damage=on_damage,
            key=key,
        )
        options.check()
        path = check_path(path, durability)
        gate = ConsentGate(required=require_consent)
        recorder, failure, restored = open_recorder(path, options, gate)
        writer = BatchWriter(
            recorder.write, batch_size=batch_size, flush_interval_ms=flush_interval_ms, failure=failure
        )
        store = cls(path, recorder, writer, gate, options, unwritable=failure is not None)
        store._restored = restored
        if failure is not None:
            gate.replace(store._reader.consents())
        return store

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
        if self._gate.restricts and not self._agreed(event):
            return
        if type(event) is Event and key is None and item is None:
            self._writer.add(event)
            if self._synchronous:
                self._writer.flush()
            return
        if not isinstance(event, Event):
            raise EventError(f"append: expected an Event, got {type(event).__name__}: build it by Event(...)")
        if key is not None and (type(key) is not bytes or len(key) != KEY_BYTES):
            raise InputError(f"key: expected the {KEY_BYTES} bytes of Event.key(), got {key!r}: leave it out")
        if item is None:
            self._writer.add(QueuedEvent(event, key))
        else:
            self._writer.add_many((QueuedItem(item.id, item), QueuedEvent(event, key)))
        if self._synchronous:
            self._writer.flush()

    def _agreed(self, event: object) -> bool:
        """Whether the user of an event agreed to be recorded; what is no event is refused later."""
        user = getattr(event, "user", None)
        if not isinstance(event, Event) or type(user) is not str or self._gate.of(user).record:
            return True
        if self._strict_consent:
            raise ConsentError(
                "append: expected an event of a user who agreed to be recorded, got one without consent: "
                "call set_consent(user, record=True, …), or leave the event out"
            )
        self._gate.refuse(1)
        return False

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
        queued: list[Operation] = list(events)
        for place, event in enumerate(queued):
            if type(event) is Event:
                continue
            if not isinstance(event, Event):
                raise EventError(f"append_many: expected Events, got {type(event).__name__}: build them by Event(...)")
            queued[place] = QueuedEvent(event, None)
        if self._gate.restricts:
            queued = [event for event in queued if self._agreed(getattr(event, "event", event))]
        self._writer.add_many(queued)
        if self._synchronous:
            self._writer.flush()

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
        purpose: Literal["local", "upload"] = "local",
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
        purpose
            ``"upload"`` gives only events of users who agreed that they leave the device.

        Yields
        ------
        Event
            Read in pages: events that are appended or forgotten during the iteration may be met or not.

        Raises
        ------
        StoreError
            The file cannot be read.
        InputError
            A bound is no time, `kinds` is a single text, or the purpose is unknown.

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
        if purpose not in ("local", "upload"):
            raise InputError(f'purpose: expected "local" or "upload", got {purpose!r}')
        user = user if user is None else check_id("user", user)
        if purpose == "local":
            return self._while_open(self._view.events(user, start, end, wanted))
        gate = self._gate
        gate.replace(self._reader.consents())  # another process may have been told
        rows = self._view.events(user, start, end, wanted, lambda name: gate.of(name).upload)
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
            damaged=self._reader.damaged_rows,
            durability=self._durability,
            restored=self._restored,
            without_consent=self._gate.refused,
            over_rows=self._pruned.over_rows if self._pruned else 0,
            over_bytes=self._pruned.over_bytes if self._pruned else 0,
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
