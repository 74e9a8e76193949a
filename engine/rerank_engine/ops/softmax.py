"""Softmax, its logarithm and its limit, along any axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Node, Shape, Value
from rerank_engine.ops.reduce import FLOATS
from rerank_engine.ops.registry import (
    Array,
    Operator,
    as_dtype,
    attribute,
    normal_axis,
    refuse,
    register,
    rows_aligned,
)

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    if value.dtype not in FLOATS:
        raise refuse(node, f"dtype {value.dtype} is not supported; supported: {', '.join(FLOATS)}")
    normal_axis(node, attribute(node, "axis"), len(value.shape))
    return [(value.dtype, value.shape)]


def _reference(is_logarithm: bool) -> Callable[..., list[Array]]:
    def reference(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
        (x,), axis = inputs, attributes["axis"]
        if x.size == 0:
            return [x]
        with np.errstate(all="ignore"):
            below = x.astype(np.float64) - x.max(axis=axis, keepdims=True)
            grown = np.exp(below)
            total = grown.sum(axis=axis, keepdims=True)
            return [as_dtype(below - np.log(total) if is_logarithm else grown / total, x)]

    return reference


def _reference_hardmax(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
    (x,), axis = inputs, attributes["axis"]
    result = np.zeros_like(x)
    if x.size:
        np.put_along_axis(result, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
    return [result]


def _around_axis(lowering: Lowering, node: Node) -> dict[str, Any]:
    value = lowering.values[node.inputs[0]]
    axis = attribute(node, "axis") % len(value.shape)
    return {
        "source": lowering.address(node.inputs[0]),
        "target": lowering.address(node.outputs[0]),
        "outer": lowering.rows(value.shape[:axis]),
        "length": lowering.size(value.shape[axis]),
        "inner": lowering.rows(value.shape[axis + 1 :]),
        "dtype": value.dtype,
    }


def _lower(is_logarithm: bool) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels.softmax import softmax

        softmax(lowering.emitter, **_around_axis(lowering, node), is_logarithm=is_logarithm)

    return lower


def _lower_hardmax(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels.selection import mark_largest

    mark_largest(lowering.emitter, **_around_axis(lowering, node))


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    return attribute(node, "axis") % len(inputs[0].shape) != 0 and rows_aligned(node, inputs, outputs)


def _add(name: str, summary: str, reference: Callable[..., list[Array]], lower: Callable[..., None]) -> None:
    register(Operator(name, summary, _infer, reference, attributes={"axis": -1}, lower=lower, per_row=_per_row))


_add(
    "Softmax",
    "exp(x) / sum(exp(x)) along an axis; NaN where all are -inf",
    _reference(is_logarithm=False),
    _lower(is_logarithm=False),
)
_add(
    "LogSoftmax",
    "x - log(sum(exp(x))) along an axis; NaN where all are -inf",
    _reference(is_logarithm=True),
    _lower(is_logarithm=True),
)
_add(
    "Hardmax",
    "1 at the first largest along an axis (the first NaN, if any), 0 elsewhere",
    _reference_hardmax,
    _lower_hardmax,
)
