"""Ranking metrics of one list or of many at once, in float64.

Two conventions hold everywhere:

* A list without a relevant item has no value: it gives NaN, and the caller counts such lists and reports the
  count. A silent 0 or 1 would move the mean with the share of empty lists.
* Many lists are the rows of one array. Shorter lists are padded at the end: with relevance 0 where relevances
  come in ranked order, and through `mask` where scores decide.

Relevance is graded: the gain is ``2 ** relevance - 1`` (Burges et al., "Learning to Rank using Gradient
Descent", 2005), which is the relevance itself when it is 0 or 1. The discount of rank r, from 1, is ``1 /
log2(r + 1)`` (Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank_engine.errors import InputError

MAX_RELEVANCE = 64.0
"""Larger grades are taken for a mistake: a gain of 2 ** 64 drowns every other item."""


def ndcg_at(order_relevance: ArrayLike, k: int, *, ideal: ArrayLike | None = None) -> NDArray[np.float64]:
    """Normalised discounted cumulative gain of the first `k` ranks.

    Parameters
    ----------
    order_relevance
        (..., L) relevances from 0 in ranked order, best rank first.
    k
        How many ranks count.
    ideal
        (..., M) relevances of all relevant items of each list, in any order, when the ranking may lack some
        of them; padded with 0. Without it the ranking's own items are all there are.

    Returns
    -------
    ndarray
        (...) float64 from 0 to 1; NaN for a list without a relevant item.

    Raises
    ------
    InputError
        A relevance is negative, above :data:`MAX_RELEVANCE` or not finite, `k` is no positive integer, or a
        ranking holds more than its `ideal`.

    Examples
    --------
    >>> round(float(ndcg_at([0, 1, 0, 1], k=3)), 6)
    0.386853
    >>> ndcg_at([[1, 0], [0, 0]], k=2).tolist()
    [1.0, nan]
    """
    gains = _gains(order_relevance, "order_relevance")
    discounts = _discounts(gains.shape[-1], _rank(k))
    return _normalised(gains @ discounts, gains, k, ideal)


def ndcg_at_tied(
    scores: ArrayLike,
    relevance: ArrayLike,
    k: int,
    *,
    ideal: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Expected nDCG when items of equal score are put in random order.

    Each item earns the mean discount of the ranks that its group of ties takes (McSherry and Najork,
    "Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied Scores", ECIR
    2008).

    Parameters
    ----------
    scores
        (..., L) finite scores, higher is better, in any order.
    relevance
        (..., L) relevances from 0 of the same items.
    k, ideal
        As in :func:`ndcg_at`.
    mask
        (..., L) bool, False for padding. All True when left out.

    Returns
    -------
    ndarray
        (...) float64 from 0 to 1; NaN for a list without a relevant item.

    Raises
    ------
    InputError
        As :func:`ndcg_at`; also when a score is not finite or the shapes differ.

    Examples
    --------
    >>> round(float(ndcg_at_tied([1, 1, 1, 1], [1, 0, 0, 0], k=3)), 6)
    0.532732
    """
    values, present = _scores(scores, relevance, mask)
    gains = np.where(present, _gains(relevance, "relevance"), 0.0)
    # Padding sorts behind every item: it takes no rank and ties with nothing.
    order = np.argsort(np.where(present, -values, np.inf), axis=-1, kind="stable")
    gains = np.take_along_axis(gains, order, -1)
    first, last = _tie_bounds(np.take_along_axis(np.where(present, values, -np.inf), order, -1))
    total = np.concatenate([[0.0], np.cumsum(_discounts(gains.shape[-1], _rank(k)))])
    discount = (total[last + 1] - total[first]) / (last - first + 1)
    return _normalised((gains * discount).sum(-1), gains, k, ideal)


def mrr(order_relevance: ArrayLike, k: int | None = None, *, ideal: ArrayLike | None = None) -> NDArray[np.float64]:
    """Reciprocal rank of the first relevant item; the mean over lists is the MRR.

    Parameters
    ----------
    order_relevance
        (..., L) relevances from 0 in ranked order; anything above 0 is relevant.
    k
        Ranks beyond it do not count; None for all.
    ideal
        (..., M) relevances of all relevant items of each list: a ranking that lacks them all has 0, not NaN.

    Returns
    -------
    ndarray
        (...) float64 from 0 to 1; NaN for a list without a relevant item.

    Raises
    ------
    InputError
        As :func:`ndcg_at`.

    Examples
    --------
    >>> mrr([[0, 1, 1], [0, 0, 0]]).tolist()
    [0.5, nan]
    """
    relevant = _gains(order_relevance, "order_relevance") > 0
    counted = relevant if k is None else relevant[..., : _rank(k)]
    value = (counted / np.arange(1.0, counted.shape[-1] + 1)).max(-1, initial=0.0)
    return np.where(_relevant_count(relevant, ideal) > 0, value, np.nan)


def recall_at(order_relevance: ArrayLike, k: int, *, ideal: ArrayLike | None = None) -> NDArray[np.float64]:
    """Share of the relevant items that stand within the first `k` ranks.

    Parameters
    ----------
    order_relevance
        (..., L) relevances from 0 in ranked order; anything above 0 is relevant.
    k
        How many ranks count.
    ideal
        (..., M) relevances of all relevant items of each list, when the ranking may lack some of them.

    Returns
    -------
    ndarray
        (...) float64 from 0 to 1; NaN for a list without a relevant item.

    Raises
    ------
    InputError
        As :func:`ndcg_at`.

    Examples
    --------
    >>> float(recall_at([0, 1, 0, 1], k=2)), float(recall_at([1, 0], k=2, ideal=[1, 1, 1, 1]))
    (0.5, 0.25)
    """
    relevant = _gains(order_relevance, "order_relevance") > 0
    hits = relevant[..., : _rank(k)].sum(-1, dtype=np.float64)
    count = _relevant_count(relevant, ideal)
    return np.where(count > 0, hits / np.maximum(count, 1), np.nan)


