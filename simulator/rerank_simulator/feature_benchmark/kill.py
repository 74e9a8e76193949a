"""Rounds of kill -9: a child tracks events, dies at a random moment, and what it acknowledged must be there, once.

After every round the store is opened again. Its events must be the first so many of the stream, the acknowledged ones
among them; and the re-ranker that comes up from them must give the scores, bit for bit, of one that is told all of them
anew. Several rounds kill the same store, so that a recovery is killed too.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rerank_engine.errors import DataError
from rerank_engine.workers import environment_of_ours
from rerank_features import Event, Item, Request
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_sdk.store import EventStore
from rerank_simulator.feature_benchmark.kill_child import USERS, kill_events, kill_items

ROUNDS_OF_A_STORE = 10
"""After so many rounds a new store is begun."""

_LATEST_KILL_S = 0.06
_LATEST_EARLY_KILL_S = 0.5
_EARLY_SHARE = 0.1
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class KillResult:
    """What the rounds found.

    Attributes
    ----------
    rounds
        Children killed.
    lost_events
        Acknowledged events that were not there afterwards.
    acknowledged
        Events acknowledged in all.
    """

    rounds: int
    lost_events: int
    acknowledged: int


def kill_rounds(
    bundle: Bundle, seed: int, rounds: int, cache: Path, progress: Callable[[int], None] | None = None
) -> KillResult:
    """Kill so many children, one after the other.

    Parameters
    ----------
    bundle
        Model and features.
    seed
        Of the stream and of the moments.
    rounds
        How many.
    cache
        Where machine code is kept.
    progress
        Called with the rounds done.

    Raises
    ------
    DataError
        An event counts twice or was never sent, or the state after a restart is not that of a replay; or a child cannot
        work at all. The message names the round.
    """
    rng = random.Random(f"kills {seed}")
    lost = acknowledged = done = 0
    while done < rounds:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bundle.rrb"
            bundle.save(path)
            state = Path(folder) / "state"
            stored = 0
            for _ in range(min(ROUNDS_OF_A_STORE, rounds - done)):
                words = [str(state), str(path), str(cache), str(seed + done // ROUNDS_OF_A_STORE), str(stored)]
                told = _killed_child(words, rng, done)
                found = _events_on_disk(state, int(words[3]), done)
                lost += max(0, told - found)
                acknowledged += max(0, told - stored)
                _check_state(state, bundle, cache, int(words[3]), found, done)
                stored = found
                done += 1
                if progress is not None:
                    progress(done)
    return KillResult(done, lost, acknowledged)


def _killed_child(words: list[str], rng: random.Random, number: int) -> int:
    """Run a child, kill it at a random moment, and return the last number that it acknowledged."""
    command = [sys.executable, "-m", "rerank_simulator.feature_benchmark.kill_child", *words]
    environment = environment_of_ours(RERANK_SEARCH_S="0")
    is_early = rng.random() < _EARLY_SHARE
    moment_s = rng.uniform(0, _LATEST_EARLY_KILL_S if is_early else _LATEST_KILL_S)
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert child.stdout is not None
        watch = threading.Timer(_PATIENCE_S, child.kill)  # a child that hangs must not hang the benchmark
        watch.start()
        try:
            is_ready = is_early or child.stdout.readline() == "ready\n"
            is_alive = is_ready and not _ends_within(child, moment_s)
        finally:
            watch.cancel()
            child.kill()
            # Whatever it wrote before it died was acknowledged; a number without its line end may be cut.
            lines = child.stdout.read().splitlines(keepends=True)
            child.stdout.close()
            child.wait()
        if not is_alive:
            log.seek(0)
            told = log.read().decode(errors="replace").strip().splitlines()
            reason = told[-1] if told else f"exit code {child.returncode}"
            raise DataError(f"round {number}: the child ended by itself, before it was killed: {reason}")
    whole = [int(line) for line in lines if line.endswith("\n") and line != "ready\n"]
    return max([int(words[4]), *whole])


def _ends_within(child: subprocess.Popen[str], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _events_on_disk(state: Path, seed: int, number: int) -> int:
    """How many events the store holds: the first so many of the stream, each once."""
    if not (state / "events.db").exists():
        return 0
    with EventStore.open(state / "events.db") as store:
        found = {f"user-{user}": list(store.read(f"user-{user}")) for user in range(USERS)}
    count = sum(map(len, found.values()))
    expected = kill_events(seed, 0, count)
    for user, events in found.items():
        if events != [event for event in expected if event.user == user]:
            raise DataError(f"round {number}: the store's {len(events)} events of {user} are not those that were sent")
    return count


def _check_state(state: Path, bundle: Bundle, cache: Path, seed: int, count: int, number: int) -> None:
    """Compare the scores after a restart with those after a replay of all events, bit for bit."""
    items, events = kill_items(seed), kill_events(seed, 0, count)
    time_ms = events[-1].time_ms + 1_000 if events else 0
    with tempfile.TemporaryDirectory() as folder:
        restarted = _scores(state, bundle, cache, items, time_ms, [])
        replayed = _scores(Path(folder), bundle, cache, items, time_ms, events)
    if restarted != replayed:
        raise DataError(f"round {number}: after {count} events the restarted state differs from a replay of all")


def _scores(
    state: Path, bundle: Bundle, cache: Path, items: tuple[Item, ...], time_ms: int, events: list[Event]
) -> list[bytes]:
    """Every user's scores of all items."""
    with Reranker.open(state, bundle, deadline_ms=None, strict=True, cache_dir=cache) as reranker:
        if events:
            reranker.remember(items)
            reranker.track(events)
        return [
            ranking.order.tobytes() + ranking.scores.tobytes()
            for ranking in (
                reranker.rerank(Request(user=f"user-{user}", candidates=items, time_ms=time_ms))
                for user in itertools.chain(range(USERS), ["nobody"])
            )
        ]
