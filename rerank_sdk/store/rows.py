"""The values that the store takes and gives, and their form as SQL parameters. Pure functions, no SQL."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import MAX_ID_BYTES, MAX_TIME_MS, Event, Item

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


Operation = QueuedEvent | Example | QueuedPatch | QueuedItem
"""Whatever waits in the queue of the writer."""


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


class EventValues(NamedTuple):
    """An event, ready to be bound: the names still as text."""

    key: bytes
    user: str
    item: str
    kind: str
    time_ms: int
    position: int | None
    request: str | None
    value: float | None
    attributes: str | None
    event_id: str | None


def event_values(queued: QueuedEvent) -> EventValues:
    """Turn an event into SQL parameters.

    An event that went through the border always passes. One made by ``model_construct`` may hold anything,
    and a bad value must not reach SQLite, where it would fail the whole batch.

    Raises
    ------
    TypeError, ValueError, AttributeError
        The event breaks the rules of the border.
    """
    event, key = queued
    for text in (event.user, event.item, event.kind):
        check_id("id", text)
    for optional in (event.request, event.id):
        if optional is not None:
            check_id("id", optional)
    check_time(event.time_ms)
    if event.position is not None and (type(event.position) is not int or not 0 <= event.position <= 1_000_000):
        raise ValueError("position out of range")
    if event.value is not None and (type(event.value) is not float or not math.isfinite(event.value)):
        raise ValueError("value is no finite float")
    return EventValues(
        event.key() if key is None else key,
        event.user,
        event.item,
        event.kind,
        event.time_ms,
        event.position,
        event.request,
        event.value,
        _attributes_text(event.attributes) if event.attributes else None,
        event.id,
    )


def _attributes_text(attributes: dict[str, Any]) -> str:
    text = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
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
