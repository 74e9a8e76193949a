"""Visits: nothing lost, nothing mixed, boundaries exact."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import DataError, InputError
from rerank_simulator.logs import RatingLog
from rerank_simulator.visits import split_visits


def make_log(rows: list[tuple[int, int]]) -> RatingLog:
    """A log of (user, time in seconds)."""
    user, seconds = zip(*rows, strict=True) if rows else ((), ())
    times = [second * 1000 for second in seconds]
    return RatingLog.from_rows(user, [0] * len(rows), [3] * len(rows), times, user_ids="uvw", item_ids="a")


def test_pause_of_exactly_the_gap_stays_in_the_visit() -> None:
    visits = split_visits(make_log([(0, 0), (0, 1800), (0, 3601)]))
    assert visits.start_ms.tolist() == [0, 3_601_000]
    assert visits.end_ms.tolist() == [1_800_000, 3_601_000]
    assert [visits.events_of(visit).tolist() for visit in range(2)] == [[0, 1], [2]]


def test_visits_of_different_users_interleave() -> None:
    log = make_log([(1, 0), (0, 10), (1, 20), (0, 5000), (2, 0)])
    visits = split_visits(log, gap_s=60)
    assert visits.user.tolist() == [1, 2, 0, 0]
    assert visits.start_ms.tolist() == [0, 0, 10_000, 5_000_000]
    assert log.time_ms[visits.events_of(0)].tolist() == [0, 20_000]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=40),
    st.sampled_from([1, 2.5, 7, 1000]),
)
def test_against_a_plain_loop(rows: list[tuple[int, int]], gap_s: Any) -> None:
    log = make_log(rows)
    visits = split_visits(log, gap_s)
    expected = []
    for user in range(3):
        open_visit: list[int] = []
        for row in np.flatnonzero(log.user == user).tolist():
            if open_visit and (log.time_ms[row] - log.time_ms[open_visit[-1]]) / 1000 > gap_s:
                expected.append((user, open_visit))
                open_visit = []
            open_visit.append(row)
        if open_visit:
            expected.append((user, open_visit))
    expected.sort(key=lambda visit: (log.time_ms[visit[1][0]], visit[0]))
    found = [(int(visits.user[v]), visits.events_of(v).tolist()) for v in range(len(visits))]
    assert found == expected
    assert visits.end_ms.tolist() == [int(log.time_ms[events[-1]]) for _, events in expected]
    assert sorted(visits.events.tolist()) == list(range(len(rows)))


@pytest.mark.parametrize("gap_s", [0, -1, float("nan"), float("inf"), True])
def test_gap_must_be_positive(gap_s: Any) -> None:
    with pytest.raises(InputError, match="gap_s"):
        split_visits(make_log([(0, 0)]), gap_s)


def test_empty_log_is_refused() -> None:
    with pytest.raises(DataError, match="no events"):
        split_visits(make_log([]))


@pytest.mark.parametrize("visit", [-1, 1])
def test_unknown_visit_is_refused(visit: Any) -> None:
    with pytest.raises(InputError, match="from 0 to 0"):
        split_visits(make_log([(0, 0)])).events_of(visit)


def test_arrays_are_read_only_with_the_promised_types() -> None:
    visits = split_visits(make_log([(0, 0), (1, 1)]))
    assert [array.dtype for array in vars(visits).values()] == [np.int32, np.int64, np.int64, np.int64, np.int64]
    assert not any(array.flags.writeable for array in vars(visits).values())
