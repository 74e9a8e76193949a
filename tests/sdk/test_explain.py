"""Reasons: exact for a linear model, and never a promise that the scores do not keep."""

from __future__ import annotations

import numpy as np
import pytest

from rerank_sdk.explain import HISTORY_GROUP, PATCH_GROUP, explain_scores
from rerank_sdk.personal import Patch
from rerank_sdk.ranking import Reason

GROUPS = ("the server", "its price", "genres you opened", "similar to what you opened", "the hour")
WEIGHT = np.array([2.0, -0.3, 1.5, 0.7, 0.05], np.float32)


@pytest.fixture
def linear(open_reranker, kit):
    reranker = open_reranker(bundle=kit.bundle(kit.make_linear_model(WEIGHT), name="linear"), strict=True)
    reranker.track([kit.event(number, after_s=number) for number in (2, 5, 7)])
    return reranker


def contributions(reranker, request):
    """(N, groups): what each column adds to a candidate's score, minus what it adds on average."""
    dense = reranker._scorer.pipeline.emit(request).arrays["dense"].astype(np.float64)
    parts = dense * WEIGHT
    return parts - parts.mean(axis=0)


def test_of_a_linear_model_they_are_the_exact_contributions(linear, kit):
    request = kit.request(context={"hour": 6})
    ranking = linear.rerank(request)
    expected = contributions(linear, request)
    assert len(ranking.reasons) == 12
    for place, reasons in zip(ranking.order, ranking.reasons, strict=True):
        strongest = np.sort(np.abs(expected[place]))[::-1]
        assert len(reasons) == min(3, int((strongest >= 1e-3).sum()))
        for rank, reason in enumerate(reasons):
            assert reason.effect == pytest.approx(expected[place, GROUPS.index(reason.group)], abs=1e-5)
            assert abs(reason.effect) == pytest.approx(strongest[rank], abs=1e-5)
        assert len({reason.group for reason in reasons}) == len(reasons)


def test_columns_of_one_group_count_together(open_reranker, kit):
    text = kit.make_spec().to_toml().replace('group = "its price"', 'group = "the server"')
    spec = type(kit.make_spec()).from_toml(text)
    reranker = open_reranker(bundle=kit.bundle(kit.make_linear_model(WEIGHT), spec), strict=True)
    request = kit.request()
    ranking = reranker.rerank(request)
    expected = contributions(reranker, request)[:, :2].sum(axis=1)
    for place, reasons in zip(ranking.order, ranking.reasons, strict=True):
        found = {reason.group: reason.effect for reason in reasons}
        assert set(found) <= {"the server"}
        assert found.get("the server", 0.0) == pytest.approx(expected[place], abs=1.1e-3)


def test_what_is_the_same_for_all_is_no_reason(linear, kit):
    ranking = linear.rerank(kit.request(context={"hour": 23}))
    assert "the hour" not in {reason.group for reasons in ranking.reasons for reason in reasons}
    alone = linear.rerank(kit.request(1, context={"hour": 23}))
    assert alone.reasons == [()]


def test_effects_of_a_group_cancel_over_the_list(linear, kit):
    request = kit.request()
    scorer, arrays = linear._scorer, linear._scorer.pipeline.emit(request).arrays
    base, _ = scorer.score(arrays)
    order = np.arange(12)
    reasons = explain_scores(scorer, arrays, base, base, order)
    total = dict.fromkeys(GROUPS, 0.0)
    for own in reasons:
        for reason in own:
            total[reason.group] += reason.effect
    assert total["the server"] == pytest.approx(0, abs=12e-3)


def test_a_patch_is_a_reason_of_its_own(linear, kit):
    request = kit.request()
    scorer, arrays = linear._scorer, linear._scorer.pipeline.emit(request).arrays
    base, head_input = scorer.score(arrays)
    patch = Patch(scorer.model_hash, np.array([0, 5, 0, 0, 0], np.float32), 1.0)
    delta = patch.delta(head_input)
    order = np.arange(12)
    with_patch = explain_scores(scorer, arrays, base, base + delta, order)
    expected = delta - delta.mean()
    for place, reasons in enumerate(with_patch):
        assert reasons[0].group == PATCH_GROUP
        assert reasons[0].effect == pytest.approx(expected[place], abs=1e-4)
    without = explain_scores(scorer, arrays, base, base, order)
    assert PATCH_GROUP not in {reason.group for reasons in without for reason in reasons}


def test_reasons_come_in_the_order_of_the_items(linear, kit):
    scorer, arrays = linear._scorer, linear._scorer.pipeline.emit(kit.request()).arrays
    base, _ = scorer.score(arrays)
    straight = explain_scores(scorer, arrays, base, base, np.arange(12))
    order = np.random.default_rng(0).permutation(12)
    assert explain_scores(scorer, arrays, base, base, order) == [straight[place] for place in order]


def test_asking_for_reasons_changes_no_array_and_no_ranking(linear, kit):
    scorer, arrays = linear._scorer, linear._scorer.pipeline.emit(kit.request()).arrays
    before = {name: array.copy() for name, array in arrays.items()}
    base, _ = scorer.score(arrays)
    explain_scores(scorer, arrays, base, base, np.arange(12))
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
    first = linear.rerank(kit.request())
    reasons = first.reasons
    second = linear.rerank(kit.request())
    assert second.scores.tobytes() == first.scores.tobytes()
    assert first.reasons is reasons
    linear.track([kit.event(number, after_s=30) for number in range(12)])
    assert linear.rerank(kit.request()).reasons != reasons
    assert first.reasons == reasons == second.reasons


class _Attention:
    """A model that reads a history mask: each event of it adds the candidate's price."""

    input_names = ("dense", "opened_mask")

    class pipeline:
        @staticmethod
        def groups():
            return {"its price": [0]}

    @staticmethod
    def score(arrays):
        return arrays["dense"][:, 0] * (1 + arrays["opened_mask"].sum()), None


def test_an_emptied_history_is_a_group():
    arrays = {"dense": np.array([[1.0], [3.0]], np.float32), "opened_mask": np.ones(2, np.float32)}
    base, _ = _Attention.score(arrays)
    first, second = explain_scores(_Attention, arrays, base, base, np.arange(2))
    assert first == (Reason("its price", -3.0), Reason(HISTORY_GROUP, -2.0))
    assert second == (Reason("its price", 3.0), Reason(HISTORY_GROUP, 2.0))
    assert str(second[0]) == "its price (+3.00)"
    assert arrays["opened_mask"].tolist() == [1, 1]


def test_the_plain_form_of_a_ranking_names_its_reasons(linear, kit):
    plain = linear.rerank(kit.request(3)).as_dict()
    assert len(plain["reasons"]) == 3
    assert all(set(reason) == {"group", "effect"} for reasons in plain["reasons"] for reason in reasons)
    assert any(plain["reasons"])
