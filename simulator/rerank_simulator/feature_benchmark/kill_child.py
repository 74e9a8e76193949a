"""The process that gets killed: it tracks the events of a known stream, and says which are on disk.

``python -m rerank_simulator.feature_benchmark.kill_child STATE BUNDLE CACHE SEED START`` prints ``ready``, and after
each flush the number of events of the stream that are acknowledged.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator

from rerank_features import Event, Item
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.feature_benchmark.stream import ShopStream, generate_items

USERS = 3
ITEMS = 80
_LARGEST_BATCH = 40
_MOST_EVENTS = 1_000_000


def kill_items(seed: int) -> tuple[Item, ...]:
    """Items of the stream.

    Examples
    --------
    >>> len(kill_items(1))
    80
    """
    return generate_items(ITEMS, seed)


def kill_stream(seed: int) -> Iterator[Event]:
    """Events without end: the same in every process.

    Examples
    --------
    >>> next(kill_stream(1)) == next(kill_stream(1))
    True
    """
    return (event for visit in ShopStream(USERS, kill_items(seed), seed).visits() for event in visit.events)


def kill_events(seed: int, start: int, stop: int) -> list[Event]:
    """Events of the stream from one place to another.

    Examples
    --------
    >>> kill_events(1, 0, 5)[3:] == kill_events(1, 3, 5)
    True
    """
    return list(itertools.islice(kill_stream(seed), start, stop))


def main(state: str, bundle: str, cache: str, seed: int, start: int) -> None:
    """Track until killed, or until far more is tracked than any moment leaves time for."""
    rng = random.Random(start)
    events = itertools.islice(kill_stream(seed), start, None)
    with Reranker.open(state, Bundle.read(bundle), deadline_ms=None, strict=True, cache_dir=cache) as reranker:
        reranker.remember(kill_items(seed))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        done = start
        while done < start + _MOST_EVENTS:
            batch = list(itertools.islice(events, rng.randint(1, _LARGEST_BATCH)))
            reranker.track(batch)
            reranker.flush()
            done += len(batch)
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
