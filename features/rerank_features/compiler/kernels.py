"""One event into the state, one user out of it.

Nothing here depends on the order in which a user's events arrive: sums are whole numbers, a late event goes
to the bucket of its own time, a sequence keeps the newest entries in a total order, and sessions merge when
a late event closes the gap between them.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rerank_features.compiler import (
    BUCKETS,
    COUNTER_BLOCK_SIZE,
    COUNTER_END_WINDOW,
    COUNTER_FIRST_WINDOW,
    EVER,
    FIRST_SLOT,
    FIXED,
    ITEM_KEY,
    KEY_COLUMN,
    KEY_END_COUNTER,
    KEY_FIRST_COUNTER,
    KEY_WIDTH,
    MAX_FLOAT32,
    MAX_SUM,
    MAX_VALUE,
    META_FREE_SLOT,
    META_FREE_SLOTS,
    META_POOL,
    META_SLOTS,
    NEWEST,
    OPTIONS,
    QUANTUM,
    SEQUENCE_ENTRY,
    SEQUENCE_LENGTH,
    SEQUENCE_USER_COLUMN,
    SESSION_COUNT,
    SESSION_END,
    SESSION_START,
    SESSIONS,
    SLOT_COUNTERS,
    SLOT_KEY,
    SLOT_NEXT,
    USER_KEY,
    WINDOW_OFFSET,
    WINDOW_TYPE,
    WINDOW_WIDTH_MS,
)
from rerank_features.compiler.tables import find_slot, free_block, new_block, new_slot, remove_record, touch

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

_PER_UNIT = 1.0 / QUANTUM


@njit(**OPTIONS)
def _add(pool: Ints, ones: int, total: int, quanta: int) -> None:
    pool[ones] += 1
    pool[total] = min(max(pool[total] + quanta, -MAX_SUM), MAX_SUM)


@njit(**OPTIONS)
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


@njit(**OPTIONS)
def _add_to_session(pool: Ints, ring: int, time_ms: int, first: int, last: int, quanta: int) -> None:
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
                _add(pool, ones, total, quanta)
            else:
                pool[ring + BUCKETS + mine] += pool[ones] - 1
                _add(pool, ring + BUCKETS + mine, ring + 2 * BUCKETS + mine, pool[total])
                pool[ring + i] = 0
                pool[ones] = 0
                pool[total] = 0
        if pool[ring + i] < pool[ring + oldest]:
            oldest = i
    if mine < 0 and pool[ring + oldest] <= time_ms:
        pool[ring + oldest] = time_ms + 1
        pool[ring + BUCKETS + oldest] = 1
        pool[ring + 2 * BUCKETS + oldest] = quanta


@njit(**OPTIONS)
def _count(
    pool: Ints,
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
        at = block + windows[w, WINDOW_OFFSET]
        if windows[w, WINDOW_TYPE] == EVER:
            _add(pool, at, at + 1, quanta)
        elif windows[w, WINDOW_TYPE] == FIXED:
            index = time_ms // windows[w, WINDOW_WIDTH_MS]
            place = at + index % BUCKETS
            if pool[place] == index + 1:
                _add(pool, place + BUCKETS, place + 2 * BUCKETS, quanta)
            elif pool[place] <= index:
                pool[place] = index + 1
                pool[place + BUCKETS] = 1
                pool[place + 2 * BUCKETS] = quanta
        elif last >= first:
            _add_to_session(pool, at, time_ms, first, last, quanta)


@njit(**OPTIONS)
def _append(
    users: Ints,
    entries: Ints,
    values: Floats,
    user: int,
    column: int,
    at: int,
    length: int,
    time_ms: int,
    item: int,
    value: float,
) -> None:
    """Insert into a user's ring of entries, ordered by (time, hashed item, value); the newest stay."""
    start, count = users[user, column], users[user, column + 1]
    if count == length:
        oldest = at + start
        time = entries[user, 2 * oldest]
        if time_ms < time or (
            time_ms == time
            and (
                item < entries[user, 2 * oldest + 1]
                or (item == entries[user, 2 * oldest + 1] and value <= values[user, oldest])
            )
        ):
            return
        start = (start + 1) % length
        count -= 1
    i = count
    while i > 0:
        before = at + (start + i - 1) % length
        time, other = entries[user, 2 * before], entries[user, 2 * before + 1]
        if time < time_ms or (time == time_ms and (other < item or (other == item and values[user, before] <= value))):
            break
        place = at + (start + i) % length
        entries[user, 2 * place] = time
        entries[user, 2 * place + 1] = other
        values[user, place] = values[user, before]
        i -= 1
    place = at + (start + i) % length
    entries[user, 2 * place] = time_ms
    entries[user, 2 * place + 1] = item
    values[user, place] = value
    users[user, column] = start
    users[user, column + 1] = count + 1


@njit(**OPTIONS)
def update(
    user: int,
    kind: int,
    row: int,
    item_key: int,
    time_ms: int,
    value: float,
    gap_ms: int,
    limits: Ints,
    keys: Ints,
    counters: Ints,
    counter_kinds: Bytes,
    windows: Ints,
    sequences: Ints,
    sequence_kinds: Bytes,
    users: Ints,
    slots: Ints,
    table: Ints,
    pool: Ints,
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
    gap_ms
        Longest pause inside a session, or -1 when no feature has a session window.
    limits
        (2,): most slots and most pool cells that one event may take.

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
        touch(items, meta, row)
    users[user, NEWEST] = max(users[user, NEWEST], time_ms)
    first, last = 0, -1
    if gap_ms >= 0:
        first, last = _join_session(users, user, time_ms, gap_ms)
    value = min(max(value, -MAX_FLOAT32), MAX_FLOAT32) + 0.0  # minus zero becomes zero
    quanta = np.int64(np.rint(min(max(value, -MAX_VALUE), MAX_VALUE) * _PER_UNIT))
    for key in range(keys.shape[0]):
        begin, end = keys[key, KEY_FIRST_COUNTER], keys[key, KEY_END_COUNTER]
        used = False
        for c in range(begin, end):
            used |= counter_kinds[c, kind] != 0
        if not used:
            continue
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
            slot = find_slot(table, slots, user, key, word)
            if slot < 0:
                slot = new_slot(table, slots, meta, users, user, key, word)
            for c in range(begin, end):
                if counter_kinds[c, kind] == 0:
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
        if sequence_kinds[s, kind] != 0:
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
            )
    return True


@njit(**OPTIONS)
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
    slot = users[user, FIRST_SLOT]
    while slot >= 0:
        following = slots[slot, SLOT_NEXT]
        key = slots[slot, SLOT_KEY]
        begin = keys[key, KEY_FIRST_COUNTER]
        for c in range(begin, keys[key, KEY_END_COUNTER]):
            block = slots[slot, SLOT_COUNTERS + 2 * (c - begin)]
            if block >= 0:
                free_block(pool, meta, c, counters[c, COUNTER_BLOCK_SIZE], block)
        remove_record(table, slots, slot)
        slots[slot, :] = -1
        slots[slot, SLOT_NEXT] = meta[META_FREE_SLOT]
        meta[META_FREE_SLOT] = slot
        meta[META_FREE_SLOTS] += 1
        slot = following
    users[user, :] = 0
    users[user, NEWEST] = -1
    users[user, FIRST_SLOT] = -1
    entries[user, :] = 0
    values[user, :] = 0.0
