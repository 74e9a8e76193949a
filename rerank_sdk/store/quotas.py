"""Limits of the store, and pruning: the oldest events go, in small transactions, and only when a state covers them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from rerank_engine.errors import InputError
from rerank_sdk.store.recorder import Recorder
from rerank_sdk.store.rows import check_time, state_checksum
from rerank_sdk.store.writer import BatchWriter

DAY_MS = 86_400_000

_ROWS_A_TRANSACTION = 1_000
_LEAST_ROWS_A_ROUND = 256

_USERS_TO_GO = "SELECT DISTINCT u.user FROM events e JOIN users u ON u.id = e.user_id WHERE {goes}"
_TO_GO = "SELECT e.id, e.user_id FROM events e WHERE e.id > ? AND {goes} {covered} ORDER BY e.id LIMIT ?"
_COVERED = "AND e.id <= coalesce((SELECT c.last_row FROM temp.covered c WHERE c.user_id = e.user_id), 0)"
_STATES_OF_USER = """
    SELECT s.user_id, s.spec_hash, s.last_row, s.state, s.checksum
    FROM feature_states s JOIN users u ON u.id = s.user_id WHERE u.user = ?"""
_UNUSED_USERS = """
    DELETE FROM users WHERE id NOT IN (SELECT user_id FROM events) AND id NOT IN (SELECT user_id FROM examples)
    AND id NOT IN (SELECT user_id FROM patches) AND id NOT IN (SELECT user_id FROM feature_states)
    AND id NOT IN (SELECT user_id FROM consents)"""
_UNUSED_REQUESTS = "DELETE FROM requests WHERE id NOT IN (SELECT request_id FROM events WHERE request_id IS NOT NULL)"


@dataclass(frozen=True)
class StoreLimits:
    """How much the store may keep. What is None has no limit.

    Attributes
    ----------
    max_bytes
        Bytes of the pages in use.
    max_rows
        Events.
    max_age_days
        Age of an event by its own time.

    Raises
    ------
    InputError
        A limit is no whole number from 1 on.

    Examples
    --------
    >>> StoreLimits(max_rows=100_000, max_age_days=90).max_rows
    100000
    """

    max_bytes: int | None = None
    max_rows: int | None = None
    max_age_days: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_rows", "max_age_days"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"{name}: expected a whole number from 1 on, or None, got {value!r}")


class Pruned(NamedTuple):
    """What :meth:`~rerank_sdk.store.EventStore.prune` did.

    Attributes
    ----------
    rows
        Events that went.
    users
        How many users lost events.
    bytes_freed
        By how much the pages in use became less.
    over_rows, over_bytes
        By how much the store is still over its limits, because no saved state covers the rest.
    """

    rows: int
    users: int
    bytes_freed: int
    over_rows: int
    over_bytes: int


class _Pruning:
    """One run. Between the transactions other threads write, and the caller saves states."""

    def __init__(
        self, recorder: Recorder, writer: BatchWriter, before_erase: Callable[[tuple[str, ...]], object] | None
    ) -> None:
        self._recorder = recorder
        self._writer = writer
        self._before_erase = before_erase
        self._told: set[str] = set()
        self._users: set[int] = set()
        self.rows = 0

    @property
    def users(self) -> int:
        return len(self._users)

    def ask(self, question: str, *parameters: object) -> int:
        """One number from the file."""
        with self._writer.paused():
            found = self._recorder.transact(
                "prune", lambda connection: connection.execute(question, parameters).fetchone()
            )
        return int(found[0]) if found else 0

    def used_bytes(self) -> int:
        """Bytes of the pages that hold something."""
        free, pages = self.ask("PRAGMA freelist_count"), self.ask("PRAGMA page_count")
        return (pages - free) * self.ask("PRAGMA page_size")

    def erase(self, goes: str, *parameters: object) -> int:
        """Erase what `goes` chooses and a state covers, oldest first. Returns how many events went."""
        if self._before_erase is not None:
            with self._writer.paused():
                found = self._recorder.transact(
                    "prune",
                    lambda connection: connection.execute(_USERS_TO_GO.format(goes=goes), parameters).fetchall(),
                )
            names = sorted(row[0] for row in found)
            new = tuple(name for name in names if name not in self._told)
            if new:
                self._before_erase(new)
                self._told.update(new)
                self._writer.flush()
            with self._writer.paused():
                self._recorder.transact("prune", lambda connection: _list_covered(connection, names))
        erased, last = 0, 0
        while True:
            work = partial(self._erase_some, goes=goes, parameters=parameters, after=last)
            with self._writer.paused():
                rows = self._recorder.transact("prune", work)
            if not rows:
                break
            last = rows[-1][0]
            erased += len(rows)
        self.rows += erased
        return erased

    def _erase_some(
        self, connection: sqlite3.Connection, goes: str, parameters: tuple[object, ...], after: int
    ) -> list[tuple[int, int]]:
        covered = ""
        if self._before_erase is not None:
            covered = _COVERED
        rows: list[tuple[int, int]] = connection.execute(
            _TO_GO.format(goes=goes, covered=covered), (after, *parameters, _ROWS_A_TRANSACTION)
        ).fetchall()
        if rows:
            self._recorder.keep_last_row(connection)
            connection.executemany("DELETE FROM events WHERE id = ?", [(row,) for row, _ in rows])
            # A state whose tail is gone can never be brought up to date again.
            connection.executemany(
                "DELETE FROM feature_states WHERE user_id = ? AND last_row < ?",
                [(user_id, row) for user_id, row in {user_id: row for row, user_id in rows}.items()],
            )
            self._users.update(user_id for _, user_id in rows)
        return rows


def _list_covered(connection: sqlite3.Connection, users: list[str]) -> None:
    """The last row that a sound state of each user holds, as a temporary table."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS covered (user_id INTEGER PRIMARY KEY, last_row INTEGER)")
    connection.execute("DELETE FROM temp.covered")
    for user in users:
        for user_id, spec_hash, last_row, state, checksum in connection.execute(_STATES_OF_USER, (user,)).fetchall():
            if state_checksum(spec_hash, last_row, state) == checksum:
                connection.execute(
                    "INSERT INTO temp.covered VALUES (?, ?) ON CONFLICT DO UPDATE SET last_row = "
                    "max(last_row, excluded.last_row)",
                    (user_id, last_row),
                )


