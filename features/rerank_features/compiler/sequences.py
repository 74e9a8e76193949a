"""A user's last events: listed from the state, newest first, and written as arrays; the row of a hashed word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    ACTION_COUNT,
    ACTION_VALUE_SUM,
    COLUMN_CODE,
    COLUMN_KIND_SET,
    COLUMN_LOG_AGE,
    COLUMN_LOG_GAP,
    COLUMN_LOG_POSITION,
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
def _signed_log(value: float) -> float:
    return math.copysign(log1p(abs(value)), value)


@compiled
def _action(
    column: Ints,
    sequences: Ints,
    lengths: Ints,
    listed: Ints,
    listed_values: Floats,
    time_ms: int,
    before_ms: int,
    item: int,
) -> float:
    """What followed an entry: events of its item from its time on, before another time."""
    other = column[COLUMN_SEQUENCE]
    first, code = sequences[other, SEQUENCE_ENTRY], column[COLUMN_CODE]
    found, total, earliest = 0, 0.0, 0
    for t in range(lengths[other]):
        at = listed[first + t, ENTRY_TIME]
        if at < time_ms:
            break
        if (
            at < before_ms
            and at - time_ms <= column[COLUMN_WITHIN_MS]
            and listed[first + t, ENTRY_ITEM] == item
            and (column[COLUMN_KIND_SET] >> kind_of(listed[first + t, ENTRY_FACTS])) & 1
        ):
            found += 1
            total += listed_values[first + t]
            earliest = at
    if code == ACTION_COUNT:
        return float(found)
    if code == ACTION_VALUE_SUM:
        return total
    return log1p((earliest - time_ms) / 1000.0) if found > 0 else 0.0


@compiled
def _dense_column(
    column: Ints,
    sequences: Ints,
    lengths: Ints,
    listed: Ints,
    listed_values: Floats,
    place: int,
    older: int,
    before_ms: int,
    now_ms: int,
) -> float:
    """One number of an entry; ``older`` is the place of the entry before it, or -1."""
    code, time_ms = column[COLUMN_CODE], listed[place, ENTRY_TIME]
    if code == COLUMN_VALUE:
        return listed_values[place]
    if code == COLUMN_LOG_VALUE:
        return _signed_log(listed_values[place])
    if code == COLUMN_LOG_AGE:
        return log1p((now_ms - time_ms) / 1000.0)
    if code == COLUMN_LOG_GAP:
        return log1p((time_ms - listed[older, ENTRY_TIME]) / 1000.0) if older >= 0 else 0.0
    if code == COLUMN_LOG_POSITION:
        return log1p(float(position_of(listed[place, ENTRY_FACTS]) + 1))
    return _action(column, sequences, lengths, listed, listed_values, time_ms, before_ms, listed[place, ENTRY_ITEM])


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
    singles: Singles,
    integers: Rows,
) -> None:
    """Write the arrays of one sequence."""
    sequence = sequences[s]
    if sequence[SEQUENCE_MASK_AT] < 0:
        return
    first, count = sequence[SEQUENCE_ENTRY], lengths[s]
    first_id, end_id = sequence[SEQUENCE_FIRST_ID], sequence[SEQUENCE_END_ID]
    first_column, end_column = sequence[SEQUENCE_FIRST_COLUMN], sequence[SEQUENCE_END_COLUMN]
    dim, width = embeddings.shape[1], end_column - first_column
    has_actions = False
    for c in range(first_column, end_column):
        has_actions |= sequence_columns[c, COLUMN_CODE] >= ACTION_COUNT
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
        if sequence[SEQUENCE_DENSE_AT] >= 0:
            before_ms = np.int64(2**62)
            if has_actions:
                for newer in range(t):
                    if listed[first + newer, ENTRY_ITEM] == item:
                        before_ms = listed[first + newer, ENTRY_TIME]
            older = place + 1 if t + 1 < count else -1
            for c in range(first_column, end_column):
                singles[sequence[SEQUENCE_DENSE_AT] + t * width + c - first_column] = np.float32(
                    _dense_column(
                        sequence_columns[c],
                        sequences,
                        lengths,
                        listed,
                        listed_values,
                        place,
                        older,
                        before_ms,
                        now_ms,
                    )
                )
