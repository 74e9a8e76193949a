"""Replay: a timeline through several policies, each list judged by what the user did afterwards.

Every policy sees the same events in the same order and orders the same lists at the same moments. A list is judged
on the candidates that the user had not seen at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError, InputError
from rerank_simulator.intervals import Interval, Lift, paired_lift, user_bootstrap
from rerank_simulator.metrics import mrr, ndcg_at, recall_at
from rerank_simulator.policies import Policy
from rerank_simulator.timeline import Checkpoint, Delivery, Entry, Tracked

METRICS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float64]]] = {
    "ndcg10": lambda relevance: ndcg_at(relevance, 10),
    "mrr": mrr,
    "recall10": lambda relevance: recall_at(relevance, 10),
}
"""Metrics by name, over relevance in ranked order."""

SEED = 20_240_101
"""Of the resampling."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ReplayResult:
    """Judged lists of every policy.

    Attributes
    ----------
    users
        (L,) user id of each judged list.
    events_done
        (L,) int64: events of the visit before the list was ordered.
    values
        ``values[policy][metric]``: (L,) float64.
    lists_without_relevant
        Lists that nobody could be judged on, because no unseen candidate turned out relevant; left out.
    track_us, order_us
        ``[policy]``: microseconds of each call, as the policy saw it.
    """

    users: NDArray[np.str_]
    events_done: NDArray[np.int64]
    values: dict[str, dict[str, NDArray[np.float64]]]
    lists_without_relevant: int
    track_us: dict[str, NDArray[np.float64]]
    order_us: dict[str, NDArray[np.float64]]

    def interval(self, policy: str, metric: str) -> Interval:
        """Mean over users of the user's mean, with a 95 % interval resampled by user."""
        return user_bootstrap(self._column(policy, metric), self.users, seed=SEED)

    def lift(self, policy: str, baseline: str, metric: str) -> Lift:
        """How much better a policy is than another on the same lists, with a 95 % interval resampled by user."""
        return paired_lift(self._column(policy, metric), self._column(baseline, metric), self.users, seed=SEED)

    def _column(self, policy: str, metric: str) -> NDArray[np.float64]:
        if policy not in self.values:
            raise InputError(f"no policy {policy!r} was replayed; replayed: {', '.join(self.values)}")
        if metric not in self.values[policy]:
            raise InputError(f"no metric is called {metric!r}; metrics: {', '.join(self.values[policy])}")
        return self.values[policy][metric]

    def summary(self) -> dict[str, dict[str, Any]]:
        """``[policy][metric]``: mean, low and high, ready for JSON."""
        return {
            policy: {
                metric: {"mean": interval.mean, "low": interval.low, "high": interval.high}
                for metric, interval in ((name, self.interval(policy, name)) for name in metrics)
            }
            for policy, metrics in self.values.items()
        }


def replay(
    entries: Iterable[Entry], policies: Mapping[str, Policy], *, progress: Progress | None = None
) -> ReplayResult:
    """Run a timeline through policies.

    Parameters
    ----------
    entries
        In order of time, see :class:`~rerank_simulator.timeline.Timeline`.
    policies
        By name.
    progress
        Called with (entries done, all entries, policy).

    Raises
    ------
    DataError
        No list can be judged.
    InputError
        A policy did not return an order of all candidates.
    """
    entries = list(entries)
    judged = [entry for entry in entries if isinstance(entry, Checkpoint)]
    useful = [checkpoint for checkpoint in judged if (checkpoint.relevance[~checkpoint.seen] > 0).any()]
    if not useful:
        raise DataError("no list of this timeline has a relevant unseen candidate; nothing can be judged")
    values: dict[str, dict[str, NDArray[np.float64]]] = {}
    track_us: dict[str, NDArray[np.float64]] = {}
    order_us: dict[str, NDArray[np.float64]] = {}
    total = len(entries) * len(policies)
    for number, (name, policy) in enumerate(policies.items()):
        ranked, tracked, ordered = _run(entries, name, policy, number * len(entries), total, progress)
        values[name] = {metric: _judge(function, ranked) for metric, function in METRICS.items()}
        track_us[name], order_us[name] = np.array(tracked), np.array(ordered)
    return ReplayResult(
        users=np.array([checkpoint.delivery.user for checkpoint in useful]),
        events_done=np.array([checkpoint.events_done for checkpoint in useful], dtype=np.int64),
        values=values,
        lists_without_relevant=len(judged) - len(useful),
        track_us=track_us,
        order_us=order_us,
    )


def _run(
    entries: Sequence[Entry], name: str, policy: Policy, done: int, total: int, progress: Progress | None
) -> tuple[list[NDArray[np.float32]], list[float], list[float]]:
    """Relevance of the unseen candidates in the policy's order, for each list that can be judged."""
    ranked: list[NDArray[np.float32]] = []
    tracked: list[float] = []
    ordered: list[float] = []
    for place, entry in enumerate(entries):
        if progress is not None and place % 256 == 0:
            progress(done + place, total, name)
        started = perf_counter()
        if isinstance(entry, Tracked):
            policy.track(entry)
            tracked.append((perf_counter() - started) * 1e6)
        elif isinstance(entry, Delivery):
            policy.deliver(entry)
        else:
            order = policy.order(entry)
            ordered.append((perf_counter() - started) * 1e6)
            if not np.array_equal(np.sort(order), np.arange(len(entry.seen))):
                raise InputError(f"policy {name!r} did not return every candidate once")
            relevance = entry.relevance[order[~entry.seen[order]]]
            if (relevance > 0).any():
                ranked.append(relevance)
    if progress is not None:
        progress(done + len(entries), total, name)
    return ranked, tracked, ordered


def _judge(
    function: Callable[[NDArray[np.float32]], NDArray[np.float64]], ranked: Sequence[NDArray[np.float32]]
) -> NDArray[np.float64]:
    return np.array([float(function(relevance)) for relevance in ranked])
