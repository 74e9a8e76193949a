"""Embedding similarity between candidates and the entries of a sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rerank_features.compiler import (
    ENTRY_CELLS,
    ITEM_HAS_EMBEDDING,
    ITEM_INVERSE_NORM,
    LAST_OF,
    MAX_OF,
)
from rerank_features.compiler.native import compiled, matrix, square_root

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@compiled
def store_inverse_norms(embeddings: Singles, items: Ints, item_numbers: Floats, rows: Rows) -> None:
    """1 / Euclidean length of each row's embedding, 0 for a zero or missing one."""
    for i in range(rows.size):
        row = rows[i]
        square = 0.0
        for e in range(embeddings.shape[1]):
            square += np.float64(embeddings[row, e]) ** 2
        known = items[row, ITEM_HAS_EMBEDDING] != 0 and square > 0.0
        item_numbers[row, ITEM_INVERSE_NORM] = 1.0 / square_root(square) if known else 0.0


@compiled
def _against_one(rows: Rows, query: Floats, embeddings: Singles, column: Floats) -> None:
    """Dot products with one vector: four partial sums that overlap, in an order fixed by the code."""
    dim = query.size
    whole = dim - dim % 4
    for n in range(rows.size):
        row = rows[n]
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for e in range(0, whole, 4):
            a += query[e] * embeddings[row, e]
            b += query[e + 1] * embeddings[row, e + 1]
            c += query[e + 2] * embeddings[row, e + 2]
            d += query[e + 3] * embeddings[row, e + 3]
        for e in range(whole, dim):
            a += query[e] * embeddings[row, e]
        column[n] = (a + b) + (c + d)


@compiled
def _largest(rows: Rows, chosen: Ints, weights: Floats, embeddings: Singles, scratch: Singles, column: Floats) -> None:
    """Maximum over the entries; the inner loop runs over entries, so it vectorises without reordering sums."""
    count, dim = chosen.size, embeddings.shape[1]
    turned = matrix(scratch, dim, count)
    for t in range(count):
        for e in range(dim):
            turned[e, t] = embeddings[chosen[t], e]
    products = scratch[dim * count : (dim + 1) * count]
    whole = dim - dim % 4
    for n in range(rows.size):
        vector = embeddings[rows[n]]
        products[:] = np.float32(0.0)
        for e in range(0, whole, 4):
            a, b, c, d = vector[e], vector[e + 1], vector[e + 2], vector[e + 3]
            first, second, third, fourth = turned[e], turned[e + 1], turned[e + 2], turned[e + 3]
            for t in range(count):
                products[t] += (a * first[t] + b * second[t]) + (c * third[t] + d * fourth[t])
        for e in range(whole, dim):
            a, first = vector[e], turned[e]
            for t in range(count):
                products[t] += a * first[t]
        best = products[0] * weights[0]
        for t in range(1, count):
            product = products[t] * weights[t]
            if product > best:
                best = product
        column[n] = best


@compiled
def similarity(
    rows: Rows,
    listed: Ints,
    values: Floats,
    items: Ints,
    item_numbers: Floats,
    embeddings: Singles,
    reduce: int,
    cosine: bool,
    weighted: bool,
    chosen: Ints,
    scratch: Floats,
    scratch_singles: Singles,
    column: Floats,
) -> None:
    """Write one value per candidate; entries and candidates without an embedding give 0.

    Because the dot product is linear, the mean over the entries is one product with the entries' mean.

    Parameters
    ----------
    listed, values
        The entries, newest first, as :func:`~rerank_features.compiler.sequences.list_entries` writes them.
    chosen, scratch, scratch_singles
        Room for as many integers as there are entries; one number for each entry and each embedding element; one
        more row than the embedding has elements, of one number an entry.
    """
    weights = scratch[: values.size]
    count = 0
    for t in range(values.size):
        row = listed[t, ENTRY_CELLS]
        if row >= 0 and items[row, ITEM_HAS_EMBEDDING] != 0:
            chosen[count] = row
            weights[count] = values[t] if weighted else 1.0
            count += 1
            if reduce == LAST_OF:
                break
    column[:] = 0.0
    if count == 0:
        return
    total = 0.0
    for t in range(count):
        total += abs(weights[t])
        if cosine:
            weights[t] *= item_numbers[chosen[t], ITEM_INVERSE_NORM]
    if reduce == MAX_OF:
        _largest(rows, chosen[:count], weights[:count], embeddings, scratch_singles, column)
    elif total > 0.0:
        query = scratch[values.size : values.size + embeddings.shape[1]]
        query[:] = 0.0
        for t in range(count):
            for e in range(query.size):
                query[e] += weights[t] * embeddings[chosen[t], e]
        if reduce != LAST_OF:
            for e in range(query.size):
                query[e] /= total
        _against_one(rows, query, embeddings, column)
    for n in range(rows.size):
        if items[rows[n], ITEM_HAS_EMBEDDING] == 0:
            column[n] = 0.0
        elif cosine:
            column[n] *= item_numbers[rows[n], ITEM_INVERSE_NORM]
