"""Building blocks of the state: open-addressing hash table, least-recently-used list, pool of counter blocks.

A table holds row numbers plus one, 0 for a free place; the rows are records whose column 0 is a well-mixed
64-bit hash. Probing is linear, and a removal moves later records back, so there are no tombstones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    COUNTER_BLOCK_SIZE,
    FIRST_SLOT,
    ITEM_KEY,
    KEY_END_COUNTER,
    KEY_FIRST_COUNTER,
    META_FREE_BLOCKS,
    META_FREE_SLOT,
    META_FREE_SLOTS,
    META_NEWEST_ROW,
    META_NEWEST_SLOT,
    META_OLDEST_ROW,
    META_POOL,
    META_SLOTS,
    META_USES,
    NEWER,
    OLDER,
    SLOT_COUNTERS,
    SLOT_HASH,
    SLOT_KEY,
    SLOT_NEXT,
    SLOT_PLACE,
    SLOT_PREVIOUS,
    SLOT_TICK,
    SLOT_USED,
    SLOT_USER,
    SLOT_VALUE,
)
from rerank_features.compiler.native import compiled

Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)


@compiled
def slot_hash(user: int, key: int, value: int) -> Any:
    """Mix the three parts of a slot's identity with the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = np.uint64(value) ^ (np.uint64(user) * _GOLDEN + np.uint64(key) * _FIRST)
    mixed = (mixed ^ (mixed >> _30)) * _FIRST
    mixed = (mixed ^ (mixed >> _27)) * _SECOND
    return np.int64(mixed ^ (mixed >> _31))


@compiled
def insert_record(table: Ints, records: Ints, record: int) -> None:
    """Enter a record that the table does not hold yet."""
    mask = table.size - 1
    place = records[record, 0] & mask
    while table[place] != 0:
        place = (place + 1) & mask
    table[place] = record + 1


@compiled
def remove_record(table: Ints, records: Ints, record: int) -> None:
    """Take a record out and close the gap it leaves (Knuth, vol. 3, algorithm 6.4 R)."""
    mask = table.size - 1
    hole = records[record, 0] & mask
    while table[hole] != record + 1:
        hole = (hole + 1) & mask
    place = hole
    while True:
        place = (place + 1) & mask
        other = table[place] - 1
        if other < 0:
            break
        home = records[other, 0] & mask
        if ((place - home) & mask) >= ((place - hole) & mask):
            table[hole] = other + 1
            hole = place
    table[hole] = 0


@compiled
def fill_slot_table(table: Ints, slots: Ints, count: int) -> None:
    """Enter every live slot into an empty table."""
    for slot in range(count):
        if slots[slot, SLOT_USER] >= 0:
            insert_record(table, slots, slot)


@compiled
def fill_item_table(table: Ints, items: Ints, count: int) -> None:
    """Enter the first ``count`` items into an empty table."""
    for row in range(count):
        insert_record(table, items, row)


@compiled
def find_slot(table: Ints, slots: Ints, user: int, key: int, value: int) -> int:
    """Slot of a user's key value, or -1."""
    mask = table.size - 1
    place = slot_hash(user, key, value) & mask
    while True:
        slot = table[place] - 1
        if slot < 0:
            return -1
        if slots[slot, SLOT_VALUE] == value and slots[slot, SLOT_USER] == user and slots[slot, SLOT_KEY] == key:
            return slot
        place = (place + 1) & mask


@compiled
def find_item(table: Ints, items: Ints, item_key: int) -> int:
    """Row of the item with this hashed id, or -1."""
    mask = table.size - 1
    place = item_key & mask
    while True:
        row = table[place] - 1
        if row < 0 or items[row, ITEM_KEY] == item_key:
            return row
        place = (place + 1) & mask


@compiled
def link_newest(records: Ints, meta: Ints, newest_at: int, record: int) -> None:
    """Put a record that is in no list at the recently used end; ``meta`` holds newest and oldest side by side."""
    newest = meta[newest_at]
    records[record, NEWER] = -1
    records[record, OLDER] = newest
    if newest >= 0:
        records[newest, NEWER] = record
    else:
        meta[newest_at + 1] = record
    meta[newest_at] = record


@compiled
def unlink(records: Ints, meta: Ints, newest_at: int, record: int) -> None:
    """Take a record out of its list by last use."""
    newer, older = records[record, NEWER], records[record, OLDER]
    if newer >= 0:
        records[newer, OLDER] = older
    else:
        meta[newest_at] = older
    if older >= 0:
        records[older, NEWER] = newer
    else:
        meta[newest_at + 1] = newer


