"""A value's derivation: which events it is made of, held against leaving them out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import InputError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.explain import NEWEST_EVENTS, explain_value
from rerank_features.spec import Count, ServerRank
from tests.features.test_feature_history import random_spec
from tests.features.test_feature_reference import make_items

ITEMS = make_items(6, 3)


def value_of(spec: FeatureSpec, events: list[Event], request: Request, column: str, item: str) -> float:
    """By the whole spec, event by event."""
    pipeline = FeaturePipeline(spec)
    pipeline.remember(ITEMS)
    for event in events:
        pipeline.update(event)
    row = [candidate.id for candidate in request.candidates].index(item)
    return float(pipeline.emit(request).arrays["dense"][row, pipeline.dense_columns.index(column)])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_feature_is_explained_by_what_leaving_events_out_does(seed: int) -> None:
    rng = random.Random(seed)
    spec = random_spec(rng)
    events = [
        Event(
            user=rng.choice("uuv"),
            item=f"i{rng.randrange(8)}",
            kind=rng.choice(["view", "click", "hide", "other"]),
            time_ms=10**12 + place * 20_000,
            value=rng.choice([None, 0.5]),
            position=rng.choice([None, 2]),
        )
        for place in range(12)
    ]
    request = Request(user="u", time_ms=10**12 + 300_000, candidates=ITEMS[:4], context={"query": "red shoe"})
    item = rng.choice(ITEMS[:4]).id
    for feature in rng.sample(spec.dense, 6):
        found = explain_value(spec, items=ITEMS, events=events, request=request, column=feature.name, item=item)
        assert found.value == value_of(spec, events, request, feature.name, item)
        changed = {}
        for place in range(len(events)):
            without = value_of(spec, events[:place] + events[place + 1 :], request, feature.name, item)
            if without != found.value:
                changed[events[place].time_ms] = without
        assert {effect.event.time_ms: effect.without for effect in found.effects} == changed
        assert f'name = "{feature.name}"' in found.definition


def clicks(transform: str = "none") -> FeatureSpec:
    return FeatureSpec(
        name="clicks",
        dense=[
            Count(name="clicks", key="item", kinds=["click"], window=3600, transform=transform),  # type: ignore[arg-type]
            ServerRank(name="rank"),
        ],
    )


def test_the_raw_value_is_the_one_before_the_transform() -> None:
    events = [Event(user="u", item="a", kind="click", time_ms=place) for place in range(3)]
    request = Request(user="u", time_ms=9, candidates=[Item(id="a"), Item(id="b")])
    found = explain_value(clicks("log1p"), items=[], events=events, request=request, column="clicks", item="a")
    assert found.raw == 3.0
    assert found.value == pytest.approx(1.386294, abs=1e-6)
    assert [effect.without for effect in found.effects] == pytest.approx([1.098612] * 3, abs=1e-6)


def test_a_value_that_no_event_makes() -> None:
    request = Request(user="new", time_ms=9, candidates=[Item(id="a"), Item(id="b")])
    found = explain_value(clicks(), items=[], events=[], request=request, column="rank", item="b")
    assert (found.value, found.effects, found.counted, found.older) == (1.0, (), 0, 0)


def test_older_events_count_but_are_not_left_out_one_by_one() -> None:
    events = [Event(user="u", item="a", kind="click", time_ms=place) for place in range(NEWEST_EVENTS + 5)]
    request = Request(user="u", time_ms=10_000, candidates=[Item(id="a")])
    found = explain_value(clicks(), items=[], events=events, request=request, column="clicks", item="a")
    assert found.value == NEWEST_EVENTS + 5
    assert (found.counted, found.older, len(found.effects)) == (NEWEST_EVENTS, 5, NEWEST_EVENTS)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    request = Request(user="u", time_ms=9, candidates=[Item(id="a")])
    with pytest.raises(InputError, match="did you mean 'clicks'"):
        explain_value(clicks(), items=[], events=[], request=request, column="click", item="a")
    with pytest.raises(InputError, match="no candidate 'z'"):
        explain_value(clicks(), items=[], events=[], request=request, column="clicks", item="z")
