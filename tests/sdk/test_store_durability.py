"""Crashes, full disks, locks, several processes: nothing that was accepted is lost."""

from __future__ import annotations

import gc
import logging
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rerank_engine.errors import StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, Example, schema
from rerank_sdk.store.recorder import Outcome
from rerank_sdk.store.writer import BatchWriter


def click(n, user="u1", **fields):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n, **fields)


def run(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def wait_until(true, limit_s=30.0):
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)


APPEND_UNTIL_KILLED = """
import sys
from rerank_features import Event
from rerank_sdk.store import EventStore
store = EventStore.open(sys.argv[1], batch_size=16, flush_interval_ms=1)
for n in range(1_000_000):
    store.append(Event(user="u1", item=f"i{n}", kind="click", time_ms=n, attributes={"text": "x" * (n % 50)}))
    if n % 40 == 39:
        store.flush()
        print(n + 1, flush=True)
"""


def test_every_acknowledged_event_survives_a_kill(tmp_path):
    path = tmp_path / "events.db"
    child = run(APPEND_UNTIL_KILLED, path)
    acknowledged = 0
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 2_000:
            child.kill()
            break
    acknowledged = max([acknowledged, *(int(line) for line in child.stdout if line.endswith("\n"))])
    assert child.wait() != 0
    with EventStore.open(path) as store:
        items = [event.item for event in store.read("u1")]
        assert len(items) >= acknowledged
        assert items == [f"i{n}" for n in range(len(items))]
    child.stdout.close()


