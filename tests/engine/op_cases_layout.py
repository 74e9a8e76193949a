"""Cases of operators that move, select and make elements, where every row stays with its candidate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rerank_engine.graph import DTYPES

Case = Callable[[Any], None]

SIZES = (1, 3, 5, 15, 16, 17, 31, 33, 63, 65)
SOME = ("float32", "int64", "uint8", "bool")
WIDTHS = ("bool", "int16", "float32", "float64")
"""What only copies cares for the number of bytes: a dtype for each."""


def _reshape(b: Any) -> None:
    for dtype in DTYPES:
        x = b.input(dtype, "N", 12)
        b.output(b.node("Reshape", x, shape=("N", 3, 4)))
        b.output(b.node("Reshape", x, shape=(("N", 3), 4)))
        b.output(b.node("Reshape", b.node("Reshape", x, shape=(("N", 12),)), shape=("N", 2, 6)))
        b.output(b.node("Reshape", b.input(dtype, 2, 3), shape=(6, 1)))
        b.output(b.node("Reshape", b.input(dtype, 1), shape=()))
        b.output(b.node("Reshape", b.constant(np.arange(6) % 2, dtype), shape=(3, 2)))


def _transpose(b: Any) -> None:
    for dtype in WIDTHS:
        x = b.input(dtype, "N", 3, 4, 5)
        for perm in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1), (0, 2, 3, 1)):
            b.output(b.node("Transpose", x, perm=perm))
        b.output(b.node("Transpose", b.input(dtype, ("N", 2), 3, 17), perm=(0, 2, 1)))
        b.output(b.node("Transpose", b.input(dtype, 3, 5, 2), perm=(2, 0, 1)))
        b.output(b.node("Transpose", b.input(dtype, "N"), perm=(0,)), b.node("Transpose", b.input(dtype), perm=()))
        b.output(b.node("Transpose", b.input(dtype, "N", 3, 0), perm=(0, 2, 1)))
    for run in SIZES:
        b.output(b.node("Transpose", b.input("float32", "N", 2, 3, run), perm=(0, 2, 1, 3)))


def _concat(b: Any) -> None:
    for dtype in SOME:
        parts = [b.input(dtype, "N", size) for size in (*SIZES, 0, 200)]
        b.output(b.node("Concat", *parts, axis=1), b.node("Concat", parts[3], axis=-1))
        b.output(b.node("Concat", parts[2], parts[2], parts[1], axis=1))
    for dtype in WIDTHS:
        b.output(b.node("Concat", b.input(dtype, "N", 2, 3), b.input(dtype, "N", 5, 3), axis=1))
        b.output(b.node("Concat", b.input(dtype, "N", 2, 3), b.input(dtype, "N", 2, 4), axis=2))
        b.output(b.node("Concat", b.input(dtype, ("N", 2), 3), b.input(dtype, ("N", 2), 1), axis=-1))
        b.output(b.node("Concat", b.input(dtype, 3, 2), b.constant(np.ones((1, 2)), dtype), axis=0))


def _slice(b: Any) -> None:
    for dtype in ("float32", "int64"):
        x = b.input(dtype, "N", 65)
        for start, stop in ((0, 65), (0, 0), (65, 65), (1, 2), (3, 20), (16, 64), (64, 65), (-3, -1), (-1, 2**62)):
            b.output(b.node("Slice", x, axis=1, start=start, stop=stop))
    for dtype in WIDTHS:
        y = b.input(dtype, "N", 4, 5, 3)
        b.output(*(b.node("Slice", y, axis=axis, start=1, stop=3) for axis in (1, 2, -1)))
        b.output(*(b.node("Slice", y, axis=axis, start=0, stop=3, step=2) for axis in (1, 2, 3)))
        b.output(*(b.node("Slice", y, axis=axis, start=2**62, stop=-(2**62), step=-1) for axis in (1, 2, 3)))
        b.output(b.node("Slice", y, axis=2, start=4, stop=0, step=-3))
        b.output(b.node("Slice", b.input(dtype, ("N", 3), 5), axis=1, start=2, stop=4))
        b.output(b.node("Slice", b.input(dtype, 7, 2), axis=0, start=2, stop=6))


def _gather(b: Any) -> None:
    for dtype in WIDTHS:
        for ids in ("int32", "int64"):
            b.output(b.node("Gather", b.input(dtype, 11), b.input(ids, "N", 5, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 2, 3), b.input(ids, "N", 3, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.input(ids, 4, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.input(ids, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 0), b.input(ids, "N", domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.constant([-1, 0, -11, 10], ids)))
    for ids in ("int32", "int64"):
        for width in (1, 17, 300):
            b.output(b.node("Gather", b.input("float32", 11, width), b.input(ids, "N", domain="11")))
        table, wild = b.input("float32", 11, 3), b.input(ids, "N", 4)
        b.output(b.node("Gather", table, wild, unknown_row=7))
    for dtype in SOME:
        x = b.input(dtype, "N", 6, 5)
        for axis in (1, 2, -1):
            b.output(b.node("Gather", x, b.constant([4, 0, -1, 2], "int64"), axis=axis))
            b.output(b.node("Gather", x, b.input("int32", 2, 3, domain="5"), axis=axis))
            b.output(b.node("Gather", x, b.input("int64", domain="5"), axis=axis))
            b.output(b.node("Gather", x, b.input("int64", 3), axis=axis, unknown_row=1))
            b.output(b.node("Gather", x, b.input("int64", 0), axis=axis))
        b.output(b.node("Gather", b.input(dtype, 3, 6, 4), b.input("int64", 2, 2, domain="6"), axis=1))


def _gather_nd(b: Any) -> None:
    for dtype in SOME:
        for ids in ("int32", "int64"):
            table = b.input(dtype, 4, 5, 17)
            for depth in (1, 2):
                b.output(b.node("GatherND", table, b.input(ids, "N", depth, domain="4")))
                b.output(b.node("GatherND", table, b.input(ids, "N", 3, depth, domain="4")))
            b.output(b.node("GatherND", table, b.input(ids, depth, domain="4")))
            b.output(b.node("GatherND", table, b.constant([[-1, 4, 0], [3, -5, -17]], ids)))
            rows = b.input(dtype, "N", 6, 4)
            b.output(b.node("GatherND", rows, b.input(ids, "N", 1, domain="6"), batch_dims=1))
            b.output(b.node("GatherND", rows, b.input(ids, "N", 3, 2, domain="4"), batch_dims=1))
            b.output(b.node("GatherND", rows, b.input(ids, "N", 6, 1, domain="4"), batch_dims=2))
        b.output(b.node("GatherND", b.input(dtype, "N", 3), b.input("int64", "N", 5, 0), batch_dims=1))
        b.output(b.node("GatherND", b.input(dtype, 3, 0), b.input("int64", "N", 1, domain="3")))


def _gather_elements(b: Any) -> None:
    for dtype in WIDTHS:
        for ids in ("int32", "int64"):
            x = b.input(dtype, "N", 6, 5)
            b.output(b.node("GatherElements", x, b.input(ids, "N", 3, 5, domain="6"), axis=1))
            b.output(b.node("GatherElements", x, b.input(ids, "N", 2, 9, domain="5"), axis=-1))
            b.output(b.node("GatherElements", b.input(dtype, 4, 3), b.input(ids, 7, 2, domain="4"), axis=0))
        b.output(b.node("GatherElements", b.input(dtype, 3), b.constant([-1, 0, 2, -3], "int64")))
        b.output(b.node("GatherElements", b.input(dtype, "N", 3), b.input("int64", "N", 0), axis=1))


def _reductions(dtype: str) -> tuple[str, ...]:
    return ("none",) if dtype == "bool" else ("none", "add", "mul", "max", "min")


def _scatter_elements(b: Any) -> None:
    for dtype in DTYPES:
        for reduction in _reductions(dtype):
            # Of many ids for few places several are equal: the order counts.
            x = b.input(dtype, "N", 6, 5, domain="plain")
            ids, updates = b.input("int64", "N", 6, 5, domain="5"), b.input(dtype, "N", 6, 5, domain="plain")
            b.output(b.node("ScatterElements", x, ids, updates, axis=2, reduction=reduction))
        few = b.input("int32", "N", 2, 3, domain="6")
        b.output(b.node("ScatterElements", x, few, b.input(dtype, "N", 2, 3), axis=1))
        b.output(b.node("ScatterElements", b.input(dtype, 3), b.constant([-1, 0, 0], "int64"), b.input(dtype, 3)))
    for reduction in ("max", "min"):
        x, updates = b.input("float32", "N", 4), b.input("float32", "N", 4)
        ids = b.input("int64", "N", 4, domain="4")
        b.output(b.node("ScatterElements", x, ids, updates, axis=1, reduction=reduction))


def _scatter_nd(b: Any) -> None:
    for dtype in DTYPES:
        for reduction in _reductions(dtype):
            data, updates = (b.input(dtype, *shape, domain="plain") for shape in ((5, 4, 19), (6, 3, 19)))
            ids = b.input("int64", 6, 3, 2, domain="4")
            b.output(b.node("ScatterND", data, ids, updates, reduction=reduction))
        ids = b.constant([[-1], [0], [-1]], "int32")
        b.output(b.node("ScatterND", b.input(dtype, 3, 4), ids, b.input(dtype, 3, 4)))
        b.output(
            b.node("ScatterND", b.input(dtype, 2, 3), b.constant(np.zeros((4, 0)), "int64"), b.input(dtype, 4, 2, 3))
        )
    for reduction in ("max", "min"):
        data, updates = b.input("float32", 3, 17), b.input("float32", 9, 17)
        b.output(b.node("ScatterND", data, b.input("int64", 9, 1, domain="3"), updates, reduction=reduction))


def _bag_reduce(b: Any) -> None:
    offsets = b.constant([0, 0, 4, 5, 5, 9], "int64")
    # A bag for each candidate: offsets 0, 3, 6, ...
    starts = b.node("Range", count=("N+1",), step=3, dtype="int32")
    for mode in ("sum", "mean", "max"):
        for width in (1, 3, 17, 65):
            rows = b.input("float32", 9, width, domain="plain")
            b.output(b.node("BagReduce", rows, offsets, mode=mode, empty="identity"))
            b.output(b.node("BagReduce", rows, offsets, b.input("bool", 9), mode=mode))
        b.output(b.node("BagReduce", b.input("float64", 9, 21, domain="plain"), offsets, mode=mode))
        b.output(b.node("BagReduce", b.input("float32", 9, 2, 3), offsets, mode=mode))
        b.output(b.node("BagReduce", b.input("float32", ("N", 3), 5, domain="plain"), starts, mode=mode))
    rows = b.input("float32", 6, 3)
    b.output(b.node("BagReduce", rows, b.constant([1, 3, 6], "int64"), mode="max"))
    b.output(b.node("BagReduce", rows, b.constant([2], "int64")))
    b.output(b.node("BagReduce", b.input("float32", 0, 3), b.constant([0, 0], "int64"), mode="mean"))


def _range(b: Any) -> None:
    for dtype in ("int32", "int64"):
        b.output(b.node("Range", count=(7,), start=3, step=-2, dtype=dtype), b.node("Range", count=(0,), dtype=dtype))
        # What a candidate's own number picks is the candidate again.
        b.output(b.node("Gather", b.input("float32", "N", 3), b.node("Range", count=("N",), dtype=dtype)))


def _dimensions(b: Any) -> None:
    b.output(b.node("Reshape", b.input("float32", "N"), shape=("N", 1)))
    for dtype in ("int32", "int64"):
        b.output(b.node("Dimensions", entries=(3, 4), dtype=dtype))
        one, count, more = (
            b.node("Dimensions", entries=entries, dtype=dtype) for entries in ((1, 0), ("N", "2*N"), ("N+1", "2*N"))
        )
        b.output(b.node("Equal", b.node("Add", one, count), more))
        scalar = b.node("Dimensions", entries=("N-1",), is_scalar=1, dtype=dtype)
        b.output(b.node("Less", scalar, more))


CASES: dict[str, Case] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "BagReduce": _bag_reduce,
    "Range": _range,
    "Dimensions": _dimensions,
}

# Sums and products of a few numbers lose what cancels.
TOLERANCES = {
    "ScatterElements": (2e-6, 1e-5),
    "ScatterND": (2e-6, 1e-5),
    "BagReduce": (1e-6, 1e-5),
}
