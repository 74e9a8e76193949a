"""Fetching and reading MovieLens-100K, on a made-up wheel of the same form: no network, none of the real data."""

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import DataError
from rerank_simulator.logs import RatingLog, load_movielens, movielens

TABLES = {
    "ml-100k.inter": (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "7\tb\t3\t200\n5\ta\t4\t100\n7\ta\t5\t100\n5\tc\t1\t200\n5\tb\t2\t200\n"
    ),
    "ml-100k.item": (
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "a\tFirst Film\t1995\tComedy Drama\nb\tunkonwn\tunkonwn\tunknown\nc\tDernière, La (1990)\tV\tWar\n"
    ),
    "ml-100k.user": "user_id:token\tage:token\tgender:token\n5\t24\tM\n7\t53\tF\n9\t30\tF\n",
}
FOLDER = "recbole/dataset_example/ml-100k"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakePip:
    """Stands for `python -m pip download`: puts a wheel into the folder asked for, and counts the calls."""

    def __init__(self, wheel: bytes | None, returncode: int = 0, stderr: str = "") -> None:
        self.wheel, self.returncode, self.stderr = wheel, returncode, stderr
        self.commands: list[list[str]] = []

    def __call__(self, command: Any, **options: Any) -> Any:
        self.commands.append(command)
        if self.wheel is not None:
            folder = Path(command[command.index("--dest") + 1])
            (folder / "recbole-1.2.1-py3-none-any.whl").write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, self.returncode, stdout="", stderr=self.stderr)


@pytest.fixture
def wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("recbole/__init__.py", "raise SystemExit('never run')")
        for name, text in TABLES.items():
            archive.writestr(f"{FOLDER}/{name}", text)
    return buffer.getvalue()


