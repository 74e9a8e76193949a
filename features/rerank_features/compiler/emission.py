"""All arrays of one request, written from the state in one call."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    BUCKETS,
    CAP,
    CONTEXT_MATCH,
    CONTEXT_NUMBER,
    COSINE,
    COUNTER_A,
    COUNTER_B,
    ENTRY_CELLS,
    FEATURE_KEY,
    FIELD,
    HISTORY_COUNT,
    HISTORY_NUMBER,
    ID_BUCKETS,
    ID_COLUMN,
    ID_CONTEXT,
    ID_END_WORD,
    ID_FIRST_WORD,
    ID_OUT,
    ID_WIDTH,
    ITEM_AGE,
    ITEM_NUMBER,
    KEY_COLUMN,
    KEY_WIDTH,
    LIST_SHARE,
    LIST_SIZE,
    LOCAL_TIME,
    MAX_FLOAT32,
    MEAN,
    META_NEWEST_ROW,
    METRIC,
    NO_TRANSFORM,
    OP,
    PRIOR_VALUE,
    REDUCE,
    SCALE,
    SEQUENCE,
    SEQUENCE_ENTRY,
    SEQUENCE_LENGTH,
    SERVER_RANK,
    SERVER_SCORE,
    SIMILARITY,
    TRANSFORM,
    USER_KEY,
    WEIGHTED,
    WIDTH,
    WINDOW_KEY,
)
from rerank_features.compiler.history import history_feature
from rerank_features.compiler.lists import clip, context_match, is_elementwise, local_time, transform
from rerank_features.compiler.matching import list_share
from rerank_features.compiler.native import compiled, matrix
from rerank_features.compiler.reading import find_slots, now_of, read_windows, reduce_values, value_slots, window_floors
from rerank_features.compiler.sequences import bucket_of, emit_sequence, list_entries, row_in_vocabulary
from rerank_features.compiler.similarity import padded_length, similarity, turn_candidates
from rerank_features.compiler.tables import touch

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@compiled
def scratch_needs(
    count: int,
    slot_columns: int,
    keys: Ints,
    windows: Ints,
    features: Ints,
    sequences: Ints,
    entries: Ints,
    embeddings: Singles,
    needs: Ints,
) -> None:
    """Elements of scratch that an emission takes: integers, floats, single-precision floats."""
    entry_count, longest = entries.shape[1] // ENTRY_CELLS, 0
    for s in range(sequences.shape[0]):
        longest = max(longest, sequences[s, SEQUENCE_LENGTH])
    widest = 0
    for f in range(features.shape[0]):
        widest = max(widest, features[f, WIDTH])
    readings = 0
    for w in range(windows.shape[0]):
        key = windows[w, WINDOW_KEY]
        readings += 1 if keys[key, KEY_COLUMN] == USER_KEY else count * keys[key, KEY_WIDTH]
    needs[0] = (
        (ENTRY_CELLS + 1) * entry_count
        + sequences.shape[0]
        + 2 * windows.shape[0]
        + 2 * count * slot_columns
        + keys.shape[0]
        + 1
        + 3 * longest
        + (longest + count + 1) * widest
        + 2 * count
    )
    needs[1] = (
        2 * entry_count + count * slot_columns + 1 + 2 * count + BUCKETS + 2 * readings + longest + embeddings.shape[1]
    )
    needs[2] = (embeddings.shape[1] + 1) * padded_length(count)


@compiled
def emit(
    rows: Rows,
    user: int,
    now_ms: int,
    gap_ms: int,
    slot_columns: int,
    scores: Floats,
    context_numbers: Floats,
    context_words: Ints,
    match_words: Ints,
    keys: Ints,
    windows: Ints,
    features: Ints,
    feature_numbers: Floats,
    id_features: Ints,
    vocabulary: Ints,
    sequences: Ints,
    sequence_ids: Ints,
    sequence_columns: Ints,
    sequence_kinds: Bytes,
    users: Ints,
    slots: Ints,
    table: Ints,
    pool: Ints,
    counts: Rows,
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
    scratch_ints: Ints,
    scratch_floats: Floats,
    scratch_singles: Singles,
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
    match_words
        Hashed words of the request that features compare with items' words.
    counts
        The pool again, as numbers of 32 bits.
    dense, ids, candidate_embeddings
        (N, F), (N, C) and (N, E) outputs; the last is (0, E) when it is not emitted.
    singles, integers
        Zeroed flat outputs of the sequences.
    scratch_ints, scratch_floats, scratch_singles
        At least as long as :func:`scratch_needs` says.
    """
    count, entry_count = rows.size, entries.shape[1] // ENTRY_CELLS
    for n in range(count - 1, -1, -1):
        touch(items, meta, META_NEWEST_ROW, rows[n])
    at = (ENTRY_CELLS + 1) * entry_count
    listed = matrix(scratch_ints[:at], entry_count, ENTRY_CELLS + 1)
    lengths = scratch_ints[at : at + sequences.shape[0]]
    at += sequences.shape[0]
    floors = scratch_ints[at : at + windows.shape[0]]
    at += windows.shape[0]
    starts = scratch_ints[at : at + windows.shape[0]]
    at += windows.shape[0]
    found = matrix(scratch_ints[at : at + count * slot_columns], count, slot_columns)
    at += count * slot_columns
    distinct = scratch_ints[at : at + count * slot_columns]
    at += count * slot_columns
    begins = scratch_ints[at : at + keys.shape[0] + 1]
    chosen = scratch_ints[at + keys.shape[0] + 1 :]
    listed_values, at = scratch_floats[:entry_count], entry_count
    column, ordered = scratch_floats[at : at + count], scratch_floats[at + count : at + 2 * count]
    at += 2 * count
    slot_values = scratch_floats[at : at + count * slot_columns + 1]
    at += count * slot_columns + 1
    weights = scratch_floats[at : at + BUCKETS]
    at += BUCKETS
    numbers = scratch_floats[at : at + entry_count]
    at += entry_count
    for s in range(sequences.shape[0]):
        lengths[s] = list_entries(sequences[s], users, entries, values, items, item_table, user, listed, listed_values)
    for s in range(sequences.shape[0]):
        emit_sequence(
            s,
            sequences,
            sequence_ids,
            sequence_columns,
            sequence_kinds,
            lengths,
            listed,
            listed_values,
            items,
            embeddings,
            now_ms,
            chosen,
            numbers,
            singles,
            integers,
        )
    if candidate_embeddings.shape[0] > 0:
        for n in range(count):
            row = rows[n]
            for e in range(embeddings.shape[1]):
                candidate_embeddings[n, e] = embeddings[row, e]
    for f in range(id_features.shape[0]):
        first, width, out = id_features[f, ID_COLUMN], id_features[f, ID_WIDTH], id_features[f, ID_OUT]
        for n in range(count):
            for j in range(width):
                word = context_words[first] if id_features[f, ID_CONTEXT] else items[rows[n], first + j]
                if id_features[f, ID_BUCKETS] > 0:
                    ids[n, out + j] = bucket_of(word, id_features[f, ID_BUCKETS])
                else:
                    ids[n, out + j] = row_in_vocabulary(
                        vocabulary, id_features[f, ID_FIRST_WORD], id_features[f, ID_END_WORD], word
                    )
    session_ms = window_floors(keys, windows, users, user, now_ms, gap_ms, floors)
    find_slots(rows, user, keys, slots, table, meta, items, found, distinct, begins)
    readings = 0
    for w in range(windows.shape[0]):
        key = windows[w, WINDOW_KEY]
        readings += begins[key + 1] - begins[key]
    ones, totals = scratch_floats[at : at + readings], scratch_floats[at + readings : at + 2 * readings]
    similarity_floats = scratch_floats[at + 2 * readings :]
    read_windows(
        slots, pool, counts, windows, floors, keys, users, now_ms, distinct, begins, starts, weights, ones, totals
    )
    is_turned = False
    for f in range(features.shape[0]):
        feature, number = features[f], feature_numbers[f]
        op, field, wanted = feature[OP], feature[FIELD], feature[TRANSFORM]
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
            if not is_turned:
                turn_candidates(rows, embeddings, scratch_singles)
                is_turned = True
            first = sequences[field, SEQUENCE_ENTRY]
            similarity(
                rows,
                listed[first : first + lengths[field]],
                listed_values[first : first + lengths[field]],
                items,
                item_numbers,
                embeddings,
                feature[REDUCE],
                feature[METRIC] == COSINE,
                feature[WEIGHTED] != 0,
                chosen,
                similarity_floats,
                scratch_singles,
                column,
            )
        elif HISTORY_COUNT <= op <= HISTORY_NUMBER:
            history_feature(
                rows,
                feature,
                number,
                listed,
                listed_values,
                sequences[feature[SEQUENCE], SEQUENCE_ENTRY],
                lengths[feature[SEQUENCE]],
                items,
                item_numbers,
                session_ms,
                now_ms,
                chosen,
                column,
            )
        elif op == LIST_SIZE:
            column[:] = float(count)
        elif op == LIST_SHARE:
            list_share(rows, items, field, feature[WIDTH], chosen, column)
        elif op == ITEM_AGE:
            for n in range(count):
                age_s = now_ms / 1000.0 - item_numbers[rows[n], field]
                column[n] = number[CAP] if math.isnan(age_s) else min(max(age_s, 0.0), number[CAP])
        elif op == LOCAL_TIME:
            column[:] = local_time(now_ms, context_numbers[field] if field >= 0 else 0.0, feature[REDUCE])
        elif op == CONTEXT_MATCH:
            first = feature[COUNTER_A]
            context_match(rows, items, field, feature[WIDTH], match_words[first : first + feature[COUNTER_B]], column)
        else:
            key = feature[FEATURE_KEY]
            mine = distinct[begins[key] : begins[key + 1]]
            mine_and_unseen = slot_values[: mine.size + 1]
            mine_and_unseen[mine.size] = value_slots(
                slots, mine, starts, ones, totals, feature, number, now_of(keys, key, users, now_ms), slot_values
            )
            if keys[key, KEY_WIDTH] == 1 and is_elementwise(wanted):
                # Candidates share values: transformed before they are handed out, each is transformed once.
                clip(mine_and_unseen)
                transform(mine_and_unseen, wanted, number[MEAN], number[SCALE], ordered)
                wanted = NO_TRANSFORM
            reduce_values(found, keys[key], begins[key], feature[REDUCE], slot_values, slot_values[mine.size], column)
        if wanted != NO_TRANSFORM:
            clip(column)
            transform(column, wanted, number[MEAN], number[SCALE], ordered)
        for n in range(count):
            dense[n, f] = min(max(column[n], -MAX_FLOAT32), MAX_FLOAT32)
