"""A rating log as an app would have lived it: lists delivered, events tracked, moments to reorder, in order of time.

Server lists are *constructed*: a recommender trained on the past only sends up to 100 candidates at the start of each
visit, in its order. After some events of the visit the list is reordered. A candidate is relevant when the user rates
it 4 or more later in that visit or within a day after it.

    Delivery ─▶ Tracked ─▶ Tracked ─▶ Checkpoint ─▶ Tracked ─▶ …      one visit; visits of other users in between
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError
from rerank_features import Event, Item, Request
from rerank_features.training_set import LabelledRequest
from rerank_simulator.logs.movielens import UNKNOWN_YEAR, RatingLog
from rerank_simulator.server import ServerRecommender, Snapshot, fixed_item_embeddings
from rerank_simulator.visits import Visits, split_visits

CHECKPOINTS = (1, 3, 10, 30)
"""The list is reordered after so many events of a visit."""

RELEVANT_RATING = 4.0
RELEVANT_AFTER_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Delivery:
    """The server sends a list.

    Attributes
    ----------
    visit
        Number of the visit.
    user, request
        Ids.
    time_ms
        Start of the visit; the list rests on earlier events only.
    candidates, scores
        In the server's order.
    popularity
        (N,) int64: ratings of each candidate so far.
    """

    visit: int
    user: str
    request: str
    time_ms: int
    candidates: tuple[Item, ...]
    scores: tuple[float, ...]
    popularity: NDArray[np.int64]

    def as_request(self, time_ms: int) -> Request:
        """The request to reorder this list at a moment."""
        return Request(user=self.user, candidates=self.candidates, scores=self.scores, time_ms=time_ms, id=self.request)


@dataclass(frozen=True)
class Tracked:
    """The user rates an item.

    Attributes
    ----------
    visit
        Number of the visit.
    event
        A like (4 or more), a click (3) or a dislike (less), with the rating as its value.
    item
        The item as the app knows it at that moment.
    """

    visit: int
    event: Event
    item: Item


@dataclass(frozen=True)
class Checkpoint:
    """A moment to reorder.

    Attributes
    ----------
    delivery
        The list.
    time_ms
        Time of the newest event that is known.
    events_done
        Events of the visit so far.
    relevance
        (N,) float32: 1 for candidates that the user will rate 4 or more, else 0.
    seen
        (N,) bool: candidates that the user has rated in this visit already.
    """

    delivery: Delivery
    time_ms: int
    events_done: int
    relevance: NDArray[np.float32]
    seen: NDArray[np.bool_]


Entry = Delivery | Tracked | Checkpoint


@dataclass
class Timeline:
    """Everything that happens in a log, computed when asked for.

    Parameters
    ----------
    log
        The ratings.
    embeddings_before_ms
        Item embeddings are learned from earlier events only; no list before this moment is delivered.
    embedding_dim
        Their length.
    checkpoints
        Numbers of events after which the list is reordered; 0 means on delivery.
    """

    log: RatingLog
    embeddings_before_ms: int
    embedding_dim: int = 32
    checkpoints: Sequence[int] = CHECKPOINTS
    server: ServerRecommender = field(init=False)
    visits: Visits = field(init=False)

    def __post_init__(self) -> None:
        self.server = ServerRecommender(self.log)
        self.visits = split_visits(self.log)
        rows = fixed_item_embeddings(self.log, self.embeddings_before_ms, self.embedding_dim)
        self._embeddings = [tuple(float(x) for x in row) for row in rows]
        self._items: dict[tuple[int, int], Item] = {}
        self._user_rows = np.argsort(self.log.user, kind="stable")
        self._user_start = np.searchsorted(self.log.user[self._user_rows], np.arange(len(self.log.user_ids) + 1))

    def entries(self, lists_from_ms: int, end_ms: int, *, embargo: bool = False) -> Iterator[Entry]:
        """Yield what happens until ``end_ms``, in order of time.

        Parameters
        ----------
        lists_from_ms
            Visits that start earlier only track their events, and only those of users who come back later; not
            before ``embeddings_before_ms``.
        end_ms
            Visits that start at this moment or later are left out.
        embargo
            Leave out also the visits whose lists cannot be judged before ``end_ms``, for training: nothing of what
            happens from ``end_ms`` on is then in an event or in a label.

        Raises
        ------
        InputError
            Lists are wanted before the embeddings exist.
        """
        if lists_from_ms < self.embeddings_before_ms:
            raise InputError(
                f"lists from {lists_from_ms} would show embeddings learned until {self.embeddings_before_ms}:"
                " deliver later lists or learn the embeddings from less"
            )
        queue: list[tuple[int, int, int, int]] = []
        inside = self.visits.start_ms < end_ms
        if embargo:
            inside = self.visits.end_ms + RELEVANT_AFTER_MS < end_ms
        active = np.unique(self.visits.user[inside & (self.visits.start_ms >= lists_from_ms)])
        chosen = np.flatnonzero(inside & np.isin(self.visits.user, active))
        # (time, order within the visit, visit): events of a visit keep their order, ties between users are by visit.
        for visit in chosen.tolist():
            rows = self.visits.events_of(visit)
            queue += [(int(self.log.time_ms[row]), visit, place, int(row)) for place, row in enumerate(rows)]
        queue.sort()
        deliveries: dict[int, Delivery] = {}
        for time_ms, visit, place, row in queue:
            rows = self.visits.events_of(visit)
            if place == 0 and time_ms >= lists_from_ms:
                delivery = self._deliver(visit, time_ms)
                if len(delivery.candidates) > 1:
                    deliveries[visit] = delivery
                    yield delivery
                    if 0 in self.checkpoints:
                        yield self._checkpoint(delivery, rows, 0)
            yield self._tracked(visit, row)
            done = place + 1
            tied = done < len(rows) and self.log.time_ms[rows[done]] == time_ms
            if visit in deliveries and not tied and self._passes(rows, done):
                yield self._checkpoint(deliveries[visit], rows, done)

    def labelled(self, entries: Iterator[Entry]) -> Iterator[Event | LabelledRequest | Sequence[Item]]:
        """Turn entries into a stream to train on."""
        for entry in entries:
            if isinstance(entry, Tracked):
                yield (entry.item,)
                yield entry.event
            elif isinstance(entry, Checkpoint):
                yield LabelledRequest(entry.delivery.as_request(entry.time_ms), entry.relevance, ~entry.seen)

    def item(self, item: int, time_ms: int) -> Item:
        """An item as the app knows it at a moment: fields from the server's newest snapshot."""
        snapshot = self.server.snapshot_at(time_ms)
        return self._item(item, snapshot)

    def _passes(self, rows: NDArray[np.int64], done: int) -> bool:
        """Whether a checkpoint lies within the events that share the newest time."""
        times = self.log.time_ms[rows[:done]]
        before = int(np.searchsorted(times, times[-1], side="left"))
        return any(before < checkpoint <= done for checkpoint in self.checkpoints)

    def _deliver(self, visit: int, time_ms: int) -> Delivery:
        user = int(self.visits.user[visit])
        listed = self.server.list_for(user, time_ms)
        snapshot = self.server.snapshot_at(time_ms)
        return Delivery(
            visit=visit,
            user=self.log.user_ids[user],
            request=f"visit-{visit}",
            time_ms=time_ms,
            candidates=tuple(self._item(int(item), snapshot) for item in listed.candidates),
            scores=tuple(float(score) for score in listed.scores),
            popularity=snapshot.item_popularity[listed.candidates],
        )

    def _tracked(self, visit: int, row: int) -> Tracked:
        log = self.log
        rating = float(log.rating[row])
        kind = "like" if rating >= RELEVANT_RATING else "click" if rating >= 3 else "dislike"
        event = Event(
            user=log.user_ids[log.user[row]],
            item=log.item_ids[log.item[row]],
            kind=kind,
            value=rating,
            time_ms=int(log.time_ms[row]),
            request=f"visit-{visit}",
        )
        return Tracked(visit, event, self.item(int(log.item[row]), event.time_ms))

    def _checkpoint(self, delivery: Delivery, rows: NDArray[np.int64], done: int) -> Checkpoint:
        log = self.log
        user = int(log.user[rows[0]])
        mine = self._user_rows[self._user_start[user] : self._user_start[user + 1]]
        now_ms = int(log.time_ms[rows[done - 1]]) if done else delivery.time_ms
        until_ms = int(log.time_ms[rows[-1]]) + RELEVANT_AFTER_MS
        first_after = int(rows[done]) if done < len(rows) else -1
        later = mine[(mine >= first_after) if first_after >= 0 else (mine > rows[-1])]
        wanted = later[(log.time_ms[later] <= until_ms) & (log.rating[later] >= RELEVANT_RATING)]
        relevant = {log.item_ids[item] for item in log.item[wanted]}
        seen = {log.item_ids[item] for item in log.item[rows[:done]]}
        ids = [item.id for item in delivery.candidates]
        return Checkpoint(
            delivery=delivery,
            time_ms=now_ms,
            events_done=done,
            relevance=np.array([name in relevant for name in ids], dtype=np.float32),
            seen=np.array([name in seen for name in ids], dtype=np.bool_),
        )

    def _item(self, item: int, snapshot: Snapshot) -> Item:
        key = (item, snapshot.trained_ms)
        made = self._items.get(key)
        if made is None:
            year = int(self.log.years[item])
            mean = float(snapshot.item_mean_rating[item])
            numeric = {"popularity": float(np.log1p(snapshot.item_popularity[item]))}
            if year != UNKNOWN_YEAR:
                numeric["year"] = float(year)
            if np.isfinite(mean):
                numeric["mean_rating"] = mean
            made = self._items[key] = Item(
                id=self.log.item_ids[item],
                categorical={"decade": f"{year // 10 * 10}s" if year != UNKNOWN_YEAR else "unknown"},
                multi_categorical={"genres": self.log.genres[item]},
                numeric=numeric,
                embedding=self._embeddings[item],
            )
        return made
