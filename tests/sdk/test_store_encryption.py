"""Encryption at rest: nothing readable in any file, and a clear word about each wrong key."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, StoreLimits, encryption, quarantine

KEY = bytes(range(32))
OTHER = bytes(32)


def click(n, user="user-secret", **fields):
    return Event(user=user, item=f"item-secret-{n}", kind="click", time_ms=n, request="request-secret", **fields)


@pytest.fixture
def _sqlcipher():
    pytest.importorskip("sqlcipher3", reason="encryption is not tested: pip install 'rerank-sdk[encrypted]'")


def holding(folder, mark=b"secret"):
    return [file.name for file in folder.iterdir() if mark in file.read_bytes()]


@pytest.mark.usefixtures("_sqlcipher")
def test_everything_works_and_nothing_is_readable(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, key=KEY) as store:
        store.append_many([click(n) for n in range(2_000)])
        store.append(click(1, user="other"))
        store.flush()
        store.backup(now_ms=1)
        assert store.backup(now_ms=2, at_least_every_ms=5) is None
        assert store.verify().sound
        assert holding(tmp_path) == []
        assert b"SQLite format" not in path.read_bytes() + (tmp_path / "events.db.backup").read_bytes()
    with EventStore.open(path, key=KEY, durability="fsync") as store:
        assert [event.time_ms for event in store.read("user-secret")] == list(range(2_000))
        assert store.prune(0, limits=StoreLimits(max_rows=1_000)).rows == 1_001
        assert store.forget("user-secret") == 999
        assert store.users() == ["other"]
        assert not (tmp_path / "events.db.backup").exists()


@pytest.mark.usefixtures("_sqlcipher")
def test_a_wrong_or_missing_key_is_told_and_changes_nothing(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, key=KEY) as store:
        store.append(click(1))
    before = path.read_bytes()
    for read_only_ok in (False, True):
        with pytest.raises(StoreError, match="the key does not fit"):
            EventStore.open(path, key=OTHER, read_only_ok=read_only_ok)
        with pytest.raises(StoreError, match="its key if it is encrypted"):
            EventStore.open(path, read_only_ok=read_only_ok)
    assert path.read_bytes() == before
    with EventStore.open(path, key=KEY) as store:
        assert store.count() == 1


@pytest.mark.usefixtures("_sqlcipher")
def test_a_key_for_a_plain_file_is_refused(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append(click(1))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"not encrypted.*without a key"):
        EventStore.open(path, key=KEY)
    assert path.read_bytes() == before


@pytest.mark.usefixtures("_sqlcipher")
def test_a_damaged_encrypted_file_is_restored_encrypted(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, key=KEY) as store:
        store.append_many([click(n) for n in range(1_000)])
        store.backup()
        store.append_many([click(n) for n in range(1_000, 2_000)])
    with path.open("r+b") as file:
        file.seek(20 * 4_096)
        file.write(b"\xa5" * 4_096)
    quarantine.mark_damaged(path)
    with EventStore.open(path, key=KEY) as store:
        assert "1000 events" in store.health().restored
        assert 1_000 <= store.count() <= 2_000
        assert store.verify().sound
    assert holding(tmp_path) == []


@pytest.mark.usefixtures("_sqlcipher")
def test_a_full_disk_is_told_in_the_same_words(tmp_path):
    with EventStore.open(tmp_path / "events.db", key=KEY) as store:
        store._recorder.connect().execute("PRAGMA max_page_count = 30")
        store.append_many([click(n, attributes={"text": "x" * 300}) for n in range(500)])
        with pytest.raises(StoreError, match=r"full.*free space"):
            store.flush()
        assert store.count() == 500
        with store._writer.paused():
            store._recorder.connect().execute("PRAGMA max_page_count = 100000")


@pytest.mark.parametrize("key", [b"short", "x" * 32, bytearray(32), 5])
def test_what_is_no_key_is_refused(tmp_path, key):
    with pytest.raises(InputError, match="32 random bytes"):
        EventStore.open(tmp_path / "events.db", key=key)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_one_line():
    code = (
        "import sys; sys.modules['sqlcipher3'] = None\n"
        "from rerank_engine.errors import StoreError\n"
        "from rerank_sdk.store import EventStore\n"
        "try:\n    EventStore.open('never.db', key=bytes(32))\n"
        "except StoreError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'rerank-sdk[encrypted]'")
    assert encryption.check_key(None) is None
