"""Operators that work element by element, with NumPy's broadcasting. The plan fuses neighbours into one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES, Node, Shape, Value, attribute_shape, shape_text
from rerank_engine.ops.registry import Array, Infer, Operator, Pointwise, broadcast, refuse, register

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter

Args = Sequence["ir.Value"]
Attributes = Mapping[str, Any]

_NUMBERS = ("float32", "int32", "int64")


def _infer(dtypes: Sequence[str], result: str | None = None, arity: int = 2) -> Callable[..., list[tuple[str, Shape]]]:
    def infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
        if len(inputs) != arity:
            raise refuse(node, f"takes {arity} inputs, has {len(inputs)}")
        dtype = inputs[0].dtype
        if any(value.dtype != dtype for value in inputs):
            raise refuse(node, f"inputs differ in dtype: {', '.join(map(str, inputs))}")
        if dtype not in dtypes:
            raise refuse(node, f"dtype {dtype} is not supported; supported: {', '.join(dtypes)}")
        return [(result or dtype, broadcast(node, [value.shape for value in inputs]))]

    return infer


def _reference(function: Callable[..., Any]) -> Callable[..., list[Array]]:
    def reference(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(*inputs, **attributes))]

    return reference


def _is_float(value: ir.Value) -> bool:
    from rerank_engine.codegen.emitter import F32, element_of

    return element_of(value) == F32


def _arithmetic(float_name: str, int_name: str) -> Pointwise:
    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        return getattr(e.b, float_name if _is_float(args[0]) else int_name)(*args)

    return emit


def _comparison(symbol: str) -> Pointwise:
    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        if _is_float(args[0]):
            return e.b.fcmp_ordered(symbol, *args)
        return e.b.icmp_signed(symbol, *args)

    return emit


def _math(name: str) -> Pointwise:
    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        from rerank_engine.kernels import math

        return getattr(math, name)(e, *args)

    return emit


def _extreme(name: str, symbol: str) -> Pointwise:
    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        if _is_float(args[0]):
            return getattr(e, name)(*args)
        return e.b.select(e.b.icmp_signed(symbol, *args), *args)

    return emit


def _positive_part(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    return e.b.fcmp_ordered("<", x, e.like(x, 0.0)), e.like(x, 0.0)


def _relu(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    below, zero = _positive_part(e, args[0])
    return e.b.select(below, zero, args[0])


def _leaky_relu(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    below, _ = _positive_part(e, args[0])
    return e.b.select(below, e.b.fmul(args[0], e.like(args[0], attributes["alpha"])), args[0])


def _prelu(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    below, _zero = _positive_part(e, args[0])
    return e.b.select(below, e.b.fmul(*args), args[0])


def _clip(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    value = args[0]
    if attributes["low"] != -np.inf:
        value = e.maximum(value, e.like(value, attributes["low"]))
    if attributes["high"] != np.inf:
        value = e.minimum(value, e.like(value, attributes["high"]))
    return value


def _where(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    return e.b.select(*args)


def _not(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    return e.b.not_(args[0])


def _negate(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    return e.b.fneg(args[0]) if _is_float(args[0]) else e.b.neg(args[0])


def _cast(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
    from rerank_engine.codegen.emitter import ELEMENT_TYPES, F32, I1, element_of, widen, width_of

    value, wanted = args[0], attributes["to"]
    element = element_of(value)
    target = I1 if wanted == "bool" else ELEMENT_TYPES[wanted]
    kind = widen(target, width_of(value))
    if element == target:
        return value
    if target == I1:
        zero = e.like(value, 0)
        return e.b.fcmp_unordered("!=", value, zero) if element == F32 else e.b.icmp_signed("!=", value, zero)
    if element == I1:
        return e.b.uitofp(value, kind) if target == F32 else e.b.zext(value, kind)
    if target == F32:
        return e.b.sitofp(value, kind)
    if element == F32:
        # A plain fptosi is undefined outside the range; the saturating form is defined everywhere.
        name = f"llvm.fptosi.sat.{_suffix(kind)}"
        return e.intrinsic(name, kind, [value])
    return e.b.trunc(value, kind) if target.width < element.width else e.b.sext(value, kind)


def _suffix(kind: ir.Type) -> str:
    from llvmlite import ir

    return f"v{kind.count}i{kind.element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"


def _copy(_: Emitter, args: Args, __: Attributes) -> ir.Value:
    return args[0]


def _infer_where(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) != 3 or inputs[0].dtype != "bool" or inputs[1].dtype != inputs[2].dtype:
        raise refuse(node, f"takes a condition and two values of one dtype, has {', '.join(map(str, inputs))}")
    return [(inputs[1].dtype, broadcast(node, [value.shape for value in inputs]))]


def _infer_cast(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if node.attributes["to"] not in DTYPES:
        raise refuse(node, f"dtype {node.attributes['to']!r} is not supported; supported: {', '.join(DTYPES)}")
    return [(node.attributes["to"], inputs[0].shape)]


def _infer_expand(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    target = attribute_shape(node.attributes["shape"])
    shape = broadcast(node, [inputs[0].shape, target])
    if shape != target:
        raise refuse(node, f"cannot expand {shape_text(inputs[0].shape)} to {shape_text(target)}")
    return [(inputs[0].dtype, shape)]


def _reference_expand(inputs: Sequence[Array], _: Attributes, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    return [np.array(np.broadcast_to(inputs[0], shapes[0]))]


def _reference_cast(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    if attributes["to"] == "float32" and inputs[0].dtype == np.float64:
        return [inputs[0]]
    dtype = DTYPES[attributes["to"]]
    with np.errstate(all="ignore"):
        if dtype.kind != "i" or inputs[0].dtype.kind != "f":
            return [inputs[0].astype(dtype)]
        # NumPy leaves NaN and what is out of range to the processor; both bounds are exact in float64.
        limits = np.iinfo(dtype)
        value = inputs[0].astype(np.float64)
        result = np.where(value >= -float(limits.min), limits.max, np.where(np.isnan(value), 0, value).astype(dtype))
        return [np.where(value < limits.min, limits.min, result).astype(dtype)]


def _positive(x: Array) -> Array:
    return np.where(x < 0, x.dtype.type(0), x)


def _float_sigmoid(x: Array) -> Array:
    return (1.0 / (1.0 + np.exp(-x))).astype(x.dtype)


_FLOAT = ("float32",)
_BOOL = ("bool",)


def _add(name: str, summary: str, infer: Infer, function: Callable[..., Any], emit: Pointwise) -> None:
    register(Operator(name, summary, infer, _reference(function), pointwise=emit))


_add("Add", "a + b", _infer(_NUMBERS), np.add, _arithmetic("fadd", "add"))
_add("Sub", "a - b", _infer(_NUMBERS), np.subtract, _arithmetic("fsub", "sub"))
_add("Mul", "a * b", _infer(_NUMBERS), np.multiply, _arithmetic("fmul", "mul"))
_add("Div", "a / b, floats only", _infer(_FLOAT), np.divide, _arithmetic("fdiv", "sdiv"))
_add("Max", "the larger of two; NaN when either is NaN", _infer(_NUMBERS), np.maximum, _extreme("maximum", ">"))
_add("Min", "the smaller of two; NaN when either is NaN", _infer(_NUMBERS), np.minimum, _extreme("minimum", "<"))

_add("Equal", "a == b", _infer(_NUMBERS, "bool"), np.equal, _comparison("=="))
_add("Greater", "a > b", _infer(_NUMBERS, "bool"), np.greater, _comparison(">"))
_add("GreaterOrEqual", "a >= b", _infer(_NUMBERS, "bool"), np.greater_equal, _comparison(">="))
_add("Less", "a < b", _infer(_NUMBERS, "bool"), np.less, _comparison("<"))
_add("LessOrEqual", "a <= b", _infer(_NUMBERS, "bool"), np.less_equal, _comparison("<="))

_add("And", "a and b", _infer(_BOOL), np.logical_and, _arithmetic("and_", "and_"))
_add("Or", "a or b", _infer(_BOOL), np.logical_or, _arithmetic("or_", "or_"))
_add("Not", "not a", _infer(_BOOL, arity=1), np.logical_not, _not)

_add("Neg", "-x", _infer(_NUMBERS, arity=1), np.negative, _negate)
_add("Abs", "|x|", _infer(_FLOAT, arity=1), np.abs, _math("absolute"))
_add("Exp", "e to the x", _infer(_FLOAT, arity=1), np.exp, _math("exponential"))
_add("Sqrt", "square root", _infer(_FLOAT, arity=1), np.sqrt, _math("square_root"))
_add("Sigmoid", "1 / (1 + exp(-x))", _infer(_FLOAT, arity=1), _float_sigmoid, _math("sigmoid"))
_add("Tanh", "hyperbolic tangent", _infer(_FLOAT, arity=1), np.tanh, _math("hyperbolic_tangent"))
_add("Relu", "max(x, 0); NaN stays", _infer(_FLOAT, arity=1), _positive, _relu)
_add("Identity", "a copy", _infer((*_NUMBERS, "bool"), arity=1), np.asarray, _copy)

register(
    Operator(
        "LeakyRelu",
        "x where positive, alpha * x elsewhere",
        _infer(_FLOAT, arity=1),
        _reference(lambda x, alpha: np.where(x < 0, x.dtype.type(alpha) * x, x)),
        attributes={"alpha": 0.01},
        pointwise=_leaky_relu,
    )
)
register(
    Operator(
        "PRelu",
        "x where positive, slope * x elsewhere",
        _infer(_FLOAT),
        _reference(lambda x, slope: np.where(x < 0, slope * x, x)),
        pointwise=_prelu,
    )
)
register(
    Operator(
        "Clip",
        "limit to [low, high]; NaN stays",
        _infer(_FLOAT, arity=1),
        _reference(lambda x, low, high: np.clip(x, x.dtype.type(low), x.dtype.type(high))),
        attributes={"low": -np.inf, "high": np.inf},
        pointwise=_clip,
    )
)
register(
    Operator(
        "Where",
        "a where the condition holds, b elsewhere",
        _infer_where,
        _reference(np.where),
        pointwise=_where,
    )
)
register(
    Operator(
        "Cast",
        "change of dtype; float to integer truncates and saturates, NaN becomes 0",
        _infer_cast,
        _reference_cast,
        attributes={"to": None},
        pointwise=_cast,
    )
)
register(
    Operator(
        "Expand",
        "broadcast to a shape",
        _infer_expand,
        _reference_expand,
        attributes={"shape": None},
        pointwise=_copy,
    )
)
