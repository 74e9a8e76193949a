"""``rerank features``: specs are checked, their schema printed, values explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rerank_features import Event, FeatureSpec, Item, Request
from rerank_sdk.cli import app
from rerank_sdk.store import EventStore

SPEC = """
name = "feed"
[items]
categorical = ["genre"]
[[dense]]
kind = "count"
name = "clicks_in_genre"
key = "genre"
kinds = ["click"]
window = 3600
transform = "log1p"
[[dense]]
kind = "server_rank"
name = "rank"
"""


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    path = tmp_path / "feed.toml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    with EventStore.open(folder / "events.db") as store:
        store.save_items([Item(id=name, categorical={"genre": genre}) for name, genre in ITEMS.items()])
        store.append_many(
            Event(user=user, item=item, kind="click", time_ms=1_700_000_000_000 + place)
            for place, (user, item) in enumerate([("u", "a"), ("u", "c"), ("v", "a"), ("u", "b")])
        )
    return folder


ITEMS = {"a": "drama", "b": "drama", "c": "comedy"}


@pytest.fixture
def request_path(tmp_path: Path) -> Path:
    request = Request(user="u", time_ms=1_700_000_001_000, candidates=[Item(id="b"), Item(id="c")])
    path = tmp_path / "request.json"
    path.write_text(request.model_dump_json(), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["features", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_spec_is_checked_and_listed(spec_path: Path) -> None:
    facts = json.loads(run("check", spec_path, "--json"))
    assert facts == {
        "name": "feed",
        "hash": FeatureSpec.from_toml(spec_path).content_hash(),
        "columns": ["clicks_in_genre", "rank"],
        "arrays": {"dense": ["N", 2]},
    }
    text = run("check", spec_path)
    assert "clicks_in_genre, rank" in text
    assert "N × 2" in text


def test_a_bad_spec_is_one_line_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(SPEC.replace('key = "genre"', 'key = "genres"'), encoding="utf-8")
    result = CliRunner().invoke(app, ["features", "check", str(path)])
    assert result.exit_code == 1
    assert "did you mean 'genre'?" in " ".join(result.stderr.split())


def test_the_schema_knows_every_part_of_a_spec() -> None:
    schema = json.loads(run("schema", "--json"))
    assert set(schema["properties"]) == set(FeatureSpec.model_fields)
    text = run("schema")
    assert all(name in text for name in schema["$defs"])


def test_a_value_is_explained_by_its_events(spec_path: Path, state: Path, request_path: Path) -> None:
    options = ("--request", request_path, "--state", state, "--spec", spec_path)
    found = json.loads(run("explain", "clicks_in_genre", "b", *options, "--json"))
    assert found["raw"] == 2.0
    assert found["events"] == 3
    assert [(effect["item"], effect["user"]) for effect in found["effects"]] == [("a", "u"), ("b", "u")]
    assert found["effects"][0]["value_without"] == pytest.approx(0.693147, abs=1e-6)
    text = run("explain", "clicks_in_genre", "b", *options)
    assert "2023-11-14 22:13:20" in text
    assert 'transform = "log1p"' in text
    assert "No single event changes it." in run("explain", "rank", "c", *options)


def test_names_that_are_not_there_are_errors(spec_path: Path, state: Path, request_path: Path, tmp_path: Path) -> None:
    def error_of(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["features", "explain", *map(str, arguments)])
        assert result.exit_code == 1
        return " ".join(result.stderr.split())

    options = ("--request", request_path, "--state", state, "--spec", spec_path)
    assert "did you mean 'clicks_in_genre'?" in error_of("clicks_in_genres", "b", *options)
    assert "no candidate 'x'" in error_of("rank", "x", *options)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no event store" in error_of(
        "rank", "b", "--request", request_path, "--state", empty, "--spec", spec_path
    )
    assert list(empty.iterdir()) == []
