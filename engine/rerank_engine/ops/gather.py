"""Embedding look-up: rows of a table by id. An id outside the table is an error, never a wrapped or clamped row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.errors import InputError
from rerank_engine.graph import Node, Shape, Value, depends_on_candidates, is_per_candidate
from rerank_engine.ops.registry import Array, Operator, attribute, normal_axis, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

RAISE = -1
"""Value of ``unknown_row`` that makes a bad id an error."""


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) != 2:
        raise refuse(node, f"takes a table and ids, has {len(inputs)} inputs")
    table, ids = inputs
    if ids.dtype not in ("int32", "int64"):
        raise refuse(node, f"ids must be int32 or int64, not {ids.dtype}")
    if not table.shape:
        raise refuse(node, f"the table must have rows, is {table}")
    axis = normal_axis(node, attribute(node, "axis"), len(table.shape))
    unknown = attribute(node, "unknown_row")
    if unknown != RAISE and not (isinstance(table.shape[axis], int) and 0 <= unknown < table.shape[axis]):
        raise refuse(node, f"unknown_row={unknown} is no row of {table}")
    return [(table.dtype, table.shape[:axis] + ids.shape + table.shape[axis + 1 :])]


def _reference(
    inputs: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    table, ids = inputs
    axis, unknown = attributes["axis"], attributes["unknown_row"]
    rows = table.shape[axis]
    if unknown != RAISE:
        ids = np.where((ids < 0) | (ids >= rows), unknown, ids)
    bad = (ids < -rows) | (ids >= rows)
    if bad.any() and min(table.shape[:axis], default=1) > 0:
        raise InputError(f"id {ids[bad].reshape(-1)[0]} is outside a table of {rows} rows")
    if 0 in shapes[0]:
        return [np.zeros(shapes[0], table.dtype)]
    return [np.asarray(np.take(table, ids, axis=axis), order="C")]


def _per_row(node: Node, inputs: Sequence[Value], _: Sequence[Value]) -> bool:
    table, ids = inputs
    if attribute(node, "axis") % len(table.shape) == 0:
        return is_per_candidate(ids.shape) and not depends_on_candidates(table.shape)
    return is_per_candidate(table.shape) and not depends_on_candidates(ids.shape)


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import ELEMENT_BYTES
    from rerank_engine.kernels import gather

    e = lowering.emitter
    table, ids = lowering.values[node.inputs[0]], lowering.values[node.inputs[1]]
    axis = attribute(node, "axis") % len(table.shape)
    unknown = attribute(node, "unknown_row")
    message = (
        f"id {{value}} in {node.inputs[1]!r} is outside the table of node {node.name!r}, which has"
        f" {table.shape[axis]} rows; check that model and feature spec belong together, or convert with unknown_rows=…"
    )
    source, target = lowering.address(node.inputs[0]), lowering.address(node.outputs[0])
    places, size = lowering.address(node.inputs[1]), ELEMENT_BYTES[table.dtype]
    table_stride, count = lowering.rows(table.shape[axis:]), lowering.rows(ids.shape)
    row_length = lowering.size(product(table.shape[axis + 1 :]))

    def one_table(index: Any) -> None:
        gather.gather_rows(
            e,
            table=e.at(source, e.mul(e.mul(index, table_stride), size)),
            ids=places,
            target=e.at(target, e.mul(e.mul(e.mul(index, count), row_length), size)),
            count=count,
            table_rows=lowering.size(table.shape[axis]),
            row_length=row_length,
            dtype=table.dtype,
            ids_dtype=ids.dtype,
            unknown_row=None if unknown == RAISE else unknown,
            on_bad_id=lambda bad: lowering.report(message, bad),
        )

    if axis == 0:
        one_table(0)
    else:
        e.each(lowering.rows(table.shape[:axis]), one_table)


register(
    Operator(
        "Gather",
        "rows of a table by id along an axis; `unknown_row` stands for every id outside, -1 makes it an error",
        _infer,
        _reference,
        attributes={"axis": 0, "unknown_row": RAISE},
        lower=_lower,
        per_row=_per_row,
    )
)
