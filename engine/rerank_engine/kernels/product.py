"""Matrix products of any sizes, strides and dtypes, also where the depth or the columns are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, Emitter, Index, widen
from rerank_engine.kernels.views import View

_ROWS = 4
"""Rows that share a loaded vector of the right matrix."""

Convert = Callable[[ir.Value, str], ir.Value]


def multiply_views(
    e: Emitter,
    left: View,
    right: View,
    target: View,
    *,
    bias: View | None = None,
    convert: Convert | None = None,
    finish: Callable[[ir.Value], ir.Value] | None = None,
) -> None:
    """Multiply (..., M, K) by (..., K, C); batch dimensions are broadcast.

    Parameters
    ----------
    e
        Writes the instructions.
    left, right, target
        The arrays; columns of ``right`` and ``target`` are neighbours.
    bias
        Added to every row, (C,).
    convert
        Makes an element of the target's dtype out of a loaded one and the name of its dtype.
    finish
        Applied to each sum before it is stored.
    """
    rank = len(target.sizes)
    left, right = left.broadcast(rank), right.broadcast(rank)
    rows, columns, depth = target.sizes[-2], target.sizes[-1], left.sizes[-1]
    element = ELEMENT_TYPES[target.dtype]
    floats = target.dtype.startswith("float")

    def load(view: View, address: ir.Value, width: int) -> ir.Value:
        value = e.load(address, ELEMENT_TYPES[view.dtype], width)
        return convert(value, view.dtype) if convert else value

    def one(batch: Sequence[ir.Value]) -> None:
        here, there, result = (view.at([*batch, 0, 0]) for view in (left, right, target))

        def tile(row: Index, height: int, column: Index, width: int) -> None:
            if bias is not None:
                first = e.load(e.at(bias.address, e.mul(column, ELEMENT_BYTES[bias.dtype])), element, width)
            else:
                first = ir.Constant(widen(element, width), None)
            start = e.at(there, e.mul(column, ELEMENT_BYTES[right.dtype]))
            lines = [
                e.at(here, e.mul(e.mul(e.add(row, line), left.strides[-2]), ELEMENT_BYTES[left.dtype]))
                for line in range(height)
            ]

            def step(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                vector = load(
                    right, e.at(start, e.mul(e.mul(index, right.strides[-2]), ELEMENT_BYTES[right.dtype])), width
                )
                result = []
                for line, total in zip(lines, sums, strict=True):
                    address = e.at(line, e.mul(e.mul(index, left.strides[-1]), ELEMENT_BYTES[left.dtype]))
                    factor = e.splat(load(left, address, 1), width)
                    result.append(e.fma(factor, vector, total) if floats else e.b.add(e.b.mul(factor, vector), total))
                return result

            _, sums = e.loop(0, depth, 1, step, [first] * height)
            for line, total in enumerate(sums):
                place = e.add(e.mul(e.add(row, line), target.strides[-2]), column)
                e.store(finish(total) if finish else total, e.at(result, e.mul(place, ELEMENT_BYTES[target.dtype])))

        done: Index = 0
        for height in (_ROWS, 1):

            def row_step(row: ir.Value, _: list[ir.Value], height: int = height) -> None:
                at: Index = 0
                for width in (e.lanes, 1):

                    def column_step(column: ir.Value, _: list[ir.Value], width: int = width) -> None:
                        tile(row, height, column, width)

                    at, _ = e.loop(at, columns, width, column_step)

            done, _ = e.loop(done, rows, height, row_step)

    e.nest(target.sizes[:-2], one)
