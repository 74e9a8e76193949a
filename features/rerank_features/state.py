"""The state of a pipeline: flat arrays, the names behind their rows, growth and eviction.

Items and users are remembered up to the spec's limits; the least recently used go first. All counters live in
one table of slots, one for each (user, key, value), whose windows are blocks of one pool; a user's slots form a
list, so that forgetting a user frees and overwrites exactly what is theirs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import EventError, InputError
from rerank_features import compiler as code
from rerank_features.compiler.machine import functions
from rerank_features.compiler.program import Program
from rerank_features.events import Item
from rerank_features.hashing import ITEM_FIELD, signed_hash, words_of
from rerank_features.snapshot import load_row, save_row
from rerank_features.spec import FeatureSpec

_Number = TypeVar("_Number", np.int64, np.float64, np.float32)

ACTIVE_USERS = 256
"""Users whose states lie ready in arrays, in one pipeline."""

_LINE_BYTES = 64
_FIRST_USERS = 4
_FIRST_ITEMS = 128
_FIRST_SLOTS = 64
_FIRST_CELLS = 1024
_CACHED_WORDS = 65_536


class FlatState:
    """Arrays and names of one pipeline; :mod:`rerank_features.compiler` says what the columns mean.

    Parameters
    ----------
    spec, program
        The spec and what it compiles to.
    active_users
        So many users have rows, the most recently used; the state of others is kept as compressed bytes.

    Examples
    --------
    >>> from rerank_features.compiler.program import compile_spec
    >>> spec = FeatureSpec(name="feed")
    >>> state = FlatState(spec, compile_spec(spec))
    >>> state.rows_of([Item(id="a"), Item(id="b"), Item(id="a")]).tolist()
    [0, 1, 0]
    """

    def __init__(self, spec: FeatureSpec, program: Program, active_users: int = ACTIVE_USERS) -> None:
        self._active_users = active_users
        self.spec = spec
        self.program = program
        self.code = functions()
        self.spec_digest = bytes.fromhex(spec.content_hash()[:32])
        self._cells = np.zeros(code.TABLE_CELLS, np.int64)
        self.address = self._cells.ctypes.data
        self._cells[code.AT_GAP_MS], self._cells[code.AT_SLOT_COLUMNS] = program.gap_ms, program.slot_columns
        self._words: dict[tuple[str, str], int] = {}
        self._categorical = [(field, program.item_columns[field][0]) for field in spec.items.categorical]
        self._multi = [(field, *program.item_columns[field]) for field in spec.items.multi_categorical]
        self._text = [(field, *program.item_columns[field]) for field in spec.items.text]
        self.reset()

    def reset(self) -> None:
        """Back to the empty state."""
        spec, program = self.spec, self.program
        user_count, item_count = 1 + min(_FIRST_USERS, spec.max_users), min(_FIRST_ITEMS, spec.max_items)
        counters = program.counters.shape[0]
        self.user_rows: dict[str, int] = {}  # in the order of use, the least recent first
        self.parked: dict[str, bytes] = {}  # saved states of users who are not active, the least recent first
        self.user_count = 1 + code.EVERYONE
        self._free_users: list[int] = []
        self.users = _new_users(user_count, code.USER_SEQUENCES + 2 * program.sequences.shape[0])
        self.entries = np.zeros((user_count, code.ENTRY_CELLS * program.entry_count), np.int64)
        self.values = np.zeros((user_count, program.entry_count), np.float64)
        self.slots = _aligned((max(_FIRST_SLOTS, 2 * int(program.limits[0])), program.slot_width), np.int64, fill=-1)
        self.table = np.zeros(_table_size(self.slots.shape[0]), np.int64)
        self.pool = np.zeros(max(_FIRST_CELLS, 2 * int(program.limits[1])), np.int64)
        self.meta = np.full(code.META_FREE_BLOCKS + counters, -1, np.int64)
        counted = [
            code.META_SLOTS,
            code.META_FREE_SLOTS,
            code.META_POOL,
            code.META_TICK,
            code.META_EVICTED,
            code.META_USES,
        ]
        self.meta[counted] = 0
        self.item_rows: dict[str, int] = {}
        self._item_at: list[Item] = []
        self._row_of_object: dict[int, int] = {}
        self._last: tuple[Sequence[Item], array[int]] | None = None
        self.items = np.zeros((item_count, program.item_width), np.int64)
        self.item_table = np.zeros(_table_size(item_count), np.int64)
        self.item_numbers = np.zeros((item_count, code.ITEM_NUMERIC + len(spec.items.numeric)), np.float64)
        self.embeddings = np.zeros((item_count, spec.items.embedding_dim), np.float32)
        self.scratch_ints = np.zeros(0, np.int64)
        self.scratch_floats = np.zeros(0, np.float64)
        self.scratch_singles = np.zeros(0, np.float32)
        self.bind()

    def bind(self) -> None:
        """Tell the machine code where the arrays lie; after any of them was replaced."""
        for cell, name in zip(range(0, code.AT_NUMBERS, 3), code.ARRAYS, strict=True):
            array = getattr(self.program if hasattr(self.program, name) else self, name)
            self._cells[cell] = array.ctypes.data
            self._cells[cell + 1 : cell + 1 + array.ndim] = array.shape

    # ---- users

    def user_row(self, user: str) -> int:
        """Row of a user, the most recently used from now on; a new one may push out the least recently used."""
        row = self.user_rows.pop(user, -1)
        if row < 0:
            parked = self.parked.pop(user, None)
            if parked is None and len(self.user_rows) + len(self.parked) >= self.spec.max_users:
                self.forget(next(iter(self.parked or self.user_rows)))
            row = self._new_row()
            if parked is not None:
                load_row(self, row, parked)
        self.user_rows[user] = row
        return row

    def known_user_row(self, user: str) -> int:
        """Row of a user, who becomes the most recently used, or -1 for one without a state."""
        return self.user_row(user) if self.knows(user) else -1

    def knows(self, user: str) -> bool:
        """Whether there is a state of a user."""
        return user in self.user_rows or user in self.parked

    def saved(self, user: str) -> bytes | None:
        """The state of a user as bytes, None for a user without one."""
        row = self.user_rows.get(user, -1)
        return save_row(self, row) if row >= 0 else self.parked.get(user)

    def forget(self, user: str) -> None:
        """Free and overwrite everything that belongs to a user."""
        self.parked.pop(user, None)
        row = self.user_rows.pop(user, -1)
        if row >= 0:
            self._free_row(row)

    def _new_row(self) -> int:
        """A row that is as new: a free one, a further one, or that of the least recently used user."""
        if len(self.user_rows) >= self._active_users:
            user, row = next(iter(self.user_rows.items()))
            self.parked[user] = save_row(self, row)
            del self.user_rows[user]
            self._free_row(row)
        if self._free_users:
            return self._free_users.pop()
        if self.user_count == self.users.shape[0]:
            self._grow_users()
        self.user_count += 1
        return self.user_count - 1

    def _free_row(self, row: int) -> None:
        self.code.forget_user(self.address, row)
        self._free_users.append(row)

    def _grow_users(self) -> None:
        old = self.users.shape[0]
        new = min(2 * old, 1 + self.spec.max_users)
        users = _new_users(new, self.users.shape[1])
        users[:old] = self.users
        self.users = users
        self.entries = _longer(self.entries, new)
        self.values = _longer(self.values, new)
        self.bind()

    def wipe_scratch(self) -> None:
        """Overwrite what the last emissions left behind."""
        for scratch in (self.scratch_ints, self.scratch_floats, self.scratch_singles):
            scratch.fill(0)

    def grow_scratch(self, needs: Sequence[int]) -> None:
        """Make room for an emission that takes so many integers, floats and single-precision floats."""
        for name, count in zip(("scratch_ints", "scratch_floats", "scratch_singles"), needs, strict=True):
            if getattr(self, name).size < count:
                setattr(self, name, np.zeros(_round_up(count), getattr(self, name).dtype))
        self.bind()

    def grow_counters(self, slots: int | None = None, cells: int | None = None) -> None:
        """Double slots and pool until there is room: for one more event, or for so many slots and cells."""
        slots = int(self.program.limits[0]) if slots is None else slots
        cells = int(self.program.limits[1]) if cells is None else cells
        used = int(self.meta[code.META_SLOTS] - self.meta[code.META_FREE_SLOTS])
        wanted = self.slots.shape[0]
        while wanted - used < slots:
            wanted *= 2
        if wanted > self.slots.shape[0]:
            self.slots = _longer(self.slots, wanted, fill=-1)
            self.table = np.zeros(_table_size(wanted), np.int64)
            self.bind()
            self.code.fill_slot_table(self.address)
        wanted = self.pool.size
        while wanted - self.meta[code.META_POOL] < cells:
            wanted *= 2
        if wanted > self.pool.size:
            self.pool = _longer(self.pool, wanted)
            self.bind()

    # ---- items

    def rows_of(self, items: Sequence[Item]) -> array[int]:
        """(N,) 32-bit rows of items, whose fields are stored where they are new or have changed.

        The same Item object is recognised by identity; the state keeps it alive, so that its identity stays
        its own.

        Raises
        ------
        EventError
            An item's embedding has the wrong length. Nothing is stored then.
        InputError
            There are more different items than the spec remembers. Nothing is stored then.
        """
        if self._last is not None and self._last[0] is items:
            return self._last[1]
        try:
            rows = array("i", map(self._row_of_object.__getitem__, map(id, items)))
        except KeyError:  # an object that was not met before
            self._remember(items, list(map(self._row_of_object.get, map(id, items))))
            rows = array("i", [self.item_rows[item.id] for item in items])
        if isinstance(items, tuple):  # a list might have other content the next time
            self._last = items, rows
        return rows

    def touch(self, rows: array[int]) -> None:
        """Mark item rows as used, the last of them most recently."""
        self.code.touch_rows(self.address, *rows.buffer_info())

    def _remember(self, items: Sequence[Item], found: Sequence[int | None]) -> None:
        """Store the items that were not ``found`` by identity; none of the items is pushed out for another."""
        changed: dict[str, tuple[Item, list[int], list[float], Sequence[float]]] = {}
        kept: set[int] = set()
        same: list[tuple[int, Item]] = []
        for item, row in zip(items, found, strict=True):
            known = self.item_rows.get(item.id) if row is None else row
            if known is not None:
                kept.add(known)
                if row is None and item.id not in changed and item.is_bare:
                    continue  # only an id: what is known of the item stays
                if item.id not in changed and (row is not None or _equal(self._item_at[known], item)):
                    same.append((known, item))
                    continue
            changed[item.id] = (item, *self._parse(item))
        new = [name for name in changed if name not in self.item_rows]
        if len(kept) + len(new) > self.spec.max_items:
            raise InputError(
                f"{len(kept) + len(new)} different items at once, but the spec {self.spec.name!r} remembers "
                f"max_items = {self.spec.max_items}; raise max_items or send fewer candidates"
            )
        self._last = None
        self.touch(array("i", sorted(kept)))
        for row, item in same:
            self._identify(row, item)
        if changed:
            self._grow_items(len(self._item_at) + len(new))
            for name in new:
                self._add_row(name, changed[name][0])
            rows = np.array([self.item_rows[name] for name in changed], np.int32)
            for row, (item, *_) in zip(rows.tolist(), changed.values(), strict=True):
                self._identify(row, item)
            self._store(rows, [part[1:] for part in changed.values()])

    def _parse(self, item: Item) -> tuple[list[int], list[float], Sequence[float]]:
        """Hashed words by column, numbers by column, embedding or nothing."""
        items, embedding = self.spec.items, item.embedding
        if embedding is not None and items.embedding_dim and len(embedding) != items.embedding_dim:
            raise EventError(
                f"item {item.id!r}: embedding of length {len(embedding)}, expected items.embedding_dim = "
                f"{items.embedding_dim} of the spec {self.spec.name!r}; send that many numbers, or none"
            )
        words = [0] * (self.program.item_width - code.ITEM_HAS_EMBEDDING)
        words[0] = int(embedding is not None and items.embedding_dim > 0)
        for field, column in self._categorical:
            if field in item.categorical:
                words[column - code.ITEM_HAS_EMBEDDING] = self.word(field, item.categorical[field])
        for field, column, width in self._multi:
            distinct = dict.fromkeys(item.multi_categorical.get(field, ()))
            for j, value in enumerate(list(distinct)[:width]):
                words[column - code.ITEM_HAS_EMBEDDING + j] = self.word(field, value)
        for field, column, width in self._text:
            for j, value in enumerate(words_of(item.categorical.get(field, ""))[:width]):
                words[column - code.ITEM_HAS_EMBEDDING + j] = self.word(field, value)
        numbers = [item.numeric.get(field, np.nan) for field in items.numeric]
        return words, numbers, embedding if embedding is not None and words[0] else ()

    def word(self, field: str, value: str) -> int:
        """Hash of a field's value, as the state's columns hold it."""
        word = self._words.get((field, value))
        if word is None:
            if len(self._words) >= _CACHED_WORDS:
                self._words.clear()
            word = self._words[field, value] = signed_hash(field, value)
        return word

    def match_words(self, context: str, field: str, width: int, text: str) -> list[int]:
        """Hashes of a context fact to compare with an item's field: its first words where it is text, else itself."""
        words = words_of(text)[:width] if context in self.spec.context.text else [text]
        return [self.word(field, word) for word in words]

    def _identify(self, row: int, item: Item) -> None:
        """Let this object stand for the row."""
        self._row_of_object.pop(id(self._item_at[row]), None)
        self._item_at[row] = item
        self._row_of_object[id(item)] = row

    def _add_row(self, name: str, item: Item) -> None:
        row = len(self._item_at)
        if row < self.spec.max_items:
            self._item_at.append(item)
        else:
            row = self.code.evict_oldest(self.address)
            del self.item_rows[self._item_at[row].id]
        self.code.add_row(self.address, row, item_key(name))
        self.item_rows[name] = row

    def _store(self, rows: NDArray[np.int32], parts: Sequence[tuple[list[int], list[float], Sequence[float]]]) -> None:
        self.items[rows, code.ITEM_HAS_EMBEDDING :] = [words for words, _, _ in parts]
        if self.spec.items.numeric:
            numbers = np.array([numbers for _, numbers, _ in parts], np.float64)
            self.item_numbers[rows, code.ITEM_NUMERIC :] = np.clip(numbers, -code.MAX_FLOAT32, code.MAX_FLOAT32)
        if self.spec.items.embedding_dim:
            nothing = (0.0,) * self.spec.items.embedding_dim
            embeddings = np.array([embedding or nothing for _, _, embedding in parts], np.float64)
            self.embeddings[rows] = np.clip(embeddings, -code.MAX_EMBEDDING, code.MAX_EMBEDDING)
            self.code.store_inverse_norms(self.address, rows.ctypes.data, rows.size)

    def _grow_items(self, wanted: int) -> None:
        wanted = min(wanted, self.spec.max_items)
        new = self.items.shape[0]
        while new < wanted:
            new = min(2 * new, self.spec.max_items)
        if new == self.items.shape[0]:
            return
        self.items = _longer(self.items, new)
        self.item_numbers = _longer(self.item_numbers, new)
        self.embeddings = _longer(self.embeddings, new)
        self.item_table = np.zeros(_table_size(new), np.int64)
        self.bind()
        self.code.fill_item_table(self.address, len(self._item_at))


