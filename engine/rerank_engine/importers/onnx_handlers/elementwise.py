"""Elementwise operators, casts and copies; on known integers they compute at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import Dim
from rerank_engine.importers.onnx import ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles, inputs
from rerank_engine.importers.shapes import ShapeValue, divide, equal

if TYPE_CHECKING:
    import onnx


def _repeat(value: ShapeValue, count: int) -> tuple[int | Dim, ...]:
    return value.entries * count if len(value.entries) == 1 else value.entries


_ENTRYWISE: dict[str, Callable[[int | Dim, int | Dim], int | Dim | None]] = {
    "Mul": lambda a, b: a * b,
    "Div": divide,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
}


@handles(
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "PRelu",
)
def _two_inputs(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    left, right = (builder.shapes.get(name) for name in node.input)
    if left is not None or right is not None:
        known = [builder.shape_value(name) for name in node.input]
        if known[0] is not None and known[1] is not None and node.op_type in (*_ENTRYWISE, "Equal"):
            if _shape_entrywise(builder, node, known[0], known[1]):
                return
            raise builder.refuse("this arithmetic on the number of candidates is not supported")
    builder.emit(node.op_type, inputs(builder, node), output=node.output[0])


def _shape_entrywise(builder: OnnxBuilder, node: onnx.NodeProto, left: ShapeValue, right: ShapeValue) -> bool:
    """Compute on known integers; False when the result is none of ours."""
    if left.dtype != right.dtype:
        raise builder.refuse(f"inputs differ in dtype: {left.dtype} and {right.dtype}")
    count = max(len(left.entries), len(right.entries))
    pairs = list(zip(_repeat(left, count), _repeat(right, count), strict=True))
    scalar = left.is_scalar and right.is_scalar
    if node.op_type == "Equal":
        answers = [equal(a, b) for a, b in pairs]
        if None in answers:
            return False
        array = np.array(answers, dtype=np.bool_)
        builder.constant(node.output[0], array.reshape(()) if scalar else array)
        return True
    entries = [_ENTRYWISE[node.op_type](a, b) for a, b in pairs]
    if any(entry is None for entry in entries):
        return False
    known = tuple(entry for entry in entries if entry is not None)
    builder.shapes[node.output[0]] = ShapeValue(known, scalar, left.dtype)
    return True


@handles("Abs", "Exp", "Neg", "Not", "Relu", "Sigmoid", "Sqrt", "Tanh")
def _one_input(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.emit(node.op_type, inputs(builder, node), output=node.output[0])


@handles("Max", "Min", "Sum")
def _variadic(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    names = inputs(builder, node)
    op = "Add" if node.op_type == "Sum" else node.op_type
    if len(names) == 1:
        builder.emit("Identity", names, output=node.output[0])
        return
    result = names[0]
    for name in names[1:-1]:
        result = builder.emit(op, [result, name])
    builder.emit(op, [result, names[-1]], output=node.output[0])


@handles("LeakyRelu")
def _leaky_relu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    alpha = builder.attributes({"alpha": 0.01})["alpha"]
    builder.emit("LeakyRelu", inputs(builder, node), {"alpha": float(alpha)}, node.output[0])


_LARGEST = float(np.finfo(np.float32).max)
"""Bounds of Clip that are not given: ONNX takes the finite range, so that infinities become finite."""


@handles("Clip")
def _clip(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 11:
        found = builder.attributes({"min": -_LARGEST, "max": _LARGEST})
        low, high = float(found["min"]), float(found["max"])
    else:
        builder.attributes({})
        low, high = -_LARGEST, _LARGEST
        for index, name in enumerate(node.input[1:]):
            if name:
                array = builder.array(name)
                if array is None or array.size != 1:
                    raise builder.refuse("bounds must be constant scalars")
                low, high = (float(array.item()), high) if index == 0 else (low, float(array.item()))
    if math.isnan(low) or math.isnan(high):
        raise builder.refuse("a bound is NaN")
    builder.emit("Clip", [builder.value_name(node.input[0])], {"low": low, "high": high}, node.output[0])


@handles("Pow")
def _pow(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    exponent = builder.array(node.input[1])
    base = builder.value_name(node.input[0])
    if exponent is None or exponent.size != 1 or float(exponent.item()) not in (0.5, 1.0, 2.0):
        raise builder.refuse("only the constant exponents 0.5, 1 and 2 are supported")
    if exponent.ndim > len(builder.graph.values[base].shape):
        raise builder.refuse(f"an exponent of shape {exponent.shape} would add dimensions")
    power = float(exponent.item())
    if power == 2.0:
        builder.emit("Mul", [base, base], output=node.output[0])
    else:
        builder.emit("Sqrt" if power == 0.5 else "Identity", [base], output=node.output[0])


@handles("Where")
def _where(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    condition = builder.array(node.input[0])
    chosen = [builder.shape_value(name) for name in node.input[1:]]
    yes_no = [value for value in chosen if value is not None]
    if condition is not None and condition.ndim <= 1 and len(yes_no) == 2 and yes_no[0].dtype == yes_no[1].dtype:
        count = max(condition.size, *(len(value.entries) for value in yes_no))
        picks = np.broadcast_to(condition.reshape(-1), count)
        pairs = zip(picks, _repeat(yes_no[0], count), _repeat(yes_no[1], count), strict=True)
        entries = tuple(yes if pick else no for pick, yes, no in pairs)
        scalar = condition.ndim == 0 and all(value.is_scalar for value in yes_no)
        builder.shapes[node.output[0]] = ShapeValue(entries, scalar, yes_no[0].dtype)
        return
    builder.emit("Where", inputs(builder, node), output=node.output[0])


@handles("Cast")
def _cast(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    to = builder.attributes({"to": 0, "saturate": 1})["to"]
    if to not in ONNX_DTYPES:
        raise builder.refuse(f"a cast to ONNX type {to} is not supported")
    known = builder.shapes.get(node.input[0])
    if known is not None and ONNX_DTYPES[to] in ("int32", "int64"):
        builder.shapes[node.output[0]] = replace(known, dtype=ONNX_DTYPES[to])
        return
    builder.emit("Cast", inputs(builder, node), {"to": ONNX_DTYPES[to]}, node.output[0])


@handles("Identity", "Dropout")
def _identity(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if node.op_type == "Dropout":
        builder.attributes({"ratio": 0.5, "seed": 0})
        if len(node.output) > 1 and node.output[1]:
            raise builder.refuse("the mask output is not supported")
        if len(node.input) > 2 and node.input[2]:
            training = builder.array(node.input[2])
            if training is None or training.any():
                raise builder.refuse("training mode is not supported; it must be constant and off")
    else:
        builder.attributes({})
    if node.input[0] in builder.shapes:
        builder.shapes[node.output[0]] = builder.shapes[node.input[0]]
        return
    builder.emit("Identity", [builder.value_name(node.input[0])], output=node.output[0])
