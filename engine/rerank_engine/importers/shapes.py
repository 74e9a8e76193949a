"""Shape arithmetic that exporters write into a graph (Shape, Gather, Concat, ...) is done while importing.

A shape value is a list of integers and candidate dimensions. It never reaches the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rerank_engine.graph import Dim


@dataclass(frozen=True)
class ShapeValue:
    """An integer scalar or vector whose entries may be a multiple of the number of candidates.

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


def multiply(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Multiply two entries; None when the result is not a multiple of the candidates."""
    if isinstance(left, Dim) and isinstance(right, Dim):
        return None
    if 0 in (left, right):
        return 0
    if isinstance(left, Dim):
        assert isinstance(right, int)
        return left._replace(scale=left.scale * right)
    if isinstance(right, Dim):
        return right._replace(scale=right.scale * left)
    return left * right


def divide(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Divide two entries as ONNX does, towards zero; None when candidates do not divide exactly."""
    if isinstance(right, Dim):
        return left.scale // right.scale if isinstance(left, Dim) and left.scale % right.scale == 0 else None
    if right == 0:
        return None
    if isinstance(left, Dim):
        return left._replace(scale=left.scale // right) if left.scale % right == 0 else None
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def equal(left: int | Dim, right: int | Dim) -> bool | None:
    """Compare two entries; None when the answer depends on the number of candidates.

    >>> equal(Dim("N"), -1), equal(Dim("N"), 1)
    (False, None)
    """
    if isinstance(left, Dim) != isinstance(right, Dim):
        fixed = right if isinstance(left, Dim) else left
        return False if isinstance(fixed, int) and fixed < 0 else None
    if isinstance(left, Dim):
        return True if left == right else None
    return left == right


def resolve_reshape(
    target: Sequence[int | Dim], source: Sequence[int | Dim], allow_zero: bool
) -> list[int | Dim] | None:
    """Fill in the 0 (same as the source) and -1 (the rest) of a reshape; None when it cannot be done.

    Examples
    --------
    >>> resolve_reshape([-1, 8], [Dim("N"), 2, 4], allow_zero=False)
    [Dim(name='N', scale=1), 8]
    """
    result: list[int | Dim] = []
    for axis, dim in enumerate(target):
        if dim == 0 and not allow_zero:
            if axis >= len(source):
                return None
            dim = source[axis]
        result.append(dim)
    if -1 not in result:
        return result
    total: int | Dim | None = 1
    for dim in source:
        total = multiply(total, dim) if total is not None else None
    known: int | Dim | None = 1
    for dim in result:
        if dim != -1 and known is not None:
            known = multiply(known, dim)
    if total is None or known is None:
        return None
    rest = divide(total, known)
    if rest is None:
        return None
    result[result.index(-1)] = rest
    return result
