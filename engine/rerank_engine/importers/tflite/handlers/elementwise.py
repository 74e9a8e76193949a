"""Operators that work on each element: arithmetic, comparison, logic, activations."""

from __future__ import annotations

import math

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles

_BINARY = {
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "POW": "Pow",
    "EQUAL": "Equal",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
}
"""Operators of two inputs and no options that are one ONNX node."""

_UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGICAL_NOT": "Not",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "RELU": "Relu",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
"""Operators of one input and no options that are one ONNX node."""

_ARITHMETIC = {
    "ADD": ("Add", "AddOptions"),
    "SUB": ("Sub", "SubOptions"),
    "MUL": ("Mul", "MulOptions"),
    "DIV": ("Div", "DivOptions"),
}
"""Operators with a fused activation. The option about int16 scales does not change what the numbers mean."""

_CLIPS = {"RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}


@handles(*_BINARY)
def _binary(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit(_BINARY[call.operator.name], call.input(0), call.input(1)))


@handles("NOT_EQUAL")
def _not_equal(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("Not", call.emit("Equal", call.input(0), call.input(1))))


@handles(*_UNARY)
def _unary(call: Call) -> None:
    call.arity(1)
    call.no_options()
    call.result(call.emit(_UNARY[call.operator.name], call.input(0)))


@handles(*_ARITHMETIC)
def _arithmetic(call: Call) -> None:
    op, table = _ARITHMETIC[call.operator.name]
    call.arity(2)
    options = call.options(table)
    value = call.emit(op, call.input(0), call.input(1))
    call.result(call.activate(value, options["fused_activation"]))


@handles(*_CLIPS)
def _clip(call: Call) -> None:
    call.arity(1)
    call.no_options()
    low, high = (call.new(limit, call.dtype(0), "limit") for limit in _CLIPS[call.operator.name])
    call.result(call.emit("Clip", call.input(0), low, high))


@handles("ADD_N")
def _add_n(call: Call) -> None:
    call.arity(1, len(call.operator.inputs))
    call.no_options()
    total, *others = call.inputs()
    for other in others:
        total = call.emit("Add", total, other)
    call.result(total)


@handles("SQUARE")
def _square(call: Call) -> None:
    call.arity(1)
    call.no_options()
    call.result(call.emit("Mul", call.input(0), call.input(0)))


@handles("SQUARED_DIFFERENCE")
def _squared_difference(call: Call) -> None:
    call.arity(2)
    call.no_options()
    difference = call.emit("Sub", call.input(0), call.input(1))
    call.result(call.emit("Mul", difference, difference))


@handles("RSQRT")
def _reciprocal_square_root(call: Call) -> None:
    call.arity(1)
    call.no_options()
    call.result(call.emit("Div", call.new(1, "float32", "one"), call.emit("Sqrt", call.input(0))))


@handles("FLOOR_DIV")
def _floor_divide(call: Call) -> None:
    call.arity(2)
    call.no_options()
    left, right, dtype = call.input(0), call.input(1), call.dtype(0)
    quotient = call.emit("Div", left, right)
    if dtype == "float32":
        call.result(call.emit("Floor", quotient))
        return
    # ONNX cuts whole quotients toward zero: one less where the signs differ and a rest remains.
    rest = call.emit("Sub", left, call.emit("Mul", quotient, right))
    lower = call.emit("And", _is_not_zero(call, rest), _signs_differ(call, rest, right))
    call.result(call.emit("Sub", quotient, call.cast(lower, "bool", dtype)))


@handles("FLOOR_MOD")
def _floor_modulo(call: Call) -> None:
    call.arity(2)
    call.no_options()
    left, right = call.input(0), call.input(1)
    if call.dtype(0) != "float32":
        call.result(call.emit("Mod", left, right))
        return
    rest = call.emit("Mod", left, right, fmod=1)
    other_side = call.emit("And", _is_not_zero(call, rest), _signs_differ(call, rest, right))
    call.result(call.emit("Where", other_side, call.emit("Add", rest, right), rest))


def _is_not_zero(call: Call, value: str) -> str:
    return call.emit("Not", call.emit("Equal", value, call.new(0, call.dtype(0), "zero")))


def _signs_differ(call: Call, left: str, right: str) -> str:
    zero = call.new(0, call.dtype(0), "zero")
    return call.emit("Xor", call.emit("Less", left, zero), call.emit("Less", right, zero))


@handles("LEAKY_RELU")
def _leaky_relu(call: Call) -> None:
    call.arity(1)
    options = call.options("LeakyReluOptions")
    call.result(call.emit("LeakyRelu", call.input(0), alpha=float(options["alpha"])))


@handles("PRELU")
def _prelu(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("PRelu", call.input(0), call.input(1)))


@handles("GELU")
def _gelu(call: Call) -> None:
    call.arity(1)
    options = call.options("GeluOptions")
    value = call.input(0)
    half, one = call.new(0.5, "float32", "half"), call.new(1.0, "float32", "one")
    if options["approximate"]:
        cube = call.emit("Mul", call.emit("Mul", value, value), value)
        scaled = call.emit("Mul", cube, call.new(0.044715, "float32", "cubic"))
        inner = call.emit("Mul", call.emit("Add", value, scaled), call.new(math.sqrt(2 / math.pi), "float32", "factor"))
        bounded = call.emit("Tanh", inner)
    else:
        bounded = call.emit("Erf", call.emit("Div", value, call.new(math.sqrt(2), "float32", "root")))
    call.result(call.emit("Mul", call.emit("Mul", value, call.emit("Add", bounded, one)), half))


@handles("CAST")
def _cast(call: Call) -> None:
    call.arity(1)
    call.options("CastOptions")
    source = call.scope.tensor(call.operator.inputs[0])
    if source.quantization is not None or source.dtype not in ("float32", "int32", "int64", "bool"):
        raise call.refuse(f"from type {source.dtype} is not supported")
    call.result(call.cast(call.input(0), call.dtype(0), call.output_dtype()))


@handles("SELECT", "SELECT_V2")
def _select(call: Call) -> None:
    call.arity(3)
    call.no_options()
    condition = call.input(0)
    if call.operator.name == "SELECT" and call.rank(0) == 1 and call.rank(1) > 1:
        # The old form picks whole rows.
        condition = call.unsqueeze(condition, range(1, call.rank(1)))
    call.result(call.emit("Where", condition, call.input(1), call.input(2)))


@handles("ZEROS_LIKE")
def _zeros_like(call: Call) -> None:
    call.arity(1)
    call.no_options()
    shape = call.emit("Shape", call.input(0))
    call.result(call.emit("Expand", call.new(0, call.dtype(0), "zero"), shape))


@handles("BUCKETIZE")
def _bucketize(call: Call) -> None:
    call.arity(1)
    boundaries = call.options("BucketizeOptions")["boundaries"]
    if list(boundaries) != sorted(boundaries):
        raise call.refuse("its boundaries are not in order")
    # The bucket is the number of boundaries that are not above the value.
    value = call.unsqueeze(call.cast(call.input(0), call.dtype(0), "float32"), [call.rank(0)])
    passed = call.emit("GreaterOrEqual", value, call.new(boundaries, "float32", "boundaries"))
    axes = call.new([call.rank(0)], "int64", "axes")
    call.result(call.emit("ReduceSum", call.emit("Cast", passed, to=6), axes, keepdims=0))
