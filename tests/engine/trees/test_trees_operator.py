"""TreeEnsemble against a walk in plain Python, compiled code against both, and arrays from hostile files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rerank_engine.errors import GraphError, UnsupportedOperatorError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.importers.trees.arrays import ensemble_arrays
from rerank_engine.importers.trees.graph import ensemble_graph
from rerank_engine.importers.trees.model import (
    CATEGORY,
    EQUAL,
    LESS,
    LESS_EQUAL,
    VALUE,
    ZERO_YES,
    Ensemble,
    Tree,
)
from rerank_engine.ops import check_nodes
from rerank_engine.ops.trees import INPUT_NAMES, EnsembleArrays, find_problem, order_keys
from rerank_engine.reference import evaluate

Array = NDArray[Any]

THRESHOLDS = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1e-35, -1e-35, 0.1, 0.5, -0.5, 1.0, 3.0, 1e30, -1e30, 1e300, -1e300]
THRESHOLDS += [math.inf, -math.inf, float(np.float32(0.1)), 16777217.0, 3.4028234663852886e38]


def random_tree(random: np.random.Generator, features: int, outputs: int, linear: bool) -> Tree:
    """A tree of up to 30 splits that asks every kind of question."""
    splits = int(random.integers(0, 30))
    free, yes, no = [], np.zeros(splits, np.int64), np.zeros(splits, np.int64)
    ways = [yes, no]
    for split in range(1, splits):
        free += [(split - 1, 0), (split - 1, 1)]
        parent, side = free.pop(int(random.integers(len(free))))
        ways[side][parent] = split
    if splits:
        free += [(splits - 1, 0), (splits - 1, 1)]
    for leaf, (parent, side) in enumerate(free):
        ways[side][parent] = ~leaf
    leaves = splits + 1
    question = random.choice([LESS_EQUAL, LESS_EQUAL, LESS, EQUAL, CATEGORY, VALUE], splits)
    members = {
        int(at): random.choice(64, int(random.integers(0, 12)), replace=False)
        if question[at] == CATEGORY
        else random.choice(THRESHOLDS[:17], 3)
        for at in range(splits)
        if question[at] in (CATEGORY, VALUE)
    }
    if splits and question[0] == CATEGORY:
        members[0] = np.array([3, 4, 5, 1000000, 2**24 + 2])  # too sparse for a set of bits
    sizes = np.ones(leaves, np.int64) if linear else random.integers(0, outputs + 1, leaves)
    target = np.concatenate([random.choice(outputs, size, replace=False) for size in sizes])
    terms = random.integers(0, 3, leaves)
    return Tree(
        feature=random.integers(0, features, splits),
        question=question,
        threshold=np.where(random.random(splits) < 0.7, random.choice(THRESHOLDS, splits), random.normal(size=splits)),
        missing_yes=random.random(splits) < 0.5,
        yes=yes,
        no=no,
        leaf_start=np.concatenate([[0], np.cumsum(sizes)]),
        leaf_target=target,
        leaf_weight=random.normal(size=int(sizes.sum())),
        zero=random.integers(0, 3, splits),
        members=members,
        linear_start=np.concatenate([[0], np.cumsum(terms)]) if linear else None,
        linear_feature=random.integers(0, features, int(terms.sum())) if linear else None,
        linear_coefficient=random.normal(size=int(terms.sum())) if linear else None,
        linear_constant=random.normal(size=leaves) if linear else None,
    )


def random_ensemble(seed: int, linear: bool = False, dtype: str = "float64") -> Ensemble:
    random = np.random.default_rng(seed)
    features, outputs = int(random.integers(1, 6)), int(random.integers(1, 4))
    trees = tuple(random_tree(random, features, outputs, linear) for _ in range(int(random.integers(0, 11))))
    aggregate = "SUM" if linear else str(random.choice(["SUM", "AVERAGE", "MIN", "MAX"]))
    return Ensemble(
        name="random",
        features=features,
        trees=trees,
        base=random.normal(size=outputs).astype(dtype),
        aggregate=aggregate,
        divisor=3.0 if aggregate == "AVERAGE" else 1.0,
        zero_threshold=float(np.float32(1e-35)) if random.random() < 0.5 else 0.0,
        fraction_is_category_zero=bool(random.random() < 0.5),
    )


def answer(ensemble: Ensemble, tree: Tree, at: int, x: float) -> bool:
    """What a split says of one number, as the description defines it."""
    question, threshold = int(tree.question[at]), float(tree.threshold[at])
    if math.isnan(x):
        return bool(tree.missing_yes[at])
    if question in (LESS_EQUAL, LESS):
        assert tree.zero is not None
        if tree.zero[at] and abs(x) <= ensemble.zero_threshold:
            return bool(tree.zero[at] == ZERO_YES)
        return x <= threshold if question == LESS_EQUAL else x < threshold
    if question == CATEGORY:
        if math.isinf(x) or x <= -1 or (x < 0 and not ensemble.fraction_is_category_zero):
            return False
        return math.trunc(x) in tree.members[at].tolist()
    return x in tree.members[at].tolist() if question == VALUE else x == threshold


def walk(ensemble: Ensemble, row: list[float]) -> list[float]:
    """The result for one row in plain Python floats."""
    start = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": math.inf, "MAX": -math.inf}[ensemble.aggregate]
    base = ensemble.base.tolist()
    totals = base[:] if ensemble.aggregate == "SUM" else [start] * len(base)
    for tree in ensemble.trees:
        at = 0 if len(tree.feature) else -1
        while at >= 0:
            at = int((tree.yes if answer(ensemble, tree, at, row[tree.feature[at]]) else tree.no)[at])
        for entry in range(tree.leaf_start[~at], tree.leaf_start[~at + 1]):
            target, weight = tree.leaf_target[entry], float(tree.leaf_weight[entry])
            if tree.linear_start is not None:
                weight = linear(ensemble, tree, ~at, row, weight)
            known = totals[target]
            totals[target] = {"MIN": min, "MAX": max}.get(ensemble.aggregate, float.__add__)(known, weight)
    if ensemble.aggregate == "SUM":
        return totals
    if ensemble.aggregate == "AVERAGE":
        return [total / ensemble.divisor + b for total, b in zip(totals, base, strict=True)]
    return [(0.0 if math.isinf(total) else total) + b for total, b in zip(totals, base, strict=True)]


def linear(ensemble: Ensemble, tree: Tree, leaf: int, row: list[float], weight: float) -> float:
    assert tree.linear_start is not None
    assert tree.linear_feature is not None
    assert tree.linear_coefficient is not None
    assert tree.linear_constant is not None
    terms = range(tree.linear_start[leaf], tree.linear_start[leaf + 1])
    values = [row[tree.linear_feature[term]] for term in terms]
    if any(math.isnan(value) for value in values):
        return weight
    values = [0.0 if abs(value) <= ensemble.zero_threshold else value for value in values]
    total = float(tree.linear_constant[leaf])
    for term, value in zip(terms, values, strict=True):
        total += float(tree.linear_coefficient[term]) * value
    return total


def near_thresholds(dtype: str, columns: int, seed: int) -> Array:
    """Every threshold, its neighbours, categories and odd values, in rows."""
    values = [*THRESHOLDS, *range(-2, 66), -0.5, 2.5, 2**24 + 2, 1e6, 1e20, np.nan]
    with np.errstate(over="ignore"):
        exact = np.array(values, np.float64).astype(dtype)
        sides = [np.nextafter(exact, np.array(end, dtype)) for end in (-np.inf, np.inf)]
    pool = np.concatenate([exact, *sides])
    return np.random.default_rng(seed).choice(pool, (60, columns)).astype(dtype)


@pytest.mark.parametrize("features_dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(20))
def test_reference_and_plain_python_agree_exactly(seed: int, features_dtype: str) -> None:
    ensemble = random_ensemble(seed)
    feeds = {"features": near_thresholds(features_dtype, ensemble.features, seed)}
    found = evaluate(ensemble_graph(ensemble, features_dtype=features_dtype), feeds)["score"]
    expected = np.array([walk(ensemble, row) for row in feeds["features"].astype(float).tolist()])
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("features_dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(8))
def test_compiled_code_gives_the_bits_of_the_reference(tools: Any, seed: int, features_dtype: str) -> None:
    ensemble = random_ensemble(100 + seed, linear=seed % 4 == 0)
    graph = ensemble_graph(ensemble, features_dtype=features_dtype)
    compiled = tools.Compiled(graph)
    for count in (0, 1, 7, 60):
        feeds = {"features": near_thresholds(features_dtype, ensemble.features, seed)[:count]}
        actual, expected = compiled(feeds)["score"], evaluate(graph, feeds)["score"]
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("seed", range(6))
def test_linear_leaves(seed: int) -> None:
    ensemble = random_ensemble(200 + seed, linear=True)
    rows = near_thresholds("float32", ensemble.features, seed)
    with np.errstate(all="ignore"):
        found = evaluate(ensemble_graph(ensemble), {"features": rows})["score"]
        expected = np.array([walk(ensemble, row) for row in rows.astype(float).tolist()])
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_float32_sums_are_made_in_float32(tools: Any) -> None:
    tree = Tree(*(np.zeros(0, np.int64),) * 6, np.array([0, 1]), np.array([0]), np.array([0.1]))
    graph = ensemble_graph(Ensemble("sums", 1, (tree,) * 1000, np.zeros(1, np.float32)))
    total = np.float32(0)
    for _ in range(1000):
        total += np.float32(0.1)
    feeds = {"features": np.zeros((3, 1), np.float32)}
    assert evaluate(graph, feeds)["score"].tolist() == [total] * 3
    assert tools.Compiled(graph)(feeds)["score"].tolist() == [total] * 3


@pytest.mark.parametrize("cpu", ["x86-64-v2", "cortex-a76"])
def test_code_can_be_generated_for_other_processors(cpu: str) -> None:
    from rerank_engine.codegen.compile import compile_graph
    from rerank_engine.codegen.target import named_target

    assert len(compile_graph(ensemble_graph(random_ensemble(3, linear=True)), named_target(cpu)).code) > 100


@given(st.lists(st.floats(width=32), min_size=2, max_size=30))
@settings(deadline=None)
def test_order_keys_sort_as_floats_do(values: list[float]) -> None:
    array = np.array([value for value in values if value == value], np.float32)
    by_key = array[np.argsort(order_keys(array), kind="stable")]
    assert (np.diff(by_key) >= 0).all() if np.isfinite(array).all() else by_key.tolist() == sorted(array.tolist())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_nan_are_neighbours_on_the_circle_of_keys(dtype: str) -> None:
    bits = np.dtype(f"i{np.dtype(dtype).itemsize}")
    quiet = np.array([np.nan, -np.nan, np.inf, -np.inf], dtype)
    keys = order_keys(quiet).tolist()
    limits = np.iinfo(bits)
    assert keys[0] > keys[2]
    assert keys[1] < keys[3]
    assert keys[2] < limits.max
    assert keys[3] > limits.min


# --- hostile files -----------------------------------------------------------------------------------------------


def arrays_of(linear: bool = True) -> EnsembleArrays:
    ensemble = random_ensemble(204, linear=linear)
    assert len(ensemble.trees) > 2
    return ensemble_arrays(ensemble)


def graph_of(arrays: EnsembleArrays, features: int, **attributes: Any) -> Graph:
    graph = Graph("hostile", inputs=["x"], outputs=["y"])
    graph.values["x"] = Value("x", "float32", (Dim("N"), features))
    names = [graph.add_constant(name, array) for name, array in arrays.named().items()]
    node = Node("TreeEnsemble", "trees", ("x", *names), ("y",), {"features": features, **attributes})
    graph.values["y"] = Value("y", arrays.leaf_weight.dtype.name, (Dim("N"), len(arrays.base)))
    graph.nodes.append(node)
    return graph


def features_of(arrays: EnsembleArrays) -> int:
    assert arrays.linear_feature is not None
    return int(max(arrays.nodes[:, 0].max(), arrays.linear_feature.max())) + 1


def test_honest_arrays_pass() -> None:
    arrays = arrays_of()
    assert find_problem(arrays, features_of(arrays), "SUM") is None
    check_nodes(graph_of(arrays, features_of(arrays)))


@pytest.mark.parametrize("name", [field.name for field in fields(EnsembleArrays) if field.name not in ("base",)])
@pytest.mark.parametrize("value", [-(2**31), -1000, -1, 1000, 2**31 - 1])
def test_no_single_number_can_make_a_walk_unsafe(name: str, value: int) -> None:
    """Each array is damaged in many places: either the check refuses it, or the walk still ends inside the arrays."""
    arrays = arrays_of()
    features = features_of(arrays)
    whole = getattr(arrays, name)
    rows = near_thresholds("float32", features, 1)[:5]
    for place in np.random.default_rng(0).permutation(whole.size)[:20]:
        changed = whole.copy()
        changed.reshape(-1)[place] = value
        graph = graph_of(replace(arrays, **{name: changed}), features)
        if find_problem(replace(arrays, **{name: changed}), features, "SUM") is None:
            check_nodes(graph)
            assert evaluate(graph, {"x": rows})["y"].shape == (5, len(arrays.base))
            continue
        with pytest.raises(GraphError, match="trees"):
            check_nodes(graph)
        with pytest.raises(GraphError):
            evaluate(graph, {"x": rows})


@pytest.mark.parametrize("name", ["nodes", "ranges", "bitsets", "leaf_target", "linear_feature"])
def test_damage_that_is_safe_is_safe_in_compiled_code(tools: Any, name: str) -> None:
    arrays = arrays_of()
    features = features_of(arrays)
    rows = near_thresholds("float32", features, 2)
    whole = getattr(arrays, name)
    random = np.random.default_rng(5)
    for _ in range(200):
        changed = whole.copy()
        changed.reshape(-1)[random.integers(whole.size)] = random.choice([-1, 0, 1, 2, 40, 2**31 - 1])
        if find_problem(replace(arrays, **{name: changed}), features, "SUM") is None and (changed != whole).any():
            break
    graph = graph_of(replace(arrays, **{name: changed}), features)
    with np.errstate(all="ignore"):
        expected = evaluate(graph, {"x": rows})["y"]
    np.testing.assert_array_equal(tools.Compiled(graph)({"x": rows})["y"], expected)


def test_a_tree_that_goes_round_in_circles_is_refused() -> None:
    arrays = arrays_of()
    nodes = arrays.nodes.copy()
    nodes[0, 2] = 0
    with pytest.raises(GraphError, match="does not come after it"):
        check_nodes(graph_of(replace(arrays, nodes=nodes), features_of(arrays)))


def test_trees_may_not_share_nodes_or_leaves() -> None:
    arrays = arrays_of()
    nodes = arrays.nodes.copy()
    nodes[-1, 3] = -1
    nodes[0, 3] = -1
    with pytest.raises(GraphError, match="share a leaf"):
        check_nodes(graph_of(replace(arrays, nodes=nodes), features_of(arrays)))
    nodes = arrays.nodes.copy()
    nodes[0, 2] = arrays.tree_start[1]
    with pytest.raises(GraphError, match="in its tree"):
        check_nodes(graph_of(replace(arrays, nodes=nodes), features_of(arrays)))


def test_arrays_that_are_computed_are_refused() -> None:
    arrays = arrays_of()
    graph = graph_of(arrays, features_of(arrays))
    del graph.constants["nodes"]
    with pytest.raises(GraphError, match="must be constant"):
        check_nodes(graph)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"aggregate": "MEDIAN"}, "aggregate 'MEDIAN' is not known"),
        ({"divisor": 2.0}, "divisor"),
        ({"aggregate": "AVERAGE", "divisor": 0.0}, "divisor"),
        ({"zero_threshold": -1.0}, "zero_threshold"),
        ({"zero_threshold": math.inf}, "zero_threshold"),
        ({"depth": 3}, "attribute 'depth' is not understood"),
    ],
)
def test_attributes_are_checked(attributes: dict[str, Any], message: str) -> None:
    arrays = arrays_of()
    with pytest.raises(UnsupportedOperatorError, match=message):
        check_nodes(graph_of(arrays, features_of(arrays), **attributes))


@pytest.mark.parametrize("name", INPUT_NAMES)
def test_shapes_and_dtypes_are_checked(name: str) -> None:
    arrays = arrays_of()
    for changed in (
        getattr(arrays, name).astype(np.int64 if name != "ranges" else np.int16),
        getattr(arrays, name)[None],
    ):
        with pytest.raises((UnsupportedOperatorError, GraphError)):
            check_nodes(graph_of(replace(arrays, **{name: changed}), features_of(arrays)))


@pytest.mark.parametrize("seed", range(3))
def test_each_row_alone_is_the_row_of_the_batch(tools: Any, seed: int, rows: Callable[..., Array]) -> None:
    graph = ensemble_graph(random_ensemble(300 + seed, linear=seed == 0))
    width = graph.values["features"].shape[1]
    tools.assert_rows_alone(tools.Compiled(graph), {"features": rows(130, width, seed)}, (0, 1, 127, 128, 129))
