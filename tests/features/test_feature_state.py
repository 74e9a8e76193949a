"""Memory: growth, eviction, forgetting; and that none of them mixes up whose numbers are whose."""

import random
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features import compiler as code
from rerank_features.hashing import bucket, hash64
from rerank_features.ready import ready_spec
from rerank_features.spec import Count, ItemFields, ItemNumeric, SequenceFeature, SequenceId, TimeSince
from rerank_features.state import FlatState

ITEM_COUNT = 12


def small_spec(**limits: int) -> FeatureSpec:
    return FeatureSpec(
        name="small",
        items=ItemFields(categorical=["lang"], multi_categorical={"tags": 2}, numeric=["n"]),
        dense=[
            Count(name="ever", key="item", kinds=["click"], window="ever"),
            Count(name="hour", key="item", kinds=["click"], window=3600),
            Count(name="lang", key="lang", kinds=["click"], window="session"),
            Count(name="tags", key="tags", kinds=["click", "view"], window=3600),
            TimeSince(name="since", key="item", kinds=["view"], cap_s=10_000),
            ItemNumeric(name="n", field="n", default=-1),
        ],
        sequences=[
            SequenceFeature(
                name="q", kinds=["click"], length=3, ids=[SequenceId(field="item", buckets=10**6)], dense=True
            )
        ],
        **limits,
    )


def item(i: int) -> Item:
    return Item(
        id=f"i{i}",
        categorical={"lang": "abc"[i % 3]},
        multi_categorical={"tags": (f"t{i % 4}", f"t{i % 5}")},
        numeric={"n": i},
    )


ITEMS = [item(i) for i in range(ITEM_COUNT)]


def event(user: str, i: int, time_ms: int, kind: str = "click") -> Event:
    return Event(user=user, item=f"i{i}", kind=kind, time_ms=time_ms)


def arrays_of(pipeline: FeaturePipeline, user: str, time_ms: int = 0) -> dict[str, bytes]:
    batch = pipeline.emit(Request(user=user, time_ms=time_ms, candidates=ITEMS))
    return {name: array.tobytes() for name, array in batch.arrays.items()}


def fresh(events: list[Event]) -> FeaturePipeline:
    pipeline = FeaturePipeline(small_spec())
    pipeline.remember(ITEMS)
    for one in events:
        pipeline.update(one)
    return pipeline


def live_slots(pipeline: FeaturePipeline) -> np.ndarray:
    slots = pipeline._state.slots
    return np.flatnonzero(slots[:, code.SLOT_USER] >= 0)


def check_tables(pipeline: FeaturePipeline) -> None:
    """Every live slot is in the table once and in its user's list once; blocks do not overlap."""
    state, program = pipeline._state, pipeline._program
    live = live_slots(pipeline)
    listed = np.sort(state.table[state.table > 0] - 1)
    np.testing.assert_array_equal(listed, live)
    linked, blocks = [], []
    for user in state.user_rows.values():
        slot = state.users[user, code.FIRST_SLOT]
        while slot >= 0:
            assert state.slots[slot, code.SLOT_USER] == user
            linked.append(slot)
            first, end = program.keys[state.slots[slot, code.SLOT_KEY], [code.KEY_FIRST_COUNTER, code.KEY_END_COUNTER]]
            for c in range(first, end):
                block = state.slots[slot, code.SLOT_COUNTERS + 2 * (c - first)]
                if block >= 0:
                    blocks.append((block, block + program.counters[c, code.COUNTER_BLOCK_SIZE]))
            slot = state.slots[slot, code.SLOT_NEXT]
    np.testing.assert_array_equal(np.sort(linked), live)
    blocks.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(blocks))
    assert not blocks or blocks[-1][1] <= state.meta[code.META_POOL] <= state.pool.size


