"""Feeds events through the trie: whose state an event moves on, at which time, and which rules answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from rerank_engine.errors import EventError, SpecError
from rerank_features.events import Event, Request
from rerank_features.triggers.advance import Matches, advance
from rerank_features.triggers.fired import Fired
from rerank_features.triggers.snapshot import read_user, write_user
from rerank_features.triggers.spec import TriggerSpec
from rerank_features.triggers.state import ScopeState, UserState
from rerank_features.triggers.trie import Trie


class TriggerMatcher:
    """Matches all rules of a spec at once.

    An event costs what it touches: the edges of its kind at the roots, and a look at each node of the user that has a
    partial match. Rules that the event does not concern cost nothing. It isn't safe for several threads at once.

    Parameters
    ----------
    spec
        The rules.
    recognise_repeats
        Whether an event that came already is ignored. Without it the caller vouches for that, as the event store
        and ``Reranker.track`` can; it saves a third of the time of an event.

    Raises
    ------
    SpecError
        ``spec`` is no :class:`TriggerSpec`.

    Attributes
    ----------
    spec
        As given.

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

    def __init__(self, spec: TriggerSpec, *, recognise_repeats: bool = True) -> None:
        if not isinstance(spec, TriggerSpec):
            raise SpecError(f"triggers: expected a TriggerSpec, got {type(spec).__name__}; read one by from_toml")
        self.spec = spec
        self._recognises = recognise_repeats
        self._trie = Trie(spec)
        self._moves, self._other_moves = self._trie.moves()
        self._needs_lists = "request" in self._trie.roots or any(
            step.min_share is not None for rule in spec.rules for step in rule.steps
        )
        self._gap_ms = round(spec.session_gap_s * 1000)
        self._late_ms = round(spec.max_late_s * 1000)
        self._users: OrderedDict[str, UserState] = OrderedDict()
        self._newest_user: str | None = None
        """Who was heard of last, and below the state: on a device it is the only user."""
        self._newest_state = UserState()
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
            A valid event; one that went around the border is to be checked before, by :meth:`Event.check`.

        Raises
        ------
        EventError
            It is no event.

        Examples
        --------
        >>> from rerank_features import Event
        >>> from rerank_features.triggers import default_triggers
        >>> TriggerMatcher(default_triggers()).feed(Event(user="ann", item="a", kind="seen", time_ms=1))
        ()
        """
        if not isinstance(event, Event):
            raise EventError(f"feed: expected an Event, got {type(event).__name__}; build it by Event(...)")
        # One look at the fields' dict: the border's records are slower to ask field by field.
        known = event.__dict__
        moves = self._moves.get(known["kind"], self._other_moves)
        if moves is None:
            return ()
        user = known["user"]
        state = self._newest_state if user == self._newest_user else self._state(user)
        if self._recognises and not state.recent.is_new(known):
            return ()
        time_ms, clock_ms = known["time_ms"], state.clock_ms
        if time_ms > clock_ms:
            if time_ms - clock_ms > self._gap_ms:
                state.session = ScopeState()
            state.clock_ms = time_ms
        elif clock_ms - time_ms > self._late_ms:
            state.restart(time_ms)
        else:
            time_ms = clock_ms
        state.events += 1
        matches: Matches = []
        for move in moves:
            if move.scope == "user":
                scope = state.user
            elif move.scope == "session":
                scope = state.session
            else:
                request, newest = known["request"], state.newest_list
                scope = newest if newest is not None and request == state.newest_request else state.list_of(request)
            advance(move, scope, state, known, time_ms, matches)
        return _answers(matches, known, time_ms) if matches else ()

    def note_request(self, request: Request) -> None:
        """Remember the length of a list that was delivered, for ``min_share``; what was kept of its id starts anew.

        Events belong to it by its id; events without a request belong to the newest list that has no id.

        Raises
        ------
        EventError
            It is no request.

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
        if not isinstance(request, Request):
            raise EventError(
                f"note_request: expected a Request, got {type(request).__name__}; build it by Request(...)"
            )
        if not self._needs_lists:
            return
        self._state(request.user).begin_list(request.id, len(request.candidates))

    def forget(self, user: str) -> bool:
        """Drop everything of a user; whether there was anything.

        Examples
        --------
        >>> from rerank_features.triggers import default_triggers
        >>> TriggerMatcher(default_triggers()).forget("ann")
        False
        """
        if user == self._newest_user:
            self._newest_user, self._newest_state = None, UserState()
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
        self.forget(user)
        self._keep(user, restored)

    def _state(self, user: str) -> UserState:
        """The state of a user, new or as it was; it is the newest from now on."""
        state = self._users.get(user)
        if state is None:
            return self._keep(user, UserState())
        self._users.move_to_end(user)
        self._newest_user, self._newest_state = user, state
        return state

    def _keep(self, user: str, state: UserState) -> UserState:
        self._users[user] = self._newest_state = state
        self._newest_user = user
        if len(self._users) > self.spec.max_users:
            self._users.popitem(last=False)
        return state


def _answers(matches: Matches, known: dict[str, Any], time_ms: int) -> tuple[Fired, ...]:
    """What fired, the highest priority first."""
    user, item, request = known["user"], known["item"], known["request"]
    if len(matches) == 1:  # Nearly always, and a loop costs more than the answer.
        rule, started_ms = matches[0]
        return (Fired(rule.name, rule.action, user, item, request, time_ms, started_ms, rule.events),)
    matches.sort(key=lambda match: match[0].order)
    return tuple(
        Fired(rule.name, rule.action, user, item, request, time_ms, started_ms, rule.events)
        for rule, started_ms in matches
    )
