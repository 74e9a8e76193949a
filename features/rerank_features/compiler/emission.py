"""All arrays of one request, written from the state in one call."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rerank_features.compiler import (
    AFFINE,
    CONTEXT_NUMBER,
    COSINE,
    FEATURE_KEY,
    FIELD,
    ID_BUCKETS,
    ID_COLUMN,
    ID_CONTEXT,
    ID_OUT,
    ID_WIDTH,
    ITEM_HAS_EMBEDDING,
    ITEM_INVERSE_NORM,
    ITEM_NUMBER,
    LOG1P,
    MAX_FLOAT32,
    MEAN,
    METRIC,
    NO_TRANSFORM,
    OP,
    OPTIONS,
    PRIOR_VALUE,
    RECIPROCAL,
    REDUCE,
    SCALE,
    SEQUENCE_ENTRY,
    SERVER_RANK,
    SERVER_SCORE,
    SIMILARITY,
    STANDARDIZE,
    TRANSFORM,
    WEIGHTED,
)
from rerank_features.compiler.reading import find_slots, reduce_values, value_slots, window_floors
from rerank_features.compiler.sequences import bucket_of, emit_sequence
from rerank_features.compiler.similarity import similarity
from rerank_features.compiler.tables import touch

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@njit(**OPTIONS)
def _transform(column: Floats, transform: int, mean: float, scale: float) -> None:
    """In place; what each transform means is said in the spec."""
    if transform == LOG1P:
        for n in range(column.size):
            column[n] = math.copysign(np.log1p(abs(column[n])), column[n])
    elif transform == RECIPROCAL:
        for n in range(column.size):
            column[n] = 1.0 / (1.0 + abs(column[n]))
    elif transform == AFFINE:
        for n in range(column.size):
            column[n] = (column[n] - mean) / scale
    elif transform == STANDARDIZE and column.size > 0:
        center, largest = 0.0, 0.0
        for n in range(column.size):
            center += column[n]
            largest = max(largest, abs(column[n]))
        center /= column.size
        spread = 0.0
        for n in range(column.size):
            spread += (column[n] - center) ** 2
        deviation = math.sqrt(spread / column.size)
        for n in range(column.size):
            column[n] = (column[n] - center) / deviation if deviation > 1e-9 * largest else 0.0


@njit(**OPTIONS)
def emit(
    rows: Rows,
    user: int,
    now_ms: int,
    gap_ms: int,
    slot_columns: int,
    scores: Floats,
    context_numbers: Floats,
    context_words: Ints,
    keys: Ints,
    windows: Ints,
    features: Ints,
    feature_numbers: Floats,
    id_features: Ints,
    sequences: Ints,
    sequence_ids: Ints,
    users: Ints,
    slots: Ints,
    table: Ints,
    pool: Ints,
    meta: Ints,
    entries: Ints,
    values: Floats,
    items: Ints,
    item_table: Ints,
    item_numbers: Floats,
    embeddings: Singles,
    dense: Singles,
    ids: Rows,
    candidate_embeddings: Singles,
    singles: Singles,
    integers: Rows,
) -> None:
    """Write every array of a request.

    Parameters
    ----------
    rows
        (N,) rows of the candidates; they count as used.
    user
        Row of the user, or -1 for one without events.
    scores
        (N,) scores of the server, or (0,) when there are none.
    context_numbers, context_words
        The context's declared numbers (NaN for missing) and hashed words (0 for missing).
    dense, ids, candidate_embeddings
        (N, F), (N, C) and (N, E) outputs; the last is (0, E) when it is not emitted.
    singles, integers
        Zeroed flat outputs of the sequences.
    """
    count = rows.size
    for n in range(count - 1, -1, -1):
        touch(items, meta, rows[n])
    sequence_rows = np.empty(entries.shape[1] // 2, np.int64)
    sequence_values = np.empty(sequence_rows.size, np.float64)
    lengths = np.empty(sequences.shape[0], np.int64)
    for s in range(sequences.shape[0]):
        lengths[s] = emit_sequence(
            sequences[s],
            sequence_ids,
            users,
            entries,
            values,
            items,
            item_table,
            embeddings,
            user,
            now_ms,
            sequence_rows,
            sequence_values,
            singles,
            integers,
        )
    if candidate_embeddings.shape[0] > 0:
        for n in range(count):
            row = rows[n]
            for e in range(embeddings.shape[1]):
                candidate_embeddings[n, e] = embeddings[row, e]
    for f in range(id_features.shape[0]):
        at, width, out = id_features[f, ID_COLUMN], id_features[f, ID_WIDTH], id_features[f, ID_OUT]
        for n in range(count):
            for j in range(width):
                word = context_words[at] if id_features[f, ID_CONTEXT] else items[rows[n], at + j]
                ids[n, out + j] = bucket_of(word, id_features[f, ID_BUCKETS])
    floors = window_floors(windows, users, user, now_ms, gap_ms)
    found = np.empty((count, slot_columns), np.int64)
    distinct = np.empty(found.size, np.int64)
    slot_values = np.empty(found.size, np.float64)
    begins = find_slots(rows, user, keys, slots, table, meta, items, found, distinct)
    column = np.empty(count, np.float64)
    for f in range(features.shape[0]):
        feature, number = features[f], feature_numbers[f]
        op, field = feature[OP], feature[FIELD]
        if op == SERVER_SCORE:
            for n in range(count):
                column[n] = scores[n] if scores.size > 0 else 0.0
        elif op == SERVER_RANK:
            for n in range(count):
                column[n] = n
        elif op == ITEM_NUMBER:
            for n in range(count):
                value = item_numbers[rows[n], field]
                column[n] = number[PRIOR_VALUE] if math.isnan(value) else value
        elif op == CONTEXT_NUMBER:
            value = context_numbers[field]
            column[:] = number[PRIOR_VALUE] if math.isnan(value) else value
        elif op == SIMILARITY:
            at = sequences[field, SEQUENCE_ENTRY]
            similarity(
                rows,
                sequence_rows[at : at + lengths[field]],
                sequence_values[at : at + lengths[field]],
                items[:, ITEM_HAS_EMBEDDING],
                item_numbers[:, ITEM_INVERSE_NORM],
                embeddings,
                feature[REDUCE],
                feature[METRIC] == COSINE,
                feature[WEIGHTED] != 0,
                column,
            )
        else:
            key = feature[FEATURE_KEY]
            mine = distinct[begins[key] : begins[key + 1]]
            unseen = value_slots(slots, pool, windows, floors, mine, feature, number, now_ms, slot_values)
            reduce_values(found, keys[key], begins[key], feature[REDUCE], slot_values, unseen, column)
        if feature[TRANSFORM] != NO_TRANSFORM:
            for n in range(count):
                column[n] = min(max(column[n], -MAX_FLOAT32), MAX_FLOAT32)
            _transform(column, feature[TRANSFORM], number[MEAN], number[SCALE])
        for n in range(count):
            dense[n, f] = min(max(column[n], -MAX_FLOAT32), MAX_FLOAT32)