def prune(
    recorder: Recorder,
    writer: BatchWriter,
    limits: StoreLimits,
    now_ms: int,
    before_erase: Callable[[tuple[str, ...]], object] | None,
) -> Pruned:
    """Erase what is over the limits; see :meth:`rerank_sdk.store.EventStore.prune`.

    Raises
    ------
    StoreError
        The file cannot be written. What went before stays gone.
    """
    check_time(now_ms, "now_ms")
    writer.flush()
    run = _Pruning(recorder, writer, before_erase)
    before = run.used_bytes()
    if limits.max_age_days is not None:
        run.erase("e.time_ms < ?", now_ms - limits.max_age_days * DAY_MS)
    if limits.max_rows is not None:
        excess = run.ask("SELECT count(*) FROM events") - limits.max_rows
        if excess > 0:
            run.erase("e.id <= ?", run.ask("SELECT id FROM events ORDER BY id LIMIT 1 OFFSET ?", excess - 1))
    if limits.max_bytes is not None:
        _tidy(recorder, writer)
        while (used := run.used_bytes()) > limits.max_bytes:
            count = run.ask("SELECT count(*) FROM events")
            share = math.ceil(count * (1 - limits.max_bytes / used))
            going = min(count, max(share, _LEAST_ROWS_A_ROUND))
            last = run.ask("SELECT id FROM events ORDER BY id LIMIT 1 OFFSET ?", going - 1) if going else 0
            if not run.erase("e.id <= ?", last):
                break
            _tidy(recorder, writer)
    _tidy(recorder, writer)
    with writer.paused():
        recorder.give_back_pages()
    after = run.used_bytes()
    over_rows = 0 if limits.max_rows is None else max(0, run.ask("SELECT count(*) FROM events") - limits.max_rows)
    over_bytes = 0 if limits.max_bytes is None else max(0, after - limits.max_bytes)
    return Pruned(run.rows, run.users, max(0, before - after), over_rows, over_bytes)


def _tidy(recorder: Recorder, writer: BatchWriter) -> None:
    """Requests and users of whom nothing is left go too."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute(_UNUSED_REQUESTS)
        connection.execute(_UNUSED_USERS)

    with writer.paused():
        recorder.transact("prune", work)
        recorder.forget_names()
