"""A damaged file is set aside, the last backup takes its place, and what can be read of the damaged file joins it.

The steps, each of which may be cut off; the next opening goes on from what it finds:

1. The damaged file and its write-ahead log are renamed to ``<name>.quarantined-<n>``. While such a file exists,
   the restoration is not finished.
2. ``<name>.restoring`` is made anew: a copy of the backup where it is sound, else an empty store, and the readable
   rows of the quarantined files.
3. It is synchronised and renamed to ``<name>``; then the quarantined files are erased. Single users could not be
   erased from them.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rerank_engine.errors import StoreError
from rerank_sdk.store import schema
from rerank_sdk.store.backups import backup_path, drop_file, guard, sync_file, sync_folder, verify_connection
from rerank_sdk.store.encryption import connect
from rerank_sdk.store.rows import INSERT_EVENT, checksum_of_row, decode_anything, state_checksum

_log = logging.getLogger("rerank_sdk.store")

_PAGE_ROWS = 256
_TABLES = ("users", "kinds", "requests", "events", "patches", "examples", "remembered_items", "feature_states",
           "consents", "facts")  # fmt: skip
# How far beyond a page that cannot be read the next row is looked for.
_LONGEST_GAP_ROWS = 1 << 20


class Restored(NamedTuple):
    """What a restoration brought back.

    Attributes
    ----------
    from_backup
        Whether a sound backup was the base.
    backup_events
        Events in it.
    salvaged_events
        Events that the damaged file had and the backup had not.
    unreadable
        Rows of the damaged file that were met and could not be used.
    """

    from_backup: bool
    backup_events: int
    salvaged_events: int
    unreadable: int

    def text(self) -> str:
        """One line for a log."""
        base = f"the backup with {self.backup_events} events" if self.from_backup else "an empty store: no sound backup"
        return (
            f"the file was damaged and is replaced by {base}; {self.salvaged_events} events were salvaged, "
            f"{self.unreadable} rows were unreadable"
        )


def is_damaged(path: Path, key: bytes | None = None) -> str | None:
    """What is wrong with a file of ours, told by a few page reads; None for a sound or a foreign file.

    Looks at the header, the schema and the first pages of every table and index. Damage deeper in the file is
    found when it is read, or by ``verify``; both leave a mark, so that the next opening restores.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError:
        return None
    plain = header.startswith(b"SQLite format 3\x00")
    if len(header) < 100 or plain == (key is not None):
        return None
    if plain:
        version, application = struct.unpack(">i", header[60:64])[0], struct.unpack(">I", header[68:72])[0]
        if application != schema.APPLICATION_ID or version > schema.SCHEMA_VERSION:
            return None
    else:
        try:
            if not schema.inspect(path, key):
                return None
        except StoreError:
            return None  # a wrong key, perhaps: opening will say so
    if damage_mark(path).exists():
        return "damage was met while it was in use"
    try:
        with closing(schema.connect_reader(path, key)) as connection:
            names = connection.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
            for kind, name, table in names:
                if kind == "table":
                    connection.execute(f'SELECT * FROM "{name}" LIMIT 1').fetchall()
                    connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid DESC LIMIT 1').fetchall()
                elif kind == "index" and not name.startswith("sqlite_") and name != "idx_events_event_id":
                    connection.execute(f'SELECT count(*) FROM (SELECT 1 FROM "{table}" INDEXED BY "{name}" LIMIT 1)')
    except StoreError as error:
        return _damage(error.__cause__)
    except sqlite3.Error as error:
        return _damage(error)
    return None


def _damage(error: BaseException | None) -> str | None:
    if isinstance(error, sqlite3.Error) and schema.error_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return str(error)
    return None


def damage_mark(path: Path) -> Path:
    """The file whose existence says that damage was met."""
    return path.with_name(path.name + ".damaged")


def mark_damaged(path: Path) -> None:
    """Make the next opening restore the store; where that cannot be noted, it finds the damage itself."""
    with suppress(OSError):
        damage_mark(path).touch()


