"""Damaged files: told, set aside, restored from the backup and from what can still be read; cut off at any step."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import EventStore, backups, quarantine, recorder

PAGE = 4_096


def click(n, user="u1", **fields):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n, request=f"r{n // 10}", **fields)


def fill(path, count=2_000, *, backup_after=1_000):
    with EventStore.open(path) as store:
        store.append_many([click(n, user=f"u{n % 3}") for n in range(backup_after)])
        store.set_consent("u2", record=True, upload=False)
        store.save_patch("u1", b"patch", version=1, base_model="m", created_ms=0)
        if backup_after:
            store.backup(now_ms=5)
        store.append_many([click(n, user=f"u{n % 3}") for n in range(backup_after, count)])
        store.save_items([("i1", b"{}")])
        store.save_state("u1", "spec", store.last_row("u1"), b"state")
    return path


def root_page(path, name):
    connection = sqlite3.connect(path)
    (number,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    connection.close()
    return number


def break_page(path, number):
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE)
        file.write(b"\xa5" * PAGE)


def names(folder):
    return {file.name for file in folder.iterdir() if not file.name.endswith(("-wal", "-shm"))}


def times(store):
    return sorted(event.time_ms for event in store.read())


@pytest.mark.parametrize("table", ["events", "users", "idx_events_user_id_time_ms_key", "consents"])
def test_a_broken_root_page_is_restored_from_the_backup(tmp_path, table):
    path = fill(tmp_path / "events.db")
    break_page(path, root_page(path, table))
    with EventStore.open(path) as store:
        found = times(store)
        assert set(found) >= set(range(1_000))
        assert len(found) == len(set(found))
        if table.startswith(("idx", "consents")):  # the rows themselves could be read
            assert found == list(range(2_000))
        assert store.load_patch("u1").patch == b"patch"
        assert store.consent("u2").upload is False
        assert "damaged" in store.health().restored
        assert store.verify().sound
        store.append(click(5_000))
        assert store.count() == len(found) + 1
    assert names(tmp_path) == {"events.db", "events.db.backup", "events.db.restoring-guard"}
    with EventStore.open(path) as store:
        assert store.health().restored is None


def test_without_a_backup_readable_rows_are_salvaged(tmp_path):
    path = fill(tmp_path / "events.db", backup_after=0)
    break_page(path, root_page(path, "idx_users_user"))
    with EventStore.open(path) as store:
        assert times(store) == list(range(2_000))
        assert "no sound backup" in store.health().restored
        assert store.load_state("u1", "spec").last_row == store.last_row("u1")
        assert store.load_items() == {"i1": b"{}"}
        assert store.consent("u2").upload is False


def test_a_page_in_the_middle_is_found_when_it_is_read_and_restored_at_the_next_opening(tmp_path):
    path = fill(tmp_path / "events.db", 20_000)
    number = path.read_bytes().index(b"i12345") // PAGE + 1  # items are in the leaves of the table only
    break_page(path, number)
    with EventStore.open(path) as store, pytest.raises(StoreError, match="damaged"):
        list(store.read())
    with EventStore.open(path) as store:
        found = times(store)
        assert 19_800 < len(found) < 20_000
        assert "rows were unreadable" in store.health().restored
        assert store.verify().sound


def test_a_header_of_ours_with_nothing_behind_it_is_restored(tmp_path):
    path = fill(tmp_path / "events.db")
    path.write_bytes(path.read_bytes()[:5_000])
    with EventStore.open(path) as store:
        assert times(store) == list(range(1_000))


def test_a_damaged_backup_is_not_used(tmp_path):
    path = fill(tmp_path / "events.db")
    break_page(backups.backup_path(path), root_page(path, "events"))
    break_page(path, root_page(path, "idx_users_user"))
    with EventStore.open(path) as store:
        assert times(store) == list(range(2_000))
        assert "no sound backup" in store.health().restored


def test_silent_corruption_is_found_by_verify_and_mended_from_the_backup(tmp_path):
    path = fill(tmp_path / "events.db")
    content = path.read_bytes()
    place = content.index(b"i777")  # one bit of an item's id, which SQLite does not notice
    path.write_bytes(content[:place] + b"i776" + content[place + 4 :])
    with EventStore.open(path) as store:
        assert 777 not in times(store)
        assert store.health().damaged == 1
        found = store.verify()
        assert (found.events, found.damaged_events, found.problems, found.sound) == (2_000, 1, (), False)
    with EventStore.open(path) as store:
        assert times(store) == list(range(2_000))
        assert store.verify().sound


def test_a_truncated_or_damaged_log_loses_its_tail_only(tmp_path):
    live = EventStore.open(tmp_path / "events.db")
    live.append_many([click(n) for n in range(100)])
    live.flush()
    sizes = [(tmp_path / "events.db-wal").stat().st_size]
    for n in range(100, 200):
        live.append(click(n))
        live.flush()
        sizes.append((tmp_path / "events.db-wal").stat().st_size)
    whole = (tmp_path / "events.db-wal").read_bytes()
    for kept, size in ((100, sizes[0]), (150, sizes[50]), (150, sizes[50] + 700), (199, sizes[99])):
        for number, log in enumerate((whole[:size], whole[:size] + bytes(len(whole) - size))):
            folder = tmp_path / f"cut-{size}-{number}"
            folder.mkdir()
            shutil.copy(tmp_path / "events.db", folder / "events.db")
            (folder / "events.db-wal").write_bytes(log)
            with EventStore.open(folder / "events.db") as store:
                assert times(store) == list(range(kept))
                assert store.verify().sound
    live.close()


class CutOffError(BaseException):
    """Stands for a kill: nothing handles it."""


STEPS = ["_follow", "_rebuild", "_merge", "sync_file", "_drop_quarantined", "sync_folder"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", [True, False])
def test_a_restoration_that_is_cut_off_is_finished(tmp_path, monkeypatch, step, before):
    path = fill(tmp_path / "events.db")
    break_page(path, root_page(path, "idx_users_user"))
    real = getattr(quarantine, step)

    def cut_off(*arguments, **options):
        if not before:
            real(*arguments, **options)
        raise CutOffError

    monkeypatch.setattr(quarantine, step, cut_off)
    with pytest.raises(CutOffError):
        EventStore.open(path)
    monkeypatch.undo()
    with EventStore.open(path) as store:
        assert times(store) == list(range(2_000))
        assert store.verify().sound
    assert names(tmp_path) == {"events.db", "events.db.backup", "events.db.restoring-guard"}


def test_a_log_that_was_left_behind_follows_its_file(tmp_path, monkeypatch):
    """Rows that are in the log only are salvaged, also when the renaming was cut off between the two."""
    store = EventStore.open(tmp_path / "live.db")
    store.append_many([click(n) for n in range(500)])
    store.flush()
    store._recorder.connect().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.append_many([click(n) for n in range(500, 600)])
    store.flush()
    path = tmp_path / "crash" / "events.db"
    path.parent.mkdir()
    shutil.copy(tmp_path / "live.db", path)
    shutil.copy(tmp_path / "live.db-wal", tmp_path / "crash" / "events.db-wal")
    store.close()
    quarantine.mark_damaged(path)
    monkeypatch.setattr(quarantine, "_follow", lambda path: (_ for _ in ()).throw(CutOffError()))
    with pytest.raises(CutOffError):
        EventStore.open(path)
    monkeypatch.undo()
    assert not path.exists()
    with EventStore.open(path) as store:
        assert times(store) == list(range(600))


def test_a_store_that_was_open_meanwhile_goes_on_with_the_restored_file(tmp_path):
    path = fill(tmp_path / "events.db")
    with EventStore.open(path) as first:
        assert first.count() == 2_000
        quarantine.mark_damaged(path)
        with EventStore.open(path) as second:
            assert second.health().restored
            first.append(click(9_000))
            first.flush()
            assert second.count() == first.count() == 2_001


def test_a_backup_replaces_the_older_one_only_when_it_is_due(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append(click(1))
        assert store.backup(now_ms=1_000, at_least_every_ms=500) == tmp_path / "events.db.backup"
        assert store.backup(now_ms=1_499, at_least_every_ms=500) is None
        assert store.backup(now_ms=1_500, at_least_every_ms=500) is not None
        assert store.backup(now_ms=10, at_least_every_ms=500) is not None  # the clock was set back
        assert store.backup() is not None
        for options in ({"now_ms": -1}, {"at_least_every_ms": 5}, {"now_ms": 1, "at_least_every_ms": -1}):
            with pytest.raises(InputError):
                store.backup(**options)
    shutil.copy(tmp_path / "events.db.backup", tmp_path / "copy.db")
    with EventStore.open(tmp_path / "copy.db") as store:
        assert list(store.read()) == [click(1)]


@pytest.mark.parametrize("step", ["verify_connection", "sync_file", "count_erasures"])
def test_a_backup_that_is_cut_off_leaves_the_older_one(tmp_path, monkeypatch, step):
    path = fill(tmp_path / "events.db")
    before = backups.backup_path(path).read_bytes()
    with EventStore.open(path) as store:
        monkeypatch.setattr(backups, step, lambda *_: (_ for _ in ()).throw(CutOffError()))
        with pytest.raises(CutOffError):
            store.backup()
    assert backups.backup_path(path).read_bytes() == before


def test_a_file_with_damage_is_not_backed_up(tmp_path):
    path = fill(tmp_path / "events.db")
    before = backups.backup_path(path).read_bytes()
    with EventStore.open(path) as store:
        break_page(path, root_page(path, "examples"))
        with pytest.raises(StoreError):
            store.backup()
    assert backups.backup_path(path).read_bytes() == before


def holding(folder, mark):
    return [file.name for file in folder.iterdir() if mark in file.read_bytes()]


def test_forgetting_reaches_every_copy(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(1, user="user-to-forget"), click(2)])
        store.backup()
        (tmp_path / "events.db.quarantined-1").write_bytes(b"user-to-forget")
        (tmp_path / "events.db.quarantined-1-wal").write_bytes(b"user-to-forget")
        (tmp_path / "events.db.backup.new").write_bytes(b"user-to-forget")
        (tmp_path / "events.db.restoring").write_bytes(b"user-to-forget")
        (tmp_path / "other.db.backup").write_bytes(b"another store")
        assert store.forget("user-to-forget") == 1
        assert holding(tmp_path, b"user-to-forget") == []
        store.backup()
    assert holding(tmp_path, b"user-to-forget") == []
    assert (tmp_path / "other.db.backup").exists()


def test_forgetting_that_is_cut_off_brings_nobody_back(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append_many([click(1, user="user-to-forget"), click(2)])
        store.backup()
        monkeypatch.setattr(recorder.Recorder, "finish_erasures", lambda self: (_ for _ in ()).throw(CutOffError()))
        with pytest.raises(CutOffError):
            store.forget("user-to-forget")
        monkeypatch.undo()
    quarantine.mark_damaged(path)  # and the next opening even has to restore
    with EventStore.open(path) as store:
        assert store.users() == ["u1"]
    assert holding(tmp_path, b"user-to-forget") == []


def test_a_backup_that_met_an_erasure_does_not_stay(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store, EventStore.open(path) as elsewhere:
        store.append_many([click(1, user="user-to-forget"), click(2)])
        store.flush()
        real = backups.sync_file

        def forget_meanwhile(file):
            real(file)
            elsewhere.forget("user-to-forget")

        monkeypatch.setattr(backups, "sync_file", forget_meanwhile)
        with pytest.raises(StoreError, match=r"forgotten|backup"):
            store.backup()
    assert holding(tmp_path, b"user-to-forget") == []


def test_memory_has_no_file_to_back_up(tmp_path):
    with EventStore.open(tmp_path / "events.db", durability="memory") as store:
        with pytest.raises(StoreError, match="no file"):
            store.backup()
        store.append(click(1))
        assert store.verify().events == 1
    assert list(tmp_path.iterdir()) == []


def test_half_a_backup_is_erased_at_the_next_opening_unless_it_is_being_made(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append(Event(user="u1", item="i", kind="click", time_ms=0))
        store.backup()
    half_made = tmp_path / "events.db.backup.new"
    half_made.write_bytes(b"half")
    with backups.guard(path, "take a backup"), EventStore.open(path):
        assert half_made.exists()
    with EventStore.open(path) as store:
        assert not half_made.exists()
        assert store.count() == 1
    assert (tmp_path / "events.db.backup").exists()
