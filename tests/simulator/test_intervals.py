"""Intervals by user: the estimate, its coverage, its pairing and its refusals."""

from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import DataError, InputError
from rerank_simulator.intervals import paired_lift, user_bootstrap

NAN = float("nan")


def test_every_user_counts_once() -> None:
    interval = user_bootstrap([1, 1, 1, 0], ["heavy", "heavy", "heavy", "light"], seed=1)
    assert interval.mean == 0.5
    assert (interval.users, interval.rows, interval.dropped, interval.level) == (2, 4, 0, 0.95)
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_nan_rows_are_dropped_and_counted() -> None:
    with_nan = user_bootstrap([0.2, NAN, 0.6, NAN, NAN], [1, 1, 2, 2, 3], seed=4)
    without = user_bootstrap([0.2, 0.6], [1, 2], seed=4)
    assert (with_nan.users, with_nan.rows, with_nan.dropped) == (2, 2, 3)
    assert (with_nan.mean, with_nan.low, with_nan.high) == (without.mean, without.low, without.high)


def test_same_seed_same_interval_and_row_order_does_not_matter() -> None:
    values, users = np.random.default_rng(1).random((2, 200))
    users = (users * 40).astype(int)
    first = user_bootstrap(values, users, seed=7)
    assert user_bootstrap(values, users, seed=7) == first
    shuffled = np.random.default_rng(2).permutation(200)
    again = user_bootstrap(values[shuffled], users[shuffled], seed=7)
    assert (again.low, again.high) == pytest.approx((first.low, first.high), abs=1e-12)
    assert user_bootstrap(values, users, seed=8) != first


def test_width_is_that_of_independent_users_not_of_rows() -> None:
    # 50 users with 20 equal rows each: the standard error is that of 50 numbers, 4.5 times that of 1,000.
    means = np.random.default_rng(3).normal(size=50)
    interval = user_bootstrap(np.repeat(means, 20), np.repeat(np.arange(50), 20), seed=5, resamples=4000)
    width = 2 * 1.959964 * means.std() / np.sqrt(50)
    assert interval.high - interval.low == pytest.approx(width, rel=0.06)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(11)
    users = np.repeat(np.arange(60), 3)
    inside = 0
    for seed in range(300):
        values = np.repeat(generator.exponential(size=60), 3) + generator.normal(size=180)
        interval = user_bootstrap(values, users, seed=seed, resamples=400, level=0.9)
        inside += interval.low <= 1.0 <= interval.high
    assert 0.83 <= inside / 300 <= 0.95


def test_chunks_do_not_change_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    values, users = np.arange(30.0), np.arange(30)
    whole = user_bootstrap(values, users, seed=3, resamples=500)
    monkeypatch.setattr("rerank_simulator.intervals._CHUNK", 64)
    parts = user_bootstrap(values, users, seed=3, resamples=500)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high))


def test_higher_level_is_wider() -> None:
    values, users = np.random.default_rng(0).random(100), np.arange(100)
    narrow, wide = (user_bootstrap(values, users, seed=1, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high


def test_lift_is_absolute_and_a_ratio_of_means() -> None:
    a, b, users = [0.4, 0.8, NAN, 0.3, 0.9], [0.2, 0.6, 0.5, NAN, 0.8], [1, 1, 2, 3, 4]
    lift = paired_lift(a, b, users, seed=1)
    assert (lift.mean_a, lift.mean_b) == pytest.approx((0.75, 0.6))
    assert lift.absolute.mean == pytest.approx(0.15)
    assert lift.relative is not None
    assert lift.relative.mean == pytest.approx(0.25)
    assert (lift.absolute.users, lift.absolute.rows, lift.absolute.dropped) == (2, 3, 2)
    # Resamples hold user 1 twice, both, or user 4 twice: lifts of .2/.4, .15/.6 and .1/.8.
    assert (lift.absolute.low, lift.absolute.high) == pytest.approx((0.1, 0.2))
    assert (lift.relative.low, lift.relative.high) == pytest.approx((0.125, 0.5))


def test_pairing_removes_what_both_share() -> None:
    generator = np.random.default_rng(6)
    shared = generator.normal(10, 3, 200)
    a, b, users = shared + 0.1 + generator.normal(0, 0.1, 200), shared, np.arange(200)
    lift = paired_lift(a, b, users, seed=2)
    alone = user_bootstrap(a, users, seed=2)
    assert lift.absolute.low > 0
    assert (lift.absolute.high - lift.absolute.low) * 20 < alone.high - alone.low


def test_scaled_policy_has_an_exact_relative_lift() -> None:
    b = np.random.default_rng(9).random(80) + 0.1
    lift = paired_lift(b * 1.5, b, np.arange(80), seed=3)
    assert lift.relative is not None
    assert (lift.relative.mean, lift.relative.low, lift.relative.high) == pytest.approx((0.5, 0.5, 0.5))


def test_same_policy_has_no_lift() -> None:
    b = np.random.default_rng(9).random(80)
    lift = paired_lift(b, b, np.arange(80), seed=3)
    assert (lift.absolute.low, lift.absolute.mean, lift.absolute.high) == (0, 0, 0)


@pytest.mark.parametrize("baseline", [[0, 0, 0], [0, 0, 1], [-1, -1, -1]])
def test_baseline_that_may_be_zero_has_no_relative_lift(baseline: Any) -> None:
    lift = paired_lift([1, 2, 3], baseline, [1, 2, 3], seed=1)
    assert lift.relative is None
    assert lift.absolute.mean == pytest.approx(2 - np.mean(baseline))


@pytest.mark.parametrize(
    ("values", "users", "count"), [([], [], 0), ([1, 2], [5, 5], 1), ([1, NAN], [1, 2], 1), ([NAN, NAN], [1, 2], 0)]
)
def test_fewer_than_two_users_are_refused(values: Any, users: Any, count: Any) -> None:
    with pytest.raises(DataError, match=f"at least 2 users with a value, got {count}"):
        user_bootstrap(values, np.array(users, int), seed=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [1.0, float("inf")]}, "row 1 is infinite"),
        ({"values": [[1.0, 2.0]]}, "shape"),
        ({"values": ["a", "b"]}, "values must be numbers"),
        ({"users": [1, 2, 3]}, "users must have the values' shape"),
        ({"users": [1.5, 2.5]}, "users must be integers or strings"),
        ({"resamples": 99}, "resamples"),
        ({"resamples": 1000.0}, "resamples"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"level": 0}, "level"),
        ({"level": 1.0}, "level"),
        ({"level": NAN}, "level"),
    ],
)
def test_wrong_options_are_refused(change: Any, message: Any) -> None:
    options = {"values": [1.0, 2.0], "users": [1, 2], "seed": 1, **change}
    with pytest.raises(InputError, match=message):
        user_bootstrap(**options)
