"""Features of the last events, of this list and of everyone, against plain Python that rescans every event."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.dense import (
    ContextMatch,
    Count,
    DenseFeature,
    HistoryCount,
    HistoryDistinct,
    HistoryMatch,
    HistoryNumber,
    HistoryStreak,
    ItemAge,
    ItemNumeric,
    ListShare,
    ListSize,
    LocalTime,
    MeanValue,
    Rate,
    ServerRank,
)
from rerank_features.hashing import words_of
from rerank_features.parts import Decay
from rerank_features.spec import (
    ContextFields,
    IdFeature,
    ItemFields,
    SequenceAction,
    SequenceFeature,
    SequenceId,
)

GAP_S = 300.0
LENGTH = 6
SEQUENCE_KINDS = ("view", "click", "hide")
FIELDS = ("item", "category", "tags", "title")
WINDOWS: tuple[Any, ...] = (60.0, "session", "ever")


def random_spec(rng: random.Random) -> FeatureSpec:
    """Every kind of feature with options drawn at random."""
    dense: list[DenseFeature] = []

    def add(kind: Callable[..., DenseFeature], **options: Any) -> None:
        dense.append(kind(name=f"f{len(dense)}", **options))

    def history() -> dict[str, Any]:
        kinds = rng.choice([None, ("click",), ("view", "hide")])
        return {"sequence": rng.choice(["recent", "actions"]), "kinds": kinds, "window": rng.choice(WINDOWS)}

    for _ in range(2):
        add(HistoryCount, **history())
        add(HistoryDistinct, field=rng.choice(FIELDS), **history())
        for reduce in ("share", "count", "value_sum", "value_mean", "since_s", "place"):
            add(HistoryMatch, field=rng.choice(FIELDS), reduce=reduce, cap=rng.choice([3.0, 1e6]), **history())
        for reduce in ("mean", "min", "max", "sum", "last"):
            number = rng.choice(["value", "age_s", "gap_s", "position", "price"])
            against = rng.choice(["none", "difference", "ratio"]) if number in ("position", "price") else "none"
            add(HistoryNumber, number=number, reduce=reduce, against=against, default=-2.5, **history())
        for field in (None, *FIELDS):
            options = history()
            options["kinds"] = ("view",)
            add(HistoryStreak, until=("click", "hide"), field=field, **options)
        add(ListShare, field=rng.choice(FIELDS))
    for transform in ("list_rank", "minus_median", "minus_mean", "minus_previous", "minmax"):
        add(ItemNumeric, field="price", default=1.5, transform=transform)
    add(ListSize)
    add(ItemAge, field="published_s", cap_s=5000.0)
    for part in ("hour", "weekday", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos"):
        add(LocalTime, part=part, offset=rng.choice([None, "offset_min"]))
    add(ContextMatch, field="title", context="query")
    add(ContextMatch, field="category", context="wish")
    for scope in ("user", "everyone"):
        for key in ("user", *FIELDS):
            bounds = rng.choice([{}, {"min_value": 0.5}, {"max_value": 2.0}, {"min_value": -1.0, "max_value": 1.0}])
            window = rng.choice([90.0, "ever", Decay(half_life_s=120.0)])
            add(Count, key=key, kinds=["view", "click"], window=window, scope=scope, **bounds)
            add(Rate, key=key, kinds=["click"], of=["view"], window=window, scope=scope, prior_rate=0.1, **bounds)
            add(MeanValue, key=key, kinds=["click"], window=window, scope=scope, prior_value=2.0)
    return FeatureSpec(
        name="history",
        session_gap_s=GAP_S,
        items=ItemFields(
            categorical=["category"], multi_categorical={"tags": 3}, text={"title": 4}, numeric=["price", "published_s"]
        ),
        context=ContextFields(numeric=["offset_min"], categorical=["wish", "device"], text={"query": 3}),
        dense=dense,
        ids=[
            IdFeature(name="device", field="device", vocabulary=["phone", "tablet"]),
            IdFeature(name="tags", field="tags", vocabulary=["a", "c"]),
        ],
        sequences=[
            SequenceFeature(
                name="recent",
                kinds=SEQUENCE_KINDS,
                length=LENGTH,
                ids=[SequenceId(field="kind", buckets=4)],
                dense=True,
                columns=["value", "log_value", "log_age_s", "log_gap_s", "log_position"],
                actions=[
                    SequenceAction(sequence="actions", kinds=["click"], within_s=100.0),
                    SequenceAction(sequence="actions", within_s=1000.0, reduce="value_sum"),
                    SequenceAction(sequence="actions", within_s=1000.0, reduce="log_delay_s"),
                ],
            ),
            SequenceFeature(name="actions", kinds=SEQUENCE_KINDS, length=LENGTH + 2, emit=False),
        ],
    )


class Oracle:
    """Features by their definition."""

    def __init__(self, spec: FeatureSpec, events: Sequence[Event], items: dict[str, Item], request: Request) -> None:
        self.spec, self.items, self.request, self.everyone = spec, items, request, events
        self.events = [event for event in events if event.user == request.user]
        self.now_ms = max([request.time_ms, *(event.time_ms for event in self.events)])
        self.session_ms = self.now_ms + 1
        for time_ms in sorted((event.time_ms for event in self.events), reverse=True):
            if min(self.session_ms, self.now_ms) - time_ms > GAP_S * 1000:
                break
            self.session_ms = time_ms

    def entries(self, name: str) -> list[Event]:
        """The sequence, newest first. Equal times do not occur in these tests."""
        sequence = next(one for one in self.spec.sequences if one.name == name)
        held = sorted((e for e in self.events if e.kind in sequence.kinds), key=lambda e: -e.time_ms)
        return held[: sequence.length]

    def words(self, field: str, item: str) -> list[str]:
        if field == "item":
            return [item]
        if item not in self.items:
            return []
        known = self.items[item]
        if field == "tags":
            return list(dict.fromkeys(known.multi_categorical.get("tags", ())))[:3]
        if field == "title":
            return words_of(known.categorical.get("title", ""))[:4]
        return [known.categorical[field]] if field in known.categorical else []

    def shares(self, field: str, one: str, other: str) -> bool:
        return bool(set(self.words(field, one)) & set(self.words(field, other)))

    def chosen(self, feature: Any, kinds: Sequence[str]) -> list[Event]:
        since = -1.0
        if feature.window == "session":
            since = self.session_ms
        elif feature.window != "ever":
            since = self.now_ms - feature.window * 1000
        return [e for e in self.entries(feature.sequence) if e.time_ms >= since and e.kind in kinds]

    def own_kinds(self, feature: Any) -> Sequence[str]:
        return feature.kinds or SEQUENCE_KINDS

    def column(self, feature: Any) -> list[float]:
        method = getattr(self, f"_{feature.kind}")
        values = [method(feature, place, item) for place, item in enumerate(self.request.candidates)]
        return self.transformed(feature.transform, values)

    def transformed(self, transform: str, x: list[float]) -> list[float]:
        others = len(x) - 1
        if transform == "list_rank":
            above = [sum(o > v for o in x) + 0.5 * (sum(o == v for o in x) - 1) for v in x]
            return [a / others if others else 0.0 for a in above]
        if transform == "minus_median":
            return [v - statistics.median(x) for v in x]
        if transform == "minus_mean":
            return [v - statistics.fmean(x) for v in x]
        if transform == "minus_previous":
            return [v - x[i - 1] if i else 0.0 for i, v in enumerate(x)]
        if transform == "minmax":
            return [(v - min(x)) / (max(x) - min(x)) if max(x) > min(x) else 0.0 for v in x]
        return x

    def _item_numeric(self, feature: Any, place: int, item: Item) -> float:
        return item.numeric.get(feature.field, feature.default)

    def _history_count(self, feature: Any, place: int, item: Item) -> float:
        return len(self.chosen(feature, self.own_kinds(feature)))

    def _history_distinct(self, feature: Any, place: int, item: Item) -> float:
        return len(
            {w for e in self.chosen(feature, self.own_kinds(feature)) for w in self.words(feature.field, e.item)}
        )

    def _history_streak(self, feature: Any, place: int, item: Item) -> float:
        streak = 0
        for event in self.chosen(feature, (*feature.kinds, *feature.until)):
            if feature.field is not None and not self.shares(feature.field, event.item, item.id):
                continue
            if event.kind in feature.until:
                break
            streak += 1
        return streak

    def _history_match(self, feature: Any, place: int, item: Item) -> float:
        chosen = self.chosen(feature, self.own_kinds(feature))
        matching = [e for e in chosen if self.shares(feature.field, e.item, item.id)]
        values = [e.value or 0.0 for e in matching]
        known = [e for e in chosen if feature.field == "item" or e.item in self.items]
        newest = next((i for i, e in enumerate(chosen) if e in matching), None)
        since_s = math.inf if newest is None else (self.now_ms - chosen[newest].time_ms) / 1000
        return {
            "share": len(matching) / len(known) if known else 0.0,
            "count": len(matching),
            "value_sum": sum(values),
            "value_mean": sum(values) / len(values) if values else 0.0,
            "since_s": min(feature.cap, since_s),
            "place": min(feature.cap, math.inf if newest is None else newest),
        }[feature.reduce]

    def _history_number(self, feature: Any, place: int, item: Item) -> float:
        every = self.entries(feature.sequence)
        numbers = []
        for event in self.chosen(feature, self.own_kinds(feature)):
            older = [e for e in every if e.time_ms < event.time_ms]
            numbers.append(
                {
                    "value": event.value or 0.0,
                    "age_s": (self.now_ms - event.time_ms) / 1000,
                    "gap_s": (event.time_ms - older[0].time_ms) / 1000 if older else None,
                    "position": event.position,
                    "price": self.items[event.item].numeric.get("price") if event.item in self.items else None,
                }[feature.number]
            )
        numbers = [number for number in numbers if number is not None]
        own = {"position": place, "price": item.numeric.get("price")}.get(feature.number)
        if not numbers or (feature.against != "none" and own is None):
            return feature.default
        number = {
            "mean": lambda: sum(numbers) / len(numbers),
            "min": lambda: min(numbers),
            "max": lambda: max(numbers),
            "sum": lambda: sum(numbers),
            "last": lambda: numbers[0],
        }[feature.reduce]()
        if feature.against == "none":
            return number
        if feature.against == "difference":
            return own - number
        return own / number if number else feature.default

    def _list_size(self, feature: Any, place: int, item: Item) -> float:
        return len(self.request.candidates)

    def _list_share(self, feature: Any, place: int, item: Item) -> float:
        others = [one for i, one in enumerate(self.request.candidates) if i != place]
        return sum(self.shares(feature.field, one.id, item.id) for one in others) / len(others) if others else 0.0

    def _item_age(self, feature: Any, place: int, item: Item) -> float:
        published = item.numeric.get(feature.field)
        return feature.cap_s if published is None else min(max(self.now_ms / 1000 - published, 0), feature.cap_s)

    def _local_time(self, feature: Any, place: int, item: Item) -> float:
        offset = 0 if feature.offset is None else self.request.context.get(feature.offset, 0)
        local_s = self.now_ms / 1000 + offset * 60
        hour, weekday = local_s % 86400 / 3600, (local_s / 86400 + 3) % 7
        angle = 2 * math.pi * (hour / 24 if "hour" in feature.part else weekday / 7)
        return {"hour": hour, "weekday": weekday}.get(
            feature.part, math.sin(angle) if feature.part.endswith("sin") else math.cos(angle)
        )

    def _context_match(self, feature: Any, place: int, item: Item) -> float:
        text = str(self.request.context.get(feature.context, ""))
        asked = set(words_of(text)[:3] if feature.context == "query" else [text] if text else [])
        own = set(self.words(feature.field, item.id))
        return len(asked & own) / len(asked | own) if asked | own else 0.0

    def counted(self, feature: Any, kinds: Sequence[str], word: str) -> tuple[float, float]:
        """Weighted number of events and sum of their values."""
        ones = total = 0.0
        least, most = feature.bounds
        events = self.everyone if feature.scope == "everyone" else self.events
        now_ms = max([self.now_ms, *(event.time_ms for event in events)])
        for event in events:
            value = event.value or 0.0
            words = [word] if feature.key == "user" else self.words(feature.key, event.item)
            if event.kind not in kinds or not least <= value <= most or word not in words:
                continue
            weight = 1.0
            if isinstance(feature.window, Decay):
                width = math.ceil(feature.window.half_life_s * 1000 / 3)
                bucket, now = event.time_ms // width, now_ms // width
                weight = 2 ** (-max(now_ms / width - bucket - 0.5, 0) / 3) if bucket > now - 16 else 0.0
            elif feature.window != "ever":
                width = math.ceil(feature.window * 1000 / 15)
                weight = float(event.time_ms // width >= now_ms // width - 15)
            ones += weight
            total += weight * value
        return ones, total

    def reduced(self, feature: Any, item: Item, value: Callable[[str], float], default: str, nothing: float) -> float:
        words = ["all"] if feature.key == "user" else self.words(feature.key, item.id)
        values = [value(word) for word in words]
        if not values:
            return nothing
        return sum(values) if default == "sum" else sum(values) / len(values)

    def _count(self, feature: Any, place: int, item: Item) -> float:
        return self.reduced(feature, item, lambda w: self.counted(feature, feature.kinds, w)[0], "sum", 0.0)

    def _rate(self, feature: Any, place: int, item: Item) -> float:
        def value(word: str) -> float:
            above, below = (self.counted(feature, kinds, word)[0] for kinds in (feature.kinds, feature.of))
            return (above + feature.prior * feature.prior_rate) / (below + feature.prior)

        return self.reduced(feature, item, value, "mean", feature.prior_rate)

    def _mean_value(self, feature: Any, place: int, item: Item) -> float:
        def value(word: str) -> float:
            ones, total = self.counted(feature, feature.kinds, word)
            return (total + feature.prior * feature.prior_value) / (ones + feature.prior)

        return self.reduced(feature, item, value, "mean", feature.prior_value)

    def sequence_dense(self) -> np.ndarray:
        """``recent_dense``."""
        rows, entries, actions = np.zeros((LENGTH, 8)), self.entries("recent"), self.entries("actions")
        for t, event in enumerate(entries):
            value = event.value or 0.0
            gap = math.log1p((event.time_ms - entries[t + 1].time_ms) / 1000) if t + 1 < len(entries) else 0.0
            following = [e.time_ms for e in entries[:t] if e.item == event.item]
            end = min(following, default=math.inf)
            after = [e for e in actions if e.item == event.item and event.time_ms <= e.time_ms < end]
            soon = [e for e in after if e.time_ms - event.time_ms <= 1_000_000]
            clicks = [e for e in after if e.kind == "click" and e.time_ms - event.time_ms <= 100_000]
            delay = min((e.time_ms - event.time_ms for e in soon), default=0) / 1000
            rows[t] = [
                value,
                math.copysign(math.log1p(abs(value)), value),
                math.log1p((self.now_ms - event.time_ms) / 1000),
                gap,
                0.0 if event.position is None else math.log(2 + event.position),
                len(clicks),
                sum(e.value or 0.0 for e in soon),
                math.log1p(delay),
            ]
        return rows


def random_item(rng: random.Random, number: int) -> Item:
    numeric = {"price": rng.choice([0.0, 1.0, 2.5, 8.0]), "published_s": float(rng.randrange(10_000))}
    title = " ".join(rng.choices(["red", "Red", "shoe", "hat", "blue"], k=rng.randrange(5)))
    categorical = {"category": rng.choice("xyz"), "title": title}
    return Item(
        id=f"i{number}",
        categorical={name: word for name, word in categorical.items() if rng.random() < 0.8},
        multi_categorical={"tags": tuple(rng.choices("abcd", k=rng.randrange(5)))},
        numeric={name: value for name, value in numeric.items() if rng.random() < 0.8},
    )


def random_events(rng: random.Random, count: int) -> list[Event]:
    """All at different times."""
    times = rng.sample(range(3_000_000), count)
    return [
        Event(
            user=rng.choice(["u", "u", "v"]),
            item=f"i{rng.randrange(9)}",
            kind=rng.choice([*SEQUENCE_KINDS, "other"]),
            time_ms=time_ms,
            value=rng.choice([None, -1.5, 0.25, 3.0]),
            position=rng.choice([None, 0, 3, 40]),
        )
        for time_ms in times
    ]


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_every_feature_like_a_rescan_in_any_order_of_arrival(seed: int, count: int, candidates: int) -> None:
    rng = random.Random(seed)
    spec = random_spec(rng)
    items = {item.id: item for item in (random_item(rng, number) for number in range(7))}
    events = random_events(rng, count)
    chosen = [items.get(f"i{number}", Item(id=f"i{number}")) for number in rng.sample(range(9), candidates)]
    context: dict[str, Any] = {"query": "a Red SHOE, red hat", "wish": "x", "device": rng.choice(["phone", "watch"])}
    if rng.random() < 0.5:
        context["offset_min"] = rng.choice([-90, 330])
    request = Request(user="u", time_ms=rng.randrange(3_500_000), candidates=chosen, context=context)
    oracle = Oracle(spec, events, {**items, **{item.id: item for item in chosen}}, request)
    results = []
    for _ in range(2):
        pipeline = FeaturePipeline(spec)
        pipeline.remember([*items.values(), *chosen])
        for event in events:
            pipeline.update(event)
        results.append(pipeline.emit(request).arrays)
        rng.shuffle(events)
    for name, array in results[0].items():
        assert array.tobytes() == results[1][name].tobytes(), f"{name} depends on the order of arrival"
    arrays = results[0]
    for column, feature in enumerate(spec.dense):
        expected = oracle.column(feature)
        np.testing.assert_allclose(arrays["dense"][:, column], expected, rtol=2e-5, atol=2e-5, err_msg=repr(feature))
    np.testing.assert_allclose(arrays["recent_dense"], oracle.sequence_dense(), rtol=1e-5, atol=1e-5)
    kinds = [1 + SEQUENCE_KINDS.index(event.kind) for event in oracle.entries("recent")]
    assert arrays["recent_ids"][:, 0].tolist() == kinds + [0] * (LENGTH - len(kinds))
    assert (arrays["ids"][:, 0] == (2 if context["device"] == "phone" else 1)).all()
    rows = {"a": 2, "c": 3}
    for n, item in enumerate(chosen):
        tags = oracle.words("tags", item.id)
        assert arrays["ids"][n, 1:].tolist() == [rows.get(tag, 1) for tag in tags] + [0] * (3 - len(tags))
    assert "actions_mask" not in arrays


def test_counters_beyond_the_limit_go_by_last_use() -> None:
    clicks = Count(name="clicks", key="item", kinds=["click"], window="ever")
    pipeline = FeaturePipeline(FeatureSpec(name="few", dense=[clicks], max_counters=3))
    for time_ms, name in enumerate("abca" + "d"):  # b was used longest ago when d comes
        pipeline.update(Event(user="u", item=name, kind="click", time_ms=time_ms))
    request = Request(user="u", time_ms=10, candidates=[Item(id=name) for name in "abcd"])
    assert pipeline.emit(request).arrays["dense"][:, 0].tolist() == [2.0, 0.0, 1.0, 1.0]
    for number in range(2000):
        pipeline.update(Event(user=f"u{number}", item=f"i{number}", kind="click", time_ms=number))
    assert pipeline._state.slots.shape[0] <= 64


def test_what_everyone_did_stays_when_a_user_is_forgotten() -> None:
    shared = Count(name="shared", key="item", kinds=["click"], window="ever", scope="everyone")
    own = Count(name="own", key="item", kinds=["click"], window="ever")
    pipeline = FeaturePipeline(FeatureSpec(name="two", dense=[shared, own]))
    for user in ("u", "v", "v"):
        pipeline.update(Event(user=user, item="a", kind="click", time_ms=1))
    pipeline.forget("v")
    for user, expected in (("u", [3.0, 1.0]), ("v", [3.0, 0.0]), ("nobody", [3.0, 0.0])):
        request = Request(user=user, time_ms=2, candidates=[Item(id="a")])
        assert pipeline.emit(request).arrays["dense"][0].tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": "recnt"}, "did you mean 'recent'"),
        ({"kinds": ["buy"]}, "which sequence 'recent' does not hold"),
        ({"number": "pric"}, "did you mean 'price'"),
        ({"number": "value", "against": "ratio"}, "a candidate has no value of its own"),
    ],
)
def test_wrong_history_features_are_refused(options: dict[str, Any], message: str) -> None:
    feature = {"kind": "history_number", "name": "h", "sequence": "recent", "number": "price", **options}
    with pytest.raises(Exception, match=message):
        FeatureSpec(
            name="s",
            items={"numeric": ["price"]},
            dense=[feature],
            sequences=[{"name": "recent", "kinds": ["click"], "length": 3}],
        )


def test_ranks_in_the_server_order_can_be_compared() -> None:
    spec = FeatureSpec(name="s", dense=[ServerRank(name="rank", transform="list_rank")])
    request = Request(user="u", time_ms=0, candidates=[Item(id=name) for name in "abc"])
    assert FeaturePipeline(spec).emit(request).arrays["dense"][:, 0].tolist() == [1.0, 0.5, 0.0]
