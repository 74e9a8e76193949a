"""Which files are opened, made, migrated or refused; none that is refused may change."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys

import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, schema

EVENT = Event(user="u1", item="i1", kind="click", time_ms=1_000)


def make(path):
    with EventStore.open(path) as store:
        store.append(EVENT)
    return path


def digest(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def change(path, *statements):
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def ask(path, question):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def test_a_new_file_has_the_settings(tmp_path):
    path = make(tmp_path / "new" / "folder" / "events.db")
    assert ask(path, "PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]
    assert ask(path, "PRAGMA auto_vacuum") == [(2,)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    names = [row[0] for row in ask(path, "SELECT name FROM _sqlite_migrations ORDER BY id")]
    assert names == ["m0001_events", "m0002_personal", "m0003_remembered_items", "m0004_checked"]


def test_the_writing_connection_has_its_settings(tmp_path):
    connection = schema.connect_writer(tmp_path / "events.db")
    settings = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("secure_delete", "synchronous", "busy_timeout")
    }
    connection.close()
    assert settings == {"secure_delete": 1, "synchronous": 1, "busy_timeout": 5_000}


def test_reading_uses_the_index_and_sorts_nothing(tmp_path):
    path = make(tmp_path / "events.db")
    from rerank_sdk.store import reader

    plan = ask(path, "EXPLAIN QUERY PLAN " + reader._EVENTS.format(kinds="").replace("?", "1"))
    text = " ".join(str(row[-1]) for row in plan)
    assert "idx_events_user_id_time_ms" in text
    assert "TEMP B-TREE FOR ORDER BY" not in text  # at most events of one millisecond are sorted


def test_an_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "events.db"
    path.touch()
    make(path)
    assert ask(path, "SELECT count(*) FROM events") == [(1,)]


def test_a_sqlite_file_without_tables_becomes_a_store(tmp_path):
    path = tmp_path / "events.db"
    change(path, "PRAGMA journal_mode = wal", "PRAGMA user_version = 0")
    make(path)
    assert ask(path, "SELECT count(*) FROM events") == [(1,)]


VERSION_2 = """
CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT);
CREATE UNIQUE INDEX idx_migrations ON _sqlite_migrations (migration_set, name);
INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES
    ('rerank_sdk.store', 'm0001_events', '2026-01-01'), ('rerank_sdk.store', 'm0002_personal', '2026-01-01');
CREATE TABLE users (id INTEGER PRIMARY KEY, user TEXT NOT NULL);
CREATE UNIQUE INDEX idx_users_user ON users (user);
CREATE TABLE kinds (id INTEGER PRIMARY KEY, kind TEXT NOT NULL);
CREATE UNIQUE INDEX idx_kinds_kind ON kinds (kind);
CREATE TABLE requests (id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL, request TEXT NOT NULL);
CREATE UNIQUE INDEX idx_requests_user_id_request ON requests (user_id, request);
CREATE TABLE events (id INTEGER PRIMARY KEY, key BLOB NOT NULL, user_id INTEGER NOT NULL, item TEXT NOT NULL,
    kind_id INTEGER NOT NULL, time_ms INTEGER NOT NULL, position INTEGER, request_id INTEGER, value REAL,
    attributes TEXT, event_id TEXT);
CREATE UNIQUE INDEX idx_events_key ON events (key);
CREATE INDEX idx_events_user_id_time_ms ON events (user_id, time_ms);
CREATE TABLE patches (user_id INTEGER, version INTEGER, base_model TEXT NOT NULL, created_ms INTEGER NOT NULL,
    patch BLOB NOT NULL, PRIMARY KEY (user_id, version));
CREATE TABLE examples (id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL, request TEXT NOT NULL,
    item TEXT NOT NULL, time_ms INTEGER NOT NULL, label REAL NOT NULL, features BLOB NOT NULL,
    base_model TEXT NOT NULL);
