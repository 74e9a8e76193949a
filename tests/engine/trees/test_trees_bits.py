"""Trees as tables of bits: every node asked for many rows at once finds the leaf that a walk finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine.codegen.target import host_architecture, named_target
from rerank_engine.graph import Graph
from rerank_engine.importers.trees.graph import ensemble_graph
from rerank_engine.importers.trees.model import LESS, LESS_EQUAL, Ensemble, Tree, one_leaf_each
from rerank_engine.reference import evaluate
from rerank_engine.tree_tables import MOST_LEAVES, SEPARATOR, UNROLL, TreeTables, tables_of_constants

Array = NDArray[Any]

THRESHOLDS = [0.0, -0.0, 1e-40, 1e-35, -1e-35, 0.1, 0.5, -0.5, 1.0, 3.0, 1e30, np.inf, -np.inf]
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 65, 200)


def grown(random: np.random.Generator, splits: int, shape: str, features: int, target: int) -> Tree:
    """A tree of ``splits + 1`` leaves: of random shape, or a chain to one side."""
    yes, no = np.zeros(splits, np.int64), np.zeros(splits, np.int64)
    free: list[tuple[int, int]] = []
    for split in range(splits):
        if split:
            at = {"random": int(random.integers(len(free))), "yes": -2, "no": -1}[shape]
            parent, side = free.pop(at)
            (yes, no)[side][parent] = split
        free += [(split, 0), (split, 1)]
    for leaf, (parent, side) in enumerate(free):
        (yes, no)[side][parent] = ~leaf
    return Tree(
        random.integers(0, features, splits),
        random.choice([LESS, LESS_EQUAL], splits),
        np.where(random.random(splits) < 0.5, random.choice(THRESHOLDS, splits), random.normal(size=splits)),
        random.random(splits) < 0.5,
        yes,
        no,
        *one_leaf_each(random.normal(size=splits + 1), target),
    )


def forest(
    splits: list[int],
    *,
    seed: int = 0,
    shape: str = "random",
    features: int = 7,
    outputs: int = 1,
    sums: str = "float64",
    aggregate: str = "SUM",
) -> Ensemble:
    random = np.random.default_rng(seed)
    trees = tuple(grown(random, count, shape, features, outputs - 1) for count in splits)
    divisor = float(len(splits)) if aggregate == "AVERAGE" else 1.0
    return Ensemble("forest", features, trees, random.normal(size=outputs).astype(sums), aggregate, divisor)


def tables_of(graph: Graph) -> TreeTables | None:
    (node,) = (node for node in graph.nodes if node.op == "TreeEnsemble")
    return tables_of_constants(graph.constants, SEPARATOR.join(node.inputs[1:]))


def assert_same_bits(tools: Any, graph: Graph, rows: Callable[..., Array], features: int, **compiled: Any) -> None:
    code = tools.Compiled(graph, **compiled)
    (name,) = graph.inputs
    for count in ROWS:
        x = rows(count, features, seed=count).astype(graph.values[name].dtype)
        for output, want in evaluate(graph, {name: x}).items():
            assert code({name: x})[output].tobytes() == want.tobytes(), f"{count} rows"


@pytest.mark.parametrize("shape", ["random", "yes", "no"])
@pytest.mark.parametrize("most", [1, 30, 31, 32, 63])
@pytest.mark.parametrize(("features_dtype", "sums"), [("float32", "float64"), ("float64", "float32")])
def test_the_bits_of_the_reference(
    tools: Any, rows: Callable[..., Array], features_dtype: str, sums: str, most: int, shape: str
) -> None:
    random = np.random.default_rng(most)
    ensemble = forest([most, *random.integers(0, most + 1, 12).tolist()], seed=most, shape=shape, sums=sums)
    graph = ensemble_graph(ensemble, features_dtype=features_dtype)
    tables = tables_of(graph)
    assert tables is not None
    assert tables.nodes.dtype == (np.int32 if most <= 31 and features_dtype == "float32" else np.int64)
    assert_same_bits(tools, graph, rows, 7)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_aggregates_and_outputs(tools: Any, rows: Callable[..., Array], aggregate: str, outputs: int) -> None:
    graph = ensemble_graph(forest([9, 0, 20, 3], aggregate=aggregate, outputs=outputs))
    assert tables_of(graph) is not None
    assert_same_bits(tools, graph, rows, 7)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "aarch64"])
def test_narrower_vectors(tools: Any, rows: Callable[..., Array], cpu: str) -> None:
    graph = ensemble_graph(forest([31, 12, 40]))
    target = named_target(cpu)
    if target.architecture == host_architecture():
        assert_same_bits(tools, graph, rows, 7, target=target)
    else:
        from rerank_engine.codegen.compile import compile_graph

        assert len(compile_graph(graph, target).code) > 100


def test_more_columns_than_are_asked_for(tools: Any, rows: Callable[..., Array]) -> None:
    graph = ensemble_graph(forest([5, 6], features=300))
    tables = tables_of(graph)
    assert tables is not None
    assert len(tables.features) <= 11
    assert_same_bits(tools, graph, rows, 300)


def test_what_has_no_tables_is_walked(tools: Any, rows: Callable[..., Array]) -> None:
    large = ensemble_graph(forest([2 * MOST_LEAVES, 3]))
    assert tables_of(large) is None
    assert_same_bits(tools, large, rows, 7)
    random = np.random.default_rng(0)
    trees = tuple(grown(random, 4, "random", 7, target) for target in (0, 1))
    several = ensemble_graph(Ensemble("several", 7, trees, np.zeros(2)))
    assert_same_bits(tools, several, rows, 7)


def test_masks_leave_the_leaves_beyond_the_yes_branch() -> None:
    """x0 <= 0 ? (x1 <= 0 ? a : b) : c"""
    tree = Tree(
        np.array([0, 1]),
        np.array([LESS_EQUAL] * 2),
        np.zeros(2),
        np.zeros(2, bool),
        np.array([1, ~0]),
        np.array([~2, ~1]),
        *one_leaf_each(np.array([10.0, 20.0, 30.0]), 0),
    )
    tables = tables_of(ensemble_graph(Ensemble("three", 2, (tree,), np.zeros(1))))
    assert tables is not None
    assert tables.weights.tolist() == [10.0, 20.0, 30.0]
    assert tables.nodes[:2, 3].tolist() == [~0b011, ~0b001]
    assert tables.trees.tolist() == [[0, UNROLL, 0]]
    # The rest of a full step says yes to everything.
    assert (tables.nodes[2:, 2] == -1).all()


def test_sections_do_not_overlap() -> None:
    tables = tables_of(ensemble_graph(forest([30, 2, 17])))
    assert tables is not None
    flat, offsets = tables.as_bytes(), tables.offsets()
    for offset, section in zip(offsets, tables.sections(), strict=True):
        assert offset % 64 == 0
        found = flat[offset : offset + section.nbytes].view(section.dtype).reshape(section.shape)
        np.testing.assert_array_equal(found, section)
