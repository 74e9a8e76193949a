"""Imports: a record becomes events, is skipped under a name, or is rejected with a reason; none is lost in silence."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_engine.errors import DataError, InputError, RerankError, StoreError
from rerank_sdk import Event, EventStore
from rerank_sdk.exchange import EventMapping, ImportReport, import_events, read_events, write_events
from rerank_sdk.exchange import lines as lines_module

GOOD = '{"user":"u","item":"i","kind":"click","time_ms":5}'
BAD = {
    "[1]": "json",
    "{": "json",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"value":NaN}': "json",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"value":1e999}': "value",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"value":"dear"}': "value",
    '{"user":"u","item":"i","kind":"Click!","time_ms":5}': "kind",
    '{"user":"u","item":"i","kind":"click"}': "time_ms",
    '{"user":"u","item":"i","kind":"click","time_ms":1e400}': "time_ms",
    '{"user":"u","item":"i","kind":"click","time_ms":-1}': "time_ms",
    '{"user":"u","item":"i","kind":"click","time_ms":' + "9" * 5000 + "}": "json",
    '{"user":"","item":"i","kind":"click","time_ms":5}': "user",
    '{"user":"\\ud800","item":"i","kind":"click","time_ms":5}': "user",
    '{"user":"' + "x" * 1025 + '","item":"i","kind":"click","time_ms":5}': "user",
    '{"user":7,"item":"i","kind":"click","time_ms":5}': "user",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"position":-1}': "position",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"attributes":{"a":[1]}}': "attributes",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"attributes":[]}': "attributes",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"colour":"red"}': "unknown_field",
    '{"user":"u","item":"i","kind":"click","time_ms":5,"":1}': "unknown_field",
    '{"a":' * 100_000: "json",
}


def run(tmp_path: Path, content: bytes | str, **options: Any) -> tuple[ImportReport, list[Any]]:
    log = tmp_path / "log.jsonl"
    log.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    with EventStore.open(tmp_path / "events.db") as store:
        report = import_events(store, log, **options)
        return report, list(store.read())


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_record_is_counted_and_the_rest_is_imported(line: str, reason: str, tmp_path: Path) -> None:
    report, kept = run(tmp_path, f"{GOOD}\n{line}\n{GOOD.replace('5', '6')}\n")
    assert report.rejected == {reason: 1}
    assert report.rejected_total == 1
    assert (report.records, report.new, [event.time_ms for event in kept]) == (3, 2, [5, 6])
    (shown,) = report.shown
    assert (shown.line, shown.reason, bool(shown.detail)) == (2, reason, True)
    assert shown.detail.isprintable()
    assert len(shown.detail) < 500


def test_rejects_hold_the_original_and_where_it_was(tmp_path: Path) -> None:
    bad = [*BAD, "\udcff"]  # the last becomes a byte that is no UTF-8
    content = b"\n".join(line.encode("utf-8", "surrogateescape") for line in [GOOD, *bad])
    rejects = tmp_path / "rejects.jsonl"
    report, _ = run(tmp_path, content, rejects=rejects)
    entries = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert report.rejected_total == len(entries) == len(bad)
    assert [entry["line"] for entry in entries] == list(range(2, len(bad) + 2))
    assert [entry["reason"] for entry in entries] == [*BAD.values(), "encoding"]
    assert [entry["original"] for entry in entries] == [*BAD, "\\xff"]
    assert len(report.shown) == 5


def test_rejects_can_be_imported_once_they_are_corrected(tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    run(tmp_path, GOOD.replace("click", "CLICK") + "\n", rejects=rejects)
    (entry,) = map(json.loads, rejects.read_text().splitlines())
    report, kept = run(tmp_path, entry["original"].replace("CLICK", "click"), rejects=rejects)
    assert (report.new, len(kept)) == (1, 1)
    assert rejects.read_text() == ""


def test_strict_stops_at_the_first_and_keeps_what_came_before(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(f"{GOOD}\n{{\n{GOOD.replace('5', '6')}\n")
    with EventStore.open(tmp_path / "events.db") as store:
        with pytest.raises(DataError, match=r"log\.jsonl: record 2 cannot become an event: json: the line is no JSON"):
            import_events(store, log, strict=True)
        assert [event.time_ms for event in store.read()] == [5]


def test_empty_lines_marks_and_line_ends_of_other_systems_are_no_matter(tmp_path: Path) -> None:
    report, kept = run(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\r\n   \n" + GOOD.replace("5", "6").encode())
    assert (report.records, report.rejected, len(kept)) == (2, {}, 2)


def test_a_line_without_end_is_refused_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1_000)
    report, kept = run(tmp_path, '{"user": "' + "x" * 10_000 + f'"}}\n{GOOD}\n')
    assert report.rejected == {"too_long": 1}
    assert [shown.line for shown in report.shown] == [1]
    assert len(kept) == 1


def test_several_files_are_read_in_order_and_progress_is_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(GOOD.replace("5", str(n)) + "\n" for n in range(5_000)))
    told: list[tuple[int, int, str]] = []
    with EventStore.open(tmp_path / "events.db") as store:
        report = import_events(
            store,
            [tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")],
            progress=lambda done, total, text: told.append((done, total, text)),
        )
    assert (report.files, report.records, report.new, report.duplicates) == (2, 10_000, 5_000, 5_000)
    assert [text for *_, text in told] == ["a.jsonl", "b.jsonl"]
    assert all(0 < done <= total for done, total, _ in told)
    assert told == sorted(told)


def test_progress_of_packed_files_and_parquet_is_told_too(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("e.jsonl.gz", "e.parquet")]
    for path in paths:
        write_events((Event(user="u", item=f"i{n}", kind="click", time_ms=n) for n in range(9_000)), path)
        told: list[tuple[int, int, str]] = []
        with EventStore.open(tmp_path / f"{path.name}.db") as store:
            import_events(store, path, progress=lambda *said, told=told: told.append(said))
        assert [total for _, total, _ in told] == [path.stat().st_size] * 2
        assert 0 < told[0][0] <= told[1][0] <= told[1][1]


IMPORT = """
import sys
from rerank_sdk import EventStore
from rerank_sdk.exchange import import_events
with EventStore.open(sys.argv[1]) as store:
    import_events(store, sys.argv[2], progress=lambda done, *_: print(done, flush=True))
