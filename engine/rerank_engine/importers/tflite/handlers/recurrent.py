"""Recurrent layers over a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles
from rerank_engine.importers.tflite.schema import FUSED_ACTIVATIONS

_STATES = (18, 19)
_REFUSED = {
    "peephole weights": (9, 10, 11),
    "a projection": (16, 17),
    "layer normalisation": (20, 21, 22, 23),
}
_MOST_STEPS = 1000
_ONNX_GATES = (0, 3, 1, 2)
"""ONNX's order of the gates (input, output, forget, cell) in TFLite's (input, forget, cell, output)."""


@handles("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(call: Call) -> None:
    call.arity(20, 24)
    options = call.options("UnidirectionalSequenceLSTMOptions")
    for what, positions in _REFUSED.items():
        if any(call.has(position) for position in positions):
            raise call.refuse(f"{what} is not supported; use a plain LSTM layer")
    if not all(call.has(position) for position in (*range(1, 9), *range(12, 16))):
        raise call.refuse("coupled gates, and gates without a bias, are not supported; use a plain LSTM layer")
    if FUSED_ACTIVATIONS[4] != call.choice("fused_activation_function", options["fused_activation"], FUSED_ACTIVATIONS):
        raise call.refuse("only the activation TANH is supported")
    for name in ("proj_clip", "diagonal_recurrent_tensors"):
        if options[name]:
            raise call.refuse(f"{name}={options[name]} is not supported")
    units = call.shape(1)[0]
    _check_states(call)
    if call.rank(0) != 3:
        raise call.refuse(f"an input of rank {call.rank(0)} is not supported; 3 is")
    weights, recurrent, bias = (_stack(call, range(first, first + 4), units) for first in (1, 5, 12))
    steps, clip = call.shape(0)[0 if options["time_major"] else 1], float(options["cell_clip"])
    # A step changes the cell state by less than 1, so that a limit above the number of steps is never met.
    if 0 <= steps <= clip or clip <= 0:
        _run_layer(call, options["time_major"], weights, recurrent, bias)
    else:
        _run_clipped(call, options["time_major"], weights, recurrent, bias, clip)


def _run_layer(call: Call, time_major: bool, *arrays: NDArray[Any]) -> None:
    """Write ONNX's layer, which has the steps first, and an axis of directions behind them."""
    weights, recurrent, bias = arrays
    both = np.concatenate([bias, np.zeros_like(bias)])
    names = (
        call.new(array[None], "float32", what)
        for array, what in ((weights, "weights"), (recurrent, "recurrent"), (both, "bias"))
    )
    value = call.input(0)
    if not time_major:
        value = call.emit("Transpose", value, perm=[1, 0, 2])
    steps = call.emit("LSTM", value, *names, hidden_size=recurrent.shape[1])
    steps = call.emit("Squeeze", steps, call.new([1], "int64", "axes"))
    call.result(steps if time_major else call.emit("Transpose", steps, perm=[1, 0, 2]))


def _run_clipped(
    call: Call,
    time_major: bool,
    weights: NDArray[Any],
    recurrent: NDArray[Any],
    bias: NDArray[Any],
    clip: float,
) -> None:
    """Write out each step: ONNX's LSTM can limit what enters the gates, but not the cell state."""
    axis = 0 if time_major else 1
    count, units = call.shape(0)[axis], recurrent.shape[1]
    if not 0 < count <= _MOST_STEPS:
        raise call.refuse(f"a limit of the cell state, over {count} steps, is not supported; 1 to {_MOST_STEPS} are")
    low, high = call.new(-clip, "float32", "low"), call.new(clip, "float32", "high")
    transposed = call.new(recurrent.T, "float32", "recurrent")
    projected = call.emit("MatMul", call.input(0), call.new(weights.T, "float32", "weights"))
    projected = call.emit("Add", projected, call.new(bias, "float32", "bias"))
    sizes = call.new([units] * 4, "int64", "sizes")
    state = cell = ""
    states = []
    for step in range(count):
        gates = call.emit("Gather", projected, call.new(step, "int64", "step"), axis=axis)
        if step:
            gates = call.emit("Add", gates, call.emit("MatMul", state, transposed))
        first = call.emit("Split", gates, sizes, outputs=4, axis=-1)
        enter, leave, keep = (call.emit("Sigmoid", name) for name in (first, f"{first}:1", f"{first}:2"))
        new = call.emit("Mul", enter, call.emit("Tanh", f"{first}:3"))
        cell = call.emit("Add", call.emit("Mul", keep, cell), new) if step else new
        cell = call.emit("Clip", cell, low, high)
        state = call.emit("Mul", leave, call.emit("Tanh", cell))
        states.append(call.unsqueeze(state, [axis]))
    call.result(call.emit("Concat", *states, axis=axis))


def _stack(call: Call, positions: Sequence[int], units: int) -> NDArray[Any]:
    """Weights of the four gates under each other, in ONNX's order."""
    parts = [call.constant(positions[gate], f"input {positions[gate]}") for gate in _ONNX_GATES]
    if any(part.shape[:1] != (units,) for part in parts):
        raise call.refuse(f"its weights {[part.shape for part in parts]} do not fit {units} units")
    return np.concatenate(parts)


def _check_states(call: Call) -> None:
    """States must start at zero, which is what the interpreter does with variables."""
    for position in _STATES:
        tensor = call.scope.tensor(call.operator.inputs[position])
        if not tensor.is_variable or tensor.data is not None:
            raise call.refuse(f"input {position}, a state, must be a variable that starts at zero")
