"""Selection by value: the place of an extreme, and the several largest or smallest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import DTYPES, Dim, Node, Shape, Value
from rerank_engine.ops.registry import Array, Operator, attribute, normal_axis, refuse, register, rows_aligned

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]

_NUMBERS = tuple(dtype for dtype in DTYPES if dtype != "bool")


def _axis_of(node: Node, value: Value) -> int:
    if value.dtype not in _NUMBERS:
        raise refuse(node, f"dtype {value.dtype} is not supported; supported: {', '.join(_NUMBERS)}")
    return normal_axis(node, attribute(node, "axis"), len(value.shape))


def _infer_extreme(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    axis = _axis_of(node, value)
    if value.shape[axis] == 0:
        raise refuse(node, f"{value} has nothing to choose from along axis {axis}")
    kept = (1,) if attribute(node, "keepdims") else ()
    return [("int64", (*value.shape[:axis], *kept, *value.shape[axis + 1 :]))]


def _reference_extreme(function: Callable[..., Array]) -> Callable[..., list[Array]]:
    def reference(inputs: Sequence[Array], attributes: Attributes, shapes: Shapes) -> list[Array]:
        (x,), axis = inputs, attributes["axis"]
        if x.size == 0:
            if np.prod(shapes[0], dtype=np.int64):
                raise InputError(f"an array of shape {x.shape} has nothing to choose from along axis {axis}")
            return [np.zeros(shapes[0], np.int64)]
        if attributes["select_last_index"]:
            result = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            result = function(x, axis=axis)
        return [np.asarray(result, np.int64).reshape(shapes[0])]

    return reference


def _around_axis(lowering: Lowering, value: Value, axis: int) -> dict[str, Any]:
    return {
        "outer": lowering.rows(value.shape[:axis]),
        "length": lowering.size(value.shape[axis]),
        "inner": lowering.rows(value.shape[axis + 1 :]),
    }


def _lower_extreme(is_largest: bool) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels.selection import extreme_indices

        e, value = lowering.emitter, lowering.values[node.inputs[0]]
        axis = attribute(node, "axis") % len(value.shape)
        dim = value.shape[axis]
        if isinstance(dim, Dim):
            length, results = (
                e.value(size) for size in (lowering.size(dim), lowering.rows(lowering.values[node.outputs[0]].shape))
            )
            zero = e.value(0)
            lowering.require(
                e.b.or_(e.b.icmp_signed(">", length, zero), e.b.icmp_signed("==", results, zero)),
                f"{node.op} node {node.name!r}: dimension {dim} is {{value}}: nothing to choose from",
                length,
            )
        extreme_indices(
            e,
            value.dtype,
            source=lowering.address(node.inputs[0]),
            target=lowering.address(node.outputs[0]),
            **_around_axis(lowering, value, axis),
            is_largest=is_largest,
            is_last=bool(attribute(node, "select_last_index")),
        )

    return lower


def _per_row(node: Node, inputs: Sequence[Value], _: Sequence[Value]) -> bool:
    return attribute(node, "axis") % len(inputs[0].shape) != 0 and rows_aligned(node, inputs, inputs)


def _count(node: Node) -> int | Dim:
    count = node.attributes["k"]
    return Dim.parse(count) if isinstance(count, str) else int(count)


def _infer_top_k(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    axis = _axis_of(node, value)
    dim, count = value.shape[axis], _count(node)
    if isinstance(count, int) and (count < 0 or (isinstance(dim, int) and count > dim)):
        raise refuse(node, f"cannot choose k = {count} along axis {axis} of {value}")
    shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
    return [(value.dtype, shape), ("int64", shape)]


def _reference_top_k(inputs: Sequence[Array], attributes: Attributes, shapes: Shapes) -> list[Array]:
    (x,), axis = inputs, attributes["axis"] % inputs[0].ndim
    count = shapes[0][axis]
    if count > x.shape[axis]:
        raise InputError(f"cannot choose k = {count} along axis {axis} of an array of shape {x.shape}")
    # NumPy sorts NaN behind every number, and stably: equals keep their order.
    if attributes["largest"]:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.ascontiguousarray(np.take(order, np.arange(count), axis=axis)).astype(np.int64)
    return [np.take_along_axis(x, chosen, axis=axis), chosen]


def _lower_top_k(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels.selection import select_several

    e, value = lowering.emitter, lowering.values[node.inputs[0]]
    axis = attribute(node, "axis") % len(value.shape)
    dim, count = value.shape[axis], lowering.size(_count(node))
    if dim != _count(node) and (isinstance(dim, Dim) or isinstance(_count(node), Dim)):
        inside = e.b.icmp_signed("<=", e.value(count), e.value(lowering.size(dim)))
        message = f"{node.op} node {node.name!r} chooses k = {_count(node)} along dimension {dim}, which is {{value}}"
        with e.b.if_then(e.b.not_(inside), likely=False):
            lowering.report(message, e.value(lowering.size(dim)))
            e.b.ret_void()
    select_several(
        e,
        value.dtype,
        source=lowering.address(node.inputs[0]),
        values=lowering.address(node.outputs[0]),
        indices=lowering.address(node.outputs[1]),
        **_around_axis(lowering, value, axis),
        count=count,
        is_largest=bool(attribute(node, "largest")),
    )


def _add_extreme(name: str, which: str, function: Callable[..., Array], is_largest: bool) -> None:
    register(
        Operator(
            name,
            f"index of the {which} along an axis; the first of equals, or the last; NaN wins",
            _infer_extreme,
            _reference_extreme(function),
            attributes={"axis": 0, "keepdims": 1, "select_last_index": 0},
            lower=_lower_extreme(is_largest),
            per_row=_per_row,
        )
    )


_add_extreme("ArgMax", "largest", np.argmax, is_largest=True)
_add_extreme("ArgMin", "smallest", np.argmin, is_largest=False)
register(
    Operator(
        "TopK",
        "the k largest or smallest along an axis and their indices, best first; of equals the lower index first;"
        " NaN is the largest",
        _infer_top_k,
        _reference_top_k,
        attributes={"k": None, "axis": -1, "largest": 1},
        lower=_lower_top_k,
        per_row=_per_row,
    )
)
