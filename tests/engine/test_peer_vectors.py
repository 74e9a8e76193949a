"""Cases in which other engines are silently wrong, each with the right answer; both backends must give it or refuse.

The vectors were found by converting small ONNX models with several mobile engines, all of which reported success.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node as node

from rerank_engine import convert, load
from rerank_engine.errors import InputError, UnsupportedOperatorError

NAN, INF = np.nan, np.inf


def floats(values: Any) -> Any:
    return np.array(values, np.float32)


def integers(values: Any) -> Any:
    return np.array(values, np.int64)


def both(
    tools: Any, nodes: list[Any], inputs: Any, outputs: list[str], feeds: Any, **more: Any
) -> list[dict[str, Any]]:
    """Results of machine code and of the NumPy reference."""
    model = tools.onnx_model(nodes, inputs, outputs, opset=more.pop("opset", 17), **more)
    graph = convert(model).graph
    return [tools.Compiled(graph)(feeds), tools.expect(graph, feeds)]


TABLE = floats([[0, 1], [10, 11], [20, 21], [30, 31]])


def look_up(tools: Any, ids: list[int]) -> list[Any]:
    nodes = [node("Gather", ["table", "id"], ["y"])]
    results = both(tools, nodes, {"id": ("int64", ["N"])}, ["y"], {"id": integers(ids)}, constants={"table": TABLE})
    return [result["y"] for result in results]


@pytest.mark.parametrize(("ids", "bad"), [([4, 5], "4|5"), ([-5, 100], "-5|100"), ([0, 2**40], str(2**40))])
def test_ids_outside_a_table_are_errors(tools: Any, ids: list[int], bad: str) -> None:
    """Elsewhere: wrapped (rows 0 and 1, rows 3 and 0), or zeros."""
    with pytest.raises(InputError, match=f"id ({bad}) .*outside"):
        look_up(tools, ids)


def test_negative_ids_count_from_the_end(tools: Any) -> None:
    for rows in look_up(tools, [-1, 1]):
        np.testing.assert_array_equal(rows, TABLE[[3, 1]])


@pytest.mark.parametrize(
    ("values", "numbers", "places"),
    [
        ([1, 5, 5, 5, 2, 5, 1, 5], [5, 5, 5], [1, 2, 3]),
        ([1, NAN, 3, 2, NAN], [NAN, NAN, 3], [1, 4, 2]),
        ([-INF, -INF, INF, 0], [INF, 0, -INF], [2, 3, 0]),
    ],
)
def test_largest_three(tools: Any, values: Any, numbers: Any, places: Any) -> None:
    """Ties go to the lower index, NaN counts as the largest."""
    nodes = [node("TopK", ["x", "k"], ["y", "i"])]
    for result in both(
        tools,
        nodes,
        {"x": ("float32", [len(values)])},
        ["y", "i"],
        {"x": floats(values)},
        constants={"k": integers([3])},
    ):
        np.testing.assert_array_equal(result["y"], floats(numbers))
        np.testing.assert_array_equal(result["i"], integers(places))


def test_more_than_there_are_is_an_error(tools: Any) -> None:
    """Elsewhere: what lies behind the array."""
    nodes = [node("TopK", ["x", "k"], ["y", "i"])]
    with pytest.raises(UnsupportedOperatorError, match="TopK node"):
        both(tools, nodes, {"x": ("float32", [2])}, ["y", "i"], {"x": floats([1, 2])}, constants={"k": integers([3])})


def test_one_hot_puts_its_axis_last(tools: Any) -> None:
    constants = {"depth": integers(4), "values": floats([0, 1])}
    nodes = [node("OneHot", ["i", "depth", "values"], ["y"])]
    for result in both(tools, nodes, {"i": ("int64", [3])}, ["y"], {"i": integers([1, 0, 3])}, constants=constants):
        np.testing.assert_array_equal(result["y"], np.eye(4, dtype=np.float32)[[1, 0, 3]])


def test_exponentials_reach_their_limits(tools: Any) -> None:
    """Elsewhere: 6.08e37 for exp(100) and exp(inf), 1.65e-38 for exp(-200)."""
    x = floats([100, INF, -200, -INF, NAN, 0])
    for result in both(tools, [node("Exp", ["x"], ["y"])], {"x": ("float32", ["N"])}, ["y"], {"x": x}):
        with np.errstate(over="ignore"):
            rounded = result["y"].astype(np.float32)
        np.testing.assert_array_equal(np.where(rounded < 1e-38, 0, rounded), floats([INF, INF, 0, 0, NAN, 1]))


def test_the_largest_of_numbers_and_none_is_none(tools: Any) -> None:
    nodes = [node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0)]
    x = floats([[1, NAN, 3, 2, 0], [1, 2, 3, 4, 5]])
    for result in both(tools, nodes, {"x": ("float32", ["N", 5])}, ["y"], {"x": x}):
        np.testing.assert_array_equal(result["y"], floats([NAN, 5]))


def test_softmax_of_a_row_that_is_all_masked(tools: Any) -> None:
    """A plain Softmax gives NaN by its definition; the other rows are not touched by it."""
    x = floats([[-INF] * 4, [0, 0, -INF, -INF]])
    nodes = [node("Softmax", ["x"], ["y"], axis=-1)]
    for result in both(tools, nodes, {"x": ("float32", ["N", 4])}, ["y"], {"x": x}):
        np.testing.assert_array_equal(result["y"], floats([[NAN] * 4, [0.5, 0.5, 0, 0]]))


def test_exact_gelu_is_exact(tools: Any) -> None:
    """Elsewhere: an approximation by default, off by 4.7e-4."""
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    expected = np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x.astype(np.float64)])
    nodes = [
        node("Div", ["x", "root"], ["scaled"]),
        node("Erf", ["scaled"], ["erf"]),
        node("Add", ["erf", "one"], ["shifted"]),
        node("Mul", ["x", "shifted"], ["double"]),
        node("Mul", ["double", "half"], ["y"]),
    ]
    constants = {"root": floats(math.sqrt(2)), "one": floats(1), "half": floats(0.5)}
    for result in both(tools, nodes, {"x": ("float32", ["N"])}, ["y"], {"x": x}, constants=constants):
        np.testing.assert_allclose(result["y"], expected, rtol=0, atol=2e-6)


def test_large_ids_are_hashed_in_64_bits(tools: Any) -> None:
    """Elsewhere: through int32, giving 3 and 522801."""
    ids = integers([2**40 + 3, 2**31 + 5])
    nodes = [node("Mod", ["id", "buckets"], ["y"])]
    for result in both(
        tools, nodes, {"id": ("int64", ["N"])}, ["y"], {"id": ids}, constants={"buckets": integers(1000003)}
    ):
        np.testing.assert_array_equal(result["y"], [329255, 477212])


def test_no_candidates_give_no_scores(tools: Any) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    constants = {"w": np.ones((3, 1), np.float32)}
    x = np.zeros((0, 3), np.float32)
    for result in both(tools, nodes, {"x": ("float32", ["N", 3])}, ["y"], {"x": x}, constants=constants):
        assert result["y"].shape == (0, 1)


def test_sigmoid_keeps_the_order(tools: Any) -> None:
    """Elsewhere: 58 inversions in 4,000 sorted logits."""
    x = np.linspace(-12, 12, 4000, dtype=np.float32)
    compiled, exact = both(tools, [node("Sigmoid", ["x"], ["y"])], {"x": ("float32", ["N"])}, ["y"], {"x": x})
    assert (np.diff(compiled["y"]) >= 0).all()
    np.testing.assert_allclose(compiled["y"], exact["y"], rtol=5e-7)


def test_a_shape_baked_at_export_is_refused(tools: Any) -> None:
    """A reshape to the traced length would be right for that length only."""
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    model = tools.onnx_model(
        nodes, {"x": ("float32", ["N", 4])}, ["y"], constants={"shape": integers([5, 2, 2])}, opset=17
    )
    with pytest.raises(UnsupportedOperatorError, match=r"Reshape node .*N, 4"):
        convert(model)


def test_four_models_at_once(tools: Any) -> None:
    """Each thread gets its own model's answers."""
    engines, expected, feeds = [], [], []
    for seed in range(4):
        random = np.random.default_rng(seed)
        constants = {"w": random.normal(size=(6, 5 + seed)).astype(np.float32)}
        nodes = [node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["y"])]
        model = tools.onnx_model(nodes, {"x": ("float32", ["N", 6])}, ["y"], constants=constants, opset=17)
        engines.append(load(convert(model)))
        feeds.append({"x": random.normal(size=(40 + seed, 6)).astype(np.float32)})
        expected.append(engines[-1].run(feeds[-1]))
    wrong: list[int] = []

    def work(mine: int) -> None:
        answers = (engines[mine].run(feeds[mine]) for _ in range(200))
        wrong.extend(mine for answer in answers if not np.array_equal(answer, expected[mine]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
