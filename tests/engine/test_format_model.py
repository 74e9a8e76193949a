"""The model as the user holds it."""

from pathlib import Path

import numpy as np
import pytest

from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.format import content_hash
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model


def two_layers() -> Model:
    graph = Graph("towers", inputs=["id", "x"], outputs=["y"])
    for name, dtype, shape in [
        ("id", "int64", (Dim("N"),)),
        ("x", "float32", (Dim("N"), 4)),
        ("e", "float32", (Dim("N"), 4)),
        ("h", "float32", (Dim("N"), 4)),
        ("y", "float32", (Dim("N"), 4)),
    ]:
        graph.values[name] = Value(name, dtype, shape)
    graph.add_constant("table", np.ones((1000, 4), np.float32))
    graph.add_constant("w", np.ones((4, 4), np.float32))
    graph.add_constant("axes", np.array([1, 2], np.int64))
    graph.nodes = [
        Node("Gather", "embed", ("table", "id"), ("e",)),
        Node("MatMul", "first", ("e", "w"), ("h",)),
        Node("MatMul", "second", ("h", "w"), ("y",)),
    ]
    return Model(graph)


def test_save_and_read(tmp_path: Path) -> None:
    model = two_layers()
    stated = model.save(tmp_path / "towers.rrm")
    back = Model.read(tmp_path / "towers.rrm")
    assert stated == model.content_hash == back.content_hash == content_hash(tmp_path / "towers.rrm")
    assert [str(value) for value in back.inputs] == ["id: int64(N,)", "x: float32(N, 4)"]
    assert [value.name for value in back.outputs] == ["y"]
    assert repr(back) == repr(model)
    assert back.name == "towers"


def test_the_hash_follows_the_graph() -> None:
    model = two_layers()
    before = model.content_hash
    model.graph.constants["w"] = np.zeros((4, 4), np.float32)
    assert model.content_hash != before


def test_summary_counts_each_constant_once() -> None:
    lines = two_layers().summary().splitlines()
    assert lines[:4] == [
        "model    towers",
        "input    id: int64(N,)",
        "input    x: float32(N, 4)",
        "output   y: float32(N, 4)",
    ]
    assert [line.split() for line in lines[5:]] == [
        ["operator", "nodes", "parameters", "bytes"],
        ["Gather", "1", "4,000", "16,000"],
        ["MatMul", "2", "16", "64"],
        ["(no", "node)", "0", "0", "16"],
        ["total", "3", "4,016", "16,080"],
    ]
    assert len({len(line) for line in lines[5:]}) == 1


def test_repr_shortens_many_inputs() -> None:
    graph = Graph("wide", inputs=list("abcd"), outputs=["a"])
    for name in "abcd":
        graph.values[name] = Value(name, "float32", (Dim("N"),))
    assert repr(Model(graph)) == ("Model('wide': a: float32(N,), … 3 more -> a: float32(N,); nodes: 0, parameters: 0)")


def test_errors_are_ours(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no_such"):
        Model.read(tmp_path / "no_such.rrm")
    with pytest.raises(GraphError):
        Model(Graph("nothing")).save(tmp_path / "nothing.rrm")
    assert list(tmp_path.iterdir()) == []
