"""Times of event store, tracking, emission and rescan, and the memory of a user; public calls only, one thread."""

from __future__ import annotations

import gc
import itertools
import tempfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.log import EventColumns, ListColumns
from rerank_features.log_features import training_set_from_log
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_sdk.store import EventStore
from rerank_simulator.feature_benchmark.logs import BuildInput
from rerank_simulator.feature_benchmark.rescan import TOLERANCE, Rescan
from rerank_simulator.feature_benchmark.stream import ShopStream

LIST_LENGTH = 100
HISTORY = 2_000
"""Events of the user whose lists are timed."""

_APPENDED_AT_ONCE = 1_000
_FLUSHED_AT_ONCE = 50_000
"""Half of what a store lets wait."""

_PER_LIST = 5
"""Requests that share one tuple of candidates, as in ``rerank bench loop``."""


def shop_events(items: tuple[Item, ...], seed: int, users: int) -> Iterator[Event]:
    """The generated events of some users, without end."""
    for visit in ShopStream(users, items, seed).visits():
        yield from visit.events


def append_events_per_s(items: tuple[Item, ...], seed: int, count: int) -> float:
    """Events a second through ``EventStore.append_many``, until the last ``flush`` has returned.

    The events are made before the clock starts. The store is opened with its defaults: the level ``batched``.
    """
    events = list(itertools.islice(shop_events(items, seed, users=50), count))
    with tempfile.TemporaryDirectory() as folder, EventStore.open(Path(folder) / "events.db") as store:
        started = perf_counter()
        for first in range(0, count, _APPENDED_AT_ONCE):
            store.append_many(events[first : first + _APPENDED_AT_ONCE])
            if (first + _APPENDED_AT_ONCE) % _FLUSHED_AT_ONCE == 0:
                store.flush()
        store.flush()
        elapsed_s = perf_counter() - started
        if store.health().written != count:
            raise DataError(f"the store has written {store.health().written} of {count} events; see its health()")
    return count / elapsed_s


def track_us(
    bundle: Bundle, items: tuple[Item, ...], seed: int, count: int, cache: Path | None = None
) -> NDArray[np.float64]:
    """Microseconds of each ``Reranker.track`` of one event of one user, as on a device; the first half warms up."""
    events = list(itertools.islice(shop_events(items, seed, users=1), count))
    times_us = np.empty(count)
    with (
        tempfile.TemporaryDirectory() as folder,
        Reranker.open(folder, bundle, deadline_ms=None, strict=True, cache_dir=cache) as reranker,
    ):
        reranker.remember(items)
        for number, event in enumerate(events):
            started = perf_counter()
            reranker.track(event)
            times_us[number] = (perf_counter() - started) * 1e6
    return times_us[count // 2 :]


@dataclass(frozen=True)
class EmitTimes:
    """Medians on lists of 100 candidates for a user with 2,000 events.

    Attributes
    ----------
    emit_us
        Of ``FeaturePipeline.emit``.
    rerank_us
        Of ``Reranker.rerank`` on the same lists.
    naive_us
        Of the rescan on some of them.
    """

    emit_us: float
    rerank_us: float
    naive_us: float


def emit_times(
    spec: FeatureSpec,
    bundle: Bundle,
    items: tuple[Item, ...],
    seed: int,
    *,
    rounds: int,
    naive_rounds: int,
    history: int = HISTORY,
    cache: Path | None = None,
) -> EmitTimes:
    """Time the same requests through the pipeline, the whole re-ranker and the rescan.

    Every request is new and comes after a new event, so nothing can be answered from the one before.

    Raises
    ------
    DataError
        The rescan gives another value than the pipeline.
    """
    stream = ShopStream(1, items, seed, list_length=LIST_LENGTH).visits()
    visits = list(itertools.islice(stream, max(2, rounds // _PER_LIST)))
    events = shop_events(items, seed + 1, users=1)
    pipeline, rescan = FeaturePipeline(spec), Rescan(spec)
    with (
        tempfile.TemporaryDirectory() as folder,
        Reranker.open(folder, bundle, deadline_ms=None, strict=True, cache_dir=cache) as reranker,
    ):
        for known in (pipeline, rescan, reranker):
            known.remember(items)
        for event in itertools.islice(events, history):
            newest_ms = event.time_ms
            pipeline.update(event)
            rescan.update(event)
            reranker.track(event)
        naive = []
        for number in range(naive_rounds):
            request = _moved(visits[number % len(visits)].request, event.user, newest_ms + 1_000 * number, number)
            started = perf_counter()
            expected = rescan.emit(request)
            naive.append((perf_counter() - started) * 1e6)
            check_same(spec, pipeline.emit(request).arrays, expected)
        emit_us, rerank_us = np.empty(rounds), np.empty(rounds)
        for number, event in enumerate(itertools.islice(events, rounds)):
            pipeline.update(event)
            reranker.track(event)
            visit = visits[number // _PER_LIST % len(visits)]
            request = _moved(visit.request, event.user, event.time_ms + 500, naive_rounds + number)
            started = perf_counter()
            pipeline.emit(request)
            between = perf_counter()
            reranker.rerank(request)
            done = perf_counter()
            emit_us[number], rerank_us[number] = (between - started) * 1e6, (done - between) * 1e6
    return EmitTimes(percentile(emit_us, 50), percentile(rerank_us, 50), percentile(np.array(naive), 50))


def _moved(request: Request, user: str, time_ms: int, number: int) -> Request:
    """The same list at another moment."""
    return request.model_copy(update={"user": user, "time_ms": time_ms, "id": f"timed-{number}"})


def check_same(spec: FeatureSpec, given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the arrays of two implementations.

    Raises
    ------
    DataError
        They differ: the message names the array, and of ``dense`` the column.
    """
    for name, array in given.items():
        wanted = expected[name]
        is_exact = array.dtype == np.int32
        differs = array != wanted if is_exact else np.abs(array - wanted) > TOLERANCE * np.maximum(1, np.abs(wanted))
        if not differs.any():
            continue
        place = tuple(int(part) for part in np.argwhere(differs)[0])
        column = f", column {spec.dense[place[1]].name!r}" if name == "dense" else ""
        raise DataError(
            f"array {name!r}{column} at {place}: the pipeline gives {array[place]}, the rescan {wanted[place]}; "
            "one of the two is wrong: please report it"
        )


def build_events_per_s(given: BuildInput, repeats: int) -> float:
    """Events a second of ``training_set_from_log``, lists and checks of columns included: the best of some runs."""
    times_s = []
    for _ in range(repeats):
        started = perf_counter()
        events, lists = EventColumns(**given.events), ListColumns(**given.lists)
        training_set_from_log(given.spec, items=given.items, events=events, lists=lists)
        times_s.append(perf_counter() - started)
    return len(events) / min(times_s)


def state_bytes_per_user(
    spec: FeatureSpec, items: tuple[Item, ...], seed: int, *, users: int, events_per_user: int
) -> float:
    """Memory that a pipeline takes for each user who has done something, room that it holds ready included."""
    histories: dict[str, list[Event]] = {}
    full = 0
    for event in shop_events(items, seed, users):
        history = histories.setdefault(event.user, [])
        if len(history) < events_per_user:
            history.append(event)
            full += len(history) == events_per_user
            if full == users:
                break
    pipeline = FeaturePipeline(spec)
    pipeline.remember(items)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for history in histories.values():
            for event in history:
                pipeline.update(event)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / users
    finally:
        tracemalloc.stop()


def percentile(values: NDArray[np.float64], q: float) -> float:
    """Rounded to a tenth."""
    return round(float(np.percentile(values, q)), 1)
