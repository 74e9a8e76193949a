"""What a re-ranker remembers between calls: recent events, to know a repeated delivery, and items as met last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

from rerank_engine.errors import EventError
from rerank_features import Item
from rerank_sdk.store import EventStore

RECENT_EVENTS = 100_000
"""A repeated delivery is recognised among so many newest events of all users."""


class RecentEvents:
    """The newest events by what makes them the same."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def __contains__(self, identity: tuple[object, ...]) -> bool:
        return identity in self._known

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return iter(self._known)

    def add(self, identity: tuple[object, ...]) -> bool:
        """Remember :meth:`rerank_features.Event.identity`; the oldest one beyond the limit goes.

        Returns
        -------
        bool
            Whether it was new.
        """
        known = self._known
        before = len(known)
        known[identity] = None
        if len(known) == before:
            return False
        if before == RECENT_EVENTS:
            known.popitem(last=False)
        return True

    def discard(self, identity: tuple[object, ...]) -> None:
        """The event was not taken in after all."""
        self._known.pop(identity, None)

    def forget(self, user: str) -> None:
        """Drop the events of a user."""
        self._known = OrderedDict((identity, None) for identity in self._known if identity[0] != user)


class ItemMemory:
    """Items by id, as they were met last, and which of them the store holds.

    Parameters
    ----------
    store
        Keeps the items that events name.
    limit
        So many are remembered, the ones met last; None for all.
    """

    def __init__(self, store: EventStore, limit: int | None) -> None:
        self._store = store
        self._limit = limit
        self._known: OrderedDict[str, Item] = OrderedDict()
        self._unsaved: dict[str, Item] = {}
        self._last: tuple[Item, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def note(self, items: tuple[Item, ...]) -> None:
        """Remember items as they are now."""
        if items is self._last:
            return
        self._last = items
        known = self._known
        for item in items:
            before = known.get(item.id)
            if before is not item and (before is None or not item.is_bare):
                known[item.id] = self._unsaved[item.id] = item
        while self._limit is not None and len(known) > self._limit:
            name, _ = known.popitem(last=False)
            self._unsaved.pop(name, None)

    def unsaved(self, name: str) -> Item | None:
        """The item as it is now, if the store does not hold it so: a killed process must find its fields again."""
        return self._unsaved.get(name)

    def saved(self, item: Item) -> None:
        """The store holds the item as it is now."""
        self._unsaved.pop(item.id, None)

    def stored(self) -> list[Item]:
        """Items that the store holds, as many as are remembered; rows of another version are left out."""
        items: list[Item] = []
        for text in self._store.load_items().values():
            with suppress(EventError):  # a row that another version wrote must not keep the app from opening
                items.append(Item.from_json(text))
        return items if self._limit is None else items[-self._limit :]

    def erased(self) -> None:
        """The store has let go of items: save them again with their next event."""
        self._unsaved = dict(self._known)
