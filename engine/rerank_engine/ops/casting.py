"""Copies: unchanged, repeated to a larger shape, as another dtype, or the same bits under another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import DTYPES, Node, Shape, Value, attribute_shape, shape_text
from rerank_engine.ops.elementwise import (
    ALL,
    UNSIGNED,
    Args,
    Attributes,
    add_operator,
    compare,
    emit_copy,
    infer_elementwise,
    is_float,
    require_inputs,
)
from rerank_engine.ops.registry import Array, Operator, broadcast, refuse, register

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter


def _target(node: Node, inputs: Sequence[Value]) -> str:
    require_inputs(node, inputs, 1)
    wanted = node.attributes["to"]
    if wanted not in DTYPES:
        raise refuse(node, f"dtype {wanted!r} is not supported; supported: {', '.join(DTYPES)}")
    return str(wanted)


# --- another dtype ---------------------------------------------------------------------------------------------


def _infer_cast(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    return [(_target(node, inputs), inputs[0].shape)]


def _cast(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.codegen.emitter import ELEMENT_TYPES, I1, element_of, widen, width_of

    value, wanted, (source,) = args[0], attributes["to"], attributes["dtypes"]
    if source == wanted:
        return value
    if wanted == "bool":
        return compare(e, "!=", value, e.like(value, 0))
    element, target = element_of(value), ELEMENT_TYPES[wanted]
    kind = widen(target, width_of(value))
    loses_sign = source in UNSIGNED or element == I1
    if is_float(value):
        if wanted in ("float32", "float64"):
            return (e.b.fpext if wanted == "float64" else e.b.fptrunc)(value, kind)
        # A plain conversion is undefined outside the range; the saturating form is defined everywhere.
        name = "llvm.fptoui.sat" if wanted in UNSIGNED else "llvm.fptosi.sat"
        return e.intrinsic(f"{name}.{_suffix(kind)}", kind, [value])
    if wanted in ("float32", "float64"):
        return (e.b.uitofp if loses_sign else e.b.sitofp)(value, kind)
    if target.width < element.width:
        return e.b.trunc(value, kind)
    if target.width == element.width:
        return value
    return (e.b.zext if loses_sign else e.b.sext)(value, kind)


def _suffix(kind: ir.Type) -> str:
    from llvmlite import ir

    return f"v{kind.count}i{kind.element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"


def _reference_cast(x: Array, to: str) -> Array:
    dtype = DTYPES[to]
    if dtype.kind not in "iu" or x.dtype.kind != "f":
        return x.astype(dtype)
    # NumPy leaves NaN and what is out of range to the processor; both bounds are exact in float64.
    limits = np.iinfo(dtype)
    value = x.astype(np.float64)
    high, low = value >= float(limits.max) + (limits.max < 2**53), value < float(limits.min)
    inside = np.where(np.isnan(value) | high | low, 0.0, value)
    result = np.where(high, limits.max, np.where(low, limits.min, inside.astype(dtype)))
    return result.astype(dtype)


# --- the same bits ---------------------------------------------------------------------------------------------


def _infer_bits(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    wanted, source = _target(node, inputs), inputs[0].dtype
    if "bool" in (wanted, source) or DTYPES[wanted].itemsize != DTYPES[source].itemsize:
        raise refuse(node, f"the bits of {source} are not those of {wanted}; both need the same size, and not bool")
    return [(wanted, inputs[0].shape)]


def _bits(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.codegen.emitter import ELEMENT_TYPES, widen, width_of

    return e.b.bitcast(args[0], widen(ELEMENT_TYPES[attributes["to"]], width_of(args[0])))


def _reference_bits(x: Array, to: str) -> Array:
    dtype = DTYPES[to]
    # float32 may come as float64, when the reference computes with more digits.
    own = x.astype(f"f{dtype.itemsize}") if x.dtype.kind == "f" else x
    return np.ascontiguousarray(own).view(dtype).reshape(x.shape)


# --- a larger shape --------------------------------------------------------------------------------------------


def _infer_expand(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    require_inputs(node, inputs, 1)
    target = attribute_shape(node.attributes["shape"])
    shape = broadcast(node, [inputs[0].shape, target])
    if shape != target:
        raise refuse(node, f"cannot expand {shape_text(inputs[0].shape)} to {shape_text(target)}")
    return [(inputs[0].dtype, shape)]


def _reference_expand(inputs: Sequence[Array], _: Attributes, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    return [np.array(np.broadcast_to(inputs[0], shapes[0]))]


add_operator("Identity", "a copy", infer_elementwise(ALL, 1), np.asarray, emit_copy)
add_operator(
    "Cast",
    "change of dtype; float to integer truncates and saturates, NaN becomes 0; integer to integer wraps",
    _infer_cast,
    _reference_cast,
    _cast,
    {"to": None},
)
add_operator("BitCast", "the same bits as another dtype", _infer_bits, _reference_bits, _bits, {"to": None})
register(
    Operator(
        "Expand",
        "broadcast to a shape",
        _infer_expand,
        _reference_expand,
        attributes={"shape": None},
        pointwise=emit_copy,
    )
)
