"""The steps of recurrent networks: one matrix product of the state a step, then the gates, vector by vector.

A single sequence waits for itself: a step is one chain of product, gate, product, gate. There the sums of the product
stay in registers (:func:`run_one`); many sequences at once share the weights that they load (:func:`run`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llvmlite import ir

from rerank_engine.codegen.emitter import F32, I64, Emitter, Index, i64, pieces
from rerank_engine.kernels import gemm, math

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

_FLOAT = 4

Vectors = list[ir.Value]


@dataclass(frozen=True)
class Gate:
    """An activation of a cell, as ONNX names it.

    Attributes
    ----------
    name
        "Sigmoid", "Tanh", "Relu", ...
    alpha, beta
        Its parameters, where it has any.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0


def apply(e: Emitter, gate: Gate, clip: float, x: ir.Value) -> ir.Value:
    """Clip to [-clip, clip] (0: not at all), then apply the activation."""
    if clip:
        x = e.minimum(e.maximum(x, e.like(x, -clip)), e.like(x, clip))
    b = e.b
    zero, one = e.like(x, 0.0), e.like(x, 1.0)
    alpha, beta = e.like(x, gate.alpha), e.like(x, gate.beta)
    if gate.name == "Sigmoid":
        return math.sigmoid(e, x)
    if gate.name == "Tanh":
        return math.hyperbolic_tangent(e, x)
    if gate.name == "Relu":
        return b.select(b.fcmp_ordered("<", x, zero), zero, x)
    if gate.name == "LeakyRelu":
        return b.select(b.fcmp_ordered("<", x, zero), b.fmul(alpha, x), x)
    if gate.name == "ThresholdedRelu":
        return b.select(b.fcmp_unordered(">", x, alpha), x, zero)
    if gate.name == "Affine":
        return e.fma(alpha, x, beta)
    if gate.name == "ScaledTanh":
        return b.fmul(alpha, math.hyperbolic_tangent(e, b.fmul(beta, x)))
    if gate.name == "HardSigmoid":
        return e.minimum(e.maximum(e.fma(alpha, x, beta), zero), one)
    if gate.name == "Elu":
        below = b.fmul(alpha, math.exponential_minus_one(e, x))
        return b.select(b.fcmp_ordered("<", x, zero), below, x)
    if gate.name == "Softsign":
        return b.fdiv(x, b.fadd(one, math.absolute(e, x)))
    return math.softplus(e, x)


def multiply(
    lowering: Lowering, *, left: ir.Value, rows: Index, weight: str, inner: int, columns: int, target: ir.Value
) -> None:
    """Multiply ``rows`` rows of a state by a matrix (inner, columns), constant or computed."""
    product = gemm.Product(inner=inner, columns=columns)
    if lowering.constant(weight) is not None:
        gemm.multiply_packed(lowering, product, lefts=[left], rows=rows, weight=weight, bias=None, target=target)
        return
    gemm.multiply_batched(
        lowering,
        product,
        left=left,
        right=lowering.address(weight),
        target=target,
        bias=None,
        batch=1,
        rows=rows,
        left_stride=0,
        right_stride=0,
        target_stride=0,
    )


def across(e: Emitter, length: int, body: Callable[[Index, int], None]) -> None:
    """Run ``body(start, width)`` over vectors that cover ``length`` elements."""
    whole = length // e.lanes * e.lanes
    if whole:
        e.loop(0, whole, e.lanes, lambda start, _: body(start, e.lanes))
    for start, width in pieces(length - whole, e.lanes):
        body(whole + start, width)


@dataclass(frozen=True)
class Recurrence:
    """Sizes and places of one run over a sequence.

    Attributes
    ----------
    batch, steps
        Sequences, and elements of the longest.
    hidden, gates
        Size of the state, and how many times that size the projected input has.
    projected
        Address of (batch, steps, gates * hidden).
    output
        Address of (batch, steps, hidden).
    lengths
        Address of int32 (batch,), or None when all sequences have ``steps`` elements.
    reverse
        Whether sequences run from their last element.
    """

    batch: Index
    steps: Index
    hidden: int
    gates: int
    projected: ir.Value
    output: ir.Value
    lengths: ir.Value | None
    reverse: bool


