"""Visits: what a user did without a long pause, the unit in which a list is requested and reordered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError, InputError
from rerank_simulator.logs.movielens import RatingLog


@dataclass(frozen=True, eq=False)
class Visits:
    """V visits, sorted by (start, user); each event of the log is in exactly one. All arrays are read-only.

    Attributes
    ----------
    user
        (V,) int32: positions in the log's `user_ids`.
    start_ms, end_ms
        (V,) int64: times of the first and of the last event, milliseconds since 1970, UTC.
    offsets
        (V + 1,) int64: visit v owns ``events[offsets[v]:offsets[v + 1]]``.
    events
        (N,) int64: rows of the log, in the order of time within a visit.

    Examples
    --------
    >>> log = RatingLog.from_rows([0, 0], [0, 1], [4, 5], [0, 7_200_000], user_ids="u", item_ids="ab")
    >>> visits = split_visits(log)
    >>> len(visits), visits.events_of(1).tolist()
    (2, [1])
    """

    user: NDArray[np.int32]
    start_ms: NDArray[np.int64]
    end_ms: NDArray[np.int64]
    offsets: NDArray[np.int64]
    events: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.user)

    def events_of(self, visit: int) -> NDArray[np.int64]:
        """Rows of the log that belong to one visit, in the order of time.

        Raises
        ------
        InputError
            There is no such visit.

        Examples
        --------
        >>> log = RatingLog.from_rows([0, 0], [0, 1], [4, 5], [9, 3], user_ids=("u",), item_ids=("a", "b"))
        >>> split_visits(log).events_of(0).tolist()
        [0, 1]
        """
        if not 0 <= visit < len(self):
            raise InputError(f"visit {visit}: expected a number from 0 to {len(self) - 1}")
        return self.events[self.offsets[visit] : self.offsets[visit + 1]]


def split_visits(log: RatingLog, gap_s: float = 1800) -> Visits:
    """Split each user's events into visits wherever they pause for more than `gap_s`.

    Thirty minutes of inactivity is the usual limit of a web session (Catledge and Pitkow, "Characterizing
    browsing strategies in the World-Wide Web", 1995, found 25.5).

    Parameters
    ----------
    log
        The events.
    gap_s
        A pause of exactly this many seconds still belongs to the visit; a longer one ends it.

    Raises
    ------
    InputError
        `gap_s` is not a positive, finite number.
    DataError
        The log is empty.

    Examples
    --------
    >>> log = RatingLog.from_rows(
    ...     [0, 0, 0], [0, 1, 2], [4, 5, 1], [0, 60_000, 4_000_000], user_ids=("u",), item_ids=("a", "b", "c")
    ... )
    >>> visits = split_visits(log)
    >>> visits.start_ms.tolist(), visits.end_ms.tolist()
    ([0, 4000000], [60000, 4000000])
    """
    if isinstance(gap_s, bool) or not math.isfinite(gap_s) or gap_s <= 0:
        raise InputError(f"gap_s must be a positive number of seconds, got {gap_s!r}")
    if not len(log.user):
        raise DataError("split_visits: the log has no events")
    by_user = np.argsort(log.user, kind="stable")  # the log is in the order of time already
    user, time_ms = log.user[by_user], log.time_ms[by_user]
    begins = np.ones(len(user), bool)
    begins[1:] = (np.diff(user) != 0) | (np.diff(time_ms) > gap_s * 1000)
    first = np.flatnonzero(begins)
    after = np.append(first[1:], len(user))
    order = np.lexsort((user[first], time_ms[first]))
    length = (after - first)[order]
    offsets = np.concatenate([[0], np.cumsum(length)])
    # Position of each event in `by_user`: its visit's first row there, plus its place within the visit.
    rows = np.repeat(first[order] - offsets[:-1], length) + np.arange(len(user))
    visits = Visits(
        user=user[first][order],
        start_ms=time_ms[first][order],
        end_ms=time_ms[after - 1][order],
        offsets=offsets.astype(np.int64),
        events=by_user[rows].astype(np.int64),
    )
    for array in vars(visits).values():
        array.setflags(write=False)
    return visits
