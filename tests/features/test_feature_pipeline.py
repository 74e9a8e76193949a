"""What the pipeline promises besides the numbers: items, clocks, extremes, errors that change nothing."""

from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import EventError, InputError
from rerank_features import Event, FeatureBatch, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.hashing import bucket
from rerank_features.spec import (
    ContextFields,
    ContextNumeric,
    Count,
    IdFeature,
    ItemFields,
    ItemNumeric,
    MeanValue,
    SequenceFeature,
    SequenceId,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)


def pipeline_of(*dense: Any, **parts: Any) -> FeaturePipeline:
    return FeaturePipeline(FeatureSpec(name="feed", dense=dense, **parts))


def click(item: str, time_ms: int, user: str = "u", kind: str = "click", value: float | None = None) -> Event:
    return Event(user=user, item=item, kind=kind, time_ms=time_ms, value=value)


def dense_of(pipeline: FeaturePipeline, *items: str, time_ms: int = 0, user: str = "u") -> list[list[float]]:
    request = Request(user=user, time_ms=time_ms, candidates=[Item(id=item) for item in items])
    return pipeline.emit(request).arrays["dense"].tolist()


def clicks(**options: Any) -> Count:
    return Count(**{"name": "clicks", "key": "item", "kinds": ["click"], "window": "ever", **options})


def test_an_unused_kind_changes_nothing() -> None:
    pipeline = pipeline_of(TimeSince(name="idle", key="user", kinds=["click"], cap_s=99))
    assert pipeline.update(click("a", 1_000, kind="skip")) is False
    assert dense_of(pipeline, "a", time_ms=2_000) == [[99.0]]
    assert pipeline.emit(Request(user="u", time_ms=0, candidates=[])).clock_skew_ms == 0
    assert pipeline.update(click("a", 1_000)) is True
    assert dense_of(pipeline, "a", time_ms=2_000) == [[1.0]]


def test_any_kind_keeps_a_session_alive() -> None:
    pipeline = pipeline_of(clicks(window="session"), session_gap_s=10)
    pipeline.update(click("a", 0))
    assert pipeline.update(click("b", 9_000, kind="scroll")) is True
    assert dense_of(pipeline, "a", time_ms=19_000) == [[1.0]]
    assert dense_of(pipeline, "a", time_ms=19_001) == [[0.0]]


def test_a_late_event_joins_two_sessions_with_all_their_events() -> None:
    pipeline = pipeline_of(
        clicks(key="user", window="session"),
        clicks(name="sum", key="user", window="session", weight="value"),
        session_gap_s=10,
    )
    for time_ms in (0, 1, 12_000, 12_001, 12_002):
        pipeline.update(click("a", time_ms, value=0.5))
    assert dense_of(pipeline, "a", time_ms=12_002) == [[3.0, 1.5]]
    pipeline.update(click("a", 6_000, value=4))
    assert dense_of(pipeline, "a", time_ms=12_002) == [[6.0, 6.5]]


@pytest.mark.parametrize(("late_ms", "expected"), [(9_999, 1.0), (10_000, 2.0), (30_000, 2.0), (30_001, 1.0)])
def test_a_session_ends_when_the_gap_is_exceeded(late_ms: int, expected: float) -> None:
    pipeline = pipeline_of(clicks(key="user", window="session"), session_gap_s=10)
    pipeline.update(click("a", 20_000))
    pipeline.update(click("a", late_ms))
    newest_ms = max(20_000, late_ms)
    assert dense_of(pipeline, "a", time_ms=newest_ms + 10_000) == [[expected]]
    assert dense_of(pipeline, "a", time_ms=newest_ms + 10_001) == [[0.0]]


def test_sessions_stay_exact_after_more_sessions_than_are_kept() -> None:
    pipeline = pipeline_of(clicks(key="user", window="session"), clicks(name="ever", key="user"), session_gap_s=1)
    for session in range(40):
        for i in range(session % 4 + 1):
            pipeline.update(click("a", session * 10_000 + i))
        assert dense_of(pipeline, "a", time_ms=session * 10_000 + 500)[0][0] == session % 4 + 1
    assert pipeline.update(click("a", 5_000)) is True  # older than the sessions that are kept: in no session
    assert dense_of(pipeline, "a", time_ms=390_500) == [[4.0, 101.0]]


