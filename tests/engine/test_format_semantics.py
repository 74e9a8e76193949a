"""What inputs mean: how many ids they may hold, read off the graph, stored in the file and checked there."""

from __future__ import annotations

import numpy as np
import pytest

from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.format import model_bytes, read_model
from rerank_engine.graph import Dim, Graph, Node, Shape, Value
from rerank_engine.semantics import input_vocabulary

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


def test_the_unknown_row_travels_in_the_file() -> None:
    graph = embedding()
    graph.unknown_rows["item"] = 9
    assert read_model(model_bytes(graph)).unknown_rows == {"item": 9}
    graph.unknown_rows["item"] = 10
    with pytest.raises(GraphError, match="row 10 of 'item', which has 10 rows"):
        model_bytes(graph)


def test_a_stored_vocabulary_must_be_that_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model_bytes(embedding())
    assert model_bytes(read_model(data)) == data
    monkeypatch.setattr("rerank_engine.format.decoder.input_vocabulary", lambda graph: {"item": 11})
    with pytest.raises(ModelFileError, match=r"inputs\[0\].vocabulary: 10 of 'item', its tables have 11 rows"):
        read_model(data)
