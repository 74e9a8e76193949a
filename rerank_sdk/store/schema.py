"""The file itself: its tables and their migrations, how it is opened, and which files are refused.

Settings, each with its reason:

- WAL with ``synchronous=NORMAL``: a crash of the process loses nothing that was committed. A power cut may
  lose the transactions since the WAL was last synchronised (at a checkpoint), never the consistency of the
  file. Where a file system cannot do WAL, ``synchronous=FULL`` keeps the rollback journal safe.
- ``secure_delete``: freed cells are overwritten with zeros.
- ``auto_vacuum=incremental``: set before the first table, because it cannot be set later without a rewrite.
- ``busy_timeout``: several processes may write; each waits for its turn.
"""

from __future__ import annotations

import functools
import sqlite3
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine.errors import StoreError
from rerank_sdk.store.encryption import connect
from rerank_sdk.store.rows import checksum_of_row

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

APPLICATION_ID = 0x52524B53
"""Marks a SQLite file as an event store ("RRKS")."""

BUSY_TIMEOUT_MS = 5_000
"""How long a writer waits for another process."""

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
# At 4 kB a page. Fewer checkpoints write the inner pages of the indices less often.
_CHECKPOINT_PAGES = 4_000
# Inner pages of the indices stay in memory; taken only as far as it is used. The default of 2 MB cost a fifth of the
# time of writing 60,000 events.
_CACHE_KIB = 8_000
_MIGRATED_ROWS = 4_096


def _m0001_events(db: Database) -> None:
    """Events. User, request and kind are interned: 134 instead of 251 bytes an event where ids are UUIDs."""
    db["users"].create({"id": int, "user": str}, pk="id", not_null={"user"})
    db["users"].create_index(["user"], unique=True)
    db["kinds"].create({"id": int, "kind": str}, pk="id", not_null={"kind"})
    db["kinds"].create_index(["kind"], unique=True)
    # Requests carry their user, so that forgetting a user finds them without a search through the events.
    db["requests"].create({"id": int, "user_id": int, "request": str}, pk="id", not_null={"user_id", "request"})
    db["requests"].create_index(["user_id", "request"], unique=True)
    db["events"].create(
        {
            "id": int,
            "key": bytes,
            "user_id": int,
            "item": str,
            "kind_id": int,
            "time_ms": int,
            "position": int,
            "request_id": int,
            "value": float,
            "attributes": str,
            "event_id": str,
        },
        pk="id",
        not_null={"key", "user_id", "item", "kind_id", "time_ms"},
    )
    db["events"].create_index(["key"], unique=True)
    db["events"].create_index(["user_id", "time_ms"])  # the row id is the last part of every SQLite index
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _m0002_personal(db: Database) -> None:
    """What is learnt about a user: patches and the examples they are trained on."""
    db["patches"].create(
        {"user_id": int, "version": int, "base_model": str, "created_ms": int, "patch": bytes},
        pk=("user_id", "version"),
        not_null={"base_model", "created_ms", "patch"},
    )
    db["examples"].create(
        {
            "id": int,
            "user_id": int,
            "request": str,
            "item": str,
            "time_ms": int,
            "label": float,
            "features": bytes,
            "base_model": str,
        },
        pk="id",
        not_null={"user_id", "request", "item", "time_ms", "label", "features", "base_model"},
    )
    db["examples"].create_index(["user_id", "request", "item"], unique=True)
    db["examples"].create_index(["user_id", "time_ms"])


def _m0003_remembered_items(db: Database) -> None:
    """Items whose fields must survive a restart, and the marks of erasures that are not finished yet."""
    db["remembered_items"].create({"id": int, "item": str, "fields": bytes}, pk="id", not_null={"item", "fields"})
    db["remembered_items"].create_index(["item"], unique=True)
    db["erasures"].create({"id": int}, pk="id")


