"""Per-user learning: the mathematics, the guard, and what a patch is on disk."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rerank_engine.errors import ModelFileError
from rerank_sdk.personal import Patch, train_patch
from rerank_sdk.personal.trainer import HELD_OUT, MIN_PAIRS, fit_pairs, pair_gradient, pair_loss
from rerank_sdk.store import Example

WIDTH = 6
MODEL = "ab" * 32
NUMBERS = st.floats(-20, 20, allow_nan=False, width=32)
PAIRS = hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(2, 7)), elements=NUMBERS)


def examples_of(pairs, times=None):
    times = range(len(pairs)) if times is None else times
    return [
        Example("ann", f"r{number}", "pair", int(time), 1.0, row.astype(np.float32), MODEL)
        for number, (row, time) in enumerate(zip(pairs, times, strict=True))
    ]


def tasteful(seed, count=120, taste=2.0):
    """Pairs of a user who goes by the first number, whatever the base scores say."""
    generator = np.random.default_rng(seed)
    pairs = generator.normal(size=(count, WIDTH + 1))
    pairs[:, -1] *= 0.5
    wanted = generator.random(count) < 1 / (1 + np.exp(-(taste * pairs[:, 0] + pairs[:, -1])))
    return np.where(wanted[:, None], pairs, -pairs)


def aimless(seed, count=120):
    """Pairs of a user who follows the shared model, and chance."""
    return tasteful(seed, count, taste=0.0)


# --- loss and gradient -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(PAIRS, st.floats(0, 3), st.data())
def test_the_gradient_is_that_of_the_loss(pairs, l2, data):
    weight = data.draw(hnp.arrays(np.float64, pairs.shape[1] - 1, elements=st.floats(-2, 2)))

    def loss(at):
        return pair_loss(at, pairs) + 0.5 * l2 * float(at @ at)

    gradient, step = pair_gradient(weight, pairs, l2), 1e-5
    for axis in range(len(weight)):
        move = np.zeros_like(weight)
        move[axis] = step
        numeric = (loss(weight + move) - loss(weight - move)) / (2 * step)
        assert gradient[axis] == pytest.approx(numeric, rel=1e-4, abs=1e-5)


@given(PAIRS)
def test_the_loss_is_the_logistic_loss_of_the_margins(pairs):
    weight = np.linspace(-1, 1, pairs.shape[1] - 1)
    expected = [math.log1p(math.exp(-margin)) for margin in pairs[:, :-1] @ weight + pairs[:, -1]]
    assert pair_loss(weight, pairs) == pytest.approx(np.mean(expected), rel=1e-9, abs=1e-12)


def test_extreme_margins_overflow_nothing():
    pairs = np.array([[1e6, 1e6], [-1e6, -1e6]])
    assert pair_loss(np.array([1.0]), pairs) == pytest.approx(1e6)
    assert np.isfinite(pair_gradient(np.array([1.0]), pairs, 0.1)).all()
    assert np.isfinite(fit_pairs(np.full((30, 4), 3e38))).all()


@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_learning_never_raises_the_penalised_loss(pairs):
    before = pair_loss(np.zeros(pairs.shape[1] - 1), pairs)
    for steps in (1, 7, 60):
        weight = fit_pairs(pairs, l2=0.1, steps=steps)
        after = pair_loss(weight, pairs) + 0.05 * float(weight @ weight)
        assert after <= before * (1 + 1e-12) + 1e-12
        before = after


def test_learning_ends_where_the_gradient_is_zero():
    pairs = tasteful(1)
    weight = fit_pairs(pairs, l2=0.1, steps=3000)
    assert np.abs(pair_gradient(weight, pairs, 0.1)).max() < 1e-9


def test_more_penalty_means_a_smaller_patch():
    pairs = tasteful(2)
    norms = [np.linalg.norm(fit_pairs(pairs, l2=l2, steps=2000)) for l2 in (0.01, 0.1, 1.0, 10.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.1


def test_nothing_is_learned_from_nothing():
    assert fit_pairs(np.zeros((0, 5))).tolist() == [0] * 4
    assert fit_pairs(np.zeros((9, 5))).tolist() == [0] * 4


# --- the guard -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_clear_taste_is_learned_and_helps_on_lists_to_come(seed):
    patch, result = train_patch(examples_of(tasteful(seed)), MODEL)
    assert (result.accepted, result.pairs, result.version) == (True, 120, 0)
    assert result.loss_after < result.loss_before
    assert patch.base_model == MODEL
    assert (patch.weight.shape, patch.weight.dtype, patch.bias) == ((WIDTH,), np.float32, 0.0)
    assert patch.weight[0] > 2 * np.abs(patch.weight[1:]).max()
    unseen = tasteful(seed + 100, count=2000)
    gained = [float((unseen[:, :-1] @ weight + unseen[:, -1] > 0).mean()) for weight in (np.zeros(WIDTH), patch.weight)]
    assert gained[1] > gained[0] + 0.05


def test_chance_is_refused_but_for_a_few():
    """A guard of one standard error lets about one in six pass by luck; of a patch that hurts, fewer."""
    accepted = [train_patch(examples_of(aimless(seed)), MODEL)[1].accepted for seed in range(60)]
    assert sum(accepted) <= 12


def test_a_refused_patch_is_none_and_says_why():
    pairs = tasteful(0)
    pairs[90:] *= -1
    patch, result = train_patch(examples_of(pairs), MODEL)
    assert patch is None
    assert not result.accepted
    assert "better than the shared model" in result.reason
    assert result.loss_after > result.loss_before


@pytest.mark.parametrize("count", [0, 1, MIN_PAIRS - 1])
def test_too_few_pairs(count):
    patch, result = train_patch(examples_of(tasteful(0, count)), MODEL)
    assert patch is None
    assert (result.accepted, result.pairs) == (False, count)
    assert f"{count} pairs, at least {MIN_PAIRS}" in result.reason
    assert math.isnan(result.loss_before)
    assert math.isnan(result.loss_after)


def test_pairs_of_one_moment_cannot_test_themselves():
    patch, result = train_patch(examples_of(tasteful(0), times=[5] * 120), MODEL)
    assert patch is None
    assert "same moment" in result.reason
    patch, result = train_patch(examples_of(tasteful(0), times=[1] * 5 + [2] * 115), MODEL)
    assert patch is None
    assert not result.accepted


def test_the_held_out_pairs_are_the_newest():
    """What is measured is the loss on the last quarter, without and with what the first three quarters taught."""
    pairs = tasteful(3)
    _, result = train_patch(examples_of(pairs), MODEL)
    cut = int(120 * (1 - HELD_OUT))
    pairs = pairs.astype(np.float32).astype(np.float64)
    assert result.loss_before == pytest.approx(pair_loss(np.zeros(WIDTH), pairs[cut:]))
    assert result.loss_after == pytest.approx(pair_loss(fit_pairs(pairs[:cut]), pairs[cut:]))


def test_an_accepted_patch_is_learned_from_all_pairs():
    pairs = tasteful(4).astype(np.float32).astype(np.float64)
    patch, _ = train_patch(examples_of(pairs), MODEL)
    np.testing.assert_array_equal(patch.weight, fit_pairs(pairs).astype(np.float32))


# --- the patch -------------------------------------------------------------------------------------------------

WEIGHTS = hnp.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
)


@given(WEIGHTS, st.floats(allow_nan=False, allow_infinity=False, width=32), st.binary(min_size=32, max_size=32))
def test_a_patch_survives_its_bytes(weight, bias, model):
    patch = Patch(model.hex(), weight, bias)
    found = Patch.from_bytes(patch.to_bytes())
    assert (found.base_model, found.bias) == (patch.base_model, patch.bias)
    assert found.weight.tobytes() == weight.tobytes()
    assert found.weight.flags.writeable
    assert found.to_bytes() == patch.to_bytes()


def test_a_patch_is_a_few_hundred_bytes():
    assert len(Patch(MODEL, np.zeros(64, np.float32), 0.0).to_bytes()) < 400


GOOD = Patch(MODEL, np.arange(1, 5, dtype=np.float32), 0.25).to_bytes()


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_truncated_patch_is_refused(length):
    with pytest.raises(ModelFileError, match="personalise the user again"):
        Patch.from_bytes(GOOD[:length])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_no_flipped_byte_of_a_patch_gets_through(flip):
    for place in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[place] ^= flip
        with pytest.raises(ModelFileError, match="personalise the user again"):
            Patch.from_bytes(bytes(damaged))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_patch(content):
    with pytest.raises(ModelFileError):
        Patch.from_bytes(content)
    with pytest.raises(ModelFileError):
        Patch.from_bytes(GOOD + content + b"x")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_patch_that_is_not_finite_is_refused(bad):
    for weight, bias in ((np.array([1, bad], np.float32), 0.0), (np.ones(2, np.float32), bad)):
        with pytest.raises(ModelFileError, match="not finite"):
            Patch.from_bytes(Patch(MODEL, weight, bias).to_bytes())


def test_the_delta_is_the_product_plus_the_bias():
    head_input = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    delta = Patch.from_bytes(GOOD).delta(head_input)
    assert (delta.shape, delta.dtype) == ((9,), np.float32)
    np.testing.assert_allclose(delta, head_input.astype(np.float64) @ [1, 2, 3, 4] + 0.25, rtol=1e-5, atol=1e-5)
