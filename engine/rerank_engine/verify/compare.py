"""How two arrays differ: by number, and by the order in which they put the candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rerank_engine.ops.registry import Array
from rerank_engine.verify.truth import Noise

TOLERANCE = 2e-6
"""Allowed error of float32, in parts of the tensor's scale: 17 units in the last place.

A chain of k roundings moves a result by about sqrt(k) of them (N. J. Higham and T. Mary, "A new approach to
probabilistic rounding error analysis", SIAM Journal on Scientific Computing 41, 2019), so this covers some
hundred of them in a row. What is more sensitive than that is allowed its own measured noise, see :data:`NOISE_FACTOR`.
"""

TOLERANCE_DOUBLE = 1e-12
"""The same for float64 results, of which the truth itself is no more exact."""

NOISE_FACTOR = 16.0
"""Allowed error in parts of the measured noise.

The noise rounds once a node. Inside a node, a sum of k products rounds k times, and may be sqrt(k) worse: 16 covers
sums of several hundred terms, in any order.
"""

_SMALLEST = 2 * float(np.finfo(np.float32).tiny)
_KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "truth values"}


@dataclass(frozen=True)
class Comparison:
    """One tensor against the truth.

    Attributes
    ----------
    name
        Of the value.
    elements
        How many numbers were compared.
    max_abs_error
        Largest distance where both are finite.
    max_rel_error
        Largest distance in parts of the true number, where that is a normal float32.
    scaled_error
        ``max_abs_error`` in parts of the tensor's scale: the largest finite magnitude of the truth, here or with
        plain inputs.
    outside
        Elements that differ by more than is allowed, or in being NaN or infinite.
    dropped_nans
        Elements that are a number where the truth is NaN, when that is not counted as a difference.
    undecided
        Elements that differ where rounding alone decides between integers, or between a number and none: they prove
        nothing, in either direction.
    problem
        Why the arrays cannot be compared; empty otherwise.
    """

    name: str
    elements: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    scaled_error: float = 0.0
    outside: int = 0
    dropped_nans: int = 0
    undecided: int = 0
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing differs by more than is allowed."""
        return not self.outside and not self.problem

    def explain(self) -> str:
        """Say in words what differs.

        Examples
        --------
        >>> Comparison("score", elements=4, max_abs_error=0.5, scaled_error=0.25, outside=1).explain()
        '1 of 4 elements differ, by at most 0.5 (0.25 of the scale)'
        """
        if self.problem:
            return self.problem
        return (
            f"{self.outside} of {self.elements} elements differ,"
            f" by at most {self.max_abs_error:.3g} ({self.scaled_error:.3g} of the scale)"
        )


def compare(
    name: str,
    actual: Array,
    truth: Array,
    *,
    double: bool = False,
    tolerance: float = TOLERANCE,
    noise: Callable[[], Noise] | None = None,
    typical: float = 0.0,
    accepted_error: float = 0.0,
    may_drop_nans: bool = False,
) -> Comparison:
    """Compare a tensor with the truth.

    An element may be off by ``tolerance`` times the scale of the tensor, or by ``accepted_error`` if that is more, and
    by :data:`NOISE_FACTOR` times its noise. NaN and infinities must be the same, integers and truth values too, except
    where the noise says that rounding decides.

    Parameters
    ----------
    name
        Of the value.
    actual, truth
        Arrays of one shape; floats of any precision.
    double
        The value is float64 by declaration: :data:`TOLERANCE_DOUBLE` holds.
    tolerance
        Allowed error in parts of the scale.
    typical
        Magnitude of the value with plain inputs. The scale is at least this: a sigmoid that is all but 0 everywhere
        is judged by the 1 that it reaches elsewhere.
    noise
        Gives the noise; asked only when something differs.
    accepted_error
        Absolute error that is allowed in any case: that of another implementation which has passed.
    may_drop_nans
        Count numbers where the truth is NaN apart, not as differences.

    Examples
    --------
    >>> found = compare("score", np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    >>> found.passed, found.outside, found.max_abs_error, found.scaled_error
    (False, 1, 0.5, 0.25)
    """
    problem = _incomparable(actual, truth)
    if problem:
        return Comparison(name, problem=problem)
    if truth.dtype.kind != "f":
        differs, undecided = actual != truth, 0
        if differs.any() and noise is not None:
            unstable = noise().unstable
            undecided = int(np.count_nonzero(differs & unstable))
            differs &= ~unstable
        distance = np.abs(actual.astype(np.float64) - truth.astype(np.float64))
        largest = float(distance.max(initial=0.0))
        outside = int(np.count_nonzero(differs))
        return Comparison(name, truth.size, largest, outside=outside, undecided=undecided)
    have, want = actual.astype(np.float64), truth.astype(np.float64)
    finite = np.isfinite(have) & np.isfinite(want)
    distance = np.abs(np.subtract(have, want, where=finite, out=np.zeros_like(want)))
    magnitude = np.where(np.isfinite(want), np.abs(want), 0.0)
    scale = float(magnitude.max(initial=typical))
    same = finite | (have == want) | (np.isnan(have) & np.isnan(want))
    allowed = max((min(tolerance, TOLERANCE_DOUBLE) if double else tolerance) * scale, accepted_error) + _SMALLEST
    differs, undecided = ~same | (distance > allowed), 0
    if differs.any() and noise is not None:
        known = noise()
        undecided = int(np.count_nonzero(differs & known.unstable))
        differs = ~known.unstable & (~same | (distance > allowed + NOISE_FACTOR * known.spread))
    dropped = differs & np.isnan(want) if may_drop_nans else np.zeros_like(differs)
    largest = float(distance.max(initial=0.0))
    with np.errstate(over="ignore"):
        relative = np.divide(distance, magnitude, where=magnitude > _SMALLEST, out=np.zeros_like(distance))
    return Comparison(
        name,
        truth.size,
        max_abs_error=largest,
        max_rel_error=float(relative.max(initial=0.0)),
        scaled_error=largest / scale if scale else largest,
        outside=int(np.count_nonzero(differs & ~dropped)),
        dropped_nans=int(np.count_nonzero(dropped)),
        undecided=undecided,
    )


def _incomparable(actual: Array, truth: Array) -> str:
    if actual.shape != truth.shape:
        return f"shape {actual.shape}, expected {truth.shape}"
    have, want = (_KINDS.get(array.dtype.kind, str(array.dtype)) for array in (actual, truth))
    return "" if have == want else f"holds {have}, expected {want}"


def kendall_tau(left: Array, right: Array) -> float | None:
    """Rank correlation tau-b, with ties counted apart.

    ``(P - Q) / sqrt((P + Q + L) (P + Q + R))`` over all pairs: P in the same order on both sides, Q in opposite order,
    L tied on the left only, R on the right only (M. G. Kendall, "The treatment of ties in ranking problems",
    Biometrika 33, 1945).

    Parameters
    ----------
    left, right
        Scores, shape (N,); without NaN.

    Returns
    -------
    float or None
        From -1 to 1; None for fewer than two scores, or when one side ties all of them.

    Examples
    --------
    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.3333333333333333
    >>> kendall_tau(np.zeros(3), np.arange(3.0)) is None
    True
    """
    agree = against = left_ties = right_ties = 0
    # One candidate against all later ones at a time: quadratic time, but linear memory.
    for at in range(len(left) - 1):
        first = _order(left[at + 1 :], left[at])
        second = _order(right[at + 1 :], right[at])
        both = first * second
        agree += int(np.count_nonzero(both > 0))
        against += int(np.count_nonzero(both < 0))
        left_ties += int(np.count_nonzero((first == 0) & (second != 0)))
        right_ties += int(np.count_nonzero((first != 0) & (second == 0)))
    untied = agree + against
    weight = math.sqrt((untied + left_ties) * (untied + right_ties))
    return (agree - against) / weight if weight else None


def _order(others: Array, one: Array) -> Array:
    # Not a difference: infinities of one sign are equal, and a difference of them is not a number.
    return (others > one).astype(np.int8) - (others < one).astype(np.int8)


def magnitudes(values: Mapping[str, Array]) -> dict[str, float]:
    """Largest finite magnitude of each value."""
    found = {}
    for name, array in values.items():
        numbers = np.abs(array.astype(np.float64))
        found[name] = float(numbers.max(initial=0.0, where=np.isfinite(numbers)))
    return found


def top_k_agreement(left: Array, right: Array, count: int, tied: float = 0.0) -> float:
    """Share of the right side's ``count`` best candidates that are among the best of the left side too.

    Ties go to the lower index on the right. On the left, whatever scores as much as the last of the best is one of
    them: which of two equal candidates comes first says nothing about the numbers.

    Parameters
    ----------
    left, right
        Scores, shape (N,), larger is better; without NaN.
    count
        From 1 to N.
    tied
        Scores that differ by no more are equal.

    Examples
    --------
    >>> top_k_agreement(np.array([3.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0]), 2)
    0.5
    """
    first, second = left.astype(np.float64), right.astype(np.float64)
    least = np.sort(first)[-count]
    chosen = first[np.argsort(-second, kind="stable")[:count]]
    return int(np.count_nonzero(chosen >= least - tied)) / count
