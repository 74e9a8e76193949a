"""Recurrent layers over sequences: RNN, GRU and LSTM, one direction a node.

The input comes projected already (``x @ W + b``, an ordinary matrix product over all elements at once), so that only
what depends on the state is left. Sequences lie batch first, so that candidates with a history each stay rows.
Equations and the meaning of every attribute are those of ONNX's RNN, GRU and LSTM. A sequence of length 0 leaves
its initial state as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import Dim, Node, Shape, Value, depends_on_candidates, is_per_candidate, shape_text
from rerank_engine.ops.registry import Array, Operator, attribute, refuse, register

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Index
    from rerank_engine.codegen.lowering import Lowering
    from rerank_engine.kernels.recurrent import Gate, Vectors

    Projected = Callable[[int], Vectors]

Attributes = Mapping[str, Any]

ACTIVATION_DEFAULTS: dict[str, tuple[float, float]] = {
    "Relu": (0.0, 0.0),
    "Tanh": (0.0, 0.0),
    "Sigmoid": (0.0, 0.0),
    "Softsign": (0.0, 0.0),
    "Softplus": (0.0, 0.0),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, 0.0),
    "ThresholdedRelu": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, 0.0),
}
"""Activations of cells, with the defaults of alpha and beta that their ONNX operators have."""

_COMMON: dict[str, Any] = {"reverse": 0, "has_lengths": 0, "clip": 0.0}
_PARAMETERS = {"alphas": None, "betas": None}


def _sizes(
    node: Node, inputs: Sequence[Value], gates: int, matrices: Sequence[int]
) -> tuple[int | Dim, int | Dim, int]:
    """Batch, steps and hidden size, after a check of everything that machine code relies on."""
    count = 1 + len(matrices) + _further(node)
    if len(inputs) != count:
        raise refuse(node, f"takes {count} inputs, has {len(inputs)}")
    projected = inputs[0]
    floats = inputs[: len(inputs) - attribute(node, "has_lengths")]
    if any(value.dtype != "float32" for value in floats):
        raise refuse(node, f"only float32 is supported, has {', '.join(map(str, floats))}")
    if len(projected.shape) != 3 or not isinstance(projected.shape[2], int) or projected.shape[2] % gates:
        raise refuse(node, f"needs (batch, steps, {gates} * hidden), has {projected}")
    batch, steps, hidden = projected.shape[0], projected.shape[1], projected.shape[2] // gates
    for value, factor in zip(inputs[1:], matrices, strict=False):
        if value.shape != (hidden, factor * hidden):
            raise refuse(node, f"{value} must have shape {shape_text((hidden, factor * hidden))}")
    names = attribute(node, "activations")
    if any(name not in ACTIVATION_DEFAULTS for name in names):
        raise refuse(node, f"activations {names} are not all of {', '.join(ACTIVATION_DEFAULTS)}")
    if any(len(attribute(node, key)) != len(names) for key in _PARAMETERS):
        raise refuse(node, f"needs an alpha and a beta for each of the activations {names}")
    if attribute(node, "has_lengths") and (inputs[-1].dtype, inputs[-1].shape) != ("int32", (batch,)):
        raise refuse(node, f"lengths {inputs[-1]} must be int32{shape_text((batch,))}")
    return batch, steps, hidden


def _further(node: Node) -> int:
    """Inputs behind the matrices."""
    own = {"RNN": 1, "GRU": 2, "LSTM": 2 + node.attributes.get("has_peepholes", 0)}[node.op]
    return int(own + attribute(node, "has_lengths"))


def _check_state(node: Node, value: Value, batch: int | Dim, hidden: int) -> None:
    if value.shape not in ((batch, hidden), (1, hidden)):
        raise refuse(node, f"initial state {value} must have shape {shape_text((batch, hidden))}, or one row")


def _check_row(node: Node, value: Value, length: int) -> None:
    if value.shape != (length,):
        raise refuse(node, f"{value} must have shape ({length},)")


def _outputs(batch: int | Dim, steps: int | Dim, hidden: int, states: int) -> list[tuple[str, Shape]]:
    return [("float32", (batch, steps, hidden)), *[("float32", (batch, hidden))] * states]


def _infer_rnn(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    batch, steps, hidden = _sizes(node, inputs, 1, (1,))
    _check_state(node, inputs[2], batch, hidden)
    return _outputs(batch, steps, hidden, 1)


def _infer_gru(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    batch, steps, hidden = _sizes(node, inputs, 3, (2, 1))
    _check_row(node, inputs[3], hidden)
    _check_state(node, inputs[4], batch, hidden)
    return _outputs(batch, steps, hidden, 1)


def _infer_lstm(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    batch, steps, hidden = _sizes(node, inputs, 4, (4,))
    _check_state(node, inputs[2], batch, hidden)
    _check_state(node, inputs[3], batch, hidden)
    if attribute(node, "has_peepholes"):
        _check_row(node, inputs[4], 3 * hidden)
    return _outputs(batch, steps, hidden, 2)


def _per_row(_: Node, inputs: Sequence[Value], __: Sequence[Value]) -> bool:
    """Sequences are independent; states and lengths come in rows of the same candidates, or without candidates."""
    return all(is_per_candidate(value.shape) for value in inputs if depends_on_candidates(value.shape))


# --- NumPy -------------------------------------------------------------------------------------------------


def _activation(name: str, alpha: float, beta: float, clip: float) -> Callable[[Array], Array]:
    functions: dict[str, Callable[[Array], Array]] = {
        "Relu": lambda x: np.where(x < 0, 0, x),
        "Tanh": np.tanh,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Softsign": lambda x: x / (1 + np.abs(x)),
        "Softplus": lambda x: np.logaddexp(x, 0),
        "Affine": lambda x: alpha * x + beta,
        "LeakyRelu": lambda x: np.where(x < 0, alpha * x, x),
        "ThresholdedRelu": lambda x: np.where(~(x <= alpha), x, 0),
        "ScaledTanh": lambda x: alpha * np.tanh(beta * x),
        "HardSigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "Elu": lambda x: np.where(x < 0, alpha * np.expm1(x), x),
    }
    function = functions[name]
    return (lambda x: function(np.clip(x, -clip, clip))) if clip else function


def _activations(attributes: Attributes) -> list[Callable[[Array], Array]]:
    """The cell's functions. The gates' inputs are clipped; the cell state is not, as ONNX Runtime reads the spec."""
    return [
        _activation(name, alpha, beta, attributes["clip"] if index < 2 else 0.0)
        for index, (name, alpha, beta) in enumerate(
            zip(attributes["activations"], attributes["alphas"], attributes["betas"], strict=True)
        )
    ]


def _unroll(
    inputs: Sequence[Array],
    attributes: Attributes,
    states: Sequence[Array],
    step: Callable[[Array, list[Array]], list[Array]],
) -> list[Array]:
    """Run ``step(projected, states)`` over time, each sequence up to its own length."""
    projected = inputs[0]
    batch, steps = projected.shape[:2]
    current = [np.array(np.broadcast_to(state, (batch, state.shape[-1]))).astype(projected.dtype) for state in states]
    output = np.zeros((batch, steps, current[0].shape[-1]), projected.dtype)
    lengths = inputs[-1].astype(np.int64) if attributes["has_lengths"] else np.full(batch, steps)
    if ((lengths < 0) | (lengths > steps)).any():
        raise InputError(f"sequence lengths must lie in 0 to {steps}, got {lengths.tolist()}")
    rows = np.arange(batch)
    for done in range(steps):
        active = done < lengths
        at = np.where(active, lengths - 1 - done if attributes["reverse"] else done, 0)
        following = step(projected[rows, at], current)
        current = [np.where(active[:, None], new, old) for new, old in zip(following, current, strict=True)]
        output[rows[active], at[active]] = current[0][active]
    return [output, *current]


def _reference_rnn(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    (f,) = _activations(attributes)
    return _unroll(inputs, attributes, [inputs[2]], lambda x, state: [f(x + state[0] @ inputs[1])])


def _reference_gru(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    f, g = _activations(attributes)
    gates, candidate, bias = inputs[1:4]

    def step(x: Array, state: list[Array]) -> list[Array]:
        (h,) = state
        hidden = h.shape[-1]
        zr = f(x[:, : 2 * hidden] + h @ gates)
        z, r = zr[:, :hidden], zr[:, hidden:]
        if attributes["linear_before_reset"]:
            new = g(x[:, 2 * hidden :] + r * (h @ candidate + bias))
        else:
            new = g(x[:, 2 * hidden :] + (r * h) @ candidate + bias)
        return [(1 - z) * new + z * h]

    return _unroll(inputs, attributes, [inputs[4]], step)


def _reference_lstm(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    f, g, finish = _activations(attributes)
    peepholes = inputs[4] if attributes["has_peepholes"] else np.zeros(3 * inputs[1].shape[0], inputs[0].dtype)

    def step(x: Array, state: list[Array]) -> list[Array]:
        h, c = state
        hidden = h.shape[-1]
        i, o, forget, new = np.split(x + h @ inputs[1], 4, axis=1)
        p_i, p_o, p_f = np.split(peepholes, 3)
        i = f(i + p_i * c)
        forget = 1 - i if attributes["input_forget"] else f(forget + p_f * c)
        c = forget * c + i * g(new)
        assert c.shape[-1] == hidden
        return [f(o + p_o * c) * finish(c), c]

    return _unroll(inputs, attributes, inputs[2:4], step)


# --- machine code ------------------------------------------------------------------------------------------


def _gates(node: Node) -> list[Gate]:
    from rerank_engine.kernels.recurrent import Gate

    return [
        Gate(name, alpha, beta)
        for name, alpha, beta in zip(*(attribute(node, key) for key in ("activations", *_PARAMETERS)), strict=True)
    ]


def _recurrence(lowering: Lowering, node: Node, gates: int) -> Any:
    from rerank_engine.kernels.recurrent import Recurrence, check_lengths

    batch, steps, columns = lowering.values[node.inputs[0]].shape
    assert isinstance(columns, int)
    recurrence = Recurrence(
        batch=lowering.size(batch),
        steps=lowering.size(steps),
        hidden=columns // gates,
        gates=gates,
        projected=lowering.address(node.inputs[0]),
        output=lowering.address(node.outputs[0]),
        lengths=lowering.address(node.inputs[-1]) if attribute(node, "has_lengths") else None,
        reverse=bool(attribute(node, "reverse")),
    )
    message = f"sequence length {{value}} of {node.op} node {node.name!r} is not in 0 to {steps}"
    check_lengths(lowering, recurrence, message)
    return recurrence


def _state(lowering: Lowering, target: str, initial: str, hidden: int) -> tuple[ir.Value, ir.Value, int]:
    """Address of a running state, of its initial value, and the stride of the latter's rows."""
    stride = 0 if lowering.values[initial].shape[0] == 1 else hidden
    return lowering.address(target), lowering.address(initial), stride


