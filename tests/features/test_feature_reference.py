"""Every feature against a plain float64 computation from the list of events, in any order of arrival."""

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.hashing import bucket
from rerank_features.spec import (
    ContextFields,
    ContextNumeric,
    Count,
    DenseFeature,
    IdFeature,
    ItemFields,
    ItemNumeric,
    MeanValue,
    Rate,
    SequenceFeature,
    SequenceId,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)

DIM = 5
GAP_S = 300.0
MULTI, KEPT = "genres", 3


def every_feature() -> FeatureSpec:
    dense: list[DenseFeature] = [
        ServerScore(name="score"),
        ServerScore(name="score standardized", transform="standardize"),
        ServerRank(name="rank", transform="reciprocal"),
        ItemNumeric(name="price", field="price", default=-3, transform="log1p"),
        ItemNumeric(name="price affine", field="price", transform="affine", mean=2, scale=-4),
        ContextNumeric(name="hour", field="hour", default=7),
    ]
    for key in ("user", "item", "lang", MULTI):
        for window in (40.0, 1000.0, "session", "ever"):
            dense.append(Count(name=f"clicks {key} {window}", key=key, kinds=["click"], window=window))
            dense.append(
                Count(name=f"dwell {key} {window}", key=key, kinds=["dwell", "click"], window=window, weight="value")
            )
            dense.append(
                Rate(name=f"rate {key} {window}", key=key, kinds=["click"], of=["view"], window=window, prior_rate=0.25)
            )
            dense.append(
                Rate(name=f"bare {key} {window}", key=key, kinds=["click"], of=["view"], window=window, prior=0)
            )
            dense.append(
                MeanValue(
                    name=f"mean {key} {window}", key=key, kinds=["dwell"], window=window, prior=2, prior_value=1.5
                )
            )
        dense.append(TimeSince(name=f"since {key}", key=key, kinds=["click", "view"], cap_s=2000))
    for reduce in ("sum", "mean", "max"):
        dense.append(Count(name=f"count {reduce}", key=MULTI, kinds=["view"], window="ever", reduce=reduce))
        dense.append(Rate(name=f"rate {reduce}", key=MULTI, kinds=["click"], of=["view"], window=500, reduce=reduce))
        dense.append(MeanValue(name=f"mean {reduce}", key=MULTI, kinds=["dwell"], window=500, reduce=reduce))
    dense += [
        Similarity(
            name=f"similarity {reduce} {metric} {weighted}",
            sequence="recent",
            reduce=reduce,
            metric=metric,
            weighted=weighted,
        )
        for reduce in ("mean", "max", "last")
        for metric in ("dot", "cosine")
        for weighted in (False, True)
    ]
    return FeatureSpec(
        name="everything",
        session_gap_s=GAP_S,
        embedding=True,
        items=ItemFields(categorical=["lang"], multi_categorical={MULTI: KEPT}, numeric=["price"], embedding_dim=DIM),
        context=ContextFields(numeric=["hour"], categorical=["device"]),
        dense=dense,
        ids=[
            IdFeature(name="item", field="item", buckets=50),
            IdFeature(name="lang", field="lang", buckets=5),
            IdFeature(name="genres", field=MULTI, buckets=9, width=2),
            IdFeature(name="device", field="device", buckets=11),
        ],
        sequences=[
            SequenceFeature(
                name="recent",
                kinds=["click", "dwell"],
                length=4,
                ids=[
                    SequenceId(field="item", buckets=50),
                    SequenceId(field="lang", buckets=5),
                    SequenceId(field=MULTI, buckets=9),
                ],
                embedding=True,
                dense=True,
            ),
            SequenceFeature(name="views", kinds=["view"], length=3),
        ],
    )


SPEC = every_feature()


