"""``rerank events``: what it reads, writes and prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rerank_features import Event
from rerank_sdk import EventStore
from rerank_sdk.cli import app
from rerank_sdk.exchange import BUILT_IN, FORMATS, EventMapping, read_events, write_events

EVENTS = [Event(user=f"u{n % 2}", item=f"i{n}", kind="click", time_ms=n) for n in range(10)]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["events", *map(str, words)])


def answer(*words: object) -> dict[str, Any]:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    write_events(EVENTS, path)
    return path


def test_events_go_in_and_come_out(log: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    assert answer("import", log, log, "--store", store) == {
        "files": 2,
        "records": 20,
        "events": 20,
        "new": 10,
        "duplicates": 10,
        "skipped": {},
        "rejected": {},
        "shown": [],
        "rejected_total": 0,
        "store": str(store),
        "rejects": None,
    }
    for name in ("out.jsonl", "out.jsonl.gz", "out.parquet"):
        done = answer("export", "--store", store, "--out", tmp_path / name)
        assert (done["events"], done["users"]) == (10, None)
        assert done["size_bytes"] == (tmp_path / name).stat().st_size
        assert list(read_events(tmp_path / name)) == EVENTS
    assert (tmp_path / "out.jsonl").read_bytes() == log.read_bytes()


def test_some_users_in_a_named_format(log: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    answer("import", log, "--store", store)
    out = tmp_path / "out.txt"
    done = answer("export", "--store", store, "--out", out, "--user", "u1", "--user", "nobody", "--format", "jsonl")
    assert done["users"] == ["u1", "nobody"]
    assert [event.user for event in read_events(out, format="jsonl")] == ["u1"] * 5


def test_bad_records_are_told_and_kept(log: Path, tmp_path: Path) -> None:
    with log.open("a") as file:
        file.write('{"user":"u","item":"i","kind":"[red]CLICK","time_ms":5}\n{\n')
    rejects = tmp_path / "rejects.jsonl"
    result = call("import", log, "--store", tmp_path / "events.db", "--rejects", rejects)
    assert result.exit_code == 0
    assert "rejected          2" in result.stdout
    assert f"{log}, record 12: json: the line is no JSON" in " ".join(result.stdout.split())
    assert "[red]CLICK" in result.stdout
    assert str(rejects) in result.stderr
    assert len(rejects.read_text().splitlines()) == 2
    hint = call("import", log, "--store", tmp_path / "events.db")
    assert "--rejects FILE keeps the rejected records" in hint.stderr


def test_a_log_of_which_nothing_can_be_imported_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"user": "u", "item": "i", "kind": "click", "time_ms": 5}]))
    result = call("import", log, "--store", tmp_path / "events.db", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rejected"] == {"json": 1}
    assert "expected an object, one a line, got [{" in json.loads(result.stdout)["shown"][0]["detail"]
    assert result.stderr.startswith("error: no record could be imported: name the --format")
    log.write_text("")
    assert call("import", log, "--store", tmp_path / "events.db").exit_code == 0


def test_strict_is_an_error(log: Path, tmp_path: Path) -> None:
    with log.open("a") as file:
        file.write("{\n")
    result = call("import", log, "--store", tmp_path / "events.db", "--strict")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {log}: record 11 cannot become an event: json")
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.count() == 10


def test_a_mapping_of_one_s_own(tmp_path: Path) -> None:
    log, mapping = tmp_path / "log.jsonl", tmp_path / "m.toml"
    log.write_text('{"who": 7, "film": "f", "at": 5, "did": "open"}\n{"who": 7, "film": "f", "at": 6, "did": "quit"}\n')
    mapping.write_text(
        'name = "m"\nuser = "who"\nitem = "film"\ntime = {path = "at", unit = "s"}\n'
        'kind = {path = "did", names = {open = "click"}}\n'
    )
    done = answer("import", log, "--store", tmp_path / "events.db", "--mapping", mapping)
    assert (done["new"], done["skipped"]) == (1, {"no kind for 'quit'": 1})
    result = call("import", log, "--store", tmp_path / "events.db", "--mapping", mapping)
    assert "no kind for 'quit'" in result.stdout
    mapping.write_text('name = "m"\nusr = "who"\n')
    result = call("import", log, "--store", tmp_path / "events.db", "--mapping", mapping)
    assert result.exit_code == 1
    assert "usr: unknown option; did you mean user?" in result.stderr


def test_a_segment_log(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    products = [{"product_id": "a"}, {"product_id": "b"}]
    record = {"type": "track", "event": "Product List Viewed", "properties": {"products": products}}
    log.write_text(json.dumps({**record, "messageId": "m", "userId": "u", "timestamp": "2024-03-01T10:00:00Z"}))
    done = answer("import", log, "--store", tmp_path / "events.db", "--format", "segment")
    assert (done["records"], done["new"]) == (1, 2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_mapping_can_be_copied(name: str) -> None:
    result = call("mapping", name)
    assert EventMapping.from_toml(result.stdout) == EventMapping.builtin(name)
    found = answer("mapping", name)
    assert found["toml"] == result.stdout
    assert found["schema"] == EventMapping.json_schema()


def test_the_command_names_every_format_and_mapping() -> None:
    assert all(name in call("import", "--help").stdout for name in FORMATS)
    assert all(name in call("mapping", "--help").stdout for name in BUILT_IN)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "import --store s.db",
        "import missing.jsonl --store s.db",
        "import log.jsonl",
        "import log.jsonl --store s.db --format csv",
        "import log.jsonl --store s.db --mapping missing.toml",
        "export --store missing.db --out out.jsonl",
        "export --store log.jsonl --out out.jsonl --format segment",
        "mapping amplitude",
    ],
)
def test_a_wrong_call_is_refused_before_anything_happens(
    line: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*line.split())
    assert result.exit_code == 2
    assert "Usage: " in result.output
    assert list(tmp_path.iterdir()) == [log]


def test_nothing_is_written_over_what_is_still_needed(log: Path, tmp_path: Path) -> None:
    store, mapping = tmp_path / "events.db", tmp_path / "m.toml"
    answer("import", log, "--store", store)
    mapping.write_text(
        'name = "m"\nuser = "user"\nitem = "item"\nkind = "kind"\ntime = {path = "time_ms", unit = "ms"}\n'
    )
    kept = mapping.read_bytes(), log.read_bytes()
    for words, code in (
        (("export", "--store", store, "--out", store, "--format", "jsonl"), 2),
        (("export", "--store", store, "--out", f"{store}-wal", "--format", "jsonl"), 2),
        (("import", log, "--store", store, "--mapping", mapping, "--rejects", mapping), 2),
        (("import", log, "--store", store, "--rejects", log), 1),
        (("import", log, "--store", store, "--rejects", store), 1),
        (("import", log, "--store", log), 1),
    ):
        result = call(*words)
        assert result.exit_code == code, result.output
        assert "give another file" in " ".join(result.output.split()) or words[3] == log
    assert (mapping.read_bytes(), log.read_bytes()) == kept
    assert answer("import", log, "--store", store, "--mapping", mapping)["duplicates"] == len(EVENTS)
