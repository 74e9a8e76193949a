"""The demonstration: replay a rating log, tell one list as a story, and measure latencies on the same lists.

log ─▶ timeline ─▶ replay of five policies ─▶ means, lifts, intervals
               └─▶ one production re-ranker ─▶ the story, latencies
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError
from rerank_sdk.bundle import Bundle
from rerank_sdk.ranking import Ranking
from rerank_sdk.reranker import Reranker
from rerank_simulator.intervals import user_bootstrap
from rerank_simulator.logs.movielens import RatingLog
from rerank_simulator.metrics import ndcg_at
from rerank_simulator.movielens import (
    PERSONALISED,
    SERVER,
    WITH_EVENTS,
    WITHOUT_EVENTS,
    Progress,
    make_timeline,
    replay_entries,
    standard_policies,
)
from rerank_simulator.replay import METRICS, SEED, ReplayResult, replay
from rerank_simulator.report.result import (
    AGAIN,
    FIRST,
    STAGES,
    TRACK,
    DemoResult,
    EventsResult,
    GainCounts,
    Latency,
    LatencyRow,
    LiftResult,
    PolicyResult,
    ReplayFacts,
    Story,
    StoryEvent,
    StoryItem,
    StoryReason,
)
from rerank_simulator.timeline import CHECKPOINTS, RELEVANT_RATING, Checkpoint, Delivery, Entry, Timeline, Tracked

__all__ = ["DemoResult", "run_demo"]

COMPARISONS = ((WITH_EVENTS, SERVER), (WITH_EVENTS, WITHOUT_EVENTS), (PERSONALISED, WITH_EVENTS))
"""Which policy is held against which."""

BY_EVENTS = (SERVER, WITHOUT_EVENTS, WITH_EVENTS)
"""Policies whose NDCG@10 is told by the number of events."""

STORY_EVENTS = 3
STORY_RELEVANT = (10, 5, 3, 1)
"""The story's list has at least so many relevant candidates: the first number that any list reaches."""

TOP = 10
MIN_RERANKS = 300
"""Of latencies; where the log has fewer lists, each is reordered several times."""

WARMUP_CALLS = 100

_STEPS = 1_000
_BUILD_END, _REPLAY_END = 200, 900
"""Share of the work, in thousandths, at which a stage is over."""


