"""A user's last events: listed from the state, newest first, and written as arrays; the row of a hashed word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    ACTION_COUNT,
    ACTION_LOG_DELAY,
    COLUMN_CODE,
    COLUMN_KIND_SET,
    COLUMN_LOG_AGE,
    COLUMN_LOG_GAP,
    COLUMN_LOG_VALUE,
    COLUMN_SEQUENCE,
    COLUMN_VALUE,
    COLUMN_WITHIN_MS,
    ENTRY_CELLS,
    ENTRY_FACTS,
    ENTRY_ITEM,
    ENTRY_TIME,
    ID_OF_KIND,
    KIND_BITS,
    SEQUENCE_DENSE_AT,
    SEQUENCE_EMBEDDING_AT,
    SEQUENCE_END_COLUMN,
    SEQUENCE_END_ID,
    SEQUENCE_ENTRY,
    SEQUENCE_FIRST_COLUMN,
    SEQUENCE_FIRST_ID,
    SEQUENCE_ID_BUCKETS,
    SEQUENCE_ID_COLUMN,
    SEQUENCE_IDS_AT,
    SEQUENCE_LENGTH,
    SEQUENCE_MASK_AT,
    SEQUENCE_USER_COLUMN,
)
from rerank_features.compiler.native import compiled, log1p
from rerank_features.compiler.tables import find_item

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_KIND_MASK = (1 << KIND_BITS) - 1


@compiled
def bucket_of(word: int, buckets: int) -> Any:
    """Row of a hashed word, 0 for none."""
    if word == 0:
        return 0
    return 1 + np.int64(np.uint64(word) % np.uint64(buckets - 1))


@compiled
def row_in_vocabulary(vocabulary: Ints, first: int, end: int, word: int) -> int:
    """Row of a hashed word that is looked for between two places, 1 for an unknown one, 0 for none."""
    if word == 0:
        return 0
    while first < end:
        middle = (first + end) // 2
        if vocabulary[middle, 0] == word:
            return vocabulary[middle, 1]
        if vocabulary[middle, 0] < word:
            first = middle + 1
        else:
            end = middle
    return 1


@compiled
def list_entries(
    sequence: Ints,
    users: Ints,
    entries: Ints,
    values: Floats,
    items: Ints,
    item_table: Ints,
    user: int,
    listed: Ints,
    listed_values: Floats,
) -> int:
    """Write a sequence's entries, newest first, to its places; return how many there are.

    Parameters
    ----------
    listed
        (E, 4): time, hashed item, facts, row of the item or -1.
    listed_values
        (E,)
    """
    if user < 0:
        return 0
    first, length = sequence[SEQUENCE_ENTRY], sequence[SEQUENCE_LENGTH]
    column = sequence[SEQUENCE_USER_COLUMN]
    start, count = users[user, column], users[user, column + 1]
    for t in range(count):
        place = first + (start + count - 1 - t) % length
        for cell in range(ENTRY_CELLS):
            listed[first + t, cell] = entries[user, ENTRY_CELLS * place + cell]
        listed[first + t, ENTRY_CELLS] = find_item(item_table, items, listed[first + t, ENTRY_ITEM])
        listed_values[first + t] = values[user, place]
    return count


@compiled
def kind_of(facts: int) -> int:
    """Number of the kind in an entry's facts."""
    return facts & _KIND_MASK


@compiled
def position_of(facts: int) -> int:
    """Position in an entry's facts, -1 for none."""
    return (facts >> KIND_BITS) - 1


@compiled
def _action(
    column: Ints,
    first: int,
    count: int,
    listed: Ints,
    listed_values: Floats,
    items: Ints,
    times_ms: Ints,
    before_ms: Ints,
    out: Floats,
) -> None:
    """What followed each entry: events of its item from its time on, before the item occurs again.

    Parameters
    ----------
    first, count
        Where the events that may follow lie in ``listed``, newest first.
    items, times_ms, before_ms
        Of each entry: its item, its time, and when its item occurs next.
    out
        One number an entry.
    """
    code, within_ms = column[COLUMN_CODE], column[COLUMN_WITHIN_MS]
    for t in range(out.size):
        out[t] = 0.0
    for a in range(first, first + count):
        if (column[COLUMN_KIND_SET] >> kind_of(listed[a, ENTRY_FACTS])) & 1 == 0:
            continue
        at, item, value = listed[a, ENTRY_TIME], listed[a, ENTRY_ITEM], listed_values[a]
        if code == ACTION_COUNT:
            value = 1.0
        for t in range(out.size):
            delay_ms = at - times_ms[t]
            follows = (items[t] == item) & (delay_ms >= 0) & (delay_ms <= within_ms) & (at < before_ms[t])
            if code == ACTION_LOG_DELAY:  # the earliest one is met last
                out[t] = delay_ms / 1000.0 if follows else out[t]
            else:
                out[t] += value if follows else 0.0
    if code == ACTION_LOG_DELAY:
        for t in range(out.size):
            out[t] = log1p(out[t])


