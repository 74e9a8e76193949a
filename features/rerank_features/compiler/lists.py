"""A candidate against the list it is in, and against the words of the request."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    AFFINE,
    HOUR,
    HOUR_COS,
    HOUR_SIN,
    LIST_RANK,
    LOG1P,
    MAX_FLOAT32,
    MINMAX,
    MINUS_MEAN,
    MINUS_MEDIAN,
    MINUS_PREVIOUS,
    RECIPROCAL,
    STANDARDIZE,
    WEEKDAY,
    WEEKDAY_SIN,
)
from rerank_features.compiler.native import compiled, cosine, log1p, sine, square_root

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]

_DAY_MS = 86_400_000
_COUNTED = 512
"""Up to so many values, comparing each with all in vectors is faster than sorting them."""

_FIRST_WEEKDAY = 3
"""1970-01-01 was a Thursday."""


@compiled
def _mean(column: Floats) -> float:
    total = 0.0
    for n in range(column.size):
        total += column[n]
    return total / column.size


@compiled
def _standardize(column: Floats) -> None:
    center, largest, spread = _mean(column), 0.0, 0.0
    for n in range(column.size):
        largest = max(largest, abs(column[n]))
        spread += (column[n] - center) ** 2
    deviation = square_root(spread / column.size)
    for n in range(column.size):
        column[n] = (column[n] - center) / deviation if deviation > 1e-9 * largest else 0.0


@compiled
def _sort(column: Floats, out: Floats) -> None:
    """Shell sort (Knuth, vol. 3, algorithm 5.2.1 D), short and without recursion."""
    for n in range(out.size):
        out[n] = column[n]
    step = 1
    while step < out.size // 3:
        step = 3 * step + 1
    while step > 0:
        for i in range(step, out.size):
            value, place = out[i], i
            while place >= step and out[place - step] > value:
                out[place] = out[place - step]
                place -= step
            out[place] = value
        step //= 3


@compiled
def _counts(column: Floats, value: float) -> tuple[int, int]:
    """How many are less than a value, and how many equal it."""
    below, equal = 0, 0
    for n in range(column.size):
        below += column[n] < value
        equal += column[n] == value
    return below, equal


@compiled
def _rank_by_counting(column: Floats, values: Floats) -> None:
    """As :func:`_rank`; ``values`` is a copy of the column."""
    others = column.size - 1
    for n in range(column.size):
        below, equal = _counts(values, values[n])
        above = column.size - below - equal
        column[n] = (above + 0.5 * (equal - 1)) / others if others > 0 else 0.0


@compiled
def _median_by_counting(column: Floats) -> float:
    """Mean of the two values in the middle."""
    first, second = (column.size - 1) // 2, column.size // 2
    low, high = column[0], column[0]
    for n in range(column.size):
        below, equal = _counts(column, column[n])
        if below <= first and first < below + equal:
            low = column[n]
        if below <= second and second < below + equal:
            high = column[n]
    return 0.5 * low + 0.5 * high


@compiled
def _below(ordered: Floats, value: float) -> int:
    """How many are less."""
    first, end = 0, ordered.size
    while first < end:
        middle = (first + end) // 2
        if ordered[middle] < value:
            first = middle + 1
        else:
            end = middle
    return first


@compiled
def _rank(column: Floats, ordered: Floats) -> None:
    """Share of the others that are larger; ties count half."""
    others = column.size - 1
    for n in range(column.size):
        below = _below(ordered, column[n])
        equal = below
        while equal < ordered.size and ordered[equal] == column[n]:
            equal += 1
        above = ordered.size - equal
        column[n] = (above + 0.5 * (equal - below - 1)) / others if others > 0 else 0.0


@compiled
def clip(column: Floats) -> None:
    """Into the range of float32, in place."""
    for n in range(column.size):
        column[n] = min(max(column[n], -MAX_FLOAT32), MAX_FLOAT32)


@compiled
def is_elementwise(kind: int) -> bool:
    """Whether a transform looks at one value alone."""
    return kind in (LOG1P, RECIPROCAL, AFFINE)


@compiled
def transform(column: Floats, kind: int, mean: float, scale: float, scratch: Floats) -> None:
    """In place; what each transform means is said in the spec.

    Parameters
    ----------
    scratch
        As long as the column.
    """
    if column.size == 0:
        return
    if kind == LOG1P:
        for n in range(column.size):
            column[n] = math.copysign(log1p(abs(column[n])), column[n])
    elif kind == RECIPROCAL:
        for n in range(column.size):
            column[n] = 1.0 / (1.0 + abs(column[n]))
    elif kind == AFFINE:
        for n in range(column.size):
            column[n] = (column[n] - mean) / scale
    elif kind == STANDARDIZE:
        _standardize(column)
    elif kind == MINUS_PREVIOUS:
        for n in range(column.size - 1, 0, -1):
            column[n] -= column[n - 1]
        column[0] = 0.0
    elif kind == MINUS_MEAN:
        center = _mean(column)
        for n in range(column.size):
            column[n] -= center
    elif kind == MINMAX:
        least, most = column[0], column[0]
        for n in range(column.size):
            least, most = min(least, column[n]), max(most, column[n])
        for n in range(column.size):
            column[n] = (column[n] - least) / (most - least) if most > least else 0.0
    elif column.size <= _COUNTED:
        if kind == LIST_RANK:
            for n in range(column.size):
                scratch[n] = column[n]
            _rank_by_counting(column, scratch)
        else:
            center = _median_by_counting(column)
            for n in range(column.size):
                column[n] -= center
    else:
        _sort(column, scratch)
        if kind == LIST_RANK:
            _rank(column, scratch)
        elif kind == MINUS_MEDIAN:
            center = 0.5 * scratch[(column.size - 1) // 2] + 0.5 * scratch[column.size // 2]
            for n in range(column.size):
                column[n] -= center


@compiled
def context_match(rows: Rows, items: Ints, field: int, width: int, words: Ints, out: Floats) -> None:
    """Words in common divided by all words, of the request and of each candidate."""
    asked = 0
    for k in range(words.size):
        asked += words[k] != 0
    for n in range(rows.size):
        own, shared = 0, 0
        for i in range(width):
            word = items[rows[n], field + i]
            if word == 0:
                break
            own += 1
            for k in range(asked):
                shared += words[k] == word
        every = own + asked - shared
        out[n] = shared / every if every > 0 else 0.0


@compiled
def local_time(now_ms: int, offset_min: float, part: int) -> float:
    """Hour or weekday of the user's clock, or its angle's sine or cosine."""
    local_ms = now_ms
    if not math.isnan(offset_min):
        local_ms += int(np.rint(min(max(offset_min, -1e6), 1e6) * 60_000.0))
    hour = (local_ms % _DAY_MS) / 3_600_000.0
    weekday = (local_ms // _DAY_MS + _FIRST_WEEKDAY) % 7 + hour / 24.0
    if part == HOUR:
        return hour
    if part == WEEKDAY:
        return weekday
    angle = 2.0 * math.pi * (hour / 24.0 if part in (HOUR_SIN, HOUR_COS) else weekday / 7.0)
    return sine(angle) if part in (HOUR_SIN, WEEKDAY_SIN) else cosine(angle)
