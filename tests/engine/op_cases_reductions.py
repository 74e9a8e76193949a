"""Cases of reductions, selections, scans and normalisations: lengths around every kind of vector and block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rerank_engine.graph import DTYPES

Case = Callable[[Any], None]

SIZES = (1, 3, 5, 15, 16, 17, 31, 33, 63, 65)
LONG = (130, 515, 1100)
"""Around a block of 32 vectors, for 4, 8 and 16 lanes."""

INTEGERS = ("int32", "int64", "uint32", "uint64")
ANY_INTEGER = ("int8", "uint16", "int32", "uint64")
"""Each width and each kind of sign once."""


def _reduction(op: str, domain: str, others: tuple[str, ...], *, longest: int = 2000) -> Case:
    def case(b: Any) -> None:
        for size in (*SIZES, *(size for size in LONG if size <= longest)):
            x = b.input("float32", "N", size, domain=domain)
            b.output(b.node(op, x, axes=(1,), keepdims=1), b.node(op, x, axes=(-1,), keepdims=0))
        for size in (1, 3, 16, 31, 65):
            b.output(b.node(op, b.input("float32", "N", 5, size, domain=domain), axes=(1,), keepdims=0))
        x = b.input("float32", "N", 4, 3, 7, domain=domain)
        for axes in ((1,), (2,), (3,), (1, 2), (2, 3), (1, 2, 3), (3, 2), (1, 3)):
            b.output(b.node(op, x, axes=axes, keepdims=0), b.node(op, x, axes=axes, keepdims=1))
        y = b.input("float32", "N", 2, 3, 2, 3, domain=domain)
        b.output(*(b.node(op, y, axes=axes, keepdims=0) for axes in ((1, 3), (2, 4), (1, 2, 4), (1, 3, 4))))
        b.output(b.node(op, b.input("float32", "N", 2, 1, 40, domain=domain), axes=(2,), keepdims=0))
        b.output(b.node(op, b.input("float32", "N", 40, 150, domain=domain), axes=(1,), keepdims=0))
        fixed = b.input("float32", 6, 19, domain=domain)
        b.output(b.node(op, b.input("float32", ("N", 3), 5, domain=domain), axes=(1,), keepdims=0))
        b.output(*(b.node(op, fixed, axes=axes, keepdims=0) for axes in ((0,), (1,), (0, 1))))
        for empty, axes in ((("N", 3, 0), (1,)), (("N", 0), (1,)), (("N", 0, 3), (1,)), (("N", 3, 0), (1, 2))):
            b.output(b.node(op, b.input("float32", *empty, domain=domain), axes=axes, keepdims=0))
        for dtype in others:
            b.output(b.node(op, b.input(dtype, "N", 37, domain=domain), axes=(1,), keepdims=0))
            b.output(b.node(op, b.input(dtype, "N", 2, 9, 3, domain=domain), axes=(1, 3), keepdims=0))
            b.output(b.node(op, b.input(dtype, "N", 0, 2, domain=domain), axes=(1,), keepdims=0))

    return case


def _softmax(op: str) -> Case:
    def case(b: Any) -> None:
        for size in (1, 17):
            b.output(b.node(op, b.input("float32", "N", size)))
        for size in (*SIZES, *LONG):
            b.output(b.node(op, b.input("float32", "N", size, domain="infinite")))
        for axis in (1, 2, -2, -1):
            b.output(b.node(op, b.input("float32", "N", 3, 21, domain="infinite"), axis=axis))
        b.output(b.node(op, b.input("float32", "N", 40, 150, domain="infinite"), axis=1))
        b.output(b.node(op, b.input("float32", "N", 2, 3, 4, 5, domain="infinite"), axis=2))
        b.output(b.node(op, b.input("float32", ("N", 3), 17, domain="infinite"), axis=1))
        b.output(b.node(op, b.input("float32", 9, 4, domain="infinite"), axis=0))
        b.output(b.node(op, b.input("float64", "N", 19, domain="infinite")))
        b.output(b.node(op, b.input("float64", "N", 3, 5, domain="infinite"), axis=1))
        b.output(b.node(op, b.input("float32", "N", 0)), b.node(op, b.input("float32", "N", 0, 3), axis=1))
        masked = np.full((2, 5), -np.inf)
        masked[1, 3] = 0.0
        b.output(b.node(op, b.constant(masked)))

    return case


def _scan(op: str, domain: str) -> Case:
    def case(b: Any) -> None:
        for index, dtype in enumerate(("float32", "float64", "int32", "float32", *ANY_INTEGER)):
            options = {"exclusive": index % 2, "reverse": index // 2 % 2}
            x = b.input(dtype, "N", 3, 21, domain=domain)
            b.output(b.node(op, x, axis=1, **options), b.node(op, x, axis=-1, **options))
            b.output(b.node(op, x, axis=2, exclusive=1 - index % 2, reverse=1))
        b.output(b.node(op, b.input("float32", 4, 3, domain=domain), axis=0))
        b.output(b.node(op, b.input("float32", "N", 0, domain=domain), axis=1, exclusive=1))
        b.output(b.node(op, b.input("float32", ("N", 2), 7, domain=domain), axis=1))

    return case


def _extreme(op: str) -> Case:
    def case(b: Any) -> None:
        for dtype in ("float32", "float64", *ANY_INTEGER):
            for last in (0, 1):
                x = b.input(dtype, "N", 7, 21)
                b.output(b.node(op, x, axis=1, select_last_index=last))
                b.output(b.node(op, x, axis=-1, keepdims=0, select_last_index=last))
                few = b.input(dtype, "N", 9, domain="special" if dtype.startswith("float") else "3")
                b.output(b.node(op, few, axis=1, keepdims=0, select_last_index=last))
        b.output(b.node(op, b.input("float32", 5, 3)), b.node(op, b.input("float32", 6), keepdims=0))
        b.output(b.node(op, b.input("float32", "N", 1), axis=1))
        b.output(b.node(op, b.input("float32", "N", 3, 0), axis=1))
        b.output(b.node(op, b.constant(np.full((1, 4), -np.inf)), axis=1))
        b.output(b.node(op, b.constant([[0.0, -0.0, 0.0], [np.nan, np.inf, np.nan]]), axis=1, select_last_index=1))

    return case


def _hardmax(b: Any) -> None:
    for size in SIZES:
        b.output(b.node("Hardmax", b.input("float32", "N", size)))
    b.output(b.node("Hardmax", b.input("float32", "N", 4, 3, 5), axis=2))
    b.output(b.node("Hardmax", b.input("float64", "N", 4, 3), axis=1), b.node("Hardmax", b.input("float32", 3), axis=0))
    b.output(b.node("Hardmax", b.input("float32", "N", 0)), b.node("Hardmax", b.input("float32", "N", 0, 2), axis=1))


def _top_k(b: Any) -> None:
    for dtype in ("float32", "float64", *ANY_INTEGER):
        for largest in (0, 1):
            x = b.input(dtype, "N", 33)
            few = b.input(dtype, "N", 12, domain="special" if dtype.startswith("float") else "4")
            for source, count in ((x, 5), (few, 12)):
                b.output(*b.nodes("TopK", [source], 2, k=count, largest=largest))
        b.output(*b.nodes("TopK", [b.input(dtype, "N", 6, 3)], 2, k=4, axis=1))
    x = b.input("float32", "N", 70)
    for count in (0, 1, 2, 69, 70):
        b.output(*b.nodes("TopK", [x], 2, k=count, axis=1))
    b.output(*b.nodes("TopK", [b.input("float32", 9, 2)], 2, k=3, axis=0))
    b.output(*b.nodes("TopK", [b.input("float32", "N", 0)], 2, k=0))
    b.output(*b.nodes("TopK", [b.constant([[1, np.nan, 3, 2, np.nan], [0.0, -0.0, 0.0, -0.0, -1.0]])], 2, k=3))


def _parameters(b: Any, dtype: str, shape: tuple[int, ...]) -> list[str]:
    random = np.random.default_rng(len(shape))
    return [b.constant(random.normal(1, 0.5, shape), dtype), b.constant(random.normal(0, 0.5, shape), dtype)]


def _layer(op: str, outputs: int) -> Case:
    most = 3 if op == "LayerNormalization" else 2

    def case(b: Any) -> None:
        for size in (*SIZES, *LONG):
            x = b.input("float32", "N", size, domain="plain")
            scale, bias = _parameters(b, "float32", (size,))
            b.output(*b.nodes(op, [x, scale, bias][:most], outputs), b.node(op, x), b.node(op, x, scale))
        x = b.input("float32", "N", 3, 5, 4, domain="infinite")
        for axis in (1, 2, 3, -1, -2):
            shape = (3, 5, 4)[axis % 4 - 1 :]
            inputs = [x, *_parameters(b, "float32", shape)][:most]
            b.output(*b.nodes(op, inputs, outputs, axis=axis, epsilon=1e-3))
        b.output(*b.nodes(op, [b.input("float64", "N", 21, domain="plain")], outputs, epsilon=1e-12))
        b.output(b.node(op, b.input("float32", ("N", 2), 6, domain="plain"), b.input("float32", 6, domain="plain")))
        b.output(b.node(op, b.input("float32", 4, 6, domain="plain"), axis=0), b.node(op, b.input("float32", "N", 0)))
        b.output(*b.nodes(op, [b.constant(np.full((2, 24), 1e6))], outputs))

    return case


FLOAT64 = ("float64",)
CASES: dict[str, Case] = {
    "ReduceSum": _reduction("ReduceSum", "infinite", (*FLOAT64, *INTEGERS)),
    "ReduceMean": _reduction("ReduceMean", "infinite", (*FLOAT64, *INTEGERS)),
    "ReduceProd": _reduction("ReduceProd", "infinite", (*FLOAT64, *INTEGERS), longest=200),
    "ReduceMax": _reduction("ReduceMax", "special", tuple(DTYPES)),
    "ReduceMin": _reduction("ReduceMin", "special", tuple(DTYPES)),
    "Softmax": _softmax("Softmax"),
    "LogSoftmax": _softmax("LogSoftmax"),
    "Hardmax": _hardmax,
    "ArgMax": _extreme("ArgMax"),
    "ArgMin": _extreme("ArgMin"),
    "TopK": _top_k,
    "CumSum": _scan("CumSum", "infinite"),
    "CumProd": _scan("CumProd", "infinite"),
    "LayerNormalization": _layer("LayerNormalization", 3),
    "RMSNormalization": _layer("RMSNormalization", 1),
}

# Relative and absolute: sums lose what cancels, and softmax rounds the difference that it exponentiates.
TOLERANCES = {
    "ReduceSum": (1e-6, 3e-5),
    "ReduceMean": (1e-6, 3e-6),
    "ReduceProd": (1e-6, 1e-36),
    "CumSum": (3e-7, 1e-6),
    "Softmax": (1e-5, 1e-30),
    "LogSoftmax": (1e-6, 2e-6),
    "LayerNormalization": (1e-6, 3e-6),
    "RMSNormalization": (1e-6, 1e-30),
}
