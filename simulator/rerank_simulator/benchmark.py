"""The benchmark of the whole loop: how fast it is on real lists, and how much better the lists become.

Times are of one thread, of calls through the public interface, on lists with 100 candidates, with warm state. The
lists come in order of time, each is ordered five times, each time as a new request a moment after a new event of its
user, so nothing can be answered from the previous call; the first of the five also meets the list for the first time.
``track`` is timed on the stream of real events, and once more right after a ranking has filled the caches with
something else.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from rerank_engine.errors import DataError
from rerank_features import Event, Request
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.logs.movielens import RatingLog
from rerank_simulator.movielens import (
    SERVER,
    WITH_EVENTS,
    make_timeline,
    replay_entries,
    standard_policies,
)
from rerank_simulator.replay import replay
from rerank_simulator.timeline import Delivery, Entry, Tracked

Progress = Callable[[int, int, str], None]

LIST_LENGTH = 100
ROUNDS = 3_000
PER_LIST = 5
WARM_UP = 200
_IMPORTS = 9


def benchmark_loop(
    log: RatingLog, bundle: Bundle, *, rounds: int = ROUNDS, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure the loop.

    Parameters
    ----------
    log
        MovieLens-100K.
    bundle
        The model.
    rounds
        Timed calls.
    progress
        Called with (done, total, text).

    Returns
    -------
    dict
        ``track_p50_us``, ``track_after_rerank_p50_us``, ``rerank_100_p50_us``, ``features_p50_us``,
        ``scoring_p50_us`` and their 99th percentiles; ``import_ms``; ``ndcg10`` (by policy: mean, low, high);
        ``lift_over_server`` (mean, low, high; relative); and what they rest on.

    Raises
    ------
    DataError
        The log has no list of 100 candidates.
    """
    timeline = make_timeline(log)
    entries = list(replay_entries(timeline))
    with standard_policies(bundle) as policies:
        result = replay(entries, policies, progress=progress)
    lift = result.lift(WITH_EVENTS, SERVER, "ndcg10")
    relative = lift.relative
    return {
        **time_loop(entries, bundle, rounds),
        "import_ms": import_ms(),
        "ndcg10": {policy: metrics["ndcg10"] for policy, metrics in result.summary().items()},
        "lift_over_server": {
            "mean": relative.mean if relative else None,
            "low": relative.low if relative else None,
            "high": relative.high if relative else None,
        },
        "users": len(set(result.users.tolist())),
        "lists": len(result.users),
        "bundle": bundle.name,
    }


def time_loop(entries: Sequence[Entry], bundle: Bundle, rounds: int = ROUNDS) -> dict[str, Any]:
    """Time ``track`` and ``rerank`` on the full-length lists of a replay.

    Parameters
    ----------
    entries
        Of a timeline.
    bundle
        The model.
    rounds
        Timed calls of each.

    Returns
    -------
    dict
        Medians and 99th percentiles in microseconds.

    Raises
    ------
    DataError
        No list has 100 candidates.
    """
    lists = [entry for entry in entries if isinstance(entry, Delivery) and len(entry.candidates) == LIST_LENGTH]
    tracked = [entry for entry in entries if isinstance(entry, Tracked)]
    if not lists or not tracked:
        raise DataError(f"the log has no list of {LIST_LENGTH} candidates to measure on")
    track_us, total_us, features_us, scoring_us = (np.empty(rounds) for _ in range(4))
    with (
        tempfile.TemporaryDirectory() as folder,
        Reranker.open(folder, bundle, deadline_ms=None, strict=True) as reranker,
    ):
        stream_us = np.empty(len(tracked))
        for number, entry in enumerate(tracked):
            reranker.remember((entry.item,))
            started = perf_counter()
            reranker.track(entry.event)
            stream_us[number] = (perf_counter() - started) * 1e6
        now_ms = tracked[-1].event.time_ms
        for number in range(-WARM_UP, rounds):
            now_ms += 1000
            listed = lists[max(0, number) // PER_LIST % len(lists)]
            item = listed.candidates[number % LIST_LENGTH]
            event = Event(user=listed.user, item=item.id, kind="like", value=4.0, time_ms=now_ms)
            request = Request(
                user=listed.user, candidates=listed.candidates, scores=listed.scores, time_ms=now_ms, id=f"r{number}"
            )
            started = perf_counter()
            reranker.track(event)
            between = perf_counter()
            ranking = reranker.rerank(request)
            done = perf_counter()
            if number >= 0:
                track_us[number] = (between - started) * 1e6
                total_us[number] = (done - between) * 1e6
                features_us[number] = ranking.timings.features_ms * 1e3
                scoring_us[number] = ranking.timings.scoring_ms * 1e3
        backend = reranker.health().backend
    return {
        "track_p50_us": _percentile(stream_us[len(stream_us) // 2 :], 50),
        "track_p99_us": _percentile(stream_us[len(stream_us) // 2 :], 99),
        "track_after_rerank_p50_us": _percentile(track_us, 50),
        "track_after_rerank_p99_us": _percentile(track_us, 99),
        "rerank_100_p50_us": _percentile(total_us, 50),
        "rerank_100_p99_us": _percentile(total_us, 99),
        "features_p50_us": _percentile(features_us, 50),
        "features_p99_us": _percentile(features_us, 99),
        "scoring_p50_us": _percentile(scoring_us, 50),
        "scoring_p99_us": _percentile(scoring_us, 99),
        "rounds": rounds,
        "backend": backend,
    }


def import_ms() -> float:
    """Median time of ``import rerank_sdk`` in a fresh process, in milliseconds."""
    code = "from time import perf_counter as t; a = t(); import rerank_sdk; print((t() - a) * 1e3)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=Path.home()).stdout)
        for _ in range(_IMPORTS)
    ]
    return round(statistics.median(times), 2)


def _percentile(values: np.ndarray[Any, np.dtype[np.float64]], q: float) -> float:
    return round(float(np.percentile(values, q)), 1)
