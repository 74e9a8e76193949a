"""Matrix products by register tiles: MR rows times NV vectors of columns are kept in registers over the whole depth.

A packed weight is cut into panels of ``NV * lanes`` columns, each stored depth by depth and padded with zeros, so
that every vector load is whole; only the store of the last panel is cut to the real columns. Products with one or
two columns go along the depth instead, one dot product a row.

A long depth is summed in parts, which are added at the end: rounding grows with the length of a part only. Where it is
known that there are few rows, the parts are shorter and run beside each other, as a single sum would wait for itself.
All tiles of a product use the same parts: the numbers of a row do not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from llvmlite import ir

from rerank_engine.codegen.emitter import F32, I64, POINTER, Emitter, Index, i64, pieces, widen
from rerank_engine.kernels import math

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

_FLOAT = 4
_LONGEST_PART = 256
_SHORTEST_PART = 16
_DOT_COLUMNS = 2
"""Up to this many columns a row is multiplied along its depth."""


@dataclass(frozen=True)
class Product:
    """What a matrix product computes: ``activation(left @ right + bias)``.

    Attributes
    ----------
    inner
        Depth: columns of the left, rows of the right matrix.
    columns
        Columns of the result.
    activation
        Name of an activation of ``rerank_engine.ops.matmul.FUSED_ACTIVATIONS``, or empty.
    alpha
        Slope of LeakyRelu.
    has_bias
        Whether a row is added to every result row.
    has_few_rows
        Whether it is known that there are less than :data:`MANY` rows.
    joined
        Columns of the matrices that lie side by side as the left one; empty for one matrix.
    """

    inner: int
    columns: int
    activation: str = ""
    alpha: float = 0.0
    has_bias: bool = False
    has_few_rows: bool = False
    joined: tuple[int, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each left matrix."""
        return self.joined or (self.inner,)


@dataclass(frozen=True)
class Tiling:
    """How a product is cut into tiles.

    Attributes
    ----------
    vectors
        Vectors of columns that stay in registers; a packed panel is as wide.
    many_rows, few_rows
        Rows that stay in registers beside them where there are at least :data:`MANY` rows, and where there are fewer.
    """

    vectors: int
    many_rows: int
    few_rows: int

    def __str__(self) -> str:
        rows = f"{self.many_rows}" if self.many_rows == self.few_rows else f"{self.many_rows}|{self.few_rows}"
        return f"{rows}x{self.vectors}"


Tilings = Mapping[tuple[int, int], Tiling]
"""Measured tilings by depth and columns of the product; the others are chosen by :func:`choose_tiling`."""

MANY = 16
"""Rows from which on a product has many."""

_MOST_ROWS = 14


