"""The process that gets killed: it tracks the events of a known stream, and says which are on disk.

``python -m rerank_simulator.feature_benchmark.kill_child STATE BUNDLE CACHE SEED START`` prints ``ready``, and after
each flush the number of events of the stream that are acknowledged.
"""

from __future__ import annotations

import itertools
import random
import sys

from rerank_features import Event, Item
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.feature_benchmark.stream import ShopStream, generate_items

USERS = 3
ITEMS = 80
_LARGEST_BATCH = 40


def kill_items(seed: int) -> tuple[Item, ...]:
    """Items of the stream.

    Examples
    --------
    >>> len(kill_items(1))
    80
    """
    return generate_items(ITEMS, seed)


def kill_events(seed: int, start: int, stop: int | None = None) -> list[Event]:
    """Events of the stream from one place to another: the same in every process.

    Examples
    --------
    >>> kill_events(1, 0, 5)[3:] == kill_events(1, 3, 5)
    True
    """
    stream = (event for visit in ShopStream(USERS, kill_items(seed), seed).visits() for event in visit.events)
    return list(itertools.islice(stream, start, stop))


def main(state: str, bundle: str, cache: str, seed: int, start: int) -> None:
    """Track until killed, or until the stream of this run is over."""
    rng = random.Random(start)
    events = kill_events(seed, start, start + 50_000)
    with Reranker.open(state, Bundle.read(bundle), deadline_ms=None, strict=True, cache_dir=cache) as reranker:
        reranker.remember(kill_items(seed))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        done = 0
        while done < len(events):
            batch = events[done : done + rng.randint(1, _LARGEST_BATCH)]
            reranker.track(batch)
            reranker.flush()
            done += len(batch)
            sys.stdout.write(f"{start + done}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