def run_demo(
    log: RatingLog,
    bundle: Bundle,
    *,
    data_name: str = "MovieLens-100K",
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> DemoResult:
    """Replay the last part of a log with the standard policies, and look at one list closely.

    Everything but the latencies is the same at each run.

    Parameters
    ----------
    log
        Ratings, see :func:`~rerank_simulator.logs.movielens.load_movielens`.
    bundle
        The model under test.
    data_name
        Name of the log, for the report.
    progress
        Called with (steps done, all steps, what is being done).
    cache_dir
        Where machine code is kept; by default the user's cache directory.

    Raises
    ------
    DataError
        The log is empty or too short, or holds no list that can be told as a story, or lists of one user only.
    BundleError, ModelFileError, SpecError
        The bundle cannot be used.
    MissingExtraError
        The server's recommender needs the extra ``simulator``.

    Examples
    --------
    >>> empty = RatingLog.from_rows([], [], [], [], user_ids=(), item_ids=())
    >>> run_demo(empty, Bundle("none", b"", ""))
    Traceback (most recent call last):
    rerank_engine.errors.DataError: the demonstration needs a log with ratings, got none
    """
    if not len(log.time_ms):
        raise DataError("the demonstration needs a log with ratings, got none")
    model_hash = bundle.model().content_hash
    bundle.spec()
    timeline = make_timeline(log)
    entries = list(_watched(timeline, _part(progress, 0, _BUILD_END)))
    chosen = _choose_story(entries)
    with standard_policies(bundle, cache_dir=cache_dir) as policies:
        result = replay(entries, policies, progress=_part(progress, _BUILD_END, _REPLAY_END))
    replayed = _replay_facts(log, data_name, entries, result)
    measured = _run_production(entries, bundle, chosen.checkpoint, cache_dir, _part(progress, _REPLAY_END, _STEPS))
    return DemoResult(
        bundle=bundle.name,
        model_hash=model_hash,
        bundle_facts=dict(bundle.facts),
        replay=replayed,
        policies=tuple(
            PolicyResult(policy, {metric: result.interval(policy, metric) for metric in METRICS})
            for policy in result.values
        ),
        lifts=tuple(
            LiftResult(policy, baseline, metric, result.lift(policy, baseline, metric))
            for policy, baseline in COMPARISONS
            for metric in METRICS
        ),
        by_events=_by_events(result),
        gains=_count_gains(_gains(result)),
        story=_tell(log, entries, chosen, measured, _gains(result)),
        latency=measured.latency(),
    )


# --- progress ------------------------------------------------------------------------------------------------


def _part(progress: Progress | None, start: int, end: int) -> Progress | None:
    """A callback for one stage that reports to the whole."""
    if progress is None:
        return None

    def report(done: int, total: int, text: str) -> None:
        progress(start + (end - start) * done // max(total, 1), _STEPS, text)

    return report


def _watched(timeline: Timeline, progress: Progress | None) -> Iterator[Entry]:
    """The entries of the replay; the share of the log's time that has passed is the progress."""
    start_ms, end_ms = int(timeline.log.time_ms[0]), int(timeline.log.time_ms[-1])
    for number, entry in enumerate(replay_entries(timeline)):
        if progress is not None and number % 256 == 0:
            now_ms = entry.event.time_ms if isinstance(entry, Tracked) else entry.time_ms
            progress(now_ms - start_ms, end_ms - start_ms, "server lists")
        yield entry


# --- figures -------------------------------------------------------------------------------------------------


def _replay_facts(log: RatingLog, name: str, entries: Sequence[Entry], result: ReplayResult) -> ReplayFacts:
    delivered_ms = [entry.time_ms for entry in entries if isinstance(entry, Delivery)]
    return ReplayFacts(
        name=name,
        ratings=len(log.time_ms),
        users=len(np.unique(log.user)),
        items=len(np.unique(log.item)),
        first_day=_day(min(delivered_ms)),
        last_day=_day(max(delivered_ms)),
        lists=len(result.users),
        list_users=len(np.unique(result.users)),
        lists_without_relevant=result.lists_without_relevant,
        level=result.interval(SERVER, "ndcg10").level,
    )


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()


def _by_events(result: ReplayResult) -> tuple[EventsResult, ...]:
    """NDCG@10 by events of the visit. A list falls into the last checkpoint that it has reached: events that share
    one moment are counted together, so a list may be reordered after 4 events and not after 3.
    """
    rows = []
    for fewest, after in zip(CHECKPOINTS, (*CHECKPOINTS[1:], None), strict=True):
        inside = result.events_done >= fewest
        if after is not None:
            inside &= result.events_done < after
        users = result.users[inside]
        # The spread of a single user is unknown.
        if len(np.unique(users)) < 2:
            continue
        intervals = {
            policy: user_bootstrap(result.values[policy]["ndcg10"][inside], users, seed=SEED) for policy in BY_EVENTS
        }
        last = after - 1 if after is not None else None
        rows.append(EventsResult(fewest, last, len(users), len(np.unique(users)), intervals))
    return tuple(rows)


def _gains(result: ReplayResult) -> NDArray[np.float64]:
    return result.values[WITH_EVENTS]["ndcg10"] - result.values[SERVER]["ndcg10"]


def _count_gains(gains: NDArray[np.float64]) -> GainCounts:
    return GainCounts(int((gains > 0).sum()), int((gains == 0).sum()), int((gains < 0).sum()))


# --- the story -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    checkpoint: Checkpoint
    past_events: int
    rule: str


def _choose_story(entries: Sequence[Entry]) -> _Chosen:
    """The first list in order of time that meets the strictest rule that any list meets. No order is looked at."""
    found: list[tuple[Checkpoint, int, int]] = []
    events: dict[str, int] = {}
    before_visit: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, Delivery):
            before_visit[entry.visit] = events.get(entry.user, 0)
        elif isinstance(entry, Tracked):
            events[entry.event.user] = events.get(entry.event.user, 0) + 1
        elif entry.events_done == STORY_EVENTS:
            relevant = int((entry.relevance[~entry.seen] > 0).sum())
            found.append((entry, relevant, before_visit[entry.delivery.visit]))
    for with_past in (True, False):
        for least in STORY_RELEVANT:
            for checkpoint, relevant, past in found:
                if relevant >= least and (past > 0 or not with_past):
                    return _Chosen(checkpoint, past, _rule(least, with_past))
    raise DataError(
        f"no list can be told as a story: after exactly {STORY_EVENTS} events of a visit, none of {len(found)} lists"
        " holds a relevant candidate; give a longer log"
    )


def _rule(least: int, with_past: bool) -> str:
    whose = "of a user with an earlier visit, " if with_past else ""
    return (
        f"The first list of the replay, in order of time, that was reordered after exactly {STORY_EVENTS} events of a"
        f" visit, {whose}and that holds at least {least} unrated film{'s' if least > 1 else ''} which the user rated"
        f" {RELEVANT_RATING:g} or more afterwards. The rule looks at no policy's order."
    )


def _tell(
    log: RatingLog, entries: Sequence[Entry], chosen: _Chosen, measured: _Measured, gains: NDArray[np.float64]
) -> Story:
    checkpoint, ranking = chosen.checkpoint, measured.story_ranking
    delivery = checkpoint.delivery
    titles = {item: title or item for item, title in zip(log.item_ids, log.titles, strict=True)}
    server_order = np.flatnonzero(~checkpoint.seen)
    shown = [place for place, candidate in enumerate(ranking.order) if not checkpoint.seen[candidate]]
    model_order = ranking.order[shown]
    server_place = {int(candidate): place for place, candidate in enumerate(server_order, 1)}
    model_place = {int(candidate): place for place, candidate in enumerate(model_order, 1)}
    reasons = {
        int(ranking.order[place]): tuple(
            StoryReason(reason.group, round(reason.effect, 2)) for reason in ranking.reasons[place]
        )
        for place in shown
    }

    def item(candidate: int) -> StoryItem:
        name = delivery.candidates[candidate].id
        return StoryItem(
            item=name,
            title=titles[name],
            server_place=server_place[candidate],
            model_place=model_place[candidate],
            relevant=bool(checkpoint.relevance[candidate] > 0),
            reasons=reasons[candidate],
        )

    visit = [one for one in entries if isinstance(one, Tracked) and one.visit == delivery.visit]
    ndcg10_server, ndcg10_model = (
        float(ndcg_at(checkpoint.relevance[order], 10)) for order in (server_order, model_order)
    )
    return Story(
        rule=chosen.rule,
        user=delivery.user,
        day=_day(delivery.time_ms),
        past_events=chosen.past_events,
        candidates=len(server_order),
        relevant=int((checkpoint.relevance[server_order] > 0).sum()),
        events=tuple(
            StoryEvent(titles[one.event.item], one.event.kind, float(one.event.value or 0))
            for one in visit[: checkpoint.events_done]
        ),
        server_top=tuple(item(int(candidate)) for candidate in server_order[:TOP]),
        model_top=tuple(item(int(candidate)) for candidate in model_order[:TOP]),
        ndcg10_server=ndcg10_server,
        ndcg10_model=ndcg10_model,
        lists_with_larger_gain=int((gains > ndcg10_model - ndcg10_server + 1e-12).sum()),
    )


# --- the production path -------------------------------------------------------------------------------------


@dataclass
class _Measured:
    """Times in microseconds by stage, and the ranking of the story."""

    story_ranking: Ranking
    candidates: int
    backend: str
    times_us: dict[str, list[float]] = field(default_factory=dict)

    def latency(self) -> Latency:
        rows = []
        for stage, times in self.times_us.items():
            kept = times[min(WARMUP_CALLS, len(times) // 2) :]
            p50, p99 = np.percentile(kept, [50, 99])
            rows.append(LatencyRow(stage, len(kept), round(float(p50), 1), round(float(p99), 1)))
        processors = os.cpu_count() or 1
        machine = (
            f"{platform.system()} {platform.machine()}, {processors} processor{'s' if processors > 1 else ''},"
            f" Python {platform.python_version()}"
        )
        return Latency(machine, self.backend, self.candidates, WARMUP_CALLS, tuple(rows))


def _run_production(
    entries: Sequence[Entry], bundle: Bundle, story: Checkpoint, cache_dir: Path | None, progress: Progress | None
) -> _Measured:
    """One production re-ranker lives through everything; lists of the greatest length are timed."""
    checkpoints = [entry for entry in entries if isinstance(entry, Checkpoint)]
    longest = max(len(checkpoint.seen) for checkpoint in checkpoints)
    timed = [checkpoint for checkpoint in checkpoints if len(checkpoint.seen) == longest]
    new_lists = len({checkpoint.delivery.visit for checkpoint in timed})
    rounds = math.ceil((MIN_RERANKS + WARMUP_CALLS + new_lists) / len(timed))
    times: dict[str, list[float]] = {stage: [] for stage in (TRACK, *STAGES, AGAIN, FIRST)}
    met: set[int] = set()
    idle = True
    ranking: Ranking | None = None
    with (
        tempfile.TemporaryDirectory() as folder,
        Reranker.open(folder, bundle, deadline_ms=None, strict=True, cache_dir=cache_dir) as reranker,
    ):
        for number, entry in enumerate(entries):
            if progress is not None and number % 256 == 0:
                progress(number, len(entries), "production re-ranker")
            if isinstance(entry, Tracked):
                reranker.remember((entry.item,))
                started = perf_counter()
                reranker.track(entry.event)
                if idle:
                    times[TRACK].append((perf_counter() - started) * 1e6)
                idle = False
            elif isinstance(entry, Checkpoint):
                # In an app events come seconds apart: the store's thread has nothing left to write by now.
                reranker.flush()
                idle = True
                for _ in range(rounds if len(entry.seen) == longest else 0):
                    _time_rerank(reranker, entry, times, first=entry.delivery.visit not in met)
                    met.add(entry.delivery.visit)
                if entry is story:
                    ranking = reranker.rerank(entry.delivery.as_request(entry.time_ms))
        backend = reranker.health().backend
    if progress is not None:
        progress(len(entries), len(entries), "production re-ranker")
    assert ranking is not None, "the story's list is one of the entries"
    return _Measured(ranking, longest, backend, times)


def _time_rerank(reranker: Reranker, checkpoint: Checkpoint, times: dict[str, list[float]], *, first: bool) -> None:
    started = perf_counter()
    request = checkpoint.delivery.as_request(checkpoint.time_ms)
    checked = perf_counter()
    timings = reranker.rerank(request).timings
    done = perf_counter()
    if first:
        times[FIRST].append((done - checked) * 1e6)
        return
    parts_us = (
        (checked - started) * 1e6,
        timings.features_ms * 1e3,
        timings.scoring_ms * 1e3,
        timings.policy_ms * 1e3,
    )
    for stage, part_us in zip(STAGES, parts_us, strict=True):
        times[stage].append(part_us)
    times[AGAIN].append((done - checked) * 1e6)
