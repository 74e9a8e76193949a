"""The one connection that reads: short queries, each its own snapshot, so that none holds the WAL back."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from rerank_engine.errors import StoreError
from rerank_features.events import Event
from rerank_sdk.store import schema
from rerank_sdk.store.consent import READ_CONSENTS, Consent, consents_of_rows
from rerank_sdk.store.quarantine import mark_damaged
from rerank_sdk.store.recorder import Recorder
from rerank_sdk.store.rows import (
    Example,
    StoredPatch,
    StoredState,
    checksum_of_row,
    decode_anything,
    event_from_row,
    example_from_row,
    state_checksum,
)

# LEFT JOIN pins the order of the loops: events by their index, names by their ids.
_EVENTS = """
    SELECT e.id, e.key, e.item, k.kind, e.time_ms, e.position, r.request, e.value, e.attributes, e.event_id, e.checksum
    FROM events e LEFT JOIN kinds k ON k.id = e.kind_id LEFT JOIN requests r ON r.id = e.request_id
    WHERE e.user_id = (SELECT id FROM users WHERE user = ?)
      AND (e.time_ms, e.id) > (?, ?) AND e.time_ms < ? {kinds}
    ORDER BY e.time_ms, e.id LIMIT ?"""
_EXAMPLES = """
    SELECT request, item, time_ms, label, features, base_model FROM examples
    WHERE user_id = (SELECT id FROM users WHERE user = ?) ORDER BY time_ms, id"""
_PATCHES = """
    SELECT patch, version, base_model, created_ms FROM patches
    WHERE user_id = (SELECT id FROM users WHERE user = ?) ORDER BY version"""
_COUNT_OF_USER = "SELECT count(*) FROM events WHERE user_id = (SELECT id FROM users WHERE user = ?)"


_HAS_EVENT = "SELECT 1 FROM events WHERE user_id = (SELECT id FROM users WHERE user = ?) AND time_ms = ? AND key = ?"
_OF_USER = "e.user_id = (SELECT id FROM users WHERE user = ?)"
_AFTER = """
    SELECT e.id, e.key, e.item, k.kind, e.time_ms, e.position, r.request, e.value, e.attributes, e.event_id, e.checksum
    FROM events e LEFT JOIN kinds k ON k.id = e.kind_id LEFT JOIN requests r ON r.id = e.request_id
    WHERE """
_TAIL = _AFTER + f"+{_OF_USER} AND e.id > ? ORDER BY e.id LIMIT ?"
_BY_USER = (
    _AFTER
    + "e.id IN (SELECT id FROM events e INDEXED BY idx_events_user_id_time_ms_key "
    + f"WHERE {_OF_USER} AND +e.id > ? ORDER BY id LIMIT ?) ORDER BY e.id"
)
_LAST_ROW = f"SELECT max(+e.id) FROM events e WHERE {_OF_USER}"
_SHORT_TAIL_ROWS = 10_000
_STATE = """
    SELECT state, last_row, checksum FROM feature_states
    WHERE user_id = (SELECT id FROM users WHERE user = ?) AND spec_hash = ?"""
_SPECS_OF_USER = """
    SELECT spec_hash FROM feature_states WHERE user_id = (SELECT id FROM users WHERE user = ?) ORDER BY spec_hash"""
_DECODING = "Could not decode to UTF-8"
_COUNTED_DAMAGED = 100_000

_log = logging.getLogger("rerank_sdk.store")


class StoredEvent(NamedTuple):
    """An event with its place in the order of reading."""

    time_ms: int
    order: int
    key: bytes
    event: Event


class Reader:
    """Reads from the file; every method may be called from any thread.

    Parameters
    ----------
    path
        The store's file. While it does not exist, the store is empty.
    memory
        The recorder whose connection is read, where the store has no file.
    key
        Of an encrypted file.
    """

    def __init__(self, path: Path, memory: Recorder | None = None, key: bytes | None = None) -> None:
        self._path = path
        self._key = key
        self._memory = memory
        self._lock: AbstractContextManager[bool] = threading.Lock() if memory is None else memory.lock
        self._connection: sqlite3.Connection | None = None
        self._refusal: str | None = None
        self._file: tuple[int, int] | None = None
        self._damaged: set[int] = set()

    def events(
        self, user: str, start_ms: int, end_ms: int, kinds: tuple[str, ...] | None, page: int
    ) -> Iterator[StoredEvent]:
        """Events of one user with ``start_ms <= time_ms < end_ms``, in order, read `page` rows at a time."""
        marks = "" if kinds is None else ", ".join("?" * len(kinds))
        wanted = "" if kinds is None else f"AND e.kind_id IN (SELECT id FROM kinds WHERE kind IN ({marks}))"
        sql = _EVENTS.format(kinds=wanted)
        last_ms, last_id = start_ms, -1
        while True:
            rows = self._rows(sql, (user, last_ms, last_id, end_ms, *(kinds or ()), page))
            for row in rows:
                event = self._checked(user, row)
                if event is not None:
                    yield StoredEvent(row[4], row[0], row[1], event)
            if len(rows) < page:
                return
            last_ms, last_id = rows[-1][4], rows[-1][0]

    def _checked(self, user: str, row: tuple[Any, ...]) -> Event | None:
        """The event of a row; None where the row does not agree with its checksum."""
        number, key, *content, checksum = row
        if checksum_of_row((key, user, *content)) == checksum:
            try:
                return event_from_row(user, tuple(content))
            except StoreError:  # its checksum is right, but it was made by something else
                pass
        if number not in self._damaged:
            if not self._damaged:
                _log.warning("event store %s: a damaged row is left out; verify() counts all of them", self._path)
            if len(self._damaged) < _COUNTED_DAMAGED:
                self._damaged.add(number)
        return None

    @property
    def damaged_rows(self) -> int:
        """Rows that were met so far and do not agree with their checksums."""
        return len(self._damaged)

    def has_event(self, event: Event, key: bytes) -> bool:
        """Whether this event is in the file."""
        return bool(
            self._rows("SELECT 1 FROM events WHERE key = ? AND event_id IS NOT NULL", (key,))
            if event.id is not None
            else self._rows(_HAS_EVENT, (event.user, event.time_ms, key))
        )

    def users(self) -> list[str]:
        """Everybody of whom something is in the file."""
        return [row[0] for row in self._rows("SELECT user FROM users", ())]

    def count(self, user: str | None) -> int:
        """How many events are in the file."""
        rows = self._rows("SELECT count(*) FROM events", ()) if user is None else self._rows(_COUNT_OF_USER, (user,))
        return int(rows[0][0]) if rows else 0

    def examples(self, user: str) -> list[Example]:
        """Training examples of one user, by time."""
        return [example_from_row(user, row) for row in self._rows(_EXAMPLES, (user,))]

    def patches(self, user: str) -> list[StoredPatch]:
        """Patches of one user, by version."""
        return [StoredPatch(*row) for row in self._rows(_PATCHES, (user,))]

    def items(self) -> list[tuple[str, bytes]]:
        """Remembered items, the longest known first."""
        return self._rows("SELECT item, fields FROM remembered_items ORDER BY id", ())

    def last_row(self, user: str) -> int:
        """Number of the user's last row, 0 where there is none."""
        rows = self._rows(_LAST_ROW, (user,))
        return int(rows[0][0] or 0) if rows else 0

    def events_after(self, user: str, row: int, page: int) -> Iterator[tuple[int, bytes, Event]]:
        """Events of one user behind `row`, in order of arrival, with number and key."""
        newest = self._rows("SELECT max(id) FROM events", ())
        # A short tail of the file is read whole; a long one would be read in vain for most users.
        sql = _TAIL if newest and (newest[0][0] or 0) - row <= _SHORT_TAIL_ROWS else _BY_USER
        while True:
            rows = self._rows(sql, (user, row, page))
            for found in rows:
                event = self._checked(user, found)
                if event is not None:
                    yield found[0], found[1], event
            if len(rows) < page:
                return
            row = rows[-1][0]

    def state(self, user: str, spec_hash: str) -> StoredState | None:
        """The user's state for a spec; None where it is damaged."""
        for state, last_row, checksum in self._rows(_STATE, (user, spec_hash)):
            if (
                type(state) is bytes
                and type(last_row) is int
                and state_checksum(spec_hash, last_row, state) == checksum
            ):
                return StoredState(state, last_row)
            _log.warning("event store %s: a damaged feature state is left out", self._path)
        return None

    def states(self, user: str) -> list[tuple[str, StoredState]]:
        """All sound states of a user, by spec hash."""
        found = []
        for (spec_hash,) in self._rows(_SPECS_OF_USER, (user,)):
            state = self.state(user, spec_hash)
            if state is not None:
                found.append((spec_hash, state))
        return found

    def consents(self) -> list[tuple[str | None, Consent]]:
        """Stored answers; None stands for everyone."""
        return consents_of_rows(self._rows(READ_CONSENTS, ()))

    def close(self) -> None:
        """Close the connection for good. Closing again does nothing."""
        self.refuse("the event store is closed: open it again")
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def refuse(self, reason: str) -> None:
        """From now on every method raises StoreError with this reason."""
        self._refusal = reason

    def abandon(self, reason: str) -> None:
        """In a forked child: the connection is the parent's and must not be touched, also not closed."""
        self._lock = threading.Lock()
        self.refuse(reason)

    def _rows(self, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            if self._refusal is not None:
                raise StoreError(self._refusal)
            if self._memory is not None:
                return self._memory.connect().execute(sql, parameters).fetchall()
            if self._connection is not None and schema.file_number(self._path) != self._file:
                self._connection.close()  # another process has restored the file: this one is set aside
                self._connection = None
            if self._connection is None:
                if not self._path.exists() or not self._path.stat().st_size:
                    return []
                self._connection = schema.connect_reader(self._path, self._key)
                self._file = schema.file_number(self._path)
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                if _DECODING in str(error):
                    return self._damaged_text(self._connection, sql, parameters)
                if schema.error_code(error) == sqlite3.SQLITE_CORRUPT:
                    mark_damaged(self._path)
                raise schema.store_error(self._path, "read", error) from error

    def _damaged_text(self, connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Read rows of which one holds text that is no UTF-8; the checksum tells which."""
        connection.text_factory = decode_anything
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise schema.store_error(self._path, "read", error) from error
        finally:
            connection.text_factory = str
