"""One event into the state, one user out of it.

Nothing here depends on the order in which a user's events arrive: sums are whole numbers, a late event goes
to the bucket of its own time, a sequence keeps the newest entries in a total order, and sessions merge when
a late event closes the gap between them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    BUCKETS,
    COUNTER_BLOCK_SIZE,
    COUNTER_END_WINDOW,
    COUNTER_FIRST_WINDOW,
    ENTRY_CELLS,
    ENTRY_FACTS,
    ENTRY_ITEM,
    ENTRY_TIME,
    EVER,
    EVERYONE,
    FIRST_SLOT,
    FOR_EVERYONE,
    FOR_USER,
    ITEM_KEY,
    KEY_COLUMN,
    KEY_END_COUNTER,
    KEY_FIRST_COUNTER,
    KEY_IS_SHARED,
    KEY_WIDTH,
    KIND_BITS,
    LEAST,
    MAX_FLOAT32,
    MAX_SUM,
    MAX_VALUE,
    META_EVICTED,
    META_FREE_SLOTS,
    META_NEWEST_ROW,
    META_NEWEST_SLOT,
    META_OLDEST_SLOT,
    META_POOL,
    META_SLOTS,
    MOST,
    NEWEST,
    QUANTUM,
    RING_COUNTS,
    RING_SUMS,
    SEQUENCE_ENTRY,
    SEQUENCE_LENGTH,
    SEQUENCE_USER_COLUMN,
    SESSION,
    SESSION_COUNT,
    SESSION_END,
    SESSION_START,
    SESSIONS,
    SLOT_COUNTERS,
    USER_KEY,
    WINDOW_OFFSET,
    WINDOW_SUMS,
    WINDOW_TYPE,
    WINDOW_WIDTH_MS,
)
from rerank_features.compiler.native import compiled
from rerank_features.compiler.tables import drop_slot, find_slot, mark_used, new_block, new_slot, touch

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

_PER_UNIT = 1.0 / QUANTUM
MAX_COUNT = 2**31 - 1
"""A bucket's count saturates here."""


@compiled
def _add_sum(pool: Ints, total: int, quanta: int) -> None:
    pool[total] = min(max(pool[total] + quanta, -MAX_SUM), MAX_SUM)


@compiled
def _add_to_ring(pool: Ints, counts: Rows, block: int, index: int, quanta: int, has_sums: bool) -> None:
    """Add one event to the bucket with this number; buckets that fall out of the ring are emptied first."""
    newest = pool[block] - 1
    if index > newest:
        for gone in range(max(newest + 1, index - BUCKETS + 1), index + 1):
            counts[2 * (block + RING_COUNTS) + gone % BUCKETS] = 0
            if has_sums:
                pool[block + RING_SUMS + gone % BUCKETS] = 0
        pool[block] = index + 1
    elif index <= newest - BUCKETS:
        return
    place = index % BUCKETS
    counts[2 * (block + RING_COUNTS) + place] = min(counts[2 * (block + RING_COUNTS) + place], MAX_COUNT - 1) + 1
    if has_sums:
        _add_sum(pool, block + RING_SUMS + place, quanta)


@compiled
def _join_session(users: Ints, user: int, time_ms: int, gap_ms: int) -> tuple[int, int]:
    """Extend, merge or open a session; its first and last time, or (0, -1) when it is older than all kept."""
    first, last = time_ms, time_ms
    count = users[user, SESSION_COUNT]
    i = 0
    while i < count:
        start, end = users[user, SESSION_START + i], users[user, SESSION_END + i]
        if start - gap_ms <= time_ms <= end + gap_ms:
            first, last = min(first, start), max(last, end)
            count -= 1
            users[user, SESSION_START + i] = users[user, SESSION_START + count]
            users[user, SESSION_END + i] = users[user, SESSION_END + count]
        else:
            i += 1
    place = count
    if count == SESSIONS:
        place = 0
        for j in range(1, SESSIONS):
            if users[user, SESSION_START + j] < users[user, SESSION_START + place]:
                place = j
        if first < users[user, SESSION_START + place]:
            return 0, -1
    else:
        count += 1
    users[user, SESSION_START + place] = first
    users[user, SESSION_END + place] = last
    users[user, SESSION_COUNT] = count
    return first, last


