"""From a spec to flat arrays: the layout that the program, the state and the kernels share.

Everything here is a column number or a code. The kernels read them as compile-time constants.

- :mod:`~rerank_features.compiler.program` turns a spec into descriptor tables,
- :mod:`~rerank_features.compiler.tables` holds hash table, least-recently-used list and block pool,
- :mod:`~rerank_features.compiler.kernels` folds an event into the state and takes a user out of it,
- :mod:`~rerank_features.compiler.emission` writes the arrays of one request, with
  :mod:`~rerank_features.compiler.reading` for the counters, :mod:`~rerank_features.compiler.sequences` and
  :mod:`~rerank_features.compiler.similarity`.

Numba's on-disk cache watches only the file in which a kernel is defined: after editing one of these
files delete the package's ``__pycache__``.
"""

from __future__ import annotations

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
"""How every kernel is compiled. No fast-math: the same sums in the same order on every machine."""

BUCKETS = 16
"""Buckets of a window's ring."""

SESSIONS = 16
"""Separate sessions that are kept for a user."""

QUANTUM = 2.0**-20
"""Event values are summed as whole multiples of this, so that a sum does not depend on the order."""

MAX_VALUE = 2.0**31
"""Event values are clipped to this magnitude where they are summed."""

MAX_SUM = 1 << 58
"""A bucket's sum saturates here, in quanta; sixteen of them still fit 64 bits."""

MAX_FLOAT32 = 3.4028234663852886e38
MAX_EMBEDDING = 1e15
"""Embedding elements are clipped to this magnitude: a dot product then stays finite in float32."""

# users: (U, USER_SEQUENCES + 2 S) int64
NEWEST, FIRST_SLOT, SESSION_COUNT, SESSION_START = 0, 1, 2, 3
SESSION_END = SESSION_START + SESSIONS
USER_SEQUENCES = SESSION_END + SESSIONS  # then start and count of each sequence

# slots: (M, SLOT_COUNTERS + 2 C) int64, one row for each (user, key, value); tick and place belong to a request
SLOT_HASH, SLOT_USER, SLOT_KEY, SLOT_VALUE, SLOT_NEXT, SLOT_TICK, SLOT_PLACE, SLOT_COUNTERS = range(8)

# meta: what changes in size
META_SLOTS, META_FREE_SLOT, META_FREE_SLOTS, META_POOL, META_NEWEST_ROW, META_OLDEST_ROW, META_TICK = range(7)
META_FREE_BLOCKS = 7  # then the first free block of each counter

# items: (I, ITEM_FIELDS + values) int64; item_numbers: (I, ITEM_NUMERIC + numeric) float64
ITEM_KEY, ITEM_NEWER, ITEM_OLDER, ITEM_HAS_EMBEDDING, ITEM_FIELDS = 0, 1, 2, 3, 4
ITEM_INVERSE_NORM, ITEM_NUMERIC = 0, 1

# keys: (K, 5)
KEY_COLUMN, KEY_WIDTH, KEY_FIRST_COUNTER, KEY_END_COUNTER, KEY_SLOT_COLUMN = 0, 1, 2, 3, 4
USER_KEY = -1  # KEY_COLUMN of the key that holds all of a user's events

# counters: (C, 4)
COUNTER_FIRST_WINDOW, COUNTER_END_WINDOW, COUNTER_BLOCK_SIZE, COUNTER_LOCAL = 0, 1, 2, 3

# windows: (W, 3)
WINDOW_TYPE, WINDOW_WIDTH_MS, WINDOW_OFFSET = 0, 1, 2
FIXED, SESSION, EVER = 0, 1, 2

# features: (F, 11) int64 and (F, 5) float64
OP, TRANSFORM, FEATURE_KEY, COUNTER_A, WINDOW_A, COUNTER_B, WINDOW_B, REDUCE, FIELD, METRIC, WEIGHTED = range(11)
MEAN, SCALE, PRIOR, PRIOR_VALUE, CAP = range(5)
(
    SERVER_SCORE,
    SERVER_RANK,
    ITEM_NUMBER,
    CONTEXT_NUMBER,
    COUNT_ONES,
    COUNT_VALUES,
    RATE,
    MEAN_VALUE,
    TIME_SINCE,
    SIMILARITY,
) = range(10)
NO_TRANSFORM, LOG1P, STANDARDIZE, RECIPROCAL, AFFINE = range(5)
SUM_OF, MEAN_OF, MAX_OF, MIN_OF, LAST_OF = range(5)
DOT, COSINE = range(2)

# ids: (C, 5)
ID_CONTEXT, ID_COLUMN, ID_WIDTH, ID_BUCKETS, ID_OUT = range(5)

# sequences: (S, 9); sequence_ids: (Q, 2)
(
    SEQUENCE_ENTRY,
    SEQUENCE_LENGTH,
    SEQUENCE_FIRST_ID,
    SEQUENCE_END_ID,
    SEQUENCE_IDS_AT,
    SEQUENCE_EMBEDDING_AT,
    SEQUENCE_DENSE_AT,
    SEQUENCE_MASK_AT,
    SEQUENCE_USER_COLUMN,
) = range(9)
SEQUENCE_ID_COLUMN, SEQUENCE_ID_BUCKETS = 0, 1
