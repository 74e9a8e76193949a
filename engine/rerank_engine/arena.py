"""The arena: its header, and places for values, of which two that are never alive at the same time may share bytes.

What does not depend on a named dimension has its place from the plan on. The rest is placed behind it when sizes are
known. Nothing here needs the graph, the operators or the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import Dim, product, resolve
from rerank_engine.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATUS_OFFSET, BAD_VALUE_OFFSET, REUSE_OFFSET, SIZES_OFFSET = 0, 8, 16, 24
"""Bytes into the arena's header: status (int64), the offending value (int64), whether what does not depend on the
candidate still stands from the last call (int64), then the sizes of the named dimensions, the places of the values
whose size is known only at run time, and the sizes in the last call (int64 each)."""

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""

PADDING = 64
"""Bytes behind every buffer that a whole-vector load may touch without meaning."""

_PAGE = 4096


class Lifetime(Record):
    """A buffer and when it is needed.

    Attributes
    ----------
    name
        Of the value.
    size_bytes
        Without padding.
    first, last
        Indices of the steps that write it first and read it last, both included.
    """

    name: str
    size_bytes: int
    first: int
    last: int


def round_up(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeros at an aligned address.

    >>> aligned_bytes(5).ctypes.data % ALIGNMENT
    0
    """
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """Where buffers of these bytes start when they lie side by side, each aligned, and where the last one ends.

    >>> offsets_of([10, 70, 3])
    [0, 64, 192, 256]
    """
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + round_up(size))
    return offsets


def joined_bytes(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """The bytes of arrays side by side, at :func:`offsets_of`.

    >>> joined_bytes([np.ones(2, np.uint8), np.ones(3, np.uint8)]).nonzero()[0].tolist()
    [0, 1, 64, 65, 66]
    """
    offsets = offsets_of([array.nbytes for array in arrays])
    joined = np.zeros(offsets[-1], np.uint8)
    for offset, array in zip(offsets, arrays, strict=False):
        joined[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return joined


def place(lifetimes: list[Lifetime], start: int) -> tuple[dict[str, int], int]:
    """Give each buffer an offset, largest first, at the lowest place where nothing alive lies.

    Parameters
    ----------
    lifetimes
        The buffers.
    start
        First free byte, a multiple of the alignment.

    Returns
    -------
    tuple
        Offset by name, and the end of the arena.

    Examples
    --------
    >>> place([Lifetime("a", 64, 0, 1), Lifetime("b", 64, 2, 3), Lifetime("c", 64, 1, 2)], 0)
    ({'a': 0, 'c': 128, 'b': 0}, 256)
    """
    placed: list[tuple[Lifetime, int, int]] = []
    offsets: dict[str, int] = {}
    end = start
    for lifetime in sorted(lifetimes, key=lambda one: (-one.size_bytes, one.first, one.name)):
        size = round_up(lifetime.size_bytes + PADDING)
        if size % _PAGE == 0:
            # Buffers a whole number of pages apart fall into the same cache sets.
            size += ALIGNMENT
        offset = start
        neighbours = sorted(
            (other_start, other_end)
            for other, other_start, other_end in placed
            if other.first <= lifetime.last and lifetime.first <= other.last
        )
        for other_start, other_end in neighbours:
            if offset + size <= other_start:
                break
            offset = max(offset, other_end)
        placed.append((lifetime, offset, offset + size))
        offsets[lifetime.name] = offset
        end = max(end, offset + size)
    return offsets, end


class DynamicBuffer(Record):
    """A buffer whose size is known only when the model runs.

    Attributes
    ----------
    name
        Of the value.
    size_bytes
        Over the named dimensions.
    first, last
        As in :class:`Lifetime`.
    """

    name: str
    size_bytes: int | Dim
    first: int
    last: int


def place_dynamic(
    buffers: Iterable[DynamicBuffer], fixed_bytes: int, capacity: dict[str, int]
) -> tuple[list[int], int]:
    """Place what has no fixed size, with room for ``capacity``, behind the fixed part.

    Returns
    -------
    tuple
        Offset of each buffer, in order, and the size of the whole arena in bytes.

    Examples
    --------
    >>> place_dynamic([DynamicBuffer("x", Dim("N", 4), 0, 1)], 128, {"N": 10})
    ([128], 256)
    """
    ordered = list(buffers)
    lifetimes = [
        Lifetime(str(index), largest_size(buffer.size_bytes, capacity), buffer.first, buffer.last)
        for index, buffer in enumerate(ordered)
    ]
    offsets, end = place(lifetimes, fixed_bytes)
    return [offsets[str(index)] for index in range(len(ordered))], -(-end // ALIGNMENT) * ALIGNMENT


def largest_size(size: int | Dim, capacity: Mapping[str, int]) -> int:
    """Largest value of a size up to the capacity: terms that are taken away count as zero.

    >>> largest_size(Dim("T") - Dim("N"), {"N": 128, "T": 128})
    128
    """
    if isinstance(size, int):
        return size
    return sum(
        resolve(product([coefficient, *(Dim(name) for name in names)]), capacity)
        for names, coefficient in size.terms
        if coefficient > 0
    )
