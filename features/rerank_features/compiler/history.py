"""Features over what the user did last: alone, and the candidate against it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    AGAINST,
    AGAINST_DIFFERENCE,
    AGAINST_NONE,
    CAP,
    COUNT_OF,
    ENTRY_CELLS,
    ENTRY_FACTS,
    ENTRY_ITEM,
    ENTRY_TIME,
    FIELD,
    HISTORY_COUNT,
    HISTORY_DISTINCT,
    HISTORY_MATCH,
    HISTORY_NUMBER,
    ITEM_KEY,
    KIND_SET,
    LAST_OF,
    MAX_OF,
    MEAN_OF,
    MIN_OF,
    NUMBER_AGE,
    NUMBER_GAP,
    NUMBER_POSITION,
    NUMBER_VALUE,
    OP,
    PRIOR_VALUE,
    RECENT_EVER,
    RECENT_MS,
    RECENT_SESSION,
    REDUCE,
    SHARE_OF,
    SINCE_OF,
    SUM_OF,
    UNTIL_SET,
    WIDTH,
)
from rerank_features.compiler.native import compiled
from rerank_features.compiler.sequences import kind_of, position_of

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]

_NOT_A_NUMBER = math.nan


@compiled
def _select(
    listed: Ints, first: int, count: int, kinds: int, recent_ms: int, session_ms: int, now_ms: int, chosen: Ints
) -> int:
    """Places of the entries of some kinds and a window, newest first; returns how many."""
    since_ms = -1
    if recent_ms == RECENT_SESSION:
        since_ms = session_ms
    elif recent_ms != RECENT_EVER:
        since_ms = now_ms - recent_ms
    found = 0
    for t in range(first, first + count):
        if listed[t, ENTRY_TIME] < since_ms:
            break
        if (kinds >> kind_of(listed[t, ENTRY_FACTS])) & 1:
            chosen[found] = t
            found += 1
    return found


@compiled
def _word(listed: Ints, items: Ints, place: int, column: int, j: int) -> int:
    """Value number ``j`` of an entry's item field, 0 for none."""
    if column == ITEM_KEY:
        return listed[place, ENTRY_ITEM] if j == 0 else 0
    row = listed[place, ENTRY_CELLS]
    return items[row, column + j] if row >= 0 else 0


@compiled
def shares_value(listed: Ints, items: Ints, place: int, row: int, column: int, width: int) -> bool:
    """Whether an entry's item and a candidate have a value of a field in common."""
    for i in range(width):
        word = items[row, column + i]
        if word == 0:
            return False
        for j in range(width):
            other = _word(listed, items, place, column, j)
            if other == 0:
                break
            if other == word:
                return True
    return False


@compiled
def _distinct(listed: Ints, items: Ints, chosen: Ints, column: int, width: int) -> float:
    """Number of different values of a field."""
    found = 0
    for a in range(chosen.size):
        for i in range(width):
            word = _word(listed, items, chosen[a], column, i)
            if word == 0:
                break
            is_new = True
            for b in range(a):
                for j in range(width):
                    if _word(listed, items, chosen[b], column, j) == word:
                        is_new = False
            found += is_new
    return float(found)


@compiled
def _streaks(
    rows: Rows, listed: Ints, items: Ints, chosen: Ints, kinds: int, until: int, column: int, width: int, out: Floats
) -> None:
    for n in range(out.size):
        streak = 0
        for i in range(chosen.size):
            if width > 0 and not shares_value(listed, items, chosen[i], rows[n], column, width):
                continue
            kind = kind_of(listed[chosen[i], ENTRY_FACTS])
            if (until >> kind) & 1:
                break
            streak += (kinds >> kind) & 1
        out[n] = streak
        if width == 0:
            out[:] = streak
            return


@compiled
def _matches(
    rows: Rows,
    listed: Ints,
    values: Floats,
    items: Ints,
    chosen: Ints,
    reduce: int,
    column: int,
    width: int,
    cap: float,
    now_ms: int,
    out: Floats,
) -> None:
    known = 0
    for i in range(chosen.size):
        known += column == ITEM_KEY or listed[chosen[i], ENTRY_CELLS] >= 0
    for n in range(out.size):
        count, total, newest = 0, 0.0, -1
        for i in range(chosen.size):
            if not shares_value(listed, items, chosen[i], rows[n], column, width):
                continue
            if count == 0:
                newest = i
            count += 1
            total += values[chosen[i]]
        if reduce == COUNT_OF:
            out[n] = count
        elif reduce == SHARE_OF:
            out[n] = count / known if known > 0 else 0.0
        elif reduce == SUM_OF:
            out[n] = total
        elif reduce == MEAN_OF:
            out[n] = total / count if count > 0 else 0.0
        elif newest < 0:
            out[n] = cap
        elif reduce == SINCE_OF:
            out[n] = min((now_ms - listed[chosen[newest], ENTRY_TIME]) / 1000.0, cap)
        else:
            out[n] = min(float(newest), cap)