def _m0004_checked(db: Database) -> None:
    """Checksums of events; one index that finds and recognises them; saved feature states, consents, facts.

    An event without an id agrees in user and time with every other delivery of itself, so the index by user and
    time recognises it too. Only events with an id need an index of their own: half the work of writing.
    """
    db.execute("ALTER TABLE events ADD COLUMN checksum INTEGER")
    cursor = db.execute(
        """SELECT e.key, u.user, e.item, k.kind, e.time_ms, e.position, r.request, e.value, e.attributes, e.event_id,
        e.id FROM events e LEFT JOIN users u ON u.id = e.user_id LEFT JOIN kinds k ON k.id = e.kind_id
        LEFT JOIN requests r ON r.id = e.request_id ORDER BY e.id"""
    )
    while rows := cursor.fetchmany(_MIGRATED_ROWS):
        db.conn.executemany(
            "UPDATE events SET checksum = ? WHERE id = ?", [(checksum_of_row(row[:-1]), row[-1]) for row in rows]
        )
    db.execute("DROP INDEX idx_events_key")
    db.execute("DROP INDEX idx_events_user_id_time_ms")
    db["events"].create_index(["user_id", "time_ms", "key"], unique=True)
    db.execute("CREATE UNIQUE INDEX idx_events_event_id ON events (key) WHERE event_id IS NOT NULL")
    db["feature_states"].create(
        {"user_id": int, "spec_hash": str, "last_row": int, "state": bytes, "checksum": int},
        pk=("user_id", "spec_hash"),
        not_null={"last_row", "state", "checksum"},
    )
    db["spec_hashes"].create({"id": int, "spec_hash": str}, pk="id", not_null={"spec_hash"})
    db["spec_hashes"].create_index(["spec_hash"], unique=True)
    db["consents"].create({"user_id": int, "record": int, "upload": int}, pk="user_id", not_null={"record", "upload"})
    db["facts"].create({"name": str, "value": int}, pk="name", not_null={"value"})


_STEPS = (_m0001_events, _m0002_personal, _m0003_remembered_items, _m0004_checked)

SCHEMA_VERSION = len(_STEPS)
"""Version of the tables that this code reads and writes; stored as ``PRAGMA user_version``."""


@functools.cache
def _migrations() -> Migrations:
    from sqlite_utils import Migrations

    migrations = Migrations("rerank_sdk.store")
    for number, step in enumerate(_STEPS, start=1):

        def apply(db: Database, step: Any = step, number: int = number) -> None:
            step(db)
            db.execute(f"PRAGMA user_version = {number}")

        migrations(name=step.__name__.removeprefix("_"))(apply)
    return migrations


_WAY_OUT = {
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable, or open with read_only_ok=True",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder accessible, or open with read_only_ok=True",
    sqlite3.SQLITE_PERM: "make the file and its folder accessible, or open with read_only_ok=True",
    sqlite3.SQLITE_BUSY: "another process holds the file: let it finish its transaction",
    sqlite3.SQLITE_LOCKED: "another connection holds the file: let it finish its transaction",
    sqlite3.SQLITE_CORRUPT: 'the file is damaged and was left as it is: open it again with on_damage="restore"',
    sqlite3.SQLITE_NOTADB: "it is no SQLite file and was left as it is: give another path",
    sqlite3.SQLITE_IOERR: "check the disk",
}


