"""Whole numbers that are known now are computed now: counters of loops, mostly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.importers.tflite.call import Call

_MOST_ELEMENTS = 64

_FOLDED: dict[str, Callable[..., Any]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
    "LOGICAL_NOT": np.logical_not,
}


def fold_integers(call: Call) -> bool:
    """Compute an operator of a few known whole numbers or truth values; False leaves it to its handler."""
    function = _FOLDED.get(call.operator.name)
    if function is None or len(call.operator.outputs) != 1:
        return False
    operands: list[NDArray[Any]] = []
    for number in call.operator.inputs:
        array = call.scope.constant(number)
        if array is None or array.dtype.kind not in "ib" or array.size > _MOST_ELEMENTS:
            return False
        operands.append(array)
    # An operator with a fused activation is left to its handler.
    if len(operands) != getattr(function, "nin", 0) or (call.operator.options and call.operator.options.used_slots()):
        return False
    with np.errstate(over="ignore"):
        result = np.asarray(function(*operands))
    if result.size > _MOST_ELEMENTS or result.dtype.name != call.output_dtype():
        return False
    call.scope.bind(call.operator.outputs[0], result)
    return True
