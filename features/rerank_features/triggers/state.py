"""What is kept of a user: partial matches by scope, the clock, what fired last, and the newest events' marks."""

from __future__ import annotations

from collections import deque

from rerank_features.triggers.recent import RecentEvents

MAX_ACTIVE = 1_024
"""Most nodes with a partial match, and most with a counter, in one scope of a user.

One more, and all partial matches of that scope are dropped."""

MAX_LISTS = 8
"""For how many lists of a user something is kept; beyond, the one that was not heard of for longest goes."""


Start = tuple[int, int]
"""Number and time of a match's first event."""


class Register:
    """The counter of a step of several events: each event that fits moves the starts on by one place."""

    __slots__ = ("moved", "starts")

    def __init__(self, count: int) -> None:
        self.moved = -1
        """Number of the last event that moved it."""
        self.starts: deque[Start | None] = deque(maxlen=count)
        """Start of the match that each event continues, newest first."""


class ScopeState:
    """Partial matches within one sequence of events. Numbers of events count from 1."""

    __slots__ = ("arrivals", "floors", "number", "registers", "seen")

    def __init__(self) -> None:
        self.number = 0
        self.arrivals: dict[int, tuple[int, Start]] = {}
        """Node to number of its newest arrival, and start of that match."""
        self.registers: dict[int, Register] = {}
        """Node behind a step of several events to its counter."""
        self.floors: dict[int, int] = {}
        """Rule to the number of the event that fired it: the next match begins later."""
        self.seen: dict[str, int] = {}
        """Kind that some step excludes to the number of its newest event."""

    def drop_matches(self) -> None:
        """Forget all partial matches: there are more than the bound allows."""
        self.arrivals.clear()
        self.registers.clear()


class UserState:
    """All that is kept of a user."""

    __slots__ = (
        "clock_ms",
        "events",
        "fired",
        "lengths",
        "lists",
        "newest_list",
        "newest_request",
        "recent",
        "session",
        "user",
    )

    def __init__(self) -> None:
        self.clock_ms = -1
        self.events = 0
        self.user = ScopeState()
        self.session = ScopeState()
        self.lists: dict[str | None, ScopeState] = {}
        """Request to its sequence. The front is the next to be dropped."""
        self.newest_list: ScopeState | None = None
        """The last of ``lists``, and below its request: most events belong to it, and it need not be looked up."""
        self.newest_request: str | None = None
        self.lengths: dict[str | None, int] = {}
        self.fired: dict[int, tuple[int, int]] = {}
        """Rule with a debounce or cooldown to time and number of the event that fired it last."""
        self.recent = RecentEvents()

    def list_of(self, request: str | None) -> ScopeState:
        """The sequence of a list, new or as it was; it is the newest from now on."""
        scope = self.lists.pop(request, None)
        if scope is None:
            scope = ScopeState()
            if len(self.lists) >= MAX_LISTS:
                del self.lists[next(iter(self.lists))]
        self.lists[request] = self.newest_list = scope
        self.newest_request = request
        return scope

    def begin_list(self, request: str | None, length: int) -> None:
        """A list was delivered: what was kept of its id starts anew."""
        self.lists.pop(request, None)
        self.newest_list = None
        self.lengths.pop(request, None)
        self.lengths[request] = length
        if len(self.lengths) > MAX_LISTS:
            del self.lengths[next(iter(self.lengths))]

    def restart(self, time_ms: int) -> None:
        """The clock was set back: nothing that rests on the old time stays."""
        self.clock_ms = time_ms
        self.user, self.session = ScopeState(), ScopeState()
        self.lists.clear()
        self.newest_list = None
        self.fired.clear()