def restore(path: Path, on_damage: str, key: bytes | None = None) -> Restored | None:
    """Finish an interrupted restoration; restore a damaged file. None where there was nothing to do.

    Raises
    ------
    StoreError
        The file is damaged and `on_damage` is ``refuse``, or the restoration failed; the damaged file is kept.
    """
    if not path.parent.is_dir() or path.is_dir():
        return None
    if not _quarantined(path) and is_damaged(path, key) is None:
        return None
    if on_damage == "refuse":
        problem = is_damaged(path, key) or "its restoration was cut off"
        raise StoreError(
            f"event store {path}: the file is damaged ({problem}) and was left as it is: "
            'open it with on_damage="restore", or restore a copy'
        )
    with guard(path, "restore the damaged file"):
        if is_damaged(path, key) is not None:  # else another process has restored it meanwhile
            _set_aside(path)
        elif not _quarantined(path):
            return None
        elif path.exists():  # the restoration was complete, only its last step was cut off
            _drop_quarantined(path)
            return None
        try:
            _follow(path)
            result = _rebuild(path, key)
        except (sqlite3.Error, OSError) as error:
            raise schema.store_error(path, "restore the damaged file, which is kept beside it,", error) from error
    _log.warning("event store %s: %s", path, result.text())
    return result


def _quarantined(path: Path) -> list[Path]:
    start = path.name + ".quarantined-"
    return sorted(
        (file for file in path.parent.iterdir() if file.name.startswith(start) and file.name[len(start) :].isdigit()),
        key=lambda file: int(file.name[len(start) :]),
    )


def _set_aside(path: Path) -> None:
    numbers = [int(file.name.rpartition("-")[2]) for file in _quarantined(path)]
    try:
        path.rename(path.with_name(f"{path.name}.quarantined-{max(numbers, default=0) + 1}"))
        sync_folder(path.parent)
        damage_mark(path).unlink(missing_ok=True)
    except OSError as error:
        raise schema.store_error(path, "set the damaged file aside", error) from error


