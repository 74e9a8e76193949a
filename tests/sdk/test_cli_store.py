"""``rerank store``: what each command says, and what it leaves alone."""

import json
import sqlite3

import pytest
from typer.testing import CliRunner

from rerank_features.events import Event
from rerank_sdk.cli import app
from rerank_sdk.store import EventStore

EVENTS = 50


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many(
            [Event(user=f"u{n % 2}", item=f"i{n}", kind="click", time_ms=n * 86_400_000) for n in range(EVENTS)]
        )
    return path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["store", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def answer(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def damage(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET item = 'other' WHERE id = 7")
    connection.commit()
    connection.close()


def test_a_sound_store_is_verified(path):
    assert answer("verify", path) == {
        "sound": True, "events": EVENTS, "damaged_events": 0, "damaged_states": 0, "problems": [],
    }  # fmt: skip
    assert run("verify", path).stdout.endswith("sound\n")


def test_silent_corruption_is_found_and_ends_with_code_1(path):
    damage(path)
    found = answer("verify", path, code=1)
    assert (found["sound"], found["damaged_events"]) == (False, 1)


def test_a_store_that_was_found_damaged_is_left_to_the_app(path):
    damage(path)
    run("verify", path, code=1)
    before = path.read_bytes()
    assert "damaged" in run("stats", path, code=1).stderr
    assert path.read_bytes() == before


def test_a_backup_is_a_store_of_its_own(path):
    result = answer("backup", path)
    assert result["backup"] == str(path.with_name("events.db.backup"))
    assert answer("stats", result["backup"])["events"] == EVENTS
    assert answer("stats", path)["backup_bytes"] == result["bytes"] > 0
    assert "events.db.backup" in run("backup", path).stdout


def test_pruning_keeps_the_newest(path):
    now_ms = EVENTS * 86_400_000
    assert answer("prune", path, "--max-age-days", 30, "--now-ms", now_ms)["rows"] == EVENTS - 30
    assert answer("prune", path, "--max-rows", 10)["rows"] == 20
    assert answer("stats", path)["events"] == 10
    assert "events erased" in run("prune", path, "--max-rows", 5).stdout
    with EventStore.open(path) as store:
        assert [event.item for event in store.read()] == [f"i{n}" for n in range(EVENTS - 5, EVENTS)]


@pytest.mark.parametrize("options", [(), ("--max-rows", "0"), ("--max-bytes", "-1"), ("--max-age-days", "x")])
def test_pruning_needs_a_limit(path, options):
    run("prune", path, *options, code=2)
    assert answer("stats", path)["events"] == EVENTS


def test_a_store_is_described(path):
    result = answer("stats", path)
    assert (result["users"], result["events"], result["items"], result["writable"]) == (2, EVENTS, 0, True)
    assert result["file_bytes"] == path.stat().st_size
    assert "schema version" in run("stats", path).stdout


@pytest.mark.parametrize("command", ["verify", "backup", "stats"])
@pytest.mark.parametrize("content", [b"", b"no store at all, but more than a hundred bytes of text. " * 4])
def test_what_is_no_store_is_refused_and_left_alone(tmp_path, command, content):
    path = tmp_path / "events.db"
    path.write_bytes(content)
    result = run(command, path, code=1)
    assert result.stderr.startswith("error: event store")
    assert path.read_bytes() == content


def test_a_missing_file_is_a_wrong_call(tmp_path):
    run("stats", tmp_path / "events.db", code=2)
    assert list(tmp_path.iterdir()) == []
