"""Events of ours in files: what is written comes back, in the same bytes, and damage has a name."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_engine.errors import DataError, EventError, InputError, MissingExtraError
from rerank_features import Event
from rerank_features.events import MAX_POSITION, MAX_TIME_MS
from rerank_sdk import EventStore
from rerank_sdk.exchange import import_events, importing, parquet, read_events, write_events

FILES = ("events.jsonl", "events.jsonl.gz", "events.parquet")

encodable = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
anything = st.text(st.characters(), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
events = st.builds(
    Event,
    user=encodable,
    item=encodable,
    kind=st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True),
    time_ms=st.integers(0, MAX_TIME_MS),
    position=st.none() | st.integers(0, MAX_POSITION),
    request=st.none() | encodable,
    value=st.none() | numbers,
    attributes=st.dictionaries(encodable, st.booleans() | st.integers() | numbers | anything, max_size=4),
    id=st.none() | encodable,
)


def exact(event: Event) -> tuple[Any, ...]:
    """Every field with its type: to Python true is 1, and 0.0 is -0.0."""
    facts = [(name, type(value), repr(value)) for name, value in event.attributes.items()]
    return (
        event.user,
        event.item,
        event.kind,
        event.time_ms,
        event.position,
        event.request,
        repr(event.value),
        facts,
        event.id,
    )


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(events, max_size=8))
def test_what_is_written_comes_back_in_every_field_and_type(name: str, some: list[Event], tmp_path: Path) -> None:
    path = tmp_path / name
    assert write_events(some, path) == len(some)
    back = list(read_events(path))
    assert back == some
    assert list(map(exact, back)) == list(map(exact, some))


@pytest.mark.parametrize("name", FILES)
def test_the_same_events_make_the_same_bytes(name: str, tmp_path: Path) -> None:
    some = [
        Event(user="u", item=f"i{n}", kind="click", time_ms=n, attributes={"b": n, "a": n / 3}) for n in range(20_000)
    ]
    (tmp_path / "a").mkdir()
    write_events(some, tmp_path / "a" / name)
    write_events(iter(some), tmp_path / name)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", name])


@pytest.mark.parametrize("name", FILES)
def test_the_store_comes_back_whole(name: str, tmp_path: Path) -> None:
    some = [
        Event(user=f"u{n % 3}", item=f"i{n}", kind="dwell", time_ms=n, value=n / 7, id=None if n % 2 else f"e{n}")
        for n in range(500)
    ]
    with EventStore.open(tmp_path / "a.db") as store:
        store.append_many(some)
        assert write_events(store.read(), tmp_path / name) == 500
    with EventStore.open(tmp_path / "b.db") as store:
        report = import_events(store, tmp_path / name)
        assert (report.records, report.events, report.new, report.duplicates) == (500, 500, 500, 0)
        again = import_events(store, tmp_path / name)
        assert (again.events, again.new, again.duplicates) == (500, 0, 500)
        assert list(store.read()) == some


@pytest.mark.parametrize("name", ["events.jsonl", "events.parquet"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(events, max_size=8))
def test_any_store_is_the_same_after_export_and_import(name: str, some: list[Event], tmp_path: Path) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    with EventStore.open(tmp_path / "a.db") as one, EventStore.open(tmp_path / "b.db") as other:
        one.append_many(some)
        written = write_events(one.read(), tmp_path / name)
        report = import_events(other, tmp_path / name)
        assert (report.records, report.new, report.duplicates, report.rejected) == (written, written, 0, {})
        assert list(map(exact, other.read())) == list(map(exact, one.read()))
        assert import_events(other, tmp_path / name).new == 0


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "uncompressed"])
def test_every_codec_of_parquet_can_be_read(codec: str, tmp_path: Path) -> None:
    event = Event(user="u", item="i", kind="click", time_ms=5)
    write_events([event], tmp_path / "e.parquet", codec=codec)
    assert list(read_events(tmp_path / "e.parquet")) == [event]


def test_a_path_with_signs_of_patterns_and_quotes_means_itself(tmp_path: Path) -> None:
    event = Event(user="u", item="i", kind="click", time_ms=5)
    path = tmp_path / "it's [a] *star?.parquet"
    write_events([event], path)
    write_events([], tmp_path / "it's a Xstar!.parquet")
    assert list(read_events(path)) == [event]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "there" / "events.jsonl")
    for count in (1, 2):
        some = [Event(user="u", item=f"i{n}", kind="click", time_ms=n) for n in range(count)]
        assert write_events(some, tmp_path / "link.jsonl") == count
        assert (tmp_path / "link.jsonl").is_symlink()
        assert list(read_events(tmp_path / "there" / "events.jsonl")) == some


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_no_file_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a device or a pipe"):
        write_events([], pipe)
    assert pipe.is_fifo()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Iterator[Event]:
        yield Event(user="u", item="i", kind="click", time_ms=5)
        raise RuntimeError("the source failed")

    for name in FILES:
        path = tmp_path / name
        path.write_bytes(b"what was there")
        with pytest.raises(RuntimeError, match="the source failed"):
            write_events(broken(), path)
        assert path.read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_event_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EventError, match="expected an Event, got dict"):
        write_events([{"user": "u"}], tmp_path / name)  # type: ignore[list-item]
    around = Event.model_construct(
        user="u\ud800",
        item="i",
        kind="click",
        time_ms=5,
        position=None,
        request=None,
        value=None,
        attributes={},
        id=None,
    )
    if name.endswith("parquet"):
        with pytest.raises(EventError, match="cannot be written as Parquet"):
            write_events([around], tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "events.csv"}, "its ending tells no format"),
        ({"path": "e.jsonl", "format": "avro"}, "expected one of jsonl, parquet, segment, snowplow, got 'avro'"),
        ({"path": "e.jsonl", "format": "segment"}, "segment can be read only: write one of jsonl, parquet"),
        ({"path": "e.parquet", "codec": "lzma"}, "codec: expected one of zstd"),
        ({"path": "folder.jsonl"}, "is a folder"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match=message):
        write_events([], **{**options, "path": tmp_path / options["path"]})


def test_a_cut_off_packed_file_keeps_what_came_before(tmp_path: Path) -> None:
    some = [Event(user="u", item=f"i{n * 7919 % 9973}", kind="click", time_ms=n * n) for n in range(20_000)]
    path = tmp_path / "events.jsonl.gz"
    write_events(some, path)
    path.write_bytes(path.read_bytes()[:-5000])
    with EventStore.open(tmp_path / "a.db") as store:
        with pytest.raises(DataError, match=r"cannot be read beyond line \d+.*events before it are kept"):
            import_events(store, path)
        kept = list(store.read())
        assert 0 < len(kept) < len(some)
        assert kept == some[: len(kept)]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + bytes(200) + b"PAR1"])
def test_damaged_parquet_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(read_events(path))


def test_every_cut_of_a_parquet_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    write_events([Event(user="u", item=f"i{n}", kind="click", time_ms=n) for n in range(50)], path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 101):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            list(read_events(path))


def test_foreign_columns_of_parquet_are_refused_by_name(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "e.parquet"
    duckdb.sql("select 'u' as user, 'i' as item, 5 as time_ms, 1 as colour").write_parquet(str(path))
    with pytest.raises(DataError, match="got unknown 'colour', no kind: say by a mapping"):
        list(read_events(path))


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.parquet"
    write_events([], path)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rerank-sdk\[parquet\]'"):
        list(read_events(path))
    with pytest.raises(MissingExtraError, match=r"pip install 'rerank-sdk\[parquet\]'"):
        write_events([], path)


@pytest.mark.parametrize("is_packed", [False, True])
def test_memory_does_not_grow_with_the_file(is_packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"

    def peak(count: int) -> int:
        line = json.dumps(
            {"user": "u", "item": "i", "kind": "click", "time_ms": 5, "attributes": {"text": "x" * 2_000}}
        )
        with gzip.open(path, "wt") if is_packed else path.open("w") as file:
            file.writelines(f"{line}\n" for _ in range(count))
        tracemalloc.start()
        assert sum(1 for _ in read_events(path)) == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(8_000) < 2 * peak(400) < 8_000 * 2_000


@pytest.mark.parametrize("name", FILES)
def test_neither_import_nor_export_holds_all_events(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_BATCH", 200)
    monkeypatch.setattr(parquet, "_ROWS", 200)

    def made(count: int) -> Iterator[Event]:
        return (
            Event(user="u", item=f"i{n}", kind="click", time_ms=n, attributes={"a": "x" * 2_000}) for n in range(count)
        )

    def peak(count: int) -> int:
        path = tmp_path / f"{count}-{name}"
        with EventStore.open(tmp_path / f"{path.name}.db") as store:
            tracemalloc.start()
            write_events(made(count), path)
            assert import_events(store, path).new == count
            assert write_events(store.read(), path) == count
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return most

    peak(10)
    assert peak(6_000) < 6_000 * 2_000 / 2
