"""From a spec to flat arrays: the layout that the program, the state and the kernels share.

Everything here is a column number or a code. The kernels read them as compile-time constants.

- :mod:`~rerank_features.compiler.program` turns a spec into descriptor tables,
- :mod:`~rerank_features.compiler.tables` holds hash table, least-recently-used list and block pool,
- :mod:`~rerank_features.compiler.kernels` folds an event into the state and takes a user out of it,
- :mod:`~rerank_features.compiler.emission` writes the arrays of one request, with
  :mod:`~rerank_features.compiler.reading` for the counters, :mod:`~rerank_features.compiler.sequences` and
  :mod:`~rerank_features.compiler.similarity`,
- :mod:`~rerank_features.compiler.entries` names the functions that are called from outside,
- :mod:`~rerank_features.compiler.build` makes machine code of them, with Numba, once for a machine,
- :mod:`~rerank_features.compiler.machine` maps that code and calls it, without Numba.
"""

from __future__ import annotations

BUCKETS = 16
"""Buckets of a window's ring."""

SESSIONS = 16
"""Separate sessions that are kept for a user."""

BUCKETS_A_HALF_LIFE = 3
"""Buckets of a decaying window in which the weight of an event halves."""

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

EVERYONE = 0
"""Row of ``users`` under which counters of all users together lie."""

# slots: (M, SLOT_COUNTERS + 2 C) int64, one row for each (user, key, value). Newer and older: the list by last use;
# next and previous: the list of its user. Used: when, by ``META_USES``.
# Tick and place belong to a request. What looks for a slot touches the first eight cells: one line of the cache.
(
    SLOT_HASH,
    SLOT_NEWER,
    SLOT_OLDER,
    SLOT_USER,
    SLOT_KEY,
    SLOT_VALUE,
    SLOT_TICK,
    SLOT_PLACE,
    SLOT_NEXT,
    SLOT_PREVIOUS,
    SLOT_USED,
    SLOT_COUNTERS,
) = range(12)

# meta: what changes in size; newest and oldest item and slot, side by side
(
    META_SLOTS,
    META_FREE_SLOT,
    META_FREE_SLOTS,
    META_POOL,
    META_NEWEST_ROW,
    META_OLDEST_ROW,
    META_NEWEST_SLOT,
    META_OLDEST_SLOT,
    META_TICK,
    META_EVICTED,
    META_USES,
    META_FREE_BLOCKS,  # the first free block of each counter
) = range(12)

# items: (I, ITEM_FIELDS + values) int64; item_numbers: (I, ITEM_NUMERIC + numeric) float64
ITEM_KEY, ITEM_NEWER, ITEM_OLDER, ITEM_HAS_EMBEDDING, ITEM_FIELDS = 0, 1, 2, 3, 4
NEWER, OLDER = 1, 2
"""Columns of a list by last use, the same in ``items`` and ``slots``."""
ITEM_INVERSE_NORM, ITEM_NUMERIC = 0, 1

# keys: (K, 6)
KEY_COLUMN, KEY_WIDTH, KEY_FIRST_COUNTER, KEY_END_COUNTER, KEY_SLOT_COLUMN, KEY_IS_SHARED = range(6)
USER_KEY = -1  # KEY_COLUMN of the key that holds all of a user's events

# counters: (C, 4) int64 and (C, 2) float64, the least and the largest value of an event that counts
COUNTER_FIRST_WINDOW, COUNTER_END_WINDOW, COUNTER_BLOCK_SIZE, COUNTER_LOCAL = 0, 1, 2, 3
LEAST, MOST = 0, 1

# windows: (W, 6); key, and counter within the key. A block of a fixed window or a decay: the newest bucket's number
# plus one, 16 counts of 32 bits, and 16 sums where values are summed. Of a session window: 16 stamps, 16 counts, and
# 16 sums. Of all time: a count, and a sum.
WINDOW_TYPE, WINDOW_WIDTH_MS, WINDOW_OFFSET, WINDOW_KEY, WINDOW_COUNTER, WINDOW_SUMS = range(6)
FIXED, SESSION, EVER, DECAY = 0, 1, 2, 3
RING_COUNTS, RING_SUMS = 1, 1 + BUCKETS // 2
"""Cells of a ring's block where counts and sums begin."""

