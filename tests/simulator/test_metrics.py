"""Ranking metrics against values by hand, and against numbers computed with the field's two reference tools.

`pytrec_eval-terrier` 0.5.11 (untied rankings; its nDCG takes the gains as they are, so it was given
``2 ** relevance - 1``) and scikit-learn 1.9.1 (`ndcg_score` averages ties, `roc_auc_score`).
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import InputError
from rerank_simulator.metrics import auc, mrr, ndcg_at, ndcg_at_tied, recall_at

NAN = float("nan")
GRADED = [
    [3, 2, 1, 1, 3, 1, 3, 0],
    [2, 1, 2, 1, 1, 2, 3, 2],
    [1, 3, 2, 3, 1, 3, 3, 2],
    [0, 0, 0, 0, 0, 0, 0, 0],
    [3, 1, 0, 2, 2, 0, 1, 1],
]
BINARY = (np.array(GRADED) >= 2).astype(int)
SCORES = [
    [2, 0, 2, 2, 2, 1, 0, 0],
    [2, 0, 2, 0, 1, 1, 0, 2],
    [1, 2, 2, 1, 0, 2, 1, 2],
    [1, 1, 0, 2, 1, 2, 1, 0],
    [2, 0, 0, 1, 1, 0, 1, 2],
]

relevances = st.lists(st.integers(0, 4), min_size=1, max_size=7)


def test_by_hand() -> None:
    # Relevant at ranks 2 and 4: (1/log2 3 + 1/log2 5) / (1 + 1/log2 3).
    expected = (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert float(ndcg_at([0, 1, 0, 1], 4)) == pytest.approx(expected, abs=1e-15)
    # Grade 2 gains 3: (1 + 3/log2 3) / (3 + 1/log2 3).
    assert float(ndcg_at([1, 2], 2)) == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)), abs=1e-15)
    assert float(mrr([0, 0, 1, 1])) == 1 / 3
    assert float(recall_at([0, 1, 1, 1], 2)) == 1 / 3
    assert float(auc([3, 2, 1], [0, 1, 0])) == 0.5


def test_against_pytrec_eval_graded() -> None:
    at_3 = [0.629690882581, 0.493700932912, 0.463681455974, NAN, 0.73425233228]
    at_8 = [0.880592219086, 0.743431342431, 0.773276145186, NAN, 0.927877241015]
    np.testing.assert_allclose(ndcg_at(GRADED, 3), at_3, atol=1e-11)
    np.testing.assert_allclose(ndcg_at(GRADED, 8), at_8, atol=1e-11)


def test_against_pytrec_eval_binary() -> None:
    at_3 = [0.765360636989, 0.703918089034, 0.530721273977, NAN, 0.469278726023]
    at_8 = [0.917828740291, 0.849598144735, 0.776662897619, NAN, 0.852927865061]
    np.testing.assert_allclose(ndcg_at(BINARY, 3), at_3, atol=1e-11)
    np.testing.assert_allclose(ndcg_at(BINARY, 8), at_8, atol=1e-11)
    np.testing.assert_allclose(mrr(BINARY), [1.0, 1.0, 0.5, NAN, 1.0])
    np.testing.assert_allclose(recall_at(BINARY, 3), [0.5, 0.4, 1 / 3, NAN, 1 / 3])


def test_against_pytrec_eval_when_the_ranking_lacks_relevant_items() -> None:
    # Judged: a 1, b 3, c 1, d 7, e 0 (gains); ranked: a, e, d.
    order, ideal = [1, 0, 3], [1, 2, 1, 3, 0]
    assert float(ndcg_at(order, 2, ideal=ideal)) == pytest.approx(0.11245065757013882, abs=1e-15)
    assert float(ndcg_at(order, 3, ideal=ideal)) == pytest.approx(0.47909091485969846, abs=1e-15)
    assert float(recall_at(order, 3, ideal=ideal)) == 0.5
    assert float(mrr(order, ideal=ideal)) == 1.0


def test_against_scikit_learn_with_ties() -> None:
    at_3 = [0.5714285714285714, 0.6151177610114408, 0.7142857142857143, NAN, 0.739973214892638]
    at_8 = [0.8089876563907151, 0.797296679756358, 0.8892914276279484, NAN, 0.858767460476692]
    np.testing.assert_allclose(ndcg_at_tied(SCORES, GRADED, 3), at_3, atol=1e-14)
    np.testing.assert_allclose(ndcg_at_tied(SCORES, GRADED, 8), at_8, atol=1e-14)
    areas = [0.4375, 0.8333333333333334, 0.9166666666666666, NAN, 0.7666666666666666]
    np.testing.assert_allclose(auc(SCORES, BINARY), areas, atol=1e-15)


def test_all_tied_one_relevant_of_four() -> None:
    # Peers say 0 (pytrec_eval), 1 (ranx) and this (scikit-learn).
    assert float(ndcg_at_tied([0.5] * 4, [0, 0, 1, 0], 3)) == pytest.approx(0.5327324383928643, abs=1e-15)


def test_lists_without_relevant_items_are_nan_unless_the_ideal_has_some() -> None:
    assert np.isnan(ndcg_at([0, 0], 2))
    assert np.isnan(mrr([0, 0]))
    assert np.isnan(recall_at([0, 0], 2))
    assert np.isnan(ndcg_at_tied([1, 2], [0, 0], 2))
    assert np.isnan(auc([1, 2], [1, 1]))
    assert np.isnan(auc([1, 2], [0, 0]))
    assert float(ndcg_at([0, 0], 2, ideal=[1])) == 0.0
    assert float(mrr([0, 0], ideal=[1])) == 0.0
    assert float(recall_at([0, 0], 2, ideal=[1])) == 0.0


def test_empty_list_has_no_value() -> None:
    empty = np.zeros((2, 0))
    for value in (
        ndcg_at(empty, 3),
        ndcg_at_tied(empty, empty, 3),
        mrr(empty, 3),
        recall_at(empty, 3),
        auc(empty, empty),
    ):
        assert value.shape == (2,)
        assert np.isnan(value).all()


def test_relevant_item_beyond_k_gives_zero_not_nan() -> None:
    assert float(mrr([0, 0, 1], k=2)) == 0.0
    assert float(ndcg_at([0, 0, 1], 2)) == 0.0
    assert float(recall_at([0, 0, 1], 2)) == 0.0


def test_k_beyond_the_list_is_the_whole_list() -> None:
    np.testing.assert_array_equal(ndcg_at(GRADED, 1000), ndcg_at(GRADED, 8))
    np.testing.assert_array_equal(recall_at(GRADED, 1000), recall_at(GRADED, 8))


def test_many_lists_at_once_equal_one_by_one() -> None:
    rows = np.array(GRADED)
    for metric in (lambda r: ndcg_at(r, 3), lambda r: mrr(r, 3), lambda r: recall_at(r, 3)):
        np.testing.assert_array_equal(metric(rows), [float(metric(row)) for row in rows])
        np.testing.assert_array_equal(metric(rows.reshape(1, 5, 8)), metric(rows)[None])


@settings(deadline=None)
@given(relevances, st.integers(1, 9))
def test_padding_with_zero_changes_nothing(order: list[int], k: int) -> None:
    padded = [*order, 0, 0, 0]
    for metric in (ndcg_at, mrr, recall_at):
        np.testing.assert_allclose(metric(padded, k), metric(order, k), rtol=1e-14)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=8), st.integers(1, 9))
def test_mask_hides_padding_whatever_it_holds(rows: list[tuple[int, int]], k: int) -> None:
    scores, relevance = np.array(rows).T
    mask = np.arange(len(rows) + 2) < len(rows)
    wide_scores, wide_relevance = np.r_[scores, 99, np.nan], np.r_[relevance, 4, 4]
    np.testing.assert_allclose(
        ndcg_at_tied(wide_scores, wide_relevance, k, mask=mask), ndcg_at_tied(scores, relevance, k), rtol=1e-13
    )
    np.testing.assert_allclose(auc(wide_scores, wide_relevance, mask=mask), auc(scores, relevance), rtol=1e-13)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=5), st.integers(1, 6))
def test_tied_value_is_the_mean_over_all_orders_of_the_ties(rows: list[tuple[int, int]], k: int) -> None:
    scores, relevance = np.array(rows).T
    orders = [p for p in itertools.permutations(range(len(rows))) if (np.diff(scores[list(p)]) <= 0).all()]
    values = [float(ndcg_at(relevance[list(p)], k)) for p in orders]
    np.testing.assert_allclose(ndcg_at_tied(scores, relevance, k), np.mean(values), rtol=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12))
def test_auc_counts_pairs(rows: list[tuple[int, int]]) -> None:
    good = [score for score, relevant in rows if relevant]
    bad = [score for score, relevant in rows if not relevant]
    wins = [(g > b) + 0.5 * (g == b) for g in good for b in bad]
    scores, relevant = zip(*rows, strict=True)
    np.testing.assert_allclose(auc(scores, relevant), np.mean(wins) if wins else NAN, rtol=1e-12)


@settings(deadline=None)
@given(relevances, st.integers(1, 9))
def test_values_lie_between_0_and_1_and_the_best_order_has_1(order: list[int], k: int) -> None:
    best = float(ndcg_at(sorted(order, reverse=True), k))
    value = float(ndcg_at(order, k))
    if any(order):
        assert best == pytest.approx(1.0, abs=1e-15)
        assert 0 <= value <= 1
        assert float(ndcg_at_tied(-np.arange(len(order)), order, k)) == pytest.approx(value, abs=1e-15)
    else:
        assert math.isnan(best)
        assert math.isnan(value)


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None, "3"])
def test_k_must_be_a_positive_integer(k: Any) -> None:
    for metric in (lambda: ndcg_at([1], k), lambda: recall_at([1], k), lambda: ndcg_at_tied([1], [1], k)):
        with pytest.raises(InputError, match="k must be"):
            metric()


@pytest.mark.parametrize("relevance", [[-1, 1], [NAN, 1], [float("inf")], [65], ["a"], 3])
def test_relevance_must_be_a_list_of_grades(relevance: Any) -> None:
    for metric in (lambda: ndcg_at(relevance, 1), lambda: mrr(relevance), lambda: recall_at(relevance, 1)):
        with pytest.raises(InputError, match="order_relevance"):
            metric()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ndcg_at([1, 1], 2, ideal=[1]), "ideal must hold every relevant item"),
        (lambda: recall_at([1, 1], 2, ideal=[1]), "ideal must hold every relevant item"),
        (lambda: ndcg_at([[1], [1]], 2, ideal=[1]), "ideal must have shape"),
        (lambda: auc([1, 2], [1]), "shape"),
        (lambda: auc([1, NAN], [1, 0]), "finite"),
        (lambda: ndcg_at_tied([1, float("inf")], [1, 0], 1), "finite"),
        (lambda: auc([1, 2], [1, 0], mask=[1, 0]), "mask must be bool"),
        (lambda: auc([1, 2], [1, -1]), "relevance must lie"),
        (lambda: auc(1.0, 1.0), "shape"),
    ],
)
def test_inconsistent_input_is_refused(call: Any, message: Any) -> None:
    with pytest.raises(InputError, match=message):
        call()
