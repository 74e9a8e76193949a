"""Counters out of the state: one value for each slot, then one for each candidate."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rerank_features.compiler import (
    BUCKETS,
    CAP,
    COUNT_ONES,
    COUNT_VALUES,
    COUNTER_A,
    COUNTER_B,
    EVER,
    FIXED,
    KEY_COLUMN,
    KEY_SLOT_COLUMN,
    KEY_WIDTH,
    MAX_OF,
    MEAN_OF,
    META_TICK,
    MIN_OF,
    NEWEST,
    OP,
    OPTIONS,
    PRIOR,
    PRIOR_VALUE,
    QUANTUM,
    RATE,
    SESSION_COUNT,
    SESSION_END,
    SESSION_START,
    SLOT_COUNTERS,
    SLOT_PLACE,
    SLOT_TICK,
    TIME_SINCE,
    USER_KEY,
    WINDOW_A,
    WINDOW_B,
    WINDOW_OFFSET,
    WINDOW_TYPE,
    WINDOW_WIDTH_MS,
)
from rerank_features.compiler.tables import find_slot

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]

_NO_VALUE = -2


@njit(**OPTIONS)
def window_floors(windows: Ints, users: Ints, user: int, now_ms: int, gap_ms: int) -> Ints:
    """Smallest stamp of each window's ring that still counts."""
    floors = np.empty(windows.shape[0], np.int64)
    session = np.int64(2**62)
    if user >= 0 and now_ms - users[user, NEWEST] <= gap_ms:
        for i in range(users[user, SESSION_COUNT]):
            if users[user, SESSION_END + i] == users[user, NEWEST]:
                session = users[user, SESSION_START + i] + 1
    for w in range(windows.shape[0]):
        if windows[w, WINDOW_TYPE] == FIXED:
            # stamps are the bucket's number plus one, and 0 in an empty place
            floors[w] = max(now_ms // windows[w, WINDOW_WIDTH_MS] - BUCKETS + 2, 1)
        else:
            floors[w] = session
    return floors


@njit(**OPTIONS)
def find_slots(
    rows: Rows, user: int, keys: Ints, slots: Ints, table: Ints, meta: Ints, items: Ints, found: Ints, distinct: Ints
) -> NDArray[np.int64]:
    """Which slots the candidates' key values have.

    Candidates share most of their values, so each slot is listed once and read once, however many share it.

    Parameters
    ----------
    found
        (N, V) output: place in ``distinct``, or -1 where nothing was counted, or -2 where there is no value.
    distinct
        Output: the slots, key by key.

    Returns
    -------
    ndarray
        (K + 1,): where each key's slots begin in ``distinct``.
    """
    begins = np.zeros(keys.shape[0] + 1, np.int64)
    meta[META_TICK] += 1
    tick = meta[META_TICK]
    count = 0
    for key in range(keys.shape[0]):
        column, width, at = keys[key, KEY_COLUMN], keys[key, KEY_WIDTH], keys[key, KEY_SLOT_COLUMN]
        begins[key] = count
        for n in range(rows.size if column != USER_KEY else min(rows.size, 1)):
            for j in range(width):
                word = items[rows[n], column + j] if column != USER_KEY else 1
                if word == 0:
                    found[n, at + j] = _NO_VALUE
                    break
                slot = find_slot(table, slots, user, key, word) if user >= 0 else -1
                if slot < 0:
                    found[n, at + j] = -1
                    continue
                if slots[slot, SLOT_TICK] != tick:
                    slots[slot, SLOT_TICK] = tick
                    slots[slot, SLOT_PLACE] = count
                    distinct[count] = slot
                    count += 1
                found[n, at + j] = slots[slot, SLOT_PLACE]
    begins[keys.shape[0]] = count
    return begins


@njit(**OPTIONS)
def _read_window(
    slots: Ints, pool: Ints, distinct: Ints, counter: int, window: Ints, floor: int, ones: Ints, totals: Ints
) -> None:
    """Number of events of a counter in a window, and the sum of their values in quanta, for each slot."""
    place = SLOT_COUNTERS + 2 * counter
    for i in range(distinct.size):
        count, total = 0, 0
        block = slots[distinct[i], place]
        if block >= 0:
            block += window[WINDOW_OFFSET]
            if window[WINDOW_TYPE] == EVER:
                count, total = pool[block], pool[block + 1]
            else:
                ring = pool[block : block + 3 * BUCKETS]
                for k in range(BUCKETS):
                    mask = -np.int64(ring[k] >= floor)
                    count += ring[k + BUCKETS] & mask
                    total += ring[k + 2 * BUCKETS] & mask
        ones[i] = count
        totals[i] = total


@njit(**OPTIONS)
def _smoothed(above: float, below: float, prior: float, prior_value: float) -> float:
    if below + prior > 0.0:
        return (above + prior * prior_value) / (below + prior)
    return prior_value


@njit(**OPTIONS)
def value_slots(
    slots: Ints,
    pool: Ints,
    windows: Ints,
    floors: Ints,
    distinct: Ints,
    feature: Ints,
    number: Floats,
    now_ms: int,
    values: Floats,
) -> float:
    """A count, rate, mean or time of each slot; returns what it is where nothing was counted."""
    op, count = feature[OP], distinct.size
    if op == TIME_SINCE:
        place = SLOT_COUNTERS + 2 * feature[COUNTER_A] + 1
        for i in range(count):
            last = slots[distinct[i], place]
            values[i] = min((now_ms - last) / 1000.0, number[CAP]) if last >= 0 else number[CAP]
        return number[CAP]
    ones, totals = np.empty(count, np.int64), np.empty(count, np.int64)
    w = feature[WINDOW_A]
    _read_window(slots, pool, distinct, feature[COUNTER_A], windows[w], floors[w], ones, totals)
    if op == COUNT_ONES:
        for i in range(count):
            values[i] = ones[i]
        return 0.0
    if op == COUNT_VALUES:
        for i in range(count):
            values[i] = totals[i] * QUANTUM
        return 0.0
    if op == RATE:
        w = feature[WINDOW_B]
        below = np.empty(count, np.int64)
        _read_window(slots, pool, distinct, feature[COUNTER_B], windows[w], floors[w], below, totals)
        for i in range(count):
            values[i] = _smoothed(ones[i], below[i], number[PRIOR], number[PRIOR_VALUE])
    else:
        for i in range(count):
            values[i] = _smoothed(totals[i] * QUANTUM, ones[i], number[PRIOR], number[PRIOR_VALUE])
    return _smoothed(0.0, 0.0, number[PRIOR], number[PRIOR_VALUE])


@njit(**OPTIONS)
def reduce_values(
    found: Ints, key: Ints, begin: int, reduce: int, values: Floats, unseen: float, column: Floats
) -> None:
    """A keyed feature of every candidate: its value, or its values reduced."""
    at, width = key[KEY_SLOT_COLUMN], key[KEY_WIDTH]
    if key[KEY_COLUMN] == USER_KEY:
        if column.size > 0:
            column[:] = values[0] if found[0, at] >= 0 else unseen
        return
    for n in range(column.size):
        result = unseen
        count = 0
        for j in range(width):
            place = found[n, at + j]
            if place == _NO_VALUE:
                break
            value = values[place - begin] if place >= 0 else unseen
            count += 1
            if count == 1:
                result = value
            elif reduce == MAX_OF:
                result = max(result, value)
            elif reduce == MIN_OF:
                result = min(result, value)
            else:
                result += value
        column[n] = result / count if reduce == MEAN_OF and count > 1 else result
