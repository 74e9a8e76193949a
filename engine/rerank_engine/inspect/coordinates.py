"""Horizontal places in a layered drawing, by the method of Brandes and Köpf.

U. Brandes and B. Köpf, "Fast and Simple Horizontal Coordinate Assignment", Graph Drawing 2001. Each vertex is aligned
with the median of its neighbours, so that chains and long edges are straight; that is done four times, from above and
from below, to the left and to the right, and the result lies in the middle. The blocks of aligned vertices are packed
by longest paths over the order that they keep to each other, in place of the paper's classes and shifts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rerank_engine.inspect.layers import Layered

Separation = Callable[[int, int], float]


def place_vertices(layered: Layered, separation: Separation) -> list[float]:
    """Centre of each vertex; the leftmost one is 0.

    Parameters
    ----------
    layered
        Vertices in layers, in order.
    separation
        Smallest distance between the centres of two vertices that stand side by side, left and right.

    Examples
    --------
    >>> from rerank_engine.inspect.layers import Link, make_layered
    >>> place_vertices(make_layered(3, [Link(0, 0, (1, 2))]), lambda left, right: 10.0)
    [5.0, 0.0, 10.0]
    """
    conflicts = _find_conflicts(layered)
    places = [
        _place_once(layered, conflicts, separation, from_above=from_above, to_left=to_left)
        for from_above in (True, False)
        for to_left in (True, False)
    ]
    if not layered.above:
        return []
    narrowest = min(places, key=lambda place: max(place) - min(place))
    for index, place in enumerate(places):
        shift = min(narrowest) - min(place) if index % 2 == 0 else max(narrowest) - max(place)
        places[index] = [x + shift for x in place]
    middle = [sum(sorted(place[vertex] for place in places)[1:3]) / 2 for vertex in range(len(layered.above))]
    start = min(middle)
    return [x - start for x in middle]


def _find_conflicts(layered: Layered) -> set[tuple[int, int]]:
    """Edges that cross a piece between two points: long edges stay straight at the cost of others."""
    conflicts = set()
    for upper, lower in pairwise(layered.layers):
        place = {vertex: index for index, vertex in enumerate(upper)}
        first = scanned = 0
        for index, vertex in enumerate(lower):
            inner = next((place[other] for other in layered.above[vertex] if min(vertex, other) >= layered.boxes), None)
            if inner is None and index < len(lower) - 1:
                continue
            last = len(upper) if inner is None else inner
            for other in lower[scanned : index + 1]:
                for end in layered.above[other]:
                    is_inner = min(other, end) >= layered.boxes
                    if not is_inner and not first <= place[end] <= last:
                        conflicts.add((end, other))
            first, scanned = last, index + 1
    return conflicts


def _place_once(
    layered: Layered,
    conflicts: set[tuple[int, int]],
    separation: Separation,
    *,
    from_above: bool,
    to_left: bool,
) -> list[float]:
    layers = layered.layers if from_above else layered.layers[::-1]
    layers = layers if to_left else [layer[::-1] for layer in layers]
    neighbours = layered.above if from_above else layered.below
    place = {vertex: index for layer in layers for index, vertex in enumerate(layer)}
    root = _align(layers, neighbours, place, conflicts)
    gap = separation if to_left else (lambda left, right: separation(right, left))
    block = _pack(layers, root, gap)
    sign = 1.0 if to_left else -1.0
    return [sign * block[root[vertex]] for vertex in range(len(root))]


def _align(
    layers: Sequence[Sequence[int]],
    neighbours: Sequence[Sequence[int]],
    place: Mapping[int, int],
    conflicts: set[tuple[int, int]],
) -> list[int]:
    """For each vertex the first of the block that it is aligned with."""
    root = list(range(len(neighbours)))
    for layer in layers[1:]:
        reached = -1
        for vertex in layer:
            ends = sorted(neighbours[vertex], key=place.__getitem__)
            if not ends:
                continue
            for index in dict.fromkeys(((len(ends) - 1) // 2, len(ends) // 2)):
                end = ends[index]
                if place[end] > reached and (end, vertex) not in conflicts and (vertex, end) not in conflicts:
                    root[vertex], reached = root[end], place[end]
                    break
    return root


def _pack(layers: Sequence[Sequence[int]], root: Sequence[int], separation: Separation) -> dict[int, float]:
    """Place of each block: as far left as the others allow, then as far right as that costs nothing."""
    after: dict[int, dict[int, float]] = {block: {} for block in root}
    waiting = dict.fromkeys(after, 0)
    for layer in layers:
        for left, right in pairwise(layer):
            one, other = root[left], root[right]
            if other not in after[one]:
                waiting[other] += 1
            after[one][other] = max(after[one].get(other, 0.0), separation(left, right))
    ready = [block for block, count in waiting.items() if count == 0]
    place = dict.fromkeys(after, 0.0)
    for block in ready:  # grows while it runs
        for other, gap in after[block].items():
            place[other] = max(place[other], place[block] + gap)
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    for block in reversed(ready):
        if after[block]:
            place[block] = max(place[block], min(place[other] - gap for other, gap in after[block].items()))
    return place
