"""Places of boxes and lines: a layered drawing from top to bottom, the same for the same input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rerank_engine.inspect.coordinates import place_vertices
from rerank_engine.inspect.layers import Layered, Link, make_layered
from rerank_engine.inspect.routes import SAME, Fan, assign_tracks, spread

Point = tuple[float, float]

_SIDE_GAP = 28.0
_POINT_GAP = 18.0
_TRACK = 9.0
_ABOVE_TRACKS, _BELOW_TRACKS = 10.0, 20.0
_MARGIN = 12.0
_PORT_INSET, _PORT_GAP = 14.0, 14.0


@dataclass(frozen=True)
class Box:
    """The size of something to be placed, in pixels.

    Attributes
    ----------
    width, height
        Of the box.
    ports
        How far from the left each of its results leaves, at the lower edge.
    skirt
        Room below it that nothing else may take.
    """

    width: float
    height: float
    ports: tuple[float, ...] = ()
    skirt: float = 0.0


@dataclass(frozen=True)
class Line:
    """Where a link runs.

    Attributes
    ----------
    paths
        Corners of the lines from each layer to the next, from top to bottom; together they are the link.
    ends
        Where it meets the boxes that read it.
    """

    paths: tuple[tuple[Point, ...], ...]
    ends: tuple[Point, ...]


@dataclass(frozen=True)
class Layout:
    """A finished drawing, in pixels.

    Attributes
    ----------
    corners
        Upper left corner of each box.
    lines
        One a link.
    cut
        Pairs of link and box that are too far apart to be joined by a line.
    width, height
        Of everything.
    """

    corners: tuple[Point, ...]
    lines: tuple[Line, ...]
    cut: frozenset[tuple[int, int]]
    width: float
    height: float


def lay_out(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Place boxes and the lines between them.

    Parameters
    ----------
    boxes
        In an order in which every link goes from a lower to a higher index.
    links
        What joins them.

    Returns
    -------
    Layout
        No two boxes with their skirts overlap, and no line runs through a box.

    Examples
    --------
    >>> laid = lay_out([Box(80, 30, (40,)), Box(80, 30)], [Link(0, 0, (1,))])
    >>> laid.corners, laid.lines[0].paths
    (((12.0, 12.0), (12.0, 72.0)), (((52.0, 42.0), (52.0, 72.0)),))
    """
    layered = make_layered(len(boxes), links)
    half = [box.width / 2 for box in boxes]

    def separation(left: int, right: int) -> float:
        sizes = (half[vertex] if vertex < len(boxes) else 0.0 for vertex in (left, right))
        is_box = left < len(boxes) or right < len(boxes)
        return sum(sizes) + (_SIDE_GAP if is_box else _POINT_GAP)

    centres = place_vertices(layered, separation)
    lefts = [centre - (half[vertex] if vertex < len(boxes) else 0.0) for vertex, centre in enumerate(centres)]
    shift = _MARGIN - min(lefts, default=0.0)
    # Whole pixels keep vertical lines sharp.
    lefts = [float(round(left + shift)) for left in lefts]
    return _Router(boxes, links, layered, lefts).run()


