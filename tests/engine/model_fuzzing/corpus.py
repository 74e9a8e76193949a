"""Small models whose files use every part of the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Dim, Graph, Node, Sample, Shape, Value
from rerank_engine.ops import lookup
from rerank_engine.reference import evaluate

_N, _T = Dim("N"), Dim("T")


class _Builder:
    """A graph, one call a node; operators infer the shapes."""

    def __init__(self, name: str, **facts: Any) -> None:
        self.graph = Graph(name, **facts)
        self.random = np.random.default_rng(len(name))

    def input(self, name: str, dtype: str, *shape: int | Dim) -> str:
        self.graph.values[name] = Value(name, dtype, shape)
        self.graph.inputs.append(name)
        return name

    def weights(self, name: str, *shape: int) -> str:
        return self.graph.add_constant(name, self.random.normal(size=shape).astype(np.float32))

    def constant(self, name: str, entries: Any, dtype: str) -> str:
        return self.graph.add_constant(name, np.array(entries, DTYPES[dtype]))

    def nodes(self, op: str, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        name = f"{op.lower()}_{len(self.graph.nodes)}"
        bare = Node(op, name, inputs, (), attributes)
        made = lookup(bare).infer(bare, [self.graph.values[entry] for entry in inputs])
        outputs = tuple(f"{name}.{i}" if i else name for i in range(len(made)))
        for output, (dtype, shape) in zip(outputs, made, strict=True):
            self.graph.values[output] = Value(output, dtype, shape)
        self.graph.nodes.append(replace(bare, outputs=outputs))
        return outputs

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.nodes(op, *inputs, **attributes)
        return name

    def finish(self, outputs: Sequence[str], sample: bool = True) -> Graph:
        self.graph.outputs = list(outputs)
        if sample:
            inputs = feeds(self.graph)
            self.graph.sample = Sample(inputs, evaluate(self.graph, inputs))
        return self.graph


def feeds(graph: Graph, size: int = 3) -> dict[str, NDArray[Any]]:
    """Arrays for every input, with ids 0 to 2; each named dimension has the given size, or less where it must."""
    random = np.random.default_rng(7)
    arrays = {}
    for name in graph.inputs:
        value = graph.values[name]
        sizes = {known: min(size, graph.maxima.get(known, size)) for known in names_of(value.shape)}
        shape = tuple(dim.evaluate(sizes) if isinstance(dim, Dim) else dim for dim in value.shape)
        if value.dtype.startswith("float"):
            arrays[name] = random.normal(size=shape).astype(DTYPES[value.dtype])
        else:
            arrays[name] = random.integers(0, 3, size=shape).astype(DTYPES[value.dtype])
    return arrays


def names_of(shape: Shape) -> set[str]:
    """Names in a shape."""
    return {name for dim in shape if isinstance(dim, Dim) for name in dim.names}


def perceptron() -> Graph:
    """Two layers, with metadata, a largest size and a sample."""
    build = _Builder("perceptron", metadata={"source": "test", "opset": "17"}, maxima={"N": 1000})
    x = build.input("x", "float32", _N, 4)
    hidden = build.node("MatMul", x, build.weights("w1", 4, 5), build.weights("b1", 5), activation="Relu")
    return build.finish([build.node("MatMul", hidden, build.weights("w2", 5, 1))])


def towers() -> Graph:
    """Embeddings by two kinds of ids, one of them with an unknown row, joined with dense features."""
    build = _Builder("towers", unknown_rows={"item": 6})
    item, user = build.input("item", "int64", _N), build.input("user", "int32", 1)
    dense = build.input("dense", "float32", _N, 3)
    rows = build.node("Gather", build.weights("items", 7, 4), item, unknown_row=6)
    ids = build.node("Cast", build.node("Reshape", user, shape=(1,)), to="int64")
    person = build.node("Gather", build.weights("users", 5, 4), ids)
    joined = build.node("Concat", build.node("Mul", rows, person), dense, axis=1)
    logits = build.node("MatMul", joined, build.weights("w", 7, 2))
    clipped = build.node("Clip", logits, low=-2.0, high=3.0)
    return build.finish([build.node("Sigmoid", clipped), joined])


def history() -> Graph:
    """Two named dimensions: each candidate's attention over a list of events."""
    build = _Builder("history", maxima={"N": 500, "T": 50})
    item, events = build.input("item", "float32", _N, 4), build.input("events", "float32", _T, 4)
    mask = build.input("mask", "bool", _T)
    logits = build.node("MatMul", item, build.node("Transpose", events, perm=(1, 0)))
    low = build.constant("low", -1e4, "float32")
    weights = build.node("Softmax", build.node("Where", mask, logits, low), axis=1)
    sums = build.node("ReduceSum", build.node("Mul", weights, logits), axes=(1,), keepdims=0)
    return build.finish([sums, build.node("Reshape", weights, shape=("N", "T", "1"))])


