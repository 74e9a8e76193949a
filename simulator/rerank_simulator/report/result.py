"""What a report is made of: figures of a replay, one list told as a story, latencies; plain frozen values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from rerank_engine.errors import InputError
from rerank_simulator.intervals import Interval, Lift

METRIC_NAMES: Mapping[str, str] = {"ndcg10": "NDCG@10", "mrr": "MRR", "recall10": "Recall@10"}
"""How people write the metrics of a replay."""

TRACK, AGAIN, FIRST = "track an event", "re-rank a known list", "re-rank a new list"
STAGES = ("check the request", "compute features", "score", "order")
"""Parts of re-ranking a known list, in the order in which they run; the first happens before the call."""

_DIGITS = 4

BETTER, WORSE, CANNOT_TELL = "better", "worse", "cannot tell"


@dataclass(frozen=True)
class ReplayFacts:
    """What was replayed.

    Attributes
    ----------
    name
        Of the data set.
    ratings, users, items
        Size of the whole log.
    first_day, last_day
        Days, UTC, of the first and the last list that was delivered.
    lists, list_users
        Lists that policies were judged on, and how many users they belong to.
    lists_without_relevant
        Lists that nobody can be judged on, because no unseen candidate turned out relevant; left out.
    level
        Coverage of every interval.
    """

    name: str
    ratings: int
    users: int
    items: int
    first_day: str
    last_day: str
    lists: int
    list_users: int
    lists_without_relevant: int
    level: float


@dataclass(frozen=True)
class PolicyResult:
    """One policy's means over users.

    Attributes
    ----------
    policy
        Its name.
    metrics
        Metric to interval; metrics as in :data:`METRIC_NAMES`.
    """

    policy: str
    metrics: Mapping[str, Interval]


@dataclass(frozen=True)
class LiftResult:
    """How much one policy is above another on the same lists.

    Attributes
    ----------
    policy, baseline
        Names.
    metric
        As in :data:`METRIC_NAMES`.
    lift
        Absolute, and relative where the baseline allows it.
    """

    policy: str
    baseline: str
    metric: str
    lift: Lift

    @property
    def verdict(self) -> str:
        """``"better"``, ``"worse"``, or ``"cannot tell"`` when the interval of the difference contains zero."""
        if self.lift.absolute.low > 0:
            return BETTER
        return WORSE if self.lift.absolute.high < 0 else CANNOT_TELL


@dataclass(frozen=True)
class EventsResult:
    """Lists that were reordered after about so many events of the visit.

    Attributes
    ----------
    fewest, most
        Events of the visit before the list was reordered; `most` is None for no limit.
    lists, users
        How many there are.
    ndcg10
        Policy to interval.
    """

    fewest: int
    most: int | None
    lists: int
    users: int
    ndcg10: Mapping[str, Interval]

    @property
    def label(self) -> str:
        """``"3 to 9"``, ``"30 or more"``."""
        if self.most is None:
            return f"{self.fewest} or more"
        return str(self.fewest) if self.most == self.fewest else f"{self.fewest} to {self.most}"


@dataclass(frozen=True)
class GainCounts:
    """On how many lists the model's NDCG@10 is higher than, equal to, and lower than that of the server's order."""

    higher: int
    equal: int
    lower: int


@dataclass(frozen=True)
class StoryEvent:
    """One event of the story: the film, the kind of event, and the rating."""

    title: str
    kind: str
    rating: float


@dataclass(frozen=True)
class StoryReason:
    """A feature group and its effect on the score, compared with the other candidates of the list."""

    group: str
    effect: float


@dataclass(frozen=True)
class StoryItem:
    """A candidate of the story.

    Attributes
    ----------
    item, title
        Its id and title.
    server_place, model_place
        Places from 1 among the candidates that the user had not rated yet.
    relevant
        Whether the user rated it 4 or more later, in that visit or within a day after it.
    reasons
        The strongest reasons of the model, strongest first; at most three.
    """

    item: str
    title: str
    server_place: int
    model_place: int
    relevant: bool
    reasons: tuple[StoryReason, ...]


@dataclass(frozen=True)
class Story:
    """One list of one real user, before and after three events.

    Attributes
    ----------
    rule
        How the list was chosen; it looks at no policy's result.
    user
        Id in the log.
    day
        Day of the visit, UTC.
    past_events
        Events of the user before this visit; the re-ranker has seen them all.
    candidates, relevant
        Candidates that the user had not rated yet, and how many of them turned out relevant.
    events
        The events of the visit so far.
    server_top, model_top
        The first ten of each order.
    ndcg10_server, ndcg10_model
        Of this list.
    lists_with_larger_gain
        On how many of the judged lists the model gains more NDCG@10 over the server's order than on this one.
    """

    rule: str
    user: str
    day: str
    past_events: int
    candidates: int
    relevant: int
    events: tuple[StoryEvent, ...]
    server_top: tuple[StoryItem, ...]
    model_top: tuple[StoryItem, ...]
    ndcg10_server: float
    ndcg10_model: float
    lists_with_larger_gain: int


@dataclass(frozen=True)
class LatencyRow:
    """Time of one stage in microseconds: the median and the 99th percentile of `calls` calls."""

    stage: str
    calls: int
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Latency:
    """How long the re-ranker takes, measured warm, with nothing waiting in the store's queue.

    Attributes
    ----------
    machine
        Operating system, architecture, number of processors and Python version.
    backend
        What computed the scores.
    candidates
        Length of each list.
    warmup_calls
        So many calls of each kind come before the measurement and are not counted, or half of them where there are
        fewer than twice as many.
    rows
        One a stage.
    """

    machine: str
    backend: str
    candidates: int
    warmup_calls: int
    rows: tuple[LatencyRow, ...]

    def row(self, stage: str) -> LatencyRow:
        """The row of a stage.

        Raises
        ------
        InputError
            It was not measured.
        """
        for found in self.rows:
            if found.stage == stage:
                return found
        raise InputError(f"no stage {stage!r} was measured; measured: {', '.join(row.stage for row in self.rows)}")


@dataclass(frozen=True)
class DemoResult:
    """Everything that a report shows.

    Attributes
    ----------
    bundle, model_hash
        Name of the bundle under test and the content hash of its model.
    bundle_facts
        What the bundle says about itself.
    replay
        What was replayed.
    policies, lifts, by_events, gains
        Figures of the replay.
    story
        One list in full.
    latency
        How long it took.
    """

    bundle: str
    model_hash: str
    bundle_facts: Mapping[str, Any]
    replay: ReplayFacts
    policies: tuple[PolicyResult, ...]
    lifts: tuple[LiftResult, ...]
    by_events: tuple[EventsResult, ...]
    gains: GainCounts
    story: Story
    latency: Latency

    def lift(self, policy: str, baseline: str, metric: str) -> LiftResult | None:
        """The lift of a policy over a baseline, or None when it was not computed."""
        for found in self.lifts:
            if (found.policy, found.baseline, found.metric) == (policy, baseline, metric):
                return found
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must not overlook, one sentence each."""
        metrics: dict[tuple[str, str, str], list[str]] = {}
        for one in self.lifts:
            if one.verdict != BETTER:
                metrics.setdefault((one.policy, one.baseline, one.verdict), []).append(METRIC_NAMES[one.metric])
        found = [
            f"{policy} against {baseline}: {verdict}, on {', '.join(names)}."
            + (" The interval of the difference contains zero." if verdict == CANNOT_TELL else "")
            for (policy, baseline, verdict), names in metrics.items()
        ]
        if self.replay.lists_without_relevant:
            found.append(
                f"{self.replay.lists_without_relevant:,} lists hold no relevant candidate that was still unseen. No"
                " order is better than another there, and they are left out."
            )
        if self.story.ndcg10_model <= self.story.ndcg10_server:
            found.append("On the list of the story the model is not above the server's order.")
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; fractions are rounded to four digits, intervals are mean, low and high."""
        plain: dict[str, Any] = _plain(self)
        plain["bundle_facts"] = _plain(self.bundle_facts, digits=None)
        plain["warnings"] = list(self.warnings)
        return plain


def _plain(value: Any, digits: int | None = _DIGITS) -> Any:
    """A value as JSON knows it; floats rounded, unless `digits` is None."""
    if isinstance(value, Interval):
        return {name: _plain(getattr(value, name)) for name in ("mean", "low", "high")}
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, LiftResult):
            plain["verdict"] = value.verdict
        return plain
    if isinstance(value, Mapping):
        return {str(key): _plain(one, digits) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one, digits) for one in value]
    if isinstance(value, float):
        # A not-a-number has no spelling in JSON.
        if not math.isfinite(value):
            return None
        return value if digits is None else round(value, digits)
    return value
