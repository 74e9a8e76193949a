"""Counters out of the state: one value for each slot, then one for each candidate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    BUCKETS,
    BUCKETS_A_HALF_LIFE,
    CAP,
    COUNT_ONES,
    COUNT_VALUES,
    COUNTER_A,
    DECAY,
    EVER,
    EVERYONE,
    FIXED,
    KEY_COLUMN,
    KEY_IS_SHARED,
    KEY_SLOT_COLUMN,
    KEY_WIDTH,
    MAX_OF,
    MEAN_OF,
    META_TICK,
    MIN_OF,
    NEWEST,
    OP,
    PRIOR,
    PRIOR_VALUE,
    QUANTUM,
    RATE,
    RING_COUNTS,
    RING_SUMS,
    SESSION,
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
    WINDOW_COUNTER,
    WINDOW_KEY,
    WINDOW_OFFSET,
    WINDOW_SUMS,
    WINDOW_TYPE,
    WINDOW_WIDTH_MS,
)
from rerank_features.compiler.native import compiled, exp
from rerank_features.compiler.tables import find_slot

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]

_NO_VALUE = -2
_LN2 = math.log(2.0)


@compiled
def now_of(keys: Ints, key: int, users: Ints, now_ms: int) -> int:
    """The moment that a key's counters are read at: everyone's at their newest event, if that is later."""
    return max(now_ms, users[EVERYONE, NEWEST]) if keys[key, KEY_IS_SHARED] != 0 else now_ms


@compiled
def window_floors(keys: Ints, windows: Ints, users: Ints, user: int, now_ms: int, gap_ms: int, floors: Ints) -> int:
    """The first bucket, or the smallest stamp of a session, that still counts; returns when the session began."""
    session = 2**62
    if user >= 0 and now_ms - users[user, NEWEST] <= gap_ms:
        for i in range(users[user, SESSION_COUNT]):
            if users[user, SESSION_END + i] == users[user, NEWEST]:
                session = users[user, SESSION_START + i] + 1
    for w in range(windows.shape[0]):
        if windows[w, WINDOW_TYPE] == SESSION:
            floors[w] = session
        elif windows[w, WINDOW_TYPE] != EVER:
            now = now_of(keys, windows[w, WINDOW_KEY], users, now_ms)
            floors[w] = now // windows[w, WINDOW_WIDTH_MS] - BUCKETS + 1
    return session - 1


@compiled
def find_slots(
    rows: Rows,
    user: int,
    keys: Ints,
    slots: Ints,
    table: Ints,
    meta: Ints,
    items: Ints,
    found: Ints,
    distinct: Ints,
    begins: Ints,
) -> None:
    """Which slots the candidates' key values have.

    Candidates share most of their values, so each slot is listed once and read once, however many share it.

    Parameters
    ----------
    found
        (N, V) output: place in ``distinct``, or -1 where nothing was counted, or -2 where there is no value.
    distinct
        Output: the slots, key by key.
    begins
        (K + 1,) output: where each key's slots begin in ``distinct``.
    """
    meta[META_TICK] += 1
    tick = meta[META_TICK]
    count = 0
    for key in range(keys.shape[0]):
        column, width, at = keys[key, KEY_COLUMN], keys[key, KEY_WIDTH], keys[key, KEY_SLOT_COLUMN]
        begins[key] = count
        owner = EVERYONE if keys[key, KEY_IS_SHARED] != 0 else user
        for n in range(rows.size if column != USER_KEY else min(rows.size, 1)):
            for j in range(width):
                word = items[rows[n], column + j] if column != USER_KEY else 1
                if word == 0:
                    found[n, at + j] = _NO_VALUE
                    break
                slot = find_slot(table, slots, owner, key, word) if owner >= 0 else -1
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


@compiled
def _fill_weights(width_ms: int, now_ms: int, weights: Floats) -> None:
    """What an event in each of the last buckets counts, the newest bucket last."""
    newest = now_ms // width_ms
    for k in range(BUCKETS):
        age = max(now_ms / width_ms - (newest - BUCKETS + 1 + k) - 0.5, 0.0)
        weights[k] = exp(-_LN2 / BUCKETS_A_HALF_LIFE * age)


@compiled
def read_windows(
    slots: Ints,
    pool: Ints,
    counts: Rows,
    windows: Ints,
    floors: Ints,
    keys: Ints,
    users: Ints,
    now_ms: int,
    distinct: Ints,
    begins: Ints,
    starts: Ints,
    weights: Floats,
    ones: Floats,
    totals: Floats,
) -> None:
    """Number of events in each window, and the sum of their values, for each slot of the window's key.

    Every window is read once, however many features use it.

    Parameters
    ----------
    starts
        (W,) output: where a window's slots begin in ``ones`` and ``totals``.
    weights
        Scratch, a number for each bucket.
    """
    at = 0
    for w in range(windows.shape[0]):
        key, place = windows[w, WINDOW_KEY], SLOT_COUNTERS + 2 * windows[w, WINDOW_COUNTER]
        offset, floor, kind = windows[w, WINDOW_OFFSET], floors[w], windows[w, WINDOW_TYPE]
        has_sums = windows[w, WINDOW_SUMS] != 0
        if kind == DECAY:
            _fill_weights(windows[w, WINDOW_WIDTH_MS], now_of(keys, key, users, now_ms), weights)
        starts[w] = at
        for i in range(begins[key], begins[key + 1]):
            block = slots[distinct[i], place]
            ones[at] = 0.0
            totals[at] = 0.0
            if block >= 0:
                block += offset
                if kind == EVER:
                    ones[at] = pool[block]
                    if has_sums:
                        totals[at] = pool[block + 1] * QUANTUM
                elif kind == SESSION:
                    _read_session(pool, block, floor, has_sums, at, ones, totals)
                elif kind == FIXED:
                    _read_ring(pool, counts, block, floor, has_sums, at, ones, totals)
                else:
                    _read_decay(pool, counts, block, floor, has_sums, weights, at, ones, totals)
            at += 1


@compiled
def _read_session(pool: Ints, block: int, floor: int, has_sums: bool, at: int, ones: Floats, totals: Floats) -> None:
    # Loops over a size that is read stay loops, and become vectors; sixteen known steps would become branches.
    stamps, counts = pool[block : block + BUCKETS], pool[block + BUCKETS : block + 2 * BUCKETS]
    count = 0
    for k in range(stamps.size):
        count += counts[k] * (stamps[k] >= floor)
    ones[at] = count
    if has_sums:
        sums = pool[block + 2 * BUCKETS : block + 3 * BUCKETS]
        total = 0
        for k in range(stamps.size):
            total += sums[k] * (stamps[k] >= floor)
        totals[at] = total * QUANTUM


@compiled
def _read_ring(
    pool: Ints, counts: Rows, block: int, floor: int, has_sums: bool, at: int, ones: Floats, totals: Floats
) -> None:
    """Buckets from ``floor`` on: whole numbers, so that they may be added in the order in which they lie."""
    newest = pool[block] - 1
    span = min(newest - floor, BUCKETS - 1)
    if span < 0:
        return
    # The bucket in place k is as many buckets old as k lies before the newest one's place, around the ring.
    place = newest % BUCKETS
    ring = counts[2 * (block + RING_COUNTS) : 2 * (block + RING_COUNTS) + BUCKETS]
    count = 0
    for k in range(ring.size):
        count += int(ring[k]) * ((place - k) & (BUCKETS - 1) <= span)
    ones[at] = count
    if has_sums:
        sums = pool[block + RING_SUMS : block + RING_SUMS + BUCKETS]
        total = 0
        for k in range(sums.size):
            total += sums[k] * ((place - k) & (BUCKETS - 1) <= span)
        totals[at] = total * QUANTUM


@compiled
def _read_decay(
    pool: Ints,
    counts: Rows,
    block: int,
    floor: int,
    has_sums: bool,
    weights: Floats,
    at: int,
    ones: Floats,
    totals: Floats,
) -> None:
    """Buckets from ``floor`` to the newest by their weights, oldest first."""
    newest = pool[block] - 1
    count, total = 0.0, 0.0
    first = 2 * (block + RING_COUNTS)
    for bucket in range(max(floor, newest - BUCKETS + 1), newest + 1):
        weight = weights[bucket - floor]
        count += weight * counts[first + bucket % BUCKETS]
        if has_sums:
            total += weight * (pool[block + RING_SUMS + bucket % BUCKETS] * QUANTUM)
    ones[at] = count
    totals[at] = total


@compiled
def _smoothed(above: float, below: float, prior: float, prior_value: float) -> float:
    if below + prior > 0.0:
        return (above + prior * prior_value) / (below + prior)
    return prior_value


@compiled
def value_slots(
    slots: Ints,
    distinct: Ints,
    starts: Ints,
    ones: Floats,
    totals: Floats,
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
    a, b = starts[feature[WINDOW_A]], starts[feature[WINDOW_B]]
    if op == COUNT_ONES:
        for i in range(count):
            values[i] = ones[a + i]
        return 0.0
    if op == COUNT_VALUES:
        for i in range(count):
            values[i] = totals[a + i]
        return 0.0
    for i in range(count):
        if op == RATE:
            values[i] = _smoothed(ones[a + i], ones[b + i], number[PRIOR], number[PRIOR_VALUE])
        else:
            values[i] = _smoothed(totals[a + i], ones[a + i], number[PRIOR], number[PRIOR_VALUE])
    return _smoothed(0.0, 0.0, number[PRIOR], number[PRIOR_VALUE])


@compiled
def reduce_values(
    found: Ints, key: Ints, begin: int, reduce: int, values: Floats, unseen: float, column: Floats
) -> None:
    """A keyed feature of every candidate: its value, or its values reduced."""
    at, width = key[KEY_SLOT_COLUMN], key[KEY_WIDTH]
    if key[KEY_COLUMN] == USER_KEY:
        if column.size > 0:
            column[:] = values[0] if found[0, at] >= 0 else unseen
        return
    if width == 1:
        for n in range(column.size):
            place = found[n, at]
            column[n] = values[place - begin] if place >= 0 else unseen
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
