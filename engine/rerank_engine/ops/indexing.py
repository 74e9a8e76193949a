"""Operators that read or write at computed positions. A position outside is an error, never a wild read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import Node, Shape, Value, depends_on_candidates, is_per_candidate, shape_text
from rerank_engine.ops.registry import (
    Array,
    Operator,
    attribute,
    normal_axis,
    refuse,
    register,
    rows_aligned,
)

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]

REDUCTIONS = ("none", "add", "mul", "max", "min")

_INDEX_DTYPES = ("int32", "int64")


def _check_places(node: Node, places: Value) -> None:
    if places.dtype not in _INDEX_DTYPES:
        raise refuse(node, f"indices must be int32 or int64, not {places.dtype}")


def _check_reduction(node: Node, data: Value, updates: Value) -> None:
    reduction = attribute(node, "reduction")
    if reduction not in REDUCTIONS:
        raise refuse(node, f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
    if data.dtype != updates.dtype:
        raise refuse(node, f"data and updates differ in dtype: {data} and {updates}")
    if data.dtype == "bool" and reduction != "none":
        raise refuse(node, f"reduction {reduction!r} of truth values is not defined")


def _on_bad(lowering: Lowering, node: Node, data: Value, places: str) -> Callable[[ir.Value], None]:
    message = f"index {{value}} in {places!r} is outside {data}, which {node.op} node {node.name!r} takes it for"
    return lambda index: lowering.report(message, index)


# --- GatherND --------------------------------------------------------------------------------------------------


def _nd_depth(node: Node, data: Value, places: Value, batch_dims: int) -> int:
    """Length of one place; checks what GatherND and ScatterND share."""
    _check_places(node, places)
    if not places.shape or not isinstance(places.shape[-1], int):
        raise refuse(node, f"the last dimension of the indices {places} must be a number")
    depth = places.shape[-1]
    if not 0 <= batch_dims < len(places.shape):
        raise refuse(node, f"batch_dims={batch_dims} does not fit indices {places}")
    if batch_dims + depth > len(data.shape):
        raise refuse(node, f"indices of {depth} numbers, batch_dims={batch_dims} do not fit data {data}")
    if data.shape[:batch_dims] != places.shape[:batch_dims]:
        raise refuse(node, f"the first {batch_dims} dimensions of {data} and {places} differ")
    return depth


def _infer_gather_nd(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    data, places = inputs
    batch_dims = attribute(node, "batch_dims")
    depth = _nd_depth(node, data, places, batch_dims)
    return [(data.dtype, places.shape[:-1] + data.shape[batch_dims + depth :])]


def _normalised(places: Array, sizes: Sequence[int]) -> Array:
    """Positions from the start for the numbers in the last dimension; one outside is an error."""
    limit = np.asarray(sizes, np.int64)
    wide = places.astype(np.int64)
    bad = (wide < -limit) | (wide >= limit)
    if bad.any():
        size = np.broadcast_to(limit, bad.shape)[bad][0]
        raise InputError(f"index {wide[bad][0]} is outside a dimension of {size}")
    return np.where(wide < 0, wide + limit, wide)


def _reference_gather_nd(inputs: Sequence[Array], attributes: Attributes, shapes: Shapes) -> list[Array]:
    data, places = inputs
    batch_dims, depth = attributes["batch_dims"], places.shape[-1]
    chosen = _normalised(places, data.shape[batch_dims : batch_dims + depth])
    if 0 in shapes[0]:
        return [np.zeros(shapes[0], data.dtype)]
    batch = data.shape[:batch_dims]
    rank = places.ndim - 1
    index: list[Array] = []
    for axis, size in enumerate(batch):
        index.append(np.arange(size).reshape((size,) + (1,) * (rank - axis - 1)))
    index += [chosen[..., part] for part in range(depth)]
    return [np.array(np.broadcast_to(data[tuple(index)], shapes[0]), order="C")]


def _per_row_gather_nd(node: Node, inputs: Sequence[Value], _: Sequence[Value]) -> bool:
    data, places = inputs
    if attribute(node, "batch_dims") > 0:
        return is_per_candidate(data.shape) and is_per_candidate(places.shape)
    return is_per_candidate(places.shape) and not depends_on_candidates(data.shape)


def _lower_gather_nd(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import indexing

    data, places = node.inputs
    indexing.gather_nd(
        lowering.emitter,
        data=lowering.view(data),
        places=lowering.view(places),
        target=lowering.address(node.outputs[0]),
        batch_dims=attribute(node, "batch_dims"),
        on_bad=_on_bad(lowering, node, lowering.values[data], places),
    )


# --- GatherElements --------------------------------------------------------------------------------------------


def _check_elements(node: Node, data: Value, places: Value) -> int:
    """Axis of an operator on elements; every other dimension of the indices must fit into the data."""
    _check_places(node, places)
    axis = normal_axis(node, attribute(node, "axis"), len(data.shape))
    if len(places.shape) != len(data.shape):
        raise refuse(node, f"indices {places} and data {data} differ in rank")
    for at, (own, most) in enumerate(zip(places.shape, data.shape, strict=True)):
        fits = own == most or (isinstance(own, int) and isinstance(most, int) and own <= most)
        if at != axis and not fits:
            raise refuse(node, f"indices {places} reach beyond data {data} in dimension {at}")
    return axis


def _infer_gather_elements(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    data, places = inputs
    _check_elements(node, data, places)
    return [(data.dtype, places.shape)]


def _element_index(places: Array, data: Array, axis: int) -> tuple[Array, ...]:
    chosen = _normalised(places, (data.shape[axis],))
    grids: list[Array] = list(np.indices(places.shape, sparse=True))
    grids[axis] = chosen
    return tuple(grids)


def _reference_gather_elements(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
    data, places = inputs
    if places.size == 0:
        return [np.zeros(places.shape, data.dtype)]
    return [np.array(data[_element_index(places, data, attributes["axis"] % data.ndim)], order="C")]


def _per_row_off_axis(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Rows stay independent when the axis at hand is not the first one."""
    return attribute(node, "axis") % len(outputs[0].shape) != 0 and rows_aligned(node, inputs, outputs)


