"""Trigger rules inside the re-ranker: fed with what is tracked, told of lists, restored from stored events."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

from rerank_features import Event, Request
from rerank_features.triggers import Fired, TriggerMatcher, TriggerSpec

_MAX_LISTS = 10_000
"""So many lists are known to have been noted; a list that is noted twice could fire its rules twice."""

_log = logging.getLogger("rerank_sdk")


class Triggers:
    """A matcher, and who is told what fires. Not locked: the re-ranker holds its lock, but for :meth:`tell`.

    Parameters
    ----------
    spec
        The rules.
    on_trigger
        Called with each rule that fires.
    """

    def __init__(self, spec: TriggerSpec, on_trigger: Callable[[Fired], object]) -> None:
        # Repeated deliveries do not come this far.
        self._matcher = TriggerMatcher(spec, recognise_repeats=False)
        self._on_trigger = on_trigger
        self._noted: OrderedDict[tuple[str, str | None], tuple[str, ...]] = OrderedDict()

    def feed(self, event: Event) -> tuple[Fired, ...]:
        """Move the patterns of the event's user on; what has fired."""
        return self._matcher.feed(event)

    def note(self, request: Request) -> None:
        """Tell the rules of a list, once, however often it is ranked again."""
        key, ids = (request.user, request.id), tuple(item.id for item in request.candidates)
        if self._noted.get(key) == ids:
            return
        self._noted[key] = ids
        self._noted.move_to_end(key)
        if len(self._noted) > _MAX_LISTS:
            self._noted.popitem(last=False)
        self._matcher.note_request(request)

    def restore(self, user: str, events: Iterable[Event]) -> None:
        """Begin a user anew with stored events; what fires now has fired before."""
        self._matcher.forget(user)
        for event in events:
            self._matcher.feed(event)

    def forget(self, user: str) -> None:
        """Let go of everything about a user."""
        self._matcher.forget(user)
        for key in [key for key in self._noted if key[0] == user]:
            del self._noted[key]

    def tell(self, fired: tuple[Fired, ...]) -> None:
        """Call back; an error there is the app's and is logged, the event is taken in already."""
        for one in fired:
            try:
                self._on_trigger(one)
            except Exception:
                _log.exception("on_trigger raised for the rule %r", one.rule)