class Reference:
    """Features by their definition: no state, only lists."""

    def __init__(self, events: list[Event], items: list[Item], request: Request) -> None:
        self.items = {item.id: item for item in items} | {item.id: item for item in request.candidates}
        self.events = sorted((e for e in events if e.user == request.user), key=lambda e: e.time_ms)
        self.request = request
        self.now_ms = max([request.time_ms, *(e.time_ms for e in self.events)])
        self.session_ms = self.session_start()

    def session_start(self) -> int:
        start = self.now_ms + 1
        previous = self.now_ms
        for event in reversed(self.events):
            if previous - event.time_ms > GAP_S * 1000:
                break
            start = previous = event.time_ms
        return start

    def inside(self, event: Event, window: float | str) -> bool:
        if window == "ever":
            return True
        if window == "session":
            return event.time_ms >= self.session_ms
        width = math.ceil(float(window) * 1000 / 15)
        return event.time_ms // width >= self.now_ms // width - 15

    def words(self, key: str, item: str) -> list[str]:
        if key == "user":
            return ["all"]
        if key == "item":
            return [item]
        fields = self.items.get(item)
        if fields is None:
            return []
        if key == MULTI:
            return list(dict.fromkeys(fields.multi_categorical.get(key, ())))[:KEPT]
        return [fields.categorical[key]] if key in fields.categorical else []

    def matching(self, key: str, word: str, kinds: tuple[str, ...], window: float | str = "ever") -> list[Event]:
        return [
            e for e in self.events if e.kind in kinds and word in self.words(key, e.item) and self.inside(e, window)
        ]

    def keyed(self, feature: Any, word: str) -> float:
        if isinstance(feature, TimeSince):
            found = self.matching(feature.key, word, feature.kinds)
            if not found:
                return feature.cap_s
            return min(feature.cap_s, (self.now_ms - max(e.time_ms for e in found)) / 1000)
        found = self.matching(feature.key, word, feature.kinds, feature.window)
        total = sum(e.value or 0.0 for e in found)
        if isinstance(feature, Count):
            return total if feature.weight == "value" else len(found)
        if isinstance(feature, Rate):
            below = len(self.matching(feature.key, word, feature.of, feature.window)) + feature.prior
            return (len(found) + feature.prior * feature.prior_rate) / below if below else feature.prior_rate
        return (total + feature.prior * feature.prior_value) / (len(found) + feature.prior)

    def cell(self, feature: Any, n: int) -> float:
        candidate = self.items[self.request.candidates[n].id]
        match feature.kind:
            case "server_score":
                return self.request.scores[n] if self.request.scores else 0.0
            case "server_rank":
                return n
            case "item_numeric":
                return candidate.numeric.get(feature.field, feature.default)
            case "context_numeric":
                return float(self.request.context.get(feature.field, feature.default))
            case "similarity":
                return self.similarity(feature, candidate)
        values = [self.keyed(feature, word) for word in self.words(feature.key, candidate.id)]
        if not values:
            return self.keyed(feature, "no such word")
        if feature.kind == "time_since":
            return min(values)
        reduce = feature.reduce or ("sum" if feature.kind == "count" else "mean")
        return {"sum": sum(values), "mean": sum(values) / len(values), "max": max(values)}[reduce]

    def similarity(self, feature: Similarity, candidate: Item) -> float:
        if candidate.embedding is None:
            return 0.0
        pairs = []
        for event in self.sequence(("click", "dwell"), 4):
            item = self.items.get(event.item)
            if item is not None and item.embedding is not None:
                one, other = np.array(candidate.embedding), np.array(item.embedding)
                product = float(one @ other)
                if feature.metric == "cosine":
                    length = float(np.linalg.norm(one) * np.linalg.norm(other))
                    product = product / length if length else 0.0
                pairs.append((product, (event.value or 0.0) if feature.weighted else 1.0))
        if not pairs:
            return 0.0
        products = [product * weight for product, weight in pairs]
        if feature.reduce == "last":
            return products[0]
        if feature.reduce == "max":
            return max(products)
        total = sum(abs(weight) for _, weight in pairs)
        return sum(products) / total if total else 0.0

    def sequence(self, kinds: tuple[str, ...], length: int) -> list[Event]:
        return [e for e in reversed(self.events) if e.kind in kinds][:length]

    def dense(self) -> np.ndarray:
        columns = []
        for feature in SPEC.dense:
            x = np.array([self.cell(feature, n) for n in range(len(self.request.candidates))], np.float64)
            if feature.transform == "log1p":
                x = np.sign(x) * np.log1p(np.abs(x))
            elif feature.transform == "reciprocal":
                x = 1 / (1 + np.abs(x))
            elif feature.transform == "affine":
                x = (x - float(feature.mean or 0)) / float(feature.scale or 1)
            elif feature.transform == "standardize" and x.size:
                deviation = x.std() if x.max() > x.min() else 0.0
                x = (x - x.mean()) / deviation if deviation else np.zeros_like(x)
            columns.append(x)
        return np.stack(columns, axis=1)

    def id_of(self, field: str, item: str, buckets: int, place: int = 0) -> int:
        words = self.words(field, item)
        return bucket(field, words[place], buckets) if place < len(words) else 0

    def arrays(self) -> dict[str, np.ndarray]:
        names = [c.id for c in self.request.candidates]
        device = self.request.context.get("device")
        ids = [
            [
                bucket("item", name, 50),
                self.id_of("lang", name, 5),
                self.id_of(MULTI, name, 9),
                self.id_of(MULTI, name, 9, 1),
                bucket("device", str(device), 11) if device is not None else 0,
            ]
            for name in names
        ]
        recent = self.sequence(("click", "dwell"), 4)
        arrays = {
            "dense": self.dense(),
            "ids": np.array(ids).reshape(len(names), 5),
            "embedding": np.array([self.embedding(name) for name in names]).reshape(len(names), DIM),
            "recent_ids": np.zeros((4, 3)),
            "recent_embedding": np.zeros((4, DIM)),
            "recent_dense": np.zeros((4, 2)),
            "recent_mask": np.array([float(t < len(recent)) for t in range(4)]),
            "views_mask": np.array([float(t < len(self.sequence(("view",), 3))) for t in range(3)]),
        }
        for t, event in enumerate(recent):
            fields = (("item", 50), ("lang", 5), (MULTI, 9))
            arrays["recent_ids"][t] = [self.id_of(field, event.item, buckets) for field, buckets in fields]
            arrays["recent_embedding"][t] = self.embedding(event.item)
            arrays["recent_dense"][t] = [event.value or 0.0, math.log1p((self.now_ms - event.time_ms) / 1000)]
        return arrays

    def embedding(self, item: str) -> tuple[float, ...]:
        fields = self.items.get(item)
        return fields.embedding if fields is not None and fields.embedding is not None else (0.0,) * DIM


