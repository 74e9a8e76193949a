"""The functions of the feature code that are called from outside; every argument is a 64-bit integer.

``state`` is the address of a state's table, whose cells :mod:`rerank_features.compiler` names; ``event`` and
``request`` are addresses of records; ``rows`` is the address of int32 rows, ``count`` how many.
"""

from __future__ import annotations

from rerank_features import compiler as code
from rerank_features.compiler import emission, kernels, tables, transfer
from rerank_features.compiler.native import (
    byte_rows,
    compiled,
    float_record,
    float_rows,
    floats,
    int_rows,
    ints,
    record,
    row_matrix32,
    row_record,
    rows32,
    single_rows,
    singles,
)
from rerank_features.compiler.similarity import store_inverse_norms as _store_inverse_norms


@compiled
def update(state: int, event: int) -> int:
    """Fold an event in; 0 where a table is too small, and nothing has changed."""
    fields, numbers = record(event, code.EVENT_CELLS), record(state, code.TABLE_CELLS)
    done = kernels.update(
        fields[code.EVENT_USER],
        fields[code.EVENT_KIND],
        fields[code.EVENT_ROW],
        fields[code.EVENT_KEY],
        fields[code.EVENT_TIME_MS],
        fields[code.EVENT_POSITION],
        float_record(event, code.EVENT_CELLS)[code.EVENT_VALUE],
        fields[code.EVENT_SCOPE],
        numbers[code.AT_GAP_MS],
        ints(state, code.AT_LIMITS),
        int_rows(state, code.AT_KEYS),
        int_rows(state, code.AT_COUNTERS),
        byte_rows(state, code.AT_COUNTER_KINDS),
        float_rows(state, code.AT_COUNTER_BOUNDS),
        int_rows(state, code.AT_WINDOWS),
        int_rows(state, code.AT_SEQUENCES),
        byte_rows(state, code.AT_SEQUENCE_KINDS),
        int_rows(state, code.AT_USERS),
        int_rows(state, code.AT_SLOTS),
        ints(state, code.AT_TABLE),
        ints(state, code.AT_POOL),
        row_record(numbers[code.AT_POOL], 2 * numbers[code.AT_POOL + 1]),
        ints(state, code.AT_META),
        int_rows(state, code.AT_ENTRIES),
        float_rows(state, code.AT_VALUES),
        int_rows(state, code.AT_ITEMS),
    )
    return int(done)


@compiled
def emit(state: int, request: int) -> int:
    """Write the arrays of a request and its moment, the user's newest event's if that is later.

    Returns 0 where there is too little scratch; the request says then how much it takes.
    """
    rows = rows32(request, code.REQUEST_ROWS)
    keys, windows = int_rows(state, code.AT_KEYS), int_rows(state, code.AT_WINDOWS)
    features = int_rows(state, code.AT_FEATURES)
    sequences, entries = int_rows(state, code.AT_SEQUENCES), int_rows(state, code.AT_ENTRIES)
    embeddings = single_rows(state, code.AT_EMBEDDINGS)
    scratch_ints, scratch_floats = ints(state, code.AT_SCRATCH_INTS), floats(state, code.AT_SCRATCH_FLOATS)
    scratch_singles = singles(state, code.AT_SCRATCH_SINGLES)
    fields, numbers = record(request, code.REQUEST_CELLS), record(state, code.TABLE_CELLS)
    users, user = int_rows(state, code.AT_USERS), fields[code.REQUEST_USER]
    if user >= 0:
        fields[code.REQUEST_NOW_MS] = max(fields[code.REQUEST_NOW_MS], users[user, code.NEWEST])
    needs = fields[code.REQUEST_NEEDS :]
    emission.scratch_needs(
        rows.size, numbers[code.AT_SLOT_COLUMNS], keys, windows, features, sequences, entries, embeddings, needs
    )
    if needs[0] > scratch_ints.size or needs[1] > scratch_floats.size or needs[2] > scratch_singles.size:
        return 0
    emission.emit(
        rows,
        user,
        fields[code.REQUEST_NOW_MS],
        numbers[code.AT_GAP_MS],
        numbers[code.AT_SLOT_COLUMNS],
        floats(request, code.REQUEST_SCORES),
        floats(request, code.REQUEST_NUMBERS),
        ints(request, code.REQUEST_WORDS),
        ints(request, code.REQUEST_MATCHES),
        keys,
        windows,
        features,
        float_rows(state, code.AT_FEATURE_NUMBERS),
        int_rows(state, code.AT_IDS),
        int_rows(state, code.AT_VOCABULARY),
        sequences,
        int_rows(state, code.AT_SEQUENCE_IDS),
        int_rows(state, code.AT_SEQUENCE_COLUMNS),
        byte_rows(state, code.AT_SEQUENCE_KINDS),
        users,
        int_rows(state, code.AT_SLOTS),
        ints(state, code.AT_TABLE),
        ints(state, code.AT_POOL),
        row_record(numbers[code.AT_POOL], 2 * numbers[code.AT_POOL + 1]),
        ints(state, code.AT_META),
        entries,
        float_rows(state, code.AT_VALUES),
        int_rows(state, code.AT_ITEMS),
        ints(state, code.AT_ITEM_TABLE),
        float_rows(state, code.AT_ITEM_NUMBERS),
        embeddings,
        single_rows(request, code.REQUEST_DENSE),
        row_matrix32(request, code.REQUEST_IDS),
        single_rows(request, code.REQUEST_EMBEDDING),
        singles(request, code.REQUEST_SINGLES),
        rows32(request, code.REQUEST_INTEGERS),
        scratch_ints,
        scratch_floats,
        scratch_singles,
    )
    return 1


