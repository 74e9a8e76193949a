"""The one connection that writes: batches, trims and erasures, each in one transaction."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from rerank_engine.errors import StoreError
from rerank_features.events import Event
from rerank_sdk.store import schema
from rerank_sdk.store.consent import EVERYONE_ID, Consent, ConsentGate, read_consents
from rerank_sdk.store.quarantine import mark_damaged
from rerank_sdk.store.rows import (
    INSERT_EVENT,
    EventValues,
    Example,
    Operation,
    QueuedEvent,
    QueuedItem,
    QueuedPatch,
    QueuedState,
    event_values,
    example_bytes,
)

_log = logging.getLogger("rerank_sdk.store")

Durability = Literal["memory", "batched", "fsync"]
"""What an acknowledged event survives; see :meth:`rerank_sdk.store.EventStore.open`."""

PATCHES_PER_USER = 3
"""So many versions of a user's patch are kept: the one in use, and two to fall back to."""

SPECS_KEPT = 2
"""Feature states of so many specs are kept: the one in use, and the one before it."""

_CACHED_NAMES = 10_000
# These leave the connection as good as it was; after any other failure it is opened anew.
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)

# Row numbers never come back, also after the rows are gone: saved states name the last row they hold.
_LAST_ROW = """
    SELECT max(coalesce((SELECT max(id) FROM events), 0),
               coalesce((SELECT value FROM facts WHERE name = 'last_row'), 0))
"""
_COUNT_ERASURE = (
    "INSERT INTO facts (name, value) VALUES ('erasures', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
)
_INSERT_REQUEST = "INSERT INTO requests (user_id, request) VALUES (?, ?) ON CONFLICT DO NOTHING"
_REPLACE_STATE = """
    INSERT OR REPLACE INTO feature_states (user_id, spec_hash, last_row, state, checksum) VALUES (?, ?, ?, ?, ?)"""
