"""A generated stream of one shop: items, users who scroll, look, open and buy, and the lists that they were given.

Everything is drawn from one seed, so the same numbers give the same stream. The kinds and fields are those of the ready
spec ``edgerec``. Users like some categories, which makes their clicks worth learning; it is no model of real people.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rerank_features import Event, Item, Request
from rerank_features.training_set import LabelledRequest

START_MS = 1_700_000_000_000
EMBEDDING_DIM = 16
LIST_LENGTH = 20
"""Candidates of a list in the stream."""

_CATEGORIES, _SHOPS, _BRANDS = 40, 300, 200
_ON_PAGE = ("add_to_cart", "favourite", "view_comments", "view_shop", "view_pictures", "view_options", "chat")
_OTHER_CATEGORY = 0.04
_LIKED_CATEGORY = 0.25
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Visit:
    """One list that a user was given, and what they did with it.

    Attributes
    ----------
    request
        The list at its moment.
    events
        What followed, in order of time.
    """

    request: Request
    events: tuple[Event, ...]

    def labelled(self) -> LabelledRequest:
        """The list with 1 for every candidate that was opened."""
        opened = {event.item for event in self.events if event.kind == "click"}
        labels = np.array([float(item.id in opened) for item in self.request.candidates], np.float32)
        return LabelledRequest(self.request, labels)


def generate_items(count: int, seed: int) -> tuple[Item, ...]:
    """Items with every field of the spec; those of one category have similar embeddings.

    Examples
    --------
    >>> generate_items(2, seed=1)[0].id
    'item-0'
    """
    rng = random.Random(f"items {seed}")
    centres = [[rng.gauss(0, 1) for _ in range(EMBEDDING_DIM)] for _ in range(_CATEGORIES)]
    items = []
    for number in range(count):
        category = rng.randrange(_CATEGORIES)
        items.append(
            Item(
                id=f"item-{number}",
                categorical={
                    "category": f"category-{category}",
                    "shop": f"shop-{rng.randrange(_SHOPS)}",
                    "brand": f"brand-{rng.randrange(_BRANDS)}",
                },
                numeric={
                    "price": round(rng.lognormvariate(3, 1), 2),
                    "sales": float(int(rng.lognormvariate(4, 2))),
                    "click_rate": round(rng.betavariate(2, 40), 4),
                    "purchase_rate": round(rng.betavariate(1, 100), 5),
                    "published_s": START_MS / 1000 - rng.randrange(200 * 86_400),
                },
                embedding=tuple(round(centre + rng.gauss(0, 0.5), 3) for centre in centres[category]),
            )
        )
    return tuple(items)


class ShopStream:
    """Users who come back for short sessions, for as long as one asks.

    Parameters
    ----------
    users
        Number of users; their visits alternate.
    items
        What the lists are drawn from.
    seed
        Of everything that is drawn.
    list_length
        Candidates of a list.

    Examples
    --------
    >>> visits = ShopStream(users=2, items=generate_items(50, seed=1), seed=1).visits()
    >>> first = next(visits)
    >>> first.request.user, len(first.request.candidates), first.events[0].kind
    ('user-0', 20, 'impression')
    """

    def __init__(self, users: int, items: tuple[Item, ...], seed: int, *, list_length: int = LIST_LENGTH) -> None:
        self._rng = random.Random(f"visits {seed}")
        self._items = items
        self._length = min(list_length, len(items))
        self._users = [f"user-{number}" for number in range(users)]
        names = sorted({item.categorical["category"] for item in items})
        self._liked = {user: set(self._rng.sample(names, min(4, len(names)))) for user in self._users}
        self._times = {user: START_MS + number * 1_000 for number, user in enumerate(self._users)}

    def visits(self) -> Iterator[Visit]:
        """One visit of each user after the other, without end."""
        number = 0
        while True:
            for user in self._users:
                yield self._visit(user, number)
                number += 1

    def _visit(self, user: str, number: int) -> Visit:
        rng = self._rng
        # Mostly the next page of the session, at times another hour or another day.
        pause_ms = rng.choices([5_000, 2 * 3_600_000, _DAY_MS], [8, 1, 1])[0]
        time_ms = self._times[user] + rng.randrange(pause_ms // 2, pause_ms)
        candidates = tuple(rng.sample(self._items, self._length))
        scores = [round(item.numeric["click_rate"] + rng.gauss(0, 0.02), 5) for item in candidates]
        request = Request(
            user=user,
            time_ms=time_ms,
            candidates=candidates,
            scores=scores,
            id=f"list-{number}",
            context={"network": rng.choice(["wifi", "5g", "4g"]), "clock_offset_min": 480},
        )
        events = []
        for position, item in enumerate(candidates[: rng.randrange(2, self._length + 1)]):
            time_ms += rng.randrange(300, 4_000)
            for kind, delay_ms, value in self._card(user, item):
                time_ms += delay_ms
                events.append(
                    Event(
                        user=user,
                        item=item.id,
                        kind=kind,
                        time_ms=time_ms,
                        value=value,
                        position=position if kind in ("impression", "click") else None,
                        request=request.id,
                    )
                )
        self._times[user] = time_ms
        return Visit(request, tuple(events))

    def _card(self, user: str, item: Item) -> Iterator[tuple[str, int, float | None]]:
        """What happens to one card: kinds, milliseconds since the one before, values."""
        rng = self._rng
        liked = item.categorical["category"] in self._liked[user]
        yield "impression", 1, round(rng.expovariate(1 / (4.0 if liked else 1.5)), 3)
        if rng.random() < 0.3:
            yield "scroll", rng.randrange(20, 400), round(rng.expovariate(1 / 1.5), 3)
        if rng.random() < 0.01:
            yield "hide", rng.randrange(200, 900), None
        elif rng.random() < (_LIKED_CATEGORY if liked else _OTHER_CATEGORY):
            yield "click", rng.randrange(200, 900), None
            for kind in _ON_PAGE:
                if rng.random() < 0.1:
                    yield kind, rng.randrange(500, 5_000), None
            if rng.random() < 0.03:
                yield "purchase", rng.randrange(3_000, 20_000), item.numeric["price"]
            yield "dwell", rng.randrange(1_000, 20_000), round(rng.expovariate(1 / 20), 2)