def _lower_rnn(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import F32
    from rerank_engine.kernels import recurrent

    e, r = lowering.emitter, _recurrence(lowering, node, 1)
    (f,) = _gates(node)
    clip = attribute(node, "clip")
    state = _state(lowering, node.outputs[1], node.inputs[2], r.hidden)
    if recurrent.fits_registers(lowering, r, node.inputs[1:2]):

        def cell(projected: Projected, _: list[Vectors]) -> list[Vectors]:
            (totals,) = recurrent.add_products(lowering, state[0], [(node.inputs[1], 0)], [projected(0)])
            return [[recurrent.apply(e, f, clip, total) for total in totals]]

        recurrent.run_one(lowering, r, [state], cell)
        return
    (sums,) = (view.address for view in lowering.scratch(node))

    def product() -> None:
        recurrent.multiply(
            lowering,
            left=state[0],
            rows=r.batch,
            weight=node.inputs[1],
            inner=r.hidden,
            columns=r.hidden,
            target=sums,
        )

    def row(index: ir.Value, start: Index, projected: ir.Value, width: int) -> None:
        own = e.mul(e.add(e.mul(index, r.hidden), start), 4)
        total = e.b.fadd(e.load(e.at(projected, e.mul(start, 4)), F32, width), e.load(e.at(sums, own), F32, width))
        e.store(recurrent.apply(e, f, clip, total), e.at(state[0], own))

    recurrent.run(lowering, r, [state], [product], [row], state[0])


def _lower_gru(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import F32
    from rerank_engine.kernels import recurrent

    e, r = lowering.emitter, _recurrence(lowering, node, 3)
    f, g = _gates(node)
    clip, hidden = attribute(node, "clip"), r.hidden
    state = _state(lowering, node.outputs[1], node.inputs[4], hidden)
    bias = lowering.address(node.inputs[3])
    gates, updates, sums, reset = (view.address for view in lowering.scratch(node))
    before = attribute(node, "linear_before_reset")

    def blend(z: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
        return e.fma(z, old, e.b.fmul(e.b.fsub(e.like(z, 1.0), z), new))

    if recurrent.fits_registers(lowering, r, node.inputs[1:3]):

        def cell(projected: Projected, states: list[Vectors]) -> list[Vectors]:
            (old,) = states

            constant = recurrent.load_vectors(e, bias, len(old))
            blocks, first = [(node.inputs[1], 1), (node.inputs[1], 0)], [projected(1), projected(0)]
            if before:
                resets, kept, inner = recurrent.add_products(
                    lowering, state[0], [*blocks, (node.inputs[2], 0)], [*first, constant]
                )
            else:
                resets, kept = recurrent.add_products(lowering, state[0], blocks, first)
            resets = [recurrent.apply(e, f, clip, value) for value in resets]
            if before:
                inner = list(map(e.fma, resets, inner, projected(2)))
            else:
                recurrent.store_vectors(e, list(map(e.b.fmul, resets, old)), reset)
                (inner,) = recurrent.add_products(lowering, reset, [(node.inputs[2], 0)], [constant])
                inner = list(map(e.b.fadd, inner, projected(2)))
            kept = [recurrent.apply(e, f, clip, value) for value in kept]
            new = [recurrent.apply(e, g, clip, value) for value in inner]
            return [list(map(blend, kept, old, new))]

        recurrent.run_one(lowering, r, [state], cell)
        return

    def products() -> None:
        recurrent.multiply(
            lowering,
            left=state[0],
            rows=r.batch,
            weight=node.inputs[1],
            inner=hidden,
            columns=2 * hidden,
            target=gates,
        )
        if before:
            candidate(state[0])

    def candidate(left: ir.Value) -> None:
        recurrent.multiply(
            lowering, left=left, rows=r.batch, weight=node.inputs[2], inner=hidden, columns=hidden, target=sums
        )

    def load(base: ir.Value, element: Index, width: int) -> ir.Value:
        return e.load(e.at(base, e.mul(element, 4)), F32, width)

    def gate_row(index: ir.Value, start: Index, projected: ir.Value, width: int) -> None:
        own, pair = e.add(e.mul(index, hidden), start), e.add(e.mul(index, 2 * hidden), start)
        z = e.b.fadd(load(projected, start, width), load(gates, pair, width))
        reset_at = e.add(start, hidden)
        second = e.b.fadd(load(projected, reset_at, width), load(gates, e.add(pair, hidden), width))
        e.store(recurrent.apply(e, f, clip, z), e.at(updates, e.mul(own, 4)))
        value = recurrent.apply(e, f, clip, second)
        value = value if before else e.b.fmul(value, load(state[0], own, width))
        e.store(value, e.at(reset, e.mul(own, 4)))

    def state_row(index: ir.Value, start: Index, projected: ir.Value, width: int) -> None:
        own = e.add(e.mul(index, hidden), start)
        inner = e.b.fadd(load(sums, own, width), load(bias, start, width))
        inner = e.b.fmul(load(reset, own, width), inner) if before else inner
        new = recurrent.apply(e, g, clip, e.b.fadd(load(projected, e.add(start, 2 * hidden), width), inner))
        z, old = load(updates, own, width), load(state[0], own, width)
        e.store(blend(z, old, new), e.at(state[0], e.mul(own, 4)))

    second = (lambda: None) if before else (lambda: candidate(reset))
    recurrent.run(lowering, r, [state], [products, second], [gate_row, state_row], state[0])


def _lower_lstm(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import F32
    from rerank_engine.kernels import recurrent

    e, r = lowering.emitter, _recurrence(lowering, node, 4)
    f, g, finish = _gates(node)
    clip, hidden = attribute(node, "clip"), r.hidden
    state = _state(lowering, node.outputs[1], node.inputs[2], hidden)
    cell = _state(lowering, node.outputs[2], node.inputs[3], hidden)
    peepholes = lowering.address(node.inputs[4]) if attribute(node, "has_peepholes") else None

    def update(
        gate: Callable[[int], ir.Value], peep: Callable[[int], ir.Value], old: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """New state and new cell of the gates' inputs 0 to 3."""

        def opened(number: int, of: ir.Value) -> ir.Value:
            value = gate(number)
            return recurrent.apply(e, f, clip, value if peepholes is None else e.fma(peep(number), of, value))

        i = opened(0, old)
        forget = e.b.fsub(e.like(i, 1.0), i) if attribute(node, "input_forget") else opened(2, old)
        new = e.fma(forget, old, e.b.fmul(i, recurrent.apply(e, g, clip, gate(3))))
        return e.b.fmul(opened(1, new), recurrent.apply(e, finish, 0.0, new)), new

    if recurrent.fits_registers(lowering, r, node.inputs[1:2]):

        def advance(projected: Projected, states: list[Vectors]) -> list[Vectors]:
            blocks = [(node.inputs[1], number) for number in range(4)]
            gates = recurrent.add_products(lowering, state[0], blocks, [projected(number) for number in range(4)])
            count = len(states[1])
            peeps = recurrent.load_vectors(e, peepholes, 3 * count) if peepholes is not None else []
            both = [
                update(lambda number: gates[number][at], lambda number: peeps[number * count + at], old)  # noqa: B023
                for at, old in enumerate(states[1])
            ]
            return [list(part) for part in zip(*both, strict=True)]

        recurrent.run_one(lowering, r, [state, cell], advance)
        return
    (sums,) = (view.address for view in lowering.scratch(node))

    def product() -> None:
        recurrent.multiply(
            lowering,
            left=state[0],
            rows=r.batch,
            weight=node.inputs[1],
            inner=hidden,
            columns=4 * hidden,
            target=sums,
        )

    def load(base: ir.Value, element: Index, width: int) -> ir.Value:
        return e.load(e.at(base, e.mul(element, 4)), F32, width)

    def row(index: ir.Value, start: Index, projected: ir.Value, width: int) -> None:
        own, four = e.add(e.mul(index, hidden), start), e.add(e.mul(index, 4 * hidden), start)

        def gate(number: int) -> ir.Value:
            shift = number * hidden
            return e.b.fadd(load(projected, e.add(start, shift), width), load(sums, e.add(four, shift), width))

        def peep(number: int) -> ir.Value:
            assert peepholes is not None
            return load(peepholes, e.add(start, number * hidden), width)

        opened, new = update(gate, peep, load(cell[0], own, width))
        e.store(new, e.at(cell[0], e.mul(own, 4)))
        e.store(opened, e.at(state[0], e.mul(own, 4)))

    recurrent.run(lowering, r, [state, cell], [product], [row], state[0])


def _scratch(*factors: int) -> Callable[[Node, Sequence[Value]], list[tuple[str, Shape]]]:
    """Buffers of ``factor * hidden`` elements for each sequence."""

    def scratch(_: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
        hidden = inputs[1].shape[0]
        return [("float32", (inputs[0].shape[0], factor * hidden)) for factor in factors]

    return scratch


register(
    Operator(
        "RNN",
        "recurrent layer over projected inputs (batch, steps, H), state matrix (H, H), initial state (batch, H)",
        _infer_rnn,
        _reference_rnn,
        attributes={"activations": ("Tanh",), "alphas": (0.0,), "betas": (0.0,), **_COMMON},
        lower=_lower_rnn,
        per_row=_per_row,
        scratch=_scratch(1),
    )
)
register(
    Operator(
        "GRU",
        "gated recurrent layer over projected inputs (batch, steps, 3H) in the order update, reset, candidate",
        _infer_gru,
        _reference_gru,
        attributes={
            "activations": ("Sigmoid", "Tanh"),
            "alphas": (0.0, 0.0),
            "betas": (0.0, 0.0),
            "linear_before_reset": 0,
            **_COMMON,
        },
        lower=_lower_gru,
        per_row=_per_row,
        scratch=_scratch(2, 1, 1, 1),
    )
)
register(
    Operator(
        "LSTM",
        "long short-term memory over projected inputs (batch, steps, 4H) in the order input, output, forget, cell",
        _infer_lstm,
        _reference_lstm,
        attributes={
            "activations": ("Sigmoid", "Tanh", "Tanh"),
            "alphas": (0.0, 0.0, 0.0),
            "betas": (0.0, 0.0, 0.0),
            "input_forget": 0,
            "has_peepholes": 0,
            **_COMMON,
        },
        lower=_lower_lstm,
        per_row=_per_row,
        scratch=_scratch(4),
    )
)
