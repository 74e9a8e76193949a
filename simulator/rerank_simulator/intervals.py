"""Confidence intervals of a mean and of a lift, resampled by user.

Rows of one user are not independent, so users are drawn, not rows. Every user counts once, however many rows
they have: the estimate is the mean over users of each user's own mean.

The intervals are percentile bootstrap intervals (Efron and Tibshirani, "An Introduction to the Bootstrap",
1993, ch. 13).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank_engine.errors import DataError, InputError

_CHUNK = 65_536
"""Users drawn at a time: the counts of one chunk stay in the processor's cache, and memory does not grow with users."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval.

    Attributes
    ----------
    mean
        The estimate.
    low, high
        Ends of the interval at `level`.
    users
        How many users it rests on.
    rows
        How many rows of theirs.
    dropped
        How many rows were left out because they were NaN.
    level
        Nominal coverage, between 0 and 1.
    """

    mean: float
    low: float
    high: float
    users: int
    rows: int
    dropped: int
    level: float


@dataclass(frozen=True)
class Lift:
    """How much A is above B, on the same users.

    Attributes
    ----------
    mean_a, mean_b
        Means over users of the user's mean.
    absolute
        ``mean_a - mean_b``.
    relative
        ``mean_a / mean_b - 1``; None when the baseline's mean is not positive, in the data or in any
        resample: then there is no meaningful ratio.
    """

    mean_a: float
    mean_b: float
    absolute: Interval
    relative: Interval | None


def user_bootstrap(
    values: ArrayLike, users: ArrayLike, *, resamples: int = 2000, seed: int, level: float = 0.95
) -> Interval:
    """Mean over users of the user's mean, with an interval from resampled users.

    Parameters
    ----------
    values
        (N,) numbers, one a row; NaN rows (lists without a value) are dropped and counted.
    users
        (N,) user of each row: integers or strings.
    resamples
        How many times as many users as there are are drawn with replacement.
    seed
        Of the draws; the same seed gives the same interval.
    level
        Nominal coverage.

    Raises
    ------
    InputError
        Shapes differ, a value is infinite, or an option is out of range.
    DataError
        Fewer than two users have a value: their spread is unknown.

    Examples
    --------
    >>> interval = user_bootstrap([1.0, 0.0, 0.5, float("nan")], ["u", "u", "v", "v"], seed=1)
    >>> interval.mean, interval.users, interval.rows, interval.dropped
    (0.5, 2, 3, 1)
    """
    columns, counts = _by_user([_column("values", values)], users)
    means, drawn = _resample(columns, resamples, seed)
    return _interval(float(means[0]), drawn[0], counts, level)


def paired_lift(
    values_a: ArrayLike,
    values_b: ArrayLike,
    users: ArrayLike,
    *,
    resamples: int = 2000,
    seed: int,
    level: float = 0.95,
) -> Lift:
    """Absolute and relative lift of A over B, both from the same resamples of users.

    Row i holds both policies' value of the same list, so what makes a list easy or hard for both cancels out.
    The relative lift is a ratio of means, not a mean of ratios.

    Parameters
    ----------
    values_a, values_b
        (N,) numbers, row by row the same lists; a row that is NaN in either is dropped from both and counted.
    users, resamples, seed, level
        As in :func:`user_bootstrap`.

    Raises
    ------
    InputError, DataError
        As :func:`user_bootstrap`.

    Examples
    --------
    >>> lift = paired_lift([0.6, 0.5, 0.4], [0.5, 0.4, 0.3], [0, 1, 2], seed=1)
    >>> round(lift.absolute.mean, 9), round(lift.relative.mean, 9)
    (0.1, 0.25)
    """
    columns, counts = _by_user([_column("values_a", values_a), _column("values_b", values_b)], users)
    (mean_a, mean_b), (drawn_a, drawn_b) = _resample(columns, resamples, seed)
    absolute = _interval(float(mean_a - mean_b), drawn_a - drawn_b, counts, level)
    relative = None
    if mean_b > 0 and drawn_b.min() > 0:
        relative = _interval(float(mean_a / mean_b - 1), drawn_a / drawn_b - 1, counts, level)
    return Lift(float(mean_a), float(mean_b), absolute, relative)


def _column(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers of shape (N,), got {array.dtype} of shape {array.shape}")
    array = array.astype(np.float64)
    if np.isinf(array).any():
        raise InputError(f"{name} must be finite or NaN, row {int(np.flatnonzero(np.isinf(array))[0])} is infinite")
    return array


@dataclass(frozen=True)
class _Counts:
    users: int
    rows: int
    dropped: int


def _by_user(columns: list[NDArray[np.float64]], users: ArrayLike) -> tuple[NDArray[np.float64], _Counts]:
    """(C, U) means of each user's complete rows."""
    names = np.asarray(users)
    for column in columns:
        if column.shape != names.shape:
            raise InputError(f"users must have the values' shape {column.shape}, got {names.shape}")
    if names.dtype.kind not in "iuUS":
        raise InputError(f"users must be integers or strings, got {names.dtype}")
    keep = ~np.isnan(np.stack(columns)).any(0)
    _, user, rows = np.unique(names[keep], return_inverse=True, return_counts=True)
    if len(rows) < 2:
        raise DataError(
            f"an interval over users needs at least 2 users with a value, got {len(rows)} "
            f"({int(keep.sum())} rows kept, {int((~keep).sum())} dropped as NaN)"
        )
    sums = np.stack([np.bincount(user, column[keep], minlength=len(rows)) for column in columns])
    return sums / rows, _Counts(len(rows), int(keep.sum()), int((~keep).sum()))


def _resample(
    columns: NDArray[np.float64], resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(C,) means over users and their (C, R) values in the resamples; all columns share the drawn users."""
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 100:
        raise InputError(f"resamples must be an integer of at least 100, got {resamples!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be an integer from 0, got {seed!r}")
    drawn = [np.einsum("cu,ru->cr", columns, counts) for counts in _counts(columns.shape[1], resamples, seed)]
    return columns.mean(-1), np.concatenate(drawn, axis=1) / columns.shape[1]


def _counts(users: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each user is drawn in each resample, (r, U) at a time."""
    generator = np.random.default_rng(seed)
    step = max(1, _CHUNK // users)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        # One bin for each pair of resample and user.
        bins = generator.integers(0, users, (size, users)) + np.arange(size)[:, None] * users
        yield np.bincount(bins.ravel(), minlength=size * users).reshape(size, users).astype(np.float64)


def _interval(mean: float, drawn: NDArray[np.float64], counts: _Counts, level: float) -> Interval:
    if isinstance(level, bool) or not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level!r}")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), counts.users, counts.rows, counts.dropped, level)