@compiled
def touch(records: Ints, meta: Ints, newest_at: int, record: int) -> None:
    """Mark a record as used just now."""
    if meta[newest_at] != record:
        unlink(records, meta, newest_at, record)
        link_newest(records, meta, newest_at, record)


@compiled
def mark_used(slots: Ints, meta: Ints, slot: int) -> None:
    """Number the uses of slots: the order by last use of one user's slots is theirs by number."""
    meta[META_USES] += 1
    slots[slot, SLOT_USED] = meta[META_USES]


@compiled
def new_slot(table: Ints, slots: Ints, meta: Ints, users: Ints, user: int, key: int, value: int) -> int:
    """Add a slot and link it to its user; there must be room."""
    slot = meta[META_FREE_SLOT]
    if slot >= 0:
        meta[META_FREE_SLOT] = slots[slot, SLOT_NEXT]
        meta[META_FREE_SLOTS] -= 1
    else:
        slot = meta[META_SLOTS]
        meta[META_SLOTS] += 1
    slots[slot, SLOT_HASH] = slot_hash(user, key, value)
    slots[slot, SLOT_USER] = user
    slots[slot, SLOT_KEY] = key
    slots[slot, SLOT_VALUE] = value
    first = users[user, FIRST_SLOT]
    slots[slot, SLOT_NEXT] = first
    slots[slot, SLOT_PREVIOUS] = -1
    slots[slot, SLOT_TICK] = -1
    slots[slot, SLOT_PLACE] = -1
    slots[slot, SLOT_USED:] = -1  # no use, no block, no time
    if first >= 0:
        slots[first, SLOT_PREVIOUS] = slot
    users[user, FIRST_SLOT] = slot
    insert_record(table, slots, slot)
    link_newest(slots, meta, META_NEWEST_SLOT, slot)
    return slot


@compiled
def new_block(pool: Ints, meta: Ints, counter: int, size: int) -> int:
    """Take a zeroed block of the pool; there must be room."""
    block = meta[META_FREE_BLOCKS + counter]
    if block >= 0:
        meta[META_FREE_BLOCKS + counter] = pool[block]
        pool[block] = 0
    else:
        block = meta[META_POOL]
        meta[META_POOL] += size
    return block


@compiled
def free_block(pool: Ints, meta: Ints, counter: int, size: int, block: int) -> None:
    """Wipe a block and keep it for the next slot of the same counter."""
    pool[block : block + size] = 0
    pool[block] = meta[META_FREE_BLOCKS + counter]
    meta[META_FREE_BLOCKS + counter] = block


@compiled
def touch_rows(items: Ints, meta: Ints, rows: NDArray[np.int32]) -> None:
    """Mark rows as used, the last of them most recently."""
    for i in range(rows.size):
        touch(items, meta, META_NEWEST_ROW, rows[i])


@compiled
def evict_oldest(items: Ints, meta: Ints, item_table: Ints) -> int:
    """Take the least recently used item out of list and table; return its row, now free."""
    row = meta[META_OLDEST_ROW]
    unlink(items, meta, META_NEWEST_ROW, row)
    remove_record(item_table, items, row)
    return row


@compiled
def add_row(items: Ints, meta: Ints, item_table: Ints, row: int, item_key: int) -> None:
    """Enter a free row under its hashed id, most recently used."""
    items[row, ITEM_KEY] = item_key
    insert_record(item_table, items, row)
    link_newest(items, meta, META_NEWEST_ROW, row)


@compiled
def drop_slot(
    table: Ints, slots: Ints, pool: Ints, meta: Ints, users: Ints, keys: Ints, counters: Ints, slot: int
) -> None:
    """Free and overwrite a slot and its blocks."""
    user, key = slots[slot, SLOT_USER], slots[slot, SLOT_KEY]
    begin = keys[key, KEY_FIRST_COUNTER]
    for c in range(begin, keys[key, KEY_END_COUNTER]):
        block = slots[slot, SLOT_COUNTERS + 2 * (c - begin)]
        if block >= 0:
            free_block(pool, meta, c, counters[c, COUNTER_BLOCK_SIZE], block)
    remove_record(table, slots, slot)
    unlink(slots, meta, META_NEWEST_SLOT, slot)
    following, previous = slots[slot, SLOT_NEXT], slots[slot, SLOT_PREVIOUS]
    if following >= 0:
        slots[following, SLOT_PREVIOUS] = previous
    if previous >= 0:
        slots[previous, SLOT_NEXT] = following
    else:
        users[user, FIRST_SLOT] = following
    slots[slot, :] = -1
    slots[slot, SLOT_NEXT] = meta[META_FREE_SLOT]
    meta[META_FREE_SLOT] = slot
    meta[META_FREE_SLOTS] += 1
