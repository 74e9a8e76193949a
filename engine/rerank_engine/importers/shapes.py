"""Shape arithmetic that exporters write into a graph (Shape, Gather, Concat, ...) is done while importing.

A shape value is a list of integers and expressions over named dimensions. It never reaches the graph. What cannot be
kept as such an expression is computed when the model runs, from the sizes of the named dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rerank_engine.dimensions import Dim, divide_exactly, product

MOST_ENTRIES = 64
"""A list of integers longer than this is data, not a shape."""


@dataclass(frozen=True)
class ShapeValue:
    """An integer scalar or vector whose entries may be expressions over named dimensions.

    Attributes
    ----------
    entries
        The numbers.
    is_scalar
        Whether it stands for a single number without a dimension.
    dtype
        ``"int64"`` or ``"int32"``.
    """

    entries: tuple[int | Dim, ...]
    is_scalar: bool = False
    dtype: str = "int64"

    @property
    def is_known(self) -> bool:
        """Whether no entry waits for the size of a named dimension."""
        return not any(isinstance(entry, Dim) for entry in self.entries)


def divide(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Divide two entries as ONNX does, towards zero; None when named dimensions do not divide exactly."""
    if isinstance(left, Dim) or isinstance(right, Dim):
        return divide_exactly(left, right)
    return None if right == 0 else abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def is_at_least(left: int | Dim, right: int | Dim) -> bool | None:
    """Tell whether ``left >= right`` for every size of the named dimensions (0 and more); None when it depends.

    >>> is_at_least(Dim("N"), 0), is_at_least(Dim("N"), 1), is_at_least(-1, Dim("N"))
    (True, None, False)
    """
    difference = left - right
    if isinstance(difference, int):
        return difference >= 0
    constant = next((coefficient for names, coefficient in difference.terms if not names), 0)
    named = [coefficient for names, coefficient in difference.terms if names]
    if constant >= 0 and all(coefficient > 0 for coefficient in named):
        return True
    return False if constant < 0 and all(coefficient < 0 for coefficient in named) else None


def equal(left: int | Dim, right: int | Dim) -> bool | None:
    """Compare two entries; None when the answer depends on the named dimensions.

    >>> equal(Dim("N"), -1), equal(Dim("N"), 1)
    (False, None)
    """
    if left == right:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return False
    return False if is_at_least(left, right + 1) or is_at_least(right, left + 1) else None


