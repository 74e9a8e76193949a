"""What inputs mean: how many ids they may hold, read off the graph, stored in the file and checked there."""

from __future__ import annotations

import numpy as np
import pytest

from rerank_engine import semantics
from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.format import model_bytes, read_model
from rerank_engine.graph import Dim, Graph, Node, Shape, Value
from rerank_engine.ops import OPERATORS
from rerank_engine.semantics import Ids, input_ids, input_vocabulary

N = Dim("N")


def embedding(*moves: Node, ids: str = "item", rows: int = 10, dtype: str = "int64") -> Graph:
    """A table of ``rows`` rows, looked up by what the nodes make of the input ``item``."""
    graph = Graph("embedding", inputs=["item"], outputs=["row"])
    graph.values["item"] = Value("item", dtype, (N,))
    for node in moves:
        for name in node.outputs:
            graph.values[name] = Value(name, "int64", (N,))
    graph.values["row"] = Value("row", "float32", (N, 2))
    table = graph.add_constant("table", np.zeros((rows, 2), np.float32))
    graph.add_constant("other", np.zeros(3, np.int64))
    graph.nodes = [*moves, Node("Gather", "embed", (table, ids), ("row",))]
    return graph


def test_an_input_that_is_looked_up_holds_ids() -> None:
    assert input_vocabulary(embedding()) == {"item": 10}
    assert input_vocabulary(embedding(rows=0)) == {"item": 0}


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Cast", ("item",)),
        ("Reshape", ("item",)),
        ("Identity", ("item",)),
        ("Transpose", ("item",)),
        ("Expand", ("item",)),
        ("Slice", ("item",)),
        ("Concat", ("other", "item")),
        ("Where", ("other", "item", "other")),
        ("Where", ("other", "other", "item")),
        ("Gather", ("item", "other")),
    ],
)
def test_ids_are_followed_through_what_moves_them(op: str, inputs: tuple[str, ...]) -> None:
    moved = Node(op, "move", inputs, ("moved",))
    assert input_vocabulary(embedding(moved, ids="moved")) == {"item": 10}
    again = Node("Identity", "again", ("moved",), ("twice",))
    assert input_vocabulary(embedding(moved, again, ids="twice")) == {"item": 10}


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Add", ("item", "other")),
        ("Clip", ("item",)),
        ("Max", ("item", "other")),
        ("Where", ("item", "other", "other")),
    ],
)
def test_what_makes_other_numbers_ends_the_trace(op: str, inputs: tuple[str, ...]) -> None:
    assert input_vocabulary(embedding(Node(op, "change", inputs, ("made",)), ids="made")) == {}


def test_only_operators_that_exist_are_named() -> None:
    assert set(semantics._MOVES) | set(semantics._LOOK_UPS) <= set(OPERATORS)


def test_floats_are_no_ids() -> None:
    cast = Node("Cast", "cast", ("item",), ("moved",), {"to": "int64"})
    assert input_vocabulary(embedding(cast, ids="moved", dtype="float32")) == {}


def test_the_smallest_table_counts() -> None:
    for small_last in (True, False):
        graph = embedding()
        small = graph.add_constant("small", np.zeros((4, 2), np.float32))
        graph.values["second"] = Value("second", "float32", (N, 2))
        graph.nodes.insert(small_last, Node("Gather", "second", (small, "item"), ("second",)))
        assert input_vocabulary(graph) == {"item": 4}


@pytest.mark.parametrize(
    ("shape", "axis", "rows"), [((5, 7), 1, 7), ((5, 7), -1, 7), ((N, 7), 0, None), ((5,), 3, None), ((), 0, None)]
)
def test_tables_by_their_axis(shape: Shape, axis: int, rows: int | None) -> None:
    graph = embedding()
    graph.values["table"] = Value("table", "float32", shape)
    graph.nodes[0] = Node("Gather", "embed", ("table", "item"), ("row",), {"axis": axis})
    assert input_vocabulary(graph) == ({} if rows is None else {"item": rows})


def test_nodes_that_are_no_look_up_at_all() -> None:
    graph = embedding()
    graph.nodes[0] = Node("Gather", "embed", ("table",), ("row",))
    assert input_vocabulary(graph) == {}
    graph.nodes[0] = Node("Gather", "embed", ("table", "item"), ("row",), {"axis": "0"})
    assert input_vocabulary(graph) == {}


def with_unknown_rows(first: int, second: int, declared: int | None) -> Graph:
    """Two tables behind one input, each with its unknown row (-1: none)."""
    graph = embedding(rows=10)
    small = graph.add_constant("small", np.zeros((4, 2), np.float32))
    graph.values["second"] = Value("second", "float32", (N, 2))
    graph.nodes = [
        Node("Gather", "first", ("table", "item"), ("row",), {"unknown_row": first}),
        Node("Gather", "second", (small, "item"), ("second",), {"unknown_row": second}),
    ]
    if declared is not None:
        graph.unknown_rows["item"] = declared
    return graph


@pytest.mark.parametrize("row", [0, 3])
def test_the_unknown_row_travels_in_the_file(row: int) -> None:
    graph = with_unknown_rows(row, row, row)
    assert input_ids(graph) == {"item": Ids(4, row)}
    data = model_bytes(graph)
    assert read_model(data).unknown_rows == {"item": row}
    assert model_bytes(read_model(data)) == data


@pytest.mark.parametrize(
    ("first", "second", "declared", "problem"),
    [
        (3, 3, None, "'item' declares no unknown row, its tables have unknown row 3"),
        (-1, -1, 3, "'item' declares unknown row 3, its tables have no unknown row"),
        (3, 3, 2, "declares unknown row 2, its tables have unknown row 3"),
        (3, 2, 3, "its tables do not agree on one"),
        (3, -1, 3, "its tables do not agree on one"),
        (3, -1, None, "its tables do not agree on one"),
    ],
)
def test_what_is_declared_is_what_the_tables_do(first: int, second: int, declared: int | None, problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        model_bytes(with_unknown_rows(first, second, declared))


def test_a_stored_vocabulary_must_be_that_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model_bytes(embedding())
    assert model_bytes(read_model(data)) == data
    monkeypatch.setattr("rerank_engine.format.decoder.input_ids", lambda graph: {"item": Ids(11, None)})
    with pytest.raises(ModelFileError, match=r"inputs\[0\].vocabulary: 10 of 'item', by its tables 11"):
        read_model(data)
