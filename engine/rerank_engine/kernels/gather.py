"""Embedding rows by id, with every id checked."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, I64, Emitter, i64
from rerank_engine.kernels.copy import copy_row


def gather_rows(
    e: Emitter,
    *,
    table: ir.Value,
    ids: ir.Value,
    target: ir.Value,
    count: ir.Value | int,
    table_rows: int,
    row_length: int,
    dtype: str,
    ids_dtype: str,
    on_bad_id: Callable[[ir.Value], None],
) -> None:
    """Copy ``table[ids[i]]`` to ``target[i]``.

    Ids in [-table_rows, 0) count from the end, as ONNX says. For any other id outside the table, ``on_bad_id``
    writes the report and row 0 is read instead, so that no address outside the table is ever touched.
    """
    size, ids_size = ELEMENT_BYTES[dtype], ELEMENT_BYTES[ids_dtype]
    b = e.b

    def wide_id(index: ir.Value) -> ir.Value:
        given = e.load(e.at(ids, b.mul(index, i64(ids_size))), ELEMENT_TYPES[ids_dtype])
        return given if ids_dtype == "int64" else b.sext(given, I64)

    def row(index: ir.Value) -> None:
        wide = wide_id(index)
        from_end = b.icmp_signed("<", wide, i64(0))
        chosen = b.select(from_end, b.add(wide, i64(table_rows)), wide)
        inside = b.icmp_unsigned("<", chosen, i64(table_rows))
        with b.if_then(b.not_(inside), likely=False):
            on_bad_id(wide)
        safe = b.select(inside, chosen, i64(0))
        source = e.at(table, b.mul(safe, i64(row_length * size)))
        copy_row(e, source, e.at(target, b.mul(index, i64(row_length * size))), row_length, dtype)

    if table_rows == 0:
        e.each(count, lambda index: on_bad_id(wide_id(index)))
        return
    e.each(count, row)
