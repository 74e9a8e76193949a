"""The naive rescan that features are measured against gives the pipeline's values, on every ready spec."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import SpecError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.ready import READY_SPECS, ready_spec
from rerank_features.spec_check import used_kinds
from rerank_simulator.feature_benchmark.rescan import TOLERANCE, Rescan
from rerank_simulator.feature_benchmark.stream import ShopStream, generate_items

SPECS = {name: ready_spec(name) for name in READY_SPECS}


def assert_same(spec: FeatureSpec, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(given) == list(expected)
    for name, array in given.items():
        wanted = expected[name]
        assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype), name
        if array.dtype == np.int32 or name.endswith("_mask"):
            np.testing.assert_array_equal(array, wanted, err_msg=name)
        elif name != "dense":
            np.testing.assert_allclose(array, wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    for column, feature in enumerate(spec.dense):
        np.testing.assert_allclose(
            given["dense"][:, column], expected["dense"][:, column], TOLERANCE, TOLERANCE, err_msg=repr(feature)
        )


def random_item(spec: FeatureSpec, rng: random.Random, number: int) -> Item:
    """An item with most of the fields that a spec declares, and few different values."""
    fields = spec.items
    categorical = {field: rng.choice("abc") for field in fields.categorical}
    categorical |= {field: " ".join(rng.choices(["Red", "red", "shoe", "hat"], k=3)) for field in fields.text}
    return Item(
        id=f"i{number}",
        categorical={field: word for field, word in categorical.items() if rng.random() < 0.85},
        multi_categorical={field: tuple(rng.choices("xyz", k=rng.randrange(4))) for field in fields.multi_categorical},
        numeric={field: rng.choice([0.0, 0.5, 3.0, 900.0]) for field in fields.numeric if rng.random() < 0.85},
        embedding=None if rng.random() < 0.2 else [rng.choice([-1.0, 0.0, 0.5]) for _ in range(fields.embedding_dim)],
    )


@pytest.mark.parametrize("name", READY_SPECS)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 120), candidates=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_the_rescan_gives_the_values_of_the_pipeline(name: str, seed: int, count: int, candidates: int) -> None:
    rng, spec = random.Random(seed), SPECS[name]
    items = [random_item(spec, rng, number) for number in range(7)]
    pipeline, rescan = FeaturePipeline(spec), Rescan(spec)
    pipeline.remember(items)
    rescan.remember(items)
    # Within 16 sessions, at different times.
    times = rng.sample(range(20 * 1_000_000), count)
    for time_ms in times:
        event = Event(
            user=rng.choice("uuv"),
            item=rng.choice([*(item.id for item in items), "never remembered"]),
            kind=rng.choice([*used_kinds(spec), "other"]),
            time_ms=time_ms,
            value=rng.choice([None, -1.5, 0.25, 4.0]),
            position=rng.choice([None, 0, 7]),
        )
        pipeline.update(event)
        rescan.update(event)
    context: dict[str, Any] = {"query": "a red Hat", "network": "5g", "platform": "watch", "clock_offset_min": -90}
    request = Request(
        user="u",
        time_ms=rng.randrange(30 * 1_000_000),
        candidates=rng.sample(items, candidates),
        scores=None if rng.random() < 0.5 else [rng.gauss(0, 1) for _ in range(candidates)],
        context=context if rng.random() < 0.5 else {},
    )
    assert_same(spec, pipeline.emit(request).arrays, rescan.emit(request))


def test_they_agree_along_a_generated_stream() -> None:
    spec, items = SPECS["edgerec"], generate_items(120, seed=3)
    pipeline, rescan = FeaturePipeline(spec), Rescan(spec)
    pipeline.remember(items)
    rescan.remember(items)
    for number, visit in enumerate(itertools.islice(ShopStream(2, items, seed=3).visits(), 80)):
        if number % 8 == 7:
            assert_same(spec, pipeline.emit(visit.request).arrays, rescan.emit(visit.request))
        for event in visit.events:
            pipeline.update(event)
            rescan.update(event)
    assert pipeline.knows("user-0")


def test_the_stream_is_the_same_for_the_same_seed_and_uses_every_kind_of_the_spec() -> None:
    items = generate_items(60, seed=1)
    assert items == generate_items(60, seed=1) != generate_items(60, seed=2)
    runs = [list(itertools.islice(ShopStream(3, items, seed).visits(), 200)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    events = [event for visit in runs[0] for event in visit.events]
    assert {event.kind for event in events} == set(used_kinds(SPECS["edgerec"]))
    for user in ("user-0", "user-2"):
        times = [event.time_ms for event in events if event.user == user]
        assert times == sorted(set(times))
    for visit in runs[0]:
        opened = {event.item for event in visit.events if event.kind == "click"}
        names = [
            item.id for item, label in zip(visit.request.candidates, visit.labelled().labels, strict=True) if label
        ]
        assert set(names) == opened


def test_a_kind_that_the_rescan_does_not_know_is_refused_by_name() -> None:
    feature = SPECS["feed"].dense[0].model_copy(update={"kind": "oracle"})
    rescan = Rescan(SPECS["feed"].model_copy(update={"dense": (feature,)}))
    with pytest.raises(SpecError, match="knows no kind 'oracle'"):
        rescan.emit(Request(user="u", time_ms=0, candidates=[Item(id="a")]))


def test_the_table_by_length_of_history_runs() -> None:
    script = Path(__file__).parents[2] / "bench" / "history_lengths.py"
    done = subprocess.run([sys.executable, str(script), "40", "20"], capture_output=True, text=True, check=True)
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["events", "emit,", "us", "rescan,", "us", "ratio"]
    assert [int(row.split()[0]) for row in rows] == [20, 40]
    assert all(len(row.split()) == 4 for row in rows)
