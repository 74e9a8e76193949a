"""What was shown and what came of it: seen items of open lists, and training pairs from feedback on them.

A candidate that the user likes is preferred to others of the list that they did not choose: each such pair is an
example for per-user learning (RankNet's pairs; Burges et al., "Learning to Rank using Gradient Descent", ICML 2005).
The others are spread evenly over the list, over the part that was on screen where impressions are tracked. Taking only
those that stood above the liked one would teach the patch to turn the model's order around: measured in the MovieLens
replay, that loses 16 % of NDCG@10.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features import Event
from rerank_sdk.store import Example

POSITIVE_KINDS = frozenset({"click", "like", "purchase"})
"""Kinds that say: the user wants this."""

NEGATIVE_KINDS = frozenset({"dislike", "hide", "skip"})
"""Kinds that say: the user does not want this."""

_OPEN_LISTS = 4
_PAIRS_PER_EVENT = 8


@dataclass
class Decision:
    """One list as it was last ordered for a user.

    Attributes
    ----------
    request
        Its id.
    time_ms
        When it was ordered.
    ids
        Ids of the candidates in the server's order.
    shown_order
        (N,) int64: candidates from the top, as shown.
    head_input
        (N, H) float32: what the model's last layer read, by the server's order.
    scores
        (N,) float32: base scores, by the server's order.
    touched
        Ids of items with feedback so far.
    impressed
        Ids of items that are known to have been on screen.
    """

    request: str
    time_ms: int
    ids: list[str]
    shown_order: NDArray[np.int64]
    head_input: NDArray[np.float32]
    scores: NDArray[np.float32]
    touched: set[str] = field(default_factory=set)
    impressed: set[str] = field(default_factory=set)


class DecisionLog:
    """Open lists of many users. Not locked: the re-ranker holds its lock.

    Parameters
    ----------
    max_users
        So many users' lists are kept, the most recent ones.
    """

    def __init__(self, max_users: int = 10_000) -> None:
        self._max_users = max_users
        self._decisions: OrderedDict[str, OrderedDict[str, Decision]] = OrderedDict()
        self._seen: OrderedDict[str, OrderedDict[str, set[str]]] = OrderedDict()
        self._last_seen: tuple[str, str, set[str]] = ("", "", set())

    def record(
        self,
        user: str,
        request: str,
        time_ms: int,
        ids: list[str],
        order: NDArray[np.int64],
        head_input: NDArray[np.float32],
        scores: NDArray[np.float32],
    ) -> None:
        """Remember a list as it was ordered. A list that grows, shrinks or is sorted anew keeps its feedback."""
        lists = _most_recent(self._decisions, user, OrderedDict, self._max_users)
        before: Decision | None = lists.pop(request, None)
        lists[request] = now = Decision(request, time_ms, ids, order, head_input, scores)
        if before is not None:
            now.touched, now.impressed = before.touched, before.impressed
        while len(lists) > _OPEN_LISTS:
            lists.popitem(last=False)

    def observe(self, event: Event, base_model: str) -> list[Example]:
        """Take feedback in: the item counts as seen in its list, and pairs are learned from.

        Returns
        -------
        list of Example
            Features are the preferred item's head input minus the other's, then the difference of their base scores;
            the label is 1.
        """
        user, request = event.user, event.request
        if request is None:
            return []
        if request == self._last_seen[1] and user == self._last_seen[0]:
            self._last_seen[2].add(event.item)
        else:
            self.see(event)
        lists = self._decisions.get(user)
        if lists is None:
            return []
        decision = lists.get(request)
        if decision is None or event.item in decision.touched or event.item not in decision.ids:
            return []
        if event.kind == "impression":
            decision.impressed.add(event.item)
        if event.kind not in POSITIVE_KINDS and event.kind not in NEGATIVE_KINDS:
            return []
        decision.touched.add(event.item)
        ids = decision.ids
        place = ids.index(event.item)
        others = [int(p) for p in decision.shown_order if ids[p] not in decision.touched]
        if decision.impressed:
            others = [p for p in others if ids[p] in decision.impressed]
        chosen = _spread(others)
        wanted = event.kind in POSITIVE_KINDS
        pairs = [(place, other) if wanted else (other, place) for other in (chosen if wanted else chosen[:1])]
        return [
            Example(
                user=user,
                request=request,
                item=_pair_id(event, better, worse),
                time_ms=event.time_ms,
                label=1.0,
                features=np.append(
                    decision.head_input[better] - decision.head_input[worse],
                    decision.scores[better] - decision.scores[worse],
                ).astype(np.float32),
                base_model=base_model,
            )
            for better, worse in pairs
        ]

    def last_order(self, user: str, request: str | None, ids: list[str]) -> NDArray[np.int64] | None:
        """(N,) int64: how this very list was ordered last; None when it was not, or has changed since."""
        decision = self._decisions.get(user, OrderedDict()).get(request) if request is not None else None
        return decision.shown_order if decision is not None and decision.ids == ids else None

    def see(self, event: Event) -> None:
        """Let the item count as seen in its list; nothing is learned from it."""
        user, request = event.user, event.request
        if request is None:
            return
        last_user, last_request, items = self._last_seen
        if request != last_request or user != last_user:  # seldom: events of one list follow each other
            lists = _most_recent(self._seen, user, OrderedDict, self._max_users)
            items = _most_recent(lists, request, set, _OPEN_LISTS)
            self._last_seen = user, request, items
        items.add(event.item)

    def seen_items(self, user: str, request: str | None) -> set[str]:
        """Items of a list that the user has given any sign about."""
        if request is None:
            return set()
        return self._seen.get(user, OrderedDict()).get(request, set())

    def forget(self, user: str) -> None:
        """Drop everything of a user."""
        self._decisions.pop(user, None)
        self._seen.pop(user, None)
        self._last_seen = ("", "", set())


def _pair_id(event: Event, better: int, worse: int) -> str:
    """A short name of the pair within its request: an item id may itself be as long as an id can be."""
    return hashlib.blake2b(f"{event.item}\0{better}\0{worse}".encode(), digest_size=12).hexdigest()


def _spread(places: list[int]) -> list[int]:
    """At most a few places, evenly spread over the list."""
    if len(places) <= _PAIRS_PER_EVENT:
        return places
    chosen = np.linspace(0, len(places) - 1, _PAIRS_PER_EVENT).round().astype(int)
    return [places[index] for index in chosen]


def _most_recent(table: OrderedDict[str, Any], key: str, make: Callable[[], Any], limit: int) -> Any:
    """The entry of a key, made if missing, moved to the recent end; the oldest entries beyond the limit go."""
    if key in table:
        table.move_to_end(key)
    else:
        table[key] = make()
        while len(table) > limit:
            table.popitem(last=False)
    return table[key]
