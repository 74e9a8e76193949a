"""How emission and the naive rescan grow with the length of the history: a table, under the ready spec ``edgerec``.

    python bench/history_lengths.py [LENGTH ...]

Both give the same values, which is checked. ``rerank bench features`` measures one length, with everything else.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from time import perf_counter
from typing import Any

from rerank_features import FeaturePipeline
from rerank_features.ready import ready_spec
from rerank_simulator.feature_benchmark.measure import LIST_LENGTH, check_same, shop_events
from rerank_simulator.feature_benchmark.rescan import Rescan
from rerank_simulator.feature_benchmark.stream import ShopStream, generate_items

LENGTHS = (100, 500, 2_000, 5_000)
SEED = 1
EMISSIONS, RESCANS = 200, 3


def main(lengths: list[int]) -> None:
    spec, items = ready_spec("edgerec"), generate_items(2_000, SEED)
    pipeline, rescan = FeaturePipeline(spec), Rescan(spec)
    pipeline.remember(items)
    rescan.remember(items)
    events = shop_events(items, SEED, users=1)
    request = next(ShopStream(1, items, SEED + 1, list_length=LIST_LENGTH).visits()).request
    print(f"{'events':>8}{'emit, us':>12}{'rescan, us':>14}{'ratio':>9}")
    done = 0
    for length in sorted(lengths):
        for event in itertools.islice(events, length - done):
            pipeline.update(event)
            rescan.update(event)
        done = length
        requests = [
            request.model_copy(update={"time_ms": event.time_ms + number, "user": event.user})
            for number in range(EMISSIONS)
        ]
        check_same(spec, pipeline.emit(requests[0]).arrays, rescan.emit(requests[0]))
        ours, theirs = _median_us(pipeline, requests), _median_us(rescan, requests[:RESCANS])
        print(f"{length:>8,}{ours:>12,.0f}{theirs:>14,.0f}{theirs / ours:>9,.0f}")


def _median_us(what: Any, requests: list[Any]) -> float:
    times = []
    for request in requests:
        started = perf_counter()
        what.emit(request)
        times.append((perf_counter() - started) * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or list(LENGTHS))
