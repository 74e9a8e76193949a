"""Policies under test: each sees deliveries and events as they happen and orders a list when asked."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import RerankError
from rerank_sdk import Ranking, Reranker
from rerank_simulator.timeline import Checkpoint, Delivery, Tracked


class Policy(Protocol):
    """Orders lists in a replay."""

    def deliver(self, delivery: Delivery) -> None:
        """A list arrived."""

    def track(self, tracked: Tracked) -> None:
        """Something happened."""

    def order(self, checkpoint: Checkpoint) -> NDArray[np.int64]:
        """(N,) int64: the candidate at each place, seen ones included."""


class ServerOrder:
    """The list as it came."""

    def deliver(self, delivery: Delivery) -> None:
        """Nothing to do."""

    def track(self, tracked: Tracked) -> None:
        """Nothing to do."""

    def order(self, checkpoint: Checkpoint) -> NDArray[np.int64]:
        """The server's order."""
        return np.arange(len(checkpoint.seen))


class Popularity(ServerOrder):
    """By the number of ratings so far; ties in the server's order."""

    def order(self, checkpoint: Checkpoint) -> NDArray[np.int64]:
        """By falling popularity."""
        return np.argsort(-checkpoint.delivery.popularity, kind="stable")


class OnDevice:
    """The production :class:`~rerank_sdk.Reranker`, fed event by event.

    Parameters
    ----------
    reranker
        Opened with ``strict=True`` and no deadline, so that a fault is an error and not the server's order.
    recent_events
        False keeps the events of a visit back until the user's next visit: the model without the user's recent
        events.
    personalise
        Learn the user's patch when a list arrives and before each reordering.

    Attributes
    ----------
    last
        The newest ranking.
    """

    def __init__(self, reranker: Reranker, *, recent_events: bool = True, personalise: bool = False) -> None:
        self._reranker = reranker
        self._recent_events = recent_events
        self._personalise = personalise
        self._held: dict[str, list[Tracked]] = {}
        self.last: Ranking | None = None

    def deliver(self, delivery: Delivery) -> None:
        """Take in what was kept back of earlier visits; learn from them, where asked to."""
        self._release(delivery.user, delivery.visit)
        if self._personalise:
            self._reranker.personalise(delivery.user)

    def track(self, tracked: Tracked) -> None:
        """Track now, or keep back until the next visit."""
        if self._recent_events:
            self._take(tracked)
            return
        user = tracked.event.user
        self._release(user, tracked.visit)
        self._held.setdefault(user, []).append(tracked)

    def order(self, checkpoint: Checkpoint) -> NDArray[np.int64]:
        """The re-ranker's order."""
        if self._personalise:
            self._reranker.personalise(checkpoint.delivery.user)
        self.last = self._reranker.rerank(checkpoint.delivery.as_request(checkpoint.time_ms))
        if self.last.fallback is not None:
            raise RerankError(f"the re-ranker fell back in a replay: {self.last.fallback}")
        return self.last.order

    def _release(self, user: str, visit: int) -> None:
        """Take in what was kept back of visits before this one."""
        held = self._held.get(user)
        if held and held[0].visit != visit:
            for tracked in self._held.pop(user):
                self._take(tracked)

    def _take(self, tracked: Tracked) -> None:
        self._reranker.remember((tracked.item,))
        self._reranker.track(tracked.event)
