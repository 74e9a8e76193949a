"""Embedding rows by id, with every id checked."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, I64, Emitter, Index, i64
from rerank_engine.kernels.copy import copy_row


def gather_rows(
    e: Emitter,
    *,
    table: ir.Value,
    ids: ir.Value,
    target: ir.Value,
    count: Index,
    table_rows: Index,
    row_length: Index,
    dtype: str,
    ids_dtype: str,
    unknown_row: int | None,
    on_bad_id: Callable[[ir.Value], None],
) -> None:
    """Copy ``table[ids[i]]`` to ``target[i]``.

    Ids in [-table_rows, 0) count from the end, as ONNX says. For any other id outside the table, ``on_bad_id``
    writes the report and row 0 is read instead, so that no address outside the table is ever touched. With an
    ``unknown_row`` every id outside [0, table_rows) stands for that row.
    """
    size, ids_size = ELEMENT_BYTES[dtype], ELEMENT_BYTES[ids_dtype]
    b = e.b
    rows = e.value(table_rows)

    def wide_id(index: ir.Value) -> ir.Value:
        given = e.load(e.at(ids, b.mul(index, i64(ids_size))), ELEMENT_TYPES[ids_dtype])
        if ELEMENT_TYPES[ids_dtype] == I64:
            return given
        return b.zext(given, I64) if ids_dtype.startswith("u") else b.sext(given, I64)

    def row(index: ir.Value) -> None:
        wide = wide_id(index)
        if unknown_row is None:
            chosen = b.select(b.icmp_signed("<", wide, i64(0)), b.add(wide, rows), wide)
            inside = b.icmp_unsigned("<", chosen, rows)
            with b.if_then(b.not_(inside), likely=False):
                on_bad_id(wide)
            safe = b.select(inside, chosen, i64(0))
        else:
            safe = b.select(b.icmp_unsigned("<", wide, rows), wide, i64(unknown_row))
        source = e.at(table, e.mul(e.mul(safe, row_length), size))
        copy_row(e, source, e.at(target, e.mul(e.mul(index, row_length), size)), row_length, dtype)

    if isinstance(table_rows, int):
        if table_rows == 0:
            e.each(count, lambda index: on_bad_id(wide_id(index)))
        else:
            e.each(count, row)
        return
    # Without rows there is nothing that could be read instead of a bad id.
    with b.if_else(b.icmp_signed(">", rows, i64(0))) as (some, none):
        with some:
            e.each(count, row)
        with none:
            e.each(count, lambda index: on_bad_id(wide_id(index)))
