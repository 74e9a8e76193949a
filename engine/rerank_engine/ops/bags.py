"""Bags of rows: what PyTorch's EmbeddingBag does with rows that were looked up already."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.errors import InputError
from rerank_engine.graph import Node, Shape, Value
from rerank_engine.ops.registry import Array, Operator, attribute, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

MODES = ("sum", "mean", "max")
EMPTY = ("zero", "identity")


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) not in (2, 3):
        raise refuse(node, f"takes rows, offsets and perhaps which rows count, has {len(inputs)} inputs")
    rows, offsets = inputs[:2]
    if attribute(node, "mode") not in MODES or attribute(node, "empty") not in EMPTY:
        raise refuse(node, f"mode is one of {', '.join(MODES)}, empty one of {', '.join(EMPTY)}")
    if rows.dtype not in ("float32", "float64") or not rows.shape:
        raise refuse(node, f"rows must be float32 or float64 and have a dimension, are {rows}")
    if offsets.dtype not in ("int32", "int64") or len(offsets.shape) != 1 or offsets.shape[0] == 0:
        raise refuse(node, f"offsets must be a vector of at least one integer, are {offsets}")
    if len(inputs) == 3 and (inputs[2].dtype != "bool" or inputs[2].shape != rows.shape[:1]):
        raise refuse(node, f"which rows count must be one truth value a row, is {inputs[2]}")
    return [(rows.dtype, (offsets.shape[0] - 1, *rows.shape[1:]))]


def _reference(
    inputs: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    rows, offsets = inputs[0], [int(offset) for offset in inputs[1]]
    kept = inputs[2] if len(inputs) == 3 else np.ones(len(rows), np.bool_)
    result = np.zeros(shapes[0], rows.dtype)
    if attributes["covers"] and offsets[-1] != len(rows):
        raise InputError(f"the last offset {offsets[-1]} is not the number of rows, {len(rows)}")
    for index, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if not 0 <= start <= stop <= len(rows):
            raise InputError(f"offset {start if start < 0 or start > stop else stop} does not fit {len(rows)} rows")
        chosen = rows[start:stop][kept[start:stop]]
        if len(chosen) or attributes["empty"] == "identity":
            result[index] = _reduce(chosen, attributes["mode"])
    return [result]


def _reduce(rows: Array, mode: str) -> Array:
    if mode == "max":
        return np.asarray(np.max(rows, axis=0, initial=-np.inf))
    total = np.add.reduce(rows, axis=0)
    return np.asarray(total / rows.dtype.type(len(rows)) if mode == "mean" else total)


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import bags

    rows = lowering.values[node.inputs[0]]
    message = (
        f"offset {{value}} in {node.inputs[1]!r} does not fit: node {node.name!r} takes offsets that do not fall,"
        f" from 0 to {rows.shape[0]}"
    )
    offsets = lowering.view(node.inputs[1])
    if attribute(node, "covers"):
        e = lowering.emitter
        last = bags.load_index(offsets, [e.sub(offsets.sizes[0], 1)])
        ends = e.b.icmp_signed("==", last, e.value(lowering.size(rows.shape[0])))
        lowering.require(ends, f"{message}, and the last one is {rows.shape[0]}", last)
    bags.reduce_bags(
        lowering.emitter,
        rows=lowering.address(rows.name),
        dtype=rows.dtype,
        row_count=lowering.size(rows.shape[0]),
        row_length=lowering.size(product(rows.shape[1:])),
        offsets=offsets,
        kept=lowering.view(node.inputs[2]) if len(node.inputs) == 3 else None,
        target=lowering.address(node.outputs[0]),
        bags=lowering.size(lowering.values[node.outputs[0]].shape[0]),
        mode=attribute(node, "mode"),
        empty_is_zero=attribute(node, "empty") == "zero",
        on_bad=lambda offset: lowering.report(message, offset),
    )


register(
    Operator(
        "BagReduce",
        "sum, mean or max of the rows between neighbouring offsets; a third input tells which rows count; a bag without"
        " rows is zero, or what the reduction makes of nothing; with `covers` the last offset is the number of rows",
        _infer,
        _reference,
        attributes={"mode": "sum", "empty": "zero", "covers": 0},
        lower=_lower,
    )
)
