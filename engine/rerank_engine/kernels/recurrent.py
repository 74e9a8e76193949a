"""The steps of recurrent networks: one matrix product of the state a step, then the gates, vector by vector."""

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

Activation = Callable[[ir.Value], ir.Value]


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
