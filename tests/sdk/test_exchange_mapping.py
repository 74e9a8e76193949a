"""Mappings as data: paths, times, conditions, explosion of lists; and what is refused when one is read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_engine.errors import SpecError
from rerank_features import Event
from rerank_features.events import MAX_TIME_MS
from rerank_sdk import EventStore
from rerank_sdk.exchange import BUILT_IN, EventMapping, builtin_text, import_events, read_events
from rerank_sdk.exchange.mapper import Mapped, Mapper
from rerank_sdk.exchange.paths import getter, steps_of
from rerank_sdk.exchange.record import RefusedRecord
from rerank_sdk.exchange.times import time_ms_of

BASE: dict[str, Any] = {"name": "m", "user": "u", "item": "i", "kind": {"constant": "click"}, "time": "t"}
RECORD: dict[str, Any] = {"u": "ann", "i": "film", "t": "2024-01-01T00:00:00Z"}
NEW_YEAR_MS = 1_704_067_200_000


def mapped(record: dict[str, Any], **options: Any) -> Mapped:
    return Mapper(EventMapping(**{**BASE, **options})).map({**RECORD, **record})


def event_of(record: dict[str, Any], **options: Any) -> Event:
    found = mapped(record, **options)
    assert not found.refused, found.refused
    (event,) = found.events
    return event


def refusal_of(record: dict[str, Any], **options: Any) -> RefusedRecord:
    found = mapped(record, **options)
    assert not found.events
    (refused,) = found.refused
    return refused


# --- fields ----------------------------------------------------------------------------------------------


def test_fields_come_from_where_the_mapping_says() -> None:
    event = event_of(
        {"place": 3, "list": {"id": "r"}, "price": "19.5", "key": 12, "facts": {"a": [1, {"b": "é"}], "gone": None}},
        position="place",
        request="list.id",
        value="price",
        id="key",
        attributes={"all": "facts.a", "deep": "facts.a.1.b", "gone": "facts.gone", "source": {"constant": "web"}},
    )
    assert event == Event(
        user="ann",
        item="film",
        kind="click",
        time_ms=NEW_YEAR_MS,
        position=3,
        request="r",
        value=19.5,
        id="12",
        attributes={"all": '[1,{"b":"é"}]', "deep": "é", "source": "web"},
    )


@pytest.mark.parametrize(("record", "user"), [({"u": None}, "a"), ({"u": ""}, "a"), ({}, "ann"), ({"u": 0}, "0")])
def test_the_first_candidate_that_is_there_counts(record: dict[str, Any], user: str) -> None:
    assert event_of({"anonymous": "a", **record}, user=["u", "anonymous"]).user == user


@pytest.mark.parametrize(("value", "wanted"), [(7, "7"), (7.0, "7"), (-0.0, "0"), ("7.0", "7.0"), (2**70, str(2**70))])
def test_whole_numbers_are_ids(value: Any, wanted: str) -> None:
    assert event_of({"u": value}).user == wanted


@pytest.mark.parametrize("value", [1.5, 2.0**53, float("nan"), float("inf"), True, [], {}, 10**2000])
def test_what_is_no_id_is_refused(value: Any) -> None:
    assert refusal_of({"u": value}).reason == "user"
    assert refusal_of({"k": value}, id="k").reason == "id"


@pytest.mark.parametrize(
    ("value", "wanted"), [(3, 3.0), ("3", 3.0), ("-2.5e3", -2500.0), (-0.0, 0.0), ("", None), (None, None)]
)
def test_numbers_are_taken_as_numbers_and_as_text(value: Any, wanted: float | None) -> None:
    assert event_of({"v": value}, value="v").value == wanted


@pytest.mark.parametrize("value", ["nan", "inf", "1_000", " 1", "1e999", 10**400, True, [], float("nan"), "٣"])
def test_what_is_no_number_is_refused(value: Any) -> None:
    assert refusal_of({"v": value}, value="v").reason == "value"


@pytest.mark.parametrize(("value", "wanted"), [(1, 0), ("7", 6), (2.0, 1), (None, None)])
def test_places_that_count_from_one(value: Any, wanted: int | None) -> None:
    assert event_of({"p": value}, position={"path": "p", "first": 1}).position == wanted


@pytest.mark.parametrize("value", [0, -1, 1.5, "top", True, 10**7, float("inf")])
def test_what_is_no_place_is_refused_with_the_way_out(value: Any) -> None:
    refused = refusal_of({"p": value}, position={"path": "p", "first": 1})
    assert refused.reason == "position"
    assert "lists begin at 1" in refused.detail


def test_kinds_are_renamed() -> None:
    kind = {"path": "what", "names": {"open": "click", "thumb up": "like"}}
    assert event_of({"what": "thumb up"}, kind=kind).kind == "like"
    assert mapped({"what": "scroll"}, kind=kind) == Mapped((), skipped="no kind for 'scroll'")
    assert refusal_of({"what": "scroll"}, kind={**kind, "other": "reject"}).reason == "kind"
    assert event_of({"what": "scroll"}, kind={**kind, "other": "keep"}).kind == "scroll"
    assert refusal_of({"what": "Scroll!"}, kind={**kind, "other": "keep"}).reason == "kind"
    assert refusal_of({"what": 5}, kind=kind).reason == "kind"
    assert event_of({}, kind={**kind, "constant": "view"}).kind == "view"


def test_kinds_without_names_are_the_log_s_own_words() -> None:
    assert event_of({"what": "scroll"}, kind="what").kind == "scroll"
    assert refusal_of({"what": "Scroll!"}, kind="what").reason == "kind"
    assert refusal_of({"what": "scroll"}, kind={"path": "what", "other": "reject"}).reason == "kind"


# --- times -----------------------------------------------------------------------------------------------


@given(st.integers(0, MAX_TIME_MS), st.integers(-23 * 60, 23 * 60))
def test_times_mean_the_same_in_every_unit_and_offset(time_ms: int, offset_min: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=time_ms)  # noqa: UP017
    there = moment.astimezone(timezone(timedelta(minutes=offset_min)))
    assert time_ms_of(there.isoformat(), "iso", None) == time_ms
    assert time_ms_of(time_ms, "ms", None) == time_ms
    assert time_ms_of(time_ms * 1_000 + 999, "us", None) == time_ms
    assert time_ms_of(time_ms / 1_000, "s", None) == time_ms
    assert time_ms_of(f"{time_ms // 1_000}.{time_ms % 1_000:03}", "s", None) == time_ms
    assert time_ms_of(time_ms // 1_000, "s", None) == time_ms // 1_000 * 1_000


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-07-01T12:00:00", "2024-07-01T10:00:00Z"),
        ("2024-01-01 12:00:00.5", "2024-01-01T11:00:00.500Z"),
        ("2024-10-27T02:30:00", "2024-10-27T00:30:00Z"),  # shown twice: the first is meant
        ("2024-10-27T02:30:00+01:00", "2024-10-27T01:30:00Z"),
        ("2024-03-31T03:00:00", "2024-03-31T01:00:00Z"),
    ],
)
def test_a_zone_places_times_without_offset(text: str, wanted: str) -> None:
    assert time_ms_of(text, "iso", BERLIN) == time_ms_of(wanted, "iso", None)


@pytest.mark.parametrize(
    ("value", "unit", "zone"),
    [
        ("2024-03-31T02:30:00", "iso", BERLIN),  # left out in spring
        ("2024-01-01T12:00:00", "iso", None),
        ("0000-01-01T00:00:00Z", "iso", None),
        ("0001-01-01T00:00:00", "iso", BERLIN),
        ("9999-12-31T23:59:59-23:59", "iso", None),
        ("9999-12-31T23:59:59", "iso", ZoneInfo("America/New_York")),
        ("1969-12-31T23:59:59.999Z", "iso", None),
        ("2100-01-01T00:00:00.001Z", "iso", None),
        ("yesterday", "iso", None),
        ("\ud800", "iso", None),
        (5, "iso", None),
        ("2024-01-01", "ms", None),
        (-1, "ms", None),
        (True, "ms", None),
        (float("nan"), "s", None),
        (float("inf"), "us", None),
        (10**400, "ms", None),
        (1_700_000_000_000, "s", None),  # milliseconds
        ("9" * 5_000, "ms", None),
        (None, "ms", None),
    ],
)
def test_what_is_no_time_is_refused(value: Any, unit: Any, zone: Any) -> None:
    with pytest.raises(RefusedRecord) as caught:
        time_ms_of(value, unit, zone)
    assert caught.value.reason == "time_ms"
    assert len(caught.value.detail) < 300


# --- lists, conditions, drops ----------------------------------------------------------------------------


SHELF = {
    "name": "shelf",
    "each": "items",
    "item": ["each.sku", "each"],
    "position": {"path": "each.at", "first": 1, "index": True},
    "attributes": {"price": "each.price"},
}


def test_a_list_becomes_events_that_are_told_apart_by_their_ids() -> None:
    record = {"key": "m1", "page": "home", "items": [{"sku": "a", "price": 2}, {"sku": "b", "at": 9}, "c"]}
    found = mapped(record, id="key", attributes={"page": "page"}, rules=[SHELF])
    assert [(event.item, event.position, event.id) for event in found.events] == [
        ("a", 0, "m1#0"),
        ("b", 8, "m1#1"),
        ("c", 2, "m1#2"),
    ]
    assert [event.attributes for event in found.events] == [
        {"page": "home", "price": 2},
        {"page": "home"},
        {"page": "home"},
    ]


def test_a_bad_element_does_not_take_the_others_along() -> None:
    found = mapped(
        {"items": [{"sku": "a"}, {"name": "no sku"}, {"sku": "c", "at": 0}]}, rules=[{**SHELF, "item": "each.sku"}]
    )
    assert [event.item for event in found.events] == ["a"]
    assert [(refused.reason, refused.detail[:8]) for refused in found.refused] == [
        ("item", "items.1:"),
        ("position", "items.2:"),
    ]


@pytest.mark.parametrize(("items", "skipped"), [(None, "no list items"), ([], "empty list items")])
def test_a_missing_list_is_skipped(items: Any, skipped: str) -> None:
    assert mapped({"items": items}, rules=[SHELF]) == Mapped((), skipped=skipped)


def test_what_is_no_list_is_refused() -> None:
    assert refusal_of({"items": {"sku": "a"}}, rules=[SHELF]).reason == "each"


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("a", ["a"]),
        (["a", 1], ["a", 1]),
        (True, [True]),
        ({"none_of": ["a", 1]}, [True, "", None, 1.0, [], {}]),
        ({"present": True}, ["a", 1, True, 1.0, [], {}]),
        ({"present": False}, ["", None]),
        ({"present": True, "none_of": ["a"]}, [1, True, 1.0, [], {}]),
    ],
)
def test_conditions_tell_types_apart(condition: Any, values: list[Any]) -> None:
    taken = []
    for value in ["a", 1, True, "", None, 1.0, [], {}]:
        found = mapped({"x": value}, rules=[{"name": "r", "when": {"x": condition}}])
        assert bool(found.events) != bool(found.skipped)
        taken += [value] if found.events else []
    assert list(map(repr, taken)) == list(map(repr, values))


def test_the_first_rule_that_holds_is_used_whether_or_not_a_table_finds_it() -> None:
    rules: list[dict[str, Any]] = [
        {"name": "one", "when": {"x": ["a", "b"], "y": 1}, "kind": {"constant": "like"}},
        {"name": "two", "when": {"x": ["b", "c"]}, "kind": {"constant": "hide"}},
    ]
    for more in ([], [{"name": "all", "kind": {"constant": "view"}}]):
        options = {"rules": [*rules, *more]}
        assert event_of({"x": "a", "y": 1}, **options).kind == "like"
        assert event_of({"x": "b", "y": 1}, **options).kind == "like"
        assert event_of({"x": "b", "y": 2}, **options).kind == "hide"
        assert event_of({"x": "c", "y": 1}, **options).kind == "hide"
        for other in ({"x": "a", "y": 2}, {"x": {}}, {}):
            if more:
                assert event_of(other, **options).kind == "view"
            else:
                assert mapped(other, **options).skipped is not None
                assert refusal_of(other, **options, other="reject").reason == "no_rule"


def test_drops_go_before_rules_and_have_a_name() -> None:
    drop = [{"name": "robots", "when": {"agent": ["bot", "crawler"], "human": {"none_of": [True]}}}]
    assert mapped({"agent": "bot"}, drop=drop) == Mapped((), skipped="robots")
    assert event_of({"agent": "bot", "human": True}, drop=drop).item == "film"


# --- paths -----------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(), min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_key_can_be_written_as_a_path(keys: list[str]) -> None:
    path = ".".join(key.replace("\\", "\\\\").replace(".", "\\.") for key in keys)
    assert steps_of(path) == tuple(keys)
    record: Any = 5
    for key in reversed(keys):
        record = {key: record}
    assert getter(path)(record, record.get("each")) == 5


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a\\"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(SpecError, match="is no path"):
        EventMapping(**{**BASE, "user": path})


# --- reading a mapping -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"usr": "u"}, r"usr: unknown option; did you mean user\?"),
        ({"user": None}, "rule 'm' does not say where user comes from"),
        ({"user": []}, "user: names no path"),
        ({"user": 5}, r"user: expected a path, a list of paths, or a table of options \(got 5\)"),
        ({"time": {"path": "t", "unit": "minutes"}}, "time.unit: Input should be 'iso', 's', 'ms' or 'us'"),
        ({"time": {"path": "t", "zone": "Europe/Atlantis"}}, "'Europe/Atlantis' is no time zone"),
        ({"time": {"path": "t", "zone": "../etc/passwd"}}, "is no time zone"),
        ({"time": {"path": "t", "zone": "europe/berln"}}, r"; did you mean Europe/Berlin\?$"),
        ({"rules": {"name": "r"}}, "rules: expected a list; in TOML each of its tables"),
        ({"rules": [{"name": "r", "whn": {}}]}, r"rules.0.whn: unknown option; did you mean when\?"),
        ({"Colour": "u"}, "Colour: unknown option; remove it"),
        ({"kind": {"path": "k", "names": {"x": "Not A Kind"}}}, "kind.names.x: a kind is made of lower-case letters"),
        ({"position": {"path": "p", "first": 2}}, "position.first"),
        ({"item": "each.id"}, "name the list by each ="),
        ({"position": {"path": "p", "index": True}}, "position.index needs a list"),
        ({"rules": [{"name": "r", "when": {"x": {}}}]}, "is no condition"),
        ({"rules": [{"name": "r", "each": "items", "when": {"each.x": 1}}]}, "look at the record, not at an element"),
        ({"drop": [{"name": "d", "when": {}}]}, "drop.0.when"),
        ({"drop": [{"name": "d", "when": {"each.x": 1}}]}, "there is no list"),
        ({"name": ""}, "name: String should have at least 1 character"),
    ],
)
def test_a_wrong_mapping_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        EventMapping(**{**BASE, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("name = ", "is no TOML"), ("missing.toml", "cannot read the mapping missing.toml")]
)
def test_what_cannot_be_read_is_told(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=message):
        EventMapping.from_toml(text)
    with pytest.raises(SpecError, match="got int"):
        EventMapping.from_toml(5)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no built-in mapping 'amplitude': use one of segment, snowplow"):
        builtin_text("amplitude")
    with pytest.raises(SpecError, match=r"; did you mean segment\?$"):
        builtin_text("Segmnt")


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_mappings_are_read_from_their_own_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(builtin_text(name), encoding="utf-8")
    assert EventMapping.from_toml(path) == EventMapping.builtin(name)
    assert EventMapping(**EventMapping.builtin(name).model_dump(exclude_none=True)) == EventMapping.builtin(name)


def test_the_schema_knows_every_option_and_the_short_forms() -> None:
    schema = EventMapping.json_schema()
    assert set(schema["properties"]) == set(EventMapping.model_fields)
    assert json.loads(json.dumps(schema)) == schema
    forms = schema["$defs"]["Source"]["anyOf"]
    assert [form.get("type") for form in forms] == ["object", "string", "array"]


def test_rows_of_parquet_are_mapped_with_structures_and_times(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.parquet"
    duckdb.sql(
        "select 7 as u, {'id': 'film', 'tags': ['a', 'b']} as i, timestamp '2024-01-01 00:00:00.25' as t, "
        "1.5::decimal(5,2) as v, 'x'::blob as b, date '2024-02-03' as d, null::integer as n"
    ).write_parquet(str(path))
    mapping = EventMapping(
        **{**BASE, "item": "i.id", "time": {"path": "t", "zone": "UTC"}, "value": "v"},
        attributes={"tags": "i.tags", "tag": "i.tags.1", "b": "b", "d": "d", "n": "n"},
    )
    (event,) = read_events(path, mapping=mapping)
    assert (event.user, event.item, event.time_ms, event.value) == ("7", "film", NEW_YEAR_MS + 250, 1.5)
    assert event.attributes == {"tags": '["a","b"]', "tag": "b", "b": "x", "d": "2024-02-03"}


def test_whole_numbers_of_parquet_keep_their_digits(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.parquet"
    duckdb.sql(
        "select 12345678901234567890123::decimal(38,0) as u, 7::double as i, 1704067200000::decimal(18,0) as t, "
        "9007199254740993::ubigint as id, 0.1::float as f"
    ).write_parquet(str(path))
    mapping = EventMapping(**{**BASE, "time": {"path": "t", "unit": "ms"}}, id="id")
    (event,) = read_events(path, mapping=mapping)
    assert (event.user, event.item, event.time_ms) == ("12345678901234567890123", "7", NEW_YEAR_MS)
    assert event.id == "9007199254740993"


@pytest.mark.parametrize(
    "moment", ["'infinity'::timestamp", "'-infinity'::timestamptz", "'0044-03-15 (BC)'::timestamp"]
)
def test_times_of_parquet_that_no_event_can_have_are_rejected(moment: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.parquet"
    duckdb.sql(f"select 'u' as u, 'i' as i, {moment} as t union all select 'u', 'i', '2024-01-01'").write_parquet(
        str(path)
    )
    mapping = EventMapping(**{**BASE, "time": {"path": "t", "zone": "UTC"}})
    with EventStore.open(tmp_path / "events.db") as store:
        report = import_events(store, path, mapping=mapping)
        assert (report.rejected, [event.time_ms for event in store.read()]) == ({"time_ms": 1}, [NEW_YEAR_MS])


def test_bytes_of_parquet_are_text_and_digests_stop_nothing(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.parquet"
    duckdb.sql(
        r"select encode('zoë') as u, encode('i') as i, timestamp '2024-01-01' as t, '\xFF\x00'::blob as d, "
        r"{'d': '\xFF'::blob, 'n': 'nan'::double} as s "
        "union all select encode('ann'), encode('i'), '2024-01-01', null, null"
    ).write_parquet(str(path))
    mapping = EventMapping(
        **{**BASE, "time": {"path": "t", "zone": "UTC"}}, attributes={"digest": "d", "inner": "s.d"}, id="id"
    )
    found = list(read_events(path, mapping=mapping))
    assert [event.user for event in found] == ["zoë", "ann"]
    assert [event.attributes for event in found] == [{"digest": "\\xff\x00", "inner": "\\xFF"}, {}]
