"""The rules as data: frozen, checked once when they are made, the same in TOML and in Python, with a content hash.

>>> from rerank_features.triggers import TriggerSpec
>>> spec = TriggerSpec.from_toml('''
... name = "feed"
... [[rules]]
... name = "bored"
... action = "rerank"
... steps = [{kinds = ["impression"], count = 5, without = ["click"]}]
... ''')
>>> spec.rules[0].steps[0].count, spec == TriggerSpec.from_toml(spec.to_toml())
(5, True)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rerank_engine.errors import SpecError
from rerank_features.events import MAX_POSITION, Kind
from rerank_features.parts import MAX_WINDOW_S, Flag, Label, Number, Part, canonical_hash, distinct
from rerank_features.toml_text import read_toml, toml_text
from rerank_features.triggers.spec_errors import explain

MAX_PATTERN_EVENTS = 1_000
"""Most events that one pattern may take."""

Kinds = Annotated[tuple[Kind, ...], AfterValidator(distinct)]
Position = Annotated[int, Field(strict=True, ge=0, le=MAX_POSITION)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_WINDOW_S)]
PositiveSeconds = Annotated[float, Field(strict=True, gt=0, le=MAX_WINDOW_S)]
Action = Literal["rerank", "personalise", "refresh"]
Scope = Literal["user", "session", "request"]


class _Part(Part):
    @classmethod
    def _explained(cls, data: dict[str, Any], error: ValidationError) -> str:
        return explain(cls.__name__, list(cls.model_fields), data, error)


class TriggerStep(_Part):
    """One step of a pattern: ``count`` events of some kinds that keep all conditions.

    Attributes
    ----------
    kinds
        Which events; none given means an event of any kind, the wildcard.
    min_value, max_value
        Bounds of the event's value, both included. An event without a value keeps no such bound.
    min_position, max_position
        Bounds of its position, both included. An event without a position keeps no such bound.
    min_share
        Least part of the delivered list that the position has reached: (position + 1) / length. The length is
        told by :meth:`TriggerMatcher.note_request`; while it is not known, no event keeps this bound.
    count
        How many such events make the step.
    without
        Kinds that must not come while the step is waited for: from the event before it to its last event. Such
        an event never counts for the step itself.

    Raises
    ------
    SpecError
        An option is unknown or out of range, or options contradict each other.

    Examples
    --------
    >>> TriggerStep(kinds=["dwell"], min_value=10.0).count
    1
    """

    kinds: Kinds = ()
    min_value: Number | None = None
    max_value: Number | None = None
    min_position: Position | None = None
    max_position: Position | None = None
    min_share: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_PATTERN_EVENTS)] = 1
    without: Kinds = ()

    @model_validator(mode="after")
    def _consistent(self) -> TriggerStep:
        for low, high in (("min_value", "max_value"), ("min_position", "max_position")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{low} = {least} is above {high} = {most}, no event keeps both; swap them")
        for kind in self.without:
            if kind in self.kinds:
                raise ValueError(f"{kind!r} is under kinds and under without; drop one of them")
        return self


class TriggerRule(_Part):
    """One rule: which sequence of events asks for what.

    Attributes
    ----------
    name
        Of the rule, one of its own within the spec.
    action
        ``rerank`` the list, ``personalise`` the model, or ``refresh``: ask the server for a fresh list.
    steps
        The pattern, first step first.
    scope
        Which events make one sequence: all of the ``user``, those of the ``session``, or those that carry the
        same ``request``.
    within_s
        Longest time from the first event of a match to its last; no limit when left out.
    gaps
        Whether other events may come between those of a match.
    once
        Fire at most once in a scope: a session, a list; with ``user`` once for as long as the state is kept.
    debounce_s
        Least time between two firings for a user.
    cooldown_events
        How many events of the user, of any kind, must follow a firing before the rule may fire again.
    priority
        Of several rules that one event fires, the higher come first; equal ones in the order of the spec.

    Raises
    ------
    SpecError
        An option is unknown or out of range.

    Examples
    --------
    >>> TriggerRule(name="click", action="rerank", steps=[TriggerStep(kinds=["click"])]).scope
    'user'
    """

    name: Label
    action: Action
    steps: Annotated[tuple[TriggerStep, ...], Field(min_length=1)]
    scope: Scope = "user"
    within_s: PositiveSeconds | None = None
    gaps: Flag = True
    once: Flag = False
    debounce_s: Seconds = 0.0
    cooldown_events: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 0
    priority: Annotated[int, Field(strict=True, ge=-1_000_000, le=1_000_000)] = 0

    @model_validator(mode="after")
    def _bounded(self) -> TriggerRule:
        if self.events > MAX_PATTERN_EVENTS:
            raise ValueError(
                f"a pattern takes at most {MAX_PATTERN_EVENTS} events, got {self.events}; lower the counts"
            )
        return self

    @property
    def events(self) -> int:
        """How many events a match has."""
        return sum(step.count for step in self.steps)


class TriggerSpec(_Part):
    """All rules of an app, and the bounds of what is kept for them.

    Attributes
    ----------
    name
        Of the spec.
    rules
        The rules; none is allowed and never fires.
    session_gap_s
        A session ends when the user's next event comes later than this after the last.
    max_late_s
        An event that is older than the user's newest by more than this is taken for a clock that was set back.
    max_users
        For how many users state is kept; beyond, the one who was not heard of for longest is forgotten.

    Raises
    ------
    SpecError
        Two rules share a name, or an option is unknown or out of range.

    Examples
    --------
    >>> TriggerSpec(name="none").content_hash()[:12] == TriggerSpec.from_toml('name = "none"').content_hash()[:12]
    True
    >>> TriggerSpec(name="feed", rules=[{"name": "r", "action": "rerun", "steps": [{}]}])
    Traceback (most recent call last):
    ...
    rerank_engine.errors.SpecError: rule 'r': action: 'rerun' is none of 'rerank', 'personalise', 'refresh'; \
did you mean 'rerank'?
    """

    name: Label
    rules: tuple[TriggerRule, ...] = ()
    session_gap_s: PositiveSeconds = 1800.0
    max_late_s: Seconds = 300.0
    max_users: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] = 10_000

    @model_validator(mode="after")
    def _names(self) -> TriggerSpec:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                raise SpecError(f"rule {rule.name!r}: the name is used twice; give each rule a name of its own")
            seen.add(rule.name)
        return self

    @classmethod
    def from_toml(cls, source: str | Path) -> TriggerSpec:
        """Read a spec from TOML.

        Parameters
        ----------
        source
            A path, or the text itself: a string with an equals sign or a line break is text.

        Raises
        ------
        SpecError
            The file cannot be read, is no TOML, or is no valid spec.

        Examples
        --------
        >>> TriggerSpec.from_toml('name = "feed"').session_gap_s
        1800.0
        """
        return cls(**read_toml(source, "the trigger spec"))

    def to_toml(self) -> str:
        """Write the spec as TOML: every option, also the defaults, in a fixed order.

        Examples
        --------
        >>> print(TriggerSpec(name="feed").to_toml().splitlines()[0])
        name = "feed"
        """
        return toml_text(self.model_dump(exclude_none=True))

    def content_hash(self) -> str:
        """SHA-256 of the spec's canonical JSON, in hexadecimal: equal for specs that are equal.

        Examples
        --------
        >>> len(TriggerSpec(name="a").content_hash())
        64
        """
        return canonical_hash(self)