def maximum(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """The larger entry; None when it depends on the named dimensions.

    >>> maximum(Dim("N"), 0), maximum(Dim("N"), 1)
    (Dim('N'), None)
    """
    larger = is_at_least(left, right)
    if larger is None:
        return right if is_at_least(right, left) else None
    return left if larger else right


def minimum(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """The smaller entry; None when it depends on the named dimensions."""
    larger = maximum(left, right)
    return None if larger is None else left + right - larger


def remainder(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Remainder with the sign of the divisor, as ``Mod`` of integers; None when it depends on the named dimensions.

    >>> remainder(Dim("N", 4), 2), remainder(Dim("N", 4) + 3, 2), remainder(-7, 3), remainder(Dim("N"), 2)
    (0, 1, 2, None)
    >>> remainder(-1, Dim("N"))
    Dim.parse('N-1')
    """
    if isinstance(left, int) and isinstance(right, int):
        return None if right == 0 else left % right
    if left == -1 and is_at_least(right, 0):
        return right - 1
    if isinstance(right, int) and isinstance(left, Dim) and right != 0:
        constant = next((coefficient for names, coefficient in left.terms if not names), 0)
        return None if divide_exactly(left - constant, right) is None else constant % right
    return 0 if divide_exactly(left, right) is not None else None


ARITHMETIC: Mapping[str, Callable[[int | Dim, int | Dim], int | Dim | None]] = {
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": divide,
    "Mod": remainder,
    "Max": maximum,
    "Min": minimum,
}
"""Operators of ONNX on two entries; each gives None where the result depends on the named dimensions."""

COMPARISONS: Mapping[str, Callable[[int | Dim, int | Dim], bool | None]] = {
    "Equal": equal,
    "GreaterOrEqual": is_at_least,
    "LessOrEqual": lambda left, right: is_at_least(right, left),
    "Greater": lambda left, right: is_at_least(left, right + 1),
    "Less": lambda left, right: is_at_least(right, left + 1),
}
"""Comparisons of ONNX on two entries; each gives None where the answer depends on the named dimensions."""


def arithmetic(operator: str, values: Sequence[ShapeValue]) -> ShapeValue | None:
    """Fold an elementwise operator over shape values; None when it cannot be kept as a shape value.

    Parameters
    ----------
    operator
        A key of :data:`ARITHMETIC`.
    values
        One or more of one dtype, of equal length or of one entry.

    Examples
    --------
    >>> arithmetic("Mul", [ShapeValue((Dim("N"), 3)), ShapeValue((2,))]).entries
    (Dim('N', 2), 6)
    """
    total = values[0]
    for value in values[1:]:
        pairs = _paired(total, value)
        if pairs is None:
            return None
        entries = tuple(ARITHMETIC[operator](*pair) for pair in pairs)
        if any(entry is None for entry in entries):
            return None
        known = tuple(entry for entry in entries if entry is not None)
        if not _fits(known, total.dtype):
            return None
        total = ShapeValue(known, total.is_scalar and value.is_scalar, total.dtype)
    return total


def comparison(operator: str, left: ShapeValue, right: ShapeValue) -> tuple[bool, ...] | None:
    """Compare entry by entry; None when an answer depends on the named dimensions.

    >>> comparison("Equal", ShapeValue((Dim("N"), 3)), ShapeValue((-1,)))
    (False, False)
    """
    pairs = _paired(left, right)
    if pairs is None:
        return None
    answers = tuple(COMPARISONS[operator](*pair) for pair in pairs)
    return None if any(answer is None for answer in answers) else tuple(bool(answer) for answer in answers)


def reduction(operator: str, value: ShapeValue) -> int | Dim | None:
    """Fold all entries by ``ReduceSum``, ``ReduceProd``, ``ReduceMax`` or ``ReduceMin``; None when it cannot be kept.

    >>> reduction("ReduceProd", ShapeValue((Dim("N"), 3, 2)))
    Dim('N', 6)
    """
    start = {"ReduceSum": 0, "ReduceProd": 1}.get(operator)
    entries = list(value.entries)
    if start is None and not entries:
        return None
    total: int | Dim | None = start if start is not None else entries.pop(0)
    fold = ARITHMETIC[{"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}[operator]]
    for entry in entries:
        if total is None:
            return None
        total = fold(total, entry)
    return total if total is not None and _fits([total], value.dtype) else None


def _fits(entries: Sequence[int | Dim], dtype: str) -> bool:
    """Whether integers are in the range of their dtype: beyond it ONNX's arithmetic wraps around."""
    largest = 2**31 if dtype == "int32" else 2**63
    return all(isinstance(entry, Dim) or -largest <= entry < largest for entry in entries)


def _paired(left: ShapeValue, right: ShapeValue) -> list[tuple[int | Dim, int | Dim]] | None:
    if left.dtype != right.dtype:
        return None
    counts = {len(left.entries), len(right.entries)}
    if len(counts) == 2 and 1 not in counts:
        return None
    count = 0 if 0 in counts else max(counts)
    both = [value.entries * count if len(value.entries) == 1 else value.entries for value in (left, right)]
    return list(zip(*both, strict=True))


def resolve_reshape(
    target: Sequence[int | Dim], source: Sequence[int | Dim], allow_zero: bool
) -> list[int | Dim] | None:
    """Fill in the 0 (same as the source) and -1 (the rest) of a reshape; None when it cannot be done.

    Examples
    --------
    >>> resolve_reshape([-1, 8], [Dim("N"), 2, 4], allow_zero=False)
    [Dim('N'), 8]
    """
    result: list[int | Dim] = []
    for axis, dim in enumerate(target):
        if dim == 0 and not allow_zero:
            if axis >= len(source):
                return None
            dim = source[axis]
        result.append(dim)
    if any(isinstance(dim, int) and dim < -1 for dim in result) or result.count(-1) > 1:
        return None
    if -1 not in result:
        return result
    known = product(dim for dim in result if dim != -1)
    rest = divide_exactly(product(source), known)
    if rest is None:
        return None
    result[result.index(-1)] = rest
    return result


def take(value: ShapeValue, start: int | None, stop: int | None, step: int | None = None) -> ShapeValue:
    """Cut entries as Python does.

    >>> take(ShapeValue((Dim("N"), 2, 3)), None, None, -1).entries
    (3, 2, Dim('N'))
    """
    return replace(value, entries=value.entries[start:stop:step])
