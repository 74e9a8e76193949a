"""The values that the store takes and gives, and their form as SQL parameters. Pure functions, no SQL."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import MAX_ID_BYTES, MAX_POSITION, MAX_TIME_MS, Event, Item

KEY_BYTES = 16
"""Length of :meth:`rerank_features.events.Event.key`."""


class QueuedEvent(NamedTuple):
    """An event on its way to the file, with its key where the caller knew it already."""

    event: Event
    key: bytes | None

    @property
    def user(self) -> str | None:
        """Whose event it is; None where it was made without its fields."""
        return getattr(self.event, "user", None)


class QueuedPatch(NamedTuple):
    """A patch on its way to the file."""

    user: str
    patch: bytes
    version: int
    base_model: str
    created_ms: int


class QueuedItem(NamedTuple):
    """An item to remember, as JSON text or still as a value; it belongs to no user."""

    item: str
    fields: bytes | Item

    @property
    def user(self) -> None:
        """Items are facts of the catalogue."""
        return

    def row(self) -> tuple[str, bytes]:
        """Id and JSON text."""
        return self.item, self.fields if isinstance(self.fields, bytes) else self.fields.model_dump_json().encode()


class StoredPatch(NamedTuple):
    """A user's parameter delta, as it was saved.

    Attributes
    ----------
    patch
        The bytes that were saved.
    version
        Number of the patch; a later one has a larger number.
    base_model
        Content hash of the model that the patch belongs to.
    created_ms
        When it was trained: milliseconds since 1970, UTC.
    """

    patch: bytes
    version: int
    base_model: str
    created_ms: int


@dataclass(frozen=True, eq=False, slots=True)
class Example:
    """One training example of one user: what a candidate looked like when it was shown, and what came of it.

    Attributes
    ----------
    user, request, item
        Ids, at most 1,024 bytes each. The three together name the example.
    time_ms
        When the list was shown: milliseconds since 1970, UTC.
    label
        What the model should have said; finite.
    features
        The model's input at that moment, ``(F,) float32``. Any sequence of F numbers is taken; it is copied,
        and the copy is write-protected.
    base_model
        Content hash of the model whose features these are.

    Raises
    ------
    InputError
        A field has the wrong type, is out of range, or is not finite.

    Examples
    --------
    >>> example = Example("u1", "r1", "i7", 1_700_000_000_000, 1.0, [0.5, 2.0], "sha256:ab")
    >>> example.features
    array([0.5, 2. ], dtype=float32)
    """

    user: str
    request: str
    item: str
    time_ms: int
    label: float
    features: NDArray[np.float32]
    base_model: str

    def __post_init__(self) -> None:
        for name in ("user", "request", "item", "base_model"):
            check_id(name, getattr(self, name))
        check_time(self.time_ms)
        if isinstance(self.label, str | bytes) or not math.isfinite(_number("label", self.label)):
            raise InputError(f"label: expected a finite number, got {self.label!r}: leave such an example out")
        object.__setattr__(self, "label", float(self.label))
        try:
            features = np.array(self.features, dtype=np.float32)
        except (TypeError, ValueError):
            raise InputError(f"features: expected numbers of shape (F,), got {type(self.features).__name__}") from None
        if features.ndim != 1 or not np.isfinite(features).all():
            raise InputError(
                f"features: expected finite numbers of shape (F,), got shape {features.shape}"
                + ("" if np.isfinite(features).all() else " with NaN or infinity")
                + ": pass one candidate's row"
            )
        features.setflags(write=False)
        object.__setattr__(self, "features", features)


class QueuedState(NamedTuple):
    """The feature state of a user on its way to the file."""

    user: str
    spec_hash: str
    last_row: int
    state: bytes

    def checksum(self) -> int:
        """CRC-32 of the bytes and of the row they reach to."""
        return state_checksum(self.spec_hash, self.last_row, self.state)


def state_checksum(spec_hash: str, last_row: int, state: bytes) -> int:
    """CRC-32 of a saved state with what it belongs to."""
    return crc32(state, crc32(f"{spec_hash}\n{last_row}".encode()))


class StoredState(NamedTuple):
    """A user's feature state, as it was saved.

    Attributes
    ----------
    state
        The bytes that were saved.
    last_row
        Row of the last event that went into it; what came later is read by
        :meth:`~rerank_sdk.store.EventStore.read_after`.
    """

    state: bytes
    last_row: int


Operation = Event | QueuedEvent | Example | QueuedPatch | QueuedItem | QueuedState
"""Whatever waits in the queue of the writer."""


def owner(operation: Operation) -> str | None:
    """Whose operation it is; None for items, and for an event that was made without its fields."""
    return getattr(operation, "user", None)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: expected a finite number, got {type(value).__name__}") from None


def check_id(name: str, value: object) -> str:
    """Return `value` if it can be an id.

    Raises
    ------
    InputError
        It is no text, empty, longer than 1,024 bytes, or not encodable as UTF-8.
    """
    if not isinstance(value, str) or not value:
        raise InputError(f"{name}: expected a non-empty str, got {type(value).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InputError(f"{name}: expected text that UTF-8 can encode, got a lone surrogate") from None
    if length > MAX_ID_BYTES:
        raise InputError(f"{name}: expected at most {MAX_ID_BYTES} bytes, got {length}: shorten or hash it")
    return value


def check_time(value: object, name: str = "time_ms") -> int:
    """Return `value` if it can be a time.

    Raises
    ------
    InputError
        It is no integer, or outside 1970 to 2100.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TIME_MS:
        raise InputError(f"{name}: expected milliseconds since 1970 as an int up to {MAX_TIME_MS}, got {value!r}")
    return value


