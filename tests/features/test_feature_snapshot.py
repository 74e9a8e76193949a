"""A saved state goes on as if all events had been replayed, to the byte."""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import InputError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features import compiler as code
from rerank_features.spec import Count, SequenceFeature
from tests.features.test_feature_history import random_spec
from tests.features.test_feature_reference import every_feature, make_items

USERS = ("u", "v")
ITEMS = make_items(9, 3)


def spec_of(source: str, rng: random.Random) -> FeatureSpec:
    return every_feature() if source == "every feature" else random_spec(rng)


def random_events(spec: FeatureSpec, rng: random.Random, count: int) -> list[Event]:
    kinds = sorted({"view", "click", "hide", "like", "impression", "other"})
    return [
        Event(
            user=rng.choice(USERS),
            item=f"i{rng.randrange(12)}",
            kind=rng.choice(kinds),
            time_ms=10**12 + rng.randrange(3_000_000),
            value=rng.choice([None, 0.5, 3.25]),
            position=rng.choice([None, 0, 7]),
        )
        for _ in range(count)
    ]


def ready(spec: FeatureSpec) -> FeaturePipeline:
    pipeline = FeaturePipeline(spec)
    pipeline.remember(ITEMS)
    return pipeline


def arrays_of(pipeline: FeaturePipeline, user: str) -> dict[str, bytes]:
    request = Request(user=user, time_ms=10**12 + 4_000_000, candidates=ITEMS)
    return {name: array.tobytes() for name, array in pipeline.emit(request).arrays.items()}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(0, 80), share=st.floats(0, 1))
@pytest.mark.parametrize("source", ["history", "every feature"])
def test_saved_state_and_the_events_after_it_are_a_replay_of_all(
    source: str, seed: int, count: int, share: float
) -> None:
    rng = random.Random(seed)
    spec = spec_of(source, rng)
    events = random_events(spec, rng, count)
    cut = int(share * count)
    whole = ready(spec)
    for event in events[:cut]:
        whole.update(event)
    saved = {user: whole.save(user) for user in USERS}
    everyone = whole.save_everyone()
    for event in events[cut:]:
        whole.update(event)
    again = ready(spec)
    again.restore_everyone(events[cut:], everyone)
    for user in rng.sample(USERS, 2):
        again.restore(user, [event for event in events[cut:] if event.user == user], saved[user])
    replayed = ready(spec)
    replayed.restore_everyone(events)
    for user in USERS:
        replayed.restore(user, [event for event in events if event.user == user])
    for user in USERS:
        assert again.knows(user) == replayed.knows(user) == whole.knows(user)
        assert again.save(user) == whole.save(user) == replayed.save(user)
        assert arrays_of(again, user) == arrays_of(whole, user) == arrays_of(replayed, user)
    assert again.save_everyone() == whole.save_everyone() == replayed.save_everyone()


def test_restoring_twice_counts_once() -> None:
    rng = random.Random(5)
    spec = random_spec(rng)
    events = random_events(spec, rng, 60)
    pipeline = ready(spec)
    for event in events:
        pipeline.update(event)
    before = arrays_of(pipeline, "u"), arrays_of(pipeline, "v")
    for _ in range(3):
        pipeline.restore("u", [event for event in events if event.user == "u"])
        pipeline.restore("v", [], pipeline.save("v"))
    assert (arrays_of(pipeline, "u"), arrays_of(pipeline, "v")) == before


def test_eviction_goes_on_in_the_order_of_use() -> None:
    spec = FeatureSpec(
        name="few",
        max_counters=4,
        dense=[Count(name="clicks", key="item", kinds=["click"], window="ever")],
    )
    whole = FeaturePipeline(spec)

    def click(item: str, time_ms: int) -> Event:
        return Event(user="u", item=item, kind="click", time_ms=time_ms)

    for place, item in enumerate("abcdab"):  # c is the one whose last use lies furthest back
        whole.update(click(item, place))
    again = FeaturePipeline(spec)
    again.restore("u", [click("e", 9)], whole.save("u"))
    whole.update(click("e", 9))
    request = Request(user="u", time_ms=10, candidates=[Item(id=name) for name in "abcde"])
    assert again.emit(request).arrays["dense"][:, 0].tolist() == [2, 2, 0, 1, 1]
    assert again.save("u") == whole.save("u")


