"""Layered drawings: layers, orders, places, tracks; nothing overlaps, whatever the graph is."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.inspect.coordinates import place_vertices
from rerank_engine.inspect.layers import MAX_SPAN, Link, assign_layers, count_crossings, far_links, make_layered
from rerank_engine.inspect.layout import Box, Layout, lay_out
from rerank_engine.inspect.routes import CLOSE, MOST_TRACKS, Fan, assign_tracks, spread

Graph = tuple[list[Box], list[Link]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Boxes of any size with up to two results, each read by boxes that come later."""
    count = draw(st.integers(1, 14))
    boxes, links = [], []
    for index in range(count):
        width = draw(st.sampled_from([64.0, 90.0, 200.0]))
        ports = draw(st.integers(0, 2))
        places = tuple(round(width * (port + 1) / (ports + 1)) * 1.0 for port in range(ports))
        boxes.append(Box(width, draw(st.sampled_from([30.0, 75.0])), places, 20.0))
        for port in range(ports):
            later = range(index + 1, count)
            targets = draw(st.lists(st.sampled_from(later), unique=True, max_size=4)) if later else []
            if targets:
                links.append(Link(index, port, tuple(sorted(targets))))
    return boxes, links


def check(boxes: list[Box], links: list[Link], layout: Layout) -> None:
    """Boxes apart from each other and inside the picture, lines right-angled, downward, whole, around boxes."""
    for (one, (x, y)), (other, (u, v)) in combinations(list(zip(boxes, layout.corners, strict=True)), 2):
        assert x + one.width <= u or u + other.width <= x or y + one.height + one.skirt <= v or v + other.height <= y
    for box, (x, y) in zip(boxes, layout.corners, strict=True):
        assert 0 <= x <= x + box.width <= layout.width
        assert 0 <= y <= y + box.height <= layout.height
    for number, (link, line) in enumerate(zip(links, layout.lines, strict=True)):
        drawn = [target for target in link.targets if (number, target) not in layout.cut]
        left, top = layout.corners[link.source]
        starts = {(left + boxes[link.source].ports[link.port], top + boxes[link.source].height)}
        assert len(line.ends) == len(drawn)
        ends = set(line.ends)
        for target in drawn:
            (u, v), box = layout.corners[target], boxes[target]
            assert any(y == v and u < x < u + box.width for x, y in ends)
        # Every piece begins where the box or another piece ends.
        reachable = starts | {path[-1] for path in line.paths}
        for path in line.paths:
            assert any(abs(path[0][0] - x) < 0.5 and path[0][1] == y for x, y in reachable)
            for (x, y), (u, v) in pairwise(path):
                assert (x == u and y <= v) or y == v
                for box, (left, top) in zip(boxes, layout.corners, strict=True):
                    outside = max(x, u) <= left or min(x, u) >= left + box.width
                    assert outside or max(y, v) <= top or min(y, v) >= top + box.height


@settings(max_examples=120, deadline=None)
@given(graphs())
def test_nothing_overlaps(graph: Graph) -> None:
    boxes, links = graph
    layout = lay_out(boxes, links)
    check(boxes, links, layout)
    assert lay_out(boxes, links) == layout


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_links_go_down_and_far_ones_are_told(graph: Graph) -> None:
    boxes, links = graph
    layers = assign_layers(len(boxes), links)
    assert set(layers) == set(range(max(layers) + 1))
    for link in links:
        assert all(layers[target] > layers[link.source] for target in link.targets)
    layered = make_layered(len(boxes), links)
    assert sorted(vertex for layer in layered.layers for vertex in layer) == list(range(len(layered.above)))
    assert layered.cut == far_links(len(boxes), links)


def test_nothing_at_all() -> None:
    layout = lay_out([], [])
    assert (layout.corners, layout.lines) == ((), ())


def test_a_chain_is_one_straight_line() -> None:
    boxes = [Box(width, 30.0, (width / 2,)) for width in (100.0, 60.0, 220.0, 80.0)]
    links = [Link(index, 0, (index + 1,)) for index in range(3)]
    layout = lay_out(boxes, links)
    assert {x + box.width / 2 for (x, _), box in zip(layout.corners, boxes, strict=True)} == {122.0}
    assert all(len(path) == 2 for line in layout.lines for path in line.paths)


def test_an_input_stands_near_its_reader() -> None:
    links = [*(Link(index, 0, (index + 1,)) for index in range(5)), Link(6, 0, (7,)), Link(5, 0, (7,))]
    assert assign_layers(8, links) == [0, 1, 2, 3, 4, 5, 5, 6]


def test_a_link_over_too_many_layers_is_cut_and_the_others_stay() -> None:
    count = MAX_SPAN + 3
    links = [Link(0, 0, (1, 2, count - 1)), *(Link(index, 0, (index + 1,)) for index in range(1, count - 1))]
    layout = lay_out([Box(60, 30, (30,))] * count, links)
    assert layout.cut == {(0, count - 1)}
    assert len(layout.lines[0].ends) == 2


def test_crossings_go_where_they_can() -> None:
    links = [Link(0, 0, (5,)), Link(1, 0, (4,)), Link(2, 0, (3,))]
    layered = make_layered(6, links)
    upper, lower = layered.layers
    assert count_crossings([0, 1, 2], [3, 4, 5], layered.below) == 3
    assert count_crossings(upper, lower, layered.below) == 0


def test_long_links_are_straight() -> None:
    links = [Link(0, 0, (1, 5)), *(Link(index, 0, (index + 1,)) for index in range(1, 5))]
    layered = make_layered(6, links)
    places = place_vertices(layered, lambda left, right: 10.0)
    assert len({places[point] for point in layered.trunks[0]}) == 1


def test_tracks_of_lines_that_overlap_differ() -> None:
    fans = [Fan(0, (100, 200)), Fan(50, (150,)), Fan(300, (400,)), Fan(20, (20,)), Fan(250, (240, 10))]
    tracks = assign_tracks(fans)
    assert tracks[3] == -1
    for (one, first), (other, second) in combinations(zip(fans, tracks, strict=True), 2):
        if first == second >= 0:
            assert one.right + CLOSE <= other.left or other.right + CLOSE <= one.left


def test_a_line_that_ends_where_another_starts_runs_below_it() -> None:
    tracks = assign_tracks([Fan(100, (0,)), Fan(200, (100,)), Fan(300, (200,))])
    assert tracks[0] < tracks[1] < tracks[2]


def test_lines_that_change_places_are_drawn_all_the_same() -> None:
    assert sorted(assign_tracks([Fan(100, (0,)), Fan(0, (100,))])) == [0, 1]


def test_tracks_have_a_limit() -> None:
    fans = [Fan(float(20 * index), (4000.0 - index,)) for index in range(3 * MOST_TRACKS)]
    assert set(assign_tracks(fans)) == set(range(MOST_TRACKS))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-50, 150), max_size=12))
def test_places_keep_their_order_and_their_bounds(wanted: list[float]) -> None:
    places = spread(sorted(wanted), 0.0, 100.0, 14.0)
    assert all(-1e-9 <= place <= 100.0 + 1e-9 for place in places)
    gap = min(14.0, 100.0 / max(1, len(wanted) - 1))
    assert all(right - left >= gap - 1e-9 for left, right in pairwise(places))
