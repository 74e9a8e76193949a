"""One record: how it becomes an event, and how it is refused.

An event is checked here against every rule of the border by exact types, and put together without a second check,
which costs two fifths of a full validation. What does not pass is validated in full, which either coerces it as the
border does or says what is wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from rerank_engine.errors import EventError
from rerank_features.events import MAX_ID_BYTES, MAX_POSITION, MAX_TIME_MS, Event

FIELDS: tuple[str, ...] = tuple(Event.model_fields)
"""Fields of an event, in the order in which files hold them."""

_FIELD_SET = frozenset(FIELDS)
_is_kind = re.compile(r"[a-z][a-z0-9_]{0,63}").fullmatch
# So many characters are at most MAX_ID_BYTES bytes of UTF-8.
_SHORT_ID = MAX_ID_BYTES // 4
_EXACT_SCALARS = frozenset((str, int, bool))
_MAX_SHOWN = 80
_ALL_SET = set(FIELDS)
"""Which fields were given: all. Events share it, for they are frozen; a set of its own is the largest part of one."""

_new_object = Event.__new__
_set_slot = object.__setattr__
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_escaped = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class RefusedRecord(EventError):
    """A record that cannot become an event.

    Parameters
    ----------
    reason
        One word under which such records are counted: a field's name, or what is wrong with the whole record.
    detail
        What was expected, what came, and the way out.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def shown(value: object) -> str:
    """A value for a message: short, whatever it is.

    >>> shown("x" * 100)[-3:]
    'xx…'
    """
    try:
        text = ascii(value[:_MAX_SHOWN] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; lists in lists in lists
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def make_event(fields: dict[str, Any]) -> Event:
    """Build an event from its fields.

    Parameters
    ----------
    fields
        All of :data:`FIELDS`, in their order. The dictionary becomes the event's own.

    Raises
    ------
    RefusedRecord
        A rule of the border is broken.

    Examples
    --------
    >>> fields = dict.fromkeys(FIELDS) | {"user": "u", "item": "i", "kind": "click", "time_ms": 5, "attributes": {}}
    >>> make_event(fields).kind
    'click'
    """
    return _put_together(fields) if _is_exact(*fields.values()) else _validated(fields)


def _is_exact(
    user: object,
    item: object,
    kind: object,
    time_ms: object,
    position: object,
    request: object,
    value: object,
    attributes: object,
    id: object,  # noqa: A002 - an event's field
) -> bool:
    """Whether all fields keep the rules as they are; what is rare, such as an id that is not ASCII, need not."""
    # One expression without calls: it runs for every record of a log.
    return (
        type(user) is str
        and 0 < len(user) <= _SHORT_ID
        and user.isascii()
        and type(item) is str
        and 0 < len(item) <= _SHORT_ID
        and item.isascii()
        and type(kind) is str
        and _is_kind(kind) is not None
        and type(time_ms) is int
        and 0 <= time_ms <= MAX_TIME_MS
        and (position is None or (type(position) is int and 0 <= position <= MAX_POSITION))
        and (request is None or (type(request) is str and 0 < len(request) <= _SHORT_ID and request.isascii()))
        and (value is None or (type(value) is float and value - value == 0.0))
        and (id is None or (type(id) is str and 0 < len(id) <= _SHORT_ID and id.isascii()))
        and type(attributes) is dict
        and (not attributes or _are_scalars(attributes))
    )


def _put_together(fields: dict[str, Any]) -> Event:
    """Do as ``Event.model_construct``, without looking for defaults and aliases: 1 µs instead of 4."""
    event = _new_object(Event)
    _set_slot(event, "__dict__", fields)
    _set_slot(event, "__pydantic_fields_set__", _ALL_SET)
    _set_slot(event, "__pydantic_extra__", None)
    _set_slot(event, "__pydantic_private__", None)
    return event


def _are_scalars(attributes: dict[str, Any]) -> bool:
    for name, value in attributes.items():
        if type(name) is not str or not name.isascii():
            return False
        if type(value) not in _EXACT_SCALARS and not (type(value) is float and value - value == 0.0):
            return False
    return True


def _validated(fields: dict[str, Any]) -> Event:
    try:
        return Event(**fields)
    except EventError as error:
        _refuse(str(error))
    except (UnicodeError, OverflowError, RecursionError, TypeError) as error:
        # A field's name that no keyword can be, or a number beyond what the validator takes.
        _refuse(f"{type(error).__name__}: {error}")


def _refuse(message: str) -> NoReturn:
    text = message.removeprefix("invalid Event: ").encode("ascii", "backslashreplace").decode()
    field = re.match(r"[a-z_]+", text)
    reason = field[0] if field and field[0] in _FIELD_SET else "event"
    raise RefusedRecord(reason, text)


def read_own(record: dict[str, Any]) -> Event:
    """Build an event from a record whose keys are an event's fields; fields left out have their defaults.

    Raises
    ------
    RefusedRecord
        A field is missing or unknown, or a rule of the border is broken.

    Examples
    --------
    >>> read_own({"user": "u", "item": "i", "kind": "click", "time_ms": 5}).position is None
    True
    """
    if not record.keys() <= _FIELD_SET:
        unknown = sorted(record.keys() - _FIELD_SET)
        raise RefusedRecord(
            "unknown_field", f"{shown(unknown[0])} is no field of an event ({', '.join(FIELDS)}): give a mapping"
        )
    get = record.get
    attributes = get("attributes")
    fields = {
        "user": get("user"),
        "item": get("item"),
        "kind": get("kind"),
        "time_ms": get("time_ms"),
        "position": get("position"),
        "request": get("request"),
        "value": get("value"),
        "attributes": {} if attributes is None else attributes,
        "id": get("id"),
    }
    if _is_exact(*fields.values()):
        return _put_together(fields)
    for name in ("user", "item", "kind", "time_ms"):
        if fields[name] is None:
            raise RefusedRecord(name, "missing: every event has user, item, kind and time_ms")
    return _validated(fields)


def json_text(value: Any) -> str:
    """Compact JSON; text stays readable unless only its escaped form can be written as UTF-8.

    >>> json_text({"a": "é", "b": 1.0})
    '{"a":"é","b":1.0}'
    """
    text = _encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        text = _encode_escaped(value)
    return text


def own_fields(event: Event) -> dict[str, Any]:
    """What a file holds of an event: its fields in a fixed order, without those that say nothing.

    >>> own_fields(Event(user="u", item="i", kind="click", time_ms=5))
    {'user': 'u', 'item': 'i', 'kind': 'click', 'time_ms': 5}
    """
    known = event.__dict__
    return {name: known[name] for name in FIELDS if known[name] is not None and known[name] != {}}