APPEND_AND_END = """
import sys
from rerank_features import Event
from rerank_sdk.store import EventStore
store = EventStore.open(sys.argv[1], flush_interval_ms=60_000)
store.append_many([Event(user=sys.argv[2], item=f"i{n}", kind="click", time_ms=n) for n in range(int(sys.argv[3]))])
END
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "sys.exit(0)", "del store"])
def test_an_ordinary_exit_loses_nothing(tmp_path, end):
    child = run(APPEND_AND_END.replace("END", end), tmp_path / "events.db", "u1", 100)
    assert child.wait() == 0
    child.stdout.close()
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.count("u1") == 100


def test_several_processes_open_a_new_file_and_write_it_at_once(tmp_path):
    path = tmp_path / "events.db"
    code = APPEND_AND_END.replace("END", "store.close()").replace("flush_interval_ms=60_000", "batch_size=8")
    children = [run(code, path, f"u{number}", 300) for number in range(3)]
    with EventStore.open(path, batch_size=8) as store:
        for n in range(300):
            store.append(click(n, user="parent"))
            if n % 50 == 0:
                store.flush()
        for child in children:
            assert child.wait() == 0
            child.stdout.close()
        assert {user: store.count(user) for user in store.users()} == dict.fromkeys(("parent", "u0", "u1", "u2"), 300)
        assert store.health().last_error is None


def limit_pages(monkeypatch, pages):
    """A real full disk, as SQLite sees it: the connection may not grow the file beyond so many pages."""
    connect = schema.connect_writer

    def limited(path):
        connection = connect(path)
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")
        return connection

    monkeypatch.setattr(schema, "connect_writer", limited)


def test_a_full_disk_keeps_everything_queued_readable_and_retried(tmp_path, monkeypatch, caplog):
    pages = [60]
    limit_pages(monkeypatch, pages)
    store = EventStore.open(tmp_path / "events.db", flush_interval_ms=5)
    store.append_many([click(n, attributes={"text": "x" * 100}) for n in range(300)])
    store.flush()
    for n in range(300, 3_000):
        store.append(click(n, attributes={"text": "x" * 100}))
    with pytest.raises(StoreError, match=r"full.*free space"):
        store.flush()
    store.append(click(0))
    store.append_example(Example("u1", "r", "i", 0, 1.0, np.ones(2), "m"))
    store.save_items([("i", b"{}")])
    with pytest.raises(StoreError, match="full"):
        store.save_patch("u1", b"patch", version=1, base_model="m", created_ms=0)
    health = store.health()
    assert health.writable is False
    assert 300 <= health.written < 3_000  # the thread may have found room for a batch before the disk was full
    assert health.pending == 3_000 - health.written + 4
    assert [event.item for event in store.read("u1", kinds=["click"], start_ms=1)] == [f"i{n}" for n in range(1, 3_000)]
    assert store.count() == 3_001  # the event of time 0 came twice, with other attributes
    assert store.load_patch("u1").patch == b"patch"
    assert [one.item for one in store.load_examples("u1")] == ["i"]
    assert store.load_items() == {"i": b"{}"}
    assert len(store.export("u1")["events"]) == 3_001
    with pytest.raises(StoreError, match="full"):
        store.close()
    with store._writer.paused():  # room is made, while the store is in use
        store._recorder.connect().execute("PRAGMA max_page_count = 100000")
    wait_until(lambda: store.health().pending == 0)  # by itself, in the background
    assert (store.health().writable, store.health().last_error, store.health().written) == (True, None, 3_001)
    assert store.count() == 3_001
    store.close()
    assert "operations wait" in caplog.text
    assert "i299" not in caplog.text
    monkeypatch.undo()
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.count() == 3_001
        assert store.load_patch("u1").version == 1


def test_a_locked_file_is_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 20)
    with EventStore.open(path, flush_interval_ms=1) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        store.append(click(1))
        with pytest.raises(StoreError, match="another process holds the file"):
            store.flush()
        assert list(store.read()) == [click(1)]
        holder.execute("COMMIT")
        holder.close()
        store.flush()
        assert (store.health().written, store.health().writable) == (1, True)


def test_a_locked_file_is_no_reason_to_fail_at_opening_when_asked(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    EventStore.open(path).close()
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 20)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process"):
        EventStore.open(path)
    with EventStore.open(path, read_only_ok=True) as store:
        store.append(click(1))
        assert store.count() == 1
        holder.close()
        store.flush()
        assert store.health().writable


def test_reading_while_the_file_recovers_meets_each_event_once(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 20)
    with EventStore.open(path) as store:
        store.append_many([click(n) for n in range(0, 3_000, 2)])
        store.flush()
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        store.append_many([click(n) for n in range(1, 3_000, 2)])
        iterator = store.read()
        first = [next(iterator) for _ in range(10)]
        holder.close()
        store.flush()
        assert [event.time_ms for event in [*first, *iterator]] == list(range(3_000))


FORK = """
import os, sys
from rerank_engine.errors import StoreError
from rerank_features import Event
from rerank_sdk.store import EventStore
store = EventStore.open(sys.argv[1], flush_interval_ms=60_000)
store.append(Event(user="u1", item="i1", kind="click", time_ms=1))
child = os.fork()
if child == 0:
    for attempt in (lambda: store.append(Event(user="u1", item="i2", kind="click", time_ms=2)), store.flush,
    store.count):
        try:
            attempt()
        except StoreError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    store.close()
    with EventStore.open(sys.argv[1]) as own:
        own.append(Event(user="child", item="i1", kind="click", time_ms=1))
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert store.count("child") == 1
assert store.count("u1") == 1
"""


def test_a_forked_child_is_refused_and_the_parent_is_unharmed(tmp_path):
    child = run(FORK, tmp_path / "events.db")
    assert child.wait() == 0
    child.stdout.close()
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.users() == ["child", "u1"]


def failing(_operations):
    raise StoreError("no")


def test_past_the_bound_events_are_refused_not_dropped():
    writer = BatchWriter(failing, batch_size=2, flush_interval_ms=0, limit=5)
    for n in range(5):
        writer.add(n)
    with pytest.raises(StoreError, match="1 operations not accepted: 5 wait"):
        writer.add(5)
    with pytest.raises(StoreError, match="2 operations not accepted"):
        writer.add_many([5, 6])
    assert writer.waiting() == [0, 1, 2, 3, 4]
    with writer.paused():
        assert writer.discard(lambda n: n % 2 == 0) == 3
    writer.add_many([7, 8, 9])
    assert writer.state().pending == 5
    writer.close(discard=True)


def test_many_are_taken_as_a_whole_or_not_at_all():
    taken = []

    def write(operations):
        taken.extend(operations)
        return Outcome(len(operations), 0, 0)

    writer = BatchWriter(write, batch_size=1_000, flush_interval_ms=60_000, limit=3)
    writer.add_many([])
    with pytest.raises(StoreError, match="4 operations not accepted"):
        writer.add_many([1, 2, 3, 4])
    writer.add_many([1, 2, 3])
    writer.flush()
    assert taken == [1, 2, 3]
    writer.close()


def test_a_full_batch_is_written_long_before_the_interval():
    written = threading.Event()

    def write(operations):
        written.set()
        return Outcome(len(operations), 0, 0)

    writer = BatchWriter(write, batch_size=3, flush_interval_ms=600_000)
    writer.add(1)
    writer.add(2)
    assert not written.is_set()
    writer.add(3)
    assert written.wait(30)
    writer.close()


def test_a_batch_that_crashes_is_tried_again_in_order():
    taken, failures = [], [RuntimeError("a bug"), MemoryError(), StoreError("full")]

    def write(operations):
        if failures:
            raise failures.pop(0)
        taken.extend(operations)
        return Outcome(len(operations), 0, 0)

    writer = BatchWriter(write, batch_size=1, flush_interval_ms=0)
    writer.add_many(["a", "b"])
    writer.add("c")
    wait_until(lambda: writer.state().pending == 0)
    assert taken == ["a", "b", "c"]
    assert (writer.state().failing, writer.state().last_error, writer.state().written) == (False, None, 3)
    writer.close()


def test_an_unexpected_crash_becomes_a_store_error():
    def write(_operations):
        raise RuntimeError("a bug")

    writer = BatchWriter(write, batch_size=1_000, flush_interval_ms=60_000)
    writer.add("a")
    with pytest.raises(StoreError, match="RuntimeError: a bug"):
        writer.flush()
    assert writer.try_flush() is False
    writer.close(discard=True)
    with pytest.raises(StoreError, match="closed"):
        writer.try_flush()


def test_a_store_collected_in_its_own_thread_is_still_written(tmp_path):
    """The last reference may die anywhere, also in the thread that writes, in the middle of a batch."""
    store = EventStore.open(tmp_path / "events.db", flush_interval_ms=60_000)
    thread, writer, record = store._writer._thread, store._writer, store._writer._write
    holder = [store]

    def write(operations):
        if holder:
            holder[0].append(click(999))  # behind the batch: only the last act of the thread can write it
            holder.pop()
            gc.collect()
        return record(operations)

    writer._write = write
    store.append_many([click(n) for n in range(255)])
    del store
    writer.add_many(writer.waiting()[:1])  # the batch is full: the thread wakes up
    thread.join(30)
    assert not thread.is_alive()
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.count() == 256


def test_a_store_that_cannot_be_written_at_its_end_says_how_much_is_lost(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    limit_pages(monkeypatch, [1])
    store = EventStore.open(tmp_path / "events.db", flush_interval_ms=60_000)
    store.append_many([click(n) for n in range(7_000)])
    del store
    gc.collect()
    assert "operations are lost at closing" in caplog.text