steps = st.lists(
    st.one_of(
        st.builds(
            event,
            st.sampled_from("uvwxyz"),
            st.integers(0, ITEM_COUNT - 1),
            st.integers(0, 10_000_000),
            st.sampled_from(["click", "view"]),
        ),
        st.sampled_from("uvwxyz"),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([1, 2, 3, 10]))
@settings(max_examples=100, deadline=None)
def test_users_come_and_go_without_a_trace(steps: list[Event | str], max_users: int) -> None:
    """A step is an event, or the name of a user to forget; the remembered users are those of a plain LRU list."""
    pipeline = FeaturePipeline(small_spec(max_users=max_users))
    pipeline.remember(ITEMS)
    expected: OrderedDict[str, list[Event]] = OrderedDict()
    for step in steps:
        if isinstance(step, str):
            pipeline.forget(step)
            expected.pop(step, None)
            continue
        pipeline.update(step)
        if step.user not in expected and len(expected) == max_users:
            expected.popitem(last=False)
        expected.setdefault(step.user, []).append(step)
        expected.move_to_end(step.user)
    check_tables(pipeline)
    for user in "uvwxyz":
        assert arrays_of(pipeline, user) == arrays_of(fresh(expected.get(user, [])), user)


def test_a_request_counts_as_use_of_a_user() -> None:
    pipeline = FeaturePipeline(small_spec(max_users=2))
    pipeline.update(event("u", 1, 0))
    pipeline.update(event("v", 1, 0))
    pipeline.emit(Request(user="u", time_ms=0, candidates=ITEMS))
    pipeline.update(event("w", 1, 0))
    clicks = [
        pipeline.emit(Request(user=user, time_ms=0, candidates=ITEMS[1:2])).arrays["dense"][0, 0] for user in "uvw"
    ]
    assert clicks == [1.0, 0.0, 1.0]


def test_forgetting_overwrites_the_memory() -> None:
    pipeline = FeaturePipeline(small_spec())
    pipeline.remember(ITEMS)
    state = pipeline._state
    rng = random.Random(0)
    secret_ms = 1_234_567_890_123
    for i in range(50):
        secret = event("u", rng.randrange(ITEM_COUNT), secret_ms + i, rng.choice(["click", "view"]))
        pipeline.update(secret.model_copy(update={"value": 1e6 + i}))
    pipeline.update(Event(user="u", item="known only by an event", kind="click", time_ms=secret_ms))
    assert state.pool.any()
    arrays_of(pipeline, "u")
    assert state.scratch_ints.any()
    pipeline.forget("u")
    assert "u" not in repr(list(state.user_rows))
    assert live_slots(pipeline).size == 0
    assert not state.table.any()
    assert not state.entries.any()
    assert not state.values.any()
    assert not any(scratch.any() for scratch in (state.scratch_ints, state.scratch_floats, state.scratch_singles))
    assert not any(pipeline._event)
    assert (state.slots[:, code.SLOT_VALUE] == -1).all()
    assert (state.slots[:, code.SLOT_COUNTERS :] == -1).all()
    # what is left in the pool are links between free blocks: places in the pool, or -1
    assert ((state.pool >= -1) & (state.pool < state.pool.size)).all()
    assert np.count_nonzero(state.pool) <= state.meta[code.META_SLOTS] * pipeline._program.counters.shape[0]
    assert "known only by an event" not in state.item_rows
    assert arrays_of(pipeline, "u") == arrays_of(fresh([]), "u")


def test_freed_memory_is_used_again() -> None:
    pipeline = FeaturePipeline(small_spec())
    pipeline.remember(ITEMS)
    sizes = set()
    for round_ in range(30):
        for i in range(ITEM_COUNT):
            pipeline.update(event(f"user {round_}", i, i))
        sizes.add((pipeline._state.meta[code.META_POOL], pipeline._state.slots.shape, pipeline._state.users.shape))
        pipeline.forget(f"user {round_}")
    assert len(sizes) == 1


def test_tables_grow_and_keep_every_count() -> None:
    spec = FeatureSpec(
        name="grow",
        dense=[
            Count(name="ever", key="item", kinds=["click"], window="ever"),
            Count(name="hour", key="item", kinds=["click"], window=3600),
        ],
    )
    pipeline = FeaturePipeline(spec)
    before = (pipeline._state.slots.shape[0], pipeline._state.pool.size, pipeline._state.users.shape[0])
    rng = random.Random(1)
    counts: dict[tuple[str, str], int] = {}
    for _ in range(6000):
        user, name = f"u{rng.randrange(20)}", f"i{rng.randrange(300)}"
        pipeline.update(Event(user=user, item=name, kind="click", time_ms=5))
        counts[user, name] = counts.get((user, name), 0) + 1
    after = (pipeline._state.slots.shape[0], pipeline._state.pool.size, pipeline._state.users.shape[0])
    assert all(new > 2 * old for old, new in zip(before, after, strict=True))
    candidates = [Item(id=f"i{i}") for i in range(300)]
    for u in range(20):
        dense = pipeline.emit(Request(user=f"u{u}", time_ms=6, candidates=candidates)).arrays["dense"]
        expected = [counts.get((f"u{u}", one.id), 0) for one in candidates]
        assert dense[:, 0].tolist() == expected
        assert dense[:, 1].tolist() == expected
    check_tables(pipeline)


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=40))
@settings(max_examples=100, deadline=None)
def test_items_are_pushed_out_in_the_order_of_use(batches: list[list[int]]) -> None:
    pipeline = FeaturePipeline(small_spec(max_items=7))
    expected: OrderedDict[str, None] = OrderedDict()
    for batch in batches:
        items = [item(i) for i in batch]
        rows = pipeline.remember(items)
        names = [one.id for one in items]
        assert [pipeline._state._item_at[row].id for row in rows] == names
        for name in names:
            expected[name] = None
        for name in names:
            expected.move_to_end(name)
        while len(expected) > 7:
            expected.popitem(last=False)
        assert set(pipeline._state.item_rows) == set(expected)
        dense = pipeline.emit(Request(user="u", time_ms=0, candidates=items)).arrays["dense"]
        assert dense[:, 5].tolist() == [float(i) for i in batch]
        for name in reversed(names):  # of a request the first candidate is the most recently used
            expected.move_to_end(name)
    state = pipeline._state
    assert len(state._row_of_object) == len(state.item_rows)
    for name, row in state.item_rows.items():
        assert int(state.items[row, code.ITEM_KEY]) % 2**64 == hash64("item", name)
    np.testing.assert_array_equal(np.sort(state.item_table[state.item_table > 0] - 1), sorted(state.item_rows.values()))