class _Router:
    """Vertical places and lines, once the horizontal places are known."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link], layered: Layered, lefts: Sequence[float]) -> None:
        self.boxes, self.links, self.layered, self.lefts = boxes, links, layered, lefts
        self.layer_of = {vertex: index for index, layer in enumerate(layered.layers) for vertex in layer}
        self.fans = self._make_fans()
        self.tops, self.floors, self.tracks = self._place_layers()

    def _vertex_at(self, link: int, layer: int) -> int | None:
        """What carries a link in a layer: its box, or one of its points; None where it does not get that far."""
        start = self.layer_of[self.links[link].source]
        if layer == start:
            return self.links[link].source
        trunk = self.layered.trunks[link]
        return trunk[layer - start - 1] if start < layer <= start + len(trunk) else None

    def _x(self, link: int, vertex: int) -> float:
        """Where a link leaves a vertex."""
        inset = self.boxes[vertex].ports[self.links[link].port] if vertex < len(self.boxes) else 0.0
        return self.lefts[vertex] + inset

    def _make_fans(self) -> list[dict[int, tuple[Fan, tuple[int, ...]]]]:
        """By layer and link the lines that go down from that layer, and the boxes that they reach."""
        fans: list[dict[int, tuple[Fan, tuple[int, ...]]]] = [{} for _ in self.layered.layers]
        arriving: dict[int, list[tuple[float, int]]] = {}
        reached: dict[tuple[int, int], tuple[int, ...]] = {}
        for number, link in enumerate(self.links):
            for target in link.targets:
                if (number, target) in self.layered.cut:
                    continue
                layer = self.layer_of[target] - 1
                vertex = self._vertex_at(number, layer)
                assert vertex is not None, "a trunk reaches every layer above a target"
                arriving.setdefault(target, []).append((self._x(number, vertex), number))
                reached[number, layer] = (*reached.get((number, layer), ()), target)
        entries: dict[tuple[int, int], float] = {}
        for target, lines in arriving.items():
            lines.sort()
            low, width = self.lefts[target], self.boxes[target].width
            inset = min(_PORT_INSET, width / 2)
            places = spread([x for x, _ in lines], low + inset, low + width - inset, _PORT_GAP)
            entries.update({(number, target): x for (_, number), x in zip(lines, places, strict=True)})
        for number in range(len(self.links)):
            for layer in range(self.layer_of[self.links[number].source], len(self.layered.layers)):
                vertex, following = self._vertex_at(number, layer), self._vertex_at(number, layer + 1)
                targets = reached.get((number, layer), ())
                if vertex is None or (following is None and not targets):
                    break
                places = [entries[number, target] for target in targets]
                if following is not None:
                    places.append(self._x(number, following))
                fans[layer][number] = (Fan(self._x(number, vertex), tuple(places)), targets)
        return fans

    def _place_layers(self) -> tuple[list[float], list[float], list[dict[int, int]]]:
        """Upper and lower edge of each layer, and the tracks below it by link."""
        tops, floors, tracks = [], [], []
        at = _MARGIN
        for layer, fans in zip(self.layered.layers, self.fans, strict=True):
            inside = [self.boxes[vertex] for vertex in layer if vertex < len(self.boxes)]
            numbers = assign_tracks([fan for fan, _ in fans.values()])
            tops.append(at)
            at += max((box.height + box.skirt for box in inside), default=0.0)
            floors.append(at)
            tracks.append(dict(zip(fans, numbers, strict=True)))
            count = max(numbers, default=-1) + 1
            at += _ABOVE_TRACKS + max(0, count - 1) * _TRACK + _BELOW_TRACKS
        return tops, floors, tracks

    def run(self) -> Layout:
        """Put it all together."""
        corners = tuple((self.lefts[box], self.tops[self.layer_of[box]]) for box in range(len(self.boxes)))
        lines = tuple(self._line(number) for number in range(len(self.links)))
        right = max((x + box.width for (x, _), box in zip(corners, self.boxes, strict=True)), default=0.0)
        right = max([right, *(x for line in lines for path in line.paths for x, _ in path)])
        bottom = max(self.floors, default=0.0)
        return Layout(corners, lines, self.layered.cut, right + _MARGIN, bottom + _MARGIN)

    def _line(self, number: int) -> Line:
        source = self.links[number].source
        paths: list[tuple[Point, ...]] = []
        ends: list[Point] = []
        for layer in range(self.layer_of[source], len(self.layered.layers)):
            if number not in self.fans[layer]:
                break
            fan, targets = self.fans[layer][number]
            vertex = self._vertex_at(number, layer)
            top = self.tops[layer] + (self.boxes[source].height if vertex == source else 0.0)
            bottom = self.tops[layer + 1]
            track = self.floors[layer] + _ABOVE_TRACKS + max(0, self.tracks[layer][number]) * _TRACK
            paths += [_path(fan.source, x, (top, track, bottom)) for x in fan.targets]
            ends += [(x, bottom) for x in fan.targets[: len(targets)]]
        return Line(tuple(paths), tuple(ends))


def _path(source: float, target: float, heights: tuple[float, float, float]) -> tuple[Point, ...]:
    """Down, across and down; straight down where the two places are one."""
    top, track, bottom = heights
    if abs(source - target) < SAME:
        return ((target, top), (target, bottom))
    return ((source, top), (source, track), (target, track), (target, bottom))