@compiled
def _number_of(
    listed: Ints, values: Floats, item_numbers: Floats, place: int, end: int, field: int, now_ms: int
) -> float:
    """A number of an entry, NaN where it has none; ``end`` is where its sequence's entries end."""
    if field == NUMBER_VALUE:
        return values[place]
    if field == NUMBER_AGE:
        return (now_ms - listed[place, ENTRY_TIME]) / 1000.0
    if field == NUMBER_GAP:
        if place + 1 >= end:
            return _NOT_A_NUMBER
        return (listed[place, ENTRY_TIME] - listed[place + 1, ENTRY_TIME]) / 1000.0
    if field == NUMBER_POSITION:
        position = position_of(listed[place, ENTRY_FACTS])
        return float(position) if position >= 0 else _NOT_A_NUMBER
    row = listed[place, ENTRY_CELLS]
    return item_numbers[row, field] if row >= 0 else _NOT_A_NUMBER


@compiled
def _reduced(
    listed: Ints,
    values: Floats,
    item_numbers: Floats,
    chosen: Ints,
    end: int,
    field: int,
    reduce: int,
    now_ms: int,
) -> float:
    """A number over entries, NaN over none."""
    count, result = 0, 0.0
    for i in range(chosen.size):
        number = _number_of(listed, values, item_numbers, chosen[i], end, field, now_ms)
        if math.isnan(number):
            continue
        count += 1
        if count == 1:
            result = number
            if reduce == LAST_OF:
                return result
        elif reduce == MAX_OF:
            result = max(result, number)
        elif reduce == MIN_OF:
            result = min(result, number)
        else:
            result += number
    if count == 0:
        return _NOT_A_NUMBER
    return result / count if reduce == MEAN_OF else result


@compiled
def _numbers(
    rows: Rows, item_numbers: Floats, number: float, field: int, against: int, default: float, out: Floats
) -> None:
    for n in range(out.size):
        own = float(n) if field == NUMBER_POSITION else number
        if against != AGAINST_NONE and field >= 0:
            own = item_numbers[rows[n], field]
        if math.isnan(number) or math.isnan(own):
            out[n] = default
        elif against == AGAINST_NONE:
            out[n] = number
        elif against == AGAINST_DIFFERENCE:
            out[n] = own - number
        else:
            out[n] = own / number if number != 0.0 else default


@compiled
def history_feature(
    rows: Rows,
    feature: Ints,
    number: Floats,
    listed: Ints,
    values: Floats,
    first: int,
    count: int,
    items: Ints,
    item_numbers: Floats,
    session_ms: int,
    now_ms: int,
    scratch: Ints,
    out: Floats,
) -> None:
    """Write one value per candidate.

    Parameters
    ----------
    listed, values
        Entries of all sequences, newest first; those of the feature's sequence begin at ``first``.
    session_ms
        Where the current session begins, far in the future when there is none.
    scratch
        Room for as many integers as there are entries.
    """
    op, field, width = feature[OP], feature[FIELD], feature[WIDTH]
    kinds = feature[KIND_SET] | feature[UNTIL_SET]
    found = _select(listed, first, count, kinds, feature[RECENT_MS], session_ms, now_ms, scratch)
    chosen = scratch[:found]
    if op == HISTORY_COUNT:
        out[:] = float(found)
    elif op == HISTORY_DISTINCT:
        out[:] = _distinct(listed, items, chosen, field, width)
    elif op == HISTORY_MATCH:
        _matches(rows, listed, values, items, chosen, feature[REDUCE], field, width, number[CAP], now_ms, out)
    elif op == HISTORY_NUMBER:
        reduced = _reduced(listed, values, item_numbers, chosen, first + count, field, feature[REDUCE], now_ms)
        _numbers(rows, item_numbers, reduced, field, feature[AGAINST], number[PRIOR_VALUE], out)
    else:
        _streaks(rows, listed, items, chosen, feature[KIND_SET], feature[UNTIL_SET], field, width, out)
