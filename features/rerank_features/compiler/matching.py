"""Values in common: of candidates with one entry, or with each other. The inner loops run over candidates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import ENTRY_CELLS, ENTRY_ITEM, ITEM_KEY
from rerank_features.compiler.native import compiled

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]


@compiled
def gather_candidates(rows: Rows, items: Ints, column: int, width: int, words: Ints) -> None:
    """Values of the candidates' field, (width, N): the first value of each, then the second of each, and so on."""
    for j in range(width):
        place = words[j * rows.size : (j + 1) * rows.size]
        for n in range(rows.size):
            place[n] = items[rows[n], column + j]


@compiled
def gather_entries(listed: Ints, items: Ints, chosen: Ints, column: int, width: int, words: Ints) -> None:
    """Values of the entries' field, (T, width): those of the first entry, then those of the second; 0 for none."""
    for i in range(chosen.size):
        row = listed[chosen[i], ENTRY_CELLS]
        for j in range(width):
            if column == ITEM_KEY:
                words[i * width + j] = listed[chosen[i], ENTRY_ITEM] if j == 0 else 0
            else:
                words[i * width + j] = items[row, column + j] if row >= 0 else 0


@compiled
def mark_sharing(candidates: Ints, values: Ints, flags: Ints) -> None:
    """1 for each candidate that has one of the values, else 0.

    Parameters
    ----------
    candidates
        (width, N), as :func:`gather_candidates` writes them.
    values
        (width,), zeros behind the last.
    flags
        (N,) output.
    """
    count = flags.size
    first = candidates[:count]
    for n in range(count):
        flags[n] = (first[n] == values[0]) & (values[0] != 0)
    for j in range(values.size):
        word = values[j]
        if word == 0:
            break
        for k in range(j == 0, values.size):
            plane = candidates[k * count : (k + 1) * count]
            for n in range(count):
                flags[n] |= plane[n] == word


@compiled
def list_share(rows: Rows, items: Ints, field: int, width: int, scratch: Ints, out: Floats) -> None:
    """Share of the other candidates that have a value of a field in common with the candidate.

    Parameters
    ----------
    scratch
        Room for ``(width + 1) * N + width`` integers.
    """
    count = rows.size
    words, flags = scratch[: width * count], scratch[width * count : (width + 1) * count]
    own = scratch[(width + 1) * count : (width + 1) * count + width]
    gather_candidates(rows, items, field, width, words)
    for n in range(count):
        for j in range(width):
            own[j] = words[j * count + n]
        mark_sharing(words, own, flags)
        found = 0
        for m in range(count):
            found += flags[m]
        found -= flags[n]
        out[n] = found / (count - 1) if count > 1 else 0.0
