"""The file and the queue seen as one: whatever was appended can be read, also while the disk refuses it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from rerank_features.events import Event
from rerank_sdk.store.reader import Reader, StoredEvent
from rerank_sdk.store.recorder import PATCHES_PER_USER
from rerank_sdk.store.rows import (
    Example,
    Operation,
    QueuedEvent,
    QueuedItem,
    QueuedPatch,
    QueuedState,
    StoredPatch,
    StoredState,
    event_values,
    owner,
)
from rerank_sdk.store.writer import BatchWriter

_PAGE_ROWS = 1_024
_ROWS_IN_MEMORY = 65_536
# Among equal times, what waits comes after what is in the file.
_AFTER_STORED = 1 << 62
UNSTORED = 1 << 62
"""Events that are not in the file yet have numbers from here on: no state may name them."""

_place = itemgetter(0, 1)


class View:
    """Reads the file, and adds what could not be written yet.

    Each method flushes first. Only when that fails is there a rest, and it is merged by the rules of the
    file: an event is known by its key, an example by user, request and item, a patch by its version, an item
    by its id.

    Parameters
    ----------
    reader
        The file.
    writer
        The queue.
    examples_per_user
        So many examples of a user are kept.
    """

    def __init__(self, reader: Reader, writer: BatchWriter, examples_per_user: int) -> None:
        self._reader = reader
        self._writer = writer
        self._examples_per_user = examples_per_user

    def events(
        self,
        user: str | None,
        start_ms: int,
        end_ms: int,
        kinds: tuple[str, ...] | None,
        allowed: Callable[[str], bool] = lambda _user: True,
    ) -> Iterator[Event]:
        """Events of allowed users with ``start_ms <= time_ms < end_ms``, by time, then by arrival."""
        queued = {key: event for key, event in self._queued_events(user).items() if allowed(event.user)}
        users = [name for name in ([user] if user is not None else self._reader.users()) if allowed(name)]
        page = max(1, min(_PAGE_ROWS, _ROWS_IN_MEMORY // max(1, len(users))))
        streams: list[Iterable[StoredEvent]] = [
            self._reader.events(name, start_ms, end_ms, kinds, page) for name in users
        ]
        if queued:
            chosen = [
                StoredEvent(event.time_ms, _AFTER_STORED + order, key, event)
                for order, (key, event) in enumerate(queued.items())
                if start_ms <= event.time_ms < end_ms and (kinds is None or event.kind in kinds)
            ]
            streams = [_without(stream, queued) for stream in streams]
            streams.append(sorted(chosen, key=_place))
        rows = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_place)
        return (row.event for row in rows)

    def users(self) -> list[str]:
        """Everybody of whom something is held, sorted."""
        queued = {user for user in map(owner, self._rest()) if user is not None}
        return sorted(queued.union(self._reader.users()))

    def count(self, user: str | None) -> int:
        """How many events are held."""
        if any(isinstance(operation, Event | QueuedEvent) for operation in self._rest()):
            return sum(1 for _ in self.events(user, 0, 1 << 62, None))
        return self._reader.count(user)

    def examples(self, user: str) -> list[Example]:
        """Training examples of one user, by time."""
        rest = self._rest()
        found = {(example.request, example.item): example for example in self._reader.examples(user)}
        for operation in rest:
            if isinstance(operation, Example) and operation.user == user:
                found.pop((operation.request, operation.item), None)  # it moves to the end, as in the file
                found[operation.request, operation.item] = operation
        return sorted(found.values(), key=lambda example: example.time_ms)[-self._examples_per_user :]

    def patches(self, user: str) -> list[StoredPatch]:
        """Kept patches of one user, by version."""
        rest = self._rest()
        found = {patch.version: patch for patch in self._reader.patches(user)}
        for operation in rest:
            if isinstance(operation, QueuedPatch) and operation.user == user:
                found[operation.version] = StoredPatch(
                    operation.patch, operation.version, operation.base_model, operation.created_ms
                )
        return [found[version] for version in sorted(found)][-PATCHES_PER_USER:]

    def events_after(self, user: str, row: int) -> Iterator[tuple[int, Event]]:
        """Events behind a row in order of arrival; what is not in the file yet has numbers from :data:`UNSTORED`."""
        queued = self._queued_events(user)
        for number, key, event in self._reader.events_after(user, row, _PAGE_ROWS):
            if key not in queued:
                yield number, event
        for number, event in enumerate(queued.values(), start=UNSTORED):
            yield number, event

    def last_row(self, user: str) -> int:
        """Number of the user's last row in the file."""
        self._rest()
        return self._reader.last_row(user)

    def states(self, user: str) -> dict[str, StoredState]:
        """Saved states of one user, by spec hash."""
        rest = self._rest()
        found = dict(self._reader.states(user))
        found.update(
            (operation.spec_hash, StoredState(operation.state, operation.last_row))
            for operation in rest
            if isinstance(operation, QueuedState) and operation.user == user
        )
        return found

    def items(self) -> dict[str, bytes]:
        """Remembered items."""
        rest = self._rest()
        found = dict(self._reader.items())
        found.update(operation.row() for operation in rest if isinstance(operation, QueuedItem))
        return found

    def _rest(self) -> list[Operation]:
        return [] if self._writer.try_flush() else self._writer.waiting()

    def _queued_events(self, user: str | None) -> dict[bytes, Event]:
        """Events that wait, by key, without those that are in the file already."""
        found: dict[bytes, Event] = {}
        for operation in self._rest():
            if isinstance(operation, Event | QueuedEvent) and (user is None or owner(operation) == user):
                try:
                    key = event_values(operation)[0]
                except (TypeError, ValueError, AttributeError, RecursionError):
                    continue  # the file will reject it too
                found.setdefault(key, operation if isinstance(operation, Event) else operation.event)
        return {key: event for key, event in found.items() if not self._reader.has_event(event, key)}


def _without(rows: Iterable[StoredEvent], keys: dict[bytes, Event]) -> Iterator[StoredEvent]:
    """Leave out what was queued a moment ago and is committed by now: it would be met twice."""
    return (row for row in rows if row.key not in keys)
