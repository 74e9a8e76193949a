"""Places of the largest or smallest elements along any axis.

Where one extreme is asked for, NaN wins, as in NumPy. In a selection of several elements NaN counts as larger than
every number. Of equals (-0 and 0 are) the one with the lower index comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, F32, F64, I64, Carried, Emitter, Index, i64
from rerank_engine.kernels.accumulate import Accumulator
from rerank_engine.kernels.lines import Line, each_line
from rerank_engine.kernels.math.formats import is_unordered

_INDEX = "int64"


def extreme_index(e: Emitter, one: Line, source: ir.Value, dtype: str, *, is_largest: bool, is_last: bool) -> ir.Value:
    """Index of a line's extreme, the first or the last of equals; 0 for an empty line."""
    b, width = e.b, max(1, one.width)
    is_float = ELEMENT_TYPES[dtype] in (F32, F64)
    symbol = (">" if is_largest else "<") + ("=" if is_last else "")

    def wins(value: ir.Value, best: ir.Value) -> ir.Value:
        if not is_float:
            return (b.icmp_unsigned if dtype.startswith("u") else b.icmp_signed)(symbol, value, best)
        nan = is_unordered(e, value)
        if not is_last:
            nan = b.and_(nan, b.not_(is_unordered(e, best)))
        return b.or_(b.fcmp_ordered(symbol, value, best), nan)

    def step(index: ir.Value, carried: Carried) -> Carried:
        best, place = carried
        value = one.load(source, index, dtype, width)
        better = wins(value, best)
        return [b.select(better, value, best), b.select(better, e.splat(index, width), place)]

    worst = Accumulator("largest" if is_largest else "smallest", dtype).start(e, ELEMENT_TYPES[dtype], width)
    _, (_, place) = e.loop(0, one.length, 1, step, [worst, e.splat_constant(I64, width, 0)])
    return place


def extreme_indices(
    e: Emitter,
    dtype: str,
    *,
    source: ir.Value,
    target: ir.Value,
    outer: Index,
    length: Index,
    inner: Index,
    is_largest: bool,
    is_last: bool,
) -> None:
    """Indices of the extremes of the middle of (outer, length, inner), as (outer, inner) int64."""

    def line(one: Line) -> None:
        place = extreme_index(e, one, source, dtype, is_largest=is_largest, is_last=is_last)
        e.store(place, e.at(target, e.mul(one.number, ELEMENT_BYTES[_INDEX])))

    each_line(e, outer, length, inner, line)


def mark_largest(
    e: Emitter, dtype: str, *, source: ir.Value, target: ir.Value, outer: Index, length: Index, inner: Index
) -> None:
    """1 at the first largest element of each line of (outer, length, inner) floats, 0 elsewhere."""
    one_there = ir.Constant(ELEMENT_TYPES[dtype], 1.0)

    def line(one: Line) -> None:
        place = extreme_index(e, one, source, dtype, is_largest=True, is_last=False)

        def mark(index: ir.Value) -> None:
            here = e.b.icmp_signed("==", index, place)
            one.store(e.b.select(here, one_there, e.like(one_there, 0.0)), target, index, dtype)

        e.each(length, mark)

    each_line(e, outer, length, inner, line, is_single=True)


def select_several(
    e: Emitter,
    dtype: str,
    *,
    source: ir.Value,
    values: ir.Value,
    indices: ir.Value,
    outer: Index,
    length: Index,
    count: Index,
    inner: Index,
    is_largest: bool,
) -> None:
    """The ``count`` largest or smallest of each line of (outer, length, inner), best first.

    ``values`` and ``indices`` (int64) are (outer, count, inner); ``count`` is at most ``length``. A heap of the best
    so far has the worst of them in front, and is taken apart from there: count * log(count) at the end, and
    log(count) for each element that enters.
    """

    def line(one: Line) -> None:
        heap = _Heap(e, one, source, dtype, indices, count, is_largest)
        heap.fill()
        heap.sort()
        chosen = replace(one, length=count)

        def copy(place: ir.Value) -> None:
            chosen.store(one.load(source, heap.get(place), dtype, 1), values, place, dtype)

        e.each(count, copy)

    each_line(e, outer, length, inner, line, is_single=True)


