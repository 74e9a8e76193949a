"""Rounds of kill -9: a child appends and says what was acknowledged; whoever opens the file next must find it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rerank_sdk.store import EventStore, StoreLimits

CHILD = """
import sys, time
from rerank_features import Event
from rerank_sdk.store import EventStore, StoreLimits
path, level, first, chore = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
store = EventStore.open(path, durability=level, batch_size=16, flush_interval_ms=2)
print("open", flush=True)
for n in range(first, first + 1_000_000):
    store.append(Event(user="u1", item=f"i{n}", kind="click", time_ms=n, attributes={"text": "x" * (n % 50)}))
    if level == "fsync":
        print(n, flush=True)
    elif n % 20 == 19:
        store.flush()
        print(n, flush=True)
    if n % 50 == 49:
        if chore == "backup":
            store.backup(now_ms=n)
        elif chore == "forget":
            store.append(Event(user=f"gone{n}", item="i", kind="click", time_ms=n))
            store.forget(f"gone{n}")
            print("forgot", n, flush=True)
        elif chore == "prune":
            store.append_many([Event(user="old", item=f"{n}", kind="click", time_ms=k) for k in range(50)])
            store.prune(10 * 86_400_000, limits=StoreLimits(max_age_days=1), before_erase=lambda users: [
                store.save_state(user, "spec", store.last_row(user), b"state") for user in users if user == "old"])
"""


class Kills(NamedTuple):
    """What many rounds found."""

    kill_rounds: int
    acknowledged_events: int
    lost_events: int
    duplicated_events: int
    damaged_events: int


def run_rounds(path: Path, level: str, rounds: int, *, chore: str = "none", seed: int = 0) -> Kills:
    """Kill a child `rounds` times at random moments, each time on the file that the one before left."""
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    forgotten: set[int] = set()
    lost = duplicated = damaged = 0
    first = 0
    for _ in range(rounds):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), level, str(first), chore], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(chance.randrange(1, 40))]
        child.kill()
        lines.extend(child.stdout)
        child.wait()
        child.stdout.close()
        for line in lines:
            if not line.endswith("\n") or line == "open\n":
                continue
            if line.startswith("forgot"):
                forgotten.add(int(line.split()[1]))
            elif level == "fsync":
                acknowledged.add(int(line))
            else:
                acknowledged.update(range(first, int(line) + 1))
        with EventStore.open(path) as store:
            found = Counter(event.time_ms for event in store.read("u1"))
            lost += len(acknowledged - found.keys())
            duplicated += sum(count - 1 for count in found.values())
            damaged += store.verify().damaged_events
            half_made = [
                file.name for file in path.parent.glob(f"{path.name}.*") if file.name.endswith((".new", ".restoring"))
            ]
            assert not half_made, f"a killed process left {half_made}"
            back = {f"gone{n}" for n in forgotten} & set(store.users())
            assert not back, f"forgotten users came back: {back}"
            if chore == "prune":
                store.prune(0, limits=StoreLimits())
        first = max([first, *(n + 1 for n in found)])
    return Kills(rounds, len(acknowledged), lost, duplicated, damaged)