EventValues = tuple[bytes, str, str, str, int, int | None, str | None, float | None, str | None, str | None, int]
"""An event, ready to be bound, the names still as text: key, user, item, kind, time_ms, position, request, value,
attributes, event_id, checksum. A plain tuple: a hundred thousand of them are made in a second."""


INSERT_EVENT = """
    INSERT INTO events (id, key, user_id, item, kind_id, time_ms, position, request_id, value, attributes,
    event_id, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
"""A row of events: its number, the values of :func:`event_values` with names as numbers, and the checksum."""


def event_values(queued: Event | QueuedEvent) -> EventValues:
    """Turn an event into SQL parameters.

    An event that went through the border always passes. One made by ``model_construct`` may hold anything,
    and a bad value must not reach SQLite, where it would fail the whole batch.

    Raises
    ------
    TypeError, ValueError, AttributeError
        The event breaks the rules of the border.
    """
    key: bytes | None = None
    if type(queued) is QueuedEvent:
        event, key = queued
    else:
        event = queued  # type: ignore[assignment]
    fields = event.__dict__  # one look-up instead of nine through the model
    try:
        user, item, kind, time_ms = fields["user"], fields["item"], fields["kind"], fields["time_ms"]
        position, request, value = fields["position"], fields["request"], fields["value"]
        facts, event_id = fields["attributes"], fields["id"]
    except KeyError as error:
        raise ValueError(f"the field {error} is missing") from None
    if value is not None:
        if type(value) is not float or value - value != 0.0:
            raise ValueError("value is no finite float")
        value += 0.0  # minus zero is zero: SQLite gives it back so
    content = (user, item, kind, time_ms, position, request, value, None)
    if (
        tuple(map(type, content)) not in _TYPES
        or not (user and item and kind)
        or not 0 <= time_ms <= MAX_TIME_MS
        or request == ""
        or (position is not None and not 0 <= position <= MAX_POSITION)
    ):
        raise ValueError("a field has the wrong type or range")
    attributes = None
    text = b""
    if not facts and event_id is None:
        shown = repr(content)
        if shown.isascii() and "\\" not in shown:
            text = shown.encode()
            if key is None and type(event) is Event:
                key = blake2b(text, digest_size=KEY_BYTES).digest()  # the same as event.key(), in half the time
    if not text:
        if event_id is not None:
            check_id("id", event_id)
        attributes = _attributes_text(facts) if facts else None
        text = _lines((user, item, kind, time_ms, position, request, value, attributes, event_id))
    if len(text) > MAX_ID_BYTES:  # below that, no single id can be too long
        for one in (user, item, kind, request, event_id):
            if one is not None:
                check_id("id", one)
    if key is None:
        key = event.key()
    return key, user, item, kind, time_ms, position, request, value, attributes, event_id, crc32(key + text)


_NOTHING = type(None)
_TYPES = frozenset(
    (str, str, str, int, position, request, value, _NOTHING)
    for position in (int, _NOTHING)
    for request in (str, _NOTHING)
    for value in (float, _NOTHING)
)


def decode_anything(data: bytes) -> str:
    """Text of a file that may be damaged: what is no UTF-8 is kept, and no checksum will agree with it."""
    return data.decode(errors="surrogateescape")


def _lines(fields: tuple[Any, ...]) -> bytes:
    return ("\n" + "\n".join(map(str, fields))).encode()


def checksum_of_row(row: tuple[Any, ...]) -> int:
    """CRC-32 of an event as it lies in the file: key, user, item, kind, time and the rest, names as text.

    It is taken over the key and the text that the key is a digest of, where that is plain ASCII (which other
    characters Python's tuples escape differs between its versions), else over the fields as lines.

    CRC-32 finds every error burst of up to 32 bits; of other damage it misses one case in 4 thousand million. A
    key that is no bytes, or text that UTF-8 cannot encode, gives -1, which no event has.
    """
    key, *fields = row
    try:
        if fields[-1] is None and fields[-2] is None:
            shown = repr((*fields[:-2], None))
            if shown.isascii() and "\\" not in shown:
                return crc32(key + shown.encode())
        return crc32(key + _lines(tuple(fields)))
    except (TypeError, ValueError):
        return -1


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _attributes_text(attributes: dict[str, Any]) -> str:
    text = _encode(attributes)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate; only its escaped form can be stored
        text = json.dumps(attributes, separators=(",", ":"), allow_nan=False)
    return text


_FIELDS = frozenset(Event.model_fields)


def event_from_row(user: str, row: tuple[Any, ...]) -> Event:
    """Rebuild an event from ``item, kind, time_ms, position, request, value, attributes, event_id``.

    The values were checked when they were written, so only their types are looked at again.

    Raises
    ------
    StoreError
        The row is damaged.
    """
    item, kind, time_ms, position, request, value, attributes, event_id = row
    if type(item) is not str or type(kind) is not str or type(time_ms) is not int:
        raise StoreError(
            f"a stored event is damaged: expected item, kind and time of types str, str and int, got "
            f"{type(item).__name__}, {type(kind).__name__} and {type(time_ms).__name__}: "
            "restore the file from a copy"
        )
    if attributes is None:
        facts = {}
    else:
        try:
            facts = json.loads(attributes)
        except (TypeError, ValueError):
            raise StoreError(
                "a stored event is damaged: its attributes are no JSON text: restore the file from a copy"
            ) from None
    return Event.model_construct(
        _fields_set=set(_FIELDS),
        user=user,
        item=item,
        kind=kind,
        time_ms=time_ms,
        position=position,
        request=request,
        value=value,
        attributes=facts,
        id=event_id,
    )


def example_from_row(user: str, row: tuple[Any, ...]) -> Example:
    """Rebuild an example from ``request, item, time_ms, label, features, base_model``.

    Raises
    ------
    StoreError
        The row is damaged.
    """
    request, item, time_ms, label, features, base_model = row
    try:
        return Example(user, request, item, time_ms, label, np.frombuffer(features, dtype="<f4"), base_model)
    except (InputError, TypeError, ValueError) as error:
        raise StoreError(f"a stored training example is damaged ({error}): restore the file from a copy") from None


def example_bytes(example: Example) -> bytes:
    """The features as little-endian float32, the same on every machine."""
    return example.features.astype("<f4").tobytes()
