"""Arithmetic: sums, products, quotients, remainders, powers, extremes, rounding, shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Dim, Value, shape_text
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.elementwise import emit_elementwise, number, require_dtype
from rerank_engine.importers.onnx_handlers.registry import handles, inputs
from rerank_engine.importers.shape_folding import fold_shape_node
from rerank_engine.importers.shapes import arithmetic
from rerank_engine.ops.elementwise import FLOATS, INTEGERS

if TYPE_CHECKING:
    import onnx


@handles("Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sign", "Sqrt", "Floor", "Ceil", "Round")
def _same_operator(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    emit_elementwise(builder, node)


@handles("Reciprocal")
def _reciprocal(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, FLOATS)
    source = builder.value(node.input[0])
    builder.emit("Div", [number(builder, 1.0, source.dtype), source.name], output=node.output[0])


@handles("Mod")
def _modulo(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    fmod = builder.attributes({"fmod": 0})["fmod"]
    if fmod not in (0, 1):
        raise builder.refuse(f"attribute fmod={fmod} is not supported; only 0 and 1 are")
    emit_elementwise(builder, node, attributes={"fmod": int(fmod)})


@handles("BitShift")
def _shift(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    direction = builder.attributes({"direction": b""})["direction"].decode()
    if direction not in ("LEFT", "RIGHT"):
        raise builder.refuse(f"attribute direction={direction!r} must be 'LEFT' or 'RIGHT'")
    emit_elementwise(builder, node, attributes={"left": int(direction == "LEFT")})


# --- any number of inputs --------------------------------------------------------------------------------------


@handles("Max", "Min")
def _extreme(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    if not fold_shape_node(builder, node):
        _chain(builder, node.op_type, inputs(builder, node), node.output[0])


@handles("Sum")
def _sum(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, FLOATS)
    _chain(builder, "Add", inputs(builder, node), node.output[0])


@handles("Mean")
def _mean(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input, FLOATS)
    names = inputs(builder, node)
    if len(names) == 1:
        _chain(builder, "Add", names, node.output[0])
        return
    total = _chain(builder, "Add", names, None)
    count = number(builder, float(len(names)), builder.graph.values[total].dtype)
    builder.emit("Div", [total, count], output=node.output[0])


def _chain(builder: OnnxBuilder, op: str, names: Sequence[str], output: str | None) -> str:
    if len(names) == 1:
        return builder.emit("Identity", names, output=output)
    result = names[0]
    for name in names[1:-1]:
        result = builder.emit(op, [result, name])
    return builder.emit(op, [result, names[-1]], output=output)


# --- limits ----------------------------------------------------------------------------------------------------


@handles("Clip")
def _clip(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    """Lower bound first: where the bounds cross, ONNX gives the upper one."""
    if builder.opset < 11:
        largest = float(np.finfo(np.float32).max)
        require_dtype(builder, node.input, FLOATS)
        found = builder.attributes({"min": -largest, "max": largest})
        limits = {"low": float(found["min"]), "high": float(found["max"])}
        builder.emit("Clip", inputs(builder, node), limits, node.output[0])
        return
    builder.attributes({})
    given = [node.input[index] if len(node.input) > index else "" for index in (1, 2)]
    if _clip_shape(builder, node, given):
        return
    source = builder.value(node.input[0])
    low, high = (_bound(builder, name, source) if name else None for name in given)
    arrays = [builder.graph.constants.get(name) if name else None for name in (low, high)]
    known = [array is not None or name is None for array, name in zip(arrays, (low, high), strict=True)]
    if source.dtype in FLOATS and all(known):
        # A bound that is not given is the dtype's range: infinities become finite.
        limit = float(np.finfo(DTYPES[source.dtype]).max)
        limits = {
            key: default if array is None else float(array.item())
            for key, array, default in zip(("low", "high"), arrays, (-limit, limit), strict=True)
        }
        if any(math.isnan(bound) for bound in limits.values()):
            raise builder.refuse("a bound is NaN")
        builder.emit("Clip", [source.name], limits, node.output[0])
        return
    if source.dtype in FLOATS:
        limit = float(np.finfo(DTYPES[source.dtype]).max)
        low = low or builder.own_constant(f"lowest.{source.dtype}", np.array(-limit, DTYPES[source.dtype]))
        high = high or builder.own_constant(f"largest.{source.dtype}", np.array(limit, DTYPES[source.dtype]))
    result = source.name
    bounds = [(op, name) for op, name in (("Max", low), ("Min", high)) if name]
    for index, (op, name) in enumerate(bounds):
        result = builder.emit(op, [result, name], output=node.output[0] if index == len(bounds) - 1 else None)
    if not bounds:
        builder.emit("Identity", [source.name], output=node.output[0])


def _clip_shape(builder: OnnxBuilder, node: onnx.NodeProto, given: Sequence[str]) -> bool:
    value = builder.shapes.get(node.input[0])
    for op, name in zip(("Max", "Min"), given, strict=True):
        bound = builder.shape_value(name) if name else None
        if value is None or (name and bound is None):
            return False
        if bound is not None:
            folded = arithmetic(op, [value, bound])
            value = folded if folded is not None and len(bound.entries) == 1 else None
    if value is None:
        return False
    builder.shapes[node.output[0]] = value
    return True


def _bound(builder: OnnxBuilder, name: str, source: Value) -> str:
    """A bound as a scalar, so that it leaves the shape alone."""
    bound = builder.value(name)
    if bound.dtype != source.dtype:
        raise builder.refuse(f"the bound {bound} must be {source.dtype}")
    if bound.shape == ():
        return bound.name
    if any(isinstance(size, Dim) or size != 1 for size in bound.shape):
        raise builder.refuse(f"bounds must be scalars; {name!r} has shape {shape_text(bound.shape)}")
    array = builder.array(name)
    if array is not None:
        return builder.own_constant(f"{name}.scalar", array.reshape(()))
    return builder.emit_shaped("Reshape", bound.name, ())


# --- powers ----------------------------------------------------------------------------------------------------

_EXACT_EXPONENTS = ("float32", "int8", "int16", "uint8", "uint16")
"""Exponents that float32 holds exactly."""


@handles("Pow")
def _power(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    require_dtype(builder, node.input[:1], (*FLOATS, "int32", "int64"))
    base, exponent = builder.value(node.input[0]), builder.value(node.input[1])
    if exponent.dtype == "bool":
        raise builder.refuse(f"dtype bool of the exponent {node.input[1]!r} is not supported")
    array = builder.graph.constants.get(exponent.name)
    is_single = array is not None and array.size == 1 and array.ndim <= len(base.shape)
    if array is not None and is_single and _known_power(builder, base, float(array.item()), node.output[0]):
        return
    if array is not None and base.dtype in INTEGERS and array.dtype.kind == "f" and _fits(array, base.dtype):
        whole = builder.own_constant(f"{node.input[1]}.{base.dtype}", array.astype(DTYPES[base.dtype]))
        builder.emit("Pow", [base.name, whole], output=node.output[0])
        return
    dtype = _power_dtype(base.dtype, exponent.dtype)
    if array is not None and dtype == "float64" and base.dtype == "float32" and _is_exact(array):
        dtype = "float32"
    operands = [
        value.name if value.dtype == dtype else builder.emit("Cast", [value.name], {"to": dtype})
        for value in (base, exponent)
    ]
    if dtype == base.dtype:
        builder.emit("Pow", operands, output=node.output[0])
    else:
        builder.emit("Cast", [builder.emit("Pow", operands)], {"to": base.dtype}, node.output[0])


def _power_dtype(base: str, exponent: str) -> str:
    """The dtype that holds both exactly enough: integers of 64 bits wrap as those of fewer bits do."""
    if base in INTEGERS and exponent in INTEGERS:
        if np.can_cast(DTYPES[exponent], DTYPES[base]):
            return base
        return "uint64" if exponent == "uint64" else "int64"
    return "float32" if base == "float32" and exponent in _EXACT_EXPONENTS else "float64"


def _is_exact(array: NDArray[Any]) -> bool:
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float32).astype(np.float64)
    return np.array_equal(rounded, array.astype(np.float64), equal_nan=True)


def _fits(array: NDArray[Any], dtype: str) -> bool:
    return bool(np.all((np.rint(array) == array) & (np.abs(array) < 2.0 ** (8 * DTYPES[dtype].itemsize - 1))))


def _known_power(builder: OnnxBuilder, base: Value, exponent: float, output: str) -> bool:
    """Write common exponents by products and roots, which differ from the power in the last place at most."""
    x = base.name

    def emit(op: str, *names: str) -> str:
        return builder.emit(op, names)

    if exponent == 1:
        builder.emit("Identity", [x], output=output)
    elif exponent == 2:
        builder.emit("Mul", [x, x], output=output)
    elif exponent == 3:
        builder.emit("Mul", [emit("Mul", x, x), x], output=output)
    elif base.dtype in FLOATS and exponent == -1:
        builder.emit("Div", [number(builder, 1.0, base.dtype), x], output=output)
    elif base.dtype in FLOATS and abs(exponent) == 0.5:
        # The square root of -inf is no number, and that of -0 is -0, but their powers are inf and 0.
        infinite = emit("Equal", x, number(builder, -np.inf, base.dtype))
        root = emit("Add", emit("Sqrt", x), number(builder, 0.0, base.dtype))
        operands = [infinite, number(builder, np.inf, base.dtype), root]
        if exponent > 0:
            builder.emit("Where", operands, output=output)
        else:
            builder.emit("Div", [number(builder, 1.0, base.dtype), emit("Where", *operands)], output=output)
    else:
        return False
    return True
