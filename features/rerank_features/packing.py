"""Events as the records that the machine code reads, many at once."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable

from rerank_features.events import Event
from rerank_features.state import FlatState, item_key

EVENT = struct.Struct("=6qdq")
"""One record; :mod:`rerank_features.compiler` names its cells."""


def address_of(buffer: bytearray) -> int:
    """Where the bytes lie; they must not be resized while the address is in use."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def pack_events(state: FlatState, events: Iterable[Event], row: int, scope: int) -> bytearray:
    """Records of the events whose kinds matter, all of one row of ``users``."""
    records = bytearray()
    for event in events:
        kind = state.program.kind_number(event.kind)
        if kind < 0:
            continue
        item_row = state.item_rows.get(event.item, -1)
        records += EVENT.pack(
            row,
            kind,
            item_row,
            0 if item_row >= 0 else item_key(event.item),
            event.time_ms,
            -1 if event.position is None else event.position,
            0.0 if event.value is None else event.value,
            scope,
        )
    return records


def replay_records(state: FlatState, records: bytearray, begin: int, end: int) -> None:
    """Fold the records from one number to another into the state."""
    if begin >= end:
        return
    job = array("q", [address_of(records), begin, end, 0, 0, 0, 0])
    while not state.code.replay(state.address, job.buffer_info()[0]):
        state.grow_counters()
