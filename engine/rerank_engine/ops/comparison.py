"""Comparisons, logic bit by bit, and the choice between two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import Node, Shape, Value
from rerank_engine.ops.elementwise import (
    ALL,
    INTEGERS,
    NUMBERS,
    Args,
    Attributes,
    add_operator,
    compare,
    infer_elementwise,
    is_unsigned,
)
from rerank_engine.ops.registry import Pointwise, broadcast, refuse

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter


def _comparison(symbol: str) -> Pointwise:
    def emit(e: Emitter, args: Args, attributes: Attributes) -> ir.Value:
        return compare(e, symbol, *args, unsigned=is_unsigned(attributes))

    return emit


def _bitwise(name: str) -> Pointwise:
    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        return getattr(e.b, name)(*args)

    return emit


def _where(e: Emitter, args: Args, _: Attributes) -> ir.Value:
    return e.b.select(*args)


def _infer_where(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) != 3 or inputs[0].dtype != "bool" or inputs[1].dtype != inputs[2].dtype:
        raise refuse(node, f"takes a condition and two values of one dtype, has {', '.join(map(str, inputs))}")
    return [(inputs[1].dtype, broadcast(node, [value.shape for value in inputs]))]


_ORDERED = infer_elementwise(NUMBERS, 2, "bool")

add_operator("Equal", "a == b", infer_elementwise(ALL, 2, "bool"), np.equal, _comparison("=="))
add_operator("Greater", "a > b", _ORDERED, np.greater, _comparison(">"))
add_operator("GreaterOrEqual", "a >= b", _ORDERED, np.greater_equal, _comparison(">="))
add_operator("Less", "a < b", _ORDERED, np.less, _comparison("<"))
add_operator("LessOrEqual", "a <= b", _ORDERED, np.less_equal, _comparison("<="))

_BITWISE = infer_elementwise(("bool", *INTEGERS), 2)

add_operator("And", "a and b, bit by bit", _BITWISE, np.bitwise_and, _bitwise("and_"))
add_operator("Or", "a or b, bit by bit", _BITWISE, np.bitwise_or, _bitwise("or_"))
add_operator("Xor", "either a or b, bit by bit", _BITWISE, np.bitwise_xor, _bitwise("xor"))
add_operator("Not", "not a, bit by bit", infer_elementwise(("bool", *INTEGERS), 1), np.invert, _bitwise("not_"))

add_operator("Where", "a where the condition holds, b elsewhere", _infer_where, np.where, _where)