def _lower_gather_elements(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import indexing

    data, places = node.inputs
    indexing.gather_elements(
        lowering.emitter,
        data=lowering.view(data),
        places=lowering.view(places),
        target=lowering.view(node.outputs[0]),
        axis=attribute(node, "axis") % len(lowering.values[data].shape),
        on_bad=_on_bad(lowering, node, lowering.values[data], places),
    )


# --- ScatterElements and ScatterND -----------------------------------------------------------------------------


def _infer_scatter_elements(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    data, places, updates = inputs
    _check_elements(node, data, places)
    _check_reduction(node, data, updates)
    if updates.shape != places.shape:
        raise refuse(node, f"updates {updates} and indices {places} differ in shape")
    return [(data.dtype, data.shape)]


def _infer_scatter_nd(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    data, places, updates = inputs
    depth = _nd_depth(node, data, places, 0)
    _check_reduction(node, data, updates)
    wanted = places.shape[:-1] + data.shape[depth:]
    if updates.shape != wanted:
        raise refuse(node, f"updates {updates} must have shape {shape_text(wanted)}")
    return [(data.dtype, data.shape)]


_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _write(result: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> None:
    """Write in order: of several updates for one place the last one stays, or all are combined one by one."""
    if reduction == "none":
        result[index] = updates
    else:
        _UFUNCS[reduction].at(result, index, updates)


def _reference_scatter_elements(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
    data, places, updates = inputs
    result = np.array(data, order="C")
    if places.size:
        index = np.broadcast_arrays(*_element_index(places, data, attributes["axis"] % data.ndim))
        flat: Array = np.ravel_multi_index(tuple(index), data.shape).reshape(-1)
        _write(result.reshape(-1), (flat,), updates.reshape(-1), attributes["reduction"])
    return [result]


def _reference_scatter_nd(inputs: Sequence[Array], attributes: Attributes, _: Shapes) -> list[Array]:
    data, places, updates = inputs
    result, depth = np.array(data, order="C"), places.shape[-1]
    count = math.prod(places.shape[:-1])
    chosen = _normalised(places, data.shape[:depth]).reshape(count, depth)
    if updates.size:
        rows = np.asarray(np.ravel_multi_index(chosen.T, data.shape[:depth]) if depth else np.zeros(count, np.int64))
        table = result.reshape(math.prod(data.shape[:depth]), -1)
        _write(table, (rows,), updates.reshape(count, -1), attributes["reduction"])
    return [result]


def _copy_data(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import copy

    value = lowering.values[node.outputs[0]]
    source, target = lowering.address(node.inputs[0]), lowering.address(node.outputs[0])
    copy.copy_row(lowering.emitter, source, target, lowering.rows(value.shape), value.dtype)


def _lower_scatter_elements(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import indexing

    _copy_data(lowering, node)
    data, places, updates = node.inputs
    indexing.scatter_elements(
        lowering.emitter,
        data=lowering.view(node.outputs[0]),
        places=lowering.view(places),
        updates=lowering.view(updates),
        axis=attribute(node, "axis") % len(lowering.values[data].shape),
        reduction=attribute(node, "reduction"),
        on_bad=_on_bad(lowering, node, lowering.values[data], places),
    )


def _lower_scatter_nd(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import indexing

    _copy_data(lowering, node)
    data, places, updates = node.inputs
    indexing.scatter_nd(
        lowering.emitter,
        data=lowering.view(node.outputs[0]),
        places=lowering.view(places),
        updates=lowering.address(updates),
        reduction=attribute(node, "reduction"),
        on_bad=_on_bad(lowering, node, lowering.values[data], places),
    )


register(
    Operator(
        "GatherND",
        "rows at places given by several indices each; `batch_dims` leading dimensions go along with the indices",
        _infer_gather_nd,
        _reference_gather_nd,
        attributes={"batch_dims": 0},
        lower=_lower_gather_nd,
        per_row=_per_row_gather_nd,
    )
)
register(
    Operator(
        "GatherElements",
        "for each index the element at its own place, with the index along an axis",
        _infer_gather_elements,
        _reference_gather_elements,
        attributes={"axis": 0},
        lower=_lower_gather_elements,
        per_row=_per_row_off_axis,
    )
)
register(
    Operator(
        "ScatterElements",
        "a copy with elements written at computed places, in order; `reduction` combines them with what is there",
        _infer_scatter_elements,
        _reference_scatter_elements,
        attributes={"axis": 0, "reduction": "none"},
        lower=_lower_scatter_elements,
        per_row=_per_row_off_axis,
    )
)
register(
    Operator(
        "ScatterND",
        "a copy with rows written at computed places, in order; `reduction` combines them with what is there",
        _infer_scatter_nd,
        _reference_scatter_nd,
        attributes={"reduction": "none"},
        lower=_lower_scatter_nd,
    )
)
