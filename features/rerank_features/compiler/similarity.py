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
from rerank_features.compiler.native import compiled, square_root

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_VECTOR = 16
"""Single-precision numbers of the widest vectors."""


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
def padded_length(count: int) -> int:
    """Candidates in whole vectors: loops over them have no remainder."""
    return (count + _VECTOR - 1) // _VECTOR * _VECTOR


@compiled
def turn_candidates(rows: Rows, embeddings: Singles, turned: Singles) -> None:
    """Embeddings of the candidates, (E, padded N): sums over elements then run for many candidates at once."""
    padded = padded_length(rows.size)
    for e in range(embeddings.shape[1]):
        line = turned[e * padded : (e + 1) * padded]
        for n in range(rows.size):
            line[n] = embeddings[rows[n], e]
        for n in range(rows.size, padded):
            line[n] = 0.0


@compiled
def _against_one(query: Floats, turned: Singles, column: Floats) -> None:
    """Dot products of every candidate with one vector."""
    padded = padded_length(column.size)
    for e in range(query.size):
        line, factor = turned[e * padded : (e + 1) * padded], query[e]
        for n in range(column.size):
            column[n] += factor * line[n]


@compiled
def _largest(chosen: Ints, weights: Floats, embeddings: Singles, turned: Singles, column: Floats) -> None:
    """Maximum over the entries of the weighted dot product with each candidate."""
    padded, dim = padded_length(column.size), embeddings.shape[1]
    products = turned[padded * dim : padded * (dim + 1)]
    whole = dim - dim % 4
    for t in range(chosen.size):
        vector = embeddings[chosen[t]]
        for n in range(padded):
            products[n] = 0.0
        for e in range(0, whole, 4):
            a, b, c, d = vector[e], vector[e + 1], vector[e + 2], vector[e + 3]
            first, second = turned[e * padded : (e + 1) * padded], turned[(e + 1) * padded : (e + 2) * padded]
            third, fourth = turned[(e + 2) * padded : (e + 3) * padded], turned[(e + 3) * padded : (e + 4) * padded]
            for n in range(padded):
                products[n] += (a * first[n] + b * second[n]) + (c * third[n] + d * fourth[n])
        for e in range(whole, dim):
            a, first = vector[e], turned[e * padded : (e + 1) * padded]
            for n in range(padded):
                products[n] += a * first[n]
        weight = weights[t]
        for n in range(column.size):
            product = products[n] * weight
            column[n] = product if t == 0 or product > column[n] else column[n]


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
    turned: Singles,
    column: Floats,
) -> None:
    """Write one value per candidate; entries and candidates without an embedding give 0.

    Because the dot product is linear, the mean over the entries is one product with the entries' mean.

    Parameters
    ----------
    listed, values
        The entries, newest first, as :func:`~rerank_features.compiler.sequences.list_entries` writes them.
    chosen, scratch
        Room for as many integers as there are entries; one number for each entry and each embedding element.
    turned
        What :func:`turn_candidates` wrote, and room for one more line.
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
        _largest(chosen[:count], weights[:count], embeddings, turned, column)
    elif total > 0.0:
        query = scratch[values.size : values.size + embeddings.shape[1]]
        query[:] = 0.0
        for t in range(count):
            vector, weight = embeddings[chosen[t]], weights[t]
            for e in range(query.size):
                query[e] += weight * vector[e]
        if reduce != LAST_OF:
            for e in range(query.size):
                query[e] /= total
        _against_one(query, turned, column)
    for n in range(rows.size):
        if items[rows[n], ITEM_HAS_EMBEDDING] == 0:
            column[n] = 0.0
        elif cosine:
            column[n] *= item_numbers[rows[n], ITEM_INVERSE_NORM]
