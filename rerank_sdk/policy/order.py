"""Order by score, leaving in place what the user has seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def order_unpinned(
    scores: NDArray[np.float32], pinned: NDArray[np.bool_], base: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Sort the free places by falling score; pinned places keep their candidates.

    Equal scores keep the server's order.

    Parameters
    ----------
    scores
        (N,) float32, finite, by candidate.
    pinned
        (N,) bool, by place.
    base
        (N,) int64: the candidate that stands at each place now; None for the server's order.

    Returns
    -------
    ndarray
        (N,) int64: the candidate at each place.

    Examples
    --------
    >>> order_unpinned(np.array([1, 2, 3], np.float32), np.array([True, False, False])).tolist()
    [0, 2, 1]
    >>> now = np.array([2, 0, 1])
    >>> order_unpinned(np.array([3, 4, 1], np.float32), np.array([True, False, False]), now).tolist()
    [2, 1, 0]
    """
    order = np.arange(len(scores)) if base is None else base.copy()
    free = np.sort(order[~pinned])
    order[~pinned] = free[np.argsort(-scores[free], kind="stable")]
    return order
