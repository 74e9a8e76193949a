"""A user's counters out of the state and into it: one record of cells for each slot.

A record: key, value, and for each counter of the key the time of its newest event, whether it has a block, and the
block's cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    COUNTER_BLOCK_SIZE,
    FIRST_SLOT,
    KEY_END_COUNTER,
    KEY_FIRST_COUNTER,
    META_EVICTED,
    META_FREE_SLOTS,
    META_OLDEST_SLOT,
    META_SLOTS,
    SLOT_COUNTERS,
    SLOT_KEY,
    SLOT_NEXT,
    SLOT_VALUE,
)
from rerank_features.compiler.native import compiled
from rerank_features.compiler.tables import drop_slot, mark_used, new_block, new_slot

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]


@compiled
def list_slots(slots: Ints, users: Ints, user: int, out: Rows) -> int:
    """Write a user's slots, as many as there is room for; return how many there are."""
    count, slot = 0, users[user, FIRST_SLOT]
    while slot >= 0:
        if count < out.size:
            out[count] = slot
        count += 1
        slot = slots[slot, SLOT_NEXT]
    return count


@compiled
def save_slots(listed: Rows, keys: Ints, counters: Ints, slots: Ints, pool: Ints, cells: Ints) -> int:
    """Write the records of slots, as far as there is room; return how many cells they take."""
    at = 0
    for i in range(listed.size):
        slot = listed[i]
        key = slots[slot, SLOT_KEY]
        begin, end = keys[key, KEY_FIRST_COUNTER], keys[key, KEY_END_COUNTER]
        needed = 2
        for c in range(begin, end):
            needed += 2
            if slots[slot, SLOT_COUNTERS + 2 * (c - begin)] >= 0:
                needed += counters[c, COUNTER_BLOCK_SIZE]
        if at + needed <= cells.size:
            cells[at] = key
            cells[at + 1] = slots[slot, SLOT_VALUE]
            place = at + 2
            for c in range(begin, end):
                block, size = slots[slot, SLOT_COUNTERS + 2 * (c - begin)], counters[c, COUNTER_BLOCK_SIZE]
                cells[place] = slots[slot, SLOT_COUNTERS + 2 * (c - begin) + 1]
                cells[place + 1] = 1 if block >= 0 else 0
                place += 2
                if block >= 0:
                    for k in range(size):
                        cells[place + k] = pool[block + k]
                    place += size
        at += needed
    return at


@compiled
def load_slots(
    cells: Ints,
    user: int,
    limits: Ints,
    keys: Ints,
    counters: Ints,
    users: Ints,
    slots: Ints,
    table: Ints,
    pool: Ints,
    meta: Ints,
) -> bool:
    """Add the slots of records, each the most recently used in its turn; there must be room.

    Returns
    -------
    bool
        False where a record is no record of this spec; those before it have been added.
    """
    at = 0
    while at < cells.size:
        key = cells[at]
        if key < 0 or key >= keys.shape[0] or at + 2 > cells.size:
            return False
        begin, end = keys[key, KEY_FIRST_COUNTER], keys[key, KEY_END_COUNTER]
        if meta[META_SLOTS] - meta[META_FREE_SLOTS] >= limits[2]:
            drop_slot(table, slots, pool, meta, users, keys, counters, meta[META_OLDEST_SLOT])
            meta[META_EVICTED] += 1
        slot = new_slot(table, slots, meta, users, user, key, cells[at + 1])
        mark_used(slots, meta, slot)
        at += 2
        for c in range(begin, end):
            size = counters[c, COUNTER_BLOCK_SIZE]
            if at + 2 > cells.size or (cells[at + 1] != 0 and at + 2 + size > cells.size):
                return False
            place = SLOT_COUNTERS + 2 * (c - begin)
            slots[slot, place + 1] = cells[at]
            has_block = cells[at + 1] != 0 and size > 0
            at += 2
            if has_block:
                block = new_block(pool, meta, c, size)
                slots[slot, place] = block
                for k in range(size):
                    pool[block + k] = cells[at + k]
                at += size
    return True
