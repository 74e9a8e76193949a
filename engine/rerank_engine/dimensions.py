"""Named dimensions: sizes that are known only when the model runs, and exact arithmetic on them.

A size is a plain integer or a :class:`Dim`, a polynomial with integer coefficients over names: ``N`` candidates, ``T``
events of history, ``50*N`` after a reshape, ``N+1`` after a user token was put in front of the list.

>>> N, T = Dim("N"), Dim("T")
>>> N * T * 4 + 1
Dim.parse('4*N*T+1')
>>> (N + 1) - N
1
>>> divide_exactly(4 * N * T, 2 * N)
Dim('T', 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rerank_engine.errors import GraphError

Monomial = tuple[str, ...]

_LONGEST_NAME = 64
_TERM = r"([+-]?)(?:(\d{1,18})(?:\*|(?![A-Za-z_])))?((?:[A-Za-z_]\w{0,63}(?:\*(?=[A-Za-z_]))?)*)"
MAX_COEFFICIENT, MAX_TERMS, MAX_FACTORS = 2**48, 64, 16
"""Bounds of an expression; no model comes near them, and a damaged file must not keep anyone busy."""


class Dim:
    """A size that depends on named dimensions.

    Parameters
    ----------
    name
        ``"N"``, the number of candidates, or another name.
    scale
        Constant factor: ``Dim("N", 50)`` has ``50 * N`` entries.

    Attributes
    ----------
    terms
        Pairs of sorted names and coefficient, none of them zero, in a canonical order.
    """

    __slots__ = ("terms",)
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, name: str, scale: int = 1) -> None:
        if not (name.isidentifier() and name.isascii() and len(name) <= _LONGEST_NAME):
            raise GraphError(f"{name!r} is no name for a dimension: letters, digits and _ only, not a digit first")
        if scale == 0:
            raise GraphError(f"dimension {name!r} times 0 is the plain size 0")
        self.terms = (((name,), int(scale)),)

    @classmethod
    def parse(cls, text: str) -> int | Dim:
        """Read what ``str`` writes.

        Raises
        ------
        GraphError
            The text is no such expression.

        Examples
        --------
        >>> Dim.parse("50*N"), Dim.parse("12")
        (Dim('N', 50), 12)
        """
        if text.isidentifier() and text.isascii() and len(text) <= _LONGEST_NAME:
            return cls(text)
        pattern = re.compile(_TERM, re.ASCII)
        terms: dict[Monomial, int] = {}
        at = 0
        while at < len(text):
            found = pattern.match(text, at)
            if found is None or not found[0].lstrip("+-") or (at > 0 and not found[1]):
                raise GraphError(f"{text!r} is no size: expected an integer or a sum like 2*N*T+1")
            names = tuple(sorted(found[3].split("*"))) if found[3] else ()
            coefficient = int(found[2] or 1) * (-1 if found[1] == "-" else 1)
            terms[names] = terms.get(names, 0) + coefficient
            at = found.end()
        if not text:
            raise GraphError("an empty text is no size")
        return _normal(terms.items())

    @property
    def names(self) -> frozenset[str]:
        """Every name that occurs."""
        return frozenset(name for names, _ in self.terms for name in names)

    @property
    def multiple(self) -> tuple[str, int] | None:
        """The name that it is a positive multiple of, and the factor; None for any other expression.

        >>> Dim("N", 50).multiple, (Dim("N") + 1).multiple
        (('N', 50), None)
        """
        (names, factor), *more = self.terms
        return (names[0], factor) if not more and len(names) == 1 and factor > 0 else None

    @property
    def may_be_negative(self) -> bool:
        """Whether some sizes of the names make it less than 0, as far as its signs tell."""
        return any(coefficient < 0 for _, coefficient in self.terms)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The size once the names are known.

        >>> Dim("N", 50).evaluate({"N": 3})
        150
        """
        total = 0
        for names, coefficient in self.terms:
            for name in names:
                coefficient *= sizes[name]
            total += coefficient
        return total

    def __add__(self, other: int | Dim) -> int | Dim:
        return _normal([*self.terms, *_terms(other)])

    def __sub__(self, other: int | Dim) -> int | Dim:
        return self + other * -1

    def __rsub__(self, other: int) -> int | Dim:
        return self * -1 + other

    def __mul__(self, other: int | Dim) -> int | Dim:
        return _normal(
            (tuple(sorted((*names, *others))), factor * more)
            for names, factor in self.terms
            for others, more in _terms(other)
        )

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __str__(self) -> str:
        text = ""
        for names, coefficient in self.terms:
            size = str(abs(coefficient)) if abs(coefficient) != 1 or not names else ""
            body = "*".join([size, *names] if size else names)
            text += ("-" if coefficient < 0 else "+" if text else "") + body
        return text

    def __repr__(self) -> str:
        if len(self.terms) == 1 and len(self.terms[0][0]) == 1:
            ((name,), scale) = self.terms[0]
            return f"Dim({name!r})" if scale == 1 else f"Dim({name!r}, {scale})"
        return f"Dim.parse({str(self)!r})"


