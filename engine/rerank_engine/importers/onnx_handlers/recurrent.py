"""RNN, GRU and LSTM: weights and biases are cut by direction, the input is projected for all steps at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.ops.recurrent import ACTIVATION_DEFAULTS

if TYPE_CHECKING:
    import onnx

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_FUNCTIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


@dataclass(frozen=True)
class _Layer:
    """What all directions share."""

    op: str
    source: str
    batch: int | Dim
    steps: int | Dim
    hidden: int
    directions: int
    batch_first: bool


@handles("RNN", "GRU", "LSTM")
def _recurrent(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    op = node.op_type
    understood: dict[str, Any] = {
        "activation_alpha": None,
        "activation_beta": None,
        "activations": None,
        "clip": 0.0,
        "direction": b"forward",
        "hidden_size": None,
        "layout": 0,
    }
    if op == "GRU":
        understood["linear_before_reset"] = 0
    if op == "LSTM":
        understood["input_forget"] = 0
    if builder.opset < 7:
        raise builder.refuse("forms before opset 7 are not supported")
    found = builder.attributes(understood)
    direction = found["direction"].decode()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise builder.refuse(f"direction {direction!r} is not one of forward, reverse, bidirectional")
    names = [*node.input, *[""] * (8 - len(node.input))]
    layer = _layer(builder, op, names, 2 if direction == "bidirectional" else 1, bool(found["layout"]), found)
    activations = _activations(builder, op, layer.directions, found)
    results = []
    for index in range(layer.directions):
        reverse = direction == "reverse" or index == 1
        attributes = {**activations[index], "clip": float(found["clip"]), "reverse": int(reverse)}
        for key in ("linear_before_reset", "input_forget"):
            if key in found:
                attributes[key] = int(bool(found[key]))
        results.append(_direction(builder, layer, index, names, attributes))
    _assemble(builder, layer, node, results)


def _layer(
    builder: OnnxBuilder, op: str, names: list[str], directions: int, batch_first: bool, found: dict[str, Any]
) -> _Layer:
    source, weight = builder.value(names[0]), builder.value(names[1])
    recurrence = builder.value(names[2])
    if len(source.shape) != 3 or len(weight.shape) != 3 or len(recurrence.shape) != 3:
        raise builder.refuse(f"needs three dimensions, has {source}, {weight} and {recurrence}")
    hidden = recurrence.shape[2]
    if not isinstance(hidden, int) or found["hidden_size"] not in (None, hidden):
        raise builder.refuse(f"hidden_size={found['hidden_size']} does not fit {recurrence}")
    if recurrence.shape != (directions, _GATES[op] * hidden, hidden) or weight.shape[:2] != recurrence.shape[:2]:
        raise builder.refuse(f"{weight} and {recurrence} do not fit {directions} direction(s) of {hidden} hidden units")
    batch, steps = source.shape[:2] if batch_first else source.shape[1::-1]
    name = source.name
    if not batch_first:
        name = _swap(builder, name)
    return _Layer(op, name, batch, steps, hidden, directions, batch_first)


def _swap(builder: OnnxBuilder, name: str, output: str | None = None) -> str:
    """Exchange the first two dimensions; a reshape where one of them is 1."""
    shape = builder.graph.values[name].shape
    if 1 in shape[:2]:
        return builder.emit_shaped("Reshape", name, (shape[1], shape[0], *shape[2:]), output)
    order = (1, 0, *range(2, len(shape)))
    return builder.emit("Transpose", [name], {"perm": order}, output)


def _activations(builder: OnnxBuilder, op: str, directions: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Names, alphas and betas for each direction; the lists of parameters skip functions that have none."""
    given = found["activations"]
    names = [name.decode() for name in given] if given else list(_FUNCTIONS[op]) * directions
    known = {name.lower(): name for name in ACTIVATION_DEFAULTS}
    count = len(_FUNCTIONS[op])
    if len(names) != count * directions:
        raise builder.refuse(f"activations {names}: expected {count * directions}")
    if unknown := [name for name in names if name.lower() not in known]:
        raise builder.refuse(f"activation {unknown[0]!r} is not one of {', '.join(ACTIVATION_DEFAULTS)}")
    names = [known[name.lower()] for name in names]
    alphas = _parameters(builder, names, found["activation_alpha"], _WITH_ALPHA, 0)
    betas = _parameters(builder, names, found["activation_beta"], _WITH_BETA, 1)
    return [
        {
            "activations": tuple(names[start : start + count]),
            "alphas": tuple(alphas[start : start + count]),
            "betas": tuple(betas[start : start + count]),
        }
        for start in range(0, len(names), count)
    ]


def _parameters(
    builder: OnnxBuilder, names: list[str], given: list[float] | None, takers: tuple[str, ...], which: int
) -> list[float]:
    waiting = list(given or [])
    if len(waiting) == len(names):
        return [float(value) for value in waiting]
    result = []
    for name in names:
        default = ACTIVATION_DEFAULTS[name][which]
        result.append(float(waiting.pop(0)) if name in takers and waiting else default)
    if waiting:
        raise builder.refuse(f"activations {names} take fewer parameters than {given}")
    return result


