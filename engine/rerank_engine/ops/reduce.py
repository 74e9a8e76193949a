"""Reductions over neighbouring axes, and Softmax. The candidate dimension is never reduced: rows stay independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Node, Shape, Value, elements_per_candidate, is_per_candidate
from rerank_engine.ops.registry import Array, Operator, as_dtype, attribute, normal_axis, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    return tuple(sorted(normal_axis(node, axis, rank) for axis in node.attributes["axes"]))


def _infer_reduce(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    if value.dtype != "float32":
        raise refuse(node, f"dtype {value.dtype} is not supported; supported: float32")
    axes = _axes(node, len(value.shape))
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        raise refuse(node, f"axes {axes} must be neighbours")
    if axes[0] == 0 and is_per_candidate(value.shape):
        raise refuse(node, "a reduction over the candidate dimension is not supported")
    if elements_per_candidate(value.shape[axes[0] : axes[-1] + 1]) == 0:
        raise refuse(node, "a reduction over no elements is not supported")
    if attribute(node, "keepdims"):
        return [(value.dtype, tuple(1 if axis in axes else dim for axis, dim in enumerate(value.shape)))]
    return [(value.dtype, tuple(dim for axis, dim in enumerate(value.shape) if axis not in axes))]


def _reference_reduce(function: Callable[..., Array]) -> Callable[..., list[Array]]:
    def reference(
        inputs: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
    ) -> list[Array]:
        with np.errstate(all="ignore"):
            reduced = function(inputs[0], axis=tuple(attributes["axes"]))
        return [as_dtype(reduced, inputs[0]).reshape(shapes[0])]

    return reference


def _lower_reduce(kind: str) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels import reduce

        shape = lowering.values[node.inputs[0]].shape
        axes = _axes(node, len(shape))
        reduce.reduce_middle(
            lowering.emitter,
            kind,
            source=lowering.address(node.inputs[0]),
            target=lowering.address(node.outputs[0]),
            rows=lowering.rows(shape[: axes[0]]),
            length=elements_per_candidate(shape[axes[0] : axes[-1] + 1]),
            inner=elements_per_candidate(shape[axes[-1] + 1 :]),
        )

    return lower


def _infer_softmax(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    if value.dtype != "float32":
        raise refuse(node, f"dtype {value.dtype} is not supported; supported: float32")
    axis = normal_axis(node, attribute(node, "axis"), len(value.shape))
    if axis != len(value.shape) - 1 or (axis == 0 and is_per_candidate(value.shape)):
        raise refuse(node, f"axis {axis} of rank {len(value.shape)}: only the last, fixed axis is supported")
    return [(value.dtype, value.shape)]


def _reference_softmax(inputs: Sequence[Array], _: Mapping[str, Any], __: Sequence[tuple[int, ...]]) -> list[Array]:
    if inputs[0].shape[-1] == 0:
        return [inputs[0]]
    with np.errstate(all="ignore"):
        grown = np.exp(inputs[0] - inputs[0].max(axis=-1, keepdims=True))
        return [as_dtype(grown / grown.sum(axis=-1, keepdims=True), inputs[0])]


def _lower_softmax(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import reduce

    shape = lowering.values[node.inputs[0]].shape
    reduce.softmax_rows(
        lowering.emitter,
        source=lowering.address(node.inputs[0]),
        target=lowering.address(node.outputs[0]),
        rows=lowering.rows(shape[:-1]),
        length=elements_per_candidate(shape[-1:]),
    )


def _add(name: str, summary: str, function: Callable[..., Array], kind: str) -> None:
    reference, attributes = _reference_reduce(function), {"axes": None, "keepdims": 1}
    register(Operator(name, summary, _infer_reduce, reference, attributes, lower=_lower_reduce(kind)))


_add("ReduceSum", "sum over axes", np.sum, "sum")
_add("ReduceMean", "mean over axes", np.mean, "mean")
_add("ReduceMax", "largest over axes; NaN when any is NaN", np.max, "max")
register(
    Operator(
        "Softmax",
        "exp(x) / sum(exp(x)) over the last axis",
        _infer_softmax,
        _reference_softmax,
        attributes={"axis": -1},
        lower=_lower_softmax,
    )
)
