"""A mapping compiled to functions: a record goes in, events come out.

``{"event": "Product List Viewed", "properties": {"products": [{…}, {…}]}, …}`` → two impressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rerank_features.events import MAX_POSITION, Event
from rerank_sdk.exchange.mapping import (
    Condition,
    Drop,
    EventMapping,
    KindSource,
    PositionSource,
    Rule,
    Source,
    TimeSource,
)
from rerank_sdk.exchange.paths import Getter, first_of, getter
from rerank_sdk.exchange.record import RefusedRecord, json_text, make_event, shown
from rerank_sdk.exchange.times import time_ms_of, zone_named

_is_number = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?").fullmatch
_ID_BITS = 3_300
"""Integers beyond a thousand digits are no ids; Python refuses to write those of several thousand."""

_EXACT_BELOW = 2.0**53
"""Larger whole numbers are not told apart by a float."""


Test = Callable[[dict[str, Any]], bool]
PositionReader = Callable[[dict[str, Any], Any, int], int | None]
"""Takes a record, the element looked at and its number."""


class Mapped(NamedTuple):
    """What became of a record.

    Attributes
    ----------
    events
        In the order of the exploded list.
    refused
        Elements, or the record itself, that cannot become events.
    skipped
        Under which name the record is passed over; None when it is not.
    """

    events: Sequence[Event]
    refused: Sequence[RefusedRecord] = ()
    skipped: str | None = None


class Skip(Exception):
    """The record is to be passed over; the argument is the name under which it is counted."""


class Mapper:
    """A compiled mapping.

    Parameters
    ----------
    mapping
        What to compile.

    Examples
    --------
    >>> mapping = EventMapping(name="m", user="u", item="i", time="t", kind={"constant": "click"})
    >>> Mapper(mapping).map({"u": 7, "i": "film", "t": "1970-01-01T00:00:05Z"}).events[0].time_ms
    5000
    """

    def __init__(self, mapping: EventMapping) -> None:
        self._drops = tuple((drop.name, _test(drop)) for drop in mapping.drop)
        self._rejects_other = mapping.other == "reject"
        rules = tuple(_CompiledRule(rule) for rule in mapping.effective_rules())
        self._every = rules
        # Where each rule asks for values of one path, a table finds the rules of a record.
        self._switch, self._table = _switch(mapping.effective_rules(), rules)

    def map(self, record: dict[str, Any]) -> Mapped:
        """Turn a record into events. Whatever it holds, nothing is raised."""
        for name, holds in self._drops:
            if holds(record):
                return Mapped((), skipped=name)
        rules: Sequence[_CompiledRule] = self._every
        if self._switch is not None:
            value = self._switch(record, None)
            rules = self._table.get(_typed(value), ()) if value.__hash__ is not None else ()
        for rule in rules:
            if rule.takes(record):
                return rule.map(record)
        if self._rejects_other:
            return Mapped((), (RefusedRecord("no_rule", "no rule of the mapping takes it"),))
        return Mapped((), skipped="no rule" if self._switch is None else f"no rule for {_word(value)}")


class _CompiledRule:
    def __init__(self, rule: Rule) -> None:
        assert rule.user is not None
        assert rule.item is not None
        assert rule.kind is not None
        assert rule.time is not None
        self.takes = _test(rule)
        self._each_path = rule.each
        self._each = None if rule.each is None else getter(rule.each)
        self._user = _id_reader("user", rule.user)
        self._item = _id_reader("item", rule.item)
        self._kind = _kind_reader(rule.kind)
        self._time = _time_reader(rule.time)
        self._position = None if rule.position is None else _position_reader(rule.position)
        self._request = None if rule.request is None else _id_reader("request", rule.request, is_needed=False)
        self._value = None if rule.value is None else _value_reader(rule.value)
        self._attributes = tuple((name, _plain_getter(source)) for name, source in rule.attributes.items())
        self._id = None if rule.id is None else _id_reader("id", rule.id, is_needed=False)

    def map(self, record: dict[str, Any]) -> Mapped:
        try:
            if self._each is None:
                return Mapped((self._event(record, None, -1),))
            elements = self._each(record, None)
            if type(elements) is not list:
                if elements is None:
                    return Mapped((), skipped=f"no list {self._each_path}")
                raise RefusedRecord("each", f"expected a list at {self._each_path}, got {shown(elements)}")
        except RefusedRecord as refused:
            return Mapped((), (refused,))
        except Skip as skip:
            return Mapped((), skipped=str(skip))
        if not elements:
            return Mapped((), skipped=f"empty list {self._each_path}")
        events, refusals, skipped = [], [], None
        for number, element in enumerate(elements):
            try:
                events.append(self._event(record, element, number))
            except RefusedRecord as error:
                refusals.append(RefusedRecord(error.reason, f"{self._each_path}.{number}: {error.detail}"))
            except Skip as skip:
                skipped = str(skip)
        return Mapped(events, refusals, None if events or refusals else skipped)

    def _event(self, record: dict[str, Any], element: Any, number: int) -> Event:
        event_id = None if self._id is None else self._id(record, element)
        attributes = {}
        for name, get in self._attributes:
            value = get(record, element)
            if value is not None:
                attributes[name] = value if type(value) not in (dict, list) else _nested_text(name, value)
        return make_event(
            {
                "user": self._user(record, element),
                "item": self._item(record, element),
                "kind": self._kind(record, element),
                "time_ms": self._time(record, element),
                "position": None if self._position is None else self._position(record, element, number),
                "request": None if self._request is None else self._request(record, element),
                "value": None if self._value is None else self._value(record, element),
                "attributes": attributes,
                "id": event_id if event_id is None or number < 0 else f"{event_id}#{number}",
            }
        )


# --- conditions ------------------------------------------------------------------------------------------


def _typed(value: Any) -> tuple[type, Any]:
    """A key by which 1, 1.0 and true differ."""
    return type(value), value


def _condition(path: str, condition: Condition) -> Test:
    get = getter(path)
    any_of = None if condition.any_of is None else frozenset(map(_typed, condition.any_of))
    none_of = frozenset(map(_typed, condition.none_of or ()))
    present = condition.present

    def holds(record: dict[str, Any]) -> bool:
        value = get(record, None)
        if present is not None and present == (value is None or value == ""):
            return False
        if value.__hash__ is None:  # an object or a list equals no scalar
            return any_of is None
        key = _typed(value)
        return (any_of is None or key in any_of) and key not in none_of

    return holds


def _test(part: Rule | Drop) -> Test:
    conditions = tuple(_condition(path, condition) for path, condition in part.when.items())
    if len(conditions) == 1:
        return conditions[0]
    return lambda record: all(holds(record) for holds in conditions)


def _switch(
    rules: Sequence[Rule], compiled: Sequence[_CompiledRule]
) -> tuple[Getter | None, dict[tuple[type, Any], tuple[_CompiledRule, ...]]]:
    for path in rules[0].when:
        asked = [rule.when[path].any_of if path in rule.when else None for rule in rules]
        if all(values is not None for values in asked):
            table: dict[tuple[type, Any], tuple[_CompiledRule, ...]] = {}
            for values, rule in zip(asked, compiled, strict=True):
                for value in dict.fromkeys(map(_typed, values or ())):
                    table[value] = (*table.get(value, ()), rule)
            return getter(path), table
    return None, {}


def _word(value: Any) -> str:
    return shown(value) if type(value) in (str, int, bool) or value is None else f"a {type(value).__name__}"


# --- fields ----------------------------------------------------------------------------------------------


def _plain_getter(source: Source) -> Getter:
    get, constant = first_of(source.path) if source.path else None, source.constant
    if get is None:
        return lambda *_: constant
    if constant is None:
        return get

    def read(record: dict[str, Any], element: Any) -> Any:
        value = get(record, element)
        return constant if value is None else value

    return read


def _id_reader(field: str, source: Source, *, is_needed: bool = True) -> Getter:
    plain = _plain_getter(source)
    places = " or ".join(source.path)

    def read(record: dict[str, Any], element: Any) -> str | None:
        value = plain(record, element)
        if type(value) is str:
            return value
        if value is None:
            if is_needed:
                raise RefusedRecord(field, f"nothing at {places}: every event has a user, an item, a kind and a time")
            return None
        if type(value) is float and value.is_integer() and abs(value) < _EXACT_BELOW:
            return str(int(value))  # a column of whole numbers in which some were missing
        if type(value) is int and value.bit_length() < _ID_BITS:
            return str(value)
        raise RefusedRecord(field, f"expected text or a whole number at {places}, got {shown(value)}")

    return read


def _kind_reader(source: KindSource) -> Getter:
    plain = _plain_getter(Source.model_construct(path=source.path, constant=source.constant))
    if not source.path:
        return plain
    names, other, constant = source.names, source.effective_other, source.constant
    places = " or ".join(source.path)

    def read(record: dict[str, Any], element: Any) -> str:
        value = plain(record, element)
        if type(value) is str:
            kind = names.get(value)
            if kind is not None:
                return kind
            if other == "keep" or value == constant:
                return value
            if other == "skip":
                raise Skip(f"no kind for {_word(value)}")
        raise RefusedRecord("kind", f"expected a word that the mapping names at {places}, got {shown(value)}")

    return read


def _time_reader(source: TimeSource) -> Getter:
    get, unit = first_of(source.path), source.unit
    zone = None if source.zone is None else zone_named(source.zone)
    places = " or ".join(source.path)

    def read(record: dict[str, Any], element: Any) -> int:
        value = get(record, element)
        if value is None:
            raise RefusedRecord("time_ms", f"nothing at {places}: every event has a user, an item, a kind and a time")
        return time_ms_of(value, unit, zone)

    return read


def _position_reader(source: PositionSource) -> PositionReader:
    get = first_of(source.path) if source.path else lambda *_: None
    first, counts = source.first, source.index
    places = " or ".join(source.path)

    def read(record: dict[str, Any], element: Any, number: int) -> int | None:
        value = get(record, element)
        if value is None:
            return number if counts else None
        is_digits = type(value) is str and value.isascii() and value.isdecimal() and len(value) < 10
        if is_digits or (type(value) is float and value.is_integer() and abs(value) < 1e9):
            value = int(value)
        if type(value) is not int or not first <= value <= MAX_POSITION:
            raise RefusedRecord(
                "position",
                f"expected a whole number from {first} to {MAX_POSITION} at {places}, got {shown(value)}: "
                f"the mapping says that lists begin at {first}; leave position out where it means something else",
            )
        return value - first

    return read


def _value_reader(source: Source) -> Getter:
    plain = _plain_getter(source)
    places = " or ".join(source.path)

    def read(record: dict[str, Any], element: Any) -> float | None:
        value = plain(record, element)
        if value is None or type(value) is float:
            return value
        if type(value) is int or (type(value) is str and _is_number(value)):
            try:
                return float(value)
            except OverflowError:
                pass
        raise RefusedRecord("value", f"expected a number at {places}, got {shown(value)}")

    return read


def _nested_text(name: str, value: Any) -> str:
    try:
        return json_text(value)
    except (ValueError, RecursionError):
        raise RefusedRecord("attributes", f"{name} cannot be written as JSON text: leave it out") from None
