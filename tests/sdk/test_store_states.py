"""Saved feature states: one a user and spec, never ahead of its events, and the tail behind it."""

from __future__ import annotations

import base64
import sqlite3

import pytest

from rerank_engine.errors import InputError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, StoredState, StoreLimits, reader
from rerank_sdk.store.view import UNSTORED


def click(n, user="u1", **fields):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n, **fields)


@pytest.fixture
def store(tmp_path):
    with EventStore.open(tmp_path / "events.db") as opened:
        yield opened


def items_after(store, user, row):
    return [event.item for _, event in store.read_after(user, row)]


def test_a_state_and_its_tail_come_back_after_a_restart(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(5), click(3, user="u2"), click(1)])
        assert store.load_state("u1", "s") is None
        store.save_state("u1", "s", store.last_row("u1"), b"\x00state")
        store.append_many([click(4), click(2)])
    with EventStore.open(path) as store:
        saved = store.load_state("u1", "s")
        assert saved == StoredState(b"\x00state", 3)
        assert items_after(store, "u1", saved.last_row) == ["i4", "i2"]  # by arrival, not by time
        assert items_after(store, "u1", 0) == ["i5", "i1", "i4", "i2"]
        assert store.last_row("u1") == 5
        assert (store.last_row("nobody"), items_after(store, "nobody", 0)) == (0, [])
        assert store.export("u1")["states"] == [
            {"spec_hash": "s", "last_row": 3, "state": base64.b64encode(b"\x00state").decode()}
        ]


@pytest.mark.parametrize("short_tail_rows", [0, 10_000])
def test_both_ways_of_reading_a_tail_agree(store, monkeypatch, short_tail_rows):
    monkeypatch.setattr(reader, "_SHORT_TAIL_ROWS", short_tail_rows)
    store.append_many([click(n, user=f"u{n % 3}") for n in range(3_000)])
    assert items_after(store, "u1", 1_501) == [f"i{n}" for n in range(3_000) if n % 3 == 1 and n + 1 > 1_501]


def test_a_user_has_one_state_of_each_of_the_two_newest_specs(store):
    store.append(click(1))
    row = store.last_row("u1")
    for spec, state in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4"), ("c", b"5")):
        store.save_state("u1", spec, row, state)
    assert [store.load_state("u1", spec) for spec in "abc"] == [None, StoredState(b"3", row), StoredState(b"5", row)]


def test_a_damaged_state_reads_as_none(tmp_path, caplog):
    path = tmp_path / "events.db"
    for change in ("state = x'00'", "last_row = 7", "checksum = 1", "spec_hash = 'other'", "state = 'text'"):
        with EventStore.open(path) as store:
            store.append(click(1))
            store.save_state("u1", "s", store.last_row("u1"), b"state")
        connection = sqlite3.connect(path)
        assert connection.execute(f"UPDATE feature_states SET {change}").rowcount
        connection.commit()
        connection.close()
        with EventStore.open(path) as store:
            assert store.load_state("u1", "s") is None
            assert store.load_state("u1", "other") is None
            store.forget("u1")
    assert "damaged feature state" in caplog.text


def test_a_state_that_waits_is_seen_and_rows_that_wait_cannot_be_named(store):
    store.append(click(1))
    row = store.last_row("u1")
    write = store._writer._write
    store._writer._write = None  # whatever is called: it fails
    store.save_state("u1", "s", row, b"state")
    store.append(click(2))
    store.append(click(1))
    assert store.load_state("u1", "s") == StoredState(b"state", row)
    waiting = list(store.read_after("u1", row))
    assert waiting == [(UNSTORED, click(2))]
    with pytest.raises(InputError, match="not in the file yet"):
        store.save_state("u1", "s", waiting[0][0], b"")
    store._writer._write = write
    store.flush()
    assert list(store.read_after("u1", row)) == [(row + 1, click(2))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "s", 0, b""), "user"),
        (("u1", "", 0, b""), "spec_hash"),
        (("u1", "s", -1, b""), "last_row"),
        (("u1", "s", True, b""), "last_row"),
        (("u1", "s", 0, "text"), "state"),
    ],
)
def test_wrong_arguments_are_refused(store, arguments, message):
    with pytest.raises(InputError, match=message):
        store.save_state(*arguments)
    with pytest.raises(InputError, match="row"):
        store.read_after("u1", -1)


def test_row_numbers_never_come_back(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(n) for n in range(5)])
        store.append(click(9, user="u2"))
        last = store.last_row("u1")
        store.save_state("u1", "s", last, b"state")
        store.flush()
        assert store.prune(10, limits=StoreLimits(max_rows=1)).rows == 5
        store.forget("u2")
    with EventStore.open(path) as store:
        store.append(click(20))
        assert items_after(store, "u1", last) == ["i20"]
        assert store.load_state("u1", "s").last_row == last
