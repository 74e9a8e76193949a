"""Forgetting is physical: no byte of the user stays in any file of the store."""

from __future__ import annotations

import logging
import sqlite3

import numpy as np
import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, Example, schema

SECRET = "user-to-forget"
MARKS = (SECRET.encode(), b"request-secret", b"item-secret", b"attribute-secret", b"event-secret", b"patch-secret")


def fill(store, user=SECRET, number=0):
    mark = "secret" if user == SECRET else "public"
    store.append_many(
        [
            Event(
                user=user,
                item=f"item-{mark}-{n}",
                kind="click",
                time_ms=1_000 * n + number,
                request=f"request-{mark}-{n // 5}",
                id=f"event-{mark}-{number}-{n}",
                attributes={"note": f"attribute-{mark}"},
            )
            for n in range(20)
        ]
    )
    store.append_example(Example(user, f"request-{mark}", f"item-{mark}", 0, 1.0, np.ones(3), "m"))
    store.save_patch(user, f"patch-{mark}".encode() * 400, version=1, base_model="m", created_ms=0)


def found_in(folder):
    return [(file.name, mark) for file in folder.iterdir() for mark in MARKS if mark in file.read_bytes()]


def test_no_byte_stays_in_any_file_while_the_store_is_open(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        for number in range(5):
            fill(store, f"other-{number}", number)
        fill(store)
        fill(store, "other-9", 9)
        assert {mark for _, mark in found_in(tmp_path)} == set(MARKS)
        before = {user: store.export(user) for user in store.users() if user != SECRET}
        assert store.forget(SECRET) == 22
        assert found_in(tmp_path) == []
        assert {user: store.export(user) for user in store.users()} == before
        assert store.count(SECRET) == 0
        assert store.load_patch(SECRET) is None
        assert store.load_examples(SECRET) == []
    assert found_in(tmp_path) == []


def test_old_copies_left_by_page_splits_go_too(tmp_path):
    """Many users, random order: without the rewrite of the file, SQLite keeps copies in unused parts of pages."""
    random = np.random.default_rng(2)
    users = [f"user-{number:016x}" for number in random.integers(0, 1 << 62, 300)]
    with EventStore.open(tmp_path / "events.db") as store:
        for n in range(6_000):
            u = int(random.integers(300))
            note = "x" * int(random.integers(200))
            store.append(
                Event(
                    user=users[u], item="i", kind="click", time_ms=n, request=f"R{u:03d}-{n}-", attributes={"n": note}
                )
            )
        for u in range(0, 300, 30):
            store.forget(users[u])
            content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
            assert users[u].encode() not in content
            assert f"R{u:03d}-".encode() not in content
        assert len(store.users()) == 290


def test_queued_events_are_erased_before_they_reach_the_file(tmp_path):
    with EventStore.open(tmp_path / "events.db", flush_interval_ms=60_000, batch_size=10_000) as store:
        for n in range(10):
            store.append(Event(user=SECRET, item="i", kind="click", time_ms=n))
        store.append(Event(user="other", item="i", kind="click", time_ms=1))
        assert store.forget(SECRET) == 10
        assert store.health().pending == 1
        store.flush()
        assert store.users() == ["other"]


def test_a_forgotten_user_may_come_back(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        event = Event(user=SECRET, item="i", kind="click", time_ms=1, request="r")
        store.append(event)
        assert store.forget(SECRET) == 1
        assert store.forget(SECRET) == 0
        store.append(event)
        assert list(store.read(SECRET)) == [event]


def test_remembered_items_go_with_the_last_user(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        store.save_items([("item-secret", b"{}")])
        fill(store)
        fill(store, "other")
        store.forget(SECRET)
        assert list(store.load_items()) == ["item-secret"]
        store.forget("other")
        assert store.load_items() == {}
        assert found_in(tmp_path) == []


def test_queued_items_go_with_the_last_user(tmp_path):
    with EventStore.open(tmp_path / "events.db", flush_interval_ms=60_000) as store:
        fill(store)
        store.save_items([("item-secret", b"{}")])
        store.forget(SECRET)
        assert store.load_items() == {}
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.load_items() == {}
    assert found_in(tmp_path) == []


def test_another_connections_cached_names_do_not_survive_an_erasure(tmp_path):
    first = EventStore.open(tmp_path / "events.db")
    second = EventStore.open(tmp_path / "events.db")
    for n in range(3):
        first.append(Event(user=SECRET, item="i", kind="click", time_ms=n, request="r"))
    first.flush()
    assert second.forget(SECRET) == 3
    second.append(Event(user="new", item="i", kind="click", time_ms=1, request="r"))
    second.flush()
    late = Event(user=SECRET, item="i", kind="click", time_ms=9, request="r")
    first.append(late)
    assert list(first.read(SECRET)) == [late]
    assert second.count("new") == 1
    first.close()
    second.close()


def test_a_reader_elsewhere_delays_the_end_and_a_second_call_finishes(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 50)
    with EventStore.open(path) as store:
        fill(store)
        fill(store, "other")
        elsewhere = sqlite3.connect(path, isolation_level=None)
        elsewhere.execute("BEGIN")
        elsewhere.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(StoreError, match="forget again"):
            store.forget(SECRET)
        assert store.users() == ["other"]
        assert found_in(tmp_path) != []
        elsewhere.close()
        assert store.forget(SECRET) == 0
        assert found_in(tmp_path) == []


def test_an_interrupted_erasure_is_finished_at_the_next_opening(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 50)
    elsewhere = None
    with EventStore.open(path) as store:
        fill(store)
        fill(store, "other")
        elsewhere = sqlite3.connect(path, isolation_level=None)
        elsewhere.execute("BEGIN")
        elsewhere.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(StoreError, match="forget again"):
            store.forget(SECRET)
    with EventStore.open(path):  # still in the way: opening works, the mark stays
        pass
    elsewhere.close()
    with EventStore.open(path) as store:
        assert found_in(tmp_path) == []
        assert store.count() == 20


def test_forgetting_on_a_file_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 50)
    store = EventStore.open(path)
    fill(store)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="cannot erase a user"):
        store.forget(SECRET)
    holder.close()
    assert store.count(SECRET) == 20
    assert store.forget(SECRET) == 22
    store.close()


def test_a_wrong_user_is_refused(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store, pytest.raises(InputError, match="user"):
        store.forget("")


def test_nothing_about_a_user_is_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with EventStore.open(tmp_path / "events.db") as store:
        fill(store)
        store.append(Event.model_construct(user=SECRET, item=None, kind="click", time_ms=1))
        store.flush()
        store.forget(SECRET)
    assert "1 events were rejected" in caplog.text
    assert not any(mark.decode() in caplog.text for mark in MARKS)
