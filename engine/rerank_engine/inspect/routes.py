"""Lines of a layered drawing: right-angled, each on a track of its own between two layers, never through a box."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

SAME = 0.5
"""Horizontal distance below which two places are one, in pixels."""

CLOSE = 8.0
"""Horizontal distance below which two vertical lines would be taken for one, in pixels."""

MOST_TRACKS = 60
"""Tracks between two layers; more lines than that share some."""


@dataclass(frozen=True)
class Fan:
    """The lines of one link between two layers.

    Attributes
    ----------
    source
        Where they come from, in pixels from the left.
    targets
        Where they go.
    """

    source: float
    targets: tuple[float, ...]

    @property
    def is_straight(self) -> bool:
        """Whether nothing of it is horizontal."""
        return all(abs(target - self.source) < SAME for target in self.targets)

    @property
    def left(self) -> float:
        """Leftmost place."""
        return min(self.source, *self.targets)

    @property
    def right(self) -> float:
        """Rightmost place."""
        return max(self.source, *self.targets)


def assign_tracks(fans: Sequence[Fan]) -> list[int]:
    """Track of each fan's horizontal part, counted from the top; -1 for one that has none.

    Fans that overlap get different tracks, as long as there are any. One that ends where another starts runs below it,
    so that their vertical parts do not lie on each other; where that cannot be for all, it is so for most.

    Examples
    --------
    >>> assign_tracks([Fan(0, (100,)), Fan(50, (150,)), Fan(10, (10,))])
    [1, 0, -1]
    """
    bent = sorted((index for index, fan in enumerate(fans) if not fan.is_straight), key=lambda i: _key(fans[i]))
    above = _find_above(fans, bent)
    tracks = [-1] * len(fans)
    taken: list[list[tuple[float, float]]] = []
    for number, index in enumerate(_sort(bent, above)):
        span = (fans[index].left - CLOSE / 2, fans[index].right + CLOSE / 2)
        track = max((tracks[other] + 1 for other in above[index]), default=0)
        while track < len(taken) and _meets(taken[track], span):
            track += 1
        track = track if track < MOST_TRACKS else number % MOST_TRACKS
        taken.extend([] for _ in range(track + 1 - len(taken)))
        insort(taken[track], span)
        tracks[index] = track
    return tracks


def _key(fan: Fan) -> tuple[float, float]:
    """What goes right runs above what starts left of it, what goes left the other way round: they do not cross."""
    goes_right = fan.right - fan.source >= fan.source - fan.left
    return (-fan.source, fan.right) if goes_right else (fan.source, -fan.left)


def _find_above(fans: Sequence[Fan], bent: Sequence[int]) -> dict[int, set[int]]:
    """For each fan those that start where it ends."""
    sources = sorted((fans[index].source, index) for index in bent)
    places = [source for source, _ in sources]
    return {
        index: {
            other
            for target in fans[index].targets
            for _, other in sources[bisect_left(places, target - CLOSE) : bisect_right(places, target + CLOSE)]
            if other != index
        }
        for index in bent
    }


def _sort(order: Sequence[int], above: Mapping[int, set[int]]) -> list[int]:
    """The given order, but for what must wait for another; a circle is broken at its first member."""
    below: dict[int, list[int]] = {index: [] for index in order}
    for index in order:
        for other in sorted(above[index]):
            below[other].append(index)
    rank = {index: number for number, index in enumerate(order)}
    count = {index: len(above[index]) for index in order}
    ready = [rank[index] for index in order if count[index] == 0]
    done: set[int] = set()
    result = []
    for start in (None, *order):
        if start is not None and start not in done:
            heappush(ready, rank[start])
        while ready:
            index = order[heappop(ready)]
            if index in done:
                continue
            done.add(index)
            result.append(index)
            for other in below[index]:
                count[other] -= 1
                if count[other] == 0:
                    heappush(ready, rank[other])
    return result


def _meets(spans: Sequence[tuple[float, float]], span: tuple[float, float]) -> bool:
    """Whether one of sorted spans that do not overlap meets another one."""
    at = bisect_right(spans, span)
    return any(other[0] < span[1] and span[0] < other[1] for other in spans[max(0, at - 1) : at + 1])


def spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Places in ``[low, high]`` as close as can be to those that are wanted, in order and ``gap`` apart.

    Where there is no room, the gap is smaller. Least squares under an order: pool adjacent violators.

    >>> spread([0.0, 50.0, 52.0], 10.0, 90.0, 12.0)
    [10.0, 45.0, 57.0]
    """
    count = len(wanted)
    if count > 1:
        gap = min(gap, (high - low) / (count - 1))
    pools: list[tuple[float, int]] = []
    for index, place in enumerate(wanted):
        mean, size = place - index * gap, 1
        while pools and pools[-1][0] >= mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    top = max(low, high - (count - 1) * gap)
    return [min(max(mean, low), top) + index * gap for index, mean in enumerate(flat)]
