"""Cases of matrix products, Einstein sums and sliding windows: candidates on any axis, all dtypes, sizes 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rerank_engine.graph import DTYPES
from rerank_engine.ops.matmul import FUSED_ACTIVATIONS

_INTEGERS = ("int32", "int64", "uint32", "uint64")


def _draw(dtype: str, shape: Sequence[int]) -> Any:
    random = np.random.default_rng(sum(shape) + len(shape))
    if dtype.startswith("float"):
        return random.normal(0, 1, tuple(shape))
    return random.integers(0 if dtype.startswith("u") else -9, 10, tuple(shape))


def matmul(b: Any) -> None:
    """The fast forms: a constant weight, computed matrices of known depth and width, bias and activation."""

    def plain(*shape: Any, dtype: str = "float32") -> str:
        return str(b.input(dtype, *shape, domain="plain"))

    x = plain("N", 5)
    weight, bias = np.linspace(-1, 1, 35).reshape(5, 7), np.linspace(0, 1, 7)
    b.output(b.node("MatMul", x, b.constant(weight)), b.node("MatMul", x, plain(5, 7)))
    b.output(b.node("MatMul", x, b.constant(weight), b.constant(bias), activation="LeakyRelu", alpha=0.2))
    b.output(b.node("MatMul", plain("N", 3, 5), plain("N", 5, 2)))
    _named_axes(b, plain)
    _batches(b, plain)
    _dtypes(b)
    _extras(b, plain)


def _named_axes(b: Any, plain: Any) -> None:
    """The number of candidates as rows, depth, columns and batch, alone, scaled and several times."""
    pairs: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
        (("N", 4), (4, 3)),
        ((3, 4), (4, "N")),
        ((3, "N"), ("N", 5)),
        ((3, "N"), ("N", 1)),
        ((1, "N"), ("N", "N")),
        (("N", "N"), ("N", 3)),
        (("N", 4), (4, "N")),
        ((("N", 2), 3), (3, 4)),
        ((3, ("N", 2)), (("N", 2), 4)),
        (("N", 2, 3), ("N", 3, 4)),
        ((("N", 2), 2, 3), (("N", 2), 3, 4)),
        ((2, "N", 3), (2, 3, "N")),
        ((2, 3, "N"), (2, "N", 17)),
        ((2, 3, "N"), ("N", 4)),
        ((3, "N"), (2, "N", 4)),
        (("N", 3, 2), (2, "N")),
        ((1, 5), (5, "N")),
        (("N", 1), (1, 6)),
        (("N", 1), (1, 1)),
    ]
    for left, right in pairs:
        b.output(b.node("MatMul", plain(*left), plain(*right)))


def _batches(b: Any, plain: Any) -> None:
    """Batches that are equal, single, and broadcast in part, also with candidates; ranks from 2 to 5."""
    pairs: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
        ((2, 1, 3, 4), (1, 3, 4, 5)),
        ((3, 2, 4), (1, 4, 3)),
        ((1, 2, 4), (3, 4, 3)),
        (("N", 2, 3, 4), (2, 4, 3)),
        (("N", 2, 3, 4), ("N", 1, 4, 3)),
        (("N", 1, 3, 4), ("N", 2, 4, 3)),
        (("N", 1, 3, 4), (2, 4, 3)),
        ((2, "N", 3, 4), ("N", 4, 3)),
        ((1, "N", 3, 4), (2, 1, 4, 3)),
        ((2, 1, 3, 1, 4), (3, 4, 2)),
        ((2, 3, 1, 2, 2), (1, 4, 2, 3)),
        ((4, 6), ("N", 6, 5)),
        ((1, 4, 6), ("N", 6, 5)),
        (("N", 4, 6), (6, 5)),
        (("N", 4, 6), (1, 1, 6, 33)),
    ]
    for left, right in pairs:
        b.output(b.node("MatMul", plain(*left), plain(*right)))
    for right in ((2, 3, 5), (1, 3, 5), (1, 3, 17)):
        b.output(b.node("MatMul", plain("N", 2, 4, 3), b.constant(_draw("float32", right))))
    b.output(b.node("MatMul", b.constant(_draw("float32", (2, 4, 3))), plain("N", 1, 3, 2)))


def _dtypes(b: Any) -> None:
    """Integers wrap around, on constant and computed matrices; float64 has its own digits."""
    for dtype in _INTEGERS:
        domain = "special" if dtype != "int32" else "plain"
        x = b.input(dtype, "N", 5, domain=domain)
        b.output(b.node("MatMul", x, b.constant(_draw(dtype, (5, 9)), dtype)))
        b.output(b.node("MatMul", x, b.input(dtype, 5, 3, domain=domain)))
        b.output(b.node("MatMul", b.input(dtype, 2, "N", domain=domain), x))
    limits = np.iinfo(DTYPES["int32"])
    b.output(b.node("MatMul", b.input("int32", "N", 2), b.constant([[limits.max], [limits.min]], "int32")))
    x = b.input("float64", "N", 3, 5, domain="plain")
    b.output(b.node("MatMul", x, b.constant(_draw("float64", (5, 18)), "float64")))
    b.output(b.node("MatMul", x, b.input("float64", "N", 5, 2, domain="plain")))


def _extras(b: Any, plain: Any) -> None:
    """Bias and activation where depth or columns are known only at run time, and where the bias is computed."""
    for activation in ("", *FUSED_ACTIVATIONS):
        extra = {"activation": activation, "alpha": 0.3}
        b.output(b.node("MatMul", plain(3, "N"), plain("N", 5), b.constant(_draw("float32", (5,))), **extra))
        b.output(b.node("MatMul", plain(3, 4), plain(4, "N"), plain("N"), **extra))
    b.output(b.node("MatMul", plain("N", 4), plain(4, 3), plain(3), activation="Relu"))
    b.output(b.node("MatMul", plain("N", 4), b.constant(_draw("float32", (4, 3))), plain(3)))
    b.output(b.node("MatMul", plain("N", 2, 4), plain("N", 4, 3), plain(3)))


def einsum(b: Any) -> None:
    """One to four operands; candidates kept, summed, on the diagonal; results of every rank; dtypes; nothing to sum."""

    def one(equation: str, *shapes: tuple[Any, ...], dtype: str = "float32", domain: str = "plain") -> None:
        names = [b.input(dtype, *shape, domain=domain) for shape in shapes]
        b.output(b.node("Einsum", *names, equation=equation))

    one("ij->ji", ("N", 3))
    one("ij->i", ("N", 4))
    one("ij->j", ("N", 4))
    one("ij->", ("N", 4))
    one("ii->i", ("N", "N"))
    one("ii->", ("N", "N"))
    one("iij->ji", (3, 3, "N"))
    one("i,i->i", ("N",), ("N",))
    one("i,j->ij", ("N",), ("N",))
    one("i,j->i", ("N",), ("N",))
    one("ij,kj->ik", ("N", 4), ("N", 4))
    one("ij,kj->i", ("N", 4), ("N", 4))
    one("ij,jk->", ("N", 4), (4, 3))
    one("ab,cd,ab->c", ("N", 2), ("N", 3), ("N", 2))
    one("bij,bjk->bik", ("N", 2, 3), ("N", 3, 4))
    one("bij,bkj->bki", ("N", 2, 3), ("N", 5, 3))
    one("bi,bj,bk->bijk", ("N", 2), ("N", 2), ("N", 3))
    one("bi,ij,bj->b", ("N", 3), (3, 4), ("N", 4))
    one("i,bi,bj,->jb", (3,), ("N", 3), ("N", 2), ())
    one("a,b,c,d->dbca", (2,), ("N",), (3,), (2,))
    one(",->", (), ())
    one("i->", (("N", 2),))
    one("i,ij->ij", (("N", 2),), (("N", 2), 3))
    one("ij,jk->ik", (3, "N"), ("N", 2))
    one("ij,jk->ik", ("N", 0), (0, 2))
    one("ij,jk->ik", ("N", 3), (3, 0))
    one("ij,j->i", ("N", 20), (20,), domain="infinite")
    for dtype in ("float64", *_INTEGERS):
        one("ij,jk->ki", ("N", 3), (3, 4), dtype=dtype, domain="plain" if dtype == "float64" else "special")
        one("ij->j", ("N", 4), dtype=dtype, domain="plain" if dtype == "float64" else "special")
    b.output(b.node("Einsum", b.constant(_draw("float32", (3, 4))), b.input("float32", "N", 4), equation="ij,nj->ni"))


def windows(b: Any) -> None:
    """One to three spatial dimensions, of known and of unknown size; strides, dilations, paddings, dtypes, fills."""

    def one(shape: tuple[Any, ...], kernel: tuple[int, ...], dtype: str = "float32", **extra: Any) -> None:
        rank = len(kernel)
        given = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank, **extra}
        b.output(b.node("Windows", b.input(dtype, *shape), kernel=kernel, **given))

    one(("N", 2, 7), (3,))
    one(("N", 2, 7), (3,), strides=(2,), pads=(1, 1))
    one(("N", 3, 8), (3,), dilations=(3,), pads=(2, 1), fill=-1.5)
    one(("N", 1, 5, 6), (2, 3), strides=(2, 1), pads=(0, 1, 1, 2), fill=float("-inf"))
    one(("N", 2, 4, 4), (1, 1))
    one(("N", 2, 5, 5), (3, 3), strides=(3, 2), dilations=(1, 2), pads=(1, 2, 1, 2))
    one(("N", 1, 3, 4, 2), (2, 2, 1), pads=(1, 0, 0, 0, 1, 1))
    one((2, 3, "N"), (3,), pads=(1, 1))
    one((2, 3, "N"), (3,), pads=(2, 0), fill=2.0)
    one((2, 3, ("N", 2)), (2,), strides=(2,))
    one((2, "N", 4), (2,))
    one((1, 2, "N", 5), (3, 2), pads=(1, 0, 1, 0))
    one(("N", 0, 5), (2,))
    one(("N", 2, 0), (2,), pads=(1, 1), fill=3.0)
    one((0, 2, 4), (2,))
    for dtype in ("float64", "int8", "uint8", "int32", "int64", "uint64", "bool"):
        one(("N", 2, 4), (3,), dtype, pads=(1, 1), fill=1.0)
    one(("N", 2, 4), (2,), "int64", pads=(1, 0), fill=float(np.iinfo(np.int64).min))
    one(("N", 2, 4), (2,), "uint8", pads=(1, 0), fill=255.0)


CASES = {"MatMul": matmul, "Einsum": einsum, "Windows": windows}

# Relative and absolute: sums lose what cancels.
TOLERANCES = {"MatMul": (1e-6, 5e-4), "Einsum": (1e-6, 1e-5)}
