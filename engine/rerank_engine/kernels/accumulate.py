"""Running results (sums, products, extremes) along rows and columns, exact enough for long ones.

A float32 sum is kept in float32 over blocks of at most 32 steps and in float64 between blocks, so that its error does
not grow with the length: blocked summation after Higham, *Accuracy and Stability of Numerical Algorithms*, 2002,
section 4.2. Within a block of a row four sums run beside each other, which also hides the latency of the additions.
Products of float32 are kept in float64 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from rerank_engine.codegen.emitter import (
    ELEMENT_TYPES,
    F32,
    F64,
    I1,
    Carried,
    Emitter,
    Index,
    element_of,
    i64,
    pieces,
    widen,
    width_of,
)
from rerank_engine.graph import DTYPES

Produce = Callable[[ir.Value, int], Sequence[ir.Value]]
"""Position and width to a value for each accumulator. Every position is asked for exactly once."""

_BLOCK = 32
"""Steps (vectors of a row, elements of a column) between two additions in float64."""

_CHAINS = 4
"""Vectors of a row that are accumulated beside each other; it divides ``_BLOCK``."""


@dataclass(frozen=True)
class Accumulator:
    """One running result.

    Attributes
    ----------
    kind
        ``"sum"``, ``"product"``, ``"largest"`` or ``"smallest"``; the extremes keep NaN, and of bools they are "any"
        and "all". ``"peak"`` is the largest float that is not NaN, for the price of one instruction.
    dtype
        Of the elements, key of :data:`rerank_engine.graph.DTYPES`.
    """

    kind: str
    dtype: str

    @property
    def near(self) -> ir.Type:
        """Element type within a block."""
        if self.dtype == "bool":
            return I1
        return F64 if self.dtype == "float32" and self.kind == "product" else ELEMENT_TYPES[self.dtype]

    @property
    def far(self) -> ir.Type:
        """Element type between blocks."""
        return F64 if self.dtype == "float32" and self.kind in ("sum", "product") else self.near

    def start(self, e: Emitter, element: ir.Type, width: int) -> ir.Constant:
        """The result over no elements."""
        return e.splat_constant(element, width, self._identity)

    @property
    def _identity(self) -> float | int:
        if self.kind in ("sum", "product"):
            return 0 if self.kind == "sum" else 1
        lowest = self.kind in ("largest", "peak")
        if self.dtype in ("float32", "float64"):
            return -math.inf if lowest else math.inf
        if self.dtype == "bool":
            return 0 if lowest else 1
        limits = np.iinfo(DTYPES[self.dtype])
        return int(limits.min if lowest else limits.max)

    def combine(self, e: Emitter, left: ir.Value, right: ir.Value) -> ir.Value:
        """Join two results, or a result and an element."""
        b = e.b
        is_float = element_of(left) in (F32, F64)
        if self.kind == "sum":
            return b.fadd(left, right) if is_float else b.add(left, right)
        if self.kind == "product":
            return b.fmul(left, right) if is_float else b.mul(left, right)
        if self.kind == "peak":
            return b.select(b.fcmp_ordered(">", right, left), right, left)
        largest = self.kind == "largest"
        if is_float:
            return e.maximum(left, right) if largest else e.minimum(left, right)
        if self.dtype == "bool":
            return b.or_(left, right) if largest else b.and_(left, right)
        compare = b.icmp_unsigned if self.dtype.startswith("u") else b.icmp_signed
        return b.select(compare(">" if largest else "<", left, right), left, right)

    def as_near(self, e: Emitter, element: ir.Value) -> ir.Value:
        """A loaded element as what is combined within a block."""
        return _extended(e, element, self.near)

    def as_far(self, e: Emitter, value: ir.Value) -> ir.Value:
        """The result of a block as what is combined between blocks."""
        return _extended(e, value, self.far)

    def result(self, e: Emitter, value: ir.Value) -> ir.Value:
        """A finished result in the dtype of the elements."""
        if self.dtype == "float32" and element_of(value) == F64:
            return e.b.fptrunc(value, widen(F32, width_of(value)))
        return value

    def across(self, e: Emitter, value: ir.Value) -> ir.Value:
        """Join all lanes, halves first, so that the order is the same on every target."""
        width = width_of(value)
        while width > 1:
            width //= 2
            value = self.combine(e, e.slice_lanes(value, 0, width), e.slice_lanes(value, width, width))
        return value


def _extended(e: Emitter, value: ir.Value, element: ir.Type) -> ir.Value:
    return value if element_of(value) == element else e.b.fpext(value, widen(element, width_of(value)))


def accumulate_row(e: Emitter, accumulators: Sequence[Accumulator], length: Index, produce: Produce) -> list[ir.Value]:
    """Accumulate along neighbouring elements, whole vectors first.

    Returns
    -------
    list
        A scalar for each accumulator, in its near or far type: :meth:`Accumulator.result` finishes it.
    """
    if isinstance(length, int) and length <= _BLOCK * e.lanes:
        return _short_row(e, accumulators, length, produce)
    lanes = e.lanes

    def step(width: int) -> Callable[[ir.Value, Carried], Carried]:
        return lambda index, carried: _step(e, accumulators, carried, produce(index, width))

    def block(start: ir.Value, totals: Carried) -> Carried:
        first = [*_starts(e, accumulators, lanes)] * _CHAINS
        stop = e.b.add(start, i64(_BLOCK * lanes))
        _, flat = e.loop(start, stop, _CHAINS * lanes, _chained(e, accumulators, _CHAINS, produce), first)
        return _step(e, accumulators, totals, _join_chains(e, accumulators, flat), far=True)

    far = [accumulator.start(e, accumulator.far, lanes) for accumulator in accumulators]
    done, totals = e.loop(0, length, _BLOCK * lanes, block, far)
    chains = [*_starts(e, accumulators, lanes)] * _CHAINS
    done, chains = e.loop(done, length, _CHAINS * lanes, _chained(e, accumulators, _CHAINS, produce), chains)
    done, rest = e.loop(done, length, lanes, step(lanes), _join_chains(e, accumulators, chains))
    _, single = e.loop(done, length, 1, step(1), _starts(e, accumulators, 1))
    totals = _across(e, accumulators, _step(e, accumulators, totals, rest, far=True))
    return _step(e, accumulators, totals, single, far=True)


def _short_row(e: Emitter, accumulators: Sequence[Accumulator], length: int, produce: Produce) -> list[ir.Value]:
    """A row of one block: a loop over its vectors, and the rest in pieces."""
    lanes, count = e.lanes, len(accumulators)
    whole = length // lanes
    chains = min(_CHAINS, whole)
    parts: list[list[ir.Value]] = []
    if chains:
        flat = [
            value for chain in range(chains) for value in _near(e, accumulators, produce(i64(chain * lanes), lanes))
        ]
        done = whole // chains * chains
        if done > chains:
            body = _chained(e, accumulators, chains, produce)
            _, flat = e.loop(chains * lanes, done * lanes, chains * lanes, body, flat)
        for index in range(whole - done):
            here = slice(index * count, (index + 1) * count)
            flat[here] = _step(e, accumulators, flat[here], produce(i64((done + index) * lanes), lanes))
        parts.append(_across(e, accumulators, _join_chains(e, accumulators, flat)))
    for start, width in pieces(length - whole * lanes, lanes):
        values = produce(i64(whole * lanes + start), width)
        parts.append(_across(e, accumulators, _near(e, accumulators, values)))
    if not parts:
        return _starts(e, accumulators, 1)
    return _join_chains(e, accumulators, [value for part in parts for value in part])


def _chained(
    e: Emitter, accumulators: Sequence[Accumulator], chains: int, produce: Produce
) -> Callable[[ir.Value, Carried], Carried]:
    """A loop's body that takes one vector for each chain; what it carries lies chain by chain."""
    count = len(accumulators)

    def step(index: ir.Value, carried: Carried) -> Carried:
        result: Carried = []
        for chain in range(chains):
            values = produce(e.b.add(index, i64(chain * e.lanes)), e.lanes)
            result += _step(e, accumulators, carried[chain * count :][:count], values)
        return result

    return step