# features: (F, 17) int64 and (F, 5) float64. Field: a column; width: how many. History: kinds and until are sets of
# kinds, one bit each; recent: milliseconds, or one of the codes below.
(
    OP,
    TRANSFORM,
    FEATURE_KEY,
    COUNTER_A,
    WINDOW_A,
    COUNTER_B,
    WINDOW_B,
    REDUCE,
    FIELD,
    METRIC,
    WEIGHTED,
    WIDTH,
    SEQUENCE,
    KIND_SET,
    UNTIL_SET,
    RECENT_MS,
    AGAINST,
    FEATURE_CELLS,
) = range(18)
MEAN, SCALE, PRIOR, PRIOR_VALUE, CAP, FEATURE_NUMBERS = range(6)
RECENT_SESSION, RECENT_EVER = -1, -2
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
    HISTORY_COUNT,
    HISTORY_DISTINCT,
    HISTORY_STREAK,
    HISTORY_MATCH,
    HISTORY_NUMBER,
    LIST_SIZE,
    LIST_SHARE,
    ITEM_AGE,
    LOCAL_TIME,
    CONTEXT_MATCH,
) = range(20)
(
    NO_TRANSFORM,
    LOG1P,
    STANDARDIZE,
    RECIPROCAL,
    AFFINE,
    LIST_RANK,
    MINUS_MEDIAN,
    MINUS_MEAN,
    MINUS_PREVIOUS,
    MINMAX,
) = range(10)
SUM_OF, MEAN_OF, MAX_OF, MIN_OF, LAST_OF, COUNT_OF, SHARE_OF, SINCE_OF, PLACE_OF = range(9)
DOT, COSINE = range(2)
NUMBER_VALUE, NUMBER_AGE, NUMBER_GAP, NUMBER_POSITION = -1, -2, -3, -4
"""Numbers of an entry itself, where otherwise a column of ``item_numbers`` stands."""
AGAINST_NONE, AGAINST_DIFFERENCE, AGAINST_RATIO = range(3)
HOUR, WEEKDAY, HOUR_SIN, HOUR_COS, WEEKDAY_SIN, WEEKDAY_COS = range(6)

# ids: (C, 7); a vocabulary's words lie from first to end in ``vocabulary``, (words, 2): hash, in order, and row
ID_CONTEXT, ID_COLUMN, ID_WIDTH, ID_BUCKETS, ID_OUT, ID_FIRST_WORD, ID_END_WORD = range(7)

# entries of sequences: 3 int64, and a value of float64
ENTRY_TIME, ENTRY_ITEM, ENTRY_FACTS, ENTRY_CELLS = range(4)
KIND_BITS = 16
"""Facts of an entry: the kind's number, and above these bits the position plus one, 0 for none."""

# sequences: (S, 12), -1 where an array is not emitted; sequence_ids: (Q, 2); sequence_columns: (D, 5), a code, and for
# actions the sequence, the kinds, and milliseconds
(
    SEQUENCE_ENTRY,
    SEQUENCE_LENGTH,
    SEQUENCE_FIRST_ID,
    SEQUENCE_END_ID,
    SEQUENCE_FIRST_COLUMN,
    SEQUENCE_END_COLUMN,
    SEQUENCE_IDS_AT,
    SEQUENCE_EMBEDDING_AT,
    SEQUENCE_DENSE_AT,
    SEQUENCE_MASK_AT,
    SEQUENCE_USER_COLUMN,
    SEQUENCE_CELLS,
) = range(12)
SEQUENCE_ID_COLUMN, SEQUENCE_ID_BUCKETS = 0, 1
ID_OF_KIND = -1
"""Column of a sequence's id that is the event's kind; its places by kind lie in ``sequence_kinds``."""
COLUMN_CODE, COLUMN_SEQUENCE, COLUMN_KIND_SET, COLUMN_WITHIN_MS, COLUMN_CELLS = range(5)
(
    COLUMN_VALUE,
    COLUMN_LOG_VALUE,
    COLUMN_LOG_AGE,
    COLUMN_LOG_GAP,
    COLUMN_LOG_POSITION,
    ACTION_COUNT,
    ACTION_VALUE_SUM,
    ACTION_LOG_DELAY,
) = range(8)

