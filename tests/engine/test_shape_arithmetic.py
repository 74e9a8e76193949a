"""Arithmetic on sizes while importing: what is answered holds for every size, what cannot be told is left open."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rerank_engine.dimensions import resolve
from rerank_engine.graph import Dim
from rerank_engine.importers.shapes import (
    ARITHMETIC,
    COMPARISONS,
    ShapeValue,
    arithmetic,
    comparison,
    reduction,
    resolve_reshape,
)
from rerank_engine.ops.ranges import ceil_divide

SIZES = st.integers(-6, 6) | st.builds(
    lambda a, b, c: a * Dim("N") + b * Dim("T") + c, st.integers(-3, 3), st.integers(-3, 3), st.integers(-6, 6)
)


@given(SIZES, SIZES, st.integers(0, 9), st.integers(0, 9))
def test_arithmetic_on_sizes_holds_for_every_size(left: int | Dim, right: int | Dim, n: int, t: int) -> None:
    """Whatever is answered without knowing the sizes is true for all of them; it may be left open."""
    sizes = {"N": n, "T": t}
    a, b = resolve(left, sizes), resolve(right, sizes)
    for operator, compute in (("Add", a + b), ("Sub", a - b), ("Mul", a * b), ("Max", max(a, b)), ("Min", min(a, b))):
        known = ARITHMETIC[operator](left, right)
        assert known is None or resolve(known, sizes) == compute
    answers = {"Equal": a == b, "Less": a < b, "LessOrEqual": a <= b, "Greater": a > b, "GreaterOrEqual": a >= b}
    for operator, answer in answers.items():
        assert COMPARISONS[operator](left, right) in (None, answer)
    if b != 0:
        for operator, result in (("Mod", a % b), ("Div", math.trunc(a / b))):
            known = ARITHMETIC[operator](left, right)
            assert known is None or resolve(known, sizes) == result
        rounded = ceil_divide(left, right)
        assert rounded is None or resolve(rounded, sizes) == -(-a // b)


def test_shapes_that_cannot_be_kept_are_left_alone() -> None:
    n, two = ShapeValue((Dim("N"),)), ShapeValue((2,))
    assert arithmetic("Div", [n, two]) is None
    assert arithmetic("Add", [n, ShapeValue((1,), dtype="int32")]) is None
    assert arithmetic("Add", [ShapeValue((1, 2)), ShapeValue((1, 2, 3))]) is None
    assert comparison("Equal", n, ShapeValue((1,))) is None
    assert reduction("ReduceMax", ShapeValue((Dim("N"), 1))) is None
    assert reduction("ReduceMax", ShapeValue(())) is None
    assert reduction("ReduceSum", ShapeValue(())) == 0
    assert resolve_reshape((-1, -1), (4,), allow_zero=False) is None
    assert resolve_reshape((0, -1), (0, 3), allow_zero=False) is None
    assert resolve_reshape((0, 2), (5,), allow_zero=True) == [0, 2]
    assert resolve_reshape((0, 0), (5,), allow_zero=False) is None
    assert resolve_reshape((-2,), (5,), allow_zero=False) is None
