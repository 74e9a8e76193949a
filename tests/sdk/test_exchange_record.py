"""The quick ways of reading a record give what the thorough ways give."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rerank_engine.errors import EventError
from rerank_features import Event
from rerank_features.events import MAX_ID_BYTES, MAX_POSITION, MAX_TIME_MS
from rerank_sdk.exchange.lines import parse_object
from rerank_sdk.exchange.record import FIELDS, RefusedRecord, make_event

ids = st.sampled_from(["", "u", "é", "x" * MAX_ID_BYTES, "é" * MAX_ID_BYTES, "\ud800"]) | st.text(st.characters())
scalars = st.none() | st.booleans() | st.integers() | st.floats() | ids
values: dict[str, st.SearchStrategy[Any]] = {
    "user": ids,
    "item": ids,
    "kind": st.sampled_from(["click", "Click", "my_kind", "a" * 65, "click\n", ""]) | scalars,
    "time_ms": st.sampled_from([0, 5, MAX_TIME_MS, MAX_TIME_MS + 1, -1, 5.0, True]) | scalars,
    "position": st.sampled_from([None, 0, MAX_POSITION, MAX_POSITION + 1, 3.0, False]) | scalars,
    "request": st.none() | ids,
    "value": st.sampled_from([None, 1, 1.5, -0.0, True, "2.5"]) | scalars,
    "attributes": st.dictionaries(st.text(st.characters(), max_size=3), scalars, max_size=3),
    "id": st.none() | ids,
}


def validated(fields: dict[str, Any]) -> Event | None:
    try:
        return Event(**fields)
    except (EventError, UnicodeError):
        return None


@given(st.fixed_dictionaries(values))
def test_an_event_is_what_the_border_makes_or_is_refused_as_there(fields: dict[str, Any]) -> None:
    wanted = validated(copy.deepcopy(fields))
    if wanted is None:
        with pytest.raises(RefusedRecord):
            make_event(fields)
        return
    event = make_event(fields)
    assert event == wanted
    assert repr(event) == repr(wanted)
    assert event.key() == wanted.key()


def test_an_event_that_was_put_together_is_like_any_other() -> None:
    fields = dict(zip(FIELDS, ("u", "i", "dwell", 5, 3, "r", 1.5, {"a": True}, "e"), strict=True))
    wanted, event = Event(**fields), make_event(fields)
    assert event.model_dump_json() == wanted.model_dump_json()
    assert event.model_fields_set == wanted.model_fields_set
    assert pickle.loads(pickle.dumps(event)) == copy.deepcopy(event) == event.model_copy() == wanted
    assert event.model_copy(update={"value": 2}).value == 2.0
    # What a copy changes, the others, which share the names of their fields, do not see.
    assert event.model_copy(update={"value": 2}).model_fields_set == make_event(dict(fields)).model_fields_set
    event.check()
    with pytest.raises(ValueError, match="frozen"):
        event.user = "v"  # type: ignore[misc]


json_values = st.recursive(
    scalars | st.sampled_from([10**400, -(10**30), 1e300, 5e-324, "\ud83d\ude00", "\x00\u2028"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(st.characters()), json_values, max_size=4), st.booleans(), st.sampled_from(["", "\n"]))
@example({"a": -0.0, "b": "\udc00"}, True, "\r\n")
def test_a_line_is_what_python_s_reader_makes_of_it(record: dict[str, Any], is_ascii: bool, end: str) -> None:
    text = json.dumps(record, ensure_ascii=is_ascii) + end
    line = text.encode("utf-8", "surrogatepass")
    try:
        wanted = json.loads(line.decode("utf-8"), parse_constant=lambda name: 1 / 0)
    except (UnicodeDecodeError, ZeroDivisionError):
        with pytest.raises(RefusedRecord):
            parse_object(line)
    else:
        assert repr(parse_object(line)) == repr(wanted)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":-0}',
        b'{"a":-0.0, "b":1E5, "c":1e999, "d":0.1e-7}',
        b'{"a":1,"b":2,"a":3}',
        b'{"a":' + b"9" * 4_300 + b"}",
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'\xef\xbb\xbf {"a":1}\r\n',
        b'{"a":"\\u0000\\ud800"}',
    ],
)
def test_rare_forms_of_json_are_read_alike(line: bytes) -> None:
    assert repr(parse_object(line)) == repr(json.loads(line.decode("utf-8-sig")))