def test_a_clock_that_goes_back_hides_no_events() -> None:
    pipeline = pipeline_of(
        clicks(window=60), clicks(name="session", window="session"), TimeSince(name="t", key="item", kinds=["click"])
    )
    pipeline.update(click("a", 1_000_000))
    batch = pipeline.emit(Request(user="u", time_ms=10_000, candidates=[Item(id="a")]))
    assert (batch.time_ms, batch.clock_skew_ms) == (1_000_000, 990_000)
    assert batch.arrays["dense"].tolist() == [[1.0, 1.0, 0.0]]
    other = pipeline.emit(Request(user="v", time_ms=10_000, candidates=[Item(id="a")]))
    assert (other.time_ms, other.clock_skew_ms) == (10_000, 0)


def test_users_do_not_see_each_other() -> None:
    pipeline = pipeline_of(clicks(), clicks(name="all", key="user"))
    pipeline.update(click("a", 0, user="u"))
    assert dense_of(pipeline, "a", user="u") == [[1.0, 1.0]]
    assert dense_of(pipeline, "a", user="v") == [[0.0, 0.0]]


def test_events_of_unknown_items_count_and_are_found_again() -> None:
    pipeline = pipeline_of(
        clicks(),
        clicks(name="in language", key="lang"),
        Similarity(name="like", sequence="s", metric="dot"),
        items=ItemFields(categorical=["lang"], embedding_dim=2),
        sequences=[
            SequenceFeature(
                name="s",
                kinds=["click"],
                length=2,
                ids=[SequenceId(field="item", buckets=99), SequenceId(field="lang", buckets=99)],
                embedding=True,
            )
        ],
    )
    pipeline.update(click("a", 0))
    item = Item(id="a", categorical={"lang": "en"}, embedding=(1.0, 2.0))
    other = Item(id="b", categorical={"lang": "en"}, embedding=(3.0, 1.0))
    before = pipeline.emit(Request(user="u", time_ms=1, candidates=[other])).arrays
    assert before["dense"].tolist() == [[0.0, 0.0, 0.0]]
    assert before["s_ids"].tolist() == [[bucket("item", "a", 99), 0], [0, 0]]
    assert before["s_embedding"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert before["s_mask"].tolist() == [1.0, 0.0]
    after = pipeline.emit(Request(user="u", time_ms=1, candidates=[item, other])).arrays
    assert after["dense"].tolist() == [[1.0, 0.0, 5.0], [0.0, 0.0, 5.0]]  # its language was unknown at the event
    assert after["s_ids"].tolist()[0] == [bucket("item", "a", 99), bucket("lang", "en", 99)]
    assert after["s_embedding"].tolist()[0] == [1.0, 2.0]


def test_fields_follow_the_last_delivery() -> None:
    pipeline = pipeline_of(ItemNumeric(name="price", field="price"), items=ItemFields(numeric=["price"]))
    old, new = Item(id="a", numeric={"price": 1}), Item(id="a", numeric={"price": 2})
    request = Request(user="u", time_ms=0, candidates=[old])
    for item, price in ((old, 1.0), (new, 2.0), (old, 1.0), (new, 2.0)):
        assert pipeline.remember([item]).tolist() == [0]
        assert pipeline.emit(Request(user="u", time_ms=0, candidates=[item])).arrays["dense"][0, 0] == price
    assert pipeline.emit(request).arrays["dense"][0, 0] == 1.0
    assert pipeline.emit(request).arrays["dense"][0, 0] == 1.0
    pipeline.remember([new])
    assert pipeline.emit(request).arrays["dense"][0, 0] == 1.0
    for candidates, price in (([new, old], 1.0), ([old, new], 2.0), ([new, new], 2.0), ([new, old], 1.0)):
        batch = pipeline.emit(Request(user="u", time_ms=0, candidates=candidates))
        assert batch.arrays["dense"].tolist() == [[price], [price]]


def test_equal_objects_share_a_row() -> None:
    pipeline = pipeline_of(ServerRank(name="r"), items=ItemFields(numeric=["price"]))
    items = [Item(id=f"i{n}", numeric={"price": n}) for n in range(3)]
    copies = [Item(id=f"i{n}", numeric={"price": n}) for n in range(3)]
    assert pipeline.remember(items).tolist() == [0, 1, 2]
    assert pipeline.remember(copies).tolist() == [0, 1, 2]
    assert pipeline.remember([*items, *copies]).dtype == np.int32
    listed = list(items)
    assert pipeline.remember(listed).tolist() == [0, 1, 2]
    listed.reverse()
    assert pipeline.remember(listed).tolist() == [2, 1, 0]


def test_only_declared_fields_and_the_first_values_are_kept() -> None:
    pipeline = pipeline_of(
        clicks(key="tags", reduce="sum"),
        items=ItemFields(multi_categorical={"tags": 2}),
        ids=[IdFeature(name="tags", field="tags", buckets=1000)],
    )
    item = Item(id="a", multi_categorical={"tags": ("x", "x", "y", "z"), "other": ("w",)}, categorical={"c": "v"})
    pipeline.remember([item])
    pipeline.update(click("a", 0))
    arrays = pipeline.emit(Request(user="u", time_ms=0, candidates=[item])).arrays
    assert arrays["ids"].tolist() == [[bucket("tags", "x", 1000), bucket("tags", "y", 1000)]]
    assert arrays["dense"].tolist() == [[2.0]]
    third = Item(id="b", multi_categorical={"tags": ("z",)})
    assert pipeline.emit(Request(user="u", time_ms=0, candidates=[third])).arrays["dense"].tolist() == [[0.0]]


def test_arrays_are_fresh_and_contiguous_and_shaped_as_announced() -> None:
    pipeline = pipeline_of(
        ServerScore(name="s"),
        embedding=True,
        items=ItemFields(categorical=["lang"], embedding_dim=3),
        ids=[IdFeature(name="i", field="item", buckets=9), IdFeature(name="l", field="lang", buckets=9)],
        sequences=[
            SequenceFeature(
                name="q",
                kinds=["click"],
                length=5,
                ids=[SequenceId(field="item", buckets=9)],
                embedding=True,
                dense=True,
            )
        ],
    )
    request = Request(user="u", time_ms=0, candidates=[Item(id="a"), Item(id="b")], scores=[0.5, -1.0])
    one, other = pipeline.emit(request), pipeline.emit(request)
    shapes = pipeline.array_shapes()
    assert list(shapes) == list(one.arrays)
    for name, array in one.arrays.items():
        assert array.shape == tuple(2 if size == "N" else size for size in shapes[name])
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.dtype == (np.int32 if name.endswith("ids") else np.float32)
        array[...] = 7
        assert not np.array_equal(array, other.arrays[name])
    again = pipeline.emit(request)
    assert all(np.array_equal(again.arrays[name], other.arrays[name]) for name in shapes)


def test_an_empty_spec_emits_nothing() -> None:
    batch = pipeline_of().emit(Request(user="u", time_ms=3, candidates=[Item(id="a")]))
    assert batch == FeatureBatch(n=1, arrays={}, time_ms=3, clock_skew_ms=0)


def test_groups_gather_columns_under_their_label() -> None:
    pipeline = pipeline_of(
        ServerScore(name="s", group="server"), clicks(), ServerRank(name="r", group="server"), ServerRank(name="q")
    )
    assert pipeline.groups() == {"server": [0, 2], "clicks": [1], "q": [3]}
    assert pipeline.dense_columns == ("s", "clicks", "r", "q")


def test_standardize_of_equal_values_is_zero() -> None:
    pipeline = pipeline_of(ServerScore(name="s", transform="standardize"))
    candidates = [Item(id=str(i)) for i in range(7)]
    batch = pipeline.emit(Request(user="u", time_ms=0, candidates=candidates, scores=[0.1] * 7))
    assert batch.arrays["dense"].tolist() == [[0.0]] * 7


@pytest.mark.parametrize("transform", ["none", "log1p", "standardize", "reciprocal", "affine"])
@pytest.mark.parametrize("big", [1e308, -1e308, 5e-324])
def test_extreme_numbers_stay_finite(transform: str, big: float) -> None:
    options: dict[str, Any] = {"transform": transform}
    if transform == "affine":
        options |= {"mean": -big, "scale": 1e-30}
    pipeline = pipeline_of(
        ServerScore(name="score", **options),
        ItemNumeric(name="item", field="x", **options),
        ContextNumeric(name="context", field="x", **options),
        ContextNumeric(name="default", field="y", default=big, **options),
        clicks(name="sum", weight="value", **options),
        MeanValue(name="mean", key="item", kinds=["click"], window=60, prior=1e308, prior_value=big, **options),
        *(
            Similarity(name=f"{reduce} {metric}", sequence="q", reduce=reduce, metric=metric, weighted=True, **options)
            for reduce in ("mean", "max", "last")
            for metric in ("dot", "cosine")
        ),
        embedding=True,
        items=ItemFields(numeric=["x"], embedding_dim=3),
        context=ContextFields(numeric=["x", "y"]),
        sequences=[SequenceFeature(name="q", kinds=["click"], length=3, embedding=True, dense=True)],
    )
    items = [Item(id=str(i), numeric={"x": big * (-1) ** i}, embedding=(big, -big, big / 3)) for i in range(3)]
    pipeline.remember(items)
    for i in range(5):
        pipeline.update(click("1", i, value=big))
    batch = pipeline.emit(
        Request(user="u", time_ms=9, candidates=items, scores=[big, -big, 0.0], context={"x": 10**400})
    )
    for name, array in batch.arrays.items():
        assert np.isfinite(array).all(), name


def test_sums_saturate_instead_of_turning_round() -> None:
    pipeline = pipeline_of(
        clicks(weight="value"),
        clicks(name="window", weight="value", window=60),
        clicks(name="session", weight="value", window="session"),
    )
    for i in range(300):
        pipeline.update(click("a", i // 100, value=1e12))
    assert dense_of(pipeline, "a", time_ms=0) == [[2.0**38] * 3]


def test_wrong_embeddings_are_refused_and_change_nothing() -> None:
    pipeline = pipeline_of(clicks(), items=ItemFields(embedding_dim=2))
    good, bad = Item(id="a", embedding=(1, 2)), Item(id="b", embedding=(1, 2, 3))
    expected = "item 'b': embedding of length 3, expected items.embedding_dim = 2 of the spec 'feed'"
    for attempt in (
        lambda: pipeline.remember([good, bad]),
        lambda: pipeline.emit(Request(user="u", time_ms=0, candidates=[bad])),
    ):
        with pytest.raises(EventError, match=expected):
            attempt()
    assert pipeline.remember([Item(id="first"), good]).tolist() == [0, 1]


def test_words_for_numbers_in_the_context_are_refused() -> None:
    pipeline = pipeline_of(ContextNumeric(name="h", field="hour"), context=ContextFields(numeric=["hour"]))
    request = Request(user="u", time_ms=0, candidates=[Item(id="a")], context={"hour": "noon"})
    with pytest.raises(EventError, match=r"request.context\['hour'\]: expected a number.*got 'noon'; send a number"):
        pipeline.emit(request)


def test_context_words_of_any_type_have_ids() -> None:
    pipeline = pipeline_of(
        context=ContextFields(categorical=["device"]), ids=[IdFeature(name="d", field="device", buckets=10**6)]
    )
    for value, text in (("phone", "phone"), (True, "true"), (3, "3"), (0.5, "0.5")):
        request = Request(user="u", time_ms=0, candidates=[Item(id="a")] * 2, context={"device": value})
        assert pipeline.emit(request).arrays["ids"].tolist() == [[bucket("device", text, 10**6)]] * 2


def test_more_candidates_than_items_are_remembered_is_refused() -> None:
    pipeline = pipeline_of(clicks(), max_items=2)
    items = [Item(id=name) for name in "abc"]
    with pytest.raises(InputError, match="3 different items at once, but the spec 'feed' remembers max_items = 2"):
        pipeline.remember(items)
    assert pipeline.remember(items[1:] * 2).tolist() == [0, 1, 0, 1]
    with pytest.raises(InputError, match="3 different items"):
        pipeline.emit(Request(user="u", time_ms=0, candidates=items))


def test_something_else_than_an_item_is_refused() -> None:
    with pytest.raises(InputError, match=r"items\[1\]: expected an Item, got str"):
        pipeline_of().remember([Item(id="a"), "b"])  # type: ignore[list-item]


def test_an_item_with_only_an_id_changes_nothing_of_what_is_known() -> None:
    spec = FeatureSpec.from_toml(
        'name = "feed"\n[items]\nmulti_categorical = {genres = 2}\nnumeric = ["price"]\n'
        '[[dense]]\nkind = "count"\nname = "likes"\nkey = "genres"\nkinds = ["like"]\nwindow = "ever"\n'
        '[[dense]]\nkind = "item_numeric"\nname = "price"\nfield = "price"\n'
    )
    pipeline = FeaturePipeline(spec)
    full = [Item(id=name, multi_categorical={"genres": ("drama",)}, numeric={"price": 3.0}) for name in "ab"]
    pipeline.remember(full)
    pipeline.emit(Request(user="u", time_ms=0, candidates=[Item(id="a")]))
    pipeline.update(Event(user="u", item="a", kind="like", time_ms=1))
    bare = pipeline.emit(Request(user="u", time_ms=2, candidates=[Item(id="b"), Item(id="a"), Item(id="new")]))
    assert bare.arrays["dense"].tolist() == [[1.0, 3.0], [1.0, 3.0], [0.0, 0.0]]
    known = pipeline.emit(Request(user="u", time_ms=2, candidates=full))
    assert known.arrays["dense"].tolist() == [[1.0, 3.0], [1.0, 3.0]]
