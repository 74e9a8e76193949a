"""A user's last events as arrays, and the bucket of a hashed word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rerank_features.compiler import (
    OPTIONS,
    SEQUENCE_DENSE_AT,
    SEQUENCE_EMBEDDING_AT,
    SEQUENCE_END_ID,
    SEQUENCE_ENTRY,
    SEQUENCE_FIRST_ID,
    SEQUENCE_ID_BUCKETS,
    SEQUENCE_ID_COLUMN,
    SEQUENCE_IDS_AT,
    SEQUENCE_LENGTH,
    SEQUENCE_MASK_AT,
    SEQUENCE_USER_COLUMN,
)
from rerank_features.compiler.tables import find_item

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@njit(**OPTIONS)
def bucket_of(word: int, buckets: int) -> Any:
    if word == 0:
        return 0
    return 1 + np.int64(np.uint64(word) % np.uint64(buckets - 1))


@njit(**OPTIONS)
def emit_sequence(
    sequence: Ints,
    sequence_ids: Ints,
    users: Ints,
    entries: Ints,
    values: Floats,
    items: Ints,
    item_table: Ints,
    embeddings: Singles,
    user: int,
    now_ms: int,
    sequence_rows: Ints,
    sequence_values: Floats,
    singles: Singles,
    integers: Rows,
) -> int:
    """Arrays of one sequence, newest entry first; returns how many entries there are."""
    if user < 0:
        return 0
    at, length = sequence[SEQUENCE_ENTRY], sequence[SEQUENCE_LENGTH]
    start, count = (
        users[user, sequence[SEQUENCE_USER_COLUMN]],
        users[user, sequence[SEQUENCE_USER_COLUMN] + 1],
    )
    first_id, end_id = sequence[SEQUENCE_FIRST_ID], sequence[SEQUENCE_END_ID]
    dim = embeddings.shape[1]
    for t in range(count):
        place = at + (start + count - 1 - t) % length
        item = entries[user, 2 * place + 1]
        row = find_item(item_table, items, item)
        sequence_rows[at + t] = row
        sequence_values[at + t] = values[user, place]
        singles[sequence[SEQUENCE_MASK_AT] + t] = 1.0
        if sequence[SEQUENCE_DENSE_AT] >= 0:
            age_s = (now_ms - entries[user, 2 * place]) / 1000.0
            singles[sequence[SEQUENCE_DENSE_AT] + 2 * t] = values[user, place]
            singles[sequence[SEQUENCE_DENSE_AT] + 2 * t + 1] = np.log1p(age_s)
        for i in range(first_id, end_id):
            column = sequence_ids[i, SEQUENCE_ID_COLUMN]
            word = item if column == 0 else (items[row, column] if row >= 0 else 0)
            out = sequence[SEQUENCE_IDS_AT] + t * (end_id - first_id) + i - first_id
            integers[out] = bucket_of(word, sequence_ids[i, SEQUENCE_ID_BUCKETS])
        if sequence[SEQUENCE_EMBEDDING_AT] >= 0 and row >= 0:
            out = sequence[SEQUENCE_EMBEDDING_AT] + t * dim
            for e in range(dim):
                singles[out + e] = embeddings[row, e]
    return count
