"""The constructed server, on a made-up log of two tastes: what it knows, when, and what it must not know."""

import sys
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import DataError, InputError, MissingExtraError
from rerank_simulator.logs import RatingLog
from rerank_simulator.server import ServerConfig, ServerRecommender, fixed_item_embeddings

DAY_MS = 86_400_000
USERS, ITEMS = 30, 40
CONFIG = ServerConfig(factors=4, regularization=1.0, popularity_weight=0.5, list_length=10)


def make_log(rows: list[tuple[int, int, float, int]]) -> RatingLog:
    """A log of (user, item, rating, time_ms) over fixed users and items."""
    user, item, rating, time_ms = (np.array(column) for column in zip(*rows, strict=True))
    return RatingLog.from_rows(
        user,
        item,
        rating,
        time_ms,
        user_ids=[f"u{number}" for number in range(USERS)],
        item_ids=[f"i{number}" for number in range(ITEMS)],
    )


@pytest.fixture(scope="module")
def rows() -> list[tuple[int, int, float, int]]:
    """Even users like items 0 to 19, odd users 20 to 39, over 28 days; user 29 stays silent."""
    generator = np.random.default_rng(20)
    found = []
    for user in range(USERS - 1):
        for item in generator.permutation(20)[:12]:
            rating = float(generator.choice([3, 4, 5], p=[0.2, 0.4, 0.4]))
            found.append((user, int(item) + 20 * (user % 2), rating, int(generator.integers(0, 28 * DAY_MS))))
    return [(0, 0, 5.0, 0), *(row for row in found if row[:2] != (0, 0))]


@pytest.fixture(scope="module")
def log(rows: list[tuple[int, int, float, int]]) -> RatingLog:
    return make_log(rows)


@pytest.fixture(scope="module")
def server(log: RatingLog) -> ServerRecommender:
    return ServerRecommender(log, CONFIG)


def rated_before(log: RatingLog, user: int, time_ms: int) -> set[int]:
    return set(log.item[(log.user == user) & (log.time_ms < time_ms)].tolist())


def test_lists_are_sorted_capped_and_hold_only_new_known_items(server: ServerRecommender, log: RatingLog) -> None:
    for user in range(USERS):
        for time_ms in (8 * DAY_MS, 20 * DAY_MS):
            found = server.list_for(user, time_ms)
            items = found.candidates.tolist()
            known = set(log.item[log.time_ms < found.trained_ms].tolist())
            expected = known - rated_before(log, user, time_ms)
            assert len(items) == len(set(items)) == min(10, len(expected))
            assert set(items) <= expected
            assert (np.diff(found.scores) <= 0).all()
            assert (found.candidates.dtype, found.scores.dtype) == (np.int32, np.float32)


def test_full_list_holds_every_new_known_item(log: RatingLog) -> None:
    server = ServerRecommender(log, ServerConfig(factors=4))
    found = server.list_for(2, 20 * DAY_MS)
    known = set(log.item[log.time_ms < found.trained_ms].tolist())
    assert set(found.candidates.tolist()) == known - rated_before(log, 2, 20 * DAY_MS)


@pytest.mark.parametrize("user", [4, 7])
def test_taste_is_learned(server: ServerRecommender, user: Any) -> None:
    found = server.list_for(user, 22 * DAY_MS).candidates
    own = found // 20 == user % 2
    assert own[:3].all()


def test_the_future_is_unknown(
    rows: list[tuple[int, int, float, int]], log: RatingLog, server: ServerRecommender
) -> None:
    """A log cut at the visit's start gives the same lists: whatever comes at or after it has no influence."""
    for user, time_ms in ((3, 9 * DAY_MS + 5), (8, 15 * DAY_MS), (29, 21 * DAY_MS)):
        cut = ServerRecommender(make_log([row for row in rows if row[3] < time_ms]), CONFIG)
        whole, known = server.list_for(user, time_ms), cut.list_for(user, time_ms)
        assert whole.candidates.tolist() == known.candidates.tolist()
        assert whole.scores.tolist() == known.scores.tolist()


def test_event_at_the_very_start_of_the_visit_is_unknown(rows: list[tuple[int, int, float, int]]) -> None:
    time_ms = 16 * DAY_MS
    user = 29
    with_event = ServerRecommender(make_log([*rows, (user, 25, 5.0, time_ms)]), CONFIG)
    assert 25 in ServerRecommender(make_log(rows), ServerConfig(factors=4)).list_for(user, time_ms).candidates
    before, after = (with_event.list_for(user, moment) for moment in (time_ms, time_ms + 1))
    assert (
        before.candidates.tolist()
        == ServerRecommender(make_log(rows), CONFIG).list_for(user, time_ms).candidates.tolist()
    )
    assert 25 not in after.candidates


