"""Place values in one arena: two that are never alive at the same time may share bytes."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""

PADDING = 64
"""Bytes behind every buffer that a whole-vector load may touch without meaning."""

_PAGE = 4096


@dataclass(frozen=True)
class Lifetime:
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
