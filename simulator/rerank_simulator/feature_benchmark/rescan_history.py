"""A user's whole history at one request, and the passes over it that columns are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.hashing import ITEM_FIELD, words_of
from rerank_features.parts import USER_KEY, Decay

_BUCKETS = 16
_BUCKETS_A_HALF_LIFE = 3


class History:
    """One request, with the user's events in order of time, everyone's events, and what is known of items."""

    def __init__(
        self,
        spec: FeatureSpec,
        history: list[Event],
        everyone: list[Event],
        items: dict[str, Item],
        request: Request,
    ) -> None:
        self.spec, self.history, self.everyone, self.items, self.request = spec, history, everyone, items, request
        self.candidates = [items[item.id] for item in request.candidates]
        self.now_ms = max(request.time_ms, history[-1].time_ms) if history else request.time_ms
        self.session_ms = self._session_start()

    def _session_start(self) -> int:
        start = self.now_ms + 1
        newer = self.now_ms
        for event in reversed(self.history):
            if newer - event.time_ms > self.spec.session_gap_s * 1000:
                break
            start = newer = event.time_ms
        return start

    def embeddings(self, items: Sequence[Item | None]) -> NDArray[np.float32]:
        """(N, E), zeros for an item without one."""
        nothing = (0.0,) * self.spec.items.embedding_dim
        rows = [nothing if item is None or item.embedding is None else item.embedding for item in items]
        return np.array(rows, np.float32).reshape(len(rows), len(nothing))

    def entries(self, name: str) -> list[Event]:
        """A sequence, newest first."""
        sequence = next(one for one in self.spec.sequences if one.name == name)
        found = []
        for event in reversed(self.history):
            if event.kind in sequence.kinds:
                found.append(event)
                if len(found) == sequence.length:
                    break
        return found

    def words(self, field: str, item_id: str) -> list[str]:
        """Values of an item's field."""
        if field == ITEM_FIELD:
            return [item_id]
        item, fields = self.items.get(item_id), self.spec.items
        if item is None:
            return []
        if field in fields.multi_categorical:
            return list(dict.fromkeys(item.multi_categorical.get(field, ())))[: fields.multi_categorical[field]]
        if field in fields.text:
            return words_of(item.categorical.get(field, ""))[: fields.text[field]]
        return [item.categorical[field]] if field in item.categorical else []

    def _weight(self, window: Any, now_ms: int) -> Callable[[int], float]:
        """What an event at a time counts."""
        if window == "ever":
            return lambda _: 1.0
        if window == "session":
            return lambda time_ms: float(time_ms >= self.session_ms)
        if isinstance(window, Decay):
            width = math.ceil(window.half_life_s * 1000 / _BUCKETS_A_HALF_LIFE)

            def fading(time_ms: int) -> float:
                place = time_ms // width
                age = max(now_ms / width - place - 0.5, 0.0)
                return 2.0 ** (-age / _BUCKETS_A_HALF_LIFE) if place > now_ms // width - _BUCKETS else 0.0

            return fading
        width = math.ceil(window * 1000 / (_BUCKETS - 1))
        first = now_ms // width - _BUCKETS + 1
        return lambda time_ms: float(time_ms // width >= first)

    def tally(self, feature: Any, kinds: Collection[str], window: Any) -> dict[str, tuple[float, float, int]]:
        """One pass over the history: weighted number of events, sum of values and newest time, by value of the key."""
        events, now_ms = self.history, self.now_ms
        if feature.scope == "everyone":
            events = self.everyone
            now_ms = max([now_ms, *(event.time_ms for event in events)])
        weigh = self._weight(window, now_ms)
        least, most = feature.bounds
        found: dict[str, tuple[float, float, int]] = {}
        for event in events:
            value = event.value or 0.0
            if event.kind not in kinds or not least <= value <= most:
                continue
            weight = weigh(event.time_ms)
            for word in ("",) if feature.key == USER_KEY else self.words(feature.key, event.item):
                ones, total, newest = found.get(word, (0.0, 0.0, -1))
                found[word] = ones + weight, total + weight * value, max(newest, event.time_ms)
        return found


def signed_log(value: float) -> float:
    """sign(v) log(1 + abs(v))."""
    return math.copysign(math.log1p(abs(value)), value)
