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
    PLACE_OF,
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
from rerank_features.compiler.matching import gather_candidates, gather_entries, mark_sharing
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
def _distinct(words: Ints, width: int) -> float:
    """Number of different values among those of entries, (T, width)."""
    found = 0
    for a in range(words.size):
        before = words[: a - a % width]
        if words[a] == 0:
            continue
        met = 0
        for b in range(before.size):
            met |= before[b] == words[a]
        found += 1 - met
    return float(found)


@compiled
def _streaks(
    listed: Ints, candidates: Ints, chosen: Ints, words: Ints, kinds: int, until: int, scratch: Ints, out: Floats
) -> None:
    """How many entries of some kinds come before the first of others; with a field, among those that share a value."""
    count = out.size
    width = words.size // max(chosen.size, 1)
    flags, open_ = scratch[:count], scratch[count : 2 * count]
    for n in range(count):
        out[n] = 0.0
        flags[n] = 1
        open_[n] = 1
    for i in range(chosen.size):
        kind = kind_of(listed[chosen[i], ENTRY_FACTS])
        if width > 0:
            mark_sharing(candidates, words[i * width : (i + 1) * width], flags)
        ends, counts = (until >> kind) & 1, (kinds >> kind) & 1
        for n in range(count):
            open_[n] &= 1 - (flags[n] & ends)
            out[n] += flags[n] & open_[n] & counts


@compiled
def _matches(
    listed: Ints,
    values: Floats,
    candidates: Ints,
    chosen: Ints,
    words: Ints,
    reduce: int,
    cap: float,
    column: int,
    now_ms: int,
    scratch: Ints,
    out: Floats,
) -> None:
    """Entries that share a value with the candidate, as a number."""
    count, width = out.size, words.size // max(chosen.size, 1)
    flags, shared = scratch[:count], scratch[count : 2 * count]
    known = 0
    for i in range(chosen.size):
        known += column == ITEM_KEY or listed[chosen[i], ENTRY_CELLS] >= 0
    for n in range(count):
        out[n] = cap if reduce in (SINCE_OF, PLACE_OF) else 0.0
        shared[n] = 0
    for step in range(chosen.size):
        # The newest match is the last one that is written.
        i = chosen.size - 1 - step if reduce in (SINCE_OF, PLACE_OF) else step
        mark_sharing(candidates, words[i * width : (i + 1) * width], flags)
        if reduce in (COUNT_OF, SHARE_OF):
            for n in range(count):
                shared[n] += flags[n]
        elif reduce in (SUM_OF, MEAN_OF):
            value = values[chosen[i]]
            for n in range(count):
                shared[n] += flags[n]
                out[n] += value if flags[n] != 0 else 0.0
        else:
            number = float(i)
            if reduce == SINCE_OF:
                number = (now_ms - listed[chosen[i], ENTRY_TIME]) / 1000.0
            number = min(number, cap)
            for n in range(count):
                out[n] = number if flags[n] != 0 else out[n]
    if reduce == COUNT_OF:
        for n in range(count):
            out[n] = shared[n]
    elif reduce == SHARE_OF:
        for n in range(count):
            out[n] = shared[n] / known if known > 0 else 0.0
    elif reduce == MEAN_OF:
        for n in range(count):
            out[n] = out[n] / shared[n] if shared[n] > 0 else 0.0


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
        Room for T + (T + N) width + 2 N integers: T entries, N candidates, the width of the feature's field.
    """
    op, field, width = feature[OP], feature[FIELD], feature[WIDTH]
    kinds = feature[KIND_SET] | feature[UNTIL_SET]
    found = _select(listed, first, count, kinds, feature[RECENT_MS], session_ms, now_ms, scratch)
    chosen = scratch[:found]
    room = scratch[count:]
    words, candidates = room[: found * width], room[found * width : (found + rows.size) * width]
    room = room[(found + rows.size) * width :]
    gather_entries(listed, items, chosen, field, width, words)
    if op == HISTORY_COUNT:
        out[:] = float(found)
    elif op == HISTORY_DISTINCT:
        out[:] = _distinct(words, width)
    elif op == HISTORY_MATCH:
        gather_candidates(rows, items, field, width, candidates)
        cap = number[CAP]
        _matches(listed, values, candidates, chosen, words, feature[REDUCE], cap, field, now_ms, room, out)
    elif op == HISTORY_NUMBER:
        reduced = _reduced(listed, values, item_numbers, chosen, first + count, field, feature[REDUCE], now_ms)
        _numbers(rows, item_numbers, reduced, field, feature[AGAINST], number[PRIOR_VALUE], out)
    else:
        gather_candidates(rows, items, field, width, candidates)
        _streaks(listed, candidates, chosen, words, feature[KIND_SET], feature[UNTIL_SET], room, out)