def test_an_event_counts_as_use_of_an_item() -> None:
    pipeline = FeaturePipeline(small_spec(max_items=2))
    pipeline.remember([item(0), item(1)])
    pipeline.update(event("u", 0, 0))
    pipeline.remember([item(2)])
    assert set(pipeline._state.item_rows) == {"i0", "i2"}


def test_counts_and_sequences_survive_the_item() -> None:
    pipeline = FeaturePipeline(small_spec(max_items=1))
    pipeline.remember([item(0)])
    pipeline.update(event("u", 0, 0))
    pipeline.remember([item(1)])
    arrays = pipeline.emit(Request(user="u", time_ms=0, candidates=[item(0)])).arrays
    assert arrays["dense"][0, :4].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert arrays["q_ids"][:, 0].tolist() == [bucket("item", "i0", 10**6), 0, 0]


def test_item_rows_grow() -> None:
    pipeline = FeaturePipeline(small_spec())
    items = [item(i) for i in range(1000)]
    assert pipeline.remember(items[:100]).tolist() == list(range(100))
    assert pipeline.remember(items).tolist() == list(range(1000))
    dense = pipeline.emit(Request(user="u", time_ms=0, candidates=items)).arrays["dense"]
    assert dense[:, 5].tolist() == list(range(1000))


def test_reset_is_a_new_pipeline() -> None:
    rng = random.Random(2)
    events = [event("u", rng.randrange(ITEM_COUNT), rng.randrange(10**7)) for _ in range(80)]
    pipeline = fresh(events)
    pipeline.reset()
    assert arrays_of(pipeline, "u") == arrays_of(fresh([]), "u")
    for one in events:
        pipeline.update(one)
    assert arrays_of(pipeline, "u") == arrays_of(fresh(events), "u")


