"""Reductions over any axes: sums, means, products, extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import Dim, broadcast_strides, product
from rerank_engine.graph import DTYPES, Graph, Node, Shape, Value, is_per_candidate
from rerank_engine.ops.registry import (
    OPERATORS,
    Array,
    Operator,
    as_dtype,
    attribute,
    loaded_by,
    normal_axis,
    refuse,
    register,
)

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

FLOATS = ("float32", "float64")
NUMBERS = (*FLOATS, "int32", "int64", "uint32", "uint64")
ORDERED = tuple(DTYPES)

Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    axes = tuple(sorted(normal_axis(node, axis, rank) for axis in node.attributes["axes"]))
    if not axes or len(set(axes)) != len(axes):
        raise refuse(node, f"axes {tuple(node.attributes['axes'])} must be one or more, each named once")
    return axes


def _infer(dtypes: Sequence[str]) -> Callable[[Node, Sequence[Value]], list[tuple[str, Shape]]]:
    def infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
        (value,) = inputs
        if value.dtype not in dtypes:
            raise refuse(node, f"dtype {value.dtype} is not supported; supported: {', '.join(dtypes)}")
        axes = _axes(node, len(value.shape))
        if attribute(node, "keepdims"):
            return [(value.dtype, tuple(1 if axis in axes else dim for axis, dim in enumerate(value.shape)))]
        return [(value.dtype, tuple(dim for axis, dim in enumerate(value.shape) if axis not in axes))]

    return infer


def _reference(function: Callable[[Array, tuple[int, ...]], Array]) -> Callable[..., list[Array]]:
    def reference(inputs: Sequence[Array], attributes: Attributes, shapes: Shapes) -> list[Array]:
        with np.errstate(all="ignore"):
            reduced = function(inputs[0], tuple(attributes["axes"]))
        return [as_dtype(reduced, inputs[0]).reshape(shapes[0])]

    return reference


def _wide(x: Array) -> Any:
    """What a sum or product is kept in: float64 for floats, else the dtype, which wraps."""
    return np.float64 if x.dtype.kind == "f" else x.dtype


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.sum(x, axis=axes, dtype=_wide(x))


def _product(x: Array, axes: tuple[int, ...]) -> Array:
    return np.prod(x, axis=axes, dtype=_wide(x))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    total = np.asarray(_sum(x, axes))
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    if x.dtype.kind == "f":
        return total / np.float64(count)
    if count == 0:
        return total
    down = total // total.dtype.type(count)
    return down + ((total % total.dtype.type(count) != 0) & (total < 0)).astype(total.dtype)


def _extreme(function: Callable[..., Array], lowest: bool) -> Callable[[Array, tuple[int, ...]], Array]:
    def extreme(x: Array, axes: tuple[int, ...]) -> Array:
        if x.dtype.kind == "f":
            start: Any = -np.inf if lowest else np.inf
        elif x.dtype.kind == "b":
            start = not lowest
        else:
            start = np.iinfo(x.dtype).min if lowest else np.iinfo(x.dtype).max
        return function(x, axis=axes, initial=start)

    return extreme


def _lower(kind: str) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels.reduce import Group, Source, reduce_groups

        value = lowering.values[node.inputs[0]]
        groups = _groups(node, value.shape)
        elements = lowering.elements(value.name)
        sources = []
        for name in elements.names:
            read = lowering.values[name]
            steps = _steps(read.shape, value.shape, groups)
            assert steps is not None, f"{read} was absorbed into a reduction that cannot walk it"
            sources.append(Source(lowering.address(name), read.dtype, [lowering.size(step) for step in steps]))
        reduce_groups(
            lowering.emitter,
            kind,
            value.dtype,
            sources=sources,
            compute=elements.compute,
            target=lowering.address(node.outputs[0]),
            groups=[
                Group(lowering.size(product(value.shape[axis] for axis in axes)), reduced) for reduced, axes in groups
            ],
        )

    return lower


def _groups(node: Node, shape: Shape) -> list[tuple[bool, tuple[int, ...]]]:
    """Neighbouring axes of which all, or none, are reduced; kept axes of size 1 are left out."""
    axes = _axes(node, len(shape))
    kept = [axis for axis in range(len(shape)) if axis in axes or shape[axis] != 1]
    return [(is_reduced, tuple(together)) for is_reduced, together in groupby(kept, lambda axis: axis in axes)]


def _steps(shape: Shape, output: Shape, groups: Sequence[tuple[bool, tuple[int, ...]]]) -> list[int | Dim] | None:
    """Elements of a value from one index of each group to the next, as it is broadcast to the reduced shape.

    None where a group cannot be walked in equal steps, or the last one neither by neighbours nor on the spot.
    """
    strides = broadcast_strides(shape, output)
    steps: list[int | Dim] = []
    for _, axes in groups:
        long = [axis for axis in axes if output[axis] != 1]
        if any(strides[axis] != strides[after] * output[after] for axis, after in pairwise(long)):
            return None
        steps.append(strides[long[-1]] if long else 0)
    return steps if not steps or steps[-1] in (0, 1) else None


def _absorbs(graph: Graph, node: Node, makers: Sequence[Node]) -> bool:
    """Whether its input is elementwise, of values that can be walked as the reduction goes."""
    if any(OPERATORS[maker.op].pointwise is None for maker in makers):
        return False
    shape = graph.values[node.inputs[0]].shape
    groups = _groups(node, shape)
    return all(_steps(graph.values[name].shape, shape, groups) is not None for name in loaded_by(graph, makers))


def _per_row(node: Node, inputs: Sequence[Value], _: Sequence[Value]) -> bool:
    return is_per_candidate(inputs[0].shape) and 0 not in _axes(node, len(inputs[0].shape))


def _add(
    name: str, summary: str, dtypes: Sequence[str], function: Callable[[Array, tuple[int, ...]], Array], kind: str
) -> None:
    register(
        Operator(
            name,
            summary,
            _infer(dtypes),
            _reference(function),
            attributes={"axes": None, "keepdims": 1},
            lower=_lower(kind),
            per_row=_per_row,
            absorbs=_absorbs,
        )
    )


_add("ReduceSum", "sum over axes; 0 over nothing; integers wrap", NUMBERS, _sum, "sum")
_add("ReduceProd", "product over axes; 1 over nothing; integers wrap", NUMBERS, _product, "product")
_add("ReduceMean", "mean over axes; NaN over nothing; integers truncate, 0 over nothing", NUMBERS, _mean, "mean")
_add(
    "ReduceMax",
    "largest over axes; NaN when any is NaN; -inf or the dtype's minimum over nothing",
    ORDERED,
    _extreme(np.max, lowest=True),
    "largest",
)
_add(
    "ReduceMin",
    "smallest over axes; NaN when any is NaN; inf or the dtype's maximum over nothing",
    ORDERED,
    _extreme(np.min, lowest=False),
    "smallest",
)
