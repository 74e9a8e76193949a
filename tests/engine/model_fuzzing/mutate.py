"""Ways to corrupt a model file: its raw bytes, a section under right hashes, the header, and fields one by one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rerank_engine.format.layout import HEADER_SIZE
from rerank_engine.format.verifier import MODEL_SCHEMA, Kind, Scalar, Table, Text, Union, Vector
from rerank_engine.graph import DTYPES
from rerank_engine.ops import OPERATORS

from .tree import Tree, assemble, copied, explode, sealed, sections

_WORDS: tuple[int, ...] = (0, 1, 2, 3, 4, 8, 63, 64, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 4)
_WORDS += (2**32 - 1, 2**40, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 2, 2**64 - 1)
_FLOATS = tuple(
    struct.unpack("<Q", struct.pack("<d", number))[0]
    for number in (float("nan"), float("inf"), float("-inf"), -0.0, 1e-320, 1e308, -1.0, 0.5)
)
_TEXTS = (
    *(b"", b"N", b"T", b"N*T", b"2*N+1", b"-1", b"N-5", b"0", b"a*b*c*d*e*f*g*h", b"9" * 40, b"x" * 5000, b"a\0b"),
    *(b"\xff\xfe", "é𝄞".encode(), b"axis", b"shape", b"axes", b"to", b"perm", b"activation", b"unknown_row"),
    *(name.encode() for name in (*DTYPES, *OPERATORS)),
    *(name.encode() for operator in OPERATORS.values() for name in operator.attributes),
)


@dataclass(frozen=True)
class Original:
    """A sound file and its parts.

    Attributes
    ----------
    data
        The file.
    graph, weights
        Its sections.
    tree
        The GRAPH section taken apart.
    """

    data: bytes
    graph: bytes = field(init=False)
    weights: bytes = field(init=False)
    tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        graph, weights = sections(self.data)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "tree", explode(graph))


def mutate(original: Original, random: Random) -> tuple[str, bytes]:
    """Corrupt a file in a way drawn by ``random``; returns the way's name and bytes that differ from the file's."""
    (name,) = random.choices(list(_WAYS), [share for share, _ in _WAYS.values()])
    data = original.data
    while data == original.data:
        data = _WAYS[name][1](original, random)
    return name, data


def raw(original: Original, random: Random) -> bytes:
    """Damage as disks and networks do it: hashes do not fit any more."""
    return damaged(original.data, random)


def resealed(original: Original, random: Random) -> bytes:
    """Damaged bytes of one section, under hashes that fit."""
    if random.random() < 0.8 or not original.weights:
        return sealed(damaged(original.graph, random), original.weights)
    return sealed(original.graph, damaged(original.weights, random))


def header(original: Original, random: Random) -> bytes:
    """Words of the header changed, under a checksum that fits."""
    start = bytearray(original.data[:HEADER_SIZE])
    for _ in range(random.randint(1, 3)):
        _overwrite(start, random, HEADER_SIZE - 4)
    struct.pack_into("<I", start, HEADER_SIZE - 4, zlib.crc32(start[:-4]))
    return bytes(start) + original.data[HEADER_SIZE:]


def structure(original: Original, random: Random) -> bytes:
    """Fields changed one by one, in a buffer that is well-formed, under hashes that fit."""
    tree = copied(original.tree)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(tree, random)
    if tree == original.tree:
        return original.data
    minor = random.choice((None, None, None, 1, 7))
    return sealed(assemble(tree), original.weights, minor)


_WAYS: dict[str, tuple[float, Callable[[Original, Random], bytes]]] = {
    "raw": (0.2, raw),
    "header": (0.05, header),
    "resealed": (0.25, resealed),
    "structure": (0.5, structure),
}


def damaged(data: bytes, random: Random) -> bytes:
    """One to three edits of bytes: cuts, flips, overwritten words, and moved, doubled or lost pieces."""
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        _edit(content, random)
    return bytes(content)


def _edit(content: bytearray, random: Random) -> None:
    size = len(content)
    if size < 16:
        content += random.randbytes(random.randint(1, 16))
        return
    at, length = random.randrange(size), random.choice((1, 2, 4, 8, 16, 64))
    match random.randrange(9):
        case 0:
            del content[at:]
        case 1:
            content += random.randbytes(random.randint(1, 64))
        case 2:
            content[at] ^= 1 << random.randrange(8)
        case 3:
            _overwrite(content, random, size)
        case 4:
            (word,) = struct.unpack_from("<I", content, at & ~3) if at & ~3 <= size - 4 else (0,)
            struct.pack_into("<I", content, min(at & ~3, size - 4), (word + random.randint(-16, 16)) & (2**32 - 1))
        case 5:
            other = random.randrange(size)
            piece = content[at : at + length]
            content[at : at + length] = content[other : other + length]
            content[other : other + length] = piece
        case 6:
            del content[at : at + length]
        case 7:
            content[at:at] = content[at : at + length]
        case 8:
            content[at : at + length] = bytes(len(content[at : at + length]))


def _overwrite(content: bytearray, random: Random, end: int) -> None:
    width, code = random.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    at = random.randrange(0, end - width + 1, width)
    struct.pack_into(code, content, at, random.choice(_WORDS) & (2 ** (8 * width) - 1))


@dataclass(frozen=True)
class _Place:
    """Something that can be changed: ``holder[key]`` is of ``kind``."""

    holder: Any
    key: Any
    kind: Kind


def _places(table: Tree, name: str, found: dict[str, list[_Place]]) -> None:
    """Collect every field of a tree under the name of its table and field."""
    for field_name, kind in MODEL_SCHEMA[name].items():
        found.setdefault(f"{name}.{field_name}", []).append(_Place(table, field_name, kind))
        content = table[field_name]
        if isinstance(kind, Union):
            _, member, inner = content
            _places(inner, member, found)
        elif isinstance(kind, Vector):
            for i, entry in enumerate(content):
                if isinstance(kind.of, Table):
                    _places(entry, kind.of.name, found)
                else:
                    found.setdefault(f"{name}.{field_name}[]", []).append(_Place(content, i, kind.of))


def _change(tree: Tree, random: Random) -> None:
    """Change one field; rare fields are as likely as frequent ones."""
    found: dict[str, list[_Place]] = {}
    _places(tree, "Graph", found)
    name = random.choice(sorted(found))
    place = random.choice(found[name])
    if random.random() < 0.25:
        # The content of the same field elsewhere: right in kind, wrong in place.
        place.holder[place.key] = copied(_content(random.choice(found[name])))
        return
    place.holder[place.key] = _changed(_content(place), place.kind, random)


def _content(place: _Place) -> Any:
    return place.holder[place.key]


def _changed(value: Any, kind: Kind, random: Random) -> Any:
    match kind:
        case Scalar(width=width):
            return _changed_scalar(value, width, random)
        case Text():
            return random.choice(_TEXTS) if random.random() < 0.7 else damaged(value, random)
        case Union(members=members):
            number = random.randint(1, len(members))
            stated = random.choice((number, number, number, 0, 255))
            member = members[number - 1]
            return stated, member, {name: _drawn(of, random) for name, of in MODEL_SCHEMA[member].items()}
        case Vector():
            return _changed_list(value, kind.of, random)
    return value


def _changed_scalar(value: int, width: int, random: Random) -> int:
    limit = 2 ** (8 * width)
    match random.randrange(4):
        case 0:
            return random.choice(_WORDS) % limit
        case 1:
            return (value + random.choice((-2, -1, 1, 2, 64))) % limit
        case 2:
            return value ^ 1 << random.randrange(8 * width)
    return (random.choice(_FLOATS) if width == 8 else random.randrange(limit)) % limit


def _changed_list(value: list[Any], of: Kind, random: Random) -> list[Any]:
    if not value:
        return value if isinstance(of, Table) else [_drawn(of, random)]
    at, other = random.randrange(len(value)), random.randrange(len(value))
    changed = list(value)
    match random.randrange(7):
        case 0:
            del changed[at]
        case 1:
            changed.insert(at, copied(value[other]))
        case 2:
            changed[at], changed[other] = value[other], value[at]
        case 3:
            changed = changed[:at]
        case 4:
            changed.reverse()
        case 5:
            changed += [copied(value[at]) for _ in range(random.choice((1, 10, 100)))]
        case 6:
            changed[at] = _changed(value[at], of, random)
    return changed


def _drawn(kind: Kind, random: Random) -> Any:
    """Content of a kind, out of nothing."""
    match kind:
        case Scalar(width=width):
            return _changed_scalar(0, width, random)
        case Vector(of=of):
            return [_drawn(of, random) for _ in range(random.choice((0, 1, 2, 3, 8)))]
    return random.choice(_TEXTS)
