"""Backups: a checked copy beside the store, replaced only by a checked copy, erased before anybody is forgotten."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rerank_engine.errors import StoreError
from rerank_sdk.store import schema
from rerank_sdk.store.encryption import connect
from rerank_sdk.store.rows import checksum_of_row, decode_anything, state_checksum

_PAGES_A_STEP = 1_024
_PAGE_ROWS = 4_096
_SUFFIXES = ("", "-wal", "-shm", "-journal")

_ROWS = """
    SELECT e.key, u.user, e.item, k.kind, e.time_ms, e.position, r.request, e.value, e.attributes, e.event_id,
    e.checksum, e.id FROM events e LEFT JOIN users u ON u.id = e.user_id LEFT JOIN kinds k ON k.id = e.kind_id
    LEFT JOIN requests r ON r.id = e.request_id WHERE e.id > ? ORDER BY e.id LIMIT ?"""


class Verification(NamedTuple):
    """What :meth:`~rerank_sdk.store.EventStore.verify` found.

    Attributes
    ----------
    events
        Events that were looked at.
    damaged_events
        Those that do not agree with their checksums.
    damaged_states
        Saved feature states that do not agree with theirs.
    problems
        What SQLite found in the file; empty where it is sound.
    """

    events: int
    damaged_events: int
    damaged_states: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not (self.damaged_events or self.damaged_states or self.problems)


def backup_path(path: Path) -> Path:
    """Where the backup of a store lies."""
    return path.with_name(path.name + ".backup")


@contextmanager
def guard(path: Path, doing: str, *, wait_s: float = schema.BUSY_TIMEOUT_MS / 1_000) -> Iterator[None]:
    """One process copies or restores at a time. SQLite's own lock ends with the process, however that ends.

    Raises
    ------
    StoreError
        Another process still does so after `wait_s`.
    """
    file = path.with_name(path.name + ".restoring-guard")
    try:
        connection = sqlite3.connect(file, timeout=wait_s, isolation_level=None)
    except sqlite3.Error as error:
        raise schema.store_error(path, doing, error) from error
    # The file stays: who waits for it must wait for the same one as who comes later.
    with closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            raise schema.store_error(path, doing, error) from error
        yield


def half_made_path(path: Path) -> Path:
    """Where a backup is made; whoever holds the :func:`guard` owns it."""
    return path.with_name(path.name + ".backup.new")


def drop_half_made(path: Path) -> None:
    """Erase what a killed process left of its backup; one that is being made at the moment stays."""
    fresh = half_made_path(path)
    if any(fresh.with_name(fresh.name + suffix).exists() for suffix in _SUFFIXES):
        with suppress(StoreError, OSError), guard(path, "erase half a backup", wait_s=0.0):
            drop_file(fresh)


def drop_file(path: Path) -> None:
    """Erase a SQLite file with what SQLite lays beside it."""
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames and erasures in a folder durable, where the system can."""
    with suppress(OSError):  # Windows opens no folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def verify_connection(connection: sqlite3.Connection) -> Verification:
    """Check pages, indices and every checksum; what cannot be read is a problem, not an error."""
    problems: list[str] = []
    events = damaged = damaged_states = 0
    decode, connection.text_factory = connection.text_factory, decode_anything
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
        problems = [text for text in found if text != "ok"]
        last = 0
        while rows := connection.execute(_ROWS, (last, _PAGE_ROWS)).fetchall():
            last = rows[-1][-1]
            events += len(rows)
            damaged += sum(checksum_of_row(row[:-2]) != row[-2] for row in rows)
        for spec_hash, last_row, state, checksum in connection.execute(
            "SELECT spec_hash, last_row, state, checksum FROM feature_states"
        ):
            damaged_states += type(state) is not bytes or state_checksum(spec_hash, last_row, state) != checksum
    except sqlite3.DatabaseError as error:
        problems.append(str(error))
    finally:
        connection.text_factory = decode
    return Verification(events, damaged, damaged_states, tuple(dict.fromkeys(problems)))


def take_backup(connection: sqlite3.Connection, path: Path, now_ms: int | None, key: bytes | None = None) -> Path:
    """Copy the store, check the copy, and let it replace the older backup.

    A user may be forgotten by another process while the copy is made: forgetting erases backups after it has
    erased the rows, and a backup that replaced another is erased where the count of erasures has changed since
    it was copied. So in every order of these steps no backup with the user's rows stays.

    Raises
    ------
    StoreError
        The copy could not be made, or is damaged; the older backup is untouched.
    """
    with guard(path, "take a backup"):
        return _take_backup(connection, path, now_ms, key)


def _take_backup(connection: sqlite3.Connection, path: Path, now_ms: int | None, key: bytes | None) -> Path:
    target, fresh = backup_path(path), half_made_path(path)
    try:
        drop_file(fresh)
        with closing(connect(str(fresh), key, isolation_level=None)) as copy:
            connection.backup(copy, pages=_PAGES_A_STEP, sleep=0.0)
            copy.execute("PRAGMA journal_mode = DELETE")
            if now_ms is not None:
                copy.execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('backup_ms', ?)", (now_ms,))
            erasures = count_erasures(copy)
            found = verify_connection(copy)
        if found.problems:
            raise StoreError(
                f"event store {path}: the backup is not sound ({found.problems[0]}) and was not kept: "
                "open the store again, so that it is restored"
            )
        sync_file(fresh)
        fresh.replace(target)
        sync_folder(path.parent)
        if count_erasures(connection) != erasures:
            drop_file(target)
            sync_folder(path.parent)
            raise StoreError(
                f"event store {path}: a user was forgotten while the backup was made, so it was erased: take it again"
            )
    except (sqlite3.Error, OSError) as error:
        raise schema.store_error(path, "take a backup", error) from error
    finally:
        with suppress(OSError):
            drop_file(fresh)
    return target


def count_erasures(connection: sqlite3.Connection) -> int:
    """How often somebody was forgotten."""
    row = connection.execute("SELECT value FROM facts WHERE name = 'erasures'").fetchone()
    return int(row[0]) if row else 0


def backup_time_ms(path: Path, key: bytes | None = None) -> int | None:
    """When the backup was taken, as its caller said; None where there is none, or it cannot be read."""
    target = backup_path(path)
    if not target.exists():
        return None
    try:
        with closing(schema.connect_reader(target, key)) as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = 'backup_ms'").fetchone()
            return int(row[0]) if row else None
    except (StoreError, sqlite3.Error):
        return None


def drop_copies(path: Path) -> None:
    """Erase every copy of the store: backups, also half made ones, and quarantined files.

    Raises
    ------
    StoreError
        A copy could not be erased.
    """
    starts = tuple(path.name + ending for ending in (".backup", ".quarantined-"))
    restoring = {f"{path.name}.restoring{suffix}" for suffix in _SUFFIXES}
    try:
        copies = [file for file in path.parent.iterdir() if file.name.startswith(starts) or file.name in restoring]
        for file in copies:
            file.unlink(missing_ok=True)
        if copies:
            sync_folder(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise schema.store_error(path, "erase its backups", error) from error
