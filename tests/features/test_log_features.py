"""A whole log at once gives the arrays that the stream of its events and lists gives, bit for bit."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import DataError, EventError, InputError, MissingExtraError, RerankError
from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.log import EventColumns, ListColumns, Names, event_columns
from rerank_features.log_features import training_set_from_log
from rerank_features.spec import Count, ItemFields, ServerRank
from rerank_features.training_set import LabelledRequest, TrainingSet, build_training_set
from tests.features.test_feature_history import random_spec
from tests.features.test_feature_reference import every_feature, make_items

USERS = ("u", "v", "Ω\0w")
KINDS = ("view", "click", "hide", "like", "impression", "purchase", "other")


def user_features_only(spec: FeatureSpec) -> FeatureSpec:
    mine = [feature for feature in spec.dense if getattr(feature, "scope", "user") == "user"]
    return FeatureSpec(**{**dict(spec), "dense": mine})


def draw_log(spec: FeatureSpec, rng: random.Random) -> tuple[list[Item], list[Event], list[LabelledRequest]]:
    items = make_items(12, rng.randrange(100))
    known = [item.id for item in items]
    events = [
        Event(
            user=rng.choice(USERS),
            item=rng.choice([*known, "never met"]),
            kind=rng.choice(KINDS),
            time_ms=10**12 + rng.randrange(2_000_000),
            position=rng.choice([None, 0, 3]),
            value=rng.choice([None, 0.5, -3.25]),
        )
        for _ in range(rng.randrange(80))
    ]
    lists = []
    for _ in range(rng.randrange(1, 8)):
        candidates = rng.sample(items, rng.randrange(0, 8))
        request = Request(
            user=rng.choice([*USERS, "new"]),
            time_ms=10**12 + rng.randrange(2_000_000),
            candidates=candidates,
            scores=[rng.random() for _ in candidates],
            context={name: rng.choice([0.5, -60.0]) for name in spec.context.numeric if rng.random() < 0.7}
            | {
                name: rng.choice(["phone", "a b", "3"])
                for name in (*spec.context.categorical, *spec.context.text)
                if rng.random() < 0.7
            },
        )
        mask = np.array([rng.random() < 0.8 for _ in candidates], np.bool_)
        lists.append(LabelledRequest(request, np.array([rng.random() for _ in candidates], np.float32), mask))
    return items, events, lists


def columns_of(spec: FeatureSpec, lists: list[LabelledRequest]) -> ListColumns:
    requests = [one.request for one in lists]
    context: dict[str, Any] = {
        name: [request.context.get(name, np.nan) for request in requests] for name in spec.context.numeric
    } | {
        name: [request.context.get(name) for request in requests]
        for name in (*spec.context.categorical, *spec.context.text)
    }
    return ListColumns(
        user=[request.user for request in requests],
        time_ms=np.array([request.time_ms for request in requests]),
        offsets=np.cumsum([0, *(len(request.candidates) for request in requests)]),
        item=[item.id for request in requests for item in request.candidates],
        label=[label for one in lists for label in one.labels],
        mask=[flag for one in lists for flag in one.mask],  # type: ignore[union-attr]
        score=[score for request in requests for score in request.scores or ()],
        context=context,
    )


def in_order(events: list[Event], lists: list[LabelledRequest]) -> tuple[list[Any], list[int]]:
    """A stream for ``build_training_set``, and where each list stands in it."""
    marked = [(event.time_ms, 1, place, event) for place, event in enumerate(events)]
    marked += [(one.request.time_ms, 0, place, one) for place, one in enumerate(lists)]  # type: ignore[misc]
    marked.sort(key=lambda one: one[:3])
    return [one[3] for one in marked], [one[2] for one in marked if one[1] == 0]


def assert_same(made: TrainingSet, expected: TrainingSet, order: list[int]) -> None:
    """``expected`` has its lists in the order of time: ``order`` says which list of ``made`` each is."""
    assert made.lists == expected.lists
    assert made.spec_hash == expected.spec_hash
    assert made.per_candidate.keys() == expected.per_candidate.keys()
    assert made.per_list.keys() == expected.per_list.keys()
    for name, array in expected.per_list.items():
        assert made.per_list[name].dtype == array.dtype
        assert made.per_list[name][order].tobytes() == array.tobytes(), name
    parts = [np.arange(made.offsets[i], made.offsets[i + 1]) for i in order]
    rows = np.concatenate(parts)
    for name, array in expected.per_candidate.items():
        assert made.per_candidate[name].dtype == array.dtype
        assert made.per_candidate[name][rows].tobytes() == array.tobytes(), name
    assert made.labels[rows].tobytes() == expected.labels.tobytes()
    assert made.mask[rows].tobytes() == expected.mask.tobytes()
    assert made.times_ms[order].tolist() == expected.times_ms.tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("source", ["history", "history of users", "every feature"])
def test_a_log_gives_what_its_stream_gives(source: str, seed: int) -> None:
    rng = random.Random(seed)
    spec = every_feature() if source == "every feature" else random_spec(rng)
    if source == "history of users":
        spec = user_features_only(spec)
    items, events, lists = draw_log(spec, rng)
    stream, order = in_order(events, lists)
    expected = build_training_set(spec, [items, *stream])
    made = training_set_from_log(spec, items=items, events=event_columns(events), lists=columns_of(spec, lists))
    assert_same(made, expected, order)


def test_more_users_and_items_than_a_device_remembers() -> None:
    spec = FeatureSpec(
        name="small",
        max_users=2,
        max_items=3,
        items=ItemFields(categorical=["shop"]),
        dense=[
            Count(name="mine", key="shop", kinds=["click"], window="ever"),
            Count(name="all", key="shop", kinds=["click"], window="ever", scope="everyone"),
        ],
    )
    items = [Item(id=f"i{n}", categorical={"shop": f"s{n % 4}"}) for n in range(200)]
    rng = np.random.default_rng(0)
    users, chosen = rng.integers(0, 50, 3000), rng.integers(0, 200, 3000)
    events = EventColumns(user=users, item=[f"i{n}" for n in chosen], kind=["click"] * 3000, time_ms=np.arange(3000))
    lists = ListColumns(
        user=np.arange(50),
        time_ms=np.full(50, 5000),
        offsets=np.arange(51) * 4,
        item=[f"i{n}" for n in range(4)] * 50,
        label=np.zeros(200),
    )
    dense = training_set_from_log(spec, items=items, events=events, lists=lists).per_candidate["dense"]
    for user in range(50):
        for shop in range(4):
            mine = (users == user) & (chosen % 4 == shop)
            assert dense[4 * user + shop].tolist() == [mine.sum(), (chosen % 4 == shop).sum()]


def test_an_event_of_the_same_millisecond_is_not_known_yet() -> None:
    spec = FeatureSpec(name="now", dense=[Count(name="clicks", key="item", kinds=["click"], window="ever")])
    events = EventColumns(user=["u"] * 3, item=["a"] * 3, kind=["click"] * 3, time_ms=[9, 10, 11])
    lists = ListColumns(user=["u"] * 3, time_ms=[12, 10, 9], offsets=[0, 1, 2, 3], item=["a"] * 3, label=[0, 0, 0])
    dense = training_set_from_log(spec, items=[], events=events, lists=lists).per_candidate["dense"]
    assert dense.tolist() == [[3.0], [1.0], [0.0]]


def test_names() -> None:
    assert Names.of(np.array([5, 3, 5])).names == ("3", "5")
    assert Names.of(["a", None, "b", float("nan"), "a"]).codes.tolist() == [0, -1, 1, -1, 0]
    assert Names.of([]).names == ()
    assert Names.of(np.array(["x", "y", "x"])).codes.tolist() == [0, 1, 0]


GOOD: dict[str, Any] = {"user": ["u", "u"], "item": ["a", "b"], "kind": ["click", "hide"], "time_ms": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": ["u"]}, "item: 2 rows, but the first column has 1"),
        ({"user": ["u", None]}, "user: row 1 has none"),
        ({"user": ["u", 1.5]}, "user: row 1 is 1.5; expected a word or a whole number"),
        ({"user": np.array([1.0, 2.0])}, "user: expected words or whole numbers, got values of type float64"),
        ({"user": ["1", 1]}, "words and numbers that read the same"),
        ({"item": ["a", ""]}, "item: '' is no id"),
        ({"item": ["a", "x" * 1025]}, "is no id; expected 1 to 1024 bytes"),
        ({"kind": ["click", "Click"]}, "kind: 'Click' is no kind"),
        ({"time_ms": [1, -2]}, "time_ms: row 1 is -2; expected milliseconds"),
        ({"time_ms": [1, 10**13]}, "time_ms: row 1 is 10000000000000"),
        ({"time_ms": [1.0, 2.0]}, "time_ms: expected whole numbers"),
        ({"value": [1.0, np.inf]}, "value: row 1 is inf; expected a finite number"),
        ({"value": ["x", "y"]}, "value: expected numbers"),
        ({"position": [0, -5]}, "position: row 1 is -5"),
        ({"position": [0]}, "position: shape"),
    ],
)
def test_bad_event_columns_are_named(change: dict[str, Any], message: str) -> None:
    assert len(EventColumns(**GOOD)) == 2
    with pytest.raises(EventError) as caught:
        EventColumns(**{**GOOD, **change})
    assert message in str(caught.value)


LISTS: dict[str, Any] = {"user": ["u"], "time_ms": [1], "offsets": [0, 2], "item": ["a", "b"], "label": [0, 1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [0, 1]}, "offsets: expected to rise from 0 to the 2 candidates"),
        ({"offsets": [0, 1, 2]}, "offsets: shape"),
        ({"label": [0, -1]}, "label: row 1 is -1.0"),
        ({"label": [0, np.nan]}, "label: row 1 is nan"),
        ({"score": [0, np.nan]}, "score: row 1 is not a number"),
        ({"mask": [True]}, "mask: 1 rows"),
        ({"context": {"hour": [1, 2]}}, "context 'hour': 2 rows"),
    ],
)
def test_bad_list_columns_are_named(change: dict[str, Any], message: str) -> None:
    assert len(ListColumns(**LISTS)) == 1
    with pytest.raises(EventError) as caught:
        ListColumns(**{**LISTS, **change})
    assert message in str(caught.value)


def test_context_that_does_not_fit_the_spec_is_refused() -> None:
    spec = every_feature()
    name = spec.context.numeric[0]
    for column in (["much"], [np.inf]):
        lists = ListColumns(**LISTS, context={name: column})
        with pytest.raises(EventError, match=f"context '{name}'"):
            training_set_from_log(spec, items=[], events=EventColumns(**GOOD), lists=lists)


def test_a_log_without_lists_is_refused() -> None:
    lists = ListColumns(user=[], time_ms=np.zeros(0, np.int64), offsets=[0], item=[], label=[])
    with pytest.raises(InputError, match="no list"):
        training_set_from_log(
            FeatureSpec(name="f", dense=[ServerRank(name="r")]), items=[], events=EventColumns(**GOOD), lists=lists
        )
    assert issubclass(InputError, RerankError)


def some_set() -> TrainingSet:
    rng = random.Random(3)
    spec = every_feature()
    items, events, lists = draw_log(spec, rng)
    return training_set_from_log(spec, items=items, events=event_columns(events), lists=columns_of(spec, lists))


def test_a_training_set_comes_back_from_its_file(tmp_path: Path) -> None:
    made = some_set()
    path = tmp_path / "set.npz"
    made.save(path)
    assert_same(TrainingSet.load(path), made, list(range(made.lists)))
    for content in (b"", b"PK\3\4 nonsense", path.read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot read a training set"):
            TrainingSet.load(path)
    with pytest.raises(DataError, match="cannot write"):
        made.save(tmp_path / "missing" / "set.npz")


def test_parquet_holds_every_number(tmp_path: Path) -> None:
    made = some_set()
    made.write_parquet(tmp_path / "tables")
    candidates = parquet.read_table(tmp_path / "tables" / "candidates.parquet")
    lists = parquet.read_table(tmp_path / "tables" / "lists.parquet")
    assert candidates.schema.metadata[b"spec_hash"] == made.spec_hash.encode()
    assert candidates["label"].to_numpy().tobytes() == made.labels.tobytes()
    assert candidates["mask"].to_numpy().tolist() == made.mask.tolist()
    assert lists["time_ms"].to_numpy().tolist() == made.times_ms.tolist()
    sizes = np.bincount(candidates["list"].to_numpy(), minlength=made.lists)
    assert sizes.tolist() == lists["candidates"].to_numpy().tolist() == np.diff(made.offsets).tolist()
    for table, arrays in ((candidates, made.per_candidate), (lists, made.per_list)):
        for name, array in arrays.items():
            column = table[name].combine_chunks()
            flat = column.flatten() if array.ndim > 1 else column
            assert flat.to_numpy().astype(array.dtype).tobytes() == array.tobytes(), name


def test_without_arrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"rerank-sdk\[arrow\]"):
        some_set().to_arrow()