# the table of a state: three cells, address and sizes, for each of these arrays; then single numbers
ARRAYS: tuple[str, ...] = (
    "limits",
    "keys",
    "counters",
    "counter_kinds",
    "counter_bounds",
    "windows",
    "features",
    "feature_numbers",
    "ids",
    "vocabulary",
    "sequences",
    "sequence_ids",
    "sequence_columns",
    "sequence_kinds",
    "users",
    "entries",
    "values",
    "slots",
    "table",
    "pool",
    "meta",
    "items",
    "item_table",
    "item_numbers",
    "embeddings",
    "scratch_ints",
    "scratch_floats",
    "scratch_singles",
)
(
    AT_LIMITS,
    AT_KEYS,
    AT_COUNTERS,
    AT_COUNTER_KINDS,
    AT_COUNTER_BOUNDS,
    AT_WINDOWS,
    AT_FEATURES,
    AT_FEATURE_NUMBERS,
    AT_IDS,
    AT_VOCABULARY,
    AT_SEQUENCES,
    AT_SEQUENCE_IDS,
    AT_SEQUENCE_COLUMNS,
    AT_SEQUENCE_KINDS,
    AT_USERS,
    AT_ENTRIES,
    AT_VALUES,
    AT_SLOTS,
    AT_TABLE,
    AT_POOL,
    AT_META,
    AT_ITEMS,
    AT_ITEM_TABLE,
    AT_ITEM_NUMBERS,
    AT_EMBEDDINGS,
    AT_SCRATCH_INTS,
    AT_SCRATCH_FLOATS,
    AT_SCRATCH_SINGLES,
    AT_NUMBERS,
) = range(0, 3 * len(ARRAYS) + 1, 3)
AT_GAP_MS, AT_SLOT_COLUMNS, TABLE_CELLS = AT_NUMBERS, AT_NUMBERS + 1, AT_NUMBERS + 2

# an event; position -1 for none, value a float64, scope one of those below
(
    EVENT_USER,
    EVENT_KIND,
    EVENT_ROW,
    EVENT_KEY,
    EVENT_TIME_MS,
    EVENT_POSITION,
    EVENT_VALUE,
    EVENT_SCOPE,
    EVENT_CELLS,
) = range(9)
FOR_ALL, FOR_USER, FOR_EVERYONE = 0, 1, 2
"""Scopes of an event: it counts for its user and everyone, or for one of them, when a state is restored."""

# a request: address and length of arrays, or address and two sizes of matrices; then numbers
(
    REQUEST_ROWS,
    REQUEST_SCORES,
    REQUEST_NUMBERS,
    REQUEST_WORDS,
    REQUEST_MATCHES,
    REQUEST_SINGLES,
    REQUEST_INTEGERS,
    REQUEST_DENSE,
) = range(0, 16, 2)
REQUEST_IDS, REQUEST_EMBEDDING, REQUEST_USER, REQUEST_NOW_MS, REQUEST_NEEDS, REQUEST_CELLS = 17, 20, 23, 24, 25, 28

# a replay: addresses of events and requests, both in order of time; the next of each and where they end; what the next
# step needs more room for, if it has stopped
(
    REPLAY_EVENTS,
    REPLAY_EVENT,
    REPLAY_EVENT_END,
    REPLAY_REQUESTS,
    REPLAY_REQUEST,
    REPLAY_REQUEST_END,
    REPLAY_STOPPED,
    REPLAY_CELLS,
) = range(8)
STOPPED_EVENT, STOPPED_REQUEST = 1, 2