def error_code(error: BaseException) -> int | None:
    """SQLite's primary result code of an error, or None where there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


_UNWRITABLE = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
)


def is_unwritable(error: StoreError) -> bool:
    """Whether the surroundings are to blame, not the file: no right, no space, another process."""
    cause = error.__cause__
    return isinstance(cause, OSError) or (isinstance(cause, sqlite3.Error) and error_code(cause) in _UNWRITABLE)


def store_error(path: Path, doing: str, error: BaseException) -> StoreError:
    """One line: which file, what was tried, what came, and the way out."""
    code = error_code(error)
    way_out = _WAY_OUT.get(code, "see the cause") if code is not None else "check the path and its permissions"
    return StoreError(f"event store {path}: cannot {doing} ({type(error).__name__}: {error}): {way_out}")


def inspect(path: Path, key: bytes | None = None) -> int:
    """Version of the store at `path`, 0 where there is no table yet. Never changes the file.

    Raises
    ------
    StoreError
        It is a directory, no SQLite file, another application's database, damaged, or of a newer version.
    """
    if path.is_dir():
        raise StoreError(f"event store {path}: expected a file, got a directory: give a file inside it")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise store_error(path, "read the file", error) from error
    if not header:
        return 0
    if key is not None:
        return _inspect_encrypted(path, header, key)
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise StoreError(
            f"event store {path}: expected a SQLite file, got something else: it was left as it is; "
            "give another path, its key if it is encrypted, or restore a copy"
        )
    version, application = struct.unpack(">i", header[60:64])[0], struct.unpack(">I", header[68:72])[0]
    if application != APPLICATION_ID or _has_wal(path):  # the WAL may know better than the first page
        version, application, tables = _inspect_by_sqlite(path)
        if application != APPLICATION_ID:
            if tables:
                raise StoreError(
                    f"event store {path}: the file belongs to another application "
                    f"(application_id {application:#x}, expected {APPLICATION_ID:#x}): give another path"
                )
            return 0
    return check_version(path, version)


def _inspect_encrypted(path: Path, header: bytes, key: bytes) -> int:
    if header.startswith(_MAGIC):
        raise StoreError(f"event store {path}: the file is not encrypted, and was left as it is: open it without a key")
    try:
        version, application, tables = _inspect_by_sqlite(path, key)
    except StoreError as error:
        if error_code(error.__cause__ or error) != sqlite3.SQLITE_NOTADB:
            raise
        raise StoreError(
            f"event store {path}: the key does not fit, or the file is no encrypted store; it was left as it is: "
            "give the key that it was made with"
        ) from error.__cause__
    if application != APPLICATION_ID and tables:
        raise StoreError(
            f"event store {path}: the file belongs to another application "
            f"(application_id {application:#x}, expected {APPLICATION_ID:#x}): give another path"
        )
    return check_version(path, version)


def check_version(path: Path, version: int) -> int:
    """Return `version` if this code can work with it.

    Raises
    ------
    StoreError
        It is newer than :data:`SCHEMA_VERSION`.
    """
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"event store {path}: its schema has version {version}, this release knows {SCHEMA_VERSION}: "
            "upgrade rerank-sdk, or give another path; the file was not changed"
        )
    return version


def file_number(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path: it changes when another takes its place. None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_wal(path: Path) -> bool:
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _inspect_by_sqlite(path: Path, key: bytes | None = None) -> tuple[int, int, int]:
    connection = connect_reader(path, key)
    try:
        return (
            connection.execute("PRAGMA user_version").fetchone()[0],
            connection.execute("PRAGMA application_id").fetchone()[0] & 0xFFFFFFFF,
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0],
        )
    except sqlite3.Error as error:
        raise store_error(path, "read the schema", error) from error
    finally:
        connection.close()


def connect_writer(path: Path, key: bytes | None = None) -> sqlite3.Connection:
    """Open the store for writing; create or migrate it where needed.

    Raises
    ------
    StoreError
        See :func:`inspect`; or the file cannot be written. The cause is chained.
    """
    from sqlite_utils import Database

    inspect(path, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = connect(
            str(path), key, timeout=BUSY_TIMEOUT_MS / 1_000, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise store_error(path, "open it for writing", error) from error
    try:
        database = Database(connection, execute_plugins=False)
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = _enable_wal(database)
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        # The lock comes before the question, so that of several processes one migrates and the others find
        # it done.
        connection.execute("BEGIN IMMEDIATE")
        version = check_version(path, connection.execute("PRAGMA user_version").fetchone()[0])
        if version < SCHEMA_VERSION:
            _migrations().apply(database)
        # On a file that is read-only, BEGIN IMMEDIATE succeeds; a statement that could write does not.
        connection.execute("DELETE FROM users WHERE 0")
        connection.execute("COMMIT")
    except StoreError:
        connection.close()
        raise
    except (OSError, sqlite3.Error) as error:
        connection.close()
        raise store_error(path, "open it for writing", error) from error
    return connection


def connect_memory() -> sqlite3.Connection:
    """Make a store in memory; it is gone with its connection."""
    from sqlite_utils import Database

    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("BEGIN IMMEDIATE")
    _migrations().apply(Database(connection, execute_plugins=False))
    connection.execute("COMMIT")
    return connection


def _enable_wal(database: Database) -> str:
    """Switch to WAL. SQLite does not wait by itself while another process makes the same switch."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_MS / 1_000
    while True:
        try:
            database.enable_wal()
            return str(database.journal_mode)
        except sqlite3.OperationalError as error:
            if error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)


def connect_reader(path: Path, key: bytes | None = None) -> sqlite3.Connection:
    """Open an existing store for reading only.

    A WAL file in a folder that cannot be written needs ``immutable``, which is right only while no WAL is
    left over.

    Raises
    ------
    StoreError
        The file cannot be opened.
    """
    address = path.absolute().as_uri()
    for option in ("mode=ro", "immutable=1"):
        if option == "immutable=1" and _has_wal(path):
            continue
        try:
            connection = connect(
                f"{address}?{option}",
                key,
                uri=True,
                timeout=BUSY_TIMEOUT_MS / 1_000,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            failure = error
            continue
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.Error as error:
            connection.close()
            failure = error
            if error_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                break
    raise store_error(path, "open it for reading", failure) from failure
