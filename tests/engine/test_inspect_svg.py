"""Pictures of graphs: well-formed, complete, without overlaps, the same each time."""

from __future__ import annotations

import random
import re
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from rerank_engine.errors import GraphError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.inspect import draw_svg
from rerank_engine.inspect.cards import text_width

SVG = "{http://www.w3.org/2000/svg}"

Rectangle = tuple[float, float, float, float]


def two_towers(b: Any) -> Graph:
    """A user tower that runs once, a candidate tower that runs for blocks, attention over the list."""
    user = b.node("MatMul", b.input("float32", 1, 8), b.constant(np.ones((8, 4))), activation="Relu")
    item = b.node("Gather", b.constant(np.ones((100, 4))), b.input("int64", "N"))
    score = b.node("Mul", item, user)
    keys = b.node("Transpose", score, perm=(1, 0))
    values, places = b.nodes("TopK", [score], 2, k=2, axis=1)
    b.output(b.node("Attention", score, keys, score, scale=0.5), values, user)
    b.graph.name = "two towers"
    assert places
    graph: Graph = b.finish()
    return graph


def boxes(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.get("class", "").split(" ")[0] == kind]


def rectangle(group: ElementTree.Element) -> Rectangle:
    rect = group.find(f"{SVG}rect")
    assert rect is not None
    x, y, width, height = (float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def title(group: ElementTree.Element) -> str:
    return group.findtext(f"{SVG}title") or ""


def assert_sound(graph: Graph, document: str) -> ElementTree.Element:
    """Everything is there once, apart, and inside; texts have room."""
    root = ElementTree.fromstring(document)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<(title|text)[^>]*>[^<]*", "", document), re.IGNORECASE)
    assert re.search(r"https?:(?!//www\.w3\.org/2000/svg)|url\(|<script|<image|@import|@font-face", document) is None
    groups = {kind: boxes(root, kind) for kind in ("input", "node", "output")}
    assert len(groups["node"]) == len(graph.nodes)
    assert [title(group).splitlines()[0] for group in groups["input"]] == [f"input {name}" for name in graph.inputs]
    assert [title(group).splitlines()[0] for group in groups["output"]] == [f"output {name}" for name in graph.outputs]
    places = [rectangle(group) for kind in groups.values() for group in kind]
    width, height = float(root.get("width", "nan")), float(root.get("height", "nan"))
    for left, top, right, bottom in places:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    if len(places) <= 200:
        labels = [rectangle(group) for group in boxes(root, "label")]
        for (a, b, c, d), (e, f, g, h) in combinations(places + labels, 2):
            assert c <= e or g <= a or d <= f or h <= b
    for kind in groups.values():
        for group in kind:
            assert_texts_fit(group)
    return root


def assert_texts_fit(group: ElementTree.Element) -> None:
    left, top, right, bottom = rectangle(group)
    for text in group.iter(f"{SVG}text"):
        size = 13 if text.get("class") in ("operator", "name") else 11
        length, x, anchor = text_width(text.text or "", size), float(text.get("x", "nan")), text.get("text-anchor")
        start = x - length / 2 if anchor == "middle" else x - length if anchor == "end" else x
        assert left <= start
        assert start + length <= right
        assert top + size <= float(text.get("y", "nan")) + 2 <= bottom


def test_a_model_with_every_phase(build: Any) -> None:
    graph = two_towers(build())
    document = draw_svg(graph)
    root = assert_sound(graph, document)
    modes = {title(group).splitlines()[0]: group.get("class") for group in boxes(root, "node")}
    by_operator = {name.split(" ")[0]: mode for name, mode in modes.items()}
    assert by_operator == {
        "MatMul": "node once",
        "Gather": "node block",
        "Mul": "node block",
        "Transpose": "node whole",
        "TopK": "node block",
        "Attention": "node whole",
    }
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"two towers", "once a call", "for blocks of candidates", "over the whole list"} <= texts
    assert {"MatMul + Relu", "float32(1, 4)", "float32(N, 4)", "perm=(1, 0)"} <= texts
    assert "prefers-color-scheme:dark" in document


def test_the_same_graph_gives_the_same_text(build: Any) -> None:
    assert draw_svg(two_towers(build())) == draw_svg(two_towers(build()))


def test_what_shows_on_a_node(build: Any) -> None:
    root = ElementTree.fromstring(draw_svg(two_towers(build())))
    (gather,) = [title(group) for group in boxes(root, "node") if title(group).startswith("Gather")]
    name, table, ids, result = re.findall(r"gather\d+|constant\d+|in\d+", gather)[:4]
    assert gather.splitlines() == [
        f"Gather {name}",
        "runs for blocks of candidates",
        f"reads {table}: constant float32(100, 4)",
        f"reads {ids}: int64(N,)",
        f"makes {result}: float32(N, 4)",
        "FLOPs: 0",
        "bytes read: 24*N, written: 16*N",
        "parameters: 400 (1,600 bytes of constants)",
    ]