"""


def test_an_import_that_was_killed_goes_on_when_it_is_repeated(tmp_path: Path) -> None:
    path, log = tmp_path / "events.db", tmp_path / "log.jsonl"
    some = [Event(user=f"u{n % 7}", item=f"i{n}", kind="click", time_ms=n, id=f"e{n}") for n in range(40_000)]
    write_events(some, log)
    child = subprocess.Popen([sys.executable, "-c", IMPORT, str(path), str(log)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [child.stdout.readline() for _ in range(3)]
    child.kill()
    child.wait()
    child.stdout.close()
    assert all(told)
    with EventStore.open(path) as store:
        kept = store.count()
        # Three batches were told of after they had been committed.
        assert kept >= 3 * 4_096
        report = import_events(store, log)
        assert (report.new, report.duplicates) == (len(some) - kept, kept)
        assert list(store.read()) == some


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_pipe_is_read_like_a_file(is_packed: bool, tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    content = f"{GOOD}\n{{\n{GOOD.replace('5', '6')}\n".encode()
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(content) if is_packed else content,))
    writer.start()
    with EventStore.open(tmp_path / "events.db") as store:
        report = import_events(store, pipe, format="jsonl", progress=lambda *_: None)
        assert (report.new, report.rejected) == (2, {"json": 1})
    writer.join()


def test_wrong_options_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    log, linked = tmp_path / "log.jsonl", tmp_path / "linked.jsonl"
    log.write_text(GOOD)
    linked.hardlink_to(log)
    with EventStore.open(tmp_path / "events.db") as store:
        for options, message in (
            ({"paths": []}, "at least one file"),
            ({"format": "csv"}, "expected one of jsonl"),
            ({"rejects": log}, "is a log that is to be read"),
            ({"rejects": linked}, "is a log that is to be read"),
            ({"rejects": tmp_path / "events.db"}, "is a file of the store"),
            ({"rejects": tmp_path / "events.db-wal"}, "is a file of the store"),
            ({"mapping": {"name": "m"}}, "expected an EventMapping, got dict"),
        ):
            with pytest.raises(InputError, match=message):
                import_events(store, **{"paths": log, **options})
        with pytest.raises(OSError, match="missing"):
            import_events(store, tmp_path / "missing.jsonl")
        assert store.count() == 0
    assert log.read_text() == GOOD


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(GOOD)
    store = EventStore.open(tmp_path / "events.db")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        import_events(store, log)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(
        [10**400, -(10**30), "0000-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2024-03-31T02:30"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ("user", "item", "kind", "time_ms", "position", "request", "value", "attributes", "id")
MAPPING = EventMapping(
    name="fuzz",
    user="user",
    item=["each.item", "each"],
    kind={"path": "kind", "names": {"a": "click"}, "other": "keep", "constant": "view"},
    time={"path": "time_ms", "zone": "Europe/Berlin"},
    position={"path": ["each.position", "position"], "index": True},
    request="request.0.id",
    value="value",
    id="id",
    attributes={"all": "attributes", "first": "attributes.0", "one": {"constant": 1}},
    rules=[{"name": "all", "each": "item", "when": {"kind": {"none_of": ["b", 1, True]}}}],
)


@pytest.mark.parametrize("mapping", [None, MAPPING], ids=["own", "mapped"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=9) | json_values, max_size=6))
def test_no_record_raises_and_none_is_lost(records: list[Any], mapping: EventMapping | None, tmp_path: Path) -> None:
    content = "\n".join(json.dumps(record) for record in records).encode()
    (tmp_path / "events.db").unlink(missing_ok=True)
    report, kept = run(tmp_path, content, mapping=mapping, rejects=tmp_path / "rejects.jsonl")
    assert report.records == len(records)
    assert report.events == report.new + report.duplicates
    assert len(kept) == report.new
    entries = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(entries) == report.rejected_total
    if mapping is None:
        assert report.events + report.rejected_total == len(records)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), form=st.sampled_from(["jsonl", "segment", "snowplow", "parquet"]))
def test_any_bytes_give_events_or_an_error_of_ours(content: bytes, form: str, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(content)
    with contextlib.suppress(RerankError):
        assert all(isinstance(event, Event) for event in read_events(tmp_path / "any", format=form))
