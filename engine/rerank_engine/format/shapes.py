"""Dimensions in the GRAPH section: names with their largest sizes, expressions over names, and shapes that use them.

A file may state an expression in one way only, the canonical form of :mod:`rerank_engine.dimensions`; anything else
is damage. Sizes of expressions are bounded, because later stages multiply them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rerank_engine.dimensions import MAX_COEFFICIENT, Dim
from rerank_engine.errors import GraphError
from rerank_engine.format.layout import Source
from rerank_engine.graph import Shape

MAX_RANK = 32
MAX_DIMENSION_NAMES = 64
MAX_TERMS = 64
"""Most terms in one expression, and in the product of all sizes of one shape before like terms are joined."""

MAX_DEGREE = 8
"""Most factors in one term, and in a term of the product of all sizes of one shape."""


class ShapeReader:
    """Reads the dimension tables of a verified GRAPH section, and then shapes.

    Parameters
    ----------
    root
        Accessor of the graph.
    source
        For messages.

    Attributes
    ----------
    names
        Names of dimensions, sorted.
    maxima
        Declared largest sizes by name.
    """

    def __init__(self, root: Any, source: Source) -> None:
        self.source = source
        self.names: list[str] = []
        self.maxima: dict[str, int] = {}
        self._first_unused = 0
        if (count := root.DimensionNamesLength()) > MAX_DIMENSION_NAMES:
            self._fail("dimension_names", f"{count} names, at most {MAX_DIMENSION_NAMES} are allowed")
        for i in range(count):
            self._add_name(root.DimensionNames(i), f"dimension_names[{i}]")
        self._dimensions = [
            self._dimension(root.Dimensions(i), f"dimensions[{i}]") for i in range(root.DimensionsLength())
        ]
        if len(set(self._dimensions)) != len(self._dimensions):
            self._fail("dimensions", "an expression stands twice")
        if unused := set(self.names).difference(*(dim.names for dim in self._dimensions)):
            self._fail("dimension_names", f"{min(unused)!r} is used nowhere")

    def shape(self, sizes: Sequence[int], place: str) -> Shape:
        """Turn the stored numbers of a shape into sizes.

        Raises
        ------
        ModelFileError
            Too many dimensions, no such expression, or an expression too large to work with.
        """
        if len(sizes) > MAX_RANK:
            self._fail(place, f"{len(sizes)} dimensions, at most {MAX_RANK} are allowed")
        shape = tuple(size if size >= 0 else self._used(-1 - size, f"{place}[{i}]") for i, size in enumerate(sizes))
        if (terms := math.prod(len(dim.terms) for dim in shape if isinstance(dim, Dim))) > MAX_TERMS:
            self._fail(place, f"a product of {terms} terms, at most {MAX_TERMS} are allowed")
        if (degree := sum(len(dim.terms[0][0]) for dim in shape if isinstance(dim, Dim))) > MAX_DEGREE:
            self._fail(place, f"a product of {degree} names, at most {MAX_DEGREE} are allowed")
        return shape

    def check_all_used(self) -> None:
        """Check, after the last shape, that no expression is left over."""
        if self._first_unused != len(self._dimensions):
            self._fail(f"dimensions[{self._first_unused}]", "used by no shape")

    def _fail(self, place: str, problem: str) -> NoReturn:
        raise self.source.damaged(f"section GRAPH, {place}", problem)

    def _add_name(self, table: Any, place: str) -> None:
        name, maximum = table.Name().decode(), table.Maximum()
        try:
            Dim(name)
        except GraphError as error:
            self._fail(f"{place}.name", str(error))
        if self.names and name <= self.names[-1]:
            self._fail(f"{place}.name", f"{name!r} after {self.names[-1]!r}; names are sorted")
        self.names.append(name)
        if maximum:
            self.maxima[name] = maximum

    def _dimension(self, table: Any, place: str) -> Dim:
        count = table.TermsLength()
        if not 1 <= count <= MAX_TERMS:
            self._fail(place, f"{count} terms, expected 1 to {MAX_TERMS}")
        stored = tuple(self._term(table.Terms(i), f"{place}.terms[{i}]") for i in range(count))
        try:
            dim = sum_of_terms(stored)
        except GraphError as error:
            self._fail(place, str(error))
        if not isinstance(dim, Dim) or dim.terms != stored:
            self._fail(place, f"not in canonical form, which is {dim}")
        return dim

    def _term(self, table: Any, place: str) -> tuple[tuple[str, ...], int]:
        numbers, coefficient = table.NamesAsNumpy().tolist(), table.Coefficient()
        if len(numbers) > MAX_DEGREE:
            self._fail(f"{place}.names", f"{len(numbers)} factors, at most {MAX_DEGREE} are allowed")
        if abs(coefficient) > MAX_COEFFICIENT:
            self._fail(f"{place}.coefficient", f"{coefficient} is beyond {MAX_COEFFICIENT}")
        if numbers and max(numbers) >= len(self.names):
            self._fail(f"{place}.names", f"name {max(numbers)} of {len(self.names)}")
        return tuple(self.names[number] for number in numbers), coefficient

    def _used(self, index: int, place: str) -> Dim:
        if index >= len(self._dimensions):
            self._fail(place, f"dimension {index} of {len(self._dimensions)}")
        if index > self._first_unused:
            self._fail(place, f"dimension {index} before {self._first_unused}; they stand in order of their first use")
        self._first_unused = max(self._first_unused, index + 1)
        return self._dimensions[index]


def sum_of_terms(terms: Iterable[tuple[Sequence[str], int]]) -> int | Dim:
    """Build a size from names and coefficients, in any order.

    >>> sum_of_terms([((), 1), (("T", "N"), 4)])
    Dim.parse('4*N*T+1')
    """
    total: int | Dim = 0
    for names, coefficient in terms:
        part: int | Dim = coefficient
        for name in names:
            part = part * Dim(name)
        total = total + part
    return total


def unsolved_name(shapes: Iterable[Shape]) -> str | None:
    """Find a name whose size cannot be read off arrays of these shapes: it stands in products only.

    >>> unsolved_name([(Dim("N") * Dim("T"), Dim("N"))])
    'T'
    """
    dims = [dim for shape in shapes for dim in shape if isinstance(dim, Dim)]
    solved = {
        name for dim in dims for names, _ in dim.terms[:1] for name in names if len(names) == 1 and dim.names == {name}
    }
    return min((name for dim in dims for name in dim.names if name not in solved), default=None)


def least_elements(shape: Shape) -> int:
    """Bound of the number of elements when every name is 1; zeros count as ones, so that the rest is bounded too.

    >>> least_elements((Dim("N", 50), 0, 3))
    150
    """
    return math.prod(
        sum(abs(coefficient) for _, coefficient in dim.terms) if isinstance(dim, Dim) else max(dim, 1) for dim in shape
    )
