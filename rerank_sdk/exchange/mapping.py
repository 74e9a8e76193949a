"""A mapping as data: where the fields of an event come from in a foreign record, and which records are events at all.

>>> from rerank_sdk.exchange import EventMapping
>>> mapping = EventMapping.from_toml('''
... name = "player"
... user = "uid"
... item = "video.id"
... time = {path = "at", unit = "s"}
... kind = {path = "what", names = {"open" = "click", "thumb_up" = "like"}}
... ''')
>>> mapping.item.path, mapping.kind.names["open"]
(('video.id',), 'click')
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from rerank_engine.errors import SpecError
from rerank_features.events import Kind
from rerank_features.toml_text import read_toml
from rerank_sdk.exchange.explain import explain, nearest
from rerank_sdk.exchange.paths import EACH, steps_of
from rerank_sdk.exchange.times import TimeUnit, zone_named

BUILT_IN: tuple[str, ...] = ("segment", "snowplow")
"""Mappings that come with the SDK."""

Scalar = StrictStr | StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _path(text: str) -> str:
    steps_of(text)
    return text


def _zone(name: str | None) -> str | None:
    if name is not None:
        zone_named(name)
    return name


FieldPath = Annotated[str, AfterValidator(_path)]
Paths = tuple[FieldPath, ...]
Label = Annotated[str, Field(min_length=1, max_length=64)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Source(_Part):
    """Where a value comes from. In TOML also a path alone, or several, of which the first that is there counts."""

    path: Paths = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"path": (data,)}
        if isinstance(data, list | tuple):
            return {"path": tuple(data)}
        if isinstance(data, dict) and isinstance(data.get("path"), str):
            return {**data, "path": (data["path"],)}
        return data

    @model_validator(mode="after")
    def _says_something(self) -> _Source:
        if not self.path and getattr(self, "constant", None) is None:
            raise ValueError("names no path: give one, several, or a constant where it is allowed")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


class Source(_Source):
    """A value.

    Attributes
    ----------
    path
        Dotted paths; the first whose value is neither null nor empty text counts.
    constant
        The value where no path has one.
    """

    constant: Scalar | None = None


class TimeSource(_Source):
    """When it happened.

    Attributes
    ----------
    path
        As for every value.
    unit
        ``iso`` for ISO 8601 text, ``s``, ``ms`` or ``us`` for a number since 1970.
    zone
        IANA name of the zone of ISO times without an offset; without it they are refused.
    """

    unit: TimeUnit = "iso"
    zone: Annotated[str | None, AfterValidator(_zone)] = None


class PositionSource(_Source):
    """The place in the list.

    Attributes
    ----------
    path
        As for every value.
    first
        The number that the log gives to the first place: 0 or 1.
    index
        Without a number, take the element's place in the exploded list.
    """

    first: Literal[0, 1] = 0
    index: bool = False


class KindSource(_Source):
    """What happened.

    Attributes
    ----------
    path
        As for every value.
    constant
        The kind where no path has one.
    names
        The log's word to a kind.
    other
        What to do with words that `names` lacks: ``skip`` or ``reject`` the record, or ``keep`` the word as kind.
        By default ``skip``, and ``keep`` where there are no names.
    """

    constant: Kind | None = None
    names: dict[str, Kind] = Field(default_factory=dict)
    other: Literal["skip", "reject", "keep"] | None = None

    @property
    def effective_other(self) -> Literal["skip", "reject", "keep"]:
        """What is done with words that have no name."""
        return self.other or ("skip" if self.names else "keep")


class Condition(_Part):
    """What a value has to be. In TOML also a value alone, or several, of which it is one.

    Attributes
    ----------
    any_of
        It equals one of these.
    none_of
        It equals none of these; a missing value does.
    present
        It is there (neither null nor empty text), or it is not.
    """

    any_of: tuple[Scalar, ...] | None = None
    none_of: tuple[Scalar, ...] | None = None
    present: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, str | int | float | bool):
            return {"any_of": (data,)}
        return {"any_of": tuple(data)} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if self.any_of is None and self.none_of is None and self.present is None:
            raise ValueError("is no condition: give a value, several, or any_of, none_of or present")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        value = {"type": ["string", "number", "boolean"]}
        return {"anyOf": [handler(schema), value, {"type": "array", "items": value}]}


Conditions = dict[FieldPath, Condition]


class Drop(_Part):
    """Records to leave out.

    Attributes
    ----------
    name
        Under which they are counted.
    when
        Path to condition; all must hold.
    """

    name: Label
    when: Annotated[Conditions, Field(min_length=1)]


class _Fields(_Part):
    """Where each field of an event comes from."""

    user: Source | None = None
    item: Source | None = None
    kind: KindSource | None = None
    time: TimeSource | None = None
    position: PositionSource | None = None
    request: Source | None = None
    value: Source | None = None
    attributes: dict[str, Source] = Field(default_factory=dict)
    id: Source | None = None


class Rule(_Fields):
    """Records of one sort. What it says of a field goes before what the mapping says of it.

    Attributes
    ----------
    name
        For messages.
    when
        Path to condition; all must hold. Empty takes every record.
    each
        Path of a list: each of its elements becomes an event, and paths that begin with ``each.`` look into it.
        Events of one record have its id with ``#`` and the element's number.
    user, item, kind, time, position, request, value, attributes, id
        As in the mapping; attributes are added to those of the mapping.
    """

    name: Label
    when: Conditions = Field(default_factory=dict)
    each: FieldPath | None = None


class EventMapping(_Fields):
    """How records of a foreign log become events.

    Attributes
    ----------
    name
        For messages.
    user, item, kind, time
        Where these fields come from; every rule has all four, its own or these.
    position, request, value, id
        Where these fields come from; left out, events do not have them.
    attributes
        Name to source. Objects and lists become JSON text; a missing value is left out.
    drop
        Records to leave out, asked before the rules.
    rules
        The first whose conditions hold is used. Without rules every record is an event.
    other
        What to do with records that no rule takes: ``skip`` counts them, ``reject`` also writes them to the rejects.

    Raises
    ------
    SpecError
        An option is unknown or wrong, or a rule lacks a field.

    Examples
    --------
    >>> EventMapping(name="m", user="u", item="i", time="t", kind={"constant": "click"}).time.unit
    'iso'
    """

    name: Label
    drop: tuple[Drop, ...] = ()
    rules: tuple[Rule, ...] = ()
    other: Literal["skip", "reject"] = "skip"

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(explain(error, _OPTIONS)) from None

    @model_validator(mode="after")
    def _is_complete(self) -> EventMapping:
        for drop in self.drop:
            if any(steps_of(path)[0] == EACH for path in drop.when):
                raise ValueError(f"drop {drop.name!r}: there is no list whose elements `each` could mean")
        for rule in self.effective_rules():
            for field in ("user", "item", "kind", "time"):
                if getattr(rule, field) is None:
                    raise ValueError(f"rule {rule.name!r} does not say where {field} comes from")
            if rule.each is None and any(steps_of(path)[0] == EACH for path in _paths_of(rule)):
                raise ValueError(f"rule {rule.name!r} uses a path that begins with each: name the list by each = …")
            if any(steps_of(path)[0] == EACH for path in (*rule.when, *((rule.each,) if rule.each else ()))):
                raise ValueError(f"rule {rule.name!r}: each and when look at the record, not at an element")
            if rule.each is None and rule.position is not None and rule.position.index:
                raise ValueError(f"rule {rule.name!r}: position.index needs a list: name it by each = …")
        return self

    def effective_rules(self) -> tuple[Rule, ...]:
        """The rules, each with what the mapping says of fields that it does not name.

        Examples
        --------
        >>> EventMapping.builtin("segment").effective_rules()[0].user.path
        ('userId', 'anonymousId')
        """
        own = {name: getattr(self, name) for name in _Fields.model_fields if name != "attributes"}
        return tuple(
            rule.model_copy(
                update={name: source for name, source in own.items() if getattr(rule, name) is None}
                | {"attributes": {**self.attributes, **rule.attributes}}
            )
            for rule in self.rules or (Rule(name=self.name),)
        )

    @classmethod
    def from_toml(cls, source: str | Path) -> EventMapping:
        """Read a mapping from TOML.

        Parameters
        ----------
        source
            A path, or the text itself: a string with an equals sign or a line break is text.

        Raises
        ------
        SpecError
            The file cannot be read, is no TOML, or is no valid mapping.

        Examples
        --------
        >>> EventMapping.from_toml('name = "m"')
        Traceback (most recent call last):
        rerank_engine.errors.SpecError: invalid mapping: rule 'm' does not say where user comes from
        """
        return cls(**read_toml(source, "the mapping"))

    @classmethod
    def builtin(cls, name: str) -> EventMapping:
        """A mapping that comes with the SDK: one of :data:`BUILT_IN`.

        Raises
        ------
        SpecError
            There is none of this name.

        Examples
        --------
        >>> EventMapping.builtin("snowplow").name
        'snowplow'
        """
        return cls.from_toml(builtin_text(name))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of a mapping, for editors and other languages.

        Examples
        --------
        >>> sorted(EventMapping.json_schema()["required"])
        ['name']
        """
        return cls.model_json_schema()


def builtin_text(name: str) -> str:
    """The TOML text of a mapping that comes with the SDK, to copy and change.

    Raises
    ------
    SpecError
        There is none of this name.

    Examples
    --------
    >>> 'name = "segment"' in builtin_text("segment")
    True
    """
    if name not in BUILT_IN:
        raise SpecError(
            f"there is no built-in mapping {name!r}: use one of {', '.join(BUILT_IN)}, or a TOML file"
            f"{nearest(name, BUILT_IN)}"
        )
    return (Path(__file__).parent / "mappings" / f"{name}.toml").read_text(encoding="utf-8")


def _paths_of(rule: Rule) -> Iterator[str]:
    for name in _Fields.model_fields:
        source = getattr(rule, name)
        for one in source.values() if name == "attributes" else (source,):
            if one is not None:
                yield from one.path


_OPTIONS = {
    option
    for part in (EventMapping, Rule, Source, TimeSource, PositionSource, KindSource, Condition)
    for option in part.model_fields
}
