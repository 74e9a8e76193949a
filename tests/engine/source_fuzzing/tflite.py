"""TFLite files taken apart into lists and dictionaries, changed, and put together again as well-formed FlatBuffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import flatbuffers
import numpy as np
from model_fuzzing.mutate import damaged  # type: ignore[import-not-found]

from rerank_engine.importers.tflite.schema import OPERATORS, OPTIONS

from . import pools
from .source import TFLITE, Source

Tree = dict[str, Any]
"""A table: field to number, text as bytes, list or table; a field that the file leaves out is missing."""

_DATA = Path(__file__).parent.parent / "data"
_FILES = ("attention", "gru_loop", "lstm_fused", "mlp_dynamic", "mlp_float32", "mlp_int8", "transformer", "wide_deep")

_BEYOND = ("broadcast_args",)
"""Operators that the engine refuses later on."""

_CODES = {"bool": "<B", "i8": "<b", "u8": "<B", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f32": "<f"}
_RANGES = {
    kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "i" else (0, 2**bits - 1)
    for kind, bits in {"bool": 8, "i8": 8, "u8": 8, "i32": 32, "u32": 32, "i64": 64, "u64": 64}.items()
}

_TABLES: dict[str, dict[int, tuple[str, str]]] = {
    "Model": {
        0: ("version", "u32"),
        1: ("operator_codes", "[OperatorCode]"),
        2: ("subgraphs", "[SubGraph]"),
        3: ("description", "text"),
        4: ("buffers", "[Buffer]"),
        7: ("signatures", "[Signature]"),
    },
    "OperatorCode": {0: ("old_code", "i8"), 1: ("custom", "text"), 2: ("version", "i32"), 3: ("code", "i32")},
    "SubGraph": {
        0: ("tensors", "[Tensor]"),
        1: ("inputs", "[i32]"),
        2: ("outputs", "[i32]"),
        3: ("operators", "[Operator]"),
        4: ("name", "text"),
    },
    "Tensor": {
        0: ("shape", "[i32]"),
        1: ("type", "i8"),
        2: ("buffer", "u32"),
        3: ("name", "text"),
        4: ("quantization", "Quantization"),
        5: ("is_variable", "bool"),
        7: ("shape_signature", "[i32]"),
        8: ("has_rank", "bool"),
        10: ("external_buffer", "u32"),
    },
    "Quantization": {
        0: ("min", "[f32]"),
        1: ("max", "[f32]"),
        2: ("scale", "[f32]"),
        3: ("zero_point", "[i64]"),
        6: ("axis", "i32"),
    },
    "Operator": {
        0: ("code", "u32"),
        1: ("inputs", "[i32]"),
        2: ("outputs", "[i32]"),
        3: ("options_kind", "u8"),
        4: ("options", "Options"),
        8: ("intermediates", "[i32]"),
    },
    "Buffer": {0: ("data", "bytes"), 1: ("offset", "u64"), 2: ("size", "u64")},
    "Signature": {
        0: ("inputs", "[TensorMap]"),
        1: ("outputs", "[TensorMap]"),
        2: ("key", "text"),
        4: ("subgraph", "u32"),
    },
    "TensorMap": {0: ("name", "text"), 1: ("tensor", "u32")},
    **{
        name: {
            field.slot: (key, f"[{field.kind[:-2]}]" if field.kind.endswith("[]") else field.kind)
            for key, field in options.fields.items()
        }
        for name, options in OPTIONS.items()
    },
}
"""Slots of every table that the reader knows: name and kind of the field."""
_OPTION_TABLES = {options.number: name for name, options in OPTIONS.items()}


def sources() -> list[Source]:
    """The recorded models, and the recorded files of one operator each."""
    found = [(name, (_DATA / f"{name}.tflite").read_bytes()) for name in _FILES]
    with np.load(_DATA / "tflite_operators.npz") as archive:
        index, data = json.loads(archive["index"].tobytes()), archive["data"].tobytes()
    for key, (dtype, shape, place) in index.items():
        name, _, part = key.partition("/")
        if part == "model" and name not in _BEYOND:
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            found.append((name, data[place : place + size]))
    return [Source(TFLITE, name, {"model.tflite": content}, "model.tflite") for name, content in found]


# --- apart ------------------------------------------------------------------------------------------------------


def explode(content: bytes) -> Tree:
    """Take a sound file apart; what the reader does not look at is lost."""
    return _table(content, struct.unpack_from("<I", content)[0], "Model")


def _table(content: bytes, position: int, name: str) -> Tree:
    vtable = position - struct.unpack_from("<i", content, position)[0]
    (size,) = struct.unpack_from("<H", content, vtable)
    tree: Tree = {}
    for slot, (field, kind) in _TABLES[name].items():
        at = 4 + 2 * slot
        offset = struct.unpack_from("<H", content, vtable + at)[0] if at < size else 0
        if not offset:
            continue
        if kind == "Options":
            kind = _OPTION_TABLES.get(tree.get("options_kind", 0), "")
            if not kind:
                continue
        tree[field] = _value(content, position + offset, kind)
    return tree


def _value(content: bytes, at: int, kind: str) -> Any:
    if kind in _CODES:
        return struct.unpack_from(_CODES[kind], content, at)[0]
    start = at + struct.unpack_from("<I", content, at)[0]
    if kind in _TABLES:
        return _table(content, start, kind)
    (count,) = struct.unpack_from("<I", content, start)
    if kind in ("text", "bytes"):
        return content[start + 4 : start + 4 + count]
    inner = kind[1:-1]
    width = struct.calcsize(_CODES[inner]) if inner in _CODES else 4
    return [_value(content, start + 4 + width * index, inner) for index in range(count)]


# --- together ---------------------------------------------------------------------------------------------------


def assemble(tree: Tree) -> bytes:
    """Build a file of any content."""
    builder = flatbuffers.Builder(4096)
    builder.ForceDefaults(True)
    builder.Finish(_build_table(builder, tree, "Model"), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _build_table(builder: flatbuffers.Builder, tree: Tree, name: str) -> int:
    fields = _TABLES[name]
    references = {}
    for field, kind in fields.values():
        if field in tree and kind not in _CODES:
            table = _OPTION_TABLES.get(tree.get("options_kind", 0), "") if kind == "Options" else kind
            if table:
                references[field] = _build(builder, tree[field], table)
    builder.StartObject(max(fields, default=0) + 1)
    for slot, (field, kind) in fields.items():
        if kind in _CODES and field in tree:
            _PREPEND[kind](builder, slot, tree[field])
        elif field in references:
            builder.PrependUOffsetTRelativeSlot(slot, references[field], 0)
    return int(builder.EndObject())


_PREPEND: Mapping[str, Any] = {
    "bool": lambda builder, slot, value: builder.PrependUint8Slot(slot, value, None),
    "i8": lambda builder, slot, value: builder.PrependInt8Slot(slot, value, None),
    "u8": lambda builder, slot, value: builder.PrependUint8Slot(slot, value, None),
    "i32": lambda builder, slot, value: builder.PrependInt32Slot(slot, value, None),
    "u32": lambda builder, slot, value: builder.PrependUint32Slot(slot, value, None),
    "u64": lambda builder, slot, value: builder.PrependUint64Slot(slot, value, None),
    "f32": lambda builder, slot, value: builder.PrependFloat32Slot(slot, value, None),
}


def _build(builder: flatbuffers.Builder, value: Any, kind: str) -> int:
    if kind in _TABLES:
        # A table of options may have stood under another kind before.
        known = {field for field, _ in _TABLES[kind].values()}
        return _build_table(builder, {key: entry for key, entry in value.items() if key in known}, kind)
    if kind in ("text", "bytes"):
        return int(builder.CreateString(value))
    inner = kind[1:-1]
    if inner in _CODES:
        packed = b"".join(struct.pack(_CODES[inner], entry) for entry in value)
        builder.StartVector(struct.calcsize(_CODES[inner]), len(value), 4)
        builder.head = builder.head - len(packed)
        builder.Bytes[builder.head : builder.head + len(packed)] = packed
        return int(builder.EndVector())
    entries = [_build(builder, entry, inner) for entry in value]
    builder.StartVector(4, len(entries), 4)
    for entry in reversed(entries):
        builder.PrependUOffsetTRelative(entry)
    return int(builder.EndVector())


# --- changed ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Something that can be changed: ``holder[key]`` is of ``kind``."""

    holder: Any
    key: Any
    kind: str


