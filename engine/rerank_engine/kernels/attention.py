"""Attention over tiles of query rows: scores, softmax and the weighted sum of values, without a matrix of scores.

A tile holds a few rows of scores. Both products go along the columns of what lies on their right (keys come
transposed), so that no sum runs across the lanes of a vector, and a row's numbers do not depend on the tile it is in.
Weights are kept as powers of two of what they lie below the largest; their sum is divided out of the result, which has
fewer elements than the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, I64, POINTER, Emitter, Index, i64
from rerank_engine.kernels.accumulate import Accumulator
from rerank_engine.kernels.lines import each_vector
from rerank_engine.kernels.math.exponential import bounded_power_of_two
from rerank_engine.kernels.math.formats import is_unordered
from rerank_engine.kernels.views import View, load_elements

ROWS = 12
"""Most query rows of a tile."""

_ROWS_AT_ONCE = 4
"""Rows whose softmax is computed side by side."""

_BLOCK_VECTORS = 32
"""Vectors of a row between two additions to its sum."""

_VECTORS = 2
"""Vectors of a row that are computed side by side."""

SLACK = 16
"""Elements behind every row of scores, for vectors that reach past its end; no target has more lanes."""


@dataclass(frozen=True)
class Scoring:
    """What happens to a score before the softmax, and to a probability after it.

    Attributes
    ----------
    scale
        Factor of every score.
    has_mask
        Whether numbers are added to the scores.
    condition
        Empty; ``"keep"``: where it is false the score becomes ``fill``; ``"drop"``: where it is true.
    fill
        See ``condition``.
    nan_to_zero
        Whether a probability that is NaN counts as zero.
    """

    scale: float
    has_mask: bool
    condition: str
    fill: float
    nan_to_zero: bool


def attend(
    module: ir.Module,
    e: Emitter,
    scoring: Scoring,
    registers: int,
    *,
    queries: View,
    keys: View,
    values: View,
    mask: View | None,
    condition: View | None,
    scores: View,
    target: View,
) -> None:
    """Compute attention.

    Parameters
    ----------
    module
        Gets the functions of tiles and rows.
    e
        Writes the instructions.
    scoring
        See :class:`Scoring`.
    registers
        Vector registers of the target.
    queries, keys, values
        (..., M, D), (..., D, S) and (..., S, E).
    mask, condition
        Broadcast to (..., M, S).
    scores
        Room for a tile and a factor for each of its rows, (ROWS + 1, S + SLACK).
    target
        (..., M, E).
    """
    rank, dtype = len(target.sizes), target.dtype
    element_bytes = ELEMENT_BYTES[dtype]
    queries, keys, values = (view.broadcast(rank) for view in (queries, keys, values))
    rows, columns, depth, length = target.sizes[-2], target.sizes[-1], queries.sizes[-1], keys.sizes[-1]
    lanes = max(1, e.lanes * 4 // element_bytes)
    # Two vectors of each row; what they are multiplied with and a factor need registers, too.
    most = min(ROWS, (registers - 1 - _VECTORS) // _VECTORS)
    extras = [view.broadcast(rank) for view in (mask, condition) if view is not None]
    weigh = _rows_function(module, e, scoring, extras, length, dtype)
    pitch = e.add(length, SLACK)
    factors = e.at(scores.address, e.mul(e.mul(pitch, ROWS), element_bytes))

    def one(batch: list[ir.Value]) -> None:
        start = [*batch, 0, 0]
        here, there, below, result = (view.at(start) for view in (queries, keys, values, target))
        beside = [view.at(start) for view in extras]

        def product(
            tile: _Tile, left: _Rows, right: _Rows, to: _Rows, inner: Index, factors: ir.Value | None = None
        ) -> None:
            sizes = [*(e.mul(rows.step, element_bytes) for rows in (left, right, to)), inner]
            arguments = [*(rows.address for rows in (left, right, to)), factors or scores.address, *map(e.value, sizes)]
            e.b.call(_tile_function(module, e, tile, dtype, sizes, has_factors=factors is not None), arguments)

        def tile(row: ir.Value, _: list[ir.Value], height: int) -> None:
            query = _Rows(e.at(here, e.mul(e.mul(row, queries.strides[-2]), element_bytes)), queries.strides[-2])
            goal = e.at(result, e.mul(e.mul(row, target.strides[-2]), element_bytes))

            def score(column: Index, part: _Tile) -> None:
                offset = e.mul(column, element_bytes)
                right, to = _Rows(e.at(there, offset), keys.strides[-2]), _Rows(e.at(scores.address, offset), pitch)
                product(part, query, right, to, depth)

            def gather(column: Index, part: _Tile) -> None:
                offset = e.mul(column, element_bytes)
                right, to = (
                    _Rows(e.at(below, offset), values.strides[-2]),
                    _Rows(e.at(goal, offset), target.strides[-2]),
                )
                product(part, _Rows(scores.address, pitch), right, to, length, factors)

            _each_part(e, length, _Tile(height, _VECTORS, lanes), score, may_overrun=True)

            arguments = [scores.address, factors, e.value(height), e.value(length)]
            for address, view in zip(beside, extras, strict=True):
                step = e.mul(view.strides[-2], ELEMENT_BYTES[view.dtype])
                arguments += [e.at(address, e.mul(row, step)), e.value(step)]
            e.b.call(weigh, arguments)
            _each_part(e, columns, _Tile(height, _VECTORS, lanes), gather, may_overrun=False)

        done: Index = 0
        for height in (most, *(less for less in (8, 4, 2, 1) if less < most)):
            if isinstance(rows, int) and rows < height:
                continue
            done, _ = e.loop(done, rows, height, partial(tile, height=height))

    e.nest(target.sizes[:-2], one)


@dataclass(frozen=True)
class _Rows:
    """Rows of neighbours: the address of the first, and elements from one to the next."""

    address: ir.Value
    step: Index


@dataclass(frozen=True)
class _Tile:
    """Rows and vectors that stay in registers; ``columns`` of them are stored, all when it is 0."""

    rows: int
    vectors: int
    lanes: int
    columns: int = 0


def _each_part(
    e: Emitter, columns: Index, widest: _Tile, run: Callable[[Index, _Tile], None], *, may_overrun: bool
) -> None:
    """Cut columns into tiles; ``may_overrun``: what is stored past the last column does no harm."""
    rows, lanes = widest.rows, widest.lanes
    width = widest.vectors * lanes
    if isinstance(columns, int):
        whole = columns // width * width
        if whole:
            e.loop(0, whole, width, lambda column, _: run(column, widest))
        if columns > whole:
            rest = columns - whole
            run(whole, _Tile(rows, -(-rest // lanes), lanes, 0 if may_overrun else rest))
        return
    done, _ = e.loop(0, columns, width, lambda column, _: run(column, widest))
    single = _Tile(rows, 1, lanes)
    if may_overrun:
        e.loop(done, e.add(columns, lanes - 1), lanes, lambda column, _: run(column, single))
        return
    done, _ = e.loop(done, columns, lanes, lambda column, _: run(column, single))
    e.loop(done, columns, 1, lambda column, _: run(column, _Tile(rows, 1, 1)))


def _tile_function(
    module: ir.Module, outer: Emitter, tile: _Tile, dtype: str, sizes: Sequence[Index], *, has_factors: bool
) -> ir.Function:
    """A product of one tile.

    Its arguments are the addresses of left, right, target and one factor a row, then ``sizes``: the bytes from row to
    row of the first three, and the depth. Sizes that are known are built in.
    """
    built_in = "_".join(str(entry) if isinstance(entry, int) else "n" for entry in sizes)
    kind = f"{dtype}_{'scaled_' if has_factors else ''}"
    name = f"attention_{kind}{tile.rows}x{tile.vectors}x{tile.lanes}_c{tile.columns}_{built_in}"
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4 + [I64] * 4), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), outer.lanes)
    left, right, target, factors, *given = function.args
    left_row, right_row, target_row, depth = (
        known if isinstance(known, int) else argument for known, argument in zip(sizes, given, strict=True)
    )
    element, size, lanes = ELEMENT_TYPES[dtype], ELEMENT_BYTES[dtype], tile.lanes
    lines = [e.at(left, e.mul(left_row, line)) for line in range(tile.rows)]
    first = [e.splat_constant(element, lanes, 0.0)] * (tile.rows * tile.vectors)

    def step(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row = e.at(right, e.mul(index, right_row))
        panel = [e.load(e.at(row, column * lanes * size), element, lanes) for column in range(tile.vectors)]
        result = []
        for line in range(tile.rows):
            factor = e.splat(e.load(e.at(lines[line], e.mul(index, size)), element), lanes)
            result += [e.fma(factor, panel[at], sums[line * tile.vectors + at]) for at in range(tile.vectors)]
        return result

    _, sums = e.loop(0, depth, 1, step, first)
    stored = tile.columns or tile.vectors * lanes
    for line in range(tile.rows):
        goal = e.at(target, e.mul(target_row, line))
        by = e.splat(e.load(e.at(factors, line * size), element), lanes) if has_factors else None
        for column in range(tile.vectors):
            value = sums[line * tile.vectors + column]
            value = e.b.fmul(value, by) if by is not None else value
            e.store_lanes(value, e.at(goal, column * lanes * size), stored - column * lanes)
    e.b.ret_void()
    return function


def _rows_function(
    module: ir.Module, outer: Emitter, scoring: Scoring, extras: list[View], length: Index, dtype: str
) -> ir.Function:
    """Rows of scores become weights in place.

    Arguments: address of the rows and of a factor for each, rows, length, and for each mask its rows and the bytes from
    one to the next.
    """
    masks = [_Mask(view.dtype, isinstance(view.strides[-1], int) and view.strides[-1] == 0) for view in extras]
    name = (
        f"attention_rows_{dtype}_{length if isinstance(length, int) else 'n'}"
        f"_{''.join('1' if mask.is_repeated else 'n' for mask in masks)}_{scoring.scale!r}"
        f"_{'mask' if scoring.has_mask else ''}_{scoring.condition}_{scoring.fill!r}"
        f"_{'zero' if scoring.nan_to_zero else ''}"
    )
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I64, *[POINTER, I64] * len(masks)])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), max(1, outer.lanes * 4 // ELEMENT_BYTES[dtype]))
    scores, factors, rows, count, *beside = function.args
    length = length if isinstance(length, int) else count
    pitch = e.mul(e.add(length, SLACK), ELEMENT_BYTES[dtype])

    def group(row: ir.Value, _: list[ir.Value], count: int) -> None:
        numbers = [e.add(row, at) for at in range(count)]
        own = [View.contiguous(e, e.at(scores, e.mul(number, pitch)), dtype, (length,)) for number in numbers]
        loads = [
            [mask.loader(e, e.at(beside[2 * at], e.mul(number, beside[2 * at + 1]))) for at, mask in enumerate(masks)]
            for number in numbers
        ]
        for number, factor in zip(numbers, _weigh_rows(e, scoring, own, loads), strict=True):
            e.store(factor, e.at(factors, e.mul(number, ELEMENT_BYTES[dtype])))

    done: Index = 0
    for count in (_ROWS_AT_ONCE, 1):
        done, _ = e.loop(done, rows, count, partial(group, count=count))
    e.b.ret_void()
    return function


def _round_up(e: Emitter, length: ir.Value) -> ir.Value:
    """The next multiple of the lanes, which are a power of two."""
    return e.b.and_(e.b.add(length, i64(e.lanes - 1)), i64(-e.lanes))


Load = Callable[[Index, int], ir.Value]
"""Position and width to the elements there."""


@dataclass(frozen=True)
class _Mask:
    """Rows that are combined with the scores; repeated ones have one element for all of a row."""

    dtype: str
    is_repeated: bool

    def loader(self, e: Emitter, row: ir.Value) -> Load:
        """What loads elements of one row."""

        def load(position: Index, width: int) -> ir.Value:
            if self.is_repeated:
                return e.splat(load_elements(e, row, self.dtype, 1), width)
            return load_elements(e, e.at(row, e.mul(position, ELEMENT_BYTES[self.dtype])), self.dtype, width)

        return load


def _weigh_rows(e: Emitter, scoring: Scoring, rows: list[View], masks: list[list[Load]]) -> list[ir.Value]:
    """Rows of scores become weights in place, side by side, so that no row waits for its own sum.

    Returns what the weights of each row are to be multiplied by to have the sum 1.
    """
    b = e.b
    (length,), dtype = rows[0].sizes, rows[0].dtype
    element = ELEMENT_TYPES[dtype]
    # Behind a row lies a vector that weighs nothing, so that no element is left over for a loop of its own.
    whole = -(-length // e.lanes) * e.lanes if isinstance(length, int) else _round_up(e, length)
    # The largest score stays the largest when all are multiplied by a positive number, which is then left for later.
    is_stored = bool(masks[0]) or scoring.scale <= 0
    rate = (1.0 if is_stored else scoring.scale) / math.log(2)

    def prepare(position: ir.Value, _: list[ir.Value]) -> None:
        for row, own in zip(rows, masks, strict=True):
            value = row.load([position], e.lanes)
            value = b.fmul(value, e.like(value, scoring.scale)) if scoring.scale != 1.0 else value
            if scoring.has_mask:
                value = b.fadd(value, own[0](position, e.lanes))
            if scoring.condition:
                chosen = (value, e.like(value, scoring.fill))
                value = b.select(own[-1](position, e.lanes), *(chosen if scoring.condition == "keep" else chosen[::-1]))
            row.store(value, [position])

    if is_stored:
        e.loop(0, whole, e.lanes, prepare)
    for row in rows:
        row.store(e.splat_constant(element, e.lanes, -math.inf), [length])

    # A score that is NaN makes the sum NaN, so the largest need not tell.
    peak = Accumulator("peak", dtype)

    def higher(position: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        return [peak.combine(e, known, row.load([position], e.lanes)) for row, known in zip(rows, carried, strict=True)]

    _, highest = e.loop(0, whole, e.lanes, higher, [peak.start(e, element, e.lanes)] * len(rows))
    largest = [e.splat(peak.across(e, value), e.lanes) for value in highest]

    def grow(position: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        totals = []
        for row, top, total in zip(rows, largest, carried, strict=True):
            below = b.fsub(row.load([position], e.lanes), top)
            value = bounded_power_of_two(e, b.fmul(below, e.like(below, rate)))
            row.store(value, [position])
            totals.append(b.fadd(total, value))
        return totals

    def block(start: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Sums of sums: rounding does not grow with the length of the row."""
        end = b.add(start, i64(_BLOCK_VECTORS * e.lanes))
        stop = b.select(b.icmp_signed("<", end, e.value(whole)), end, e.value(whole))
        _, parts = e.loop(start, stop, e.lanes, grow, nothing)
        return [b.fadd(total, part) for total, part in zip(totals, parts, strict=True)]

    nothing = [e.splat_constant(element, e.lanes, 0.0)] * len(rows)
    blocks = e.add(whole, (_BLOCK_VECTORS - 1) * e.lanes)
    _, sums = e.loop(0, blocks, _BLOCK_VECTORS * e.lanes, block, nothing)
    return [_factor(e, scoring, row, e.sum_lanes(total)) for row, total in zip(rows, sums, strict=True)]


def _factor(e: Emitter, scoring: Scoring, row: View, total: ir.Value) -> ir.Value:
    """What brings the sum of a row to 1."""
    b = e.b
    # The largest score weighs 1, so the sum is 0 only over no scores at all.
    is_empty = b.fcmp_ordered("==", total, e.like(total, 0.0))
    factor = b.select(is_empty, total, b.fdiv(e.like(total, 1.0), total))
    if not scoring.nan_to_zero:
        return factor
    is_nan = is_unordered(e, factor)

    def clear(position: ir.Value, width: int) -> None:
        row.store(e.splat_constant(ELEMENT_TYPES[row.dtype], width, 0.0), [position])

    with b.if_then(is_nan, likely=False):
        each_vector(e, row.sizes[0], clear)
    return b.select(is_nan, e.like(factor, 0.0), factor)