def auc(scores: ArrayLike, relevance: ArrayLike, *, mask: ArrayLike | None = None) -> NDArray[np.float64]:
    """Area under the ROC curve within each list: how often a relevant item outscores another one, ties as one half.

    Computed from average ranks, as the Mann-Whitney statistic.

    Parameters
    ----------
    scores
        (..., L) finite scores, higher is better, in any order.
    relevance
        (..., L) relevances from 0 of the same items; anything above 0 is relevant.
    mask
        (..., L) bool, False for padding. All True when left out.

    Returns
    -------
    ndarray
        (...) float64 from 0 to 1; NaN for a list in which all items are relevant, or none.

    Raises
    ------
    InputError
        As :func:`ndcg_at_tied`.

    Examples
    --------
    >>> float(auc([0.9, 0.5, 0.5], [1, 1, 0]))
    0.75
    """
    values, present = _scores(scores, relevance, mask)
    relevant = (_gains(relevance, "relevance") > 0) & present
    order = np.argsort(np.where(present, values, np.inf), axis=-1, kind="stable")
    first, last = _tie_bounds(np.take_along_axis(np.where(present, values, np.inf), order, -1))
    rank = (first + last) / 2 + 1
    good = relevant.sum(-1, dtype=np.float64)
    other = present.sum(-1) - good
    above = (rank * np.take_along_axis(relevant, order, -1)).sum(-1) - good * (good + 1) / 2
    pairs = good * other
    return np.where(pairs > 0, above / np.maximum(pairs, 1), np.nan)


def _rank(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a positive integer, got {k!r}")
    return int(k)


def _discounts(length: int, k: int) -> NDArray[np.float64]:
    discounts = 1.0 / np.log2(np.arange(2, length + 2, dtype=np.float64))
    discounts[k:] = 0.0
    return discounts


def _gains(relevance: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(relevance)
    if array.dtype.kind not in "biuf" or array.ndim < 1:
        raise InputError(f"{name} must be an array (..., L) of numbers, got {array.dtype} of shape {array.shape}")
    array = array.astype(np.float64)
    wrong = ~((array >= 0) & (array <= MAX_RELEVANCE))
    if wrong.any():
        raise InputError(f"{name} must lie from 0 to {MAX_RELEVANCE:g}, got {array[wrong][0]}")
    return np.exp2(array) - 1.0


def _normalised(
    gained: NDArray[np.float64], gains: NDArray[np.float64], k: int, ideal: ArrayLike | None
) -> NDArray[np.float64]:
    best_gains = gains if ideal is None else _ideal(ideal, gains.shape[:-1])
    best = -np.sort(-best_gains, axis=-1) @ _discounts(best_gains.shape[-1], _rank(k))
    # Two sums of the same terms in different order may differ in the last bits.
    if (gained > best * (1 + 1e-9)).any():
        raise InputError("ideal must hold every relevant item of its list: a ranking gains more than the ideal one")
    return np.where(best > 0, np.minimum(gained / np.where(best > 0, best, 1.0), 1.0), np.nan)


def _relevant_count(relevant: NDArray[np.bool_], ideal: ArrayLike | None) -> NDArray[np.int64]:
    own = relevant.sum(-1)
    if ideal is None:
        return own
    count = (_ideal(ideal, relevant.shape[:-1]) > 0).sum(-1)
    if (own > count).any():
        raise InputError("ideal must hold every relevant item of its list: a ranking has more of them")
    return count


def _ideal(ideal: ArrayLike, lists: tuple[int, ...]) -> NDArray[np.float64]:
    gains = _gains(ideal, "ideal")
    if gains.shape[:-1] != lists:
        raise InputError(f"ideal must have shape {(*lists, 'M')}, got {gains.shape}")
    return gains


def _scores(
    scores: ArrayLike, relevance: ArrayLike, mask: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores as float64 and which of them are items; checked against the relevances' shape."""
    values = np.asarray(scores)
    shape = np.shape(relevance)
    if values.dtype.kind not in "biuf" or values.ndim < 1 or values.shape != shape:
        raise InputError(f"scores must be numbers of the relevances' shape {shape}, got {values.dtype} {values.shape}")
    present = np.ones(shape, bool) if mask is None else np.asarray(mask)
    if present.dtype != np.bool_ or present.shape != shape:
        raise InputError(f"mask must be bool of the scores' shape {shape}, got {present.dtype} {present.shape}")
    values = values.astype(np.float64)
    if not np.isfinite(values[present]).all():
        raise InputError("scores must be finite; mark padding by mask")
    return values, present


def _tie_bounds(ordered: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last position of the run of equal values that each position of a sorted list lies in."""
    length = ordered.shape[-1]
    place = np.broadcast_to(np.arange(length), ordered.shape)
    changes = ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones((*ordered.shape[:-1], 1), bool)
    starts = np.concatenate([edge, changes], -1)[..., :length]
    ends = np.concatenate([changes, edge], -1)[..., :length]
    first = np.maximum.accumulate(np.where(starts, place, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends, place, length)[..., ::-1], axis=-1)[..., ::-1]
    return first, last
