"""Learn a patch from a user's own pairs, and keep it only when it helps on pairs that it has not seen.

The loss of a pair with head-input difference d and base-score difference s is ``log(1 + exp(-(w·d + s)))`` plus an
L2 penalty that pulls the delta w to zero, the shared model; its gradient is
``-sigmoid(-(w·d + s)) d + l2 w``. Both are computed by the code below (RankNet's pairwise loss: Burges et al.,
"Learning to Rank using Gradient Descent", ICML 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_sdk.personal.patch import Patch
from rerank_sdk.store import Example

HELD_OUT = 0.25
"""Share of the newest pairs that decide whether a patch is kept."""

MIN_PAIRS = 24
"""With fewer pairs nothing is learned."""

MIN_HELD_OUT_MOMENTS = 3
"""With feedback at fewer held-out moments nothing is accepted."""

_ONE_SIDED_5_PERCENT = 1.645
_STEPS = 100
_L2 = 1.0


@dataclass(frozen=True)
class PersonalisationResult:
    """What personalising a user led to.

    Attributes
    ----------
    accepted
        Whether a new patch is in use.
    reason
        Why, or why not.
    pairs
        Pairs that there were.
    loss_before, loss_after
        Mean loss on the held-out pairs without and with the patch; NaN when nothing was learned.
    version
        Version of the patch in use; 0 for none.
    """

    accepted: bool
    reason: str
    pairs: int
    loss_before: float
    loss_after: float
    version: int = 0


def pair_loss(weight: NDArray[np.float64], pairs: NDArray[np.float64]) -> float:
    """Mean pairwise logistic loss of (P, H + 1) pairs; the last column is the difference of base scores."""
    margin = pairs[:, :-1] @ weight + pairs[:, -1]
    return float(np.logaddexp(0.0, -margin).mean())


def pair_gradient(weight: NDArray[np.float64], pairs: NDArray[np.float64], l2: float) -> NDArray[np.float64]:
    """Gradient of the mean loss plus ``l2 / 2 * |w|²`` with respect to the (H,) weight delta."""
    margin = pairs[:, :-1] @ weight + pairs[:, -1]
    push = -0.5 * (1.0 - np.tanh(0.5 * margin))  # -sigmoid(-margin) without overflow
    gradient: NDArray[np.float64] = pairs[:, :-1].T @ push / len(pairs) + l2 * weight
    return gradient


def fit_pairs(pairs: NDArray[np.float64], l2: float = _L2, steps: int = _STEPS) -> NDArray[np.float64]:
    """Minimise the loss by gradient descent with a step that the data's curvature allows.

    Returns
    -------
    ndarray
        (H,) float64 weight delta; all zero for no pairs.

    Examples
    --------
    >>> pairs = np.array([[1.0, 0.0, 0.0]] * 10)
    >>> fit_pairs(pairs, l2=1.0).round(2).tolist()
    [0.4, 0.0]
    """
    weight = np.zeros(pairs.shape[1] - 1)
    if not len(pairs):
        return weight
    # The logistic loss curves at most by a quarter of the largest eigenvalue of the second-moment matrix.
    moment = pairs[:, :-1].T @ pairs[:, :-1] / len(pairs)
    step = 1.0 / (0.25 * float(np.linalg.eigvalsh(moment)[-1]) + l2)
    for _ in range(steps):
        weight -= step * pair_gradient(weight, pairs, l2)
    return weight


def train_patch(examples: Sequence[Example], base_model: str) -> tuple[Patch | None, PersonalisationResult]:
    """Learn a patch from pairs in order of time.

    Parameters
    ----------
    examples
        The user's pairs, oldest first.
    base_model
        Content hash of the model; pairs of another model are an error of the caller.

    Returns
    -------
    tuple
        The patch, or None when it was not accepted, and what happened.
    """
    count = len(examples)
    if count < MIN_PAIRS:
        reason = f"{count} pairs, at least {MIN_PAIRS} are needed"
        return None, PersonalisationResult(False, reason, count, float("nan"), float("nan"))
    pairs = np.stack([example.features for example in examples]).astype(np.float64)
    # Pairs of one moment stay together: the newest moments are held out, not the newest rows.
    times = np.array([example.time_ms for example in examples])
    cut = int(np.searchsorted(times, times[int(count * (1 - HELD_OUT))], side="left"))
    if cut < MIN_PAIRS // 2:
        reason = "all pairs are of the same moment; nothing is left to test on"
        return None, PersonalisationResult(False, reason, count, float("nan"), float("nan"))
    weight = fit_pairs(pairs[:cut])
    before, after = pair_loss(np.zeros_like(weight), pairs[cut:]), pair_loss(weight, pairs[cut:])
    if not _is_better(weight, pairs[cut:], times[cut:]):
        reason = "not clearly better than the shared model on the user's newest pairs"
        return None, PersonalisationResult(False, reason, count, before, after)
    final = fit_pairs(pairs).astype(np.float32)
    patch = Patch(base_model, final, 0.0)
    return patch, PersonalisationResult(True, "better on the user's newest pairs", count, before, after)


def _is_better(weight: NDArray[np.float64], pairs: NDArray[np.float64], times: NDArray[np.int64]) -> bool:
    """Whether the loss falls, at the 5 % level of a one-sided test.

    Pairs of one moment share the item that was chosen, so the moments are the independent observations.
    """
    base = pairs[:, -1]
    gain = np.logaddexp(0.0, -base) - np.logaddexp(0.0, -(pairs[:, :-1] @ weight + base))
    _, moment = np.unique(times, return_inverse=True)
    gains = np.bincount(moment, gain) / np.bincount(moment)
    if len(gains) < MIN_HELD_OUT_MOMENTS:
        return False
    return bool(gains.mean() > _ONE_SIDED_5_PERCENT * gains.std(ddof=1) / np.sqrt(len(gains)))
