"""Running sums and products along any axis."""

from __future__ import annotations

from llvmlite import ir

from rerank_engine.codegen.emitter import Carried, Emitter, Index
from rerank_engine.kernels.accumulate import Accumulator
from rerank_engine.kernels.lines import Line, each_line


def scan(
    e: Emitter,
    kind: str,
    dtype: str,
    *,
    source: ir.Value,
    target: ir.Value,
    outer: Index,
    length: Index,
    inner: Index,
    is_exclusive: bool,
    is_reversed: bool,
) -> None:
    """Running results over the middle of (outer, length, inner); ``kind`` is ``"sum"`` or ``"product"``.

    float32 is accumulated in float64. An exclusive result leaves the element at its own place out.
    """
    accumulator = Accumulator(kind, dtype)

    def line(one: Line) -> None:
        width = max(1, one.width)

        def step(index: ir.Value, carried: Carried) -> Carried:
            position = e.sub(e.sub(length, 1), index) if is_reversed else index
            element = accumulator.as_far(e, one.load(source, position, dtype, width))
            total = accumulator.combine(e, carried[0], element)
            one.store(accumulator.result(e, carried[0] if is_exclusive else total), target, position, dtype)
            return [total]

        e.loop(0, length, 1, step, [accumulator.start(e, accumulator.far, width)])

    each_line(e, outer, length, inner, line)