def run(
    lowering: Lowering,
    recurrence: Recurrence,
    states: Sequence[tuple[ir.Value, ir.Value, Index]],
    before_rows: Sequence[Callable[[], None]],
    rows: Sequence[Callable[[ir.Value, Index, ir.Value, int], None]],
    state: ir.Value,
) -> None:
    """Write the loop over time.

    Parameters
    ----------
    lowering
        Of the step.
    recurrence
        What is run over.
    states
        Address, initial value and elements from one row of the initial value to the next, for each state.
    before_rows, rows
        Alternating parts of one step: what runs for all rows at once, then what runs for each row with
        (row, first hidden element, address of the projected input at this time, width).
    state
        Address of the state that becomes the output of each step.
    """
    e, r = lowering.emitter, recurrence
    b, size = e.b, r.hidden * _FLOAT

    def begin(row: ir.Value) -> None:
        for address, initial, stride in states:
            here, there = e.at(address, e.mul(row, size)), e.at(initial, e.mul(e.mul(row, stride), _FLOAT))

            def one(start: Index, width: int, here: ir.Value = here, there: ir.Value = there) -> None:
                offset = e.mul(start, _FLOAT)
                e.store(e.load(e.at(there, offset), F32, width), e.at(here, offset))

            across(e, r.hidden, one)

    e.each(r.batch, begin)

    def length_of(row: ir.Value) -> Index:
        if r.lengths is None:
            return r.steps
        return b.sext(e.load(e.at(r.lengths, e.mul(row, 4)), ir.IntType(32)), I64)

    def place(row: ir.Value, done: ir.Value) -> ir.Value:
        at = e.sub(e.sub(length_of(row), 1), done) if r.reverse else done
        return e.value(e.add(e.mul(row, r.steps), at))

    def step(done: ir.Value, _: list[ir.Value]) -> None:
        def for_row(part: Callable[[ir.Value, Index, ir.Value, int], None], last: bool) -> Callable[[ir.Value], None]:
            def body(row: ir.Value) -> None:
                if r.lengths is None:
                    active(row)
                    return
                with b.if_else(b.icmp_signed("<", done, e.value(length_of(row)))) as (inside, outside):
                    with inside:
                        active(row)
                    with outside:
                        if last:
                            there = e.at(r.output, e.mul(e.add(e.mul(row, r.steps), done), size))
                            across(
                                e,
                                r.hidden,
                                lambda start, width: e.store(math.zero(width), e.at(there, e.mul(start, _FLOAT))),
                            )

            def active(row: ir.Value) -> None:
                at = place(row, done)
                projected = e.at(r.projected, e.mul(at, r.gates * size))
                across(e, r.hidden, lambda start, width: part(row, start, projected, width))
                if last:
                    here, there = e.at(state, e.mul(row, size)), e.at(r.output, e.mul(at, size))

                    def copy(start: Index, width: int) -> None:
                        offset = e.mul(start, _FLOAT)
                        e.store(e.load(e.at(here, offset), F32, width), e.at(there, offset))

                    across(e, r.hidden, copy)

            return body

        for index, (before, part) in enumerate(zip(before_rows, rows, strict=True)):
            before()
            e.each(r.batch, for_row(part, index == len(rows) - 1))

    e.loop(0, r.steps, 1, step)


_MOST_VECTORS = 8
"""Vectors of a state up to which its sums stay in registers."""

_CHAINS = 8
"""Sums beside each other that keep two multipliers of four cycles busy."""


def fits_registers(lowering: Lowering, recurrence: Recurrence, weights: Sequence[str]) -> bool:
    """Tell whether :func:`run_one` can serve: one sequence, constant weights, a state of a few whole vectors."""
    lanes = lowering.emitter.lanes
    return (
        recurrence.batch == 1
        and recurrence.hidden % lanes == 0
        and recurrence.hidden <= _MOST_VECTORS * lanes
        and all(lowering.constant(weight) is not None for weight in weights)
    )


def load_vectors(e: Emitter, base: ir.Value, count: int) -> Vectors:
    """Neighbouring whole vectors."""
    return [e.load(e.at(base, number * e.lanes * _FLOAT), F32, e.lanes) for number in range(count)]


def store_vectors(e: Emitter, vectors: Vectors, base: ir.Value) -> None:
    """Write neighbouring whole vectors."""
    for number, vector in enumerate(vectors):
        e.store(vector, e.at(base, number * e.lanes * _FLOAT))


