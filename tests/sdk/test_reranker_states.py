"""Saved states: a restart reads less and ranks the same; nothing is counted twice, whoever else writes."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.spec import Count, ItemFields, SequenceFeature, ServerRank
from rerank_sdk import Reranker, histories
from rerank_sdk.bundle import Bundle
from rerank_sdk.store import EventStore, StoreLimits

ITEMS = [Item(id=f"i{n}", categorical={"genre": f"g{n % 4}"}) for n in range(12)]


def events_of(user: str, count: int, seed: int = 0, start: int = 0) -> list[Event]:
    rng = random.Random(f"{user} {seed}")
    return [
        Event(
            user=user,
            item=rng.choice(ITEMS).id,
            kind=rng.choice(["click", "impression"]),
            time_ms=10**12 + 60_000 * (start + place),
        )
        for place in range(count)
    ]


def spec() -> FeatureSpec:
    return FeatureSpec(
        name="states",
        items=ItemFields(categorical=["genre"]),
        dense=[
            ServerRank(name="rank"),
            Count(name="mine", key="genre", kinds=["click"], window="ever"),
            Count(name="session", key="item", kinds=["click", "impression"], window="session"),
            Count(name="everyone", key="item", kinds=["click"], window="ever", scope="everyone"),
        ],
        sequences=[SequenceFeature(name="recent", kinds=["click"], length=5, dense=True)],
    )


@pytest.fixture
def bundle(kit: Any) -> Bundle:
    weight = np.array([0.5, 1.0, 0.25, 0.125], np.float32)
    return Bundle.build("states", kit.make_linear_model(weight), spec())


def features(reranker: Reranker, user: str) -> dict[str, bytes]:
    scorer = reranker._scorer
    assert scorer is not None
    reranker.rerank(Request(user=user, time_ms=10**12 + 10**9, candidates=ITEMS))  # loads the user
    batch = scorer.pipeline.emit(Request(user=user, time_ms=10**12 + 10**9, candidates=ITEMS))
    return {name: array.tobytes() for name, array in batch.arrays.items()}


def open_at(path: Path, bundle: Bundle, **options: Any) -> Reranker:
    cache = path.parent / "machine-code"
    return Reranker.open(path / "state", bundle, deadline_ms=None, strict=True, cache_dir=cache, **options)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each history read from the store."""
    found: list[int] = []
    real = EventStore.read_after

    def read_after(self: EventStore, user: str, row: int) -> Any:
        listed = list(real(self, user, row))
        found.append(len(listed))
        return iter(listed)

    monkeypatch.setattr(EventStore, "read_after", read_after)
    return found


def test_a_restart_goes_on_from_the_saved_state(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = events_of("u", 300), events_of("u", 40, seed=1, start=300)
    with open_at(tmp_path / "a", bundle) as reranker:
        reranker.remember(ITEMS)
        assert reranker.track(first) == 300
    tails = counted_reads(monkeypatch)
    with open_at(tmp_path / "a", bundle) as reranker:
        reranker.track(later)
        with open_at(tmp_path / "b", bundle) as whole:
            whole.remember(ITEMS)
            whole.track([*first, *later])
            assert features(reranker, "u") == features(whole, "u")
    assert tails == [0]
    # Fewer than a hundred events were new: the state was not saved again, but the tail is read.
    with open_at(tmp_path / "a", bundle) as reranker, open_at(tmp_path / "b", bundle) as whole:
        assert features(reranker, "u") == features(whole, "u")
    assert tails[1] == 40


def test_a_repeated_delivery_after_a_restart_counts_once(tmp_path: Path, bundle: Bundle) -> None:
    events = events_of("u", 200)
    with open_at(tmp_path, bundle) as reranker:
        reranker.remember(ITEMS)
        reranker.track(events)
        before = features(reranker, "u")
    with open_at(tmp_path, bundle) as reranker:
        assert reranker.track(events[-50:]) == 0
        assert features(reranker, "u") == before


def test_everyone_is_counted_once_however_often_users_are_read(tmp_path: Path, bundle: Bundle) -> None:
    users = [f"u{n}" for n in range(5)]
    with open_at(tmp_path, bundle) as reranker:
        reranker.remember(ITEMS)
        for user in users:
            reranker.track(events_of(user, 120))
        before = {user: features(reranker, user) for user in users}
    for _ in range(2):
        with open_at(tmp_path, bundle) as reranker:
            for user in users:
                assert features(reranker, user) == before[user]


def test_states_are_saved_as_events_come(tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SAVE_EVERY_EVENTS", 50)
    reranker = open_at(tmp_path, bundle)
    reranker.remember(ITEMS)
    reranker.track(events_of("u", 70))
    reranker.flush()
    with EventStore.open(tmp_path / "state" / "events.db") as store:
        saved = store.load_state("u", spec().content_hash())
        assert saved is not None
        assert len(list(store.read_after("u", saved.last_row))) == 20
    reranker.close()


def test_a_state_that_misses_what_others_wrote_is_not_saved(tmp_path: Path, bundle: Bundle) -> None:
    with open_at(tmp_path, bundle) as reranker:
        reranker.remember(ITEMS)
        reranker.track(events_of("u", 150))
        with EventStore.open(tmp_path / "state" / "events.db") as other:
            other.append_many(events_of("u", 30, seed=2, start=500))
    with EventStore.open(tmp_path / "state" / "events.db") as store:
        assert store.load_state("u", spec().content_hash()) is None
    with open_at(tmp_path, bundle) as reranker, open_at(tmp_path / "whole", bundle) as whole:
        whole.remember(ITEMS)
        whole.track([*events_of("u", 150), *events_of("u", 30, seed=2, start=500)])
        assert features(reranker, "u") == features(whole, "u")


def test_a_damaged_state_is_replaced_by_a_replay(
    tmp_path: Path, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with open_at(tmp_path, bundle) as reranker:
        reranker.remember(ITEMS)
        reranker.track(events_of("u", 150))
        before = features(reranker, "u")
    with EventStore.open(tmp_path / "state" / "events.db") as store:
        store.save_state("u", spec().content_hash(), store.last_row("u"), b"no state")
    with open_at(tmp_path, bundle) as reranker:
        assert features(reranker, "u") == before
    assert "replay the events instead" in caplog.text


def test_pruned_events_stay_in_the_features(tmp_path: Path, bundle: Bundle) -> None:
    events = events_of("u", 400)
    with open_at(tmp_path, bundle, limits=StoreLimits(max_rows=100)) as reranker:
        reranker.remember(ITEMS)
        reranker.track(events)
        before = features(reranker, "u")
        assert reranker.prune(10**12 + 10**9).rows == 300
        assert features(reranker, "u") == before
    with open_at(tmp_path, bundle) as reranker:
        # Counts of everyone are made of the events that are still there.
        after = features(reranker, "u")
        dense = [np.frombuffer(one["dense"], np.float32).reshape(len(ITEMS), -1) for one in (before, after)]
        assert dense[0][:, :3].tolist() == dense[1][:, :3].tolist()
        assert after["recent_dense"] == before["recent_dense"]


def test_forgetting_erases_the_state(tmp_path: Path, bundle: Bundle) -> None:
    with open_at(tmp_path, bundle) as reranker:
        reranker.remember(ITEMS)
        reranker.track(events_of("u", 150))
    with open_at(tmp_path, bundle) as reranker:
        reranker.forget("u")
    with closing(EventStore.open(tmp_path / "state" / "events.db")) as store:
        assert store.load_state("u", spec().content_hash()) is None
