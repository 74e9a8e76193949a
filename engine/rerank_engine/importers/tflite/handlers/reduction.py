"""Operators that combine values along axes."""

from __future__ import annotations

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles

_REDUCTIONS = {
    "SUM": "ReduceSum",
    "MEAN": "ReduceMean",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
}
_LOGIC = {"REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin"}
_SMALLEST_NORM = 1e-6
"""TFLite's L2_NORMALIZATION divides by no less."""


def _axes(call: Call) -> str:
    axes = sorted({call.axis(axis, call.rank(0)) for axis in call.integers(1, "the axes")})
    return call.new(axes, "int64", "axes")


@handles(*_REDUCTIONS)
def _reduce(call: Call) -> None:
    call.arity(2)
    keep = int(call.options("ReducerOptions")["keep_dims"])
    if call.operator.name == "MEAN" and call.dtype(0) != "float32":
        raise call.refuse("the mean of whole numbers is not supported; cast to float32 first")
    value = call.emit(
        _REDUCTIONS[call.operator.name], call.input(0), _axes(call), keepdims=keep, noop_with_empty_axes=1
    )
    call.result(value)


@handles(*_LOGIC)
def _reduce_logic(call: Call) -> None:
    call.arity(2)
    keep = int(call.options("ReducerOptions")["keep_dims"])
    numbers = call.cast(call.input(0), "bool", "int32")
    found = call.emit(_LOGIC[call.operator.name], numbers, _axes(call), keepdims=keep, noop_with_empty_axes=1)
    call.result(call.cast(found, "int32", "bool"))


@handles("ARG_MAX", "ARG_MIN")
def _arg(call: Call) -> None:
    call.arity(2)
    is_max = call.operator.name == "ARG_MAX"
    call.options("ArgMaxOptions" if is_max else "ArgMinOptions")
    axis = call.axis(call.integer(1, "the axis"), call.rank(0))
    found = call.emit("ArgMax" if is_max else "ArgMin", call.input(0), axis=axis, keepdims=0)
    call.result(call.cast(found, "int64", call.output_dtype()))


@handles("CUMSUM")
def _cumulative_sum(call: Call) -> None:
    call.arity(2)
    options = call.options("CumsumOptions")
    axis = call.new(call.axis(call.integer(1, "the axis"), call.rank(0)), "int64", "axis")
    call.result(
        call.emit(
            "CumSum",
            call.input(0),
            axis,
            exclusive=int(options["exclusive"]),
            reverse=int(options["reverse"]),
        )
    )


@handles("SOFTMAX")
def _softmax(call: Call) -> None:
    call.arity(1)
    beta = float(call.options("SoftmaxOptions")["beta"])
    value = call.input(0)
    if beta != 1:
        value = call.emit("Mul", value, call.new(beta, "float32", "beta"))
    call.result(call.emit("Softmax", value, axis=-1))


@handles("LOG_SOFTMAX")
def _log_softmax(call: Call) -> None:
    call.arity(1)
    call.no_options()
    call.result(call.emit("LogSoftmax", call.input(0), axis=-1))


@handles("L2_NORMALIZATION")
def _l2_normalization(call: Call) -> None:
    call.arity(1)
    options = call.options("L2NormOptions")
    value = call.input(0)
    squares = call.emit("ReduceSum", call.emit("Mul", value, value), call.new([-1], "int64", "axes"), keepdims=1)
    norm = call.emit("Max", call.emit("Sqrt", squares), call.new(_SMALLEST_NORM, "float32", "smallest"))
    call.result(call.activate(call.emit("Div", value, norm), options["fused_activation"]))
