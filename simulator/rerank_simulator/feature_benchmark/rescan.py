"""Features as a team writes them first: keep the events in lists, and go through the user's history at each request.

Nothing is kept between requests but events and items, and nothing is shared between columns; a column makes one pass
over the history and groups it by key, so that candidates cost a look-up each. Products of embeddings are NumPy's. It is
what :class:`~rerank_features.FeaturePipeline` is compared with, in speed and in every value: ids and masks agree
exactly, numbers within :data:`TOLERANCE` (this one adds in another order). Entries at equal times keep the order of
arrival here; and an item's fields are looked up at the request, where the pipeline takes them as they were when the
event came.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.hashing import bucket
from rerank_features.parts import KIND_FIELD
from rerank_features.spec import IdFeature, SequenceAction, SequenceFeature
from rerank_simulator.feature_benchmark.rescan_columns import Columns
from rerank_simulator.feature_benchmark.rescan_history import signed_log

TOLERANCE = 2e-5
"""How far a number may differ from the pipeline's, relative to it, or absolutely below 1."""


class Rescan:
    """Events and items in lists, and every feature computed from them at each request.

    Parameters
    ----------
    spec
        What to compute.

    Examples
    --------
    >>> from rerank_features.spec import Count
    >>> clicks = Count(name="clicks", key="item", kinds=["click"], window="ever")
    >>> rescan = Rescan(FeatureSpec(name="feed", dense=[clicks]))
    >>> rescan.update(Event(user="u", item="b", kind="click", time_ms=1))
    >>> request = Request(user="u", time_ms=2, candidates=[Item(id="a"), Item(id="b")])
    >>> rescan.emit(request)["dense"].tolist()
    [[0.0], [1.0]]
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._histories: dict[str, list[Event]] = defaultdict(list)
        self._everyone: list[Event] = []
        self._items: dict[str, Item] = {}

    def remember(self, items: Iterable[Item]) -> None:
        """Keep items by id; the last of one id counts."""
        self._items.update((item.id, item) for item in items)

    def update(self, event: Event) -> None:
        """Keep an event."""
        self._histories[event.user].append(event)
        self._everyone.append(event)

    def emit(self, request: Request) -> dict[str, NDArray[Any]]:
        """Every array of a request, by name, as the pipeline's.

        Raises
        ------
        SpecError
            A column is of a kind that this class does not know.
        """
        self.remember(item for item in request.candidates if not item.is_bare or item.id not in self._items)
        history = sorted(self._histories.get(request.user, ()), key=lambda event: event.time_ms)
        return _OneRequest(self._spec, history, self._everyone, self._items, request).arrays()


class _OneRequest(Columns):
    """The arrays of one request."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name."""
        count = len(self.candidates)
        arrays: dict[str, NDArray[Any]] = {}
        if self.spec.dense:
            dense = np.empty((count, len(self.spec.dense)), np.float32)
            for place, feature in enumerate(self.spec.dense):
                dense[:, place] = self.column(feature)
            arrays["dense"] = dense
        if self.spec.ids:
            widths = [self._width(column) for column in self.spec.ids]
            ids = np.zeros((count, sum(widths)), np.int32)
            for n, item in enumerate(self.candidates):
                at = 0
                for column, width in zip(self.spec.ids, widths, strict=True):
                    rows = self._ids(column, item)[:width]
                    ids[n, at : at + len(rows)] = rows
                    at += width
            arrays["ids"] = ids
        if self.spec.embedding:
            arrays["embedding"] = self.embeddings(self.candidates)
        for sequence in self.spec.sequences:
            if sequence.emit:
                arrays.update(self._sequence_arrays(sequence))
        return arrays

    def _width(self, feature: IdFeature) -> int:
        several = {**self.spec.items.multi_categorical, **self.spec.items.text}
        return feature.width or several.get(feature.field, 1)

    def _ids(self, feature: IdFeature, item: Item) -> list[int]:
        if feature.field in self.spec.context.categorical:
            value = self.request.context.get(feature.field)
            words = [] if value is None else [value if isinstance(value, str) else json.dumps(value)]
        else:
            words = self.words(feature.field, item.id)
        if feature.buckets is not None:
            return [bucket(feature.field, word, feature.buckets) for word in words]
        known = {word: row for row, word in enumerate(feature.vocabulary or (), 2)}
        return [known.get(word, 1) for word in words]

    def _sequence_arrays(self, sequence: SequenceFeature) -> dict[str, NDArray[Any]]:
        entries, length = self.entries(sequence.name), sequence.length
        arrays: dict[str, NDArray[Any]] = {}
        if sequence.ids:
            ids = np.zeros((length, len(sequence.ids)), np.int32)
            for t, event in enumerate(entries):
                for column, part in enumerate(sequence.ids):
                    if part.field == KIND_FIELD:
                        ids[t, column] = 1 + sequence.kinds.index(event.kind)
                    elif words := self.words(part.field, event.item):
                        ids[t, column] = bucket(part.field, words[0], part.buckets)
            arrays[f"{sequence.name}_ids"] = ids
        if sequence.embedding:
            embedding = np.zeros((length, self.spec.items.embedding_dim), np.float32)
            if entries:
                embedding[: len(entries)] = self.embeddings([self.items.get(event.item) for event in entries])
            arrays[f"{sequence.name}_embedding"] = embedding
        if sequence.dense:
            dense = np.zeros((length, sequence.dense_width), np.float32)
            answers = [self.entries(action.sequence) for action in sequence.actions]
            for t, event in enumerate(entries):
                older = entries[t + 1] if t + 1 < len(entries) else None
                numbers = [self._entry_number(name, event, older) for name in sequence.columns]
                newer = [one.time_ms for one in entries[:t] if one.item == event.item]
                end_ms = min(newer, default=math.inf)
                dense[t] = numbers + [
                    self._action(action, answer, event, end_ms)
                    for action, answer in zip(sequence.actions, answers, strict=True)
                ]
            arrays[f"{sequence.name}_dense"] = dense
        arrays[f"{sequence.name}_mask"] = (np.arange(length) < len(entries)).astype(np.float32)
        return arrays

    def _entry_number(self, name: str, event: Event, older: Event | None) -> float:
        value = event.value or 0.0
        if name == "value":
            return value
        if name == "log_value":
            return signed_log(value)
        if name == "log_age_s":
            return math.log1p((self.now_ms - event.time_ms) / 1000)
        if name == "log_gap_s":
            return 0.0 if older is None else math.log1p((event.time_ms - older.time_ms) / 1000)
        return 0.0 if event.position is None else math.log(2 + event.position)

    def _action(self, action: SequenceAction, answers: list[Event], entry: Event, end_ms: float) -> float:
        after = [
            event
            for event in answers
            if event.item == entry.item
            and entry.time_ms <= event.time_ms < end_ms
            and event.time_ms - entry.time_ms <= action.within_s * 1000
            and (action.kinds is None or event.kind in action.kinds)
        ]
        if action.reduce == "count":
            return len(after)
        if action.reduce == "value_sum":
            return sum(event.value or 0.0 for event in after)
        return math.log1p((after[-1].time_ms - entry.time_ms) / 1000) if after else 0.0
