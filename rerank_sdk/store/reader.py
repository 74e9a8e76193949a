"""The one connection that reads: short queries, each its own snapshot, so that none holds the WAL back."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rerank_engine.errors import StoreError
from rerank_features.events import Event
from rerank_sdk.store import schema
from rerank_sdk.store.rows import Example, StoredPatch, event_from_row, example_from_row

# LEFT JOIN pins the order of the loops: events by their index, names by their ids.
_EVENTS = """
    SELECT e.id, e.key, e.item, k.kind, e.time_ms, e.position, r.request, e.value, e.attributes, e.event_id
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
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._refusal: str | None = None

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
                yield StoredEvent(row[4], row[0], row[1], event_from_row(user, row[2:]))
            if len(rows) < page:
                return
            last_ms, last_id = rows[-1][4], rows[-1][0]

    def has_event(self, key: bytes) -> bool:
        """Whether an event with this key is in the file."""
        return bool(self._rows("SELECT 1 FROM events WHERE key = ?", (key,)))

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
            if self._connection is None:
                if not self._path.exists() or not self._path.stat().st_size:
                    return []
                self._connection = schema.connect_reader(self._path)
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise schema.store_error(self._path, "read", error) from error