def change(tree: Tree, random: Random) -> None:
    """Change one to three fields in place; rare fields are as likely as frequent ones."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        found: dict[str, list[_Place]] = {}
        _places(tree, "Model", found)
        name = random.choice(sorted(found))
        place, other = random.choice(found[name]), random.choice(found[name])
        if place.kind == "Options" or random.random() < 0.2:
            place.holder[place.key] = copied(other.holder[other.key])
        elif random.random() < 0.1 and isinstance(place.holder, dict):
            del place.holder[place.key]
        else:
            place.holder[place.key] = _changed(place.holder[place.key], place.kind, tree, random)


def copied(value: Any) -> Any:
    """A deep copy."""
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def _places(tree: Tree, name: str, found: dict[str, list[_Place]]) -> None:
    for field, kind in _TABLES[name].values():
        if field not in tree:
            continue
        found.setdefault(f"{name}.{field}", []).append(_Place(tree, field, kind))
        if kind == "Options":
            table = _OPTION_TABLES.get(tree.get("options_kind", 0), "")
            if table:
                _places(tree[field], table, found)
        elif kind in _TABLES:
            _places(tree[field], kind, found)
        elif kind.startswith("["):
            for index, entry in enumerate(tree[field]):
                if kind[1:-1] in _TABLES:
                    _places(entry, kind[1:-1], found)
                else:
                    found.setdefault(f"{name}.{field}[]", []).append(_Place(tree[field], index, kind[1:-1]))


def _changed(value: Any, kind: str, tree: Tree, random: Random) -> Any:
    if kind == "f32":
        number = pools.real(random, value)
        return float(np.clip(number, -3e38, 3e38)) if np.isfinite(number) else number
    if kind in _RANGES:
        if random.random() < 0.1:
            return random.randrange(len(OPERATORS)) % (_RANGES[kind][1] + 1)
        return pools.clamped(pools.integer(random, value), *_RANGES[kind])
    if kind == "text":
        return random.choice((random.choice(pools.TEXTS).encode("utf-8", "surrogatepass"), damaged(value, random)))
    if kind == "bytes":
        return random.choice((b"", value[:-1], value * 3, damaged(value, random), b"\xff" * len(value)))
    if kind.startswith("["):
        return _changed_list(value, kind[1:-1], tree, random)
    return {key: entry for key, entry in value.items() if random.random() < 0.7}


def _changed_list(value: Sequence[Any], kind: str, tree: Tree, random: Random) -> list[Any]:
    if not value:
        return [pools.clamped(pools.integer(random), *_RANGES[kind])] if kind in _RANGES else list(value)
    at, other = random.randrange(len(value)), random.randrange(len(value))
    result = list(value)
    match random.randrange(7):
        case 0:
            del result[at]
        case 1:
            result.insert(at, copied(value[other]))
        case 2:
            result[at], result[other] = value[other], value[at]
        case 3:
            result = result[:at]
        case 4:
            result.reverse()
        case 5:
            result += [copied(value[at]) for _ in range(random.choice((1, 10, 100)))]
        case 6:
            result[at] = _changed(value[at], kind, tree, random)
    return result