def _follow(path: Path) -> None:
    """Bring the write-ahead log behind its file; it may have been left by an interruption."""
    newest = _quarantined(path)[-1]
    for suffix in ("-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.replace(newest.with_name(newest.name + suffix))
    sync_folder(path.parent)


def _drop_quarantined(path: Path) -> None:
    start = path.name + ".quarantined-"
    for file in path.parent.iterdir():
        if file.name.startswith(start):
            file.unlink(missing_ok=True)
    sync_folder(path.parent)


def _rebuild(path: Path, key: bytes | None) -> Restored:
    fresh, backup = path.with_name(path.name + ".restoring"), backup_path(path)
    drop_file(fresh)
    from_backup = False
    if backup.exists():
        shutil.copyfile(backup, fresh)
        try:
            with closing(schema.connect_writer(fresh, key)) as connection:
                from_backup = not verify_connection(connection).problems
        except StoreError:
            from_backup = False
        if not from_backup:
            drop_file(fresh)
    with closing(schema.connect_writer(fresh, key)) as connection:
        before = connection.execute("SELECT count(*) FROM events").fetchone()[0]
        unreadable = 0
        for damaged in _quarantined(path):
            unreadable += _salvage(damaged, connection, key)
        after = connection.execute("SELECT count(*) FROM events").fetchone()[0]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for suffix in ("-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    sync_file(fresh)
    fresh.replace(path)
    sync_folder(path.parent)
    _drop_quarantined(path)
    return Restored(from_backup, before, after - before, unreadable)


def _salvage(damaged: Path, target: sqlite3.Connection, key: bytes | None) -> int:
    """Bring readable rows of a damaged file into a sound store. Returns how many rows could not be used."""
    try:
        source = connect(str(damaged), key, isolation_level=None)
    except sqlite3.Error:
        return 0
    source.text_factory = decode_anything
    with closing(source):
        rows: dict[str, list[tuple[Any, ...]]] = {}
        unreadable = 0
        for table in _TABLES:
            rows[table], lost = _readable(source, table)
            unreadable += lost
        target.execute("BEGIN IMMEDIATE")
        try:
            unreadable += _merge(rows, target)
            target.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                target.execute("ROLLBACK")
            raise
    return unreadable


_COLUMNS = {
    "users": "id, user",
    "kinds": "id, kind",
    "requests": "id, user_id, request",
    "events": "id, key, user_id, item, kind_id, time_ms, position, request_id, value, attributes, event_id, checksum",
    "patches": "user_id, version, base_model, created_ms, patch",
    "examples": "user_id, request, item, time_ms, label, features, base_model",
    "remembered_items": "item, fields",
    "feature_states": "user_id, spec_hash, last_row, state, checksum",
    "consents": "user_id, record, upload",
    "facts": "name, value",
}


def _readable(source: sqlite3.Connection, table: str) -> tuple[list[tuple[Any, ...]], int]:
    """Rows of a table around the pages that cannot be read, and how many places could not."""
    sql = f"SELECT rowid, {_COLUMNS[table]} FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid LIMIT ?"
    rows: list[tuple[Any, ...]] = []
    last, lost, count, gap = -1, 0, _PAGE_ROWS, 1
    while gap <= _LONGEST_GAP_ROWS:
        try:
            found = source.execute(sql, (last, count)).fetchall()
        except sqlite3.Error:
            if count > 1:  # the damage is somewhere in these rows: come closer
                count = 1
                continue
            lost += gap == 1
            last += gap
            gap *= 2
            continue
        if not found:
            break
        rows.extend(row[1:] for row in found)
        last, gap = found[-1][0], 1
        count = min(_PAGE_ROWS, 2 * count)
    return rows, lost


def _merge(rows: dict[str, list[tuple[Any, ...]]], target: sqlite3.Connection) -> int:
    unusable = 0
    users = {number: name for number, name in rows["users"] if type(name) is str}
    kinds = {number: name for number, name in rows["kinds"] if type(name) is str}
    requests = {number: name for number, _, name in rows["requests"] if type(name) is str}
    made: dict[tuple[object, ...], int] = {}

    def number_of(table: str, column: str, name: str) -> int:
        return _number(target, made, table, (column,), (name,))

    for row in rows["events"]:
        number, key, user_id, item, kind_id, time_ms, position, request_id, value, attributes, event_id, checksum = row
        user, kind, request = users.get(user_id), kinds.get(kind_id), requests.get(request_id)
        content = (key, user, item, kind, time_ms, position, request, value, attributes, event_id)
        if user is None or kind is None or checksum_of_row(content) != checksum:
            unusable += 1
            continue
        owner = number_of("users", "user", user)
        asked = None if request is None else _number(target, made, "requests", ("user_id", "request"), (owner, request))
        target.execute(
            INSERT_EVENT,
            (number, key, owner, item, number_of("kinds", "kind", kind), time_ms, position, asked, value, attributes,
             event_id, checksum),
        )  # fmt: skip

    def of_users(table: str, sound: Callable[[tuple[Any, ...]], bool] = lambda _row: True) -> None:
        nonlocal unusable
        columns = _COLUMNS[table]
        marks = ", ".join("?" * len(columns.split(", ")))
        for user_id, *rest in rows[table]:
            everyone = table == "consents" and user_id == 0
            if not (everyone or user_id in users) or not sound((user_id, *rest)):
                unusable += 1
                continue
            owner = 0 if everyone else number_of("users", "user", users[user_id])
            target.execute(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", (owner, *rest))

    of_users("consents")
    of_users("patches", lambda row: None not in row)
    of_users("examples", lambda row: None not in row)
    of_users("feature_states", lambda row: type(row[3]) is bytes and state_checksum(*row[1:4]) == row[4])
    specs = sorted({row[1] for row in rows["feature_states"] if type(row[1]) is str})
    target.executemany("INSERT OR IGNORE INTO spec_hashes (spec_hash) VALUES (?)", [(name,) for name in specs])
    items = [row for row in rows["remembered_items"] if type(row[0]) is str and type(row[1]) is bytes]
    target.executemany("INSERT OR REPLACE INTO remembered_items (item, fields) VALUES (?, ?)", items)
    facts = [row for row in rows["facts"] if row[0] in ("last_row", "erasures") and type(row[1]) is int]
    target.executemany(
        "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
        facts,
    )
    return unusable


def _number(
    target: sqlite3.Connection,
    made: dict[tuple[object, ...], int],
    table: str,
    columns: tuple[str, ...],
    values: tuple[object, ...],
) -> int:
    found = made.get((table, *values))
    if found is None:
        where = " AND ".join(f"{column} = ?" for column in columns)
        marks = ", ".join("?" * len(columns))
        target.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
        found = int(target.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()[0])
        made[(table, *values)] = found
    return found