def choose_tiling(columns: int, lanes: int, registers: int) -> Tiling:
    """Pick the tiles: as many vectors as the columns fill, up to four, then as many rows as registers allow.

    The accumulators, the loaded panel row and one broadcast must fit: ``rows * vectors + vectors + 1``. Of 32 registers
    half hold accumulators: that keeps two multipliers busy, and sums of an earlier part of the depth fit beside them.
    """
    most = 4 if registers >= 32 else 2
    vectors = max(1, min(most, -(-columns // lanes)))
    rows = 16 // vectors if registers >= 32 else (registers - 1 - vectors) // vectors
    rows = min(_MOST_ROWS, rows)
    return Tiling(vectors, rows, rows)


def legal_tilings(columns: int, lanes: int, registers: int) -> list[Tiling]:
    """Every tiling that a search may pick, the one of :func:`choose_tiling` first, then by how much it keeps in use.

    At least six accumulators, or the multipliers wait for the sums; at most what the registers hold; best about two
    thirds of them, in wide tiles.

    >>> [str(tiling) for tiling in legal_tilings(128, 8, 16)]
    ['6x2', '5x2', '10x1', '3x3', '2x4', '4x3', '4x2', '8x1', '12x1', '2x3', '3x2', '6x1', '14x1']
    """
    first = choose_tiling(columns, lanes, registers)
    found = [
        Tiling(vectors, rows, rows)
        for vectors in range(1, min(4, -(-columns // lanes)) + 1)
        for rows in (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
        if rows * vectors + vectors + 1 <= registers and rows * vectors >= 6
    ]
    found.sort(key=lambda one: (abs(one.many_rows * one.vectors - 2 * registers // 3), -one.vectors))
    return [first, *(one for one in found if one != first)]


def cut_depth(inner: int, *, has_few_rows: bool = False) -> list[int]:
    """Lengths of the parts of a depth; only the last one differs from the others.

    >>> cut_depth(35), cut_depth(513)
    ([35], [171, 171, 171])
    >>> cut_depth(20, has_few_rows=True), cut_depth(35, has_few_rows=True), cut_depth(258, has_few_rows=True)
    ([20], [17, 18], [64, 64, 64, 66])
    """
    count = -(-inner // _LONGEST_PART)
    if has_few_rows:
        count = max(count, 1 if inner < 2 * _SHORTEST_PART else 2 if inner < 16 * _SHORTEST_PART else 4)
    if count < 2:
        return [inner]
    length = inner // count
    return [length] * (count - 1) + [inner - length * (count - 1)]


def uses_dot(columns: int) -> bool:
    """Tell whether a packed product goes along the depth."""
    return columns <= _DOT_COLUMNS


def multiply_packed(
    lowering: Lowering,
    product: Product,
    *,
    lefts: Sequence[ir.Value],
    rows: ir.Value | int,
    weight: str,
    bias: str | None,
    target: ir.Value,
) -> None:
    """Multiply ``rows`` rows by a constant matrix."""
    e = lowering.emitter
    if uses_dot(product.columns):
        right = lowering.packed(weight, "columns", 0)
        added = lowering.packed(bias, "plain", 0) if bias else None
        (left,) = lefts
        _multiply_by_dots(e, product, left, rows, right, added, target)
        return
    product = _with_rows(product, rows)
    tiling = lowering.tiling(product.inner, product.columns)
    width = tiling.vectors * e.lanes
    multiply_panels(
        e,
        product,
        tiling,
        lowering.registers,
        lefts=lefts,
        right=lowering.packed(weight, "panels", width),
        bias=lowering.packed(bias, "padded", width) if bias else None,
        target=target,
        rows=rows,
    )


def multiply_batched(
    lowering: Lowering,
    product: Product,
    *,
    left: ir.Value,
    right: ir.Value,
    target: ir.Value,
    bias: str | None,
    batch: Index,
    rows: Index,
    left_stride: Index,
    right_stride: Index,
    target_stride: Index,
) -> None:
    """Multiply a batch of computed matrices; strides are elements from one matrix to the next.

    The right matrix is read as it lies: a vector may reach past its last row by less than one vector, which the
    planner's padding behind every buffer allows for.
    """
    e = lowering.emitter
    product = _with_rows(product, rows)
    tiling = lowering.tiling(product.inner, product.columns)
    added = lowering.packed(bias, "padded", tiling.vectors * e.lanes) if bias else None

    def one(index: ir.Value) -> None:
        multiply_panels(
            e,
            product,
            tiling,
            lowering.registers,
            lefts=[e.at(left, e.mul(e.mul(index, left_stride), _FLOAT))],
            right=e.at(right, e.mul(e.mul(index, right_stride), _FLOAT)),
            bias=added,
            target=e.at(target, e.mul(e.mul(index, target_stride), _FLOAT)),
            rows=rows,
            is_packed=False,
        )

    e.each(batch, one)


def _with_rows(product: Product, rows: Index) -> Product:
    return replace(product, has_few_rows=isinstance(rows, int) and rows < MANY)


def multiply_panels(
    e: Emitter,
    product: Product,
    tiling: Tiling,
    registers: int,
    *,
    lefts: Sequence[ir.Value],
    right: ir.Value,
    bias: ir.Value | None,
    target: ir.Value,
    rows: ir.Value | int,
    is_packed: bool = True,
) -> None:
    """Multiply ``rows`` rows by a matrix that is packed in panels, or lies as it is."""
    width = tiling.vectors * e.lanes

    def panels(tile_rows: int) -> None:
        for panel in range(-(-product.columns // width)):
            start = panel * width
            columns = min(width, product.columns - start)
            # A last panel of fewer vectors gets more rows: as many sums must be under way as in the others.
            rows_here = min(_MOST_ROWS, tile_rows * tiling.vectors // -(-columns // e.lanes))
            _multiply_panel(
                e,
                product,
                rows_here,
                registers,
                lefts=lefts,
                right=e.at(right, (panel * product.inner * width if is_packed else start) * _FLOAT),
                right_stride=width if is_packed else product.columns,
                bias=e.at(bias, start * _FLOAT) if bias is not None else None,
                target=e.at(target, start * _FLOAT),
                rows=rows,
                columns=columns,
            )

    if isinstance(rows, int) or tiling.many_rows == tiling.few_rows:
        panels(tiling.few_rows if isinstance(rows, int) and rows < MANY else tiling.many_rows)
        return
    with e.b.if_else(e.b.icmp_signed("<", rows, i64(MANY))) as (few, many):
        with few:
            panels(tiling.few_rows)
        with many:
            panels(tiling.many_rows)


def _multiply_panel(
    e: Emitter,
    product: Product,
    tile_rows: int,
    registers: int,
    *,
    lefts: Sequence[ir.Value],
    right: ir.Value,
    right_stride: int,
    bias: ir.Value | None,
    target: ir.Value,
    rows: ir.Value | int,
    columns: int,
) -> None:
    """All rows of one panel: full tiles, then tiles of half the rows and less for what is left."""
    start: ir.Value | int = 0
    row = bias if bias is not None else ir.Constant(POINTER, None)
    left_over = rows
    for height in [tile_rows] + [height for height in (8, 4, 2, 1) if height < tile_rows]:
        if isinstance(left_over, int):
            if left_over < height:
                continue
            left_over %= height
        function = _tile_function(e, product, height, registers, right_stride, columns)

        def run(index: ir.Value, _: list[ir.Value], function: ir.Function = function) -> None:
            here = [
                e.at(left, e.b.mul(index, i64(width * _FLOAT)))
                for left, width in zip(lefts, product.widths, strict=True)
            ]
            there = e.at(target, e.b.mul(index, i64(product.columns * _FLOAT)))
            e.b.call(function, [*here, right, row, there])

        start, _ = e.loop(start, rows, height, run)


def _tile_function(
    outside: Emitter, product: Product, rows: int, registers: int, right_stride: int, columns: int
) -> ir.Function:
    """The function of one tile, shared by every product of the model that needs the same one."""
    lanes = outside.lanes
    vectors = -(-columns // lanes)
    name = (
        f"gemm_f32_{rows}x{vectors}x{lanes}_k{'+'.join(map(str, product.widths))}_n{columns}"
        f"_b{right_stride}_c{product.columns}_{'bias' if product.has_bias else 'zero'}"
        f"_{(product.activation or 'none').lower()}_{product.alpha!r}{'_few' if product.has_few_rows else ''}"
    )
    module = outside.b.module
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    kind = ir.FunctionType(ir.VoidType(), [POINTER] * (3 + len(product.widths)))
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), lanes)
    *lefts, right, bias, target = function.args
    first = [
        e.load(e.at(bias, column * lanes * _FLOAT), F32, lanes) if product.has_bias else math.zero(lanes)
        for column in range(vectors)
    ]

    parts = cut_depth(product.inner, has_few_rows=product.has_few_rows)
    accumulators = rows * vectors
    zeros = [math.zero(lanes)] * accumulators

    def step(index: Index, sums: list[ir.Value], number: int = 0, before: int = 0) -> list[ir.Value]:
        """One index of the depth, in left matrix ``number`` with ``before`` columns before it."""
        row = e.at(right, e.mul(index, right_stride * _FLOAT))
        panel = [e.load(e.at(row, column * lanes * _FLOAT), F32, lanes) for column in range(vectors)]
        column_address = e.at(lefts[number], e.mul(e.add(index, -before), _FLOAT))
        result = list(sums)
        for line in range(rows):
            factor = e.splat(e.load(e.at(column_address, line * product.widths[number] * _FLOAT), F32), lanes)
            for column in range(vectors):
                place = line * vectors + column
                result[place] = e.fma(factor, panel[column], result[place])
        return result

    def along(start: int, stop: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Indices of the depth from ``start`` to ``stop``, from one left matrix to the next."""
        before = 0
        for number, width in enumerate(product.widths):
            low, high = max(start, before), min(stop, before + width)
            if low < high:
                _, sums = e.loop(low, high, 1, partial(step, number=number, before=before), sums)
            before += width
        return sums

    if len(parts) == 1:
        sums = along(0, product.inner, first * rows)
    elif (accumulators + vectors + 1) * len(parts) <= registers and not product.joined:

        def steps(index: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
            return [
                value
                for number in range(len(parts))
                for value in step(
                    e.add(index, number * parts[0]), flat[number * accumulators : (number + 1) * accumulators]
                )
            ]

        _, flat = e.loop(0, parts[0], 1, steps, [*first * rows, *zeros * (len(parts) - 1)])
        last = (len(parts) - 1) * accumulators
        for extra in range(parts[-1] - parts[0]):
            flat[last:] = step(product.inner - parts[-1] + parts[0] + extra, flat[last:])
        sums = flat[:accumulators]
        for number in range(1, len(parts)):
            sums = [e.b.fadd(one, other) for one, other in zip(sums, flat[number * accumulators :], strict=False)]
    else:
        # There are registers for one part only; what is summed so far waits in memory.
        waiting = e.b.alloca(widen(F32, lanes), accumulators)
        sums, start = first * rows, 0
        for length in parts:
            part = along(start, start + length, zeros if start else sums)
            sums = list(part)
            for place, value in enumerate(part):
                slot = e.at(waiting, place * lanes * _FLOAT)
                total = e.b.fadd(e.load(slot, F32, lanes), value) if start else value
                sums[place] = total
                if start + length < product.inner:
                    e.store(total, slot)
            start += length
    for line in range(rows):
        for column in range(vectors):
            value = activate(e, product, sums[line * vectors + column])
            place = e.at(target, (line * product.columns + column * lanes) * _FLOAT)
            e.store_lanes(value, place, columns - column * lanes)
    e.b.ret_void()
    return function


def _multiply_by_dots(
    e: Emitter,
    product: Product,
    left: ir.Value,
    rows: ir.Value | int,
    right: ir.Value,
    bias: ir.Value | None,
    target: ir.Value,
) -> None:
    """One dot product for each row and column; the weight is stored column by column."""
    b = e.b
    inner = product.inner
    whole = inner // e.lanes * e.lanes

    def row(index: ir.Value) -> None:
        here = e.at(left, b.mul(index, i64(inner * _FLOAT)))
        for column in range(product.columns):
            there = e.at(right, column * inner * _FLOAT)
            total: ir.Value = e.load(e.at(bias, column * _FLOAT), F32) if bias is not None else math.zero(1)
            if whole:

                def step(position: ir.Value, carried: list[ir.Value], there: ir.Value = there) -> list[ir.Value]:
                    at = b.mul(position, i64(_FLOAT))
                    return [
                        e.fma(
                            e.load(e.at(here, at), F32, e.lanes),
                            e.load(e.at(there, at), F32, e.lanes),
                            carried[0],
                        )
                    ]

                _, (part,) = e.loop(0, whole, e.lanes, step, [math.zero(e.lanes)])
                total = b.fadd(total, e.sum_lanes(part))
            for start, width in pieces(inner - whole, e.lanes):
                at = (whole + start) * _FLOAT
                part = b.fmul(e.load(e.at(here, at), F32, width), e.load(e.at(there, at), F32, width))
                total = b.fadd(total, e.sum_lanes(part))
            place = b.add(b.mul(index, i64(product.columns)), ir.Constant(I64, column))
            e.store(activate(e, product, total), e.at(target, b.mul(place, i64(_FLOAT))))

    e.each(rows, row)


def activate(e: Emitter, product: Product, value: ir.Value) -> ir.Value:
    """Apply the fused activation."""
    from rerank_engine.ops.registry import OPERATORS

    if not product.activation:
        return value
    pointwise = OPERATORS[product.activation].pointwise
    assert pointwise is not None
    return pointwise(e, [value], {"alpha": product.alpha})
