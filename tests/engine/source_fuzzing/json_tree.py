"""JSON documents with changed types, missing keys, long lists and deep nesting, written as JSON or as UBJSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from . import pools

Document = Any
"""Dictionaries, lists, texts, numbers, truth values and None."""

_DEEP = "\0deep"
"""Stands for lists in lists, which are written as text: Python's own writer would not go that deep."""

_MOST_ENTRIES = 200_000


@dataclass(frozen=True)
class _Place:
    """Something that can be changed: ``holder[key]``."""

    holder: Any
    key: Any


def changed(document: Document, random: Random) -> Document:
    """A copy with one to three changes."""
    root = {"": copied(document)}
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(root, random)
    return root[""]


def copied(value: Document) -> Document:
    """A deep copy."""
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [copied(entry) for entry in value]
    return value


def _change(root: dict[str, Any], random: Random) -> None:
    """Change one place; rare paths are as likely as frequent ones."""
    found: dict[str, list[_Place]] = {}
    _places(root, "", found)
    place = random.choice(found[random.choice(sorted(found))])
    holder, key = place.holder, place.key
    action = random.randrange(20)
    if action < 12:
        holder[key] = _changed(holder[key], random)
    elif action < 14:
        other = random.choice(found[random.choice(sorted(found))])
        holder[key] = copied(other.holder[other.key])
    elif action < 16 and holder is not root:
        del holder[key]
    elif action < 18 and isinstance(holder, dict) and holder is not root:
        holder[random.choice(("", "x", key + "s", *holder))] = holder.pop(key)
    else:
        holder[key] = _drawn(random)


def _places(holder: Any, path: str, found: dict[str, list[_Place]]) -> None:
    """Collect all places by path; the entries of a list have one path."""
    entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, value in list(entries):
        here = f"{path}.{key}" if isinstance(holder, dict) else f"{path}[]"
        found.setdefault(here, []).append(_Place(holder, key))
        if isinstance(value, dict | list):
            _places(value, here, found)


def _changed(value: Any, random: Random) -> Any:
    match value:
        case bool():
            return random.choice((not value, int(value), None, str(value)))
        case int():
            return random.choice((pools.integer(random, value, unbounded=True), value + 0.5, str(value), [value]))
        case float():
            return random.choice((pools.real(random, value), pools.integer(random, unbounded=True), str(value)))
        case str():
            number = str(random.choice((pools.integer(random, unbounded=True), pools.real(random))))
            return random.choice((random.choice(pools.TEXTS), number, f"[{number}]", f"{value} {number}", value[:-1]))
        case list():
            return _changed_list(value, random)
        case dict():
            return random.choice(
                (list(value.values()), {key: value[key] for key in list(value)[::2]}, {**value, "": 0})
            )
    return _drawn(random)


def _changed_list(value: list[Any], random: Random) -> list[Any]:
    if not value:
        return [_drawn(random)]
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
            times = random.choice((2, 10, 1000)) if len(json.dumps(value)) < 2000 else 2
            result = (result * times)[:_MOST_ENTRIES]
        case 6:
            result[at] = _changed(value[at], random)
    return result


def _drawn(random: Random) -> Any:
    """A value out of nothing."""
    return random.choice(
        (
            *(None, True, False, [], {}, [[]], {"": {}}, _DEEP, [None], [1, "x"], [1.5] * 9, ""),
            *(pools.integer(random, unbounded=True), pools.real(random), random.choice(pools.TEXTS)),
        )
    )


def to_json(document: Document, random: Random) -> bytes:
    """Write JSON; non-finite numbers as the framework's writers write them."""
    text = json.dumps(document, separators=(",", ":"))
    depth = random.choice((10, 900, 100_000))
    text = text.replace(json.dumps(_DEEP), "[" * depth + "]" * depth)
    # Half of a surrogate pair is text for JSON, but no UTF-8.
    return text.encode("utf-8", "surrogatepass")


_INTEGERS: tuple[tuple[str, str], ...] = (("i", ">b"), ("U", ">B"), ("I", ">h"), ("l", ">i"), ("L", ">q"))


def to_ubjson(document: Document, random: Random) -> bytes:
    """Write UBJSON; lists of numbers of one kind as typed ones, as XGBoost does."""
    depth = random.choice((10, 60, 5000))
    return _ubjson(document, b"[" * depth + b"]" * depth)


def _ubjson(value: Any, deep: bytes) -> bytes:
    writers: dict[type, Callable[[Any], bytes]] = {
        bool: lambda flag: b"T" if flag else b"F",
        int: _ubj_integer,
        float: lambda number: b"D" + struct.pack(">d", number),
        str: lambda text: deep if text == _DEEP else b"S" + _ubj_text(text),
        dict: lambda members: (
            b"{" + b"".join(_ubj_text(key) + _ubjson(entry, deep) for key, entry in members.items()) + b"}"
        ),
        list: lambda entries: _ubj_list(entries, deep),
        np.ndarray: _ubj_array,
        type(None): lambda _: b"Z",
    }
    return writers[type(value)](value)


def _ubj_integer(number: int) -> bytes:
    for marker, code in _INTEGERS:
        try:
            return marker.encode() + struct.pack(code, number)
        except struct.error:
            continue
    return _ubj_integer(pools.clamped(number, -(2**63), 2**63 - 1))


def _ubj_text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return _ubj_integer(len(content)) + content


def _ubj_list(entries: list[Any], deep: bytes) -> bytes:
    return b"[" + b"".join(_ubjson(entry, deep) for entry in entries) + b"]"


_ARRAYS = {"f4": b"d", "f8": b"D", "i1": b"i", "u1": b"U", "i2": b"I", "i4": b"l", "i8": b"L"}


def _ubj_array(array: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    kind = array.dtype.str[1:]
    return b"[$" + _ARRAYS[kind] + b"#" + _ubj_integer(len(array)) + array.astype(f">{kind}").tobytes()


def arrays_as_lists(value: Any) -> Document:
    """A parsed UBJSON document with its arrays as lists, so that their entries can be changed."""
    if isinstance(value, dict):
        return {key: arrays_as_lists(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [arrays_as_lists(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def lists_as_arrays(value: Any, random: Random) -> Document:
    """The same document with most lists of numbers of one kind as arrays again."""
    if isinstance(value, dict):
        return {key: lists_as_arrays(entry, random) for key, entry in value.items()}
    if not isinstance(value, list):
        return value
    if value and random.random() < 0.9:
        for kind, low, high in ((int, -(2**31), 2**31 - 1), (float, -3e38, 3e38)):
            if all(type(entry) is kind and low <= entry <= high for entry in value):
                return np.array(value, np.int32 if kind is int else np.float32)
    return [lists_as_arrays(entry, random) for entry in value]