CREATE UNIQUE INDEX idx_examples_user_id_request_item ON examples (user_id, request, item);
CREATE INDEX idx_examples_user_id_time_ms ON examples (user_id, time_ms);
INSERT INTO users VALUES (7, 'u1');
INSERT INTO kinds VALUES (4, 'dwell');
INSERT INTO requests VALUES (9, 7, 'r1');
INSERT INTO events VALUES (1, x'000102030405060708090a0b0c0d0e0f', 7, 'i1', 4, 1000, 3, 9, 2.5, '{"a":1}', NULL);
INSERT INTO patches VALUES (7, 1, 'sha256:ab', 5, x'01');
"""


def make_version_2(path):
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_2)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    return path


def test_the_version_before_is_migrated_with_its_rows(tmp_path):
    path = make_version_2(tmp_path / "events.db")
    with EventStore.open(path) as store:
        store.save_items([("i1", b"{}")])
        assert list(store.read()) == [
            Event(
                user="u1",
                item="i1",
                kind="dwell",
                time_ms=1_000,
                position=3,
                request="r1",
                value=2.5,
                attributes={"a": 1},
            )
        ]
        assert store.load_patch("u1").patch == b"\x01"
        assert store.load_items() == {"i1": b"{}"}
    assert ask(path, "PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]


def test_a_failing_migration_leaves_the_version_before(tmp_path, monkeypatch):
    path = make_version_2(tmp_path / "events.db")

    def fail(database):
        database["remembered_items"].create({"id": int}, pk="id")
        raise sqlite3.OperationalError("stopped half way")

    monkeypatch.setattr(schema, "_STEPS", (*schema._STEPS[:2], fail))
    schema._migrations.cache_clear()
    try:
        with pytest.raises(StoreError, match="half way"):
            EventStore.open(path)
    finally:
        schema._migrations.cache_clear()
    assert ask(path, "PRAGMA user_version") == [(2,)]
    assert ask(path, "SELECT count(*) FROM sqlite_master WHERE name = 'remembered_items'") == [(0,)]


@pytest.mark.parametrize("read_only_ok", [False, True])
def test_a_newer_version_is_refused_and_left_as_it_is(tmp_path, read_only_ok):
    path = make(tmp_path / "events.db")
    change(path, f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    before = digest(tmp_path)
    with pytest.raises(
        StoreError, match=rf"version {schema.SCHEMA_VERSION + 1}.*knows {schema.SCHEMA_VERSION}.*upgrade"
    ):
        EventStore.open(path, read_only_ok=read_only_ok)
    assert digest(tmp_path) == before


def test_a_newer_version_is_seen_while_it_is_in_a_left_over_wal_only(tmp_path):
    path = make(tmp_path / "events.db")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("events.db", "events.db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    holder.close()
    before = digest(crashed)
    with pytest.raises(StoreError, match="upgrade"):
        EventStore.open(crashed / "events.db")
    assert {name: one for name, one in digest(crashed).items() if not name.endswith("-shm")} == before


@pytest.mark.parametrize(
    "content",
    [b"not a database, only text", b"SQLite format 3\x00", b"SQLite format 3\x00" + bytes(4_080), b"\0" * 8_192],
)
@pytest.mark.parametrize("read_only_ok", [False, True])
def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path, content, read_only_ok):
    path = tmp_path / "events.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"events\.db"):
        EventStore.open(path, read_only_ok=read_only_ok)
    assert path.read_bytes() == content


def test_another_applications_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "events.db"
    change(path, "CREATE TABLE notes (note TEXT)", "PRAGMA user_version = 3")
    before = digest(tmp_path)
    with pytest.raises(StoreError, match="another application"):
        EventStore.open(path)
    assert digest(tmp_path) == before


@pytest.mark.parametrize("read_only_ok", [False, True])
def test_a_file_with_a_broken_schema_page_is_left_as_it_is_where_damage_is_refused(tmp_path, read_only_ok):
    path = make(tmp_path / "events.db")
    content = bytearray(path.read_bytes())
    content[100:4_096] = b"\xff" * 3_996
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged.*left as it is"):
        EventStore.open(path, read_only_ok=read_only_ok, on_damage="refuse")
    assert path.read_bytes() == bytes(content)
    assert {file.name for file in tmp_path.iterdir()} <= {"events.db", "events.db-wal", "events.db-shm"}


def test_damage_inside_the_file_is_reported_and_events_stay_queued(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([Event(user="u1", item=f"i{n}", kind="click", time_ms=n) for n in range(500)])
    pages = dict(ask(path, "SELECT name, rootpage FROM sqlite_master WHERE name LIKE '%events%'"))
    content = bytearray(path.read_bytes())
    for page in pages.values():
        content[(page - 1) * 4_096 : page * 4_096] = b"\xa5" * 4_096
    store = EventStore.open(path)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        list(store.read("u1"))
    store.append(EVENT)
    with pytest.raises(StoreError, match="damaged"):
        store.flush()
    assert (store.health().pending, store.health().writable) == (1, False)
    with pytest.raises(StoreError, match="damaged"):
        store.close()


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(StoreError, match="directory"):
        EventStore.open(tmp_path, read_only_ok=True)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_path_that_is_no_file_is_refused(path):
    with pytest.raises(StoreError, match="file"):
        EventStore.open(path)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"flush_interval_ms": -1},
        {"flush_interval_ms": 1.5},
        {"examples_per_user": 0},
        {"items_limit": "many"},
        {"durability": "safe"},
        {"on_damage": "ignore"},
        {"strict_consent": 1},
    ],
)
def test_wrong_options_are_refused(tmp_path, options):
    with pytest.raises(InputError, match=next(iter(options))):
        EventStore.open(tmp_path / "events.db", **options)
    assert list(tmp_path.iterdir()) == []


def test_importing_the_store_does_not_load_sqlite_utils():
    code = "import sys, rerank_sdk.store; raise SystemExit('sqlite_utils' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def set_write_version(path, version):
    """SQLite opens a file with a write version above 2 for reading only, whoever asks (file format, 1.3.4)."""
    with path.open("r+b") as file:
        file.seek(18)
        file.write(bytes([version]))


def test_a_read_only_file_is_refused_unless_asked_for(tmp_path):
    path = make(tmp_path / "events.db")
    set_write_version(path, 3)
    with pytest.raises(StoreError, match="read_only_ok=True"):
        EventStore.open(path)


def test_a_read_only_file_is_read_and_new_events_wait_in_memory(tmp_path, caplog):
    path = make(tmp_path / "events.db")
    set_write_version(path, 3)
    before = path.read_bytes()
    store = EventStore.open(path, read_only_ok=True)
    later = Event(user="u1", item="i2", kind="click", time_ms=2_000)
    earlier = Event(user="u0", item="i2", kind="skip", time_ms=500)
    store.append_many([later, EVENT, earlier, later])
    health = store.health()
    assert (health.writable, health.pending) == (False, 4)
    assert "readonly" in health.last_error
    assert list(store.read()) == [earlier, EVENT, later]
    assert list(store.read("u1", start_ms=1_500)) == [later]
    assert list(store.read(kinds=["skip"])) == [earlier]
    assert store.users() == ["u0", "u1"]
    assert (store.count(), store.count("u1")) == (3, 2)
    with pytest.raises(StoreError, match="readonly"):
        store.flush()
    store.close()
    assert path.read_bytes() == before
    assert "4 operations are lost" in caplog.text
    assert "u1" not in caplog.text


def test_of_a_stored_and_a_waiting_event_with_one_key_the_stored_one_counts(tmp_path):
    path = tmp_path / "events.db"
    stored = Event(user="u1", item="i1", kind="click", time_ms=1, id="e")
    with EventStore.open(path) as store:
        store.append(stored)
    set_write_version(path, 3)
    with EventStore.open(path, read_only_ok=True) as store:
        store.append(Event(user="u1", item="i2", kind="click", time_ms=2, id="e"))
        assert list(store.read()) == [stored]
        assert store.count() == 1


def test_a_file_that_becomes_writable_receives_what_waited(tmp_path):
    path = make(tmp_path / "events.db")
    set_write_version(path, 3)
    with EventStore.open(path, read_only_ok=True) as store:
        store.append(Event(user="u2", item="i2", kind="click", time_ms=2_000))
        set_write_version(path, 2)
        store.flush()
        assert (store.health().writable, store.health().pending, store.health().last_error) == (True, 0, None)
    with EventStore.open(path) as store:
        assert store.users() == ["u1", "u2"]


def test_a_path_that_cannot_exist_is_refused_unless_asked_for(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    path = blocker / "events.db"
    with pytest.raises(StoreError, match="cannot open it for writing"):
        EventStore.open(path)
    with EventStore.open(path, read_only_ok=True) as store:
        store.append(EVENT)
        assert list(store.read("u1")) == [EVENT]
        assert store.health().writable is False
        assert store.load_items() == {}
        assert store.forget("u1") == 1
        assert list(store.read()) == []


def test_an_older_version_that_cannot_be_migrated_is_refused(tmp_path):
    path = make_version_2(tmp_path / "events.db")
    set_write_version(path, 3)
    with pytest.raises(StoreError, match="make it writable once"):
        EventStore.open(path, read_only_ok=True)