def check(events: list[Event], items: list[Item], request: Request) -> None:
    pipeline = FeaturePipeline(SPEC)
    pipeline.remember(items)
    for event in events:
        assert pipeline.update(event)
    reference = Reference(events, items, request)
    batch = pipeline.emit(request)
    expected = reference.arrays()
    assert batch.n == len(request.candidates)
    assert batch.time_ms == reference.now_ms
    assert batch.clock_skew_ms == reference.now_ms - request.time_ms
    assert list(batch.arrays) == list(expected)
    for name, array in batch.arrays.items():
        wanted = expected[name]
        assert array.shape == wanted.shape, name
        if array.dtype == np.int32:
            np.testing.assert_array_equal(array, wanted, err_msg=name)
        elif name != "dense":
            np.testing.assert_allclose(array, wanted, rtol=1e-6, atol=1e-6, err_msg=name)
    for f, column in enumerate(pipeline.dense_columns):
        np.testing.assert_allclose(
            batch.arrays["dense"][:, f], expected["dense"][:, f], rtol=2e-6, atol=2e-6, err_msg=column
        )


def make_items(count: int, seed: int) -> list[Item]:
    rng = random.Random(seed)
    items = []
    for i in range(count):
        embedding = tuple(rng.choice((-1.5, -0.5, 0.0, 0.25, 2.0)) for _ in range(DIM))
        items.append(
            Item(
                id=f"i{i}",
                categorical={"lang": rng.choice("abc")} if rng.random() < 0.8 else {},
                multi_categorical={MULTI: tuple(rng.choices("uvwxyz", k=rng.randrange(6)))},
                numeric={"price": rng.uniform(-5, 50)} if rng.random() < 0.8 else {},
                embedding=embedding if rng.random() < 0.8 else None,
            )
        )
    return items


