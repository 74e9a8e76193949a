"""The first half of a layered drawing: which layer each box is in, and the order of boxes inside a layer.

Method of Sugiyama, Tagawa and Toda ("Methods for Visual Understanding of Hierarchical System Structures", IEEE
Transactions on Systems, Man, and Cybernetics 11(2), 1981): layers by longest path, long edges cut into pieces by points
in the layers between, then sweeps that sort every layer by the mean position of what each box is joined with.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_SPAN = 24
"""Layers that an edge may cross; a longer one is not drawn, because nobody can follow it."""

_SWEEPS, _SWEEPS_LARGE, _LARGE = 24, 6, 3_000


@dataclass(frozen=True)
class Link:
    """One result of a box and where it goes.

    Attributes
    ----------
    source
        Index of the box.
    port
        Which of its results.
    targets
        Indices of the boxes that read it, each once.
    """

    source: int
    port: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Layered:
    """Boxes and points in layers; edges go from one layer to the next.

    Attributes
    ----------
    layers
        Vertices from left to right, top layer first. The first ``boxes`` numbers are boxes, the others points.
    above, below
        For each vertex its neighbours in the layer above and below, each once.
    trunks
        For each link its points, from top to bottom.
    cut
        Pairs of link and target box that are too far apart to be drawn.
    boxes
        Number of boxes.
    """

    layers: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]
    trunks: list[list[int]]
    cut: frozenset[tuple[int, int]]
    boxes: int


def assign_layers(boxes: int, links: Sequence[Link]) -> list[int]:
    """Layer of each box: as early as its inputs allow, then as close to its readers as that shortens edges.

    Parameters
    ----------
    boxes
        Number of boxes; every link goes from a lower to a higher index.
    links
        What joins them.

    Examples
    --------
    >>> assign_layers(4, [Link(0, 0, (2,)), Link(1, 0, (3,)), Link(2, 0, (3,))])
    [0, 1, 1, 2]
    """
    layer = [0] * boxes
    incoming = [0] * boxes
    outgoing: list[list[Link]] = [[] for _ in range(boxes)]
    for link in sorted(links, key=lambda link: link.source):
        outgoing[link.source].append(link)
        for target in link.targets:
            incoming[target] += 1
            layer[target] = max(layer[target], layer[link.source] + 1)
    for box in reversed(range(boxes)):
        targets = [target for link in outgoing[box] for target in link.targets]
        # A link to several readers is one line for most of its way.
        if targets and incoming[box] <= len([link for link in outgoing[box] if link.targets]):
            layer[box] = min(layer[target] for target in targets) - 1
    used = {number: index for index, number in enumerate(sorted(set(layer)))}
    return [used[number] for number in layer]


def make_layered(boxes: int, links: Sequence[Link]) -> Layered:
    """Put boxes into layers, cut long edges into pieces, and order every layer.

    Examples
    --------
    >>> make_layered(3, [Link(0, 0, (1, 2)), Link(1, 0, (2,))]).layers
    [[0], [1, 3], [2]]
    """
    layer = assign_layers(boxes, links)
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box in range(boxes):
        layers[layer[box]].append(box)
    above: list[list[int]] = [[] for _ in range(boxes)]
    below: list[list[int]] = [[] for _ in range(boxes)]
    trunks: list[list[int]] = []
    cut = _far(layer, links)

    joined: set[tuple[int, int]] = set()

    def join(upper: int, lower: int) -> None:
        if (upper, lower) not in joined:
            joined.add((upper, lower))
            below[upper].append(lower)
            above[lower].append(upper)

    for number, link in enumerate(links):
        start = layer[link.source]
        near = [target for target in link.targets if (number, target) not in cut]
        trunk = [link.source]
        for at in range(start + 1, max((layer[target] for target in near), default=0)):
            point = len(above)
            above.append([])
            below.append([])
            layers[at].append(point)
            join(trunk[-1], point)
            trunk.append(point)
        for target in near:
            join(trunk[layer[target] - start - 1], target)
        trunks.append(trunk[1:])
    return Layered(_order(layers, above, below), above, below, trunks, cut, boxes)


def far_links(boxes: int, links: Sequence[Link]) -> frozenset[tuple[int, int]]:
    """Pairs of link and box that are not joined by a line, because they are more than ``MAX_SPAN`` layers apart.

    >>> far_links(2, [Link(0, 0, (1,))])
    frozenset()
    """
    return _far(assign_layers(boxes, links), links)


def _far(layer: Sequence[int], links: Sequence[Link]) -> frozenset[tuple[int, int]]:
    return frozenset(
        (number, target)
        for number, link in enumerate(links)
        for target in link.targets
        if layer[target] - layer[link.source] > MAX_SPAN
    )


def count_crossings(upper: Sequence[int], lower: Sequence[int], below: Sequence[Sequence[int]]) -> int:
    """Count the pairs of edges between two layers that cross.

    >>> count_crossings([0, 1], [2, 3], [[3], [2]])
    1
    """
    place = {vertex: index for index, vertex in enumerate(lower)}
    total, seen = 0, list[int]()
    for vertex in upper:
        ends = [place[end] for end in below[vertex]]
        total += sum(len(seen) - bisect_right(seen, end) for end in ends)
        for end in ends:
            insort(seen, end)
    return total


def _order(layers: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Sweep down and up by barycentres, and keep the order with the fewest crossings."""
    current = [list(layer) for layer in layers]
    best, fewest = current, _crossings(current, below)
    for sweep in range(_SWEEPS if len(above) <= _LARGE else _SWEEPS_LARGE):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        current = _sweep(current if down else current[::-1], above if down else below)
        current = current if down else current[::-1]
        crossings = _crossings(current, below)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _sweep(layers: Sequence[list[int]], neighbours: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sort every layer but the first by the mean place of its neighbours in the one before."""
    result = [list(layers[0])]
    for layer in layers[1:]:
        place = {vertex: index for index, vertex in enumerate(result[-1])}
        # A vertex without neighbours keeps its place; equals keep their order.
        key = {
            vertex: sum(place[other] for other in neighbours[vertex]) / len(neighbours[vertex])
            if neighbours[vertex]
            else float(index)
            for index, vertex in enumerate(layer)
        }
        result.append(sorted(layer, key=key.__getitem__))
    return result


def _crossings(layers: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    return sum(count_crossings(upper, lower, below) for upper, lower in pairwise(layers))