@dataclass(frozen=True)
class _Heap:
    """Indices of the best elements of a line; no entry is ranked after its parent, so the front one is ranked last."""

    e: Emitter
    one: Line
    source: ir.Value
    dtype: str
    indices: ir.Value
    count: Index
    is_largest: bool

    def _place(self, place: Index) -> ir.Value:
        return replace(self.one, length=self.count).at(self.indices, place, _INDEX)

    def get(self, place: Index) -> ir.Value:
        """The index at a place."""
        return self.e.load(self._place(place), I64)

    def _put(self, index: ir.Value, place: Index) -> None:
        self.e.store(index, self._place(place))

    def fill(self) -> None:
        """Take the first elements, then replace the front one wherever another one is ranked before it."""
        e, b = self.e, self.e.b
        e.each(self.count, lambda place: self._put(place, place))
        half = b.ashr(e.value(self.count), i64(1))
        e.loop(
            0,
            half,
            1,
            lambda index, _: self._sift(
                e.sub(e.sub(half, 1), index), self.get(e.sub(e.sub(half, 1), index)), self.count
            ),
        )

        def enter(index: ir.Value, _: Carried) -> None:
            with b.if_then(self._before(index, self.get(0))):
                self._sift(0, index, self.count)

        with b.if_then(b.icmp_signed(">", e.value(self.count), i64(0))):
            e.loop(self.count, self.one.length, 1, enter)

    def sort(self) -> None:
        """Move the front one to the end of what is left, again and again."""
        e = self.e

        def last(index: ir.Value, _: Carried) -> None:
            end = e.sub(e.sub(self.count, 1), index)
            moved = self.get(end)
            self._put(self.get(0), end)
            self._sift(0, moved, end)

        e.loop(0, e.sub(self.count, 1), 1, last)

    def _sift(self, root: Index, item: ir.Value, size: Index) -> None:
        """Put ``item`` at ``root`` or below, so that the heap of ``size`` entries is in order again."""
        e, b = self.e, self.e.b

        def child_of(hole: ir.Value) -> tuple[ir.Value, ir.Value]:
            """The child that is ranked later, and whether there is one that is ranked after the item."""
            left = b.add(b.shl(hole, i64(1)), i64(1))
            right = b.add(left, i64(1))
            limit = e.value(size)
            has_left, has_right = b.icmp_signed("<", left, limit), b.icmp_signed("<", right, limit)
            # Without a child the hole's own entry is read: an address that is always good.
            left = b.select(has_left, left, hole)
            right = b.select(has_right, right, left)
            child = b.select(self._before(self.get(left), self.get(right)), right, left)
            return child, b.and_(has_left, self._before(item, self.get(child)))

        def move(hole: ir.Value, child: ir.Value) -> ir.Value:
            self._put(self.get(child), hole)
            return child

        hole = _descend(b, e.value(root), child_of, move)
        self._put(item, hole)

    def _before(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Whether the element at one index is ranked before that at another."""
        b = self.e.b
        symbol = ">" if self.is_largest else "<"
        one, other = self._key(left), self._key(right)
        compare = b.icmp_unsigned if self.dtype.startswith("u") else b.icmp_signed
        equal = b.and_(b.icmp_signed("==", one, other), b.icmp_signed("<", left, right))
        return b.or_(compare(symbol, one, other), equal)

    def _key(self, index: ir.Value) -> ir.Value:
        """The element as an integer of the same order; NaN is the largest."""
        e, b = self.e, self.e.b
        value = self.one.load(self.source, index, self.dtype, 1)
        element = ELEMENT_TYPES[self.dtype]
        if element not in (F32, F64):
            return value
        width = 8 * ELEMENT_BYTES[self.dtype]
        integer = ir.IntType(width)
        # The sum makes 0 of -0, and of numbers too small to be normal.
        bits = b.bitcast(b.fadd(value, e.like(value, 0.0)), integer)
        below_zero = b.ashr(bits, ir.Constant(integer, width - 1))
        ordered = b.xor(bits, b.and_(below_zero, ir.Constant(integer, 2 ** (width - 1) - 1)))
        return b.select(is_unordered(e, value), ir.Constant(integer, 2 ** (width - 1) - 1), ordered)


def _descend(
    b: ir.IRBuilder,
    start: ir.Value,
    look: Callable[[ir.Value], tuple[ir.Value, ir.Value]],
    move: Callable[[ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    """Go from place to place while ``look`` says so; where the way ends."""
    entry = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("sift", "down", "found"))
    b.branch(head)
    b.position_at_end(head)
    place = b.phi(I64)
    place.add_incoming(start, entry)
    following, goes_on = look(place)
    b.cbranch(goes_on, inside, after)
    b.position_at_end(inside)
    place.add_incoming(move(place, following), b.block)
    b.branch(head)
    b.position_at_end(after)
    return place
