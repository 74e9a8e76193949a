"""Embedding look-up: rows of a table by id. An id outside the table is an error, never a wrapped or clamped row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import Node, Shape, Value, elements_per_candidate, is_per_candidate, shape_text
from rerank_engine.ops.registry import Array, Operator, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) != 2:
        raise refuse(node, f"takes a table and ids, has {len(inputs)} inputs")
    table, ids = inputs
    if ids.dtype not in ("int32", "int64"):
        raise refuse(node, f"ids must be int32 or int64, not {ids.dtype}")
    if not table.shape or is_per_candidate(table.shape):
        raise refuse(node, f"the table must have a fixed first dimension, has shape {shape_text(table.shape)}")
    return [(table.dtype, ids.shape + table.shape[1:])]


def _reference(inputs: Sequence[Array], _: Mapping[str, Any], __: Sequence[tuple[int, ...]]) -> list[Array]:
    table, ids = inputs
    bad = (ids < -len(table)) | (ids >= len(table))
    if bad.any():
        raise InputError(f"id {ids[bad].reshape(-1)[0]} is outside a table of {len(table)} rows")
    return [np.asarray(table[ids], order="C")]


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import gather

    table, ids = lowering.values[node.inputs[0]], lowering.values[node.inputs[1]]
    table_rows = table.shape[0]
    assert isinstance(table_rows, int)
    gather.gather_rows(
        lowering.emitter,
        table=lowering.address(node.inputs[0]),
        ids=lowering.address(node.inputs[1]),
        target=lowering.address(node.outputs[0]),
        count=lowering.rows(ids.shape),
        table_rows=table_rows,
        row_length=elements_per_candidate(table.shape[1:]),
        dtype=table.dtype,
        ids_dtype=ids.dtype,
        on_bad_id=lambda bad: lowering.report_bad_id(node, bad),
    )


register(Operator("Gather", "rows of a table by id along its first axis", _infer, _reference, lower=_lower))
