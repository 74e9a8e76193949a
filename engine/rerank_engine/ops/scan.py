"""Running sums and products along any axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES, Node, Shape, Value
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

_NUMBERS = tuple(dtype for dtype in DTYPES if dtype != "bool")


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    (value,) = inputs
    if value.dtype not in _NUMBERS:
        raise refuse(node, f"dtype {value.dtype} is not supported; supported: {', '.join(_NUMBERS)}")
    normal_axis(node, node.attributes["axis"], len(value.shape))
    return [(value.dtype, value.shape)]


def _reference(function: Callable[..., Array], start: int) -> Callable[..., list[Array]]:
    def reference(
        inputs: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
    ) -> list[Array]:
        (x,), axis = inputs, attributes["axis"]
        with np.errstate(all="ignore"):
            ordered = np.flip(x, axis) if attributes["reverse"] else x
            result = function(ordered, axis=axis, dtype=np.float64 if x.dtype.kind == "f" else x.dtype)
            if attributes["exclusive"]:
                shifted = np.roll(result, 1, axis)
                first = [slice(None)] * x.ndim
                first[axis] = slice(0, 1)
                shifted[tuple(first)] = start
                result = shifted
            result = np.flip(result, axis) if attributes["reverse"] else result
            return [np.ascontiguousarray(as_dtype(result, x)).reshape(shapes[0])]

    return reference


def _lower(kind: str) -> Callable[[Lowering, Node], None]:
    def lower(lowering: Lowering, node: Node) -> None:
        from rerank_engine.kernels.scan import scan

        value = lowering.values[node.inputs[0]]
        axis = node.attributes["axis"] % len(value.shape)
        scan(
            lowering.emitter,
            kind,
            value.dtype,
            source=lowering.address(node.inputs[0]),
            target=lowering.address(node.outputs[0]),
            outer=lowering.rows(value.shape[:axis]),
            length=lowering.size(value.shape[axis]),
            inner=lowering.rows(value.shape[axis + 1 :]),
            is_exclusive=bool(attribute(node, "exclusive")),
            is_reversed=bool(attribute(node, "reverse")),
        )

    return lower


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    return node.attributes["axis"] % len(inputs[0].shape) != 0 and rows_aligned(node, inputs, outputs)


def _add(name: str, summary: str, function: Callable[..., Array], kind: str, start: int) -> None:
    register(
        Operator(
            name,
            summary,
            _infer,
            _reference(function, start),
            attributes={"axis": None, "exclusive": 0, "reverse": 0},
            lower=_lower(kind),
            per_row=_per_row,
        )
    )


_add("CumSum", "running sum along an axis; exclusive: of the elements before; integers wrap", np.cumsum, "sum", 0)
_add(
    "CumProd",
    "running product along an axis; exclusive: of the elements before; integers wrap",
    np.cumprod,
    "product",
    1,
)