_OLD_SPECS = "SELECT spec_hash FROM spec_hashes ORDER BY id DESC LIMIT -1 OFFSET ?"
_REPLACE_EXAMPLE = """
    INSERT OR REPLACE INTO examples (user_id, request, item, time_ms, label, features, base_model)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_TRIM_EXAMPLES = """
    DELETE FROM examples WHERE id IN (
        SELECT id FROM examples WHERE user_id = ? ORDER BY time_ms DESC, id DESC LIMIT -1 OFFSET ?)"""
_REPLACE_PATCH = (
    "INSERT OR REPLACE INTO patches (user_id, version, base_model, created_ms, patch) VALUES (?, ?, ?, ?, ?)"
)
_TRIM_PATCHES = """
    DELETE FROM patches WHERE user_id = ? AND version NOT IN (
        SELECT version FROM patches WHERE user_id = ? ORDER BY version DESC LIMIT ?)"""
# An item that did not change costs no write: flash memory wears, and most items of a request are old
# acquaintances.
_REMEMBER_ITEM = """
    INSERT INTO remembered_items (item, fields) VALUES (?, ?)
    ON CONFLICT (item) DO UPDATE SET fields = excluded.fields WHERE fields IS NOT excluded.fields"""
_TRIM_ITEMS = "DELETE FROM remembered_items WHERE id <= (SELECT max(id) FROM remembered_items) - ?"

_Result = TypeVar("_Result")


class Outcome(NamedTuple):
    """What became of the events of one batch."""

    written: int
    duplicates: int
    rejected: int


class Recorder:
    """Writes operations into the file. Not thread-safe: the writer lets one thread at a time in.

    Parameters
    ----------
    path
        The store's file.
    examples_per_user
        So many training examples of each user are kept, the newest ones.
    items_limit
        So many remembered items are kept, the last ones that were new.
    durability
        ``memory`` makes no file; ``fsync`` synchronises every transaction.
    gate
        Learns what other processes answered about consent.
    key
        Of an encrypted file.
    """

    def __init__(
        self,
        path: Path,
        *,
        examples_per_user: int,
        items_limit: int,
        durability: Durability = "batched",
        gate: ConsentGate | None = None,
        key: bytes | None = None,
    ) -> None:
        self._path = path
        self._key = key
        self._durability = durability
        self._gate = gate
        self.lock = threading.RLock()
        """Held during each transaction. In memory, where there is one connection, readers hold it too."""
        self._examples_per_user = examples_per_user
        self._items_limit = items_limit
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._data_version = -1
        self._users: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._requests: dict[tuple[int, str], int] = {}

    def connect(self) -> sqlite3.Connection:
        """Return the open connection; open it first where there is none.

        Raises
        ------
        StoreError
            The file cannot be opened for writing.
        """
        if self._connection is None:
            if self._durability == "memory":
                self._connection = schema.connect_memory()
            else:
                self._connection = (
                    schema.connect_writer(self._path)
                    if self._key is None
                    else schema.connect_writer(self._path, self._key)
                )
                if self._durability == "fsync":
                    self._connection.execute("PRAGMA synchronous = FULL")
                self._file = schema.file_number(self._path)
            self.forget_names()
            self._data_version = -1
        return self._connection

    def write(self, operations: Sequence[Operation]) -> Outcome:
        """Write a batch in one transaction, all of it or nothing.

        An event whose values SQLite could not hold (it did not come through the border) is rejected alone: it
        is counted, and the others are written.

        Raises
        ------
        StoreError
            Nothing was written. The same batch may be given again: events are known by their keys.
        """
        events: list[EventValues] = []
        rejected = 0
        for operation in operations:
            if isinstance(operation, Event | QueuedEvent):
                try:
                    events.append(event_values(operation))
                except (TypeError, ValueError, AttributeError, RecursionError):
                    rejected += 1
        examples = [operation for operation in operations if type(operation) is Example]
        patches = [operation for operation in operations if type(operation) is QueuedPatch]
        states = [operation for operation in operations if type(operation) is QueuedState]
        items = [operation.row() for operation in operations if type(operation) is QueuedItem]

        def work(connection: sqlite3.Connection) -> int:
            written = self._write_events(connection, events) if events else 0
            if examples:
                self._write_examples(connection, examples)
            if patches:
                self._write_patches(connection, patches)
            if states:
                self._write_states(connection, states)
            if items:
                connection.executemany(_REMEMBER_ITEM, items)
                connection.execute(_TRIM_ITEMS, (self._items_limit,))
            return written

        written = self.transact(f"write {len(operations)} rows", work)
        if rejected:
            _log.warning("event store: %d events were rejected: their fields break the rules of Event", rejected)
        return Outcome(written, len(events) - written, rejected)

    def erase(self, user: str) -> int:
        """Erase a user from the file physically.

        ``secure_delete`` is not enough: when SQLite moves cells between pages, the unused part of a page may
        keep an old copy (seen for 10 of 1,800 users erased from a busy file). So the file is rewritten by
        VACUUM, and the WAL is emptied. A mark inside the file makes an interrupted rewrite be finished at
        the next chance.

        Returns
        -------
        int
            How many events, patches and examples were erased.

        Raises
        ------
        StoreError
            The rows, or old copies of them, are still in the file.
        """
        if self._connection is None and not self._path.exists():
            return 0

        def work(connection: sqlite3.Connection) -> int:
            connection.execute(_COUNT_ERASURE)
            found = connection.execute("SELECT id FROM users WHERE user = ?", (user,)).fetchone()
            if found is None:
                return 0
            erased = 0
            self.keep_last_row(connection)
            for table in ("events", "patches", "examples"):
                erased += connection.execute(f"DELETE FROM {table} WHERE user_id = ?", found).rowcount
            for table in ("requests", "feature_states", "consents"):
                connection.execute(f"DELETE FROM {table} WHERE user_id = ?", found)
            connection.execute("DELETE FROM users WHERE id = ?", found)
            if connection.execute("SELECT 1 FROM users LIMIT 1").fetchone() is None:
                # Remembered items belong to nobody, but on a phone with one user they tell what was offered.
                connection.execute("DELETE FROM remembered_items")
            connection.execute("INSERT OR IGNORE INTO erasures (id) VALUES (1)")
            return erased

        erased = self.transact("erase a user", work)
        self.forget_names()
        self.finish_erasures()
        return erased

    def keep_last_row(self, connection: sqlite3.Connection) -> None:
        """Before rows are erased: their numbers never come back."""
        last = connection.execute(_LAST_ROW).fetchone()
        connection.execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('last_row', ?)", last)

    def has_users(self) -> bool:
        """Whether the file holds anything of anybody."""
        if self._connection is None:
            return self._path.exists()
        return self._connection.execute("SELECT 1 FROM users LIMIT 1").fetchone() is not None

    def finish_erasures(self) -> None:
        """Rewrite the file where rows were erased and old copies of them may be left.

        Raises
        ------
        StoreError
            The file could not be rewritten; the mark stays.
        """
        with self.lock:
            self._finish_erasures()

    def _finish_erasures(self) -> None:
        connection = self.connect()
        try:
            if connection.execute("SELECT 1 FROM erasures LIMIT 1").fetchone() is None:
                return
            connection.execute("VACUUM")
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if busy:
                raise StoreError(
                    f"event store {self._path}: the user's rows are erased, but another process still reads "
                    "the old write-ahead log: call forget again when it has finished"
                )
            connection.execute("DELETE FROM erasures")
        except sqlite3.Error as error:
            raise schema.store_error(
                self._path, "overwrite erased rows; they are deleted, forget can be called again", error
            ) from error

    def close(self) -> None:
        """Give free pages back and close the connection. Closing again does nothing."""
        if self._connection is not None:
            with suppress(sqlite3.Error):  # housekeeping: what is not given back now is reused later
                # `execute` would free one page only: the pragma works one page a step
                self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.close()
            self._connection = None

    def transact(self, doing: str, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Do `work` in one transaction, all of it or nothing.

        Raises
        ------
        StoreError
            Nothing was changed.
        """
        with self.lock:
            return self._transact(doing, work)

    def _transact(self, doing: str, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        if self._connection is not None and self._file is not None and schema.file_number(self._path) != self._file:
            self._connection.close()  # another process has restored the file: this one is set aside
            self._connection = None
        connection = self.connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have erased a user, and with it a row that is cached here.
            data_version = connection.execute("PRAGMA data_version").fetchone()[0]
            if data_version != self._data_version:
                self.forget_names()
                self._data_version = data_version
                if self._gate is not None:
                    self._gate.replace(read_consents(connection))
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            self.forget_names()  # ids given out in this transaction are void
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            # A database in memory would be lost with its connection.
            if schema.error_code(error) not in _PASSING and self._durability != "memory":
                self._connection = None
                with suppress(sqlite3.Error):
                    connection.close()
            if schema.error_code(error) == sqlite3.SQLITE_CORRUPT:
                mark_damaged(self._path)
            raise schema.store_error(self._path, doing, error) from error
        return result

    def consents(self) -> list[tuple[str | None, Consent]]:
        """Open the file and return what users have agreed to.

        Raises
        ------
        StoreError
            The file cannot be opened for writing.
        """
        connection = self.connect()
        try:
            return read_consents(connection)
        except sqlite3.Error as error:
            raise schema.store_error(self._path, "read consents", error) from error

    def set_consent(self, user: str | None, consent: Consent) -> None:
        """Store an answer.

        Raises
        ------
        StoreError
            It is not stored.
        """

        def work(connection: sqlite3.Connection) -> None:
            user_id = EVERYONE_ID if user is None else self._user_id(connection, user)
            connection.execute(
                "INSERT OR REPLACE INTO consents (user_id, record, upload) VALUES (?, ?, ?)",
                (user_id, int(consent.record), int(consent.upload)),
            )

        self.transact("store a consent", work)

    def give_back_pages(self) -> None:
        """Give free pages back to the disk and empty the write-ahead log, as far as nobody reads it."""
        with self.lock:
            connection = self.connect()
            try:
                # `execute` would free one page only: the pragma works one page a step
                connection.executescript("PRAGMA incremental_vacuum")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                raise schema.store_error(self._path, "give free pages back", error) from error

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[EventValues]) -> int:
        users, kinds, requests = self._users, self._kinds, self._requests
        row = int(connection.execute(_LAST_ROW).fetchone()[0])
        rows = []
        self._make_requests(connection, events)
        for key, user, item, kind, time_ms, position, request, value, attributes, event_id, checksum in events:
            row += 1
            user_id = users.get(user) or self._user_id(connection, user)
            request_id = None
            if request is not None:
                request_id = requests.get((user_id, request)) or self._request_id(connection, user_id, request)
            kind_id = kinds.get(kind) or self._kind_id(connection, kind)
            rows.append(
                (row, key, user_id, item, kind_id, time_ms, position, request_id, value, attributes, event_id, checksum)
            )
        return connection.executemany(INSERT_EVENT, rows).rowcount

    def _make_requests(self, connection: sqlite3.Connection, events: Iterable[EventValues]) -> None:
        """Make all new requests of a batch at once: asking and inserting one by one took a third of the time."""
        if len(self._requests) >= _CACHED_NAMES:
            self._requests.clear()
        users, known = self._users, self._requests
        new = dict.fromkeys(
            (users.get(event[1]) or self._user_id(connection, event[1]), event[6])
            for event in events
            if event[6] is not None
        )
        missing = [pair for pair in new if pair not in known]
        if not missing:
            return
        last = connection.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()
        connection.executemany(_INSERT_REQUEST, missing)
        # Those that were there before are looked up one by one, when an event needs them.
        made = connection.execute("SELECT user_id, request, id FROM requests WHERE id > ?", last)
        known.update(((user_id, request), number) for user_id, request, number in made)

    def _write_states(self, connection: sqlite3.Connection, states: Iterable[QueuedState]) -> None:
        for state in states:
            user_id = self._user_id(connection, state.user)
            connection.execute(
                _REPLACE_STATE, (user_id, state.spec_hash, state.last_row, state.state, state.checksum())
            )
            connection.execute("INSERT OR IGNORE INTO spec_hashes (spec_hash) VALUES (?)", (state.spec_hash,))
        old = connection.execute(_OLD_SPECS, (SPECS_KEPT,)).fetchall()
        for table in ("feature_states", "spec_hashes"):
            connection.executemany(f"DELETE FROM {table} WHERE spec_hash = ?", old)

    def _write_examples(self, connection: sqlite3.Connection, examples: Iterable[Example]) -> None:
        users = set()
        for example in examples:
            user_id = self._user_id(connection, example.user)
            users.add(user_id)
            connection.execute(
                _REPLACE_EXAMPLE,
                (
                    user_id,
                    example.request,
                    example.item,
                    example.time_ms,
                    example.label,
                    example_bytes(example),
                    example.base_model,
                ),
            )
        connection.executemany(_TRIM_EXAMPLES, [(user_id, self._examples_per_user) for user_id in sorted(users)])

    def _write_patches(self, connection: sqlite3.Connection, patches: Iterable[QueuedPatch]) -> None:
        for patch in patches:
            user_id = self._user_id(connection, patch.user)
            connection.execute(
                _REPLACE_PATCH, (user_id, patch.version, patch.base_model, patch.created_ms, patch.patch)
            )
            connection.execute(_TRIM_PATCHES, (user_id, user_id, PATCHES_PER_USER))

    def _user_id(self, connection: sqlite3.Connection, user: str) -> int:
        found = self._users.get(user)
        if found is None:
            found = _intern(connection, "users", {"user": user})
            _bounded(self._users)[user] = found
        return found

    def _kind_id(self, connection: sqlite3.Connection, kind: str) -> int:
        found = self._kinds.get(kind)
        if found is None:
            found = _intern(connection, "kinds", {"kind": kind})
            _bounded(self._kinds)[kind] = found
        return found

    def _request_id(self, connection: sqlite3.Connection, user_id: int, request: str) -> int:
        found = self._requests.get((user_id, request))
        if found is None:
            found = _intern(connection, "requests", {"user_id": user_id, "request": request})
            _bounded(self._requests)[user_id, request] = found
        return found

    def forget_names(self) -> None:
        """The ids of names may have changed."""
        self._users.clear()
        self._kinds.clear()
        self._requests.clear()


_Key = TypeVar("_Key")


def _bounded(cache: dict[_Key, int]) -> dict[_Key, int]:
    if len(cache) >= _CACHED_NAMES:
        cache.clear()
    return cache


def _intern(connection: sqlite3.Connection, table: str, values: dict[str, object]) -> int:
    """Id of the row with these values, made where it is missing. `table` and columns come from this file."""
    where = " AND ".join(f"{column} = ?" for column in values)
    found = connection.execute(f"SELECT id FROM {table} WHERE {where}", tuple(values.values())).fetchone()
    if found is None:
        marks = ", ".join("?" * len(values))
        cursor = connection.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
        )
        return int(cursor.lastrowid or 0)
    return int(found[0])
