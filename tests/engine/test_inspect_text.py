"""Drawings of graphs in text: rails, wrapping, characters."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.inspect import draw_text
from rerank_engine.inspect.labels import amount_text, array_text, bytes_text, columns, shorten
from rerank_engine.inspect.rails import ASCII, BOXES, Rails

N = Dim("N")


def small() -> Graph:
    """A look-up beside a dense part, and a sum over the list at the end."""
    shapes = {"ids": (N,), "dense": (N, 3), "row": (N, 4), "all": (N, 7), "score": (N, 1), "total": (1, 1)}
    graph = Graph("small", ["ids", "dense"], ["score", "total"])
    for name, shape in shapes.items():
        graph.values[name] = Value(name, "int64" if name == "ids" else "float32", shape)
    table = graph.add_constant("table", np.ones((1000, 4), np.float32))
    weight = graph.add_constant("weight", np.ones((7, 1), np.float32))
    graph.nodes = [
        Node("Gather", "embed", (table, "ids"), ("row",)),
        Node("Concat", "join", ("row", "dense"), ("all",), {"axis": 1}),
        Node("MatMul", "layer", ("all", weight), ("score",), {"activation": "Relu"}),
        Node("ReduceSum", "sum", ("score",), ("total",), {"axes": (0,)}),
    ]
    return graph


def test_a_small_graph() -> None:
    assert draw_text(small(), 90) == (
        "small\n"
        "nodes: 4,  parameters: 4,007,  constants: 16 kB,  FLOPs: 16*N\n"
        "● for blocks of candidates  ■ over the whole list\n"
        "\n"
        "○    input ids      int64(N,)\n"
        "●    Gather         float32(N, 4)  embed  [table float32(1000, 4)]\n"
        "│ ○  input dense    float32(N, 3)\n"
        "●─╯  Concat         float32(N, 7)  join  axis=1\n"
        "●    MatMul + Relu  float32(N, 1)  15*N FLOP  layer  [weight float32(7, 1)]\n"
        "├─◆  output score\n"
        "■    ReduceSum      float32(1, 1)  N FLOP  sum  axes=(0,)\n"
        "◆    output total\n"
    )


def test_a_small_graph_in_ascii_and_wrapped() -> None:
    assert draw_text(small(), 48, ascii_only=True) == (
        "small\n"
        "nodes: 4,  parameters: 4,007,  constants: 16 kB,\n"
        "  FLOPs: 16*N\n"
        "* for blocks of candidates\n"
        "# over the whole list\n"
        "\n"
        "o    input ids      int64(N,)\n"
        "*    Gather         float32(N, 4)  embed\n"
        "|        [table float32(1000, 4)]\n"
        "| o  input dense    float32(N, 3)\n"
        "*-'  Concat         float32(N, 7)  join  axis=1\n"
        "*    MatMul + Relu  float32(N, 1)  15*N FLOP\n"
        "|        layer  [weight float32(7, 1)]\n"
        "|-@  output score\n"
        "#    ReduceSum      float32(1, 1)  N FLOP  sum\n"
        "|        axes=(0,)\n"
        "@    output total\n"
    )


def rails(steps: list[tuple[str, tuple[str, ...], tuple[str, ...]]], most: int = 9) -> list[str]:
    last = {name: index for index, (_, reads, _) in enumerate(steps) for name in reads}
    drawn = Rails(last, most)
    return [
        drawn.add(index, mark, reads, makes).draw(BOXES).rstrip() for index, (mark, reads, makes) in enumerate(steps)
    ]


def test_signs_of_lines_that_start_end_join_and_pass() -> None:
    assert rails(
        [
            ("input", (), ("a",)),
            ("input", (), ("b",)),
            ("input", (), ("c",)),
            ("block", ("a", "c"), ("d",)),  # both go on, b is passed
            ("once", ("a", "b", "c", "d"), ("e",)),
            ("block", ("a",), ("f", "g", "h")),
            ("whole", ("f", "e", "g"), ()),
            ("output", ("h",), ()),
        ]
    ) == [
        "○",
        "│ ○",
        "│ │ ○",
        "├─│─┼─●",
        "├─□─┴─╯",
        "●─│─┬─╮",
        "■─┴─╯ │",
        "      ◆",
    ]


def test_a_value_without_a_rail_is_named() -> None:
    last = {"a": 3, "b": 3, "c": 2}
    drawn = Rails(last, most=2)
    rows = [drawn.add(index, "input", (), (name,)) for index, name in enumerate("abc")]
    assert [row.draw(ASCII) for row in rows][2] == "| | o "
    assert drawn.add(2, "block", ("c",), ()).unseen == ("c",)
    assert drawn.add(3, "block", ("a", "b"), ()).draw(ASCII) == "*-' "


def wide_graph(values: int) -> Graph:
    """Many inputs that all are read at the very end."""
    graph = Graph("wide", [f"x{index}" for index in range(values)], ["y"])
    for name in graph.inputs:
        graph.values[name] = Value(name, "float32", (N, 1))
    graph.values["y"] = Value("y", "float32", (N, values))
    graph.nodes = [Node("Concat", "join", tuple(graph.inputs), ("y",), {"axis": 1})]
    return graph


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, ascii_only: bool) -> None:
    for graph in (small(), wide_graph(90)):
        drawn = draw_text(graph, width, ascii_only=ascii_only)
        assert all(columns(line) <= width and line == line.rstrip() for line in drawn.splitlines())
        assert drawn.isascii() or not ascii_only


def test_values_without_a_rail_are_named_by_their_reader() -> None:
    drawn = draw_text(wide_graph(90), 80)
    assert "(reads x89)" in drawn
    assert "(reads x0)" not in drawn


def test_a_narrow_terminal_counts_as_forty_columns() -> None:
    assert draw_text(small(), 1) == draw_text(small(), 40)


def test_an_input_that_nobody_reads_is_told() -> None:
    graph = small()
    graph.inputs.append("spare")
    graph.values["spare"] = Value("spare", "float32", (N, 2))
    assert "○    input spare    float32(N, 2)  not read\n" in draw_text(graph, 90)


def test_outputs_that_are_inputs_or_constants() -> None:
    graph = small()
    graph.outputs = ["dense", "table", "dense"]
    lines = [line.strip() for line in draw_text(graph, 90).splitlines()]
    assert sum("output dense" in line for line in lines) == 2
    assert sum("output table" in line and "float32(1000, 4)" in line for line in lines) == 1


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "表" * 60, "/long/" * 60, "", "\ud800", "\u202e"])
def test_any_name_is_one_text(name: str) -> None:
    graph = small()
    graph.nodes[1] = Node("Concat", name, ("row", "dense"), ("all",), {"axis": 1})
    graph.name = name
    drawn = draw_text(graph, 60)
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert all(columns(line) <= 60 for line in drawn.splitlines())
    drawn.encode()
    assert draw_text(graph, 60, ascii_only=True).isascii()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(40, 120))
def test_every_node_has_its_line(seed: int, nodes: int, width: int) -> None:
    generator = random.Random(seed)
    names = ["x"]
    graph = Graph("g", ["x"], values={"x": Value("x", "float32", (N, 2))})
    for index in range(nodes):
        reads = (generator.choice(names), generator.choice(names))
        names.append(f"v{index}")
        graph.values[names[-1]] = Value(names[-1], "float32", (N, 2))
        graph.nodes.append(Node("Add", f"n{index}", reads, (names[-1],)))
    graph.outputs = [names[-1]]
    lines = draw_text(graph, width).splitlines()
    assert sum("●" in line and "Add" in line for line in lines) == nodes
    assert all(columns(line) <= width for line in lines)


def test_two_thousand_nodes() -> None:
    graph = Graph("chain", ["v0"], ["v2000"], values={"v0": Value("v0", "float32", (N, 2))})
    for index in range(2_000):
        graph.values[f"v{index + 1}"] = Value(f"v{index + 1}", "float32", (N, 2))
        graph.nodes.append(Node("Relu", f"n{index}", (f"v{index}",), (f"v{index + 1}",)))
    assert len(draw_text(graph).splitlines()) == 4 + 2_002


# --- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "whole", "short"),
    [
        (0, "0", "0"),
        (999, "999", "999"),
        (1000, "1,000", "1k"),
        (999_949, "999,949", "1,000k"),
        (123_456_789, "123,456,789", "123M"),
        (1234 * 10**16, "12,340,000,000,000,000,000", "1.23e19"),
        (Dim("N"), "N", "N"),
        (Dim("N", 1500) - 2000, "1,500*N - 2,000", "1.5k*N - 2k"),
        (Dim("N") * Dim("T") * 3 + Dim("N"), "3*N*T + N", "3*N*T + N"),
        (7 - Dim("N"), "-N + 7", "-N + 7"),
    ],
)
def test_amounts(amount: Any, whole: str, short: str) -> None:
    assert (amount_text(amount), amount_text(amount, short=True)) == (whole, short)


def test_bytes_and_arrays() -> None:
    assert [bytes_text(amount) for amount in (0, 64, 12_345, 3 * 10**9)] == ["0 B", "64 B", "12.3 kB", "3 GB"]
    assert array_text(np.array([[1.0]], np.float32)) == "float32(1, 1)"
    assert array_text(np.array([True])) == "True"
    assert array_text(np.zeros((0, 2), np.int64)) == "int64(0, 2)"


@given(st.text(max_size=40), st.integers(6, 30))
def test_shortened_texts_fit(text: str, most: int) -> None:
    short = shorten(text, most)
    assert columns(short) <= most
    assert short == text or "…" in short