def divide_exactly(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Divide two sizes; None where the quotient is no such polynomial.

    >>> divide_exactly(Dim("N", 50), 50), divide_exactly(Dim("N"), 2), divide_exactly(7, 2)
    (Dim('N'), None, None)
    """
    if right == 0:
        return None
    divisor, rest = _terms(right), left
    quotient: int | Dim = 0
    lead, factor = divisor[0]
    while rest != 0:
        names, coefficient = _terms(rest)[0]
        more = _without(names, lead)
        if more is None or coefficient % factor:
            return None
        part = _normal([(more, coefficient // factor)])
        quotient = quotient + part
        rest = rest - part * right
    return quotient


def product(sizes: Iterable[int | Dim]) -> int | Dim:
    """Multiply sizes; 1 for none.

    >>> product([Dim("N"), 2, 3])
    Dim('N', 6)
    """
    total: int | Dim = 1
    for size in sizes:
        total = total * size
    return total


def broadcast_strides(shape: Sequence[int | Dim], output: Sequence[int | Dim]) -> tuple[int | Dim, ...]:
    """Elements to the next index of each dimension of the result; 0 where the value is repeated.

    >>> broadcast_strides((5, 1), (3, 5, 4))
    (0, 1, 0)
    """
    strides: list[int | Dim] = []
    step: int | Dim = 1
    for axis in range(len(output) - 1, -1, -1):
        own_axis = axis - (len(output) - len(shape))
        dim = shape[own_axis] if own_axis >= 0 else 1
        strides.insert(0, 0 if dim == 1 else step)
        step = step * dim
    return tuple(strides)


def names_in(sizes: Iterable[int | Dim]) -> frozenset[str]:
    """Every dimension name in a shape."""
    return frozenset(name for size in sizes if isinstance(size, Dim) for name in size.names)


def solved_names(sizes: Iterable[int | Dim]) -> frozenset[str]:
    """Names whose size follows from one of these alone, as from ``50*N`` or ``T+1``, but not from ``N*T``."""
    return frozenset(
        next(iter(size.names))
        for size in sizes
        if isinstance(size, Dim) and len(size.names) == 1 and all(len(names) <= 1 for names, _ in size.terms)
    )


def resolve(size: int | Dim, sizes: Mapping[str, int]) -> int:
    """The size as an integer."""
    return size.evaluate(sizes) if isinstance(size, Dim) else size


def _terms(size: int | Dim) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Dim) else (((), size),)


def _normal(terms: Iterable[tuple[Monomial, int]]) -> int | Dim:
    total: dict[Monomial, int] = {}
    for names, coefficient in terms:
        total[names] = total.get(names, 0) + coefficient
    kept = sorted(
        ((names, coefficient) for names, coefficient in total.items() if coefficient),
        key=lambda term: (-len(term[0]), term[0]),
    )
    if any(abs(coefficient) > MAX_COEFFICIENT for _, coefficient in kept) and any(names for names, _ in kept):
        raise GraphError(f"a size has a factor beyond {MAX_COEFFICIENT}")
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    if len(kept) > MAX_TERMS or len(kept[0][0]) > MAX_FACTORS:
        raise GraphError(f"a size has more than {MAX_TERMS} terms or {MAX_FACTORS} factors")
    result = Dim.__new__(Dim)
    result.terms = tuple(kept)
    return result


def _without(names: Monomial, divisor: Monomial) -> Monomial | None:
    rest = list(names)
    for name in divisor:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)
