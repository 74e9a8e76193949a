"""The border: Event, Item and Request, checked once here by pydantic; behind it there are flat arrays only.

>>> from rerank_features import Event, Item, Request
>>> event = Event(user="u1", item="i7", kind="click", time_ms=1_700_000_000_000)
>>> request = Request(user="u1", time_ms=1_700_000_001_000, candidates=[Item(id="i7"), Item(id="i9")])
>>> [item.id for item in request.candidates]
['i7', 'i9']
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rerank_engine.errors import EventError

KINDS: tuple[str, ...] = ("impression", "click", "dwell", "like", "dislike", "hide", "purchase", "skip")
"""The kinds that the SDK knows by itself. Any other identifier is a custom kind."""

MAX_ID_BYTES = 1024
"""Longest user, item, request or event id, in UTF-8 bytes."""

MAX_POSITION = 1_000_000
"""Last place in a list that an event may name."""

MAX_TIME_MS = 4_102_444_800_000
"""2100-01-01 UTC: later times are taken for a wrong unit."""


def _short(text: str | None) -> str | None:
    if text is not None and (len(text) > MAX_ID_BYTES or len(text.encode()) > MAX_ID_BYTES):
        raise ValueError(f"id longer than {MAX_ID_BYTES} bytes: {text[:32]!r}…")
    return text


Id = Annotated[str, Field(min_length=1)]
KIND_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
Kind = Annotated[str, Field(pattern=f"^{KIND_PATTERN.pattern}$")]
TimeMs = Annotated[int, Field(ge=0, le=MAX_TIME_MS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Scalar = str | int | bool | Finite


class _Border(BaseModel):
    """Common rules: unknown fields are refused, values never change, errors are ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise EventError(_explain(type(self).__name__, error)) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; unlike pydantic's own, the result keeps the rules of the border.

        Raises
        ------
        EventError
            A changed field breaks a rule.
        """
        return type(self)(**{**self.__dict__, **update}) if update else super().model_copy(deep=deep)

    @classmethod
    def from_json(cls, text: str | bytes) -> Any:
        """Read one object from JSON text.

        Raises
        ------
        EventError
            The text is no JSON, or breaks a rule of the border.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise EventError(_explain(cls.__name__, error)) from None


class Event(_Border):
    """Something that a user did, or that was shown to them.

    Attributes
    ----------
    user, item
        Ids, at most 1,024 bytes each.
    kind
        One of :data:`KINDS` or a custom identifier in lower case.
    time_ms
        When it happened: milliseconds since 1970, UTC.
    position
        Place of the item in the list that was shown, from 0.
    request
        Id of the request whose list it belongs to.
    value
        A number that belongs to the kind: dwell in seconds, a rating, a price.
    attributes
        Further facts, kept in the store and exported with it; features do not read them.
    id
        Makes a repeated delivery recognisable. Without it, two events that agree in every field are one event.

    Raises
    ------
    EventError
        A field is missing, unknown, or out of range.

    Examples
    --------
    >>> Event(user="u1", item="i1", kind="dwell", value=3.5, time_ms=1_700_000_000_000).value
    3.5
    """

    user: Id
    item: Id
    kind: Kind
    time_ms: TimeMs
    position: Annotated[int, Field(ge=0, le=MAX_POSITION)] | None = None
    request: Id | None = None
    value: Finite | None = None
    attributes: dict[str, Scalar] = Field(default_factory=dict)
    id: Id | None = None

    _ids = field_validator("user", "item", "request", "id")(_short)

    def check(self) -> None:
        """Check again what features rest on, for an event that went around the border by ``model_construct``.

        Costs half a microsecond. What it does not look at is checked before it is stored.

        Raises
        ------
        EventError
            A rule is broken.
        """
        known = self.__dict__
        try:
            value, time_ms = known["value"], known["time_ms"]
            keeps_rules = (
                type(known["user"]) is type(known["item"]) is type(known["kind"]) is str
                and type(time_ms) is int
                and 0 <= time_ms <= MAX_TIME_MS
                and (value is None or (type(value) is float and value - value == 0.0))
            )
        except KeyError:
            keeps_rules = False
        if not keeps_rules:
            type(self)(**known)

    def identity(self) -> tuple[object, ...]:
        """What makes two deliveries the same event: user and id, or without an id every field. Hashable."""
        known = self.__dict__  # a third of the time of reading attributes
        if known["id"] is not None:
            return known["user"], known["id"]
        value, attributes = known["value"], known["attributes"]
        return (
            known["user"],
            known["item"],
            known["kind"],
            known["time_ms"],
            known["position"],
            known["request"],
            # Minus zero is zero, also once it comes back from a store.
            None if value is None else value + 0.0,
            tuple(sorted(attributes.items())) if attributes else None,
        )

    def key(self) -> bytes:
        """Sixteen bytes that are equal for two deliveries of the same event: a digest of :meth:`identity`."""
        # repr keeps the fields apart whatever they hold.
        return hashlib.blake2b(repr(self.identity()).encode(), digest_size=16).digest()


