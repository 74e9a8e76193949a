"""Several processes write the same file at once, at each level that has a file."""

import subprocess
import sys

import pytest

from rerank_features.events import Event
from rerank_sdk.store import EventStore, StoreLimits

EVENTS = 150
OWN = """
import sys
from rerank_features import Event
from rerank_sdk.store import EventStore
path, durability, name, count = sys.argv[1:]
with EventStore.open(path, durability=durability, batch_size=8, flush_interval_ms=1) as store:
    for n in range(int(count)):
        store.append(Event(user=name, item=f"i{n}", kind="click", time_ms=n, request=f"r{n // 10}"))
        store.append(Event(user="shared", item=f"i{n}", kind="click", time_ms=n))
print(store.health().last_error)
"""


def start(*arguments):
    return subprocess.Popen([sys.executable, "-c", OWN, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def finish(child):
    output, _ = child.communicate(timeout=120)
    assert (child.returncode, output.strip()) == (0, "None")


@pytest.mark.parametrize("durability", ["batched", "fsync"])
def test_no_event_is_lost_and_none_is_there_twice(tmp_path, durability):
    path = tmp_path / "events.db"
    names = ["p0", "p1", "p2"]
    for child in [start(path, durability, name, EVENTS) for name in names]:
        finish(child)
    with EventStore.open(path) as store:
        for name in [*names, "shared"]:
            assert [event.item for event in store.read(name)] == [f"i{n}" for n in range(EVENTS)]
        rows = [row for name in [*names, "shared"] for row, _ in store.read_after(name, 0)]
        assert len(set(rows)) == len(rows) == 4 * EVENTS
        assert store.verify().sound


def test_levels_may_be_mixed_while_the_store_is_pruned_backed_up_and_forgets(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, batch_size=8, flush_interval_ms=1) as store:
        children = [start(path, level, level, EVENTS) for level in ("batched", "fsync")]
        rounds = 0
        while any(child.poll() is None for child in children):
            guest = f"guest-{rounds}"
            store.append(Event(user=guest, item="i", kind="click", time_ms=0))
            store.forget(guest)
            store.append(Event(user="old", item="i", kind="click", time_ms=rounds))
            store.prune(10, limits=StoreLimits(max_rows=10 * EVENTS))
            store.backup()
            rounds += 1
        for child in children:
            finish(child)
        assert rounds > 0
        assert store.users() == ["batched", "fsync", "old", "shared"]
        assert {name: store.count(name) for name in ("batched", "fsync", "shared")} == dict.fromkeys(
            ("batched", "fsync", "shared"), EVENTS
        )
        assert store.count("old") == rounds
        assert store.verify().sound


def test_a_store_in_memory_shares_nothing(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, durability="memory") as first, EventStore.open(path, durability="memory") as second:
        first.append(Event(user="u1", item="i", kind="click", time_ms=0))
        assert (first.count(), second.count()) == (1, 0)
    assert list(tmp_path.iterdir()) == []
