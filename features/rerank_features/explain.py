"""Where a value comes from: what it would be, had an event not happened.

One feature's value is computed by the same machine code that serves, again for every event left out. So the answer is
right for every kind of feature, by construction, and shows events that count together with what each of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rerank_engine.errors import InputError
from rerank_features import compiler as code
from rerank_features.dense import DenseFeature, OfHistory, Similarity
from rerank_features.events import Event, Item, Request
from rerank_features.packing import pack_events, replay_records
from rerank_features.pipeline import FeaturePipeline
from rerank_features.spec import FeatureSpec
from rerank_features.state import as_items
from rerank_features.toml_text import toml_text

NEWEST_EVENTS = 2_000
"""So many events are looked at one by one, the newest that can matter."""


@dataclass(frozen=True)
class EventEffect:
    """One event, and what it does to a value.

    Attributes
    ----------
    event
        What happened.
    without
        The value that there would be without it.
    """

    event: Event
    without: float


@dataclass(frozen=True)
class ValueExplanation:
    """A value of the array ``dense`` and where it comes from.

    Attributes
    ----------
    column, item
        Which value: its feature, and the candidate.
    definition
        The feature's entry in the spec, as TOML.
    value
        What the model gets.
    raw
        Before the feature's transform.
    effects
        The events whose absence would change the value, in order of time.
    counted
        How many events of the kinds that the feature reads were looked at, and in ``older`` how many were not.
    older
        Events before the newest 2,000: they are in the value, but were not left out one by one.

    Examples
    --------
    >>> ValueExplanation("clicks", "a", 'kind = "count"', 1.0, 1.0, (), 0, 0).value
    1.0
    """

    column: str
    item: str
    definition: str
    value: float
    raw: float
    effects: tuple[EventEffect, ...]
    counted: int
    older: int


def explain_value(
    spec: FeatureSpec, *, items: Iterable[Item], events: Iterable[Event], request: Request, column: str, item: str
) -> ValueExplanation:
    """Find out which events a value is made of.

    Parameters
    ----------
    spec
        Where the feature is defined.
    items
        Items that events name, with their fields.
    events
        The events so far, of the request's user and of others, in any order.
    request
        The list that the candidate is in.
    column
        Name of the feature.
    item
        Id of the candidate.

    Raises
    ------
    InputError
        The spec has no such feature, or the list no such candidate.

    Examples
    --------
    >>> spec = FeatureSpec.from_toml('''
    ... name = "feed"
    ... [[dense]]
    ... kind = "count"
    ... name = "clicks"
    ... key = "item"
    ... kinds = ["click"]
    ... window = 3600
    ... ''')
    >>> events = [Event(user="u", item=name, kind="click", time_ms=1_000) for name in ("a", "b", "a")]
    >>> request = Request(user="u", time_ms=2_000, candidates=[Item(id="a")])
    >>> found = explain_value(spec, items=[], events=events, request=request, column="clicks", item="a")
    >>> found.value, [(effect.event.item, effect.without) for effect in found.effects]
    (2.0, [('a', 1.0), ('a', 1.0)])
    """
    feature = _feature(spec, column)
    names = [candidate.id for candidate in request.candidates]
    if item not in names:
        raise InputError(f"the list has no candidate {item!r}; it has {', '.join(map(repr, names[:5]))} and so on")
    place = names.index(item)
    small = _only(spec, feature)
    alone = _AllButOne(small, items := as_items(items), request, place)
    ordered = sorted(events, key=lambda event: event.time_ms)
    relevant = [event for event in ordered if alone.reads(event)]
    if getattr(feature, "scope", "user") == "user":
        relevant = [event for event in relevant if event.user == request.user]
    alone.take(relevant)
    value = alone.value()
    older = max(len(relevant) - NEWEST_EVENTS, 0)
    effects = []
    for number in range(older, len(relevant)):
        without = alone.value(number)
        if without != value:
            effects.append(EventEffect(relevant[number], without))
    untransformed = feature.model_copy(update={"transform": "none", "mean": None, "scale": None})
    plain = _AllButOne(_only(spec, untransformed), items, request, place)
    plain.take(relevant)
    return ValueExplanation(
        column=column,
        item=item,
        definition=toml_text(feature.model_dump(exclude_defaults=True)),
        value=value,
        raw=plain.value(),
        effects=tuple(effects),
        counted=len(relevant) - older,
        older=older,
    )


class _AllButOne:
    """One value, computed from all events or from all but one."""

    def __init__(self, spec: FeatureSpec, items: tuple[Item, ...], request: Request, place: int) -> None:
        self._pipeline = FeaturePipeline(spec)
        self._pipeline.remember(items)
        self._request, self._place = request, place
        self._state = self._pipeline._state

    def reads(self, event: Event) -> bool:
        """Whether events of its kind change anything."""
        return self._state.program.kind_number(event.kind) >= 0

    def take(self, events: Sequence[Event]) -> None:
        """The events to compute from, all of kinds that are read."""
        self._row = row = self._state.user_row(self._request.user)
        mine = bytearray()
        for event in events:
            scope = code.FOR_ALL if event.user == self._request.user else code.FOR_EVERYONE
            mine += pack_events(self._state, (event,), row, scope)
        self._records, self._count = mine, len(events)

    def value(self, left_out: int | None = None) -> float:
        """The value, without one of the events."""
        state = self._state
        for row in (code.EVERYONE, self._row):
            state.code.forget_user(state.address, row)
        left_out = self._count if left_out is None else left_out
        replay_records(state, self._records, 0, left_out)
        replay_records(state, self._records, left_out + 1, self._count)
        return float(self._pipeline.emit(self._request).arrays["dense"][self._place, 0])


def _feature(spec: FeatureSpec, column: str) -> DenseFeature:
    for feature in spec.dense:
        if feature.name == column:
            return feature
    names = [feature.name for feature in spec.dense]
    near = get_close_matches(column, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names[:8])}"
    raise InputError(f"the spec {spec.name!r} has no dense feature {column!r}{hint}")


def _only(spec: FeatureSpec, feature: DenseFeature) -> FeatureSpec:
    """The spec with this feature alone, and the sequence that it reads."""
    needed = {feature.sequence} if isinstance(feature, OfHistory | Similarity) else set()
    sequences = [one.model_copy(update={"emit": False, "actions": ()}) for one in spec.sequences if one.name in needed]
    return spec.model_copy(update={"dense": (feature,), "ids": (), "embedding": False, "sequences": tuple(sequences)})