ITEMS = make_items(6, seed=4)

# Times up to 4,200 s with sessions that end after 300 s: at most 14 sessions, whatever the order of arrival.
# Entries with equal times are ordered by a hash, so that sequences stay comparable only if no two times are equal.
streams = st.lists(
    st.builds(
        Event,
        user=st.sampled_from("uv"),
        item=st.sampled_from(["i0", "i1", "i2", "i3", "i4", "never remembered"]),
        kind=st.sampled_from(["click", "view", "dwell", "other"]),
        time_ms=st.integers(0, 4_200_000),
        value=st.none() | st.integers(-40, 400).map(lambda quarter: quarter / 4),
    ),
    max_size=40,
    unique_by=lambda event: event.time_ms,
)


@given(streams, st.integers(0, 6_000_000), st.integers(0, 6), st.data())
@settings(max_examples=150, deadline=None)
def test_any_stream_matches_the_definition(events: list[Event], time_ms: int, n: int, data: st.DataObject) -> None:
    scores = data.draw(st.none() | st.lists(st.floats(-100, 100, width=32), min_size=n, max_size=n))
    context = data.draw(st.sampled_from([{}, {"hour": 5, "device": "phone"}, {"hour": True, "x": "ignored"}]))
    request = Request(user="u", time_ms=time_ms, candidates=ITEMS[:n], scores=scores, context=context)
    check(events, ITEMS, request)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100])
def test_long_streams_in_order_match_the_definition(n: int) -> None:
    rng = random.Random(n)
    items = make_items(120, seed=n)
    time_ms, events = 0, []
    for _ in range(400):
        time_ms += rng.choice((1, 500, 9_000, 40_000, 301_000))
        kind = rng.choice(("click", "view", "dwell"))
        events.append(
            Event(user="u", item=f"i{rng.randrange(125)}", kind=kind, time_ms=time_ms, value=rng.randrange(99) / 8)
        )
    request = Request(user="u", time_ms=time_ms + 100, candidates=items[:n], scores=[rng.gauss(0, 1) for _ in range(n)])
    check(events, items, request)


def test_a_user_without_events_gets_the_features_of_nothing() -> None:
    check([], ITEMS, Request(user="u", time_ms=10**12, candidates=ITEMS))


@given(streams, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_order_of_arrival_does_not_change_a_bit(events: list[Event], shuffle: random.Random) -> None:
    # now also with events that share a time, down to exact doubles with different signs of zero
    events = events + [
        event.model_copy(update={"value": value}) for event in events[::3] for value in (-0.0, None, 2.5)
    ]
    request = Request(user="u", time_ms=4_300_000, candidates=ITEMS)
    batches = []
    for _ in range(2):
        pipeline = FeaturePipeline(SPEC)
        pipeline.remember(ITEMS)
        for event in events:
            pipeline.update(event)
        batches.append(pipeline.emit(request))
        events = shuffle.sample(events, len(events))
    for name, array in batches[0].arrays.items():
        assert array.tobytes() == batches[1].arrays[name].tobytes(), name


@given(st.integers(1, 10**7), st.integers(0, 10**10), st.integers(0, 2 * 10**7))
@settings(max_examples=200, deadline=None)
def test_a_window_covers_at_least_itself_and_at_most_a_fifteenth_more(width_ms: int, time_ms: int, age_ms: int) -> None:
    window_s = width_ms / 1000
    spec = FeatureSpec(name="w", dense=[Count(name="c", key="user", kinds=["click"], window=window_s)])
    pipeline = FeaturePipeline(spec)
    pipeline.update(Event(user="u", item="a", kind="click", time_ms=time_ms))
    request = Request(user="u", time_ms=time_ms + age_ms, candidates=[Item(id="a")])
    counted = pipeline.emit(request).arrays["dense"][0, 0]
    if age_ms <= width_ms:
        assert counted == 1
    if age_ms >= 16 * math.ceil(width_ms / 15):
        assert counted == 0
