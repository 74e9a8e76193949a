"""Attention over tiles of query rows: scores, softmax and the weighted sum of values, without a matrix of scores.

A tile holds a few rows of scores. Both products go along the columns of what lies on their right (keys come
transposed), so that no sum runs across the lanes of a vector, and a row's numbers do not depend on the tile it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, I64, POINTER, Emitter, Index
from rerank_engine.kernels import math
from rerank_engine.kernels.accumulate import Accumulator, accumulate_row
from rerank_engine.kernels.lines import each_vector
from rerank_engine.kernels.math.formats import is_unordered
from rerank_engine.kernels.views import View, load_elements

ROWS = 6
"""Query rows of a tile. With the columns of a tile they fill the registers of AVX2, AVX-512 and NEON."""

SLACK = 16
"""Elements behind every row of scores, for vectors that reach past its end; no target has more lanes."""

_HEIGHTS = (ROWS, 4, 2, 1)


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
        Room for a tile, (ROWS, S + SLACK).
    target
        (..., M, E).
    """
    rank, dtype = len(target.sizes), target.dtype
    element_bytes = ELEMENT_BYTES[dtype]
    queries, keys, values = (view.broadcast(rank) for view in (queries, keys, values))
    rows, columns, depth, length = target.sizes[-2], target.sizes[-1], queries.sizes[-1], keys.sizes[-1]
    lanes = max(1, e.lanes * 4 // element_bytes)
    vectors = 4 if registers >= 32 else 2
    extras = [view.broadcast(rank) for view in (mask, condition) if view is not None]
    row_function = _row_function(module, e, scoring, extras, length, dtype)
    pitch = e.add(length, SLACK)

    def one(batch: list[ir.Value]) -> None:
        start = [*batch, 0, 0]
        here, there, below, result = (view.at(start) for view in (queries, keys, values, target))
        beside = [view.at(start) for view in extras]

        def product(tile: _Tile, left: _Rows, right: _Rows, to: _Rows, inner: Index) -> None:
            arguments = [e.value(inner)]
            for rows in (to, right, left):
                arguments = [rows.address, e.value(e.mul(rows.step, element_bytes)), *arguments]
            e.b.call(_tile_function(module, e, tile, dtype), arguments)

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
                product(part, _Rows(scores.address, pitch), right, to, length)

            _each_part(e, length, _Tile(height, vectors, lanes), score, may_overrun=True)

            def normalize(line: ir.Value) -> None:
                own = e.at(scores.address, e.mul(e.mul(line, pitch), element_bytes))
                places = [
                    e.at(address, e.mul(e.mul(e.add(row, line), view.strides[-2]), ELEMENT_BYTES[view.dtype]))
                    for address, view in zip(beside, extras, strict=True)
                ]
                e.b.call(row_function, [own, e.value(length), *places])

            e.each(height, normalize)
            _each_part(e, columns, _Tile(height, vectors, lanes), gather, may_overrun=False)

        done: Index = 0
        for height in _HEIGHTS:
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


def _tile_function(module: ir.Module, outer: Emitter, tile: _Tile, dtype: str) -> ir.Function:
    """A product of one tile: addresses and row lengths in bytes of left, right and target, and the depth."""
    name = f"attention_{dtype}_{tile.rows}x{tile.vectors}x{tile.lanes}_c{tile.columns}"
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, POINTER, I64, POINTER, I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), outer.lanes)
    left, left_row, right, right_row, target, target_row, depth = function.args
    element, size, lanes = ELEMENT_TYPES[dtype], ELEMENT_BYTES[dtype], tile.lanes
    lines = [e.at(left, e.mul(left_row, line)) for line in range(tile.rows)]
    first = [e.splat_constant(element, lanes, 0.0)] * (tile.rows * tile.vectors)

    def step(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row = e.at(right, e.b.mul(index, right_row))
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
        for column in range(tile.vectors):
            value = sums[line * tile.vectors + column]
            e.store_lanes(value, e.at(goal, column * lanes * size), stored - column * lanes)
    e.b.ret_void()
    return function


def _row_function(
    module: ir.Module, outer: Emitter, scoring: Scoring, extras: list[View], length: Index, dtype: str
) -> ir.Function:
    """Scores of one row become probabilities in place: address, length, and a row of each mask."""
    repeats = "".join("1" if isinstance(view.strides[-1], int) and view.strides[-1] == 0 else "n" for view in extras)
    known = length if isinstance(length, int) else "n"
    name = (
        f"attention_row_{dtype}_{known}_{repeats}_{scoring.scale!r}_{'mask' if scoring.has_mask else ''}"
        f"_{scoring.condition}_{scoring.fill!r}_{'zero' if scoring.nan_to_zero else ''}"
    )
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, *(POINTER for _ in extras)])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), max(1, outer.lanes * 4 // ELEMENT_BYTES[dtype]))
    row, count, *beside = function.args
    element, size = ELEMENT_TYPES[dtype], ELEMENT_BYTES[dtype]
    sizes: Index = length if isinstance(length, int) else count

    def load(position: Index, width: int) -> ir.Value:
        return e.load(e.at(row, e.mul(position, size)), element, width)

    def store(value: ir.Value, position: Index) -> None:
        e.store(value, e.at(row, e.mul(position, size)))

    def load_beside(number: int, position: Index, width: int) -> ir.Value:
        if repeats[number] == "1":
            return e.splat(load_elements(e, beside[number], extras[number].dtype, 1), width)
        place = e.at(beside[number], e.mul(position, ELEMENT_BYTES[extras[number].dtype]))
        return load_elements(e, place, extras[number].dtype, width)

    def scored(position: ir.Value, width: int) -> list[ir.Value]:
        value = score = load(position, width)
        if scoring.scale != 1.0:
            value = e.b.fmul(value, e.like(value, scoring.scale))
        if scoring.has_mask:
            value = e.b.fadd(value, load_beside(0, position, width))
        if scoring.condition:
            holds = load_beside(len(extras) - 1, position, width)
            fill = e.like(value, scoring.fill)
            value = e.b.select(holds, *((value, fill) if scoring.condition == "keep" else (fill, value)))
        if value is not score:
            store(value, position)
        return [value]

    sums, extremes = Accumulator("sum", dtype), Accumulator("largest", dtype)
    (largest,) = accumulate_row(e, [extremes], sizes, scored)

    def grown(position: ir.Value, width: int) -> list[ir.Value]:
        value = math.exponential(e, e.b.fsub(load(position, width), e.splat(largest, width)))
        store(value, position)
        return [value]

    (total,) = accumulate_row(e, [sums], sizes, grown)
    factor = sums.result(e, e.b.fdiv(e.like(total, 1.0), total))

    def finish(position: ir.Value, width: int) -> None:
        value = e.b.fmul(load(position, width), e.splat(factor, width))
        if scoring.nan_to_zero:
            value = e.b.select(is_unordered(e, value), e.like(value, 0.0), value)
        store(value, position)

    each_vector(e, sizes, finish)
    e.b.ret_void()
    return function