def _direction(
    builder: OnnxBuilder, layer: _Layer, index: int, names: list[str], attributes: dict[str, Any]
) -> list[str]:
    """Emit one direction; return its outputs: sequence (batch, steps, H) and states (batch, H)."""
    hidden, gates = layer.hidden, _GATES[layer.op]
    weight = _transposed(builder, _cut(builder, names[1], index))
    recurrence = _transposed(builder, _cut(builder, names[2], index))
    projected = builder.emit("MatMul", [layer.source, weight])
    added, late = _biases(builder, layer, index, names[3], bool(attributes.get("linear_before_reset")))
    if added is not None:
        projected = builder.emit("Add", [projected, added])
    inputs = [projected]
    if layer.op == "GRU":
        inputs.append(builder.emit("Slice", [recurrence], {"axis": 1, "start": 0, "stop": 2 * hidden}))
        inputs.append(builder.emit("Slice", [recurrence], {"axis": 1, "start": 2 * hidden, "stop": 3 * hidden}))
        inputs.append(late or builder.own_constant("zeros", np.zeros(hidden, np.float32)))
    else:
        inputs.append(recurrence)
    inputs.append(_initial(builder, layer, index, names[5]))
    if layer.op == "LSTM":
        inputs.append(_initial(builder, layer, index, names[6]))
        attributes["has_peepholes"] = int(bool(names[7]))
        if names[7]:
            inputs.append(_cut(builder, names[7], index))
    attributes["has_lengths"] = int(bool(names[4]))
    if names[4]:
        inputs.append(builder.value_name(names[4]))
    states = 2 if layer.op == "LSTM" else 1
    assert builder.graph.values[projected].shape[2] == gates * hidden
    return builder.emit_many(layer.op, inputs, attributes, [None] * (1 + states))


def _biases(
    builder: OnnxBuilder, layer: _Layer, index: int, name: str, linear_before_reset: bool
) -> tuple[str | None, str | None]:
    """The bias of the projected input, and that of the candidate's state where it cannot join the first."""
    if not name:
        return None, None
    hidden, gates = layer.hidden, _GATES[layer.op]
    both = _cut(builder, name, index)
    first = builder.emit("Slice", [both], {"axis": 0, "start": 0, "stop": gates * hidden})
    second = builder.emit("Slice", [both], {"axis": 0, "start": gates * hidden, "stop": 2 * gates * hidden})
    if layer.op != "GRU" or not linear_before_reset:
        return builder.emit("Add", [first, second]), None
    late = builder.emit("Slice", [second], {"axis": 0, "start": 2 * hidden, "stop": 3 * hidden})
    early = builder.emit("Slice", [second], {"axis": 0, "start": 0, "stop": 2 * hidden})
    zeros = builder.own_constant("zeros", np.zeros(hidden, np.float32))
    joined = builder.emit("Concat", [early, zeros], {"axis": 0})
    return builder.emit("Add", [first, joined]), late


def _initial(builder: OnnxBuilder, layer: _Layer, index: int, name: str) -> str:
    if not name:
        return builder.own_constant("zeros", np.zeros((1, layer.hidden), np.float32))
    return _cut(builder, name, index, axis=1 if layer.batch_first else 0)


def _cut(builder: OnnxBuilder, name: str, index: int, axis: int = 0) -> str:
    """One direction's part of an array."""
    value = builder.value(name)
    cut = builder.emit("Slice", [value.name], {"axis": axis, "start": index, "stop": index + 1})
    return builder.emit_shaped("Reshape", cut, value.shape[:axis] + value.shape[axis + 1 :])


def _transposed(builder: OnnxBuilder, name: str) -> str:
    return builder.emit("Transpose", [name], {"perm": (1, 0)})


def _assemble(builder: OnnxBuilder, layer: _Layer, node: onnx.NodeProto, results: list[list[str]]) -> None:
    """Join the directions in the layout that the model asks for."""
    batch, steps, hidden = layer.batch, layer.steps, layer.hidden
    outputs = [*node.output, "", "", ""]
    if outputs[0]:
        parts = []
        for result in results:
            sequence = result[0] if layer.batch_first else _swap(builder, result[0])
            by_batch, by_step = (batch, steps, 1, hidden), (steps, 1, batch, hidden)
            parts.append(builder.emit_shaped("Reshape", sequence, by_batch if layer.batch_first else by_step))
        builder.emit("Concat", parts, {"axis": 2 if layer.batch_first else 1}, outputs[0])
    for index in range(1, len(results[0])):
        if outputs[index]:
            state = [batch, 1, hidden] if layer.batch_first else [1, batch, hidden]
            parts = [builder.emit_shaped("Reshape", result[index], state) for result in results]
            builder.emit("Concat", parts, {"axis": 1 if layer.batch_first else 0}, outputs[index])