def token() -> Graph:
    """A sum as a dimension: a row is put in front of the list."""
    build = _Builder("token")
    rows = build.input("rows", "float32", _N, 2)
    joined = build.node("Concat", build.weights("start", 1, 2), rows, axis=0)
    longer = build.node("Slice", joined, axis=1, start=0, stop=1)
    return build.finish([build.node("ReduceMax", joined, axes=(1,), keepdims=1), build.node("Tanh", longer)])


def selection() -> Graph:
    """Positions that are computed: the best of each row, and what stands there."""
    build = _Builder("selection")
    scores, places = build.input("scores", "float32", _N, 5), build.input("places", "int64", _N, 2)
    best, where = build.nodes("TopK", scores, k=2, axis=1)
    picked = build.node("GatherElements", scores, build.node("Add", where, build.constant("none", 0, "int64")), axis=1)
    written = build.node("ScatterElements", scores, places, best, axis=1, reduction="add")
    pairs = build.node("Reshape", places, shape=("N", "1", "2"))
    found = build.node("GatherND", build.weights("grid", 3, 3), pairs)
    running = build.node("CumSum", written, axis=1)
    first = build.node("ArgMax", build.node("LogSoftmax", running), axis=1)
    return build.finish([picked, found, first])


def bags() -> Graph:
    """Rows in bags, and a recurrent layer over the bags."""
    build = _Builder("bags")
    rows = build.node("Gather", build.weights("table", 6, 4), build.input("ids", "int64", _T))
    pooled = build.node("BagReduce", rows, build.constant("offsets", [0, 2, 2, 3], "int32"), mode="mean")
    steps = build.node("Reshape", pooled, shape=(1, 3, 4))
    projected = build.node("MatMul", steps, build.weights("project", 4, 6))
    recurrent = build.weights("gates", 2, 4), build.weights("new", 2, 2), build.weights("bias", 2)
    states, _ = build.nodes("GRU", projected, *recurrent, build.weights("start", 1, 2))
    return build.finish([states, pooled])


def forest() -> Graph:
    """Two trees with two leaves each."""
    build = _Builder("forest")
    features = build.input("features", "float32", _N, 3)
    arrays: list[tuple[str, Any, str]] = [
        ("tree_start", [0, 1, 2], "int32"),
        ("nodes", [[0, 0, -1, -2], [2, 0, -3, -4]], "int32"),
        ("ranges", [[-(2**30), 2**30], [0, 2**30]], "int32"),
        ("bitsets", [0], "int32"),
        ("leaf_start", [0, 1, 2, 3, 4], "int32"),
        ("leaf_target", [0, 0, 0, 0], "int32"),
        ("leaf_weight", [0.5, -1.0, 2.0, 0.25], "float32"),
        ("base", [0.125], "float32"),
    ]
    inputs = [build.constant(*array) for array in arrays]
    return build.finish([build.node("TreeEnsemble", features, *inputs, features=3)])


def constants() -> Graph:
    """Every dtype, empty and scalar arrays; no node and no sample."""
    build = _Builder("constants", metadata={"é": "ü", "empty": ""})
    names = [build.constant(dtype, [[0, 1], [1, 0]], dtype) for dtype in DTYPES]
    names += [build.constant("scalar", 2.5, "float32"), build.constant("none", np.empty((3, 0)), "int16")]
    x = build.input("x", "int64", _N, 1)
    return build.finish([*names, x], sample=False)


CORPUS = (perceptron, towers, history, token, selection, bags, forest, constants)
