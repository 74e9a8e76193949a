"""Lines of an array along one axis: rows of neighbours, or vectors of columns that lie beside each other.

An array without gaps is (outer, length, inner) around an axis. With ``inner`` 1 a line is a row, and vectors lie along
it. Otherwise a vector holds as many lines as it has lanes. A kernel that is written over a line serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, Emitter, Index, i64, pieces, width_of
from rerank_engine.kernels.accumulate import Accumulator, Produce, accumulate_columns, accumulate_row
from rerank_engine.kernels.views import load_elements, store_elements

_UNROLL_LIMIT = 8
"""At most this many vectors side by side are written without a loop."""


@dataclass(frozen=True)
class Line:
    """One line, or ``width`` of them beside each other.

    Attributes
    ----------
    e
        Writes the instructions.
    block
        Index along the outer dimension.
    column
        Index along the inner dimension, of the first lane.
    length
        Elements of a line.
    inner
        Size of the inner dimension: elements from one position to the next.
    width
        Lines beside each other; 0 for a row, along which vectors are taken.
    """

    e: Emitter
    block: Index
    column: Index
    length: Index
    inner: Index
    width: int

    @property
    def number(self) -> Index:
        """Index of the line among all of them: that of its result in (outer, inner)."""
        return self.e.add(self.e.mul(self.block, self.inner), self.column)

    def at(self, array: ir.Value, position: Index, dtype: str) -> ir.Value:
        """Address of the element at a position, in an array of (outer, length, inner)."""
        e = self.e
        row = e.add(e.mul(self.block, self.length), position)
        index = e.add(e.mul(row, self.inner), self.column)
        return e.at(array, e.mul(index, ELEMENT_BYTES[dtype]))

    def load(self, array: ir.Value, position: Index, dtype: str, width: int) -> ir.Value:
        """Elements at a position."""
        return load_elements(self.e, self.at(array, position, dtype), dtype, width)

    def store(self, value: ir.Value, array: ir.Value, position: Index, dtype: str) -> None:
        """Store elements at a position."""
        store_elements(self.e, value, self.at(array, position, dtype), dtype)

    def spread(self, value: ir.Value, width: int) -> ir.Value:
        """A result of the line in ``width`` lanes."""
        return value if width_of(value) == width else self.e.splat(value, width)

    def accumulate(self, accumulators: Sequence[Accumulator], produce: Produce) -> list[ir.Value]:
        """Accumulate along the line; a scalar for a row, else a vector of ``width``."""
        if self.width == 0:
            return accumulate_row(self.e, accumulators, self.length, produce)
        return accumulate_columns(self.e, accumulators, self.length, self.width, produce)

    def each(self, body: Callable[[ir.Value, int], None]) -> None:
        """Run ``body(position, width)`` over the line."""
        if self.width:
            self.e.loop(0, self.length, 1, lambda index, _: body(index, self.width))
        else:
            each_vector(self.e, self.length, body)


def each_vector(e: Emitter, length: Index, body: Callable[[ir.Value, int], None]) -> None:
    """Run ``body(start, width)`` over neighbouring elements: whole vectors, then what is left."""
    if not isinstance(length, int):
        rest, _ = e.loop(0, length, e.lanes, lambda index, _: body(index, e.lanes))
        e.loop(rest, length, 1, lambda index, _: body(index, 1))
        return
    whole = length // e.lanes * e.lanes
    if whole > _UNROLL_LIMIT * e.lanes:
        e.loop(0, whole, e.lanes, lambda index, _: body(index, e.lanes))
    else:
        whole = 0
    for start, width in pieces(length - whole, e.lanes):
        body(i64(whole + start), width)


def each_line(
    e: Emitter,
    outer: Index,
    length: Index,
    inner: Index,
    body: Callable[[Line], None],
    *,
    is_single: bool = False,
) -> None:
    """Run ``body`` for every line of (outer, length, inner); ``is_single``: never for several at once."""

    def block(index: ir.Value) -> None:
        def columns(column: ir.Value, width: int) -> None:
            body(Line(e, index, column, length, inner, width))

        if isinstance(inner, int) and inner == 1:
            body(Line(e, index, 0, length, 1, 0))
        elif is_single:
            e.each(inner, lambda column: columns(column, 1))
        else:
            each_vector(e, inner, columns)

    e.each(outer, block)