@compiled
def _add_to_session(pool: Ints, ring: int, time_ms: int, first: int, last: int, quanta: int, has_sums: bool) -> None:
    """Add to the ring's entry of the session, or to the place of the oldest entry.

    Entries are stamped with the time of one of their events plus one: sessions only ever grow, so all events
    of an entry stay in one session. Entries whose sessions have merged are merged here.
    """
    oldest, mine = 0, -1
    for i in range(BUCKETS):
        stamp = pool[ring + i]
        if stamp != 0 and first <= stamp - 1 <= last:
            ones, total = ring + BUCKETS + i, ring + 2 * BUCKETS + i
            if mine < 0:
                mine = i
                pool[ones] += 1
                if has_sums:
                    _add_sum(pool, total, quanta)
            else:
                pool[ring + BUCKETS + mine] += pool[ones]
                pool[ring + i] = 0
                pool[ones] = 0
                if has_sums:
                    _add_sum(pool, ring + 2 * BUCKETS + mine, pool[total])
                    pool[total] = 0
        if pool[ring + i] < pool[ring + oldest]:
            oldest = i
    if mine < 0 and pool[ring + oldest] <= time_ms:
        pool[ring + oldest] = time_ms + 1
        pool[ring + BUCKETS + oldest] = 1
        if has_sums:
            pool[ring + 2 * BUCKETS + oldest] = quanta


