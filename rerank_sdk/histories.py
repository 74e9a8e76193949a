"""Which users' events are in memory: read from the store once, from a saved state on where there is one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from rerank_engine.errors import InputError, StoreError
from rerank_features import Event, FeaturePipeline
from rerank_sdk.decisions import DecisionLog
from rerank_sdk.memory import RecentEvents
from rerank_sdk.store import EventStore
from rerank_sdk.triggering import Triggers

MAX_HISTORIES = 10_000
"""So many users are known to be loaded; others are read from the store again when they come back."""

RECENT_MS = 86_400_000
"""Of a user whose state was saved, events of the last day before the newest are read again: their repeated deliveries
are recognised, and their lists keep what was reacted to."""

SAVE_EVERY_EVENTS = 2_000
"""A state is saved when so many events of its user are new since the last time."""

SAVE_AT_CLOSE_EVENTS = 100
"""When the re-ranker closes, states with so many new events are saved: fewer are read sooner than saved."""

_log = logging.getLogger("rerank_sdk")


class History:
    """Stands for a user whose events were read; another object stands for them after they were forgotten.

    Attributes
    ----------
    in_features
        Whether the feature state holds the user.
    stored
        Events of the user in the store when they were read, or when the state was saved last.
    tracked
        Events since then.
    """

    __slots__ = ("in_features", "stored", "tracked")

    def __init__(self) -> None:
        self.in_features = False
        self.stored = self.tracked = 0


class Histories:
    """Loads and saves what is kept of users. Not locked: the re-ranker holds its lock.

    Parameters
    ----------
    store
        Where events and states are.
    pipeline
        The feature state, or None without a model.
    recent_events, decisions, triggers
        Told of the events that are read.
    """

    def __init__(
        self,
        store: EventStore,
        pipeline: FeaturePipeline | None,
        recent_events: RecentEvents,
        decisions: DecisionLog,
        triggers: Triggers | None = None,
    ) -> None:
        self._triggers = triggers
        self._store = store
        self._pipeline = pipeline
        self._spec_hash = pipeline.spec.content_hash() if pipeline is not None else ""
        self._recent_events = recent_events
        self._decisions = decisions
        self._known: OrderedDict[str, History] = OrderedDict()
        self._last: tuple[str, History] | None = None
        if pipeline is not None and pipeline.counts_everyone:
            pipeline.restore_everyone(store.read())

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def current(self, user: str) -> History | None:
        """The user's history if it is in memory, with their features."""
        last = self._last
        if last is not None and last[0] == user:  # nobody else has come since, so nothing was let go
            return last[1]
        history = self._known.get(user)
        if history is None or (history.in_features and self._pipeline is not None and not self._pipeline.knows(user)):
            return None
        self._known.move_to_end(user)
        self._last = user, history
        return history

    def load(self, user: str) -> History:
        """The user's history, read from the store where it is not in memory, or not any more.

        Raises
        ------
        StoreError
            The store cannot be read; nothing has changed.
        """
        history = self.current(user)
        if history is not None:
            return history
        stored = self._store.count(user)
        events = self._restore(user)
        for event in events:
            self._recent_events.add(event.identity())
            self._decisions.see(event)
        if self._triggers is not None:
            self._triggers.restore(user, events)
        history = self._known.setdefault(user, History())
        history.stored, history.tracked = stored, 0
        history.in_features = self._pipeline is not None and self._pipeline.knows(user)
        if len(self._known) > MAX_HISTORIES:
            self._known.popitem(last=False)
        self._last = None
        return history

    def is_current(self, user: str, history: History) -> bool:
        """Whether this very history still stands for the user."""
        return self._known.get(user) is history

    def forget(self, user: str) -> None:
        """Let go of a user."""
        self._last = None
        self._known.pop(user, None)

    def save(self, users: Iterable[str]) -> None:
        """Save states of users, where they hold exactly what the store holds.

        Where they do not, because another process writes as well, or a disk refuses events, nothing is saved: a later
        start then reads more events.
        """
        if self._pipeline is None:
            return
        for user in users:
            try:
                history = self.load(user)
                self._store.flush()
                stored = history.stored + history.tracked
                state = self._pipeline.save(user)
                if state is None or self._store.count(user) != stored:
                    continue
                self._store.save_state(user, self._spec_hash, self._store.last_row(user), state)
            except (StoreError, InputError) as error:
                _log.warning("a feature state was not saved, its events will be read again: %s", error)
            else:
                history.stored, history.tracked = stored, 0

    def save_at_close(self) -> None:
        """Save the states that would take long to read again."""
        self.save([user for user, history in self._known.items() if history.tracked >= SAVE_AT_CLOSE_EVENTS])

    def _restore(self, user: str) -> Iterable[Event]:
        """Bring a user's features up to date; the events whose repeats and lists matter."""
        pipeline = self._pipeline
        if pipeline is None:
            return list(self._store.read(user))  # all or none: half a history must not count
        saved = self._store.load_state(user, self._spec_hash)
        if saved is not None:
            tail = [event for _, event in self._store.read_after(user, saved.last_row)]
            try:
                pipeline.restore(user, tail, saved.state)
            except InputError as error:
                _log.warning("%s", error)
            else:
                return list(self._store.read(user, start_ms=max(0, pipeline.newest_ms(user) - RECENT_MS)))
        events = list(self._store.read(user))
        pipeline.restore(user, events)
        return events
