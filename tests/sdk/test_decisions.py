"""What a reaction to a list teaches: which pairs, with which features, and what is remembered of whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_features import Event, Item
from rerank_sdk.decisions import NEGATIVE_KINDS, POSITIVE_KINDS, DecisionLog

COUNT, WIDTH = 20, 4
ITEMS = tuple(Item(id=f"i{number}") for number in range(COUNT))
HEAD_INPUT = np.random.default_rng(1).normal(size=(COUNT, WIDTH)).astype(np.float32)
SCORES = np.random.default_rng(2).normal(size=COUNT).astype(np.float32)
ORDER = np.random.default_rng(3).permutation(COUNT)


def event(place, kind="like", request="r", user="ann", time_ms=5_000):
    return Event(user=user, item=f"i{place}", kind=kind, time_ms=time_ms, request=request)


def record(log, request="r", user="ann", items=ITEMS, order=ORDER):
    log.record(user, request, 1_000, [item.id for item in items], order, HEAD_INPUT[: len(items)], SCORES[: len(items)])


@pytest.fixture
def log():
    made = DecisionLog()
    record(made)
    return made


def pairs_of(examples):
    """Which pair each example is made of, found by its features."""
    found = []
    for example in examples:
        difference = np.concatenate([HEAD_INPUT[:, None] - HEAD_INPUT[None], (SCORES[:, None] - SCORES)[..., None]], 2)
        better, worse = np.argwhere((difference.astype(np.float32) == example.features).all(axis=2))[0]
        found.append((int(better), int(worse)))
    return found


@pytest.mark.parametrize("kind", sorted(POSITIVE_KINDS))
def test_a_liked_candidate_beats_others_spread_evenly_over_the_list(log, kind):
    examples = log.observe(event(7, kind), "model")
    others = [place for place in ORDER.tolist() if place != 7]
    expected = [others[index] for index in np.linspace(0, 18, 8).round().astype(int)]
    assert pairs_of(examples) == [(7, other) for other in expected]
    assert expected[0] == others[0]
    assert expected[-1] == others[-1]


@pytest.mark.parametrize("kind", sorted(NEGATIVE_KINDS))
def test_a_refused_candidate_loses_to_one_that_was_not(log, kind):
    (pair,) = pairs_of(log.observe(event(7, kind), "model"))
    assert pair == (next(place for place in ORDER.tolist() if place != 7), 7)


def test_an_example_says_whose_it_is_when_and_of_which_model(log):
    for example in log.observe(event(7), "model-hash"):
        assert (example.user, example.request, example.time_ms) == ("ann", "r", 5_000)
        assert (example.label, example.base_model) == (1.0, "model-hash")
        assert (example.features.shape, example.features.dtype) == ((WIDTH + 1,), np.float32)


def test_the_names_of_pairs_differ_and_are_short_for_long_ids(log):
    long = Item(id="ü" * 512)
    items = (*ITEMS[:-1], long)
    record(log, "long", items=items)
    examples = log.observe(Event(user="ann", item=long.id, kind="like", time_ms=9, request="long"), "m")
    assert len({example.item for example in examples}) == len(examples) == 8
    assert all(len(example.item) == 24 for example in examples)


@pytest.mark.parametrize("kind", ["impression", "dwell", "own_kind"])
def test_other_kinds_teach_nothing(log, kind):
    assert log.observe(event(7, kind), "model") == []
    assert len(log.observe(event(7, "like"), "model")) == (0 if kind == "impression" else 8)


def test_a_candidate_teaches_once(log):
    assert len(log.observe(event(7, "click"), "model")) == 8
    assert log.observe(event(7, "like"), "model") == []
    assert log.observe(event(7, "hide"), "model") == []


def test_chosen_candidates_are_compared_with_none_of_each_other(log):
    for place in (3, 11, 0):
        log.observe(event(place, "click"), "model")
    for better, worse in pairs_of(log.observe(event(15), "model")):
        assert better == 15
        assert worse not in (0, 3, 11, 15)


def test_where_impressions_are_tracked_only_what_was_on_screen_counts(log):
    for place in (2, 4, 6, 8):
        log.observe(event(place, "impression"), "model")
    shown = [place for place in ORDER.tolist() if place in (2, 4, 8)]
    assert pairs_of(log.observe(event(6), "model")) == [(6, other) for other in shown]
    assert pairs_of(log.observe(event(2, "skip"), "model")) == [(next(p for p in shown if p != 2), 2)]


def test_the_last_candidate_left_teaches_nothing():
    log = DecisionLog()
    log.record("ann", "r", 0, [ITEMS[0].id], np.arange(1), HEAD_INPUT[:1], SCORES[:1])
    assert log.observe(event(0), "model") == []


@pytest.mark.parametrize(
    "stranger",
    [
        event(7, request=None),
        event(7, request="another"),
        event(7, user="bob"),
        event(7).model_copy(update={"item": "not in the list"}),
    ],
)
def test_what_belongs_to_no_open_list_teaches_nothing(log, stranger):
    assert log.observe(stranger, "model") == []


def test_a_list_ordered_again_keeps_its_feedback_and_takes_the_new_features(log):
    log.observe(event(7, "click"), "model")
    log.observe(event(3, "impression"), "model")
    log.observe(event(5, "impression"), "model")
    turned = HEAD_INPUT[::-1].copy()
    log.record("ann", "r", 2_000, [item.id for item in ITEMS], np.arange(COUNT), turned, SCORES)
    assert log.observe(event(7), "model") == []
    (example,) = log.observe(event(5), "model")
    np.testing.assert_array_equal(example.features[:-1], turned[5] - turned[3])


@pytest.mark.parametrize("places", [range(10), range(19, -1, -1), range(10, 20), [4, 17, 2]])
def test_other_candidates_under_the_same_id(log, places):
    """A page more, fewer candidates, another order: places are those of the newest list."""
    log.observe(event(4, "click"), "model")
    items = tuple(ITEMS[place] for place in places)
    head_input = HEAD_INPUT[list(places)]
    log.record("ann", "r", 2_000, [item.id for item in items], np.arange(len(items)), head_input, SCORES[list(places)])
    assert log.observe(event(4, "like"), "model") == []
    examples = log.observe(event(17, "like"), "model")
    if 17 not in places:
        assert examples == []
        return
    found = pairs_of(examples)
    assert {better for better, _ in found} == {17}
    worse = [other for _, other in found]
    assert len(set(worse)) == len(worse)
    assert set(worse) <= set(places) - {4, 17}
    assert worse


def test_seen_items_are_those_with_any_sign_in_that_list(log):
    assert log.seen_items("ann", "r") == set()
    for place, kind in ((1, "impression"), (2, "dwell"), (3, "like")):
        log.observe(event(place, kind), "model")
    log.observe(event(4, request=None), "model")
    log.observe(event(5, request="other"), "model")
    log.see(event(6, request="r"))
    log.see(event(7, request=None))
    assert log.seen_items("ann", "r") == {"i1", "i2", "i3", "i6"}
    assert log.seen_items("ann", "other") == {"i5"}
    assert log.seen_items("ann", None) == set()
    assert log.seen_items("bob", "r") == set()


def test_four_lists_of_a_user_are_open(log):
    for number in range(4):
        record(log, f"r{number}")
    assert log.observe(event(7), "model") == []
    assert all(log.observe(event(7, request=f"r{number}"), "model") for number in range(4))


def test_the_users_of_the_last_lists_are_remembered():
    log = DecisionLog(max_users=3)
    for user in ("a", "b", "c", "a", "d"):
        record(log, user=user)
    assert log.observe(event(1, user="b"), "model") == []
    assert all(log.observe(event(1, user=user), "model") for user in ("a", "c", "d"))


def test_a_forgotten_user_is_gone_and_others_stay(log):
    record(log, user="bob")
    log.observe(event(3, "impression"), "model")
    log.observe(event(3, "impression", user="bob"), "model")
    log.forget("ann")
    log.forget("nobody")
    assert log.seen_items("ann", "r") == set()
    assert log.observe(event(7), "model") == []
    assert log.seen_items("bob", "r") == {"i3"}
    log.observe(event(4, "impression", user="bob"), "model")
    assert len(log.observe(event(7, user="bob"), "model")) == 2


@given(st.lists(st.tuples(st.integers(0, COUNT - 1), st.sampled_from(["click", "like", "skip", "hide", "impression"]))))
def test_any_feedback_keeps_the_rules(signs):
    log = DecisionLog()
    record(log)
    touched, shown = set(), set()
    for place, kind in signs:
        found = pairs_of(log.observe(event(place, kind), "model"))
        if kind == "impression":
            shown |= {place} - touched
        if kind == "impression" or place in touched:
            assert found == []
            continue
        touched.add(place)
        left = (shown or set(range(COUNT))) - touched
        wanted = kind in POSITIVE_KINDS
        assert len(found) == min(len(left), 8 if wanted else 1)
        assert all((better if wanted else worse) == place for better, worse in found)
        assert {worse if wanted else better for better, worse in found} <= left