class Item(_Border):
    """An item as the server delivers it: its fields and its embedding row travel with the request.

    Attributes
    ----------
    id
        At most 1,024 bytes.
    categorical
        Field name to value.
    multi_categorical
        Field name to several values, for example genres.
    numeric
        Field name to a finite number. A missing field means unknown; NaN is refused.
    embedding
        The item's row of the server's embedding table.

    Examples
    --------
    >>> Item(id="m1", categorical={"language": "en"}, multi_categorical={"genres": ("Comedy",)}).id
    'm1'
    """

    id: Id
    categorical: dict[str, str] = Field(default_factory=dict)
    multi_categorical: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    numeric: dict[str, Finite] = Field(default_factory=dict)
    embedding: tuple[Finite, ...] | None = None

    _ids = field_validator("id")(_short)

    @property
    def is_bare(self) -> bool:
        """Whether only an id came. Such an item changes nothing of what is known of it already."""
        return not (self.categorical or self.multi_categorical or self.numeric) and self.embedding is None


class Request(_Border):
    """A list to reorder: candidates in the server's order, with the server's scores.

    Attributes
    ----------
    user
        Whose list it is.
    candidates
        In the server's order.
    scores
        The server's score of each candidate, or None when it sends none.
    context
        Facts of the moment: numbers and words by name.
    time_ms
        When the list is to be shown: milliseconds since 1970, UTC.
    id
        Events that carry it mark their items as seen in this list.
    shown
        How many candidates from the top are on screen already; they keep their places.

    Examples
    --------
    >>> Request(user="u", time_ms=0, candidates=[Item(id="a")], scores=[0.5]).scores
    (0.5,)
    """

    user: Id
    candidates: tuple[Item, ...]
    scores: tuple[Finite, ...] | None = None
    context: dict[str, Scalar] = Field(default_factory=dict)
    time_ms: TimeMs
    id: Id | None = None
    shown: Annotated[int, Field(ge=0)] = 0

    _ids = field_validator("user", "id")(_short)

    @model_validator(mode="after")
    def _lengths(self) -> Request:
        if self.scores is not None and len(self.scores) != len(self.candidates):
            raise ValueError(f"{len(self.candidates)} candidates but {len(self.scores)} scores")
        return self


def _explain(what: str, error: ValidationError) -> str:
    """One line: which field, what is wrong, what came."""
    parts = []
    for problem in error.errors(include_url=False)[:3]:
        text = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        if not problem["loc"]:
            parts.append(text)
            continue
        place = ".".join(str(step) for step in problem["loc"])
        if problem["type"] == "missing":
            parts.append(f"{place}: {text}")
            continue
        if place == "time_ms":
            text += "; give whole milliseconds, for example int(time.time() * 1000)"
        came = repr(problem.get("input"))
        parts.append(f"{place}: {text} (got {came if len(came) <= 80 else came[:80] + '…'})")
    more = error.error_count() - len(parts)
    return f"invalid {what}: " + "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
