"""Recognises events that come again, in bounded memory: two generations of marks, the older one dropped whole."""

from __future__ import annotations

import hashlib
from typing import Any

RECENT_EVENTS = 32
"""At least so many of a user's last events are recognised when they come again, at most twice as many."""

Mark = tuple[object, ...]
Marks = dict[int | str, tuple[Mark, ...]]
"""Id of an event to nothing, or the time of events without one to the marks of their other fields."""


class RecentEvents:
    """Marks of a user's newest events.

    Examples
    --------
    >>> from rerank_features import Event
    >>> recent = RecentEvents()
    >>> click = Event(user="u", item="i", kind="click", time_ms=1)
    >>> recent.is_new(click.__dict__), recent.is_new(click.__dict__)
    (True, False)
    """

    __slots__ = ("count", "newer", "older")

    def __init__(self) -> None:
        self.count = 0
        """How many events ``newer`` has."""
        self.newer: Marks = {}
        self.older: Marks = {}

    def is_new(self, known: dict[str, Any]) -> bool:
        """Whether an event, given by its fields, has not come before; it is remembered."""
        newer = self.newer
        label = known["id"]
        if label is not None:
            if label in newer or label in self.older:
                return False
            newer[label] = ()
        else:
            label = known["time_ms"]
            mark: Mark = (known["item"], known["kind"], known["position"], known["request"], known["value"])
            if known["attributes"]:
                mark += (_digest(known["attributes"]),)
            if label in newer or label in self.older:
                same_time = newer.get(label, ())
                if mark in same_time or mark in self.older.get(label, ()):
                    return False
                newer[label] = (*same_time, mark)
            else:
                newer[label] = (mark,)
        self.count += 1
        if self.count >= RECENT_EVENTS:
            self.older, self.newer, self.count = newer, {}, 0
        return True


def marks_count(marks: Marks) -> int:
    """How many events a generation stands for."""
    return sum(len(same_time) or 1 for same_time in marks.values())


def _digest(attributes: dict[str, Any]) -> str:
    """Attributes may be of any size, and what is kept of a user may not."""
    return hashlib.blake2b(repr(sorted(attributes.items())).encode(), digest_size=16).hexdigest()
