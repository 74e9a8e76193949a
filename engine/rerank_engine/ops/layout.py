"""Operators that move elements or only rename dimensions: Reshape, Transpose, Concat, Slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Dim, Node, Shape, Value, elements_per_candidate, is_per_candidate, shape_text
from rerank_engine.ops.registry import Array, Operator, attribute, normal_axis, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]


def _infer_reshape(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    target: list[int | Dim] = list(node.attributes["shape"])
    if attribute(node, "candidates"):
        target[0] = Dim("N", attribute(node, "candidates"))
    shape = tuple(target)
    if is_per_candidate(shape) != is_per_candidate(value.shape) or (
        elements_per_candidate(shape) != elements_per_candidate(value.shape)
    ):
        raise refuse(node, f"cannot reshape {shape_text(value.shape)} to {shape_text(shape)}")
    return [(value.dtype, shape)]


def _reference_reshape(inputs: Sequence[Array], _: Attributes, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    return [inputs[0].reshape(shapes[0])]


def _infer_transpose(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    order = node.attributes["perm"]
    if sorted(order) != list(range(len(value.shape))):
        raise refuse(node, f"perm {tuple(order)} does not fit shape {shape_text(value.shape)}")
    shape = tuple(value.shape[axis] for axis in order)
    if is_per_candidate(value.shape) and order[0] != 0:
        raise refuse(node, f"perm {tuple(order)} moves the candidate dimension, which must stay the first one")
    return [(value.dtype, shape)]


def _lower_transpose(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    source = lowering.values[node.inputs[0]]
    order = node.attributes["perm"]
    sizes = [dim.scale if isinstance(dim, Dim) else dim for dim in source.shape]
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    copy.strided_copy(
        lowering.emitter,
        source=lowering.address(node.inputs[0]),
        target=lowering.address(node.outputs[0]),
        sizes=lowering.sizes(node.outputs[0]),
        strides=[strides[axis] for axis in order],
        dtype=source.dtype,
    )


def _infer_concat(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    axis = normal_axis(node, node.attributes["axis"], len(inputs[0].shape))
    if any(value.dtype != inputs[0].dtype for value in inputs):
        raise refuse(node, f"inputs differ in dtype: {', '.join(map(str, inputs))}")
    total = 0
    for value in inputs:
        rest = value.shape[:axis] + value.shape[axis + 1 :]
        if len(value.shape) != len(inputs[0].shape) or rest != inputs[0].shape[:axis] + inputs[0].shape[axis + 1 :]:
            raise refuse(node, f"inputs do not fit along axis {axis}: {', '.join(map(str, inputs))}")
        dim = value.shape[axis]
        if isinstance(dim, Dim):
            raise refuse(node, "cannot join along the candidate dimension")
        total += dim
    return [(inputs[0].dtype, (*inputs[0].shape[:axis], total, *inputs[0].shape[axis + 1 :]))]


def _reference_concat(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    return [np.concatenate(inputs, axis=attributes["axis"])]


def _lower_concat(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    output = lowering.values[node.outputs[0]]
    axis = node.attributes["axis"] % len(output.shape)
    rows = lowering.rows(output.shape[:axis])
    row_length = _length(output.shape[axis:])
    start = 0
    for name in node.inputs:
        length = _length(lowering.values[name].shape[axis:])
        copy.block_copy(
            lowering.emitter,
            source=lowering.address(name),
            target=lowering.address(node.outputs[0]),
            rows=rows,
            length=length,
            source_stride=length,
            target_stride=row_length,
            target_start=start,
            dtype=output.dtype,
        )
        start += length


def _infer_slice(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    axis = normal_axis(node, node.attributes["axis"], len(value.shape))
    dim = value.shape[axis]
    if isinstance(dim, Dim):
        raise refuse(node, "cannot cut along the candidate dimension")
    start, stop = node.attributes["start"], node.attributes["stop"]
    if not 0 <= start <= stop <= dim:
        raise refuse(node, f"range {start}:{stop} is outside dimension {dim}")
    return [(value.dtype, (*value.shape[:axis], stop - start, *value.shape[axis + 1 :]))]


def _reference_slice(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
    index = [slice(None)] * inputs[0].ndim
    index[attributes["axis"]] = slice(attributes["start"], attributes["stop"])
    return [np.asarray(inputs[0][tuple(index)], order="C")]


def _lower_slice(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    source, output = lowering.values[node.inputs[0]], lowering.values[node.outputs[0]]
    axis = node.attributes["axis"] % len(source.shape)
    inner = _length(source.shape[axis + 1 :])
    copy.block_copy(
        lowering.emitter,
        source=lowering.address(node.inputs[0]),
        target=lowering.address(node.outputs[0]),
        rows=lowering.rows(source.shape[:axis]),
        length=_length(output.shape[axis:]),
        source_stride=_length(source.shape[axis:]),
        target_stride=_length(output.shape[axis:]),
        source_start=attribute(node, "start") * inner,
        dtype=source.dtype,
    )


def _length(shape: Shape) -> int:
    return elements_per_candidate(shape)


register(
    Operator(
        "Reshape",
        "other dimensions for the same elements; costs nothing",
        _infer_reshape,
        _reference_reshape,
        attributes={"shape": None, "candidates": 0},
    )
)
register(
    Operator(
        "Transpose",
        "reorder dimensions; the candidates stay first",
        _infer_transpose,
        lambda inputs, attributes, _: [np.asarray(np.transpose(inputs[0], attributes["perm"]), order="C")],
        attributes={"perm": None},
        lower=_lower_transpose,
    )
)
register(
    Operator(
        "Concat",
        "join along an axis",
        _infer_concat,
        _reference_concat,
        attributes={"axis": None},
        lower=_lower_concat,
    )
)
register(
    Operator(
        "Slice",
        "a range of one axis, step 1",
        _infer_slice,
        _reference_slice,
        attributes={"axis": None, "start": None, "stop": None},
        lower=_lower_slice,
    )
)