@pytest.fixture
def pip(wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    source = movielens._Source(
        requirement="recbole==1.2.1",
        wheel_sha256=sha256(wheel),
        folder=FOLDER,
        files={name: sha256(text.encode()) for name, text in TABLES.items()},
    )
    fake = FakePip(wheel)
    monkeypatch.setattr(movielens, "_SOURCE", source)
    monkeypatch.setattr(movielens.subprocess, "run", fake)
    return fake


def test_reads_all_columns_in_the_order_of_time(pip: FakePip, tmp_path: Path) -> None:
    log = load_movielens(tmp_path)
    assert log.user.tolist() == [0, 1, 0, 0, 1]
    assert log.item.tolist() == [0, 0, 2, 1, 1]  # user 5's two ratings at 200 s keep the file's order: c, b
    assert log.rating.tolist() == [4, 5, 1, 2, 3]
    assert log.time_ms.tolist() == [100_000, 100_000, 200_000, 200_000, 200_000]
    assert (log.user_ids, log.item_ids) == (("5", "7", "9"), ("a", "b", "c"))
    assert log.titles == ("First Film", "", "Dernière, La (1990)")
    assert log.years.tolist() == [1995, 0, 0]
    assert log.genres == (("Comedy", "Drama"), (), ("War",))
    dtypes = [array.dtype for array in (log.user, log.item, log.rating, log.time_ms, log.years)]
    assert dtypes == [np.int32, np.int32, np.float32, np.int64, np.int16]
    with pytest.raises(ValueError, match="read-only"):
        log.rating[0] = 5


def test_asks_pip_once_for_the_pinned_wheel_and_says_so(pip: FakePip, tmp_path: Path) -> None:
    lines: list[str] = []
    load_movielens(tmp_path, progress=lines.append)
    load_movielens(tmp_path, progress=lines.append)
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--no-binary=:none:", "--only-binary=:all:", "recbole==1.2.1"} < set(command)
    assert len(lines) == 1
    assert "no redistribution" in lines[0]


def test_leaves_nothing_but_the_three_files(pip: FakePip, tmp_path: Path) -> None:
    load_movielens(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "ml-100k.inter",
        "ml-100k.item",
        "ml-100k.user",
        "movielens-100k",
    ]


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("harm", ["changed", "truncated", "missing"])
def test_damaged_cache_is_fetched_again(pip: FakePip, tmp_path: Path, name: Any, harm: Any) -> None:
    expected = load_movielens(tmp_path)
    victim = tmp_path / "movielens-100k" / name
    if harm == "missing":
        victim.unlink()
    else:
        text = victim.read_bytes()
        victim.write_bytes(text[:-9] if harm == "truncated" else text.replace(b"5", b"6", 1))
    again = load_movielens(tmp_path)
    assert len(pip.commands) == 2
    assert victim.read_bytes() == TABLES[name].encode()
    np.testing.assert_array_equal(again.item, expected.item)


def test_placed_by_hand_needs_no_pip(pip: FakePip, tmp_path: Path) -> None:
    folder = tmp_path / "movielens-100k"
    folder.mkdir()
    for name, text in TABLES.items():
        (folder / name).write_bytes(text.encode())
    assert len(load_movielens(tmp_path).user) == 5
    assert pip.commands == []


def test_without_network_says_how_to_place_the_files(pip: FakePip, tmp_path: Path) -> None:
    pip.wheel, pip.returncode, pip.stderr = None, 1, "noise\nERROR: No matching distribution found"
    with pytest.raises(DataError) as caught:
        load_movielens(tmp_path)
    message = str(caught.value)
    for part in ("No matching distribution", "by hand", FOLDER, str(tmp_path / "movielens-100k"), *TABLES):
        assert part in message
    assert list((tmp_path / "movielens-100k").iterdir()) == []


def test_slow_registry_is_given_up(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: Any, *, timeout: Any, **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(movielens.subprocess, "run", hang)
    with pytest.raises(DataError, match=r"more than 300 s.*by hand"):
        load_movielens(tmp_path)


def test_another_wheel_is_refused_and_the_cache_stays_as_it_was(pip: FakePip, tmp_path: Path) -> None:
    load_movielens(tmp_path)
    folder = tmp_path / "movielens-100k"
    (folder / "ml-100k.user").write_text("damaged")
    pip.wheel = (pip.wheel or b"") + b"x"
    with pytest.raises(DataError, match="SHA-256"):
        load_movielens(tmp_path)
    assert (folder / "ml-100k.user").read_text() == "damaged"
    assert (folder / "ml-100k.inter").read_bytes() == TABLES["ml-100k.inter"].encode()


def test_cache_that_cannot_be_written_is_an_error_of_ours(pip: FakePip, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write the cache"):
        load_movielens(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("ml-100k.inter", "rating:float", "score:float", r"'rating:float'\] are missing"),
        ("ml-100k.inter", "7\tb\t3\t200", "8\tb\t3\t200", "line 2.*known user"),
        ("ml-100k.inter", "7\tb\t3\t200", "7\tz\t3\t200", "line 2.*known item"),
        ("ml-100k.inter", "7\tb\t3\t200", "7\tb\tx\t200", "line 2"),
        ("ml-100k.inter", "7\tb\t3\t200", "7\tb\t3\tinf", "line 2"),
        ("ml-100k.inter", "7\tb\t3\t200", "7\tb\t3", "line 2: expected 4 fields, got 3"),
        ("ml-100k.inter", "7\tb\t3\t200", "7\tb\tnan\t200", "rating must be finite"),
        ("ml-100k.user", "9\t30", "7\t30", "user_ids: each id must occur once, 1 are repeated"),
    ],
)
def test_tables_of_another_form_are_refused(name: Any, old: Any, new: Any, message: Any) -> None:
    assert old in TABLES[name]
    with pytest.raises(DataError, match=message):
        movielens._parse({**TABLES, name: TABLES[name].replace(old, new)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": [0, 2]}, "user must lie from 0 to 1, got 0 to 2"),
        ({"item": [-1, 0]}, "item must lie from 0 to 1"),
        ({"item": [0.0, 1.0]}, "item must hold integers, got float64"),
        ({"rating": [np.nan, 1]}, "rating must be finite, row 0"),
        ({"rating": ["good", "bad"]}, "rating must hold numbers"),
        ({"time_ms": [0, -1]}, "time_ms must lie from 0"),
        ({"time_ms": [0]}, "one shape"),
        ({"user_ids": ["u", "u"]}, "user_ids"),
        ({"titles": ["one"]}, "titles: expected one entry for each of 2 items, got 1"),
        ({"genres": [[], [], []]}, "genres"),
        ({"years": [1999, 40_000]}, "years must lie from 0 to 9999"),
    ],
)
def test_rating_log_refuses(change: Any, message: Any) -> None:
    rows = {
        "user": [0, 1],
        "item": [0, 1],
        "rating": [1, 2],
        "time_ms": [0, 1],
        "user_ids": ["u", "v"],
        "item_ids": "ab",
    }
    with pytest.raises(DataError, match=message):
        RatingLog.from_rows(**{**rows, **change})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_rating_log_sorts_stably_and_loses_nothing(rows: list[tuple[int, int, int]]) -> None:
    user, item, time_ms = np.array(rows, np.int64).reshape(-1, 3).T
    place = np.arange(len(rows))  # the rating tells the rows apart
    log = RatingLog.from_rows(user, item, place, time_ms, user_ids="abcd", item_ids="wxyz")
    keys = list(zip(log.time_ms.tolist(), log.user.tolist(), log.rating.tolist(), strict=True))
    assert keys == sorted(keys)
    assert sorted(log.rating.tolist()) == place.tolist()
    assert log.item.tolist() == item[log.rating.astype(int)].tolist()


def test_default_cache_is_used(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(tmp_path))
    load_movielens()
    assert (tmp_path / "movielens-100k" / "ml-100k.inter").is_file()
