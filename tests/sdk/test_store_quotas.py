"""Limits: the oldest go first, space is given back, and no event goes that a state does not hold."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, StoreLimits

DAY_MS = 86_400_000


def click(n, user="u1", **fields):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n, **fields)


@pytest.fixture
def store(tmp_path):
    with EventStore.open(tmp_path / "events.db") as opened:
        yield opened


def kept(store):
    return [event.time_ms for event in store.read()]


def test_the_oldest_rows_go(store):
    store.append_many([click(n, user=f"u{n % 2}") for n in range(2_500)])
    result = store.prune(0, limits=StoreLimits(max_rows=700))
    assert (result.rows, result.users, result.over_rows) == (1_800, 2, 0)
    assert kept(store) == list(range(1_800, 2_500))


def test_age_is_told_by_the_events_own_time(store):
    store.append_many([click(5 * DAY_MS), click(0), click(2 * DAY_MS), click(DAY_MS, user="u2")])
    assert store.prune(5 * DAY_MS, limits=StoreLimits(max_age_days=3)).rows == 2
    assert kept(store) == [2 * DAY_MS, 5 * DAY_MS]
    assert store.users() == ["u1"]


def test_bytes_are_kept_and_the_file_becomes_smaller(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, limits=StoreLimits(max_bytes=300_000)) as store:
        store.append_many([click(n, request=f"request-{n:040}", attributes={"text": "x" * 200}) for n in range(5_000)])
        store.flush()
        result = store.prune(0)
        assert result.over_bytes == 0
        assert result.bytes_freed > 1_000_000
        remaining = kept(store)
        assert 0 < len(remaining) < 1_500
        assert remaining == list(range(5_000 - len(remaining), 5_000))
        assert path.stat().st_size <= 300_000
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM requests").fetchone()[0] == len(remaining)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert b"request-" + b"0" * 40 not in path.read_bytes()


def test_states_are_saved_before_their_events_go(store):
    store.append_many([click(n, user=f"u{n % 2}") for n in range(1_000)])
    asked = []

    def save(users):
        asked.append(users)
        for user in users:
            state = ",".join(event.item for _, event in store.read_after(user, 0))
            store.save_state(user, "spec", store.last_row(user), state.encode())

    assert store.prune(0, limits=StoreLimits(max_rows=100), before_erase=save).rows == 900
    assert asked == [("u0", "u1")]
    for user in ("u0", "u1"):
        state = store.load_state(user, "spec")
        assert state.state.decode().split(",") == [f"i{n}" for n in range(1_000) if f"u{n % 2}" == user]
        assert list(store.read_after(user, state.last_row)) == []


def test_what_no_state_holds_stays_and_the_overrun_is_told(store):
    store.append_many([click(n, user=f"u{n % 2}") for n in range(100)])

    def save_one(users):
        store.save_state("u0", "spec", 41, b"half")  # rows count from 1: events 0, 2, …, 40

    result = store.prune(0, limits=StoreLimits(max_rows=10, max_bytes=1), before_erase=save_one)
    assert result.rows == 21
    assert (result.over_rows, store.health().over_rows) == (69, 69)
    assert result.over_bytes == store.health().over_bytes > 0
    assert [n for n in kept(store) if n % 2] == list(range(1, 100, 2))
    assert [n for n in kept(store) if not n % 2] == list(range(42, 100, 2))
    assert store.load_state("u0", "spec").state == b"half"


def test_a_damaged_state_covers_nothing(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(n) for n in range(10)])
        store.save_state("u1", "spec", store.last_row("u1"), b"state")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE feature_states SET state = x'00'")
    connection.commit()
    connection.close()
    with EventStore.open(path) as store:
        assert store.prune(0, limits=StoreLimits(max_rows=1), before_erase=lambda users: None).rows == 0


def test_a_state_that_lost_its_tail_is_dropped(store):
    store.append_many([click(n) for n in range(10)])
    store.save_state("u1", "old", 3, b"old")
    store.save_state("u1", "new", 8, b"new")
    store.prune(0, limits=StoreLimits(max_rows=5))
    assert store.load_state("u1", "old") is None
    assert store.load_state("u1", "new").state == b"new"


def test_a_failing_callback_erases_nothing(store):
    store.append_many([click(n) for n in range(10)])

    def fail(users):
        raise RuntimeError("no state")

    with pytest.raises(RuntimeError, match="no state"):
        store.prune(0, limits=StoreLimits(max_rows=1), before_erase=fail)
    assert store.count() == 10


def test_within_the_limits_nothing_happens(store):
    store.append(click(1))
    assert store.prune(0)[:3] == (0, 0, 0)
    assert store.prune(0, limits=StoreLimits(max_rows=1, max_bytes=1_000_000, max_age_days=1)).rows == 0


@pytest.mark.parametrize("limits", [{"max_rows": 0}, {"max_bytes": 1.5}, {"max_age_days": True}, {"max_rows": -1}])
def test_wrong_limits_are_refused(limits):
    with pytest.raises(InputError, match=next(iter(limits))):
        StoreLimits(**limits)


def test_wrong_arguments_are_refused(store, tmp_path):
    with pytest.raises(InputError, match="now_ms"):
        store.prune(-1)
    with pytest.raises(InputError, match="limits"):
        store.prune(0, limits={"max_rows": 1})
    with pytest.raises(InputError, match="limits"):
        EventStore.open(tmp_path / "other.db", limits=5)
    assert not (tmp_path / "other.db").exists()


def test_a_closed_store_is_not_pruned(tmp_path):
    store = EventStore.open(tmp_path / "events.db")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.prune(0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=40, unique=True),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 10),
)
def test_pruning_agrees_with_a_list(pairs, max_rows, max_age_days):
    events = [Event(user=f"u{user}", item="i", kind="click", time_ms=day * DAY_MS) for user, day in pairs]
    with EventStore.open("memory", durability="memory") as store:
        store.append_many(events)
        store.prune(20 * DAY_MS, limits=StoreLimits(max_rows=max_rows, max_age_days=max_age_days))
        expected = [event for event in events if max_age_days is None or event.time_ms >= (20 - max_age_days) * DAY_MS]
        expected = expected if max_rows is None else expected[-max_rows:]
        assert sorted(map(repr, store.read())) == sorted(map(repr, expected))
        assert store.users() == sorted({event.user for event in expected})
