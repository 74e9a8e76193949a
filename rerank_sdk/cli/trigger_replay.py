"""Runs a log of events through trigger rules: when each would have fired, and for how many users.

A line is an event as the store exports it, or one of ``rerank run``: what is no event, no request and no ``forget``
says nothing to triggers and is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rerank_engine.errors import EventError, RerankError
from rerank_features import Event, Request, TriggerMatcher, TriggerSpec
from rerank_features.triggers import Fired

_WRAPPED = frozenset(("event", "request", "forget", "items", "personalise", "export"))
"""Keys of a line of ``rerank run``, which has one of them and nothing else."""


@dataclass
class RuleCount:
    """How often a rule has fired.

    Attributes
    ----------
    action
        What the rule asks for.
    fired
        How often.
    users
        For whom.
    first_ms, last_ms
        Times of the first and the last firing in the order of the log, None where there is none.
    """

    action: str
    fired: int = 0
    users: set[str] = field(default_factory=set)
    first_ms: int | None = None
    last_ms: int | None = None


class TriggerReplay:
    """Feeds lines to a matcher and keeps what fires. A bad line changes nothing but its count.

    Parameters
    ----------
    spec
        The rules.
    limit
        So many firings are kept one by one; the others are counted.

    Attributes
    ----------
    events, requests, bad_lines
        What has come in so far.
    rules
        What has fired, by name of the rule.
    fired
        The first ``limit`` firings.

    Examples
    --------
    >>> from rerank_features.triggers import default_triggers
    >>> replay = TriggerReplay(default_triggers(), limit=10)
    >>> replay.feed([b'{"user": "ann", "item": "a", "kind": "click", "time_ms": 5}', b"what?"], print)
    line 2: the line is not JSON in UTF-8: Expecting value: line 1 column 1 (char 0)
    >>> [one.rule for one in replay.fired], replay.rules["click"].fired, replay.bad_lines
    (['click'], 1, 1)
    """

    def __init__(self, spec: TriggerSpec, limit: int) -> None:
        self.events = 0
        self.requests = 0
        self.bad_lines = 0
        self.rules = {rule.name: RuleCount(rule.action) for rule in spec.rules}
        self.fired: list[Fired] = []
        self._limit = limit
        self._matcher = TriggerMatcher(spec)

    @property
    def left_out(self) -> int:
        """How many firings are counted only."""
        return sum(count.fired for count in self.rules.values()) - len(self.fired)

    def feed(self, lines: Iterable[bytes], complain: Callable[[str], None]) -> None:
        """Take lines in the order of arrival.

        Parameters
        ----------
        lines
            UTF-8 text; blank lines are nothing.
        complain
            Is told of each bad line, by its number from 1.
        """
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self._take(*_read(line))
            except RerankError as error:
                self.bad_lines += 1
                complain(f"line {number}: {error}")

    def _take(self, key: str, content: str) -> None:
        if key == "event":
            event = Event.from_json(content)
            self.events += 1
            for one in self._matcher.feed(event):
                self._count(one)
        elif key == "request":
            self._matcher.note_request(Request.from_json(content))
            self.requests += 1
        elif key == "forget":
            self._matcher.forget(json.loads(content))

    def _count(self, one: Fired) -> None:
        count = self.rules[one.rule]
        count.fired += 1
        count.users.add(one.user)
        count.first_ms = one.time_ms if count.first_ms is None else count.first_ms
        count.last_ms = one.time_ms
        if len(self.fired) < self._limit:
            self.fired.append(one)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "events": self.events,
            "requests": self.requests,
            "bad_lines": self.bad_lines,
            "rules": {
                name: {
                    "action": count.action,
                    "fired": count.fired,
                    "users": len(count.users),
                    "first_ms": count.first_ms,
                    "last_ms": count.last_ms,
                }
                for name, count in self.rules.items()
            },
            "fired": [one._asdict() for one in self.fired],
            "left_out": self.left_out,
        }


def _read(line: bytes) -> tuple[str, str]:
    """What a line holds, and that as JSON text of its own."""
    try:
        message = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise EventError(f"the line is not JSON in UTF-8: {error or type(error).__name__}") from None
    if not isinstance(message, dict):
        raise EventError(f"expected an object, got {type(message).__name__}: give an event, or a line of rerank run")
    if len(message) == 1 and _WRAPPED.issuperset(message):
        key, content = next(iter(message.items()))
    else:
        key, content = "event", message
    expected = {"event": dict, "request": dict, "forget": str}.get(key, object)
    if not isinstance(content, expected):
        what = "a user id" if expected is str else "an object"
        raise EventError(f"{key}: expected {what}, got {type(content).__name__}")
    return key, json.dumps(content)
