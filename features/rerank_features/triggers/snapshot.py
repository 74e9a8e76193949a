"""A user's trigger state as bytes: magic, version, hash of the spec, checksum, and compact JSON.

The state names nodes and rules by number, so it fits the spec that wrote it and no other; the hash says which.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from rerank_engine.errors import StoreError
from rerank_features.triggers.recent import RECENT_EVENTS, Mark, Marks, marks_count
from rerank_features.triggers.state import MAX_ACTIVE, MAX_LISTS, Register, ScopeState, UserState
from rerank_features.triggers.trie import Trie

_HEADER = struct.Struct("<4sI32sI")
_MAGIC = b"RRTR"
_VERSION = 1


def write_user(state: UserState, spec_hash: bytes) -> bytes:
    """The state as bytes; the same state gives the same bytes."""
    body = json.dumps(
        {
            "clock_ms": state.clock_ms,
            "events": state.events,
            "user": _write_scope(state.user),
            "session": _write_scope(state.session),
            "lists": [[request, _write_scope(scope)] for request, scope in state.lists.items()],
            "lengths": list(state.lengths.items()),
            "fired": sorted([rule, *when] for rule, when in state.fired.items()),
            "recent": list(state.recent.newer.items()),
            "older": list(state.recent.older.items()),
        },
        separators=(",", ":"),
    ).encode()
    return _HEADER.pack(_MAGIC, _VERSION, spec_hash, zlib.crc32(body)) + body


def read_user(data: bytes, spec_hash: bytes, trie: Trie) -> UserState:
    """The state from bytes.

    Raises
    ------
    StoreError
        The bytes are damaged, of another version, or of another spec.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise StoreError(f"trigger snapshot: expected bytes, got {type(data).__name__}; give what snapshot() returned")
    data = bytes(data)
    if len(data) < _HEADER.size:
        raise StoreError(f"trigger snapshot: {len(data)} bytes are fewer than a header; start without it")
    magic, version, written_hash, checksum = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC:
        raise StoreError(f"trigger snapshot: expected {_MAGIC!r} at the start, got {magic!r}; start without it")
    if version != _VERSION:
        raise StoreError(f"trigger snapshot: version {version}, this code reads {_VERSION}; start without it")
    if zlib.crc32(body) != checksum:
        raise StoreError("trigger snapshot: the checksum does not fit, the bytes are damaged; start without it")
    if written_hash != spec_hash:
        raise StoreError(
            f"trigger snapshot: it belongs to the spec {written_hash.hex()[:12]}, not to {spec_hash.hex()[:12]}; "
            "restore it with the spec that wrote it, or start without it"
        )
    try:
        return _read(json.loads(body), trie)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoreError(f"trigger snapshot: the content breaks its rules ({error}); start without it") from None


def _write_scope(scope: ScopeState) -> dict[str, Any]:
    # Arrivals keep their order: at the bound it decides which partial matches stay.
    return {
        "number": scope.number,
        "arrivals": [[node, arrived, *start] for node, (arrived, start) in scope.arrivals.items()],
        "registers": sorted(
            [node, register.moved, list(register.starts)] for node, register in scope.registers.items()
        ),
        "floors": sorted(scope.floors.items()),
        "seen": sorted(scope.seen.items()),
    }


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= 1 << 62:
        raise ValueError(f"expected a whole number from {least}, got {value!r:.40}")
    return value


def _request(value: object) -> str | None:
    if value is not None and type(value) is not str:
        raise ValueError(f"expected a request id, got {value!r:.40}")
    return value


def _below(value: object, limit: int) -> int:
    if _whole(value) >= limit:
        raise ValueError(f"number {value} where there are {limit}")
    return _whole(value)


def _read(content: Any, trie: Trie) -> UserState:
    state = UserState()
    state.clock_ms = _whole(content["clock_ms"], -1)
    state.events = _whole(content["events"])
    state.user = _read_scope(content["user"], trie)
    state.session = _read_scope(content["session"], trie)
    state.lists = {_request(request): _read_scope(scope, trie) for request, scope in content["lists"]}
    state.lengths = {_request(request): _whole(length) for request, length in content["lengths"]}
    state.fired = {
        _below(rule, len(trie.rules)): (_whole(time_ms), _whole(event)) for rule, time_ms, event in content["fired"]
    }
    recent = state.recent
    recent.newer, recent.older = _read_marks(content["recent"]), _read_marks(content["older"])
    recent.count = marks_count(recent.newer)
    if (
        max(len(state.lists), len(state.lengths)) > MAX_LISTS
        or recent.count >= RECENT_EVENTS
        or marks_count(recent.older) > RECENT_EVENTS
    ):
        raise ValueError("more is kept than the bounds allow")
    return state


def _read_marks(content: Any) -> Marks:
    marks: Marks = {}
    for label, same_time in content:
        marks[label if isinstance(label, str) else _whole(label)] = tuple(_read_mark(mark) for mark in same_time)
    return marks


def _read_mark(mark: Any) -> Mark:
    if any(isinstance(part, list | dict) for part in mark):
        raise ValueError("a field of an event is a plain value")
    return tuple(mark)


def _read_scope(content: Any, trie: Trie) -> ScopeState:
    scope = ScopeState()
    scope.number = _whole(content["number"])
    for node, arrived, start, start_ms in content["arrivals"]:
        scope.arrivals[_below(node, len(trie.nodes))] = (_whole(arrived), (_whole(start), _whole(start_ms)))
    for node, moved, starts in content["registers"]:
        if node not in trie.registers or not isinstance(starts, list) or len(starts) > trie.registers[node]:
            raise ValueError(f"node {node!r:.40} keeps no such starts")
        register = scope.registers[node] = Register(trie.registers[node])
        register.moved = _whole(moved)
        register.starts.extend(None if pair is None else (_whole(pair[0]), _whole(pair[1])) for pair in starts)
    scope.floors = {_below(rule, len(trie.rules)): _whole(number) for rule, number in content["floors"]}
    for kind, number in content["seen"]:
        if kind not in trie.without:
            raise ValueError(f"no rule excludes {kind!r:.40}")
        scope.seen[kind] = _whole(number)
    if max(len(scope.arrivals), len(scope.registers)) > MAX_ACTIVE:
        raise ValueError("more is kept than the bounds allow")
    return scope
