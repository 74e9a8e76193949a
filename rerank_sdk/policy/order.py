"""Order by score, leaving in place what the user has seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def order_unpinned(scores: NDArray[np.float32], pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sort the free places by falling score; pinned candidates keep theirs.

    Equal scores keep the server's order.

    Parameters
    ----------
    scores
        (N,) float32, finite.
    pinned
        (N,) bool.

    Returns
    -------
    ndarray
        (N,) int64: the candidate at each place.

    Examples
    --------
    >>> order_unpinned(np.array([1, 2, 3], np.float32), np.array([True, False, False])).tolist()
    [0, 2, 1]
    """
    order = np.arange(len(scores))
    free = np.flatnonzero(~pinned)
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order