@compiled
def _numbers(column: Ints, listed: Ints, listed_values: Floats, first: int, now_ms: int, out: Floats) -> None:
    """A number of every entry, of its own facts and of the entry before it."""
    code, count = column[COLUMN_CODE], out.size
    if code in (COLUMN_VALUE, COLUMN_LOG_VALUE):
        for t in range(count):
            out[t] = listed_values[first + t]
    elif code == COLUMN_LOG_AGE:
        for t in range(count):
            out[t] = (now_ms - listed[first + t, ENTRY_TIME]) / 1000.0
    elif code == COLUMN_LOG_GAP:
        for t in range(count - 1):
            out[t] = (listed[first + t, ENTRY_TIME] - listed[first + t + 1, ENTRY_TIME]) / 1000.0
        out[count - 1] = 0.0
    else:
        for t in range(count):
            out[t] = float(position_of(listed[first + t, ENTRY_FACTS]) + 1)
    if code != COLUMN_VALUE:
        for t in range(count):
            out[t] = math.copysign(log1p(abs(out[t])), out[t])


@compiled
def _next_times(items: Ints, times_ms: Ints, before_ms: Ints) -> None:
    """When each entry's item occurs next, far in the future where it does not; entries are newest first."""
    for t in range(items.size):
        before_ms[t] = 2**62
    for newer in range(items.size):
        item, at = items[newer], times_ms[newer]
        for t in range(newer + 1, items.size):  # the next one is met last
            before_ms[t] = at if items[t] == item else before_ms[t]


@compiled
def emit_sequence(
    s: int,
    sequences: Ints,
    sequence_ids: Ints,
    sequence_columns: Ints,
    sequence_kinds: Bytes,
    lengths: Ints,
    listed: Ints,
    listed_values: Floats,
    items: Ints,
    embeddings: Singles,
    now_ms: int,
    facts: Ints,
    numbers: Floats,
    singles: Singles,
    integers: Rows,
) -> None:
    """Write the arrays of one sequence.

    Parameters
    ----------
    facts, numbers
        Room for three integers and a number of each entry.
    """
    sequence = sequences[s]
    if sequence[SEQUENCE_MASK_AT] < 0 or lengths[s] == 0:
        return
    first, count = sequence[SEQUENCE_ENTRY], lengths[s]
    first_id, end_id = sequence[SEQUENCE_FIRST_ID], sequence[SEQUENCE_END_ID]
    first_column, end_column = sequence[SEQUENCE_FIRST_COLUMN], sequence[SEQUENCE_END_COLUMN]
    dim, width = embeddings.shape[1], end_column - first_column
    for t in range(count):
        place = first + t
        item, row = listed[place, ENTRY_ITEM], listed[place, ENTRY_CELLS]
        singles[sequence[SEQUENCE_MASK_AT] + t] = 1.0
        for i in range(first_id, end_id):
            column, out = sequence_ids[i, SEQUENCE_ID_COLUMN], sequence[SEQUENCE_IDS_AT]
            out += t * (end_id - first_id) + i - first_id
            if column == ID_OF_KIND:
                integers[out] = sequence_kinds[s, kind_of(listed[place, ENTRY_FACTS])]
                continue
            word = item if column == 0 else (items[row, column] if row >= 0 else 0)
            integers[out] = bucket_of(word, sequence_ids[i, SEQUENCE_ID_BUCKETS])
        if sequence[SEQUENCE_EMBEDDING_AT] >= 0 and row >= 0:
            out = sequence[SEQUENCE_EMBEDDING_AT] + t * dim
            for e in range(dim):
                singles[out + e] = embeddings[row, e]
    if sequence[SEQUENCE_DENSE_AT] < 0:
        return
    own, items_of, times_ms, before_ms = numbers[:count], facts[:count], facts[count : 2 * count], facts[2 * count :]
    before_ms = before_ms[:count]
    is_ready = False
    for c in range(first_column, end_column):
        if sequence_columns[c, COLUMN_CODE] < ACTION_COUNT:
            _numbers(sequence_columns[c], listed, listed_values, first, now_ms, own)
        else:
            if not is_ready:
                for t in range(count):
                    items_of[t], times_ms[t] = listed[first + t, ENTRY_ITEM], listed[first + t, ENTRY_TIME]
                _next_times(items_of, times_ms, before_ms)
                is_ready = True
            other = sequence_columns[c, COLUMN_SEQUENCE]
            _action(
                sequence_columns[c],
                sequences[other, SEQUENCE_ENTRY],
                lengths[other],
                listed,
                listed_values,
                items_of,
                times_ms,
                before_ms,
                own,
            )
        out = sequence[SEQUENCE_DENSE_AT] + c - first_column
        for t in range(count):
            singles[out + t * width] = np.float32(own[t])
