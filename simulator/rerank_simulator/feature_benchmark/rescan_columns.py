"""Every kind of column, each from passes of its own over the history."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import SpecError
from rerank_features import Event
from rerank_features.hashing import ITEM_FIELD, words_of
from rerank_features.parts import USER_KEY
from rerank_simulator.feature_benchmark.rescan_history import History, signed_log

_DAY_S = 86_400

Column = list[float]


class Columns(History):
    """The columns of ``dense``; a method for each kind of feature."""

    def column(self, feature: Any) -> Column:
        """A number for each candidate, transformed.

        Raises
        ------
        SpecError
            The feature is of a kind that this class does not know.
        """
        method = getattr(self, f"_{feature.kind}", None)
        if method is None:
            raise SpecError(f"feature {feature.name!r}: the rescan knows no kind {feature.kind!r}; leave it out")
        return _transformed(feature, method(feature))

    def _server_score(self, _: Any) -> Column:
        return list(self.request.scores or [0.0] * len(self.candidates))

    def _server_rank(self, _: Any) -> Column:
        return [float(place) for place in range(len(self.candidates))]

    def _item_numeric(self, feature: Any) -> Column:
        return [item.numeric.get(feature.field, feature.default) for item in self.candidates]

    def _context_numeric(self, feature: Any) -> Column:
        return [float(self.request.context.get(feature.field, feature.default))] * len(self.candidates)

    def _list_size(self, _: Any) -> Column:
        return [float(len(self.candidates))] * len(self.candidates)

    def _list_share(self, feature: Any) -> Column:
        listed = [set(self.words(feature.field, item.id)) for item in self.candidates]
        others = len(listed) - 1
        shares = [sum(bool(own & other) for other in listed) - bool(own) for own in listed]
        return [share / others if others else 0.0 for share in shares]

    def _item_age(self, feature: Any) -> Column:
        times = [item.numeric.get(feature.field) for item in self.candidates]
        now_s, cap_s = self.now_ms / 1000, feature.cap_s
        return [cap_s if time_s is None else min(max(now_s - time_s, 0.0), cap_s) for time_s in times]

    def _local_time(self, feature: Any) -> Column:
        offset_min = 0.0 if feature.offset is None else float(self.request.context.get(feature.offset, 0))
        local_s = self.now_ms / 1000 + offset_min * 60
        hour, weekday = local_s % _DAY_S / 3600, (local_s / _DAY_S + 3) % 7
        if feature.part in ("hour", "weekday"):
            value = hour if feature.part == "hour" else weekday
        else:
            angle = 2 * math.pi * (hour / 24 if feature.part.startswith("hour") else weekday / 7)
            value = math.sin(angle) if feature.part.endswith("sin") else math.cos(angle)
        return [value] * len(self.candidates)

    def _context_match(self, feature: Any) -> Column:
        value = self.request.context.get(feature.context)
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        width = self.spec.context.text.get(feature.context)
        asked = set(words_of(text)[:width] if width else [text] if text else [])
        own = [set(self.words(feature.field, item.id)) for item in self.candidates]
        return [len(asked & words) / len(asked | words) if asked | words else 0.0 for words in own]

    def _keyed(self, feature: Any, default: str, unseen: float, value: Callable[[str], float]) -> Column:
        """One value for each candidate, its own values of the key reduced."""
        reduce, column = getattr(feature, "reduce", None) or default, []
        for item in self.candidates:
            words = [""] if feature.key == USER_KEY else self.words(feature.key, item.id)
            values = [value(word) for word in words]
            if not values:
                column.append(unseen)
            elif reduce == "mean":
                column.append(sum(values) / len(values))
            else:
                reducers: dict[str, Callable[[Column], float]] = {"sum": sum, "max": max, "min": min}
                column.append(reducers[reduce](values))
        return column

    def _count(self, feature: Any) -> Column:
        tally, place = self.tally(feature, feature.kinds, feature.window), int(feature.weight == "value")
        return self._keyed(feature, "sum", 0.0, lambda word: tally[word][place] if word in tally else 0.0)

    def _rate(self, feature: Any) -> Column:
        above = self.tally(feature, feature.kinds, feature.window)
        below = self.tally(feature, feature.of, feature.window)

        def value(word: str) -> float:
            return _smoothed(above.get(word, (0.0,))[0], below.get(word, (0.0,))[0], feature.prior, feature.prior_rate)

        return self._keyed(feature, "mean", feature.prior_rate, value)

    def _mean_value(self, feature: Any) -> Column:
        tally = self.tally(feature, feature.kinds, feature.window)

        def value(word: str) -> float:
            ones, total, _ = tally.get(word, (0.0, 0.0, 0))
            return _smoothed(total, ones, feature.prior, feature.prior_value)

        return self._keyed(feature, "mean", feature.prior_value, value)

    def _time_since(self, feature: Any) -> Column:
        tally, cap_s = self.tally(feature, feature.kinds, "ever"), feature.cap_s
        now_ms = self.now_ms
        if feature.scope == "everyone":
            now_ms = max([now_ms, *(event.time_ms for event in self.everyone)])

        def value(word: str) -> float:
            return min((now_ms - tally[word][2]) / 1000, cap_s) if word in tally else cap_s

        return self._keyed(feature, "min", cap_s, value)

    def _similarity(self, feature: Any) -> Column:
        pairs = [(self.items.get(event.item), event) for event in self.entries(feature.sequence)]
        known = [(item, event) for item, event in pairs if item is not None and item.embedding is not None]
        if not known or not self.candidates:
            return [0.0] * len(self.candidates)
        if feature.reduce == "last":
            known = known[:1]
        own = self.embeddings(self.candidates).astype(np.float64)
        other = self.embeddings([item for item, _ in known]).astype(np.float64)
        if feature.metric == "cosine":
            own, other = _unit(own), _unit(other)
        weights = np.array([event.value or 0.0 if feature.weighted else 1.0 for _, event in known])
        products = own @ other.T * weights
        if feature.reduce == "mean":
            total = np.abs(weights).sum()
            column = products.sum(1) / total if total else np.zeros(len(own))
        else:
            column = products.max(1)
        listed: Column = [
            value if item.embedding is not None else 0.0
            for value, item in zip(column.tolist(), self.candidates, strict=True)
        ]
        return listed

    # --- columns over sequences

    def _chosen(self, feature: Any, more: Sequence[str] = ()) -> list[Event]:
        since_ms: float = -1
        if feature.window == "session":
            since_ms = self.session_ms
        elif feature.window != "ever":
            since_ms = self.now_ms - feature.window * 1000
        kinds = None if feature.kinds is None else (*feature.kinds, *more)
        listed = self.entries(feature.sequence)
        return [e for e in listed if e.time_ms >= since_ms and (kinds is None or e.kind in kinds)]

    def _history_count(self, feature: Any) -> Column:
        return [float(len(self._chosen(feature)))] * len(self.candidates)

    def _history_distinct(self, feature: Any) -> Column:
        found = {word for event in self._chosen(feature) for word in self.words(feature.field, event.item)}
        return [float(len(found))] * len(self.candidates)

    def _history_streak(self, feature: Any) -> Column:
        chosen, column = self._chosen(feature, feature.until), []
        field = feature.field
        words = [set(self.words(field, event.item)) for event in chosen] if field is not None else []
        for item in self.candidates:
            own, streak = set(self.words(field, item.id)) if field is not None else set(), 0
            for place, event in enumerate(chosen):
                if field is not None and own.isdisjoint(words[place]):
                    continue
                if event.kind in feature.until:
                    break
                streak += 1
            column.append(float(streak))
        return column

    def _history_match(self, feature: Any) -> Column:
        chosen, column = self._chosen(feature), []
        known = [event for event in chosen if feature.field == ITEM_FIELD or event.item in self.items]
        words = [set(self.words(feature.field, event.item)) for event in chosen]
        for item in self.candidates:
            own = set(self.words(feature.field, item.id))
            places = [place for place, other in enumerate(words) if not own.isdisjoint(other)]
            values = [chosen[place].value or 0.0 for place in places]
            if feature.reduce == "since_s":
                age_s = (self.now_ms - chosen[places[0]].time_ms) / 1000 if places else feature.cap
                column.append(min(age_s, feature.cap))
            elif feature.reduce == "place":
                column.append(min(float(places[0]), feature.cap) if places else feature.cap)
            elif feature.reduce == "share":
                column.append(len(places) / len(known) if known else 0.0)
            elif feature.reduce == "count":
                column.append(float(len(places)))
            else:
                mean = feature.reduce == "value_mean" and values
                column.append(sum(values) / len(values) if mean else sum(values))
        return column

    def _history_number(self, feature: Any) -> Column:
        numbers = [one for one in map(self._number_of(feature), self._chosen(feature)) if one is not None]
        if not numbers:
            return [feature.default] * len(self.candidates)
        reducers: dict[str, Callable[[Column], float]] = {
            "mean": statistics.fmean,
            "min": min,
            "max": max,
            "sum": math.fsum,
            "last": lambda listed: listed[0],
        }
        reduced = reducers[feature.reduce](numbers)
        if feature.against == "none":
            return [reduced] * len(self.candidates)
        column = []
        for place, item in enumerate(self.candidates):
            own = float(place) if feature.number == "position" else item.numeric.get(feature.number)
            if own is None or (feature.against == "ratio" and reduced == 0):
                column.append(feature.default)
            else:
                column.append(own - reduced if feature.against == "difference" else own / reduced)
        return column

    def _number_of(self, feature: Any) -> Callable[[Event], float | None]:
        """A number of an entry, None where it has none."""
        entries = self.entries(feature.sequence)

        def number(event: Event) -> float | None:
            if feature.number == "value":
                return event.value or 0.0
            if feature.number == "age_s":
                return (self.now_ms - event.time_ms) / 1000
            if feature.number == "position":
                return event.position
            if feature.number == "gap_s":
                place = next(i for i, one in enumerate(entries) if one is event)
                return (event.time_ms - entries[place + 1].time_ms) / 1000 if place + 1 < len(entries) else None
            item = self.items.get(event.item)
            return None if item is None else item.numeric.get(feature.number)

        return number


def _smoothed(above: float, below: float, prior: float, prior_value: float) -> float:
    return (above + prior * prior_value) / (below + prior) if below + prior > 0 else prior_value


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def _transformed(feature: Any, x: Column) -> Column:
    """What each transform means is said in the spec."""
    kind = feature.transform
    if kind == "none" or not x:
        return x
    if kind == "log1p":
        return [signed_log(v) for v in x]
    if kind == "reciprocal":
        return [1 / (1 + abs(v)) for v in x]
    if kind == "affine":
        return [(v - (feature.mean or 0.0)) / (1.0 if feature.scale is None else feature.scale) for v in x]
    if kind == "minus_previous":
        return [v - x[i - 1] if i else 0.0 for i, v in enumerate(x)]
    if kind == "minus_mean":
        mean = statistics.fmean(x)
        return [v - mean for v in x]
    if kind == "minus_median":
        median = statistics.median(x)
        return [v - median for v in x]
    if kind == "minmax":
        least, most = min(x), max(x)
        return [(v - least) / (most - least) if most > least else 0.0 for v in x]
    if kind == "list_rank":
        ordered, others = sorted(x), len(x) - 1
        below, upto = [bisect_left(ordered, v) for v in x], [bisect_right(ordered, v) for v in x]
        above = [len(x) - more + 0.5 * (more - less - 1) for less, more in zip(below, upto, strict=True)]
        return [a / others if others else 0.0 for a in above]
    mean, deviation = statistics.fmean(x), statistics.pstdev(x)
    largest = max(abs(v) for v in x)
    return [(v - mean) / deviation if deviation > 1e-9 * largest else 0.0 for v in x]
