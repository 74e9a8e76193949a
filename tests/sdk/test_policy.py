"""The order by score: stable, pinned candidates in their places, nothing lost."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rerank_sdk.policy import order_unpinned

SCORES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45])
)
LISTS = st.lists(st.tuples(SCORES, st.booleans()), max_size=40)


def arrays(entries):
    scores = np.array([score for score, _ in entries], np.float32)
    return scores, np.array([pin for _, pin in entries], np.bool_)


@given(LISTS)
@example([])
@example([(1.0, True)])
def test_pinned_stay_and_the_others_fall_in_score(entries):
    scores, pinned = arrays(entries)
    order = order_unpinned(scores, pinned)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(len(entries)))
    np.testing.assert_array_equal(order[pinned], np.flatnonzero(pinned))
    free = scores[order[~pinned]]
    assert (free[:-1] >= free[1:]).all()


@given(LISTS)
def test_it_is_the_stable_sort_of_the_free_places(entries):
    scores, pinned = arrays(entries)
    free = [place for place in range(len(entries)) if not pinned[place]]
    expected = list(range(len(entries)))
    for place, candidate in zip(free, sorted(free, key=lambda one: -scores[one]), strict=True):
        expected[place] = candidate
    assert order_unpinned(scores, pinned).tolist() == expected


@given(st.integers(0, 30), SCORES, st.data())
def test_equal_scores_keep_the_servers_order(count, score, data):
    pinned = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    order = order_unpinned(np.full(count, score, np.float32), pinned)
    assert order.tolist() == list(range(count))


@given(LISTS)
def test_ordering_again_changes_nothing(entries):
    scores, pinned = arrays(entries)
    order = order_unpinned(scores, pinned)
    again = order_unpinned(scores[order], pinned)
    assert again.tolist() == list(range(len(entries)))


@given(LISTS, st.floats(0.125, 8), st.floats(-4, 4))
def test_only_the_order_of_the_scores_matters(entries, scale, shift):
    """Scores that are far enough apart to survive the rounding of another scale."""
    scores, pinned = arrays(entries)
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable").astype(np.float32)
    moved = (ranks * np.float32(scale) + np.float32(shift)).astype(np.float32)
    np.testing.assert_array_equal(order_unpinned(ranks, pinned), order_unpinned(moved, pinned))


def test_the_arguments_are_left_as_they_are():
    scores, pinned = np.array([3, 1, 2], np.float32), np.array([False, True, False])
    order_unpinned(scores, pinned)
    assert (scores.tolist(), pinned.tolist()) == ([3, 1, 2], [False, True, False])


@given(data=st.data())
def test_pinned_places_of_the_order_that_stands_keep_their_candidates(data):
    count = data.draw(st.integers(0, 30))
    base = np.array(data.draw(st.permutations(range(count))), np.int64)
    pinned = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count)), np.float32)
    order = order_unpinned(scores, pinned, base)
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order[pinned], base[pinned])
    free = order[~pinned]
    keys = list(zip(-scores[free], free, strict=True))
    assert keys == sorted(keys)  # falling score, then the server's order