def test_an_unknown_user_has_nothing_to_save() -> None:
    pipeline = ready(every_feature())
    assert pipeline.save("nobody") is None
    assert not pipeline.restore("nobody", [])
    assert not pipeline.knows("nobody")
    plain = FeaturePipeline(FeatureSpec(name="plain"))
    assert plain.save_everyone() is None


def tracked(pipeline: FeaturePipeline) -> bytes:
    for event in random_events(pipeline.spec, random.Random(1), 40):
        pipeline.update(event)
    saved = pipeline.save("u")
    assert saved is not None
    return saved


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_and_change_nothing_of_others(data: st.DataObject) -> None:
    pipeline = ready(every_feature())
    saved = bytearray(tracked(pipeline))
    others = arrays_of(pipeline, "v")
    how = data.draw(st.sampled_from(["flip", "cut", "extend"]))
    if how == "flip":
        saved[data.draw(st.integers(0, len(saved) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del saved[data.draw(st.integers(0, len(saved) - 1)) :]
    else:
        saved += b"\0"
    with pytest.raises(InputError, match="replay the events instead"):
        pipeline.restore("u", [], bytes(saved))
    assert not pipeline.knows("u")
    assert arrays_of(pipeline, "v") == others


HEADER = struct.Struct("<4sI16sQQ")


@pytest.mark.parametrize("place", ["sessions", "start", "count", "key"])
def test_impossible_cells_are_refused(place: str) -> None:
    """Even with right checksums no cell may lead the machine code out of its arrays."""
    pipeline = ready(every_feature())
    saved = tracked(pipeline)
    fields = list(HEADER.unpack_from(saved))
    cells = np.frombuffer(zlib.decompress(saved[HEADER.size : -4]), np.int64).copy()
    users = pipeline._state.users.shape[1]
    fixed = users + pipeline._state.entries.shape[1] + pipeline._state.values.shape[1]
    at = {
        "sessions": code.SESSION_COUNT,
        "start": code.USER_SEQUENCES,
        "count": code.USER_SEQUENCES + 1,
        "key": fixed,
    }[place]
    for value in (-1, 10**6, -(2**63), 2**63 - 1):
        changed = cells.copy()
        changed[at] = value
        forged = HEADER.pack(*fields) + zlib.compress(changed.tobytes(), 1)
        forged += struct.pack("<I", zlib.crc32(forged))
        with pytest.raises(InputError, match="replay the events instead"):
            pipeline.restore("u", [], forged)
        assert not pipeline.knows("u")
    assert pipeline.restore("u", [], saved)


def test_a_state_of_another_spec_is_refused() -> None:
    one = FeaturePipeline(
        FeatureSpec(name="one", sequences=[SequenceFeature(name="s", kinds=["click"], length=3, dense=True)])
    )
    one.update(Event(user="u", item="a", kind="click", time_ms=1))
    other = ready(every_feature())
    with pytest.raises(InputError, match="another release or spec"):
        other.restore("u", [], one.save("u"))


def test_events_of_another_user_are_refused() -> None:
    pipeline = ready(every_feature())
    with pytest.raises(InputError, match="another user than 'u'"):
        pipeline.restore("u", [Event(user="v", item="a", kind="click", time_ms=1)])


def test_a_saved_state_holds_no_name() -> None:
    pipeline = ready(every_feature())
    pipeline.update(Event(user="secret user", item="secret item", kind="click", time_ms=10**12))
    saved = pipeline.save("secret user")
    assert saved is not None
    assert b"secret" not in saved + zlib.decompress(saved[HEADER.size : -4])