def item_key(item: str) -> int:
    """Hashed id of an item that has no row, as the state's columns hold it.

    Examples
    --------
    >>> item_key("m1") == signed_hash("item", "m1")
    True
    """
    return signed_hash(ITEM_FIELD, item)


def as_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items as a tuple, checked to be items.

    Raises
    ------
    InputError
        One of them is no Item, or there is nothing to go through.
    """
    if not isinstance(items, Iterable):
        raise InputError(f"expected Items, got {type(items).__name__}; give a list of them")
    listed = tuple(items)
    for i, item in enumerate(listed):
        if not isinstance(item, Item):
            raise InputError(f"items[{i}]: expected an Item, got {type(item).__name__}; build an Item from it")
    return listed


def _equal(one: Item, other: Item) -> bool:
    return (
        one.embedding == other.embedding
        and one.numeric == other.numeric
        and one.categorical == other.categorical
        and one.multi_categorical == other.multi_categorical
    )


def _new_users(count: int, columns: int) -> NDArray[np.int64]:
    users = np.zeros((count, columns), np.int64)
    users[:, [code.NEWEST, code.FIRST_SLOT]] = -1
    return users


def _longer(array: NDArray[_Number], rows: int, fill: int = 0) -> NDArray[_Number]:
    longer: NDArray[_Number] = _aligned((rows, *array.shape[1:]), array.dtype, fill)
    longer[: array.shape[0]] = array
    return longer


def _aligned(shape: tuple[int, ...], dtype: Any, fill: int) -> NDArray[Any]:
    """An array that begins at a line of the cache."""
    size = np.dtype(dtype).itemsize
    room = np.full(math.prod(shape) + _LINE_BYTES // size, fill, dtype)
    first = -room.ctypes.data % _LINE_BYTES // size
    return room[first : first + math.prod(shape)].reshape(shape)


def _round_up(count: int) -> int:
    """A power of two, so that scratch grows seldom."""
    return 1 << max(10, (count - 1).bit_length())


def _table_size(records: int) -> int:
    """A power of two that keeps the table at most half full."""
    return 1 << max(4, (2 * records - 1).bit_length())
