"""One user's state as bytes, and back: a restart goes on from there.

The bytes hold counts, times and hashes of ids, no names. They fit the spec that they were made for, and no other.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError
from rerank_features import compiler as code

if TYPE_CHECKING:
    from rerank_features.state import FlatState

_MAGIC = b"RRFS"
_LAYOUT = 1
"""Raised with every change of what the cells mean."""
_HEADER = struct.Struct("<4sI16sQQ")  # magic, layout, hash of the spec, slots, bytes of the body
_CHECKSUM = struct.Struct("<I")  # CRC-32 of everything before it
_MAX_BODY_BYTES = 1 << 30


def save_row(state: FlatState, row: int) -> bytes:
    """The state behind a row of ``users``, compressed.

    Slots are written in the order of their last use, so that eviction goes on in that order.
    """
    slots = np.empty(state.code.list_slots(state.address, row, 0, 0), np.int32)
    state.code.list_slots(state.address, row, slots.ctypes.data, slots.size)
    slots = slots[np.argsort(state.slots[slots, code.SLOT_USED])]
    cells = np.empty(state.code.save_slots(state.address, slots.ctypes.data, slots.size, 0, 0), np.int64)
    state.code.save_slots(state.address, slots.ctypes.data, slots.size, cells.ctypes.data, cells.size)
    user = state.users[row].copy()
    user[code.FIRST_SLOT] = -1
    body = user.tobytes() + state.entries[row].tobytes() + state.values[row].tobytes() + cells.tobytes()
    saved = _HEADER.pack(_MAGIC, _LAYOUT, state.spec_digest, slots.size, len(body)) + zlib.compress(body, 1)
    return saved + _CHECKSUM.pack(zlib.crc32(saved))


def load_row(state: FlatState, row: int, saved: bytes) -> None:
    """Put a saved state behind a row of ``users`` that is as new.

    Raises
    ------
    InputError
        The bytes are damaged, or of another spec. The row is as new again.
    """
    slots, body = _read(state, saved)
    fixed = [state.users.shape[1], state.entries.shape[1], state.values.shape[1]]
    if body.size < sum(fixed):
        raise InputError(f"a saved state is too short for the spec {state.spec.name!r}: replay the events instead")
    user, entries, values, cells = np.split(body, np.cumsum(fixed))
    state.grow_counters(slots + int(state.program.limits[0]), cells.size + int(state.program.limits[1]))
    state.users[row], state.entries[row], state.values[row] = user, entries, values.view(np.float64)
    state.users[row, code.FIRST_SLOT] = -1
    cells = np.ascontiguousarray(cells)
    if not _is_possible(state, user) or not state.code.load_slots(state.address, row, cells.ctypes.data, cells.size):
        state.code.forget_user(state.address, row)
        raise InputError(f"a saved state does not fit the spec {state.spec.name!r}: replay the events instead")


def _read(state: FlatState, saved: bytes) -> tuple[int, NDArray[np.int64]]:
    if len(saved) < _HEADER.size + _CHECKSUM.size:
        raise InputError(f"a saved state of {len(saved)} bytes is cut off: replay the events instead")
    saved, checksum = saved[: -_CHECKSUM.size], _CHECKSUM.unpack(saved[-_CHECKSUM.size :])[0]
    magic, layout, digest, slots, size = _HEADER.unpack_from(saved)
    if magic != _MAGIC or layout != _LAYOUT or digest != state.spec_digest:
        raise InputError(
            f"a saved state is of another release or spec than {state.spec.name!r}: replay the events instead"
        )
    if zlib.crc32(saved) != checksum:
        raise InputError("a saved state is damaged (wrong checksum): replay the events instead")
    try:
        body = zlib.decompressobj().decompress(saved[_HEADER.size :], min(size, _MAX_BODY_BYTES) + 1)
    except zlib.error as error:
        raise InputError(f"a saved state is damaged ({error}): replay the events instead") from None
    if len(body) != size or size % 8 or slots > size:
        raise InputError("a saved state is damaged (wrong size): replay the events instead")
    return slots, np.frombuffer(body, np.int64)


def _is_possible(state: FlatState, user: NDArray[np.int64]) -> bool:
    """Whether the rings of a row of ``users`` begin and end inside their bounds."""
    lengths = state.program.sequences[:, code.SEQUENCE_LENGTH]
    rings = user[code.USER_SEQUENCES :].reshape(-1, 2)
    starts, counts = rings[:, 0], rings[:, 1]
    inside = (starts >= 0) & (starts < lengths) & (counts >= 0) & (counts <= lengths)
    return bool(0 <= user[code.SESSION_COUNT] <= code.SESSIONS and inside.all())
