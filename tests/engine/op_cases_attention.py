"""Cases of Attention whose rows are independent: lengths around vectors and tiles, every kind of mask, every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Case = Callable[[Any], None]

INFINITY = float("inf")


def add_attention(
    b: Any,
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Sequence[Any],
    *,
    mask: Sequence[Any] | None = None,
    condition: Sequence[Any] | None = None,
    dtype: str = "float32",
    domain: str = "plain",
    **attributes: Any,
) -> str:
    """Add a node over inputs of these shapes, and make it an output."""
    names = [b.input(dtype, *shape, domain=domain) for shape in (queries, keys, values)]
    if mask is not None:
        names.append(b.input(dtype, *mask, domain="infinite"))
        attributes["has_mask"] = 1
    if condition is not None:
        names.append(b.input("bool", *condition))
        attributes.setdefault("condition", "keep")
    name = str(b.node("Attention", *names, **attributes))
    b.output(name)
    return name


def attention(b: Any) -> None:
    # One history for all candidates: their queries are the rows of one matrix.
    for length in (1, 15, 16, 17, 50, 131):
        add_attention(b, ("N", 1, 8), (8, length), (length, 8), scale=0.35)
    for columns in (1, 3, 16, 33, 70):
        add_attention(b, ("N", 5), (5, 9), (9, columns))
    for mask in ((9,), (), (1, 9), ("N", 1, 9), ("N", 1, 1), (1, 1, 1)):
        add_attention(b, ("N", 1, 4), (4, 9), (9, 4), mask=mask, scale=0.5)
        add_attention(b, ("N", 1, 4), (4, 9), (9, 4), condition=mask, fill=-1e9)
        add_attention(b, ("N", 1, 4), (4, 9), (9, 4), condition=mask, mask=mask, nan_to_zero=1)
    # Several queries a candidate, over a history that all share, or over its own.
    add_attention(b, ("N", 7, 4), (4, 9), (9, 5), mask=(7, 9))
    add_attention(b, ("N", 2, 7, 4), (2, 4, 9), (2, 9, 5), mask=("N", 1, 1, 9))
    add_attention(b, ("N", 3, 7, 4), ("N", 3, 4, 9), ("N", 3, 9, 5), mask=("N", 1, 7, 9), condition=(9,))
    add_attention(b, ("N", 1, 7, 4), ("N", 3, 4, 9), (1, 3, 9, 5))
    add_attention(b, ("N", 13, 1), ("N", 1, 2), ("N", 2, 1), condition=("N", 13, 2))
    add_attention(b, (3, 4), ("N", 4, 9), ("N", 9, 5))
    add_attention(b, (("N", 2), 3, 4), (("N", 2), 4, 9), (("N", 2), 9, 5))
    # Nothing that depends on a candidate.
    add_attention(b, (11, 4), (4, 6), (6, 3), mask=(11, 6))
    # Empty dimensions: no key gives zeros, no depth gives the mean of the values.
    add_attention(b, ("N", 2, 4), (4, 0), (0, 3))
    add_attention(b, ("N", 2, 0), (0, 5), (5, 3))
    add_attention(b, ("N", 2, 4), (4, 5), (5, 0))
    add_attention(b, ("N", 0, 4), (4, 5), (5, 2))
    # What is masked out altogether, NaN and infinities.
    hidden = b.constant(np.where(np.arange(30).reshape(5, 6) < 18, -INFINITY, 0.0))
    inputs = [b.input("float32", *shape, domain="plain") for shape in (("N", 5, 4), (4, 6), (6, 3))]
    b.output(b.node("Attention", *inputs, hidden, has_mask=1))
    b.output(b.node("Attention", *inputs, hidden, has_mask=1, nan_to_zero=1))
    shown = b.constant(np.arange(30).reshape(5, 6) >= 18, "bool")
    for fill in (-INFINITY, -3.4028234663852886e38, 0.0):
        b.output(b.node("Attention", *inputs, shown, condition="keep", fill=fill))
        b.output(b.node("Attention", *inputs, shown, condition="drop", fill=fill))
    for zero in (0, 1):
        add_attention(b, ("N", 6, 4), ("N", 4, 19), ("N", 19, 3), domain="infinite", nan_to_zero=zero)
    add_attention(b, ("N", 3, 4), (4, 21), (21, 5), mask=(3, 21), dtype="float64", scale=-1.5)
    add_attention(b, ("N", 1, 70), (70, 40), (40, 35), condition=("N", 1, 40), dtype="float64", fill=-1e300)


CASES: dict[str, Case] = {"Attention": attention}

# Relative and absolute: sums lose what cancels.
TOLERANCES = {"Attention": (2e-6, 1e-5)}