@compiled
def replay(state: int, job: int) -> int:
    """Events and requests in order of time, an event of a request's own moment after it.

    Returns 0 where a table or the scratch is too small; the job says which, and how far it has come.
    """
    cells = record(job, code.REPLAY_CELLS)
    while True:
        event = cells[code.REPLAY_EVENTS] + 8 * code.EVENT_CELLS * cells[code.REPLAY_EVENT]
        request = cells[code.REPLAY_REQUESTS] + 8 * code.REQUEST_CELLS * cells[code.REPLAY_REQUEST]
        events_left = cells[code.REPLAY_EVENT] < cells[code.REPLAY_EVENT_END]
        if cells[code.REPLAY_REQUEST] < cells[code.REPLAY_REQUEST_END]:
            moment_ms = record(request, code.REQUEST_CELLS)[code.REQUEST_NOW_MS]
            if not events_left or record(event, code.EVENT_CELLS)[code.EVENT_TIME_MS] >= moment_ms:
                if emit(state, request) == 0:
                    cells[code.REPLAY_STOPPED] = code.STOPPED_REQUEST
                    return 0
                cells[code.REPLAY_REQUEST] += 1
                continue
        elif not events_left:
            return 1
        if update(state, event) == 0:
            cells[code.REPLAY_STOPPED] = code.STOPPED_EVENT
            return 0
        cells[code.REPLAY_EVENT] += 1


@compiled
def forget_user(state: int, user: int) -> int:
    """Free and overwrite everything that belongs to a user's row."""
    kernels.forget_user(
        user,
        int_rows(state, code.AT_KEYS),
        int_rows(state, code.AT_COUNTERS),
        int_rows(state, code.AT_USERS),
        int_rows(state, code.AT_SLOTS),
        ints(state, code.AT_TABLE),
        ints(state, code.AT_POOL),
        ints(state, code.AT_META),
        int_rows(state, code.AT_ENTRIES),
        float_rows(state, code.AT_VALUES),
    )
    return 0


@compiled
def list_slots(state: int, user: int, rows: int, count: int) -> int:
    """How many slots a user's row has; the first ``count`` of them to int32 ``rows``."""
    return transfer.list_slots(
        int_rows(state, code.AT_SLOTS), int_rows(state, code.AT_USERS), user, row_record(rows, count)
    )


@compiled
def save_slots(state: int, rows: int, count: int, cells: int, room: int) -> int:
    """How many cells slots take; their records to ``cells`` where there is room for all."""
    return transfer.save_slots(
        row_record(rows, count),
        int_rows(state, code.AT_KEYS),
        int_rows(state, code.AT_COUNTERS),
        int_rows(state, code.AT_SLOTS),
        ints(state, code.AT_POOL),
        record(cells, room),
    )


@compiled
def load_slots(state: int, user: int, cells: int, count: int) -> int:
    """Add slots from records to a user's row; 0 where the records do not fit the spec. There must be room."""
    done = transfer.load_slots(
        record(cells, count),
        user,
        ints(state, code.AT_LIMITS),
        int_rows(state, code.AT_KEYS),
        int_rows(state, code.AT_COUNTERS),
        int_rows(state, code.AT_USERS),
        int_rows(state, code.AT_SLOTS),
        ints(state, code.AT_TABLE),
        ints(state, code.AT_POOL),
        ints(state, code.AT_META),
    )
    return int(done)


@compiled
def touch_rows(state: int, rows: int, count: int) -> int:
    """Mark item rows as used, the last of them most recently."""
    tables.touch_rows(int_rows(state, code.AT_ITEMS), ints(state, code.AT_META), row_record(rows, count))
    return 0


@compiled
def evict_oldest(state: int) -> int:
    """Take the least recently used item out; its row, now free."""
    return tables.evict_oldest(
        int_rows(state, code.AT_ITEMS), ints(state, code.AT_META), ints(state, code.AT_ITEM_TABLE)
    )


@compiled
def add_row(state: int, row: int, item_key: int) -> int:
    """Enter a free item row under its hashed id."""
    tables.add_row(
        int_rows(state, code.AT_ITEMS), ints(state, code.AT_META), ints(state, code.AT_ITEM_TABLE), row, item_key
    )
    return 0


@compiled
def fill_slot_table(state: int) -> int:
    """Enter every live slot into the empty table."""
    slots = int_rows(state, code.AT_SLOTS)
    tables.fill_slot_table(ints(state, code.AT_TABLE), slots, ints(state, code.AT_META)[code.META_SLOTS])
    return 0


@compiled
def fill_item_table(state: int, count: int) -> int:
    """Enter the first ``count`` items into the empty table."""
    tables.fill_item_table(ints(state, code.AT_ITEM_TABLE), int_rows(state, code.AT_ITEMS), count)
    return 0


@compiled
def store_inverse_norms(state: int, rows: int, count: int) -> int:
    """Compute what cosines need of the embeddings of item rows."""
    _store_inverse_norms(
        single_rows(state, code.AT_EMBEDDINGS),
        int_rows(state, code.AT_ITEMS),
        float_rows(state, code.AT_ITEM_NUMBERS),
        row_record(rows, count),
    )
    return 0


ENTRIES = (
    update,
    emit,
    replay,
    forget_user,
    list_slots,
    save_slots,
    load_slots,
    touch_rows,
    evict_oldest,
    add_row,
    fill_slot_table,
    fill_item_table,
    store_inverse_norms,
)
