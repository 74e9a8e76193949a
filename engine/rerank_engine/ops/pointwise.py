"""Operators that work element by element, with NumPy's broadcasting. The plan fuses neighbours into one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES, Dim, Node, Shape, Value, shape_text
from rerank_engine.ops.registry import Array, Operator, Pointwise, broadcast, register, refuse

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter

Args = Sequence["ir.Value"]
Attributes = Mapping[str, Any]

_NUMBERS = ("float32", "int32", "int64")


def _infer(
    dtypes: Sequence[str], result: str | None = None, arity: int = 2
) -> Callable[..., list[tuple[str, Shape]]]:
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
    def reference(
        inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]
    ) -> list[Array]:
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
    if np.isfinite(attributes["low"]):
        value = e.maximum(value, e.like(value, attributes["low"]))
    if np.isfinite(attributes["high"]):
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
        raise refuse(
            node, f"takes a condition and two values of one dtype, has {', '.join(map(str, inputs))}"
        )
    return [(inputs[1].dtype, broadcast(node, [value.shape for value in inputs]))]


def _infer_cast(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if node.attributes["to"] not in DTYPES:
        raise refuse(
            node, f"dtype {node.attributes['to']!r} is not supported; supported: {', '.join(DTYPES)}"
        )
    return [(node.attributes["to"], inputs[0].shape)]


def _infer_expand(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    target: list[int | Dim] = list(node.attributes["shape"])
    if node.attributes["candidates"]:
        target[0] = Dim("N", node.attributes["candidates"])
    shape = broadcast(node, [inputs[0].shape, tuple(target)])
    if len(shape) > len(target):
        raise refuse(node, f"cannot expand {shape_text(inputs[0].shape)} to {shape_text(tuple(target))}")
    return [(inputs[0].dtype, shape)]


def _reference_expand(
    inputs: Sequence[Array], _: Attributes, shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    return [np.array(np.broadcast_to(inputs[0], shapes[0]))]


def _reference_cast(
    inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]
) -> list[Array]:
    if attributes["to"] == "float32" and inputs[0].dtype == np.float64:
        return [inputs[0]]
    with np.errstate(all="ignore"):
        return [inputs[0].astype(DTYPES[attributes["to"]])]


def _divide(left: Array, right: Array) -> Array:
    return left / right if left.dtype.kind == "f" else np.trunc(left / right).astype(left.dtype)


def _float_sigmoid(x: Array) -> Array:
    return (1.0 / (1.0 + np.exp(-x))).astype(x.dtype)


_FLOAT = ("float32",)
_BOOL = ("bool",)

for _name, _summary, _dtypes, _function, _emit in (
    ("Add", "a + b", _NUMBERS, np.add, _arithmetic("fadd", "add")),
    ("Sub", "a - b", _NUMBERS, np.subtract, _arithmetic("fsub", "sub")),
    ("Mul", "a * b", _NUMBERS, np.multiply, _arithmetic("fmul", "mul")),
    ("Div", "a / b, floats only", _FLOAT, _divide, _arithmetic("fdiv", "sdiv")),
    ("Max", "the larger of two; NaN when either is NaN", _NUMBERS, np.maximum, _extreme("maximum", ">")),
    ("Min", "the smaller of two; NaN when either is NaN", _NUMBERS, np.minimum, _extreme("minimum", "<")),
):
    register(Operator(_name, _summary, _infer(_dtypes), _reference(_function), pointwise=_emit))

for _name, _summary, _symbol, _function in (
    ("Equal", "a == b", "==", np.equal),
    ("Greater", "a > b", ">", np.greater),
    ("GreaterOrEqual", "a >= b", ">=", np.greater_equal),
    ("Less", "a < b", "<", np.less),
    ("LessOrEqual", "a <= b", "<=", np.less_equal),
):
    register(
        Operator(
            _name, _summary, _infer(_NUMBERS, "bool"), _reference(_function), pointwise=_comparison(_symbol)
        )
    )

for _name, _summary, _function, _emit in (
    ("And", "a and b", np.logical_and, _arithmetic("and_", "and_")),
    ("Or", "a or b", np.logical_or, _arithmetic("or_", "or_")),
):
    register(Operator(_name, _summary, _infer(_BOOL), _reference(_function), pointwise=_emit))
register(Operator("Not", "not a", _infer(_BOOL, arity=1), _reference(np.logical_not), pointwise=_not))

for _name, _summary, _dtypes, _function, _emit in (
    ("Neg", "-x", _NUMBERS, np.negative, _negate),
    ("Abs", "|x|", _FLOAT, np.abs, _math("absolute")),
    ("Exp", "e to the x", _FLOAT, np.exp, _math("exponential")),
    ("Sqrt", "square root", _FLOAT, np.sqrt, _math("square_root")),
    ("Sigmoid", "1 / (1 + exp(-x))", _FLOAT, _float_sigmoid, _math("sigmoid")),
    ("Tanh", "hyperbolic tangent", _FLOAT, np.tanh, _math("hyperbolic_tangent")),
    ("Relu", "max(x, 0); NaN stays", _FLOAT, lambda x: np.where(x < 0, x.dtype.type(0), x), _relu),
    ("Identity", "a copy", (*_NUMBERS, "bool"), lambda x: x, _copy),
):
    register(Operator(_name, _summary, _infer(_dtypes, arity=1), _reference(_function), pointwise=_emit))

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
        "broadcast to a shape; `candidates` is the factor of N in its first dimension, 0 for none",
        _infer_expand,
        _reference_expand,
        attributes={"shape": None, "candidates": 0},
        pointwise=_copy,
    )
)
