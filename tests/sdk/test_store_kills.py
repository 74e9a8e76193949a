"""The promise of each level: kill -9 in a loop, several processes at once, no file in memory, a full disk."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rerank_engine.errors import StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, Example, StoreLimits, schema

_spec = importlib.util.spec_from_file_location("store_kills", Path(__file__).with_name("store_kills.py"))
store_kills = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(store_kills)


def click(n, user="u1", **fields):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n, **fields)


@pytest.mark.parametrize(
    ("level", "chore", "rounds"),
    [
        ("batched", "none", 8),
        ("fsync", "none", 8),
        ("batched", "backup", 5),
        ("batched", "forget", 5),
        ("batched", "prune", 5),
    ],
)
def test_no_acknowledged_event_is_lost_or_doubled_by_kills(tmp_path, level, chore, rounds):
    result = store_kills.run_rounds(tmp_path / "events.db", level, rounds, chore=chore)
    assert result.acknowledged_events > 0
    assert (result.lost_events, result.duplicated_events, result.damaged_events) == (0, 0, 0)


APPEND_OWN_AND_SHARED = """
import sys
from rerank_features import Event
from rerank_sdk.store import EventStore
with EventStore.open(sys.argv[1], durability=sys.argv[2], batch_size=8) as store:
    for n in range(int(sys.argv[4])):
        store.append(Event(user=sys.argv[3], item=f"i{n}", kind="click", time_ms=n, request=f"r{n}"))
        store.append(Event(user="shared", item=f"i{n}", kind="click", time_ms=n, id=f"e{n}"))
"""


@pytest.mark.parametrize(("level", "count"), [("batched", 400), ("fsync", 60)])
def test_several_processes_lose_and_double_nothing(tmp_path, level, count):
    path = tmp_path / "events.db"
    children = [
        subprocess.Popen([sys.executable, "-c", APPEND_OWN_AND_SHARED, str(path), level, f"u{number}", str(count)])
        for number in range(3)
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    with EventStore.open(path) as store:
        assert {user: store.count(user) for user in store.users()} == dict.fromkeys(("shared", "u0", "u1", "u2"), count)
        rows = [row for user in store.users() for row, _ in store.read_after(user, 0)]
        assert len(rows) == len(set(rows)) == 4 * count
        assert store.verify().sound


def test_fsync_has_committed_when_append_returns(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, durability="fsync", flush_interval_ms=60_000) as store:
        assert store.health().durability == "fsync"
        assert store._recorder.connect().execute("PRAGMA synchronous").fetchone() == (2,)
        reader = schema.connect_reader(path)
        for n in range(3):
            store.append(click(n))
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (n + 1,)
        store.append_many([click(n) for n in range(3, 10)])
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (10,)
        reader.close()


def test_threads_that_append_with_fsync_share_transactions(tmp_path):
    with EventStore.open(tmp_path / "events.db", durability="fsync", flush_interval_ms=60_000) as store:
        write, batches = store._writer._write, []
        first_is_in, go_on = threading.Event(), threading.Event()

        def slow(operations):
            batches.append(len(operations))
            if len(batches) == 1:
                first_is_in.set()
                go_on.wait(30)
            return write(operations)

        store._writer._write = slow
        threads = [threading.Thread(target=store.append, args=(click(n),)) for n in range(9)]
        threads[0].start()
        assert first_is_in.wait(30)
        for thread in threads[1:]:
            thread.start()
        while store.health().pending < 9:
            pass
        go_on.set()
        for thread in threads:
            thread.join(30)
        assert batches == [1, 8]
        assert store.count() == 9


def test_memory_makes_and_changes_no_file(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append(click(1))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with EventStore.open(path, durability="memory", read_only_ok=True) as store:
        assert store.count() == 0
        store.append_many([click(n, user=f"u{n % 2}", attributes={"n": n}) for n in range(100)])
        store.append_example(Example("u1", "r", "i", 0, 1.0, [1.0], "m"))
        store.save_patch("u1", b"patch", version=1, base_model="m", created_ms=0)
        store.save_state("u1", "spec", store.last_row("u1"), b"state")
        store.save_items([("i", b"{}")])
        assert (store.count(), store.users(), len(list(store.read("u1")))) == (100, ["u0", "u1"], 50)
        assert len(store.export("u1")["events"]) == 50
        assert store.load_items() == {"i": b"{}"}
        assert store.prune(0, limits=StoreLimits(max_rows=60)).rows == 40
        assert store.forget("u1") == 32
        assert store.users() == ["u0"]
        assert store.health().durability == "memory"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with EventStore.open(":memory:", durability="memory") as store:
        store.append(click(1))
        assert list(store.read()) == [click(1)]


@pytest.mark.parametrize("level", ["memory", "batched", "fsync"])
def test_a_full_disk_keeps_everything_on_every_level(tmp_path, level):
    with EventStore.open(tmp_path / "events.db", durability=level, flush_interval_ms=5) as store:
        connection = store._recorder.connect()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        events = [click(n, attributes={"text": "x" * 300}) for n in range(200)]
        refused = 0
        for event in events:
            try:
                store.append(event)
            except StoreError:
                refused += 1
        if level != "fsync":
            with pytest.raises(StoreError, match="free space"):
                store.flush()
        assert (refused > 0) == (level == "fsync")
        assert store.health().pending > 0
        assert list(store.read()) == events  # also what append could not commit: it waits
        with store._writer.paused():
            store._recorder.connect().execute("PRAGMA max_page_count = 100000")
        store.flush()
        assert store.health().last_error is None
        assert list(store.read()) == events


def test_a_migration_that_is_killed_is_done_at_the_next_opening(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(n, id=f"e{n}") for n in range(100)])
    connection = schema.connect_writer(path)
    connection.executescript(
        """
        BEGIN; DROP TABLE feature_states; DROP TABLE spec_hashes; DROP TABLE consents; DROP TABLE facts;
        DROP INDEX idx_events_user_id_time_ms_key; DROP INDEX idx_events_event_id;
        ALTER TABLE events DROP COLUMN checksum;
        CREATE UNIQUE INDEX idx_events_key ON events (key);
        CREATE INDEX idx_events_user_id_time_ms ON events (user_id, time_ms);
        DELETE FROM _sqlite_migrations WHERE name = 'm0004_checked'; PRAGMA user_version = 3; COMMIT;
        """
    )
    connection.close()
    code = (
        "import os, sys; from rerank_sdk.store import schema, EventStore\n"
        "real = schema.checksum_of_row; seen = []\n"
        "def checksum(row):\n"
        "    seen.append(row)\n"
        "    if len(seen) == 50: os._exit(9)\n"
        "    return real(row)\n"
        "schema.checksum_of_row = checksum\n"
        "EventStore.open(sys.argv[1])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, env=os.environ).returncode == 9
    with EventStore.open(path) as store:
        assert store.count() == 100
        assert store.verify().sound
        store.append(click(1, id="e1"))
        assert store.count() == 100