def test_a_result_that_nobody_reads_has_no_line(build: Any) -> None:
    b = build()
    values, _ = b.nodes("TopK", [b.input("float32", "N", 9)], 2, k=2, axis=1)
    b.input("float32", 3)
    b.output(values)
    root = assert_sound(b.graph, draw_svg(b.finish()))
    assert len(boxes(root, "link")) == len(boxes(root, "label")) == 2
    assert "float32(3,), not read" in {text.text for text in root.iter(f"{SVG}text")}


def test_outputs_that_are_inputs_or_constants(build: Any) -> None:
    b = build()
    x = b.input("float32", "N", 2)
    b.output(x, b.constant(np.ones(3)), x)
    assert_sound(b.graph, draw_svg(b.finish()))


@pytest.mark.parametrize(
    "name", ["<b>&\"'", "]]>", "a\x00\x1b[31m\ud800\uffff\u202e", "表" * 60, "é" * 80, "/very/long/" * 30, " ", ""]
)
def test_any_name_is_text(name: str) -> None:
    shape = (Dim("N"), 3)
    graph = Graph(f"graph {name}", [f"in {name}"], [f"out {name}"])
    for value in (f"in {name}", f"out {name}"):
        graph.values[value] = Value(value, "float32", shape)
    weight = graph.add_constant(f"weight {name}", np.ones(3, np.float32))
    graph.nodes.append(Node("Add", name, (f"in {name}", weight), (f"out {name}",)))
    root = ElementTree.fromstring(draw_svg(graph))
    assert len(boxes(root, "node")) == 1
    for kind in ("input", "node", "output"):
        assert_texts_fit(boxes(root, kind)[0])
    heading = next(text for text in root.iter(f"{SVG}text") if text.get("class") == "heading")
    assert text_width(heading.text or "", 17) <= float(root.get("width", "nan"))


def test_many_constants_and_many_inputs(build: Any) -> None:
    b = build()
    constants = [b.constant(np.full((1, 2), number)) for number in range(9)]
    inputs = [b.input("float32", 1, 2) for _ in range(30)]
    b.output(b.node("Concat", *inputs, *constants, axis=0))
    root = assert_sound(b.graph, draw_svg(b.finish()))
    assert "… 4 more constants" in {text.text for text in root.iter(f"{SVG}text")}
    tips = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("class") == "tip"]
    assert len({tip.split("l")[0] for tip in tips}) == 31  # no two lines arrive at one place


def long_graph(nodes: int, reach: int, seed: int) -> Graph:
    """A chain whose every node also reads one of the last ``reach`` values."""
    generator = random.Random(seed)
    shape, names = (Dim("N"), 8), ["x"]
    graph = Graph("long", ["x"], values={"x": Value("x", "float32", shape)})
    for index in range(nodes):
        names.append(f"v{index}")
        graph.values[names[-1]] = Value(names[-1], "float32", shape)
        other = names[-2 - generator.randrange(min(reach, len(names) - 1))]
        graph.nodes.append(Node("Add", f"n{index}", (names[-2], other), (names[-1],)))
    graph.outputs = [names[-1]]
    return graph


def test_a_value_from_far_above_is_named_by_its_reader() -> None:
    graph = long_graph(40, 1, 0)
    graph.nodes[-1] = Node("Add", "last", ("v38", "v0"), ("v39",))
    root = assert_sound(graph, draw_svg(graph))
    (last,) = [group for group in boxes(root, "node") if title(group).startswith("Add last\n")]
    assert "↑ v0" in {text.text for text in last.iter(f"{SVG}text")}


@pytest.mark.parametrize("reach", [1, 6, 2_000])
def test_two_thousand_nodes(reach: int) -> None:
    graph = long_graph(2_000, reach, reach)
    assert_sound(graph, draw_svg(graph))


def test_two_thousand_nodes_side_by_side(build: Any) -> None:
    b = build()
    x = b.input("float32", "N", 2)
    b.output(b.node("Concat", *(b.node("Relu", x) for _ in range(2_000)), axis=1))
    graph = b.finish()
    assert_sound(graph, draw_svg(graph))


def test_a_graph_that_lies_is_refused(build: Any) -> None:
    graph = two_towers(build())
    name = graph.nodes[0].outputs[0]
    graph.values[name] = Value(name, "float32", (1, 5))
    with pytest.raises(GraphError, match="the graph declares"):
        draw_svg(graph)