def test_two_pipelines_with_the_same_history_agree_bit_for_bit() -> None:
    rng = random.Random(3)
    events = [event(rng.choice("uv"), rng.randrange(ITEM_COUNT), rng.randrange(10**7)) for _ in range(200)]
    one, other = fresh(events), fresh(events)
    for _ in range(3):  # asking changes no count
        assert arrays_of(one, "u", 10**7) == arrays_of(other, "u", 10**7)


def test_a_sequence_keeps_the_newest_whatever_arrives_when() -> None:
    pipeline = fresh([event("u", i, time_ms) for i, time_ms in enumerate((50, 10, 40, 30, 20, 60))])
    ids = pipeline.emit(Request(user="u", time_ms=60, candidates=[])).arrays["q_ids"][:, 0]
    assert ids.tolist() == [bucket("item", f"i{i}", 10**6) for i in (5, 0, 2)]


def test_users_beyond_the_active_ones_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatState.__init__, "__defaults__", (3,))
    spec = small_spec(max_users=8)
    pipeline = FeaturePipeline(spec)
    pipeline.remember(ITEMS)
    rng = random.Random(4)
    history: dict[str, list[Event]] = {}
    for place in range(400):
        one = event(f"u{rng.randrange(7)}", rng.randrange(ITEM_COUNT), 1000 * place, rng.choice(["click", "view"]))
        pipeline.update(one)
        history.setdefault(one.user, []).append(one)
        if place % 50 == 49:
            check_tables(pipeline)
            assert len(pipeline._state.user_rows) == 3
    plain = {user: fresh(events) for user, events in history.items()}
    for user in history:
        assert pipeline.knows(user)
        assert pipeline.save(user) is not None
        assert arrays_of(pipeline, user) == arrays_of(plain[user], user)
    pipeline.forget("u3")
    assert not pipeline.knows("u3")
    for name in ("x", "y", "z"):  # one more than there is room for: the least recently used goes
        pipeline.update(event(name, 1, 0))
    assert len(pipeline._state.user_rows) + len(pipeline._state.parked) == 8


def test_parked_states_are_small() -> None:
    """At most 64 kB for each of many users, with everything that an active one has."""
    spec = ready_spec("edgerec")
    pipeline = FeaturePipeline(spec)
    rng = random.Random(1)
    items = [
        Item(
            id=f"i{n}",
            categorical={"category": f"c{n % 40}", "shop": f"s{n % 90}", "brand": f"b{n % 60}"},
            numeric={"price": float(n)},
        )
        for n in range(400)
    ]
    pipeline.remember(items)
    for place in range(600):
        pipeline.update(
            Event(
                user="u",
                item=f"i{rng.randrange(400)}",
                kind=rng.choice(["impression", "impression", "impression", "click", "dwell"]),
                time_ms=10**12 + 7_000 * place,
                value=rng.random(),
            )
        )
    saved = pipeline.save("u")
    assert saved is not None
    assert len(saved) < 64_000


def test_ten_thousand_users_in_one_process() -> None:
    """As many as a spec remembers by default: all are known, and none has another's numbers."""
    pipeline = FeaturePipeline(small_spec())
    pipeline.remember(ITEMS)
    users = small_spec().max_users
    for number in range(users):
        for place in range(number % 3 + 1):
            pipeline.update(event(f"u{number}", number % ITEM_COUNT, 1_000 * place))
    assert all(pipeline.knows(f"u{number}") for number in range(users))
    for number in (0, 1, 4_321, users - 1):
        request = Request(user=f"u{number}", time_ms=5_000, candidates=ITEMS)
        expected = [float(number % 3 + 1) if place == number % ITEM_COUNT else 0.0 for place in range(ITEM_COUNT)]
        assert pipeline.emit(request).arrays["dense"][:, 0].tolist() == expected
    pipeline.update(event("one more", 0, 0))
    assert not pipeline.knows("u2")  # the least recently used
    assert sum(map(len, pipeline._state.parked.values())) < 5_000 * users
    assert pipeline._state.users.shape[0] <= 2 * 256
