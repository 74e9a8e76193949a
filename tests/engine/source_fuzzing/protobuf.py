"""Protocol buffers with changed fields: any message of any schema, through its descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from model_fuzzing.mutate import damaged  # type: ignore[import-not-found]

from . import pools

Message = Any
"""A message of ``google.protobuf``."""

_MOST_COPIES_BYTES = 1 << 20


@dataclass(frozen=True)
class _Place:
    """A field that is set, or an entry of a repeated one."""

    holder: Message
    field: Any
    index: int | None = None

    @property
    def content(self) -> Any:
        value = getattr(self.holder, self.field.name)
        return value if self.index is None else value[self.index]


def change(message: Message, random: Random, texts: Sequence[str]) -> None:
    """Change one to three fields of a message, wherever they are, in place.

    Parameters
    ----------
    message
        Any message.
    random
        Where choices come from.
    texts
        What fields of text may become, beside each other's content.
    """
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        found: dict[str, list[_Place]] = {}
        _collect(message, found)
        if not found:
            return
        if random.random() < 0.1:
            place = random.choice(found[random.choice(sorted(found))])
            _set_unset(place.holder, random, texts)
            continue
        name = random.choice(sorted(found))
        place = random.choice(found[name])
        other = random.choice(found[name])
        _change_place(place, other, random, texts)


def _collect(message: Message, found: dict[str, list[_Place]]) -> None:
    """All places under the name of their message and field; repeated fields as such, and their entries."""
    for field, value in message.ListFields():
        name = f"{message.DESCRIPTOR.name}.{field.name}"
        found.setdefault(name, []).append(_Place(message, field))
        if not _is_repeated(value):
            if field.message_type is not None:
                _collect(value, found)
            continue
        entries = found.setdefault(f"{name}[]", [])
        entries += [_Place(message, field, index) for index in range(len(value))]
        if field.message_type is not None:
            for entry in value:
                _collect(entry, found)


def _change_place(place: _Place, other: _Place, random: Random, texts: Sequence[str]) -> None:
    holder, field = place.holder, place.field
    if place.index is None and _is_repeated(place.content):
        _change_list(getattr(holder, field.name), field, random, texts)
    elif field.message_type is not None:
        if place.index is not None and random.random() < 0.3:
            del getattr(holder, field.name)[place.index]
        elif random.random() < 0.2:
            place.content.Clear()
        else:
            copy = type(place.content)()
            copy.CopyFrom(other.content)
            place.content.CopyFrom(copy)
    elif place.index is not None:
        content = other.content if random.random() < 0.25 else changed_scalar(place.content, field, random, texts)
        getattr(holder, field.name)[place.index] = content
    elif random.random() < 0.15:
        holder.ClearField(field.name)
    else:
        content = other.content if random.random() < 0.25 else changed_scalar(place.content, field, random, texts)
        setattr(holder, field.name, content)


def _set_unset(message: Message, random: Random, texts: Sequence[str]) -> None:
    """Set a field that may be unset, to something out of nothing."""
    field = random.choice(list(message.DESCRIPTOR.fields))
    value = getattr(message, field.name)
    if field.message_type is not None:
        if _is_repeated(value):
            value.add()
        else:
            value.SetInParent()
        return
    content = changed_scalar(None, field, random, texts)
    if _is_repeated(value):
        value.append(content)
    else:
        setattr(message, field.name, content)


def _change_list(entries: Any, field: Any, random: Random, texts: Sequence[str]) -> None:
    if not len(entries):
        return
    listed = [_copied(entry) for entry in entries]
    at, other = random.randrange(len(listed)), random.randrange(len(listed))
    match random.randrange(7):
        case 0:
            del listed[at]
        case 1:
            listed.insert(at, listed[other])
        case 2:
            listed[at], listed[other] = listed[other], listed[at]
        case 3:
            listed = listed[:at]
        case 4:
            listed.reverse()
        case 5:
            size = listed[at].ByteSize() if field.message_type is not None else len(repr(listed[at]))
            times = random.choice((1, 10, 1000))
            listed += [listed[at]] * min(times, 1 + _MOST_COPIES_BYTES // (1 + size))
        case 6 if field.message_type is None:
            listed[at] = changed_scalar(listed[at], field, random, texts)
    del entries[:]
    entries.extend(listed)


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "extend")


def _copied(entry: Any) -> Any:
    if not hasattr(entry, "CopyFrom"):
        return entry
    copy = type(entry)()
    copy.CopyFrom(entry)
    return copy


def changed_scalar(value: Any, field: Any, random: Random, texts: Sequence[str]) -> Any:
    """Other content for a field that holds no message; ``value`` may be None."""
    if field.type == field.TYPE_BYTES:
        return _changed_bytes(value or b"", random)
    if field.type == field.TYPE_STRING:
        text = random.choice((*texts, *pools.TEXTS))
        return text.encode("utf-8", "ignore").decode()
    if field.enum_type is not None:
        return random.choice([entry.number for entry in field.enum_type.values])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return pools.real(random, value or 0.0)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return not value
    ranges = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        field.CPPTYPE_UINT32: (0, 2**32 - 1),
        field.CPPTYPE_UINT64: (0, 2**64 - 1),
    }
    return pools.clamped(pools.integer(random, value or 0), *ranges[field.cpp_type])


def _changed_bytes(content: bytes, random: Random) -> bytes:
    match random.randrange(6):
        case 0:
            return b""
        case 1:
            return content[: random.randrange(len(content) + 1)]
        case 2:
            return content * random.choice((2, 3, 100))
        case 3:
            return random.choice((b"\xff", b"\x00", b"\x00\x00\xc0\x7f", b"\xff\xff\xff\xff\xff\xff\xff\x7f")) * (
                len(content) // random.choice((1, 4, 8))
            )
    return bytes(damaged(content, random))