@compiled
def _count(
    pool: Ints,
    counts: Rows,
    block: int,
    windows: Ints,
    begin: int,
    end: int,
    time_ms: int,
    first: int,
    last: int,
    quanta: int,
) -> None:
    """Add one event to every window of a counter's block."""
    for w in range(begin, end):
        at, has_sums = block + windows[w, WINDOW_OFFSET], windows[w, WINDOW_SUMS] != 0
        if windows[w, WINDOW_TYPE] == EVER:
            pool[at] += 1
            if has_sums:
                _add_sum(pool, at + 1, quanta)
        elif windows[w, WINDOW_TYPE] != SESSION:
            _add_to_ring(pool, counts, at, time_ms // windows[w, WINDOW_WIDTH_MS], quanta, has_sums)
        elif last >= first:
            _add_to_session(pool, at, time_ms, first, last, quanta, has_sums)


@compiled
def _is_before(
    entries: Ints, values: Floats, user: int, place: int, time_ms: int, item: int, value: float, facts: int
) -> bool:
    """Whether the entry at a place comes before another, or equals it, in the order of time, item, value and facts."""
    at = ENTRY_CELLS * place
    if entries[user, at + ENTRY_TIME] != time_ms:
        return entries[user, at + ENTRY_TIME] < time_ms
    if entries[user, at + ENTRY_ITEM] != item:
        return entries[user, at + ENTRY_ITEM] < item
    if values[user, place] != value:
        return values[user, place] < value
    return entries[user, at + ENTRY_FACTS] <= facts


@compiled
def _append(
    users: Ints,
    entries: Ints,
    values: Floats,
    user: int,
    column: int,
    first: int,
    length: int,
    time_ms: int,
    item: int,
    value: float,
    facts: int,
) -> None:
    """Insert into a user's ring of entries, ordered by (time, hashed item, value, facts); the newest stay."""
    start, count = users[user, column], users[user, column + 1]
    if count == length:
        if not _is_before(entries, values, user, first + start, time_ms, item, value, facts):
            return
        start = (start + 1) % length
        count -= 1
    i = count
    while i > 0:
        before = first + (start + i - 1) % length
        if _is_before(entries, values, user, before, time_ms, item, value, facts):
            break
        place = first + (start + i) % length
        for cell in range(ENTRY_CELLS):
            entries[user, ENTRY_CELLS * place + cell] = entries[user, ENTRY_CELLS * before + cell]
        values[user, place] = values[user, before]
        i -= 1
    place = first + (start + i) % length
    entries[user, ENTRY_CELLS * place + ENTRY_TIME] = time_ms
    entries[user, ENTRY_CELLS * place + ENTRY_ITEM] = item
    entries[user, ENTRY_CELLS * place + ENTRY_FACTS] = facts
    values[user, place] = value
    users[user, column] = start
    users[user, column + 1] = count + 1


@compiled
def _takes(counter_kinds: Bytes, counter_bounds: Floats, counter: int, kind: int, value: float) -> bool:
    """Whether a counter counts an event."""
    return (
        counter_kinds[counter, kind] != 0
        and counter_bounds[counter, LEAST] <= value
        and value <= counter_bounds[counter, MOST]
    )


@compiled
def update(
    user: int,
    kind: int,
    row: int,
    item_key: int,
    time_ms: int,
    position: int,
    value: float,
    scope: int,
    gap_ms: int,
    limits: Ints,
    keys: Ints,
    counters: Ints,
    counter_kinds: Bytes,
    counter_bounds: Floats,
    windows: Ints,
    sequences: Ints,
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
) -> bool:
    """Fold one event into the state.

    Parameters
    ----------
    row, item_key
        The item's row, or -1 and its hashed id.
    position
        Of the event in its list, or -1.
    scope
        For whom it counts.
    gap_ms
        Longest pause inside a session, or -1 when no feature has a session window.
    limits
        (3,): most slots and most pool cells that one event may take; most slots in all.
    counts
        The pool again, as numbers of 32 bits.

    Returns
    -------
    bool
        False when a table is too small; nothing has changed then.
    """
    room = slots.shape[0] - meta[META_SLOTS] + meta[META_FREE_SLOTS]
    if room < limits[0] or pool.size - meta[META_POOL] < limits[1]:
        return False
    if row >= 0:
        item_key = items[row, ITEM_KEY]
        touch(items, meta, META_NEWEST_ROW, row)
    if scope != FOR_EVERYONE:
        users[user, NEWEST] = max(users[user, NEWEST], time_ms)
    if scope != FOR_USER:
        users[EVERYONE, NEWEST] = max(users[EVERYONE, NEWEST], time_ms)
    first, last = 0, -1
    if gap_ms >= 0 and scope != FOR_EVERYONE:
        first, last = _join_session(users, user, time_ms, gap_ms)
    value = min(max(value, -MAX_FLOAT32), MAX_FLOAT32) + 0.0  # minus zero becomes zero
    quanta = np.int64(np.rint(min(max(value, -MAX_VALUE), MAX_VALUE) * _PER_UNIT))
    for key in range(keys.shape[0]):
        begin, end = keys[key, KEY_FIRST_COUNTER], keys[key, KEY_END_COUNTER]
        is_shared = keys[key, KEY_IS_SHARED] != 0
        if scope == (FOR_USER if is_shared else FOR_EVERYONE):
            continue
        used = False
        for c in range(begin, end):
            used |= _takes(counter_kinds, counter_bounds, c, kind, value)
        if not used:
            continue
        owner = EVERYONE if is_shared else user
        column = keys[key, KEY_COLUMN]
        for j in range(keys[key, KEY_WIDTH]):
            if column == USER_KEY:
                word = 1
            elif column == ITEM_KEY:
                word = item_key
            elif row >= 0:
                word = items[row, column + j]
            else:
                word = 0
            if word == 0:
                break
            slot = find_slot(table, slots, owner, key, word)
            if slot < 0:
                if meta[META_SLOTS] - meta[META_FREE_SLOTS] >= limits[2]:
                    # Never one of this event's own: they are the newest, and all of them fit.
                    drop_slot(table, slots, pool, meta, users, keys, counters, meta[META_OLDEST_SLOT])
                    meta[META_EVICTED] += 1
                slot = new_slot(table, slots, meta, users, owner, key, word)
            else:
                touch(slots, meta, META_NEWEST_SLOT, slot)
            mark_used(slots, meta, slot)
            for c in range(begin, end):
                if not _takes(counter_kinds, counter_bounds, c, kind, value):
                    continue
                place = SLOT_COUNTERS + 2 * (c - begin)
                slots[slot, place + 1] = max(slots[slot, place + 1], time_ms)
                size = counters[c, COUNTER_BLOCK_SIZE]
                if size == 0:
                    continue
                if slots[slot, place] < 0:
                    slots[slot, place] = new_block(pool, meta, c, size)
                _count(
                    pool,
                    counts,
                    slots[slot, place],
                    windows,
                    counters[c, COUNTER_FIRST_WINDOW],
                    counters[c, COUNTER_END_WINDOW],
                    time_ms,
                    first,
                    last,
                    quanta,
                )
    for s in range(sequences.shape[0]):
        if sequence_kinds[s, kind] != 0 and scope != FOR_EVERYONE:
            _append(
                users,
                entries,
                values,
                user,
                sequences[s, SEQUENCE_USER_COLUMN],
                sequences[s, SEQUENCE_ENTRY],
                sequences[s, SEQUENCE_LENGTH],
                time_ms,
                item_key,
                value,
                ((position + 1) << KIND_BITS) | kind,
            )
    return True


@compiled
def forget_user(
    user: int,
    keys: Ints,
    counters: Ints,
    users: Ints,
    slots: Ints,
    table: Ints,
    pool: Ints,
    meta: Ints,
    entries: Ints,
    values: Floats,
) -> None:
    """Free and overwrite everything that belongs to a user; the row of ``users`` is as new."""
    while users[user, FIRST_SLOT] >= 0:
        drop_slot(table, slots, pool, meta, users, keys, counters, users[user, FIRST_SLOT])
    users[user, :] = 0
    users[user, NEWEST] = -1
    users[user, FIRST_SLOT] = -1
    entries[user, :] = 0
    values[user, :] = 0.0
