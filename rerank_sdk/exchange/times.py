"""Times of foreign logs: numbers in a unit, or ISO 8601 text, as milliseconds since 1970, UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from rerank_engine.errors import SpecError
from rerank_features.events import MAX_TIME_MS
from rerank_sdk.exchange.explain import nearest
from rerank_sdk.exchange.record import RefusedRecord, shown

TimeUnit = Literal["iso", "s", "ms", "us"]
"""What a time is given in: ISO 8601 text, or a number of seconds, milliseconds or microseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_is_number = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?").fullmatch
_EXPECTED = "expected a time between 1970 and 2100"
_WAY_OUT = "correct the time, or name another field for it"


def zone_named(name: str) -> tzinfo:
    """The time zone with an IANA name.

    Raises
    ------
    SpecError
        There is no such zone, or the system has no time zone data.

    Examples
    --------
    >>> zone_named("UTC") is UTC
    True
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SpecError(
            f"zone: {shown(name)} is no time zone that this system knows: give an IANA name such as 'Europe/Berlin', "
            f"and where the system has no time zone data, pip install tzdata{nearest(name, available_timezones())}"
        ) from None


def time_ms_of(value: Any, unit: TimeUnit, zone: tzinfo | None) -> int:
    """Read a time.

    Parameters
    ----------
    value
        A number, text with a number, or ISO 8601 text, as `unit` says. Parts below a millisecond are cut off.
    unit
        How to read it.
    zone
        Whose clock shows an ISO time without an offset; None refuses such a time. Where a clock shows a time
        twice, in autumn, the first is meant.

    Raises
    ------
    RefusedRecord
        It is no time, not between 1970 and 2100, or the zone's clock never showed it.

    Examples
    --------
    >>> time_ms_of("2015-12-10T04:08:31.905Z", "iso", None)
    1449720511905
    >>> time_ms_of("1449720511.9", "s", None)
    1449720511900
    """
    if unit == "iso":
        return _iso_ms(value, zone)
    if type(value) is str and _is_number(value):
        value = float(value) if "." in value else int(value)
    if type(value) is not int and type(value) is not float:
        raise RefusedRecord("time_ms", f"expected a number of {unit}, got {shown(value)}: {_WAY_OUT}")
    # The comparison is made first: it holds for infinity, NaN and integers of any size.
    end_ms = MAX_TIME_MS + 1
    if not 0 <= value < (end_ms / 1_000 if unit == "s" else end_ms if unit == "ms" else end_ms * 1_000):
        raise RefusedRecord(
            "time_ms", f"expected {unit} between 1970 and 2100, got {shown(value)}: check the unit, or {_WAY_OUT}"
        )
    if unit == "ms":
        return int(value)
    if unit == "us":
        return int(value) // 1_000
    # Binary cannot hold most decimal fractions: 1.001 * 1000 is below 1001, but not by as much as a microsecond.
    return value * 1_000 if type(value) is int else round(value * 1e6) // 1_000


def _iso_ms(value: Any, zone: tzinfo | None) -> int:
    if type(value) is not str:
        raise RefusedRecord("time_ms", f"expected ISO 8601 text, got {shown(value)}: {_WAY_OUT}, or its unit")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise RefusedRecord("time_ms", f"expected ISO 8601 text, got {shown(value)}: {_WAY_OUT}") from None
    if moment.tzinfo is None:
        if zone is None:
            raise RefusedRecord("time_ms", f"{shown(value)} has no offset from UTC: name its zone in the mapping")
        moment = _placed(moment, zone, value)
    since = moment - _EPOCH  # beyond a datetime's range for no offset: both are counted from year 1
    time_ms = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise RefusedRecord("time_ms", f"{_EXPECTED}, got {shown(value)}: {_WAY_OUT}")
    return time_ms


def _placed(moment: datetime, zone: tzinfo, value: str) -> datetime:
    placed = moment.replace(tzinfo=zone)
    if zone is UTC:
        return placed
    try:
        back = placed.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
    except (OverflowError, ValueError):
        raise RefusedRecord("time_ms", f"{_EXPECTED}, got {shown(value)}: {_WAY_OUT}") from None
    if back != moment:
        raise RefusedRecord("time_ms", f"no clock in {zone} showed {shown(value)}: the hour was left out; {_WAY_OUT}")
    # Within one zone a difference would be taken of the clocks; in UTC it is of the moments.
    offset = placed.utcoffset() or timedelta()
    return moment.replace(tzinfo=UTC) - offset