def test_own_past_since_the_training_is_folded_in(rows: list[tuple[int, int, float, int]]) -> None:
    time_ms = 15 * DAY_MS
    fresh = [(29, item, 5.0, time_ms - 1000 + item) for item in (21, 22, 23, 24)]
    plain = ServerRecommender(make_log(rows), CONFIG)
    informed = ServerRecommender(make_log([*rows, *fresh]), CONFIG)
    assert informed.list_for(29, time_ms).trained_ms == plain.list_for(29, time_ms).trained_ms < time_ms - 1000
    # Without a past: popularity, of both tastes alike. With four likes of one taste: mostly that one.
    of_taste = [(server.list_for(29, time_ms).candidates >= 20).sum() for server in (plain, informed)]
    assert of_taste[0] <= 6
    assert of_taste[1] >= 8
    # Others see no difference until the next training.
    assert informed.list_for(5, time_ms).scores.tolist() == plain.list_for(5, time_ms).scores.tolist()


@pytest.mark.parametrize("past", [[], [(29, 0, 2.0, 13 * DAY_MS)]])
def test_user_without_a_like_gets_recent_popularity(rows: list[tuple[int, int, float, int]], past: Any) -> None:
    log = make_log([*rows, *past])
    found = ServerRecommender(log, ServerConfig(factors=4)).list_for(29, 14 * DAY_MS)
    liked = (log.rating >= 4) & (log.time_ms < 14 * DAY_MS)
    weight = 0.5 ** ((14 * DAY_MS - log.time_ms[liked]) / (7 * DAY_MS))
    popularity = np.bincount(log.item[liked], weight, minlength=ITEMS)
    count = np.bincount(log.item[log.time_ms < 14 * DAY_MS], minlength=ITEMS)
    order = sorted(np.flatnonzero(count), key=lambda item: (-popularity[item], -count[item], item))
    assert found.candidates.tolist() == [item for item in order if item not in rated_before(log, 29, 14 * DAY_MS)]


