"""What a matcher answers."""

from __future__ import annotations

from typing import NamedTuple

from rerank_features.triggers.spec import Action


class Fired(NamedTuple):
    """A rule has fired.

    Attributes
    ----------
    rule, action
        Name of the rule and what it asks for.
    user, item, request
        Of the event that completed the pattern.
    time_ms, started_ms
        The user's time at the last and at the first event of the match.
    events
        How many events the match has.

    Examples
    --------
    >>> Fired("click", "rerank", "ann", "a", None, 5_000, 5_000, 1).action
    'rerank'
    """

    rule: str
    action: Action
    user: str
    item: str
    request: str | None
    time_ms: int
    started_ms: int
    events: int
