"""Feeds events through the trie.

Why one partial match a node is enough: of all partial matches that have come to a node, the one that began last keeps
every time limit and every "not since the last firing" that another keeps, and the newest arrival is never later in
its start than an earlier one. So a node keeps its newest start and its newest arrival, nothing else, and the result is
that of looking at all combinations of events. A step of several events keeps its starts in a shift register: each
event that fits moves all of them on by one place.

``without`` and "no gaps" cost nothing while the events come: they are looked up when a step is taken, by comparing
sequence numbers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from rerank_features.triggers.snapshot import read_user, write_user
from rerank_features.triggers.trie import FOREVER_MS, CompiledRule, Edge, Node, Trie

if TYPE_CHECKING:
    from rerank_features.events import Event, Request
    from rerank_features.triggers.spec import Action, TriggerSpec

MAX_ACTIVE = 1_024
"""Most nodes with a partial match, and most with a counter, in one scope of a user.

One more, and all partial matches of that scope are dropped."""

MAX_LISTS = 8
"""For how many lists of a user something is kept; beyond, the one that was not heard of for longest goes."""

RECENT_EVENTS = 32
"""At least so many of a user's last events are recognised when they come again, at most twice as many."""


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


class ScopeState:
    """Partial matches within one sequence of events. Numbers of events count from 1."""

    __slots__ = ("arrivals", "floors", "number", "registers", "seen")

    def __init__(self) -> None:
        self.number = 0
        self.arrivals: dict[int, tuple[int, int, int]] = {}
        """Node to number of its newest arrival, and number and time of that match's first event."""
        self.registers: dict[int, tuple[int, deque[tuple[int, int] | None]]] = {}
        """Node to number of the last event that moved it, and the starts, newest first."""
        self.floors: dict[int, int] = {}
        """Rule to the number of the event that fired it: the next match begins later."""
        self.seen: dict[str, int] = {}
        """Kind that some step excludes to the number of its newest event."""


class UserState:
    """All that is kept of a user."""

    __slots__ = (
        "clock_ms",
        "events",
        "fired",
        "lengths",
        "lists",
        "older",
        "recent",
        "recent_count",
        "session",
        "user",
    )

    def __init__(self) -> None:
        self.clock_ms = -1
        self.events = 0
        self.user = ScopeState()
        self.session = ScopeState()
        self.lists: dict[str | None, ScopeState] = {}
        self.lengths: dict[str | None, int] = {}
        self.fired: dict[int, tuple[int, int]] = {}
        """Rule with a debounce or cooldown to time and number of the event that fired it last."""
        self.recent: dict[int | str, tuple[tuple[object, ...], ...]] = {}
        """Id of an event to nothing, or the time of events without one to their other fields."""
        self.older: dict[int | str, tuple[tuple[object, ...], ...]] = {}
        """The generation of events before ``recent``."""
        self.recent_count = 0

    def is_new(self, known: dict[str, Any]) -> bool:
        """Whether an event, given by its fields, has not come before; it is remembered."""
        recent = self.recent
        label = known["id"]
        if label is not None:
            if label in recent or label in self.older:
                return False
            recent[label] = ()
        else:
            label = known["time_ms"]
            key = (known["item"], known["kind"], known["position"], known["request"], known["value"])
            if known["attributes"]:
                key += tuple(sorted(known["attributes"].items()))
            if label in recent or label in self.older:
                newer = recent.get(label, ())
                if key in newer or key in self.older.get(label, ()):
                    return False
                recent[label] = (*newer, key)
            else:
                recent[label] = (key,)
        self.recent_count += 1
        if self.recent_count >= RECENT_EVENTS:
            self.older, self.recent, self.recent_count = recent, {}, 0
        return True

    def restart(self, time_ms: int) -> None:
        """The clock was set back: nothing that rests on the old time stays."""
        self.clock_ms = time_ms
        self.user, self.session = ScopeState(), ScopeState()
        self.lists.clear()
        self.fired.clear()