def add_products(
    lowering: Lowering, left: ir.Value, blocks: Sequence[tuple[str, int]], first: Sequence[Vectors]
) -> list[Vectors]:
    """Add the products of one row and several square blocks of columns, which share what they load of the row.

    Parameters
    ----------
    lowering
        Of the step.
    left
        Address of the row.
    blocks
        Weight and number of the block: number 1 is the columns ``hidden`` to ``2 * hidden``.
    first
        What the sums of each block start with.

    Returns
    -------
    list
        The sums of each block.
    """
    e, count = lowering.emitter, len(first[0])
    hidden = count * e.lanes
    at_once = max(1, (lowering.registers - 2) // count)
    if len(blocks) > at_once:
        return [
            *add_products(lowering, left, blocks[:at_once], first[:at_once]),
            *add_products(lowering, left, blocks[at_once:], first[at_once:]),
        ]
    panels = [
        e.at(lowering.packed(weight, "panels", hidden), number * hidden * hidden * _FLOAT) for weight, number in blocks
    ]
    sums = [vector for vectors in first for vector in vectors]
    parts = 1
    while len(sums) * parts < _CHAINS and parts < e.lanes:
        parts *= 2
    length = hidden // parts

    def step(index: ir.Value, flat: Vectors) -> Vectors:
        result = []
        for part in range(parts):
            at = e.add(index, part * length)
            factor = e.splat(e.load(e.at(left, e.mul(at, _FLOAT)), F32), e.lanes)
            for place in range(len(sums)):
                row = e.at(panels[place // count], e.mul(at, hidden * _FLOAT))
                weight = e.load(e.at(row, place % count * e.lanes * _FLOAT), F32, e.lanes)
                result.append(e.fma(factor, weight, flat[part * len(sums) + place]))
        return result

    zeros = [math.zero(e.lanes)] * (len(sums) * (parts - 1))
    _, flat = e.loop(0, length, 1, step, [*sums, *zeros])
    while parts > 1:
        parts //= 2
        half = parts * len(sums)
        flat = [e.b.fadd(one, other) for one, other in zip(flat[:half], flat[half:], strict=True)]
    return [flat[start : start + count] for start in range(0, len(flat), count)]


def run_one(
    lowering: Lowering,
    recurrence: Recurrence,
    states: Sequence[tuple[ir.Value, ir.Value, Index]],
    cell: Callable[[Callable[[int], Vectors], list[Vectors]], list[Vectors]],
) -> None:
    """Write the loop over time of a single sequence.

    Parameters
    ----------
    lowering
        Of the step.
    recurrence
        What is run over.
    states
        As for :func:`run`; the first becomes the output of each step.
    cell
        From ``projected(gate)`` and the states to the new states. The old ones still lie in memory then.
    """
    e, r = lowering.emitter, recurrence
    count, size = r.hidden // e.lanes, r.hidden * _FLOAT
    for address, initial, _ in states:
        store_vectors(e, load_vectors(e, initial, count), address)
    length: Index = r.steps
    if r.lengths is not None:
        length = e.b.sext(e.load(r.lengths, ir.IntType(32)), I64)

    def step(done: ir.Value, _: list[ir.Value]) -> None:
        at: Index = e.sub(e.sub(length, 1), done) if r.reverse else done
        here = e.at(r.projected, e.mul(at, r.gates * size))
        old = [load_vectors(e, address, count) for address, _, _ in states]
        new = cell(lambda gate: load_vectors(e, e.at(here, gate * size), count), old)
        for state, vectors in zip(states, new, strict=True):
            store_vectors(e, vectors, state[0])
        store_vectors(e, new[0], e.at(r.output, e.mul(at, size)))

    def fill(done: ir.Value, _: list[ir.Value]) -> None:
        store_vectors(e, [math.zero(e.lanes)] * count, e.at(r.output, e.mul(done, size)))

    e.loop(0, length, 1, step)
    if r.lengths is not None:
        e.loop(length, r.steps, 1, fill)


def check_lengths(lowering: Lowering, recurrence: Recurrence, message: str) -> None:
    """Report a length outside [0, steps]; the step ends there, before anything is read."""
    e, r = lowering.emitter, recurrence
    if r.lengths is None:
        return
    lengths = r.lengths

    def one(row: ir.Value, _: list[ir.Value]) -> None:
        length = e.b.sext(e.load(e.at(lengths, e.mul(row, 4)), ir.IntType(32)), I64)
        bad = e.b.or_(e.b.icmp_signed("<", length, i64(0)), e.b.icmp_signed(">", length, e.value(r.steps)))
        with e.b.if_then(bad, likely=False):
            lowering.report(message, length)
            e.b.ret_void()

    e.loop(0, r.batch, 1, one)