def accumulate_columns(
    e: Emitter, accumulators: Sequence[Accumulator], length: Index, width: int, produce: Produce
) -> list[ir.Value]:
    """Accumulate ``length`` steps of ``width`` lanes, each lane a column of its own.

    Returns
    -------
    list
        A vector for each accumulator, in its near or far type.
    """

    def step(index: ir.Value, carried: Carried) -> Carried:
        return _step(e, accumulators, carried, produce(index, width))

    if isinstance(length, int) and length <= _BLOCK:
        if length == 0:
            return _starts(e, accumulators, width)
        return e.loop(1, length, 1, step, _near(e, accumulators, produce(i64(0), width)))[1]

    def block(start: Index, stop: Index, totals: Carried) -> Carried:
        _, parts = e.loop(e.value(start), e.value(stop), 1, step, _starts(e, accumulators, width))
        return _step(e, accumulators, totals, parts, far=True)

    far = [accumulator.start(e, accumulator.far, width) for accumulator in accumulators]
    done, totals = e.loop(0, length, _BLOCK, lambda start, carried: block(start, e.add(start, _BLOCK), carried), far)
    return block(done, length, totals)


def _starts(e: Emitter, accumulators: Sequence[Accumulator], width: int) -> list[ir.Value]:
    return [accumulator.start(e, accumulator.near, width) for accumulator in accumulators]


def _near(e: Emitter, accumulators: Sequence[Accumulator], values: Sequence[ir.Value]) -> list[ir.Value]:
    return [accumulator.as_near(e, value) for accumulator, value in zip(accumulators, values, strict=True)]


def _step(
    e: Emitter,
    accumulators: Sequence[Accumulator],
    carried: Sequence[ir.Value],
    values: Sequence[ir.Value],
    *,
    far: bool = False,
) -> list[ir.Value]:
    """Join a value, or with ``far`` the result of a block, into each running result."""
    return [
        accumulator.combine(e, total, accumulator.as_far(e, value) if far else accumulator.as_near(e, value))
        for accumulator, total, value in zip(accumulators, carried, values, strict=True)
    ]


def _across(e: Emitter, accumulators: Sequence[Accumulator], values: Sequence[ir.Value]) -> list[ir.Value]:
    return [accumulator.across(e, value) for accumulator, value in zip(accumulators, values, strict=True)]


def _join_chains(e: Emitter, accumulators: Sequence[Accumulator], flat: Sequence[ir.Value]) -> list[ir.Value]:
    """Join what lies chain by chain, in pairs."""
    chains = [list(flat[start:][: len(accumulators)]) for start in range(0, len(flat), len(accumulators))]
    while len(chains) > 1:
        pairs = [_step(e, accumulators, left, right) for left, right in zip(chains[::2], chains[1::2], strict=False)]
        chains = pairs + chains[len(pairs) * 2 :]
    return chains[0]