class TriggerMatcher:
    """Matches all rules of a spec at once.

    An event costs what it touches: the edges of its kind at the roots, and a look at each node of the user that has a
    partial match. Rules that the event does not concern cost nothing. It isn't safe for several threads at once.

    Parameters
    ----------
    spec
        The rules.

    Attributes
    ----------
    spec
        As given.
    visits
        How many edges and active nodes have been looked at so far, for tests and for sizing.

    Examples
    --------
    >>> from rerank_features import Event
    >>> from rerank_features.triggers import TriggerSpec, exposures_without_click
    >>> matcher = TriggerMatcher(TriggerSpec(name="feed", rules=[exposures_without_click(2)]))
    >>> for second in range(4):
    ...     shown = Event(user="ann", item=f"i{second}", kind="impression", time_ms=second * 1000)
    ...     print([fired.rule for fired in matcher.feed(shown)])
    []
    ['exposures_without_click_2']
    []
    ['exposures_without_click_2']
    """

    def __init__(self, spec: TriggerSpec) -> None:
        self.spec = spec
        self.visits = 0
        self._trie = Trie(spec)
        self._every_kind = self._trie.every_kind
        self._kinds = self._trie.kinds
        self._concerned, self._concerned_by_all = self._trie.concerned()
        self._needs_lists = "request" in self._trie.roots or any(
            step.min_share is not None for rule in spec.rules for step in rule.steps
        )
        self._gap_ms = round(spec.session_gap_s * 1000)
        self._late_ms = round(spec.max_late_s * 1000)
        self._users: OrderedDict[str, UserState] = OrderedDict()
        self._hash = bytes.fromhex(spec.content_hash())

    def __len__(self) -> int:
        """For how many users state is kept."""
        return len(self._users)

    def feed(self, event: Event) -> tuple[Fired, ...]:
        """Take one event, in the order of arrival, and tell which rules it fires.

        Time passes with a user's events only. An event that is late by at most ``max_late_s`` counts at the user's
        newest time; one that is later still restarts the user's partial matches. One that came already is ignored.

        Parameters
        ----------
        event
            A valid event; one that went around the border is to be checked before.

        Examples
        --------
        >>> from rerank_features import Event
        >>> from rerank_features.triggers import default_triggers
        >>> TriggerMatcher(default_triggers()).feed(Event(user="ann", item="a", kind="seen", time_ms=1))
        ()
        """
        # One look at the fields' dict: the border's records are slower to ask field by field.
        known = event.__dict__
        kind = known["kind"]
        if not self._every_kind and kind not in self._kinds:
            return ()
        state = self._state(known["user"])
        time_ms, request = known["time_ms"], known["request"]
        if not state.is_new(known):
            return ()
        clock_ms = state.clock_ms
        if time_ms > clock_ms:
            if time_ms - clock_ms > self._gap_ms:
                state.session = ScopeState()
            state.clock_ms = time_ms
        elif clock_ms - time_ms > self._late_ms:
            state.restart(time_ms)
        else:
            time_ms = clock_ms
        state.events += 1
        matches: list[tuple[CompiledRule, int]] = []
        for root, scope_name in self._concerned.get(kind, self._concerned_by_all):
            if scope_name == "user":
                scope = state.user
            elif scope_name == "session":
                scope = state.session
            else:
                scope = self._list(state, request)
            self._advance(root, scope, event, time_ms, state, matches)
        if not matches:
            return ()
        user, item = known["user"], known["item"]
        if len(matches) == 1:
            rule, started_ms = matches[0]
            return (Fired(rule.name, rule.action, user, item, request, time_ms, started_ms, rule.events),)
        matches.sort(key=lambda match: match[0].order)
        return tuple(
            Fired(rule.name, rule.action, user, item, request, time_ms, started_ms, rule.events)
            for rule, started_ms in matches
        )

    def note_request(self, request: Request) -> None:
        """Remember the length of a list that was delivered, for ``min_share``; what was kept of its id starts anew.

        Events belong to it by its id; events without a request belong to the newest list that has no id.

        Examples
        --------
        >>> from rerank_features import Event, Item, Request
        >>> from rerank_features.triggers import TriggerSpec, list_used_up
        >>> matcher = TriggerMatcher(TriggerSpec(name="feed", rules=[list_used_up(0.5)]))
        >>> items = [Item(id="a"), Item(id="b")]
        >>> matcher.note_request(Request(user="ann", candidates=items, time_ms=1, id="r"))
        >>> shown = Event(user="ann", item="a", kind="impression", time_ms=2, position=0, request="r")
        >>> matcher.feed(shown)[0].action
        'refresh'
        """
        if not self._needs_lists:
            return
        state = self._state(request.user)
        state.lists.pop(request.id, None)
        state.lengths.pop(request.id, None)
        state.lengths[request.id] = len(request.candidates)
        if len(state.lengths) > MAX_LISTS:
            del state.lengths[next(iter(state.lengths))]

    def forget(self, user: str) -> bool:
        """Drop everything of a user; whether there was anything.

        Examples
        --------
        >>> from rerank_features.triggers import default_triggers
        >>> TriggerMatcher(default_triggers()).forget("ann")
        False
        """
        return self._users.pop(user, None) is not None

    def snapshot(self, user: str) -> bytes:
        """The state of a user as bytes; of a user who is not known, the empty state.

        Examples
        --------
        >>> from rerank_features.triggers import default_triggers
        >>> matcher = TriggerMatcher(default_triggers())
        >>> matcher.restore("ann", matcher.snapshot("ann"))
        """
        return write_user(self._users.get(user) or UserState(), self._hash)

    def restore(self, user: str, data: bytes) -> None:
        """Take up the state of a user where :meth:`snapshot` left it.

        Raises
        ------
        StoreError
            The bytes are damaged, of another version, or of another spec; the matcher is as before.

        Examples
        --------
        >>> from rerank_features.triggers import default_triggers
        >>> TriggerMatcher(default_triggers()).restore("ann", b"?")
        Traceback (most recent call last):
        ...
        rerank_engine.errors.StoreError: trigger snapshot: 1 bytes are fewer than a header; start without it
        """
        restored = read_user(data, self._hash, self._trie)
        self._users.pop(user, None)
        self._state(user)
        self._users[user] = restored

    def _state(self, user: str) -> UserState:
        users = self._users
        state = users.get(user)
        if state is None:
            state = users[user] = UserState()
            if len(users) > self.spec.max_users:
                users.popitem(last=False)
        else:
            users.move_to_end(user)
        return state

    @staticmethod
    def _list(state: UserState, request: str | None) -> ScopeState:
        """The sequence of a list. It goes to the end of the dict, whose front is the next to be dropped."""
        scope = state.lists.pop(request, None)
        if scope is None:
            scope = ScopeState()
            if len(state.lists) >= MAX_LISTS:
                del state.lists[next(iter(state.lists))]
        state.lists[request] = scope
        return scope

    def _advance(
        self,
        root: int,
        scope: ScopeState,
        event: Event,
        time_ms: int,
        state: UserState,
        matches: list[tuple[CompiledRule, int]],
    ) -> None:
        """Move the partial matches of one scope on by one event."""
        kind, nodes, arrivals = event.kind, self._trie.nodes, scope.arrivals
        scope.number = number = scope.number + 1
        if kind in self._trie.without:
            scope.seen[kind] = number
        node = nodes[root]
        edges = node.edges.get(kind, node.wild)
        self.visits += len(edges)
        # Steps are gathered before any is taken: one event must not be two steps of a match.
        steps = self._open_steps(scope, kind, time_ms) if arrivals else ()
        for edge in edges:
            if edge.conditional and not edge.accepts(
                event.value, event.position, state.lengths.get(event.request) if edge.min_share else None
            ):
                continue
            if edge.count == 1:
                self._arrive(edge.child, scope, number, number, time_ms, time_ms, state, matches)
                continue
            reached = self._take(edge, scope, number, number, number, time_ms)
            if reached is not None:
                self._arrive(edge.child, scope, number, *reached, time_ms, state, matches)
        for edge, arrived, start, start_ms in steps:
            if edge.conditional and not edge.accepts(
                event.value, event.position, state.lengths.get(event.request) if edge.min_share else None
            ):
                continue
            reached = self._take(edge, scope, number, arrived, start, start_ms)
            if reached is not None:
                self._arrive(edge.child, scope, number, *reached, time_ms, state, matches)

    def _open_steps(self, scope: ScopeState, kind: str, time_ms: int) -> list[tuple[Edge, int, int, int]]:
        """The steps that partial matches wait for and whose kind fits; matches that are too old are dropped."""
        nodes, arrivals = self._trie.nodes, scope.arrivals
        steps, spent = [], []
        for index, (arrived, start, start_ms) in arrivals.items():
            node = nodes[index]
            if time_ms - start_ms > node.within_ms:
                spent.append(index)
                continue
            steps += [(edge, arrived, start, start_ms) for edge in node.edges.get(kind, node.wild)]
        self.visits += len(arrivals) + len(steps)
        for index in spent:
            del arrivals[index]
        return steps

    def _arrive(
        self,
        node: Node,
        scope: ScopeState,
        number: int,
        start: int,
        start_ms: int,
        time_ms: int,
        state: UserState,
        matches: list[tuple[CompiledRule, int]],
    ) -> None:
        """A match has come to a node: fire what it completes, and keep it for what goes on from there."""
        for rule in node.rules:
            if rule.plain:
                matches.append((rule, start_ms))
            elif self._may_fire(rule, scope, state, start, start_ms, time_ms):
                scope.floors[rule.index] = FOREVER_MS if rule.once else number
                if rule.limited:
                    state.fired[rule.index] = (time_ms, state.events)
                matches.append((rule, start_ms))
        if node.edges or node.wild:
            arrivals = scope.arrivals
            if len(arrivals) >= MAX_ACTIVE and node.index not in arrivals:
                arrivals.clear()
                scope.registers.clear()
            arrivals[node.index] = (number, start, start_ms)

    @staticmethod
    def _take(
        edge: Edge, scope: ScopeState, number: int, arrived: int, start: int, start_ms: int
    ) -> tuple[int, int] | None:
        """Take a step with an event that fits: the start of the match that comes to the node by it, or None."""
        # The last event of the match so far must not be older than this. It may itself be of an excluded kind.
        barrier = number - 1 if edge.contiguous else -1
        for kind in edge.without:
            seen = scope.seen.get(kind, -1)
            if seen > barrier:
                barrier = seen
        entry = (start, start_ms) if arrived >= barrier or start == number else None
        if edge.count == 1:
            return entry
        moved, starts = scope.registers.get(edge.child.index, (-1, None))
        if starts is None and len(scope.registers) >= MAX_ACTIVE:
            scope.arrivals.clear()
            scope.registers.clear()
        if starts is None or moved < barrier:
            starts = deque(maxlen=edge.count)
        starts.appendleft(entry)
        scope.registers[edge.child.index] = (number, starts)
        return starts[-1] if len(starts) == edge.count else None

    @staticmethod
    def _may_fire(
        rule: CompiledRule, scope: ScopeState, state: UserState, start: int, start_ms: int, time_ms: int
    ) -> bool:
        if start <= scope.floors.get(rule.index, 0) or time_ms - start_ms > rule.within_ms:
            return False
        if not rule.limited or rule.index not in state.fired:
            return True
        fired_ms, fired_event = state.fired[rule.index]
        return time_ms - fired_ms >= rule.debounce_ms and state.events - fired_event > rule.cooldown_events
