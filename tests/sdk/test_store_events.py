"""Events in, events out: order, filters, duplicates, threads, and what hypothesis can think of."""

from __future__ import annotations

import gc
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import EventError, InputError, StoreError
from rerank_features.events import MAX_TIME_MS, Event
from rerank_sdk.store import EventStore
from rerank_sdk.store.rows import checksum_of_row, event_values


@pytest.fixture
def store(tmp_path):
    with EventStore.open(tmp_path / "events.db") as opened:
        yield opened


def click(user="u1", item="i1", time_ms=1_000, **fields):
    return Event(user=user, item=item, kind=fields.pop("kind", "click"), time_ms=time_ms, **fields)


def test_events_come_back_by_time_and_equal_times_by_arrival(store):
    arrivals = [click(item="late", time_ms=9), click(item="a", time_ms=5), click(item="b", time_ms=5)]
    store.append_many(arrivals)
    store.append(click(item="early", time_ms=1))
    assert [event.item for event in store.read("u1")] == ["early", "a", "b", "late"]


def test_everybodys_events_are_merged_by_time_and_arrival(store):
    events = [click(user=f"u{n % 3}", item=f"i{n}", time_ms=n // 2) for n in range(60)]
    store.append_many(events)
    assert list(store.read()) == events
    assert store.users() == ["u0", "u1", "u2"]
    assert store.count() == 60
    assert store.count("u1") == 20


def test_bounds_are_half_open_and_kinds_select(store):
    store.append_many([click(item=f"i{n}", time_ms=n, kind="click" if n % 2 else "skip") for n in range(10)])
    assert [event.time_ms for event in store.read("u1", start_ms=3, end_ms=6)] == [3, 4, 5]
    assert [event.time_ms for event in store.read("u1", kinds=["click"], end_ms=6)] == [1, 3, 5]
    assert [event.time_ms for event in store.read(kinds=("skip", "click", "skip"), start_ms=8)] == [8, 9]
    assert list(store.read("u1", kinds=[])) == []
    assert list(store.read("u1", kinds=["never"])) == []
    assert list(store.read("nobody")) == []


def test_more_events_than_a_page_with_many_equal_times(store):
    events = [click(item=f"i{n}", time_ms=n // 700) for n in range(5_000)]
    store.append_many(events)
    assert list(store.read("u1")) == events
    assert list(store.read("u1", start_ms=3)) == events[2_100:]


def test_the_last_millisecond_is_read(store):
    store.append(click(time_ms=MAX_TIME_MS))
    assert store.count() == len(list(store.read())) == 1


def test_a_second_delivery_is_ignored_and_counted(store):
    event = click(id="e1")
    store.append(event)
    store.flush()
    store.append(event, event.key())
    store.append_many([event, click(id="e1", item="other"), click(id="e2")])
    assert [event.id for event in store.read("u1")] == ["e1", "e2"]
    health = store.health()
    assert (health.written, health.duplicates, health.pending, health.rejected) == (2, 3, 0, 0)


def test_reopening_finds_everything(tmp_path):
    events = [click(item=f"i{n}", time_ms=n, request="r", position=n, value=n / 3) for n in range(10)]
    with EventStore.open(str(tmp_path / "events.db")) as store:
        store.append_many(events)
    with EventStore.open(tmp_path / "events.db") as store:
        assert list(store.read("u1")) == events
        assert all(event.key() == before.key() for event, before in zip(store.read(), events, strict=True))


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
attributes = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
    max_size=4,
)
events = st.fixed_dictionaries(
    {
        "user": ids,
        "item": ids,
        "kind": st.from_regex(r"\A[a-z][a-z0-9_]{0,63}\Z"),
        "time_ms": st.integers(0, MAX_TIME_MS),
        "attributes": attributes,
    },
    optional={
        "position": st.integers(0, 1_000_000),
        "request": ids,
        "value": st.floats(allow_nan=False, allow_infinity=False),
        "id": ids,
    },
).map(lambda fields: Event(**fields))


@settings(max_examples=40, deadline=None)
@given(st.lists(events, min_size=1, max_size=12, unique_by=Event.key))
def test_any_event_survives_the_way_through_the_file(batch):
    with tempfile.TemporaryDirectory() as folder, EventStore.open(Path(folder) / "events.db") as store:
        store.append_many(batch)
        store.flush()
        read = list(store.read())
        assert read == sorted(batch, key=lambda event: event.time_ms)
        for event in read:
            assert list(store.read(event.user, start_ms=event.time_ms, kinds=[event.kind])).count(event) == 1
            types = {name: type(value) for name, value in event.attributes.items()}
            before = next(other for other in batch if other == event)
            assert types == {name: type(value) for name, value in before.attributes.items()}
        assert store.health().rejected == 0


def test_a_lone_surrogate_in_an_attribute_survives(store):
    event = click(attributes={"note": "\ud800", "\udfff": True})
    store.append(event)
    assert list(store.read()) == [event]


def test_an_event_that_bypassed_the_border_is_rejected_alone(store):
    good = click()
    broken = [
        Event.model_construct(user="\ud800", item="i", kind="click", time_ms=1),
        Event.model_construct(user="u", item=b"i", kind="click", time_ms=1),
        Event.model_construct(user="u", item="i", kind="click", time_ms=2**70),
        Event.model_construct(user="u", item="i", kind="click", time_ms=1, value=float("nan")),
        Event.model_construct(user="u", item="i", kind="click", time_ms=1, position=-1),
        Event.model_construct(user="u", item="i", kind="click", time_ms=1, attributes={"a": object()}),
        Event.model_construct(user="u"),
        Event.model_construct(),
    ]
    store.append_many([*broken, good])
    store.append(broken[0], bytes(16))
    store.flush()
    assert list(store.read()) == [good]
    assert (store.health().rejected, store.health().pending) == (9, 0)


@pytest.mark.parametrize("thing", [None, "event", {"user": "u"}, b""])
def test_what_is_no_event_is_refused(store, thing):
    with pytest.raises(EventError, match="expected"):
        store.append(thing)
    with pytest.raises(EventError, match="expected"):
        store.append_many([click(), thing])
    assert store.count() == 0


def test_wrong_arguments_are_refused(store):
    with pytest.raises(InputError, match="16 bytes"):
        store.append(click(), b"short")
    with pytest.raises(InputError, match="start_ms"):
        store.read(start_ms=1.5)
    with pytest.raises(InputError, match="end_ms"):
        store.read(end_ms=-1)
    with pytest.raises(InputError, match="kinds"):
        store.read(kinds="click")
    with pytest.raises(InputError, match="user"):
        store.read("")
    with pytest.raises(InputError, match="user"):
        store.count(7)


def test_many_threads_append_and_read_at_once(store):
    failures = []

    def work(number):
        try:
            for n in range(100):
                store.append(click(user=f"u{number}", item=f"i{n}", time_ms=n))
                if n % 25 == 24:
                    assert store.count(f"u{number}") == n + 1
                    assert len(list(store.read(f"u{number}"))) == n + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.count() == 800


def test_a_closed_store_refuses_everything(tmp_path):
    store = EventStore.open(tmp_path / "events.db")
    store.append(click())
    iterator = store.read()
    store.close()
    store.close()
    for attempt in (
        lambda: store.append(click()),
        lambda: store.append_many([click()]),
        store.flush,
        lambda: list(store.read()),
        lambda: next(iterator),
        store.users,
        store.count,
        lambda: store.forget("u1"),
    ):
        with pytest.raises(StoreError, match="closed"):
            attempt()
    assert store.health().pending == 0


def test_a_store_that_is_dropped_is_written(tmp_path):
    store = EventStore.open(tmp_path / "events.db", flush_interval_ms=60_000)
    store.append(click())
    del store
    gc.collect()
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.count() == 1


def test_an_iterator_keeps_its_store_open(tmp_path):
    store = EventStore.open(tmp_path / "events.db")
    store.append_many([click(item=f"i{n}", time_ms=n) for n in range(2_000)])
    iterator = store.read("u1")
    next(iterator)
    del store
    gc.collect()
    assert len(list(iterator)) == 1_999


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET item = x'00' WHERE time_ms = 2",
        "UPDATE events SET item = 'i3' WHERE time_ms = 2",
        "UPDATE events SET attributes = '{' WHERE time_ms = 2",
        "UPDATE events SET item = CAST(x'ff' AS TEXT) WHERE time_ms = 2",
        "UPDATE events SET position = 1 WHERE time_ms = 2",
        "UPDATE events SET value = 2.0 WHERE time_ms = 2",
        "UPDATE events SET request_id = NULL WHERE time_ms = 2",
        "UPDATE events SET kind_id = 9 WHERE time_ms = 2",
        "UPDATE events SET event_id = 'e' WHERE time_ms = 2",
        "UPDATE events SET checksum = checksum + 1 WHERE time_ms = 2",
        "UPDATE events SET checksum = NULL WHERE time_ms = 2",
        "UPDATE events SET key = x'00' WHERE time_ms = 2",
        "UPDATE events SET user_id = (SELECT id FROM users WHERE user = 'u2') WHERE time_ms = 2",
    ],
)
def test_a_damaged_row_is_left_out_and_counted(tmp_path, change, caplog):
    path = tmp_path / "events.db"
    good = [click(time_ms=1), click(time_ms=3, user="u2", attributes={"a": 1})]
    with EventStore.open(path) as store:
        store.append_many([*good, click(time_ms=2, request="r", value=1.5, attributes={"a": 1})])
    connection = sqlite3.connect(path)
    assert connection.execute(change).rowcount == 1
    connection.commit()
    connection.close()
    with EventStore.open(path) as store:
        assert list(store.read()) == good
        assert list(store.read()) == good
        assert store.health().damaged == 1
    assert "a damaged row is left out" in caplog.text


FIELDS = st.fixed_dictionaries(
    {
        "user": st.text(min_size=1, max_size=8),
        "item": st.text(min_size=1, max_size=8),
        "kind": st.just("click"),
        "time_ms": st.integers(0, 1_000),
        "position": st.none() | st.integers(0, 9),
        "request": st.none() | st.text(min_size=1, max_size=4),
        "value": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "attributes": st.dictionaries(
            st.text(max_size=3), st.integers() | st.text(max_size=3) | st.booleans(), max_size=2
        ),
        "id": st.none() | st.text(min_size=1, max_size=4),
    }
)


@given(FIELDS)
def test_values_of_an_event_carry_its_key_and_a_checksum_that_the_row_reproduces(fields):
    event = Event(**fields)
    *row, checksum = event_values(event)
    assert row[0] == event.key()
    assert checksum_of_row(tuple(row)) == checksum
    for place in range(1, len(row)):
        if row[place] != "x":
            changed = [*row[:place], "x", *row[place + 1 :]]
            assert checksum_of_row(tuple(changed)) != checksum