def test_snapshots_follow_the_schedule(server: ServerRecommender, log: RatingLog) -> None:
    moments = [0, 7 * DAY_MS - 1, 7 * DAY_MS, 13 * DAY_MS, 27 * DAY_MS]
    assert [server.snapshot_at(moment).trained_ms // DAY_MS for moment in moments] == [0, 0, 7, 7, 21]
    assert server.snapshot_at(8 * DAY_MS) is server.snapshot_at(9 * DAY_MS)


def test_retraining_period_below_a_millisecond_is_one(log: RatingLog) -> None:
    server = ServerRecommender(log, ServerConfig(factors=2, retrain_days=1e-12))
    assert server.snapshot_at(12_345).trained_ms == 12_345


def test_snapshot_counts_and_means_of_the_past(server: ServerRecommender, log: RatingLog) -> None:
    snapshot = server.snapshot_at(15 * DAY_MS)
    past = log.time_ms < 14 * DAY_MS
    for item in range(ITEMS):
        ratings = log.rating[past & (log.item == item)]
        assert snapshot.item_popularity[item] == len(ratings)
        if len(ratings):
            assert snapshot.item_mean_rating[item] == pytest.approx(ratings.mean())
        else:
            assert np.isnan(snapshot.item_mean_rating[item])
    assert not snapshot.item_popularity.flags.writeable
    assert not snapshot.factors.flags.writeable


def test_first_period_knows_nothing(server: ServerRecommender) -> None:
    found = server.list_for(5, 3 * DAY_MS)
    assert (len(found.candidates), len(found.scores), found.trained_ms) == (0, 0, 0)
    assert np.isnan(server.snapshot_at(0).item_mean_rating).all()


def test_order_of_questions_does_not_matter(log: RatingLog, server: ServerRecommender) -> None:
    other = ServerRecommender(log, CONFIG)
    for time_ms in (25 * DAY_MS, 10 * DAY_MS):
        assert other.list_for(6, time_ms).scores.tolist() == server.list_for(6, time_ms).scores.tolist()


def test_log_without_a_like_gives_lists_by_count(rows: list[tuple[int, int, float, int]]) -> None:
    dull = make_log([(user, item, 2.0, time_ms) for user, item, _, time_ms in rows])
    found = ServerRecommender(dull, CONFIG).list_for(29, 20 * DAY_MS)
    count = ServerRecommender(dull, CONFIG).snapshot_at(20 * DAY_MS).item_popularity
    assert len(found.candidates) == 10
    assert (np.diff(count[found.candidates]) <= 0).all()


def test_an_item_liked_twice_is_one_like(rows: list[tuple[int, int, float, int]]) -> None:
    """The same like given again a moment later changes popularity, but not what is known of the user's taste."""
    doubled = make_log([*rows, *((user, item, rating, time_ms + 1) for user, item, rating, time_ms in rows)])
    config = ServerConfig(factors=4, popularity_weight=0.0)
    once, twice = (ServerRecommender(log, config).snapshot_at(15 * DAY_MS) for log in (make_log(rows), doubled))
    np.testing.assert_array_equal(once.factors, twice.factors)


@pytest.mark.parametrize("user", [-1, USERS, 1.0, True, None])
def test_unknown_user_is_refused(server: ServerRecommender, user: Any) -> None:
    with pytest.raises(InputError, match="user must be a position from 0 to 29"):
        server.list_for(user, 8 * DAY_MS)


@pytest.mark.parametrize("time_ms", [-1, 1.5, None, True])
def test_moment_before_the_log_is_refused(server: ServerRecommender, time_ms: Any) -> None:
    with pytest.raises(InputError, match="time_ms must be an integer from the log's first event"):
        server.snapshot_at(time_ms)


def test_empty_log_is_refused() -> None:
    empty = RatingLog.from_rows([], [], [], [], user_ids=[], item_ids=[])
    with pytest.raises(DataError, match="no events"):
        ServerRecommender(empty)


def test_missing_library_names_the_extra(log: RatingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    with pytest.raises(MissingExtraError, match=r"rerank-sdk\[simulator\]"):
        ServerRecommender(log)


def test_embeddings_name_the_extra_too(log: RatingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with pytest.raises(MissingExtraError, match=r"rerank-sdk\[simulator\]"):
        fixed_item_embeddings(log, DAY_MS, 2)


def test_seed_decides(log: RatingLog, server: ServerRecommender) -> None:
    scores = [
        ServerRecommender(log, ServerConfig(factors=4, seed=seed)).list_for(3, 20 * DAY_MS).scores.tolist()
        for seed in (5, 5, 6)
    ]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("factors", 0),
        ("factors", 2.0),
        ("alpha", 0),
        ("alpha", "4"),
        ("regularization", -1),
        ("iterations", True),
        ("popularity_weight", float("nan")),
        ("popularity_half_life_days", 0),
        ("retrain_days", -7),
        ("list_length", 0),
        ("seed", -1),
    ],
)
def test_wrong_settings_are_refused(option: Any, value: Any) -> None:
    with pytest.raises(InputError, match=option):
        ServerConfig(**{option: value})


def test_embeddings_put_items_of_one_taste_together(log: RatingLog) -> None:
    rows = fixed_item_embeddings(log, 28 * DAY_MS, 4)
    assert (rows.shape, rows.dtype) == ((ITEMS, 4), np.float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    likeness = rows @ rows.T
    assert likeness[:20, :20].mean() > likeness[:20, 20:].mean() + 0.3


def test_embeddings_know_nothing_later(log: RatingLog, rows: list[tuple[int, int, float, int]]) -> None:
    before_ms = 10 * DAY_MS
    cut = make_log([row for row in rows if row[3] < before_ms])
    found = fixed_item_embeddings(log, before_ms, 6)
    np.testing.assert_array_equal(found, fixed_item_embeddings(cut, 99 * DAY_MS, 6))
    unseen = np.setdiff1d(np.arange(ITEMS), cut.item)
    assert not found[unseen].any()
    assert np.linalg.norm(found[np.unique(cut.item)], axis=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("users", [3, 60])
def test_embeddings_agree_with_a_full_decomposition(users: Any) -> None:
    """More items than users, and fewer: both sides' Gram matrices lead to the same rows, signs included."""
    generator = np.random.default_rng(users)
    rated = generator.random((users, 12)) < 0.4
    rated[:, 11] = False
    user, item = np.nonzero(rated)
    log = RatingLog.from_rows(
        user,
        item,
        [4] * len(user),
        [0] * len(user),
        user_ids=[str(number) for number in range(users)],
        item_ids=[str(number) for number in range(12)],
    )
    matrix = rated / np.maximum(np.linalg.norm(rated, axis=1, keepdims=True), 1e-12)
    matrix = matrix / np.maximum(np.linalg.norm(matrix, axis=0), 1e-12)
    _, strength, components = np.linalg.svd(matrix, full_matrices=False)
    peaks = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    expected = (components.T * (np.sign(peaks) * strength))[:, :2]
    known = rated.any(axis=0)
    expected[known] /= np.linalg.norm(expected[known], axis=1, keepdims=True)
    expected[~known] = 0
    np.testing.assert_allclose(fixed_item_embeddings(log, 1, 2), expected, atol=1e-6)


def test_components_that_the_data_lack_are_zero() -> None:
    log = RatingLog.from_rows([0, 0, 1], [0, 1, 2], [5, 5, 5], [0, 0, 0], user_ids="uv", item_ids="abcd")
    rows = fixed_item_embeddings(log, 1, 8)
    np.testing.assert_allclose((rows @ rows.T)[:3, :3], [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-6)
    assert not rows[:, 2:].any()
    assert not rows[3].any()


def test_embeddings_of_no_events_are_zero(log: RatingLog) -> None:
    assert not fixed_item_embeddings(log, 0, 3).any()


@pytest.mark.parametrize("dim", [0, -1, 2.0, True])
def test_dim_must_be_positive(log: RatingLog, dim: Any) -> None:
    with pytest.raises(InputError, match="dim"):
        fixed_item_embeddings(log, 1, dim)
