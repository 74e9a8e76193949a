"""Lines of a layered drawing: right-angled, each on a track of its own between two layers, never through a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SAME = 0.5
"""Horizontal distance below which two places are one, in pixels."""

_CLOSE = 8.0
"""Horizontal distance below which two vertical lines would be taken for one, in pixels."""


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

    Fans that overlap get different tracks. One that ends where another starts runs below it, so that their vertical
    parts do not lie on each other; where that cannot be for all, it is so for most.

    Examples
    --------
    >>> assign_tracks([Fan(0, (100,)), Fan(50, (150,)), Fan(10, (10,))])
    [1, 0, -1]
    """
    waiting = sorted((index for index, fan in enumerate(fans) if not fan.is_straight), key=lambda i: _key(fans[i]))
    blockers = {
        index: {other for other in waiting if other != index and _starts_at_end(fans[other], fans[index])}
        for index in waiting
    }
    tracks = [-1] * len(fans)
    taken: list[list[Fan]] = []
    while waiting:
        index = next((one for one in waiting if not blockers[one].intersection(waiting)), waiting[0])
        waiting.remove(index)
        fan = fans[index]
        track = max((tracks[other] + 1 for other in blockers[index]), default=0)
        while track < len(taken) and any(_overlap(fan, other) for other in taken[track]):
            track += 1
        taken.extend([] for _ in range(track + 1 - len(taken)))
        taken[track].append(fan)
        tracks[index] = track
    return tracks


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


def _key(fan: Fan) -> tuple[float, float]:
    """What goes right runs above what starts left of it, what goes left the other way round: they do not cross."""
    goes_right = fan.right - fan.source >= fan.source - fan.left
    return (-fan.source, fan.right) if goes_right else (fan.source, -fan.left)


def _starts_at_end(fan: Fan, other: Fan) -> bool:
    """Whether a fan starts where another one ends."""
    return any(abs(fan.source - target) < _CLOSE for target in other.targets)


def _overlap(fan: Fan, other: Fan) -> bool:
    return fan.left < other.right + _CLOSE and other.left < fan.right + _CLOSE
