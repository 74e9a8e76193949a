"""Normalisation of the trailing dimensions: LayerNormalization and RMSNormalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Node, Shape, Value, depends_on_candidates, is_per_candidate, shape_text
from rerank_engine.ops.reduce import FLOATS
from rerank_engine.ops.registry import Array, Operator, as_dtype, attribute, normal_axis, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]


def _infer(most_inputs: int, most_outputs: int) -> Callable[..., list[tuple[str, Shape]]]:
    def infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
        if not 1 <= len(inputs) <= most_inputs:
            raise refuse(node, f"takes 1 to {most_inputs} inputs, has {len(inputs)}")
        if len(node.outputs) not in (1, most_outputs):
            raise refuse(node, f"has 1 or {most_outputs} outputs, not {len(node.outputs)}")
        value = inputs[0]
        if value.dtype not in FLOATS or any(other.dtype != value.dtype for other in inputs):
            raise refuse(node, f"inputs must be of one dtype, {' or '.join(FLOATS)}: {', '.join(map(str, inputs))}")
        axis = normal_axis(node, attribute(node, "axis"), len(value.shape))
        for other in inputs[1:]:
            if other.shape != value.shape[axis:]:
                raise refuse(node, f"{other} must have the shape {shape_text(value.shape[axis:])}")
        rows = (*value.shape[:axis], *(1 for _ in value.shape[axis:]))
        return [(value.dtype, value.shape), *((value.dtype, rows) for _ in node.outputs[1:])]

    return infer


def _finish(value: Array, inputs: Sequence[Array]) -> Array:
    for array, combine in zip(inputs[1:], (np.multiply, np.add), strict=False):
        value = combine(value, array)
    return as_dtype(value, inputs[0])


def _reference_layer(inputs: Sequence[Array], attributes: Attributes, shapes: Shapes) -> list[Array]:
    x = inputs[0]
    axes = tuple(range(attributes["axis"] % x.ndim, x.ndim))
    with np.errstate(all="ignore"):
        mean = np.asarray(x.sum(axis=axes, keepdims=True, dtype=np.float64)) / _count(x, axes)
        deviation = x - mean
        variance = np.asarray((deviation * deviation).sum(axis=axes, keepdims=True)) / _count(x, axes)
        inverse = 1.0 / np.sqrt(variance + attributes["epsilon"])
        results = [_finish(deviation * inverse, inputs), as_dtype(mean, x), as_dtype(inverse, x)]
    return results[: len(shapes)]


def _reference_rms(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
    x = inputs[0].astype(np.float64)
    axes = tuple(range(attributes["axis"] % x.ndim, x.ndim))
    with np.errstate(all="ignore"):
        mean_square = np.asarray((x * x).sum(axis=axes, keepdims=True)) / _count(x, axes)
        return [_finish(x / np.sqrt(mean_square + attributes["epsilon"]), inputs)]


def _count(x: Array, axes: Sequence[int]) -> np.float64:
    return np.float64(np.prod([x.shape[axis] for axis in axes]))


def _lower(is_centered: bool) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels.normalization import Normalization, normalize_rows

        value = lowering.values[node.inputs[0]]
        axis = attribute(node, "axis") % len(value.shape)
        source, *parameters = (lowering.address(name) for name in node.inputs)
        target, *results = (lowering.address(name) for name in node.outputs)
        scale, bias = (*parameters, None, None)[:2]
        mean, inverse = (*results, None, None)[:2]
        parts = Normalization(source, target, scale, bias, mean, inverse, attribute(node, "epsilon"), value.dtype)
        normalize_rows(
            lowering.emitter,
            parts,
            lowering.rows(value.shape[:axis]),
            lowering.rows(value.shape[axis:]),
            is_centered=is_centered,
        )

    return lower


def _per_row(node: Node, inputs: Sequence[Value], _: Sequence[Value]) -> bool:
    value = inputs[0]
    return (
        attribute(node, "axis") % len(value.shape) != 0
        and is_per_candidate(value.shape)
        and not any(depends_on_candidates(other.shape) for other in inputs[1:])
    )


register(
    Operator(
        "LayerNormalization",
        "(x - mean) / sqrt(variance + epsilon) over the dimensions from `axis` on, times a scale, plus a bias (inputs"
        " 2 and 3, each may be left out); further outputs: mean and 1 / sqrt(variance + epsilon)",
        _infer(most_inputs=3, most_outputs=3),
        _reference_layer,
        attributes={"axis": -1, "epsilon": 1e-5},
        lower=_lower(is_centered=True),
        per_row=_per_row,
    )
)
register(
    Operator(
        "RMSNormalization",
        "x / sqrt(mean(x * x) + epsilon) over the dimensions from `axis` on, times a scale (input 2, may be left out)",
        _infer(most_inputs=2, most_outputs=1),
        _reference_rms,
        attributes={"axis": -1, "epsilon": 1e-5},
        lower=_lower(is_centered=False),
        per_row=_per_row,
    )
)
