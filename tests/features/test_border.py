"""The border: what Event, Item and Request refuse, and how they say it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_engine.errors import EventError
from rerank_features import Event, Item, Request
from rerank_features.events import MAX_ID_BYTES

GOOD: dict[str, Any] = {"user": "u", "item": "i", "kind": "click", "time_ms": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": "u" * 10_240}, "user: .*longer than 1024 bytes"),
        ({"user": "ü" * 600}, "user: .*longer than 1024 bytes"),
        ({"user": ""}, "user: "),
        ({"item": "i" * 1025}, "item: .*longer than 1024 bytes"),
        ({"kind": "Click"}, "kind: "),
        ({"kind": "x" * 65}, "kind: "),
        ({"time_ms": -1}, "time_ms: "),
        ({"time_ms": 1_700_000_000_000_000}, "time_ms: "),
        ({"time_ms": 1.5}, "time_ms: "),
        ({"value": float("nan")}, "value: "),
        ({"value": float("inf")}, "value: "),
        ({"position": -1}, "position: "),
        ({"colour": "red"}, "colour: "),
        ({"self": 1}, "self: "),
    ],
)
def test_an_event_breaks_a_rule(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EventError, match=f"(?s)invalid Event: {words}"):
        Event(**{**GOOD, **change})


@pytest.mark.parametrize("field", ["user", "item", "kind", "time_ms"])
def test_an_event_lacks_a_field(field: str) -> None:
    with pytest.raises(EventError, match=f"{field}: "):
        Event(**{name: value for name, value in GOOD.items() if name != field})


@pytest.mark.parametrize(
    "item",
    [
        {"id": "a", "numeric": {"x": float("nan")}},
        {"id": "a", "embedding": (1.0, float("inf"))},
        {"id": "a", "categorical": {"x": 1}},
        {"id": "a" * 2000},
        {"numeric": {}},
    ],
)
def test_an_item_breaks_a_rule(item: dict[str, Any]) -> None:
    with pytest.raises(EventError, match="invalid Item: "):
        Item(**item)


def test_a_request_wants_a_score_for_each_candidate() -> None:
    with pytest.raises(EventError, match="2 candidates but 1 scores"):
        Request(user="u", candidates=[Item(id="a"), Item(id="b")], scores=[1.0], time_ms=0)


def test_errors_are_short_even_for_huge_input() -> None:
    with pytest.raises(EventError) as caught:
        Event(**{**GOOD, "user": "u" * 100_000, "item": "i" * 100_000})
    assert len(str(caught.value)) < 1000


def test_values_never_change() -> None:
    event = Event(**GOOD)
    with pytest.raises(Exception, match="frozen"):
        event.kind = "like"  # type: ignore[misc]


text_id = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_ID_BYTES // 4)


@given(user=text_id, item=text_id, time_ms=st.integers(0, 4_000_000_000_000), value=st.none() | st.floats(-1e9, 1e9))
def test_json_round_trip_keeps_the_event_and_its_key(user: str, item: str, time_ms: int, value: float | None) -> None:
    event = Event(user=user, item=item, kind="dwell", time_ms=time_ms, value=value)
    again = Event.from_json(event.model_dump_json())
    assert again == event
    assert again.key() == event.key()


@given(change=st.sampled_from([{"user": "v"}, {"item": "j"}, {"kind": "like"}, {"time_ms": 2}, {"value": 1.0}]))
def test_every_field_makes_another_key(change: dict[str, Any]) -> None:
    assert Event(**GOOD).key() != Event(**{**GOOD, **change}).key()


def test_an_id_decides_the_key_within_a_user() -> None:
    one, two = Event(**GOOD, id="e1"), Event(**{**GOOD, "item": "other"}, id="e1")
    assert one.key() == two.key()
    assert one.key() != Event(**{**GOOD, "user": "v"}, id="e1").key()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 1}', "null", b"\xff"])
def test_what_is_no_event_is_refused(text: str | bytes) -> None:
    with pytest.raises(EventError, match="invalid Event"):
        Event.from_json(text)


def test_ids_that_hold_separators_do_not_make_equal_keys() -> None:
    assert Event(**{**GOOD, "user": "a\0b", "item": "c"}).key() != Event(**{**GOOD, "user": "a", "item": "b\0c"}).key()
    assert (
        Event(**{**GOOD, "user": "a', 'b", "item": "c"}).key() != Event(**{**GOOD, "user": "a", "item": "b', 'c"}).key()
    )


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(EventError, match="user: "):
        Event(**{**GOOD, "user": "\ud800"})


BROKEN: list[dict[str, Any]] = [
    {"user": 5},
    {"user": None},
    {"user": ["x"]},
    {"user": "u" * 2000},
    {"user": "\ud800"},
    {"item": 5},
    {"item": ""},
    {"item": "\ud800"},
    {"kind": None},
    {"kind": "BAD!"},
    {"time_ms": "no"},
    {"time_ms": None},
    {"time_ms": 1.5},
    {"time_ms": -5},
    {"time_ms": 2**70},
    {"value": "x"},
    {"value": float("nan")},
    {"value": float("inf")},
    {"position": "x"},
    {"position": -1},
    {"request": 5},
    {"id": 5},
    {"attributes": None},
    {"attributes": {"k": object()}},
]


@pytest.mark.parametrize("change", BROKEN)
def test_a_changed_copy_keeps_the_rules(change: dict[str, Any]) -> None:
    with pytest.raises(EventError, match="invalid Event"):
        Event(**GOOD).model_copy(update=change)


def test_a_copy_is_a_copy() -> None:
    event = Event(**GOOD, attributes={"a": 1})
    assert event.model_copy() == event.model_copy(deep=True) == event
    assert event.model_copy(update={"value": 2}).value == 2.0
    assert Item(id="a").model_copy(update={"numeric": {"x": 1}}) == Item(id="a", numeric={"x": 1.0})


REACHES_FEATURES = [
    change
    for change in BROKEN
    if next(iter(change)) in ("user", "item", "kind", "time_ms", "value")
    and next(iter(change.values())) not in ("", "BAD!", "\ud800", "u" * 2000)
]


@pytest.mark.parametrize("change", REACHES_FEATURES)
def test_what_went_around_the_border_does_not_reach_features(change: dict[str, Any]) -> None:
    Event(**GOOD).check()
    with pytest.raises(EventError, match="invalid Event"):
        Event.model_construct(**{**Event(**GOOD).__dict__, **change}).check()


def test_an_event_without_fields_is_found_out() -> None:
    with pytest.raises(EventError, match="invalid Event"):
        Event.model_construct().check()
