"""Every operator of the table, compiled, against the float64 reference: sizes, broadcasting, dtypes, special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rerank_engine.ops import OPERATORS
from rerank_engine.plan import make_plan

SIZES = (1, 3, 5, 15, 16, 17, 31, 33, 63, 65)
COUNTS = (0, 1, 2, 7, 50, 131, 1000)
NUMBERS = ("float32", "int32", "int64")
DTYPES = (*NUMBERS, "bool")

Case = Callable[[Any], None]


FEW_SIZES = (1, 17, 31)
"""For operators that share their loops with one that is tested at all sizes: each kind of remainder."""


def one_input(op: str, dtypes: tuple[str, ...] = ("float32",), sizes: tuple[int, ...] = FEW_SIZES) -> Case:
    """Sizes, ranks 0 to 3, a scaled candidate dimension, and values that do not depend on the candidate."""

    def case(b: Any) -> None:
        for dtype in dtypes:
            shapes: list[tuple[Any, ...]] = [("N", size) for size in sizes]
            shapes += [("N",), ("N", 3, 5), (("N", 3), 5), (("N", 2),), (), (17,), (3, 5), ("N", 1, 1), ("N", 4, 0)]
            for shape in shapes:
                b.output(b.node(op, b.input(dtype, *shape)))
            number = {"float32": -0.5, "bool": True}.get(dtype, -3)
            b.output(b.node(op, b.constant(number, dtype)))
            b.output(b.node(op, b.constant(np.full((1, 3), number), dtype)))

    return case


def two_inputs(op: str, dtypes: tuple[str, ...], *, full: bool = False) -> Case:
    """Sizes and forms of broadcasting (``full``: all of them), constants of one element included."""

    def case(b: Any) -> None:
        forms: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
            (("N",), ("N",)),
            (("N", 1), ("N", 17)),
            (("N", 17), ("N", 1)),
            (("N", 17), (17,)),
            ((17,), ("N", 17)),
            (("N", 1), (17,)),
            (("N", 3, 1), (5,)),
            (("N", 1, 5), ("N", 3, 1)),
            (("N", 1, 1), (3, 5)),
            (("N", 3, 5), (3, 1)),
            (("N", 2, 1, 3), ("N", 1, 5, 1)),
            ((("N", 3), 5), (("N", 3), 1)),
            ((("N", 3),), ()),
            (("N", 5), ()),
            ((), ("N", 5)),
            ((4, 1), (1, 5)),
            ((), ()),
            ((1, 1, 1), ("N", 1, 2)),
            (("N", 0), (1,)),
        ]
        for dtype in dtypes:
            for size in SIZES if full else FEW_SIZES:
                b.output(b.node(op, b.input(dtype, "N", size), b.input(dtype, "N", size)))
            for left, right in forms if full else forms[::5]:
                b.output(b.node(op, b.input(dtype, *left), b.input(dtype, *right)))
            number = {"float32": 0.75, "bool": True}.get(dtype, 3)
            x = b.input(dtype, "N", 9)
            b.output(b.node(op, x, b.constant(number, dtype)))
            b.output(b.node(op, b.constant(np.full((1, 1), number), dtype), x))
            b.output(b.node(op, b.constant(number, dtype), b.constant(number, dtype)))
            b.output(b.node(op, b.constant(np.arange(9) % 2, dtype), x))
            b.output(b.node(op, x, x))

    return case


def clip(b: Any) -> None:
    infinity = float("inf")
    bounds = [(-1.0, 1.0), (0.0, infinity), (-infinity, 0.5), (-infinity, infinity), (1.0, -1.0)]
    bounds += [(infinity, infinity), (-infinity, -infinity), (0.0, 3.4028234663852886e38)]
    x = b.input("float32", "N", 17)
    for low, high in bounds:
        b.output(b.node("Clip", x, low=low, high=high), b.node("Clip", b.input("float32", 3), low=low, high=high))
    b.output(b.node("Clip", x))


def where(b: Any) -> None:
    for dtype in DTYPES:
        for size in FEW_SIZES:
            b.output(b.node("Where", b.input("bool", "N", size), *(b.input(dtype, "N", size) for _ in range(2))))
        forms = [(("N", 1), (5,), ()), ((3, 1), ("N", 3, 5), (5,)), (("N",), (), ("N",)), ((), (2,), (2, 1))]
        for condition, yes, no in forms:
            b.output(b.node("Where", b.input("bool", *condition), b.input(dtype, *yes), b.input(dtype, *no)))
        b.output(b.node("Where", b.constant(True, "bool"), b.input(dtype, "N", 3), b.constant(1, dtype)))


def cast(b: Any) -> None:
    for source in DTYPES:
        for target in DTYPES:
            for shape in [("N", 17), (5,), ("N",)]:
                b.output(b.node("Cast", b.input(source, *shape), to=target))
    numbers = [
        2147483647.0,
        2147483648.0,
        -2147483648.0,
        -2147483904.0,
        9.2233715e18,
        9.223372e18,
        -9.223372e18,
        -9.3e18,
    ]
    for target in ("int32", "int64"):
        b.output(b.node("Cast", b.constant([*numbers, np.nan, np.inf, -np.inf, 1.99, -1.99, 1e-40]), to=target))


def expand(b: Any) -> None:
    for dtype in DTYPES:
        b.output(b.node("Expand", b.input(dtype, "N", 1), shape=("N", 17)))
        b.output(b.node("Expand", b.input(dtype, 17), shape=("N", 17)))
        b.output(b.node("Expand", b.input(dtype), shape=(("N", 2), 3)))
        b.output(b.node("Expand", b.input(dtype, 3, 1), shape=("N", 3, 5)))
        b.output(b.node("Expand", b.input(dtype, 3, 1), shape=(2, 3, 5)))
        b.output(b.node("Expand", b.constant(1, dtype), shape=(7,)))
        b.output(b.node("Expand", b.constant(1, dtype), shape=()))
        b.output(b.node("Expand", b.input(dtype, "N", 1), shape=("N", 0)))


def matmul(b: Any) -> None:
    x = b.input("float32", "N", 5, domain="plain")
    weight, bias = np.linspace(-1, 1, 35).reshape(5, 7), np.linspace(0, 1, 7)
    b.output(b.node("MatMul", x, b.constant(weight)), b.node("MatMul", x, b.input("float32", 5, 7, domain="plain")))
    b.output(b.node("MatMul", x, b.constant(weight), b.constant(bias), activation="LeakyRelu", alpha=0.2))
    b.output(
        b.node("MatMul", b.input("float32", "N", 3, 5, domain="plain"), b.input("float32", "N", 5, 2, domain="plain"))
    )


def gather(b: Any) -> None:
    for dtype in DTYPES:
        for ids in ("int32", "int64"):
            for width in (1, 17, 300):
                b.output(b.node("Gather", b.input(dtype, 11, width), b.input(ids, "N", domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11), b.input(ids, "N", 5, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 2, 3), b.input(ids, "N", 3, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.input(ids, 4, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.input(ids, domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 0), b.input(ids, "N", domain="11")))
            b.output(b.node("Gather", b.input(dtype, 11, 3), b.constant([-1, 0, -11, 10], ids)))


def reshape(b: Any) -> None:
    for dtype in DTYPES:
        x = b.input(dtype, "N", 12)
        b.output(b.node("Reshape", x, shape=("N", 3, 4)))
        b.output(b.node("Reshape", x, shape=(("N", 3), 4)))
        b.output(b.node("Reshape", b.node("Reshape", x, shape=(("N", 12),)), shape=("N", 2, 6)))
        b.output(b.node("Reshape", b.input(dtype, 2, 3), shape=(6, 1)))
        b.output(b.node("Reshape", b.input(dtype, 1), shape=()))
        b.output(b.node("Reshape", b.constant(np.arange(6), dtype), shape=(3, 2)))


def transpose(b: Any) -> None:
    for dtype in DTYPES:
        x = b.input(dtype, "N", 3, 4, 5)
        for perm in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1), (0, 2, 3, 1)):
            b.output(b.node("Transpose", x, perm=perm))
        b.output(b.node("Transpose", b.input(dtype, ("N", 2), 3, 17), perm=(0, 2, 1)))
        b.output(b.node("Transpose", b.input(dtype, 3, 5, 2), perm=(2, 0, 1)))
        b.output(b.node("Transpose", b.input(dtype, "N"), perm=(0,)), b.node("Transpose", b.input(dtype), perm=()))
        b.output(b.node("Transpose", b.input(dtype, "N", 3, 0), perm=(0, 2, 1)))


def concat(b: Any) -> None:
    for dtype in DTYPES:
        parts = [b.input(dtype, "N", size) for size in (*SIZES, 0, 200)]
        b.output(b.node("Concat", *parts, axis=1), b.node("Concat", parts[3], axis=-1))
        b.output(b.node("Concat", parts[2], parts[2], parts[1], axis=1))
        b.output(b.node("Concat", b.input(dtype, "N", 2, 3), b.input(dtype, "N", 5, 3), axis=1))
        b.output(b.node("Concat", b.input(dtype, "N", 2, 3), b.input(dtype, "N", 2, 4), axis=2))
        b.output(b.node("Concat", b.input(dtype, ("N", 2), 3), b.input(dtype, ("N", 2), 1), axis=-1))
        b.output(b.node("Concat", b.input(dtype, 3, 2), b.constant(np.ones((1, 2)), dtype), axis=0))


def slices(b: Any) -> None:
    for dtype in DTYPES:
        x = b.input(dtype, "N", 65)
        for start, stop in ((0, 65), (0, 0), (65, 65), (1, 2), (3, 20), (16, 64), (64, 65)):
            b.output(b.node("Slice", x, axis=1, start=start, stop=stop))
        y = b.input(dtype, "N", 4, 5, 3)
        b.output(*(b.node("Slice", y, axis=axis, start=1, stop=3) for axis in (1, 2, 3)))
        b.output(b.node("Slice", b.input(dtype, ("N", 3), 5), axis=1, start=2, stop=4))
        b.output(b.node("Slice", b.input(dtype, 7, 2), axis=0, start=2, stop=6))


def leaky(op: str) -> Case:
    def case(b: Any) -> None:
        for alpha in (0.01, 0.3, 0.0, -0.5, 2.0):
            b.output(b.node(op, b.input("float32", "N", 17), alpha=alpha))
        one_input(op)(b)

    return case


def dimensions(b: Any) -> None:
    b.input("float32", "N", 2)
    for dtype in ("int32", "int64"):
        b.output(b.node("Dimensions", entries=("N", "50*N", "3"), dtype=dtype))
        b.output(b.node("Dimensions", entries=("N",), is_scalar=1, dtype=dtype))
    b.output(b.node("Dimensions", entries=(4, 5)))


def ranges(b: Any) -> None:
    b.input("float32", "N", 2)
    for dtype in ("int32", "int64"):
        b.output(b.node("Range", count=("N",), dtype=dtype), b.node("Range", count=(7,), start=-3, step=2, dtype=dtype))
    b.output(b.node("Range", count=("2*N",), start=5, step=-1), b.node("Range", count=(0,)))


CASES: dict[str, Case] = {
    "Add": two_inputs("Add", NUMBERS, full=True),
    **{op: two_inputs(op, NUMBERS) for op in ("Sub", "Mul", "Max", "Min")},
    **{op: two_inputs(op, NUMBERS) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    **{op: two_inputs(op, ("float32",)) for op in ("Div", "PRelu")},
    **{op: two_inputs(op, ("bool",)) for op in ("And", "Or")},
    **{op: one_input(op) for op in ("Abs", "Exp", "Sqrt", "Tanh", "Relu")},
    "Sigmoid": one_input("Sigmoid", sizes=SIZES),
    "Neg": one_input("Neg", NUMBERS),
    "Not": one_input("Not", ("bool",)),
    "Identity": one_input("Identity", DTYPES),
    "LeakyRelu": leaky("LeakyRelu"),
    "Clip": clip,
    "Where": where,
    "Cast": cast,
    "Expand": expand,
    "MatMul": matmul,
    "Gather": gather,
    "Reshape": reshape,
    "Dimensions": dimensions,
    "Range": ranges,
    "Transpose": transpose,
    "Concat": concat,
    "Slice": slices,
}

# Relative and absolute: sums lose what cancels.
TOLERANCES = {"MatMul": (1e-6, 1e-5)}


def all_cases(tools: Any) -> dict[str, Case]:
    """The cases of this file, and those of the families that have files of their own."""
    return CASES | tools.more("CASES")


def test_every_operator_has_a_case(tools: Any) -> None:
    assert set(all_cases(tools)) == set(OPERATORS)


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_compiled_like_the_reference(tools: Any, op: str) -> None:
    b = tools.GraphBuilder()
    all_cases(tools)[op](b)
    graph = b.finish()
    compiled = tools.Compiled(graph)
    tolerance, absolute = (TOLERANCES | tools.more("TOLERANCES")).get(op, (3e-7, 2 * tools.TINY))
    for candidates in COUNTS:
        feeds = b.feeds(candidates, seed=candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            label = f"{graph.values[name]} at N={candidates}"
            tools.assert_close(array, expected[name], label, tolerance, absolute)
    if not OPERATORS[op].uses_sizes and all(step.mode != "whole" for step in make_plan(graph).steps):
        tools.assert_rows_alone(compiled, b.feeds(131, seed=7), (0, 1, 63, 64, 127, 128, 130))


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_summary_and_attributes_are_documented(op: str) -> None:
    operator = OPERATORS[op]
    assert operator.summary
    assert operator.name == op
    assert (operator.pointwise is None) != (operator.lower is None) or op == "Reshape"
