"""PyTorch's EmbeddingBag, as its two exporters write it, gives what PyTorch gives; and the operator it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import GraphError, InputError, UnsupportedOperatorError
from rerank_engine.graph import Graph, Node, Value
from rerank_engine.importers.expressions import expression_of, match
from rerank_engine.ops import check_nodes, lookup
from rerank_engine.reference import evaluate

Array = NDArray[Any]
FILE = Path(__file__).parent / "data" / "embedding_bags.npz"


def _stored() -> dict[str, dict[str, Array]]:
    variants: dict[str, dict[str, Array]] = {}
    with np.load(FILE) as file:
        for key in file.files:
            name, rest = key.split("/", 1)
            variants.setdefault(name, {})[rest] = file[key]
    return variants


STORED = _stored()


def _model(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(STORED[name]["model"].tobytes())


def _cases(name: str) -> list[tuple[dict[str, Array], Array]]:
    counts = sorted({key.split("/")[0] for key in STORED[name]} - {"model"})
    cases = []
    for count in counts:
        given = {key.split("/")[1]: array for key, array in STORED[name].items() if key.startswith(f"{count}/")}
        cases.append((given, given.pop("=")))
    return cases


def test_all_variants_are_stored() -> None:
    assert len(STORED) == 25
    assert all(len(_cases(name)) == 3 for name in STORED)


@pytest.mark.parametrize("name", STORED)
def test_like_pytorch(tools: Any, name: str) -> None:
    graph = convert(_model(name), candidates="N").graph
    assert "Loop" not in {each.op for each in graph.nodes}
    compiled = tools.Compiled(graph)
    for feeds, expected in _cases(name):
        for results in (compiled(feeds), evaluate(graph, feeds)):
            (result,) = results.values()
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in STORED if " fixed " in name])
def test_bags_of_one_size_stay_with_their_candidate(tools: Any, name: str) -> None:
    """They need no offsets, and run over blocks of candidates; there may be none."""
    graph = convert(_model(name), candidates="N").graph
    assert "BagReduce" not in {each.op for each in graph.nodes}
    compiled = tools.Compiled(graph)
    assert compiled({key: array[:0] for key, array in _cases(name)[0][0].items()})[graph.outputs[0]].shape == (0, 3)
    feeds, expected = _cases(name)[-1]
    for row in range(len(expected)):
        (alone,) = compiled({key: array[row : row + 1] for key, array in feeds.items()}).values()
        np.testing.assert_allclose(alone[0], expected[row], rtol=2e-6, atol=1e-6)


def test_an_empty_bag_is_zero(tools: Any) -> None:
    """In PyTorch, and in the models of its exporters but for the largest of nothing of the older one."""
    feeds = {"ids": np.array([1, 2, 3]), "offsets": np.array([0, 0, 3])}
    for name in STORED:
        if "fixed" in name or "last" in name or "weights" in name:
            continue
        graph = convert(_model(name), candidates="N").graph
        for results in (tools.Compiled(graph)(feeds), evaluate(graph, feeds)):
            (result,) = results.values()
            wanted = -np.inf if name == "old max" else 0
            np.testing.assert_array_equal(result[[0, 2]], np.full((2, 3), wanted, np.float32))
            assert np.isfinite(result[1]).all()


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, -1, 3], [0, 4, 9], [5, 0, 0], [2**40, 2**40, 2**40]])
def test_offsets_that_do_not_fit_are_errors(tools: Any, offsets: list[int]) -> None:
    graph = convert(_model("new sum"), candidates="N").graph
    feeds = {"ids": np.array([1, 2, 3]), "offsets": np.array(offsets)}
    for run in (tools.Compiled(graph), lambda given: evaluate(graph, given)):
        with pytest.raises(InputError, match=r"offset .* does not fit"):
            run(feeds)


def test_the_last_offset_of_a_mean_is_the_number_of_ids(tools: Any) -> None:
    """The exporter divides the last bag by what is left of the ids, whatever its offset says."""
    graph = convert(_model("new mean, last offset"), candidates="N").graph
    feeds = {"ids": np.array([1, 2, 3]), "offsets": np.array([0, 1, 2])}
    for run in (tools.Compiled(graph), lambda given: evaluate(graph, given)):
        with pytest.raises(InputError, match="last"):
            run(feeds)


def test_random_offsets(tools: Any) -> None:
    """Machine code agrees with NumPy on bags of any size, with and without rows that do not count."""
    random = np.random.default_rng(5)
    for _ in range(10):
        graph = Graph("bags", inputs=["rows", "offsets", "kept"], outputs=[])
        count, bags, width = (int(number) for number in random.integers((1, 1, 1), (40, 12, 40)))
        graph.values = {
            "rows": Value("rows", "float32", (count, width)),
            "offsets": Value("offsets", "int32", (bags + 1,)),
            "kept": Value("kept", "bool", (count,)),
        }
        for mode in ("sum", "mean", "max"):
            for inputs in (("rows", "offsets"), ("rows", "offsets", "kept")):
                name = f"{mode}{len(inputs)}"
                graph.nodes.append(Node("BagReduce", name, inputs, (name,), {"mode": mode}))
                graph.values[name] = Value(name, "float32", (bags, width))
                graph.outputs.append(name)
        graph.verify()
        feeds = {
            "rows": random.normal(size=(count, width)).astype(np.float32),
            "offsets": np.sort(random.integers(0, count + 1, bags + 1)).astype(np.int32),
            "kept": random.random(count) < 0.7,
        }
        expected = evaluate(graph, feeds, precise=True)
        for name, array in tools.Compiled(graph)(feeds).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def _bags(**changes: Any) -> Graph:
    """A graph of one BagReduce, with some of it changed."""
    shapes = {"rows": ("float32", (4, 3)), "offsets": ("int64", (3,)), "kept": ("bool", (4,))} | changes.pop(
        "shapes", {}
    )
    graph = Graph("bags", inputs=list(shapes), outputs=["y"])
    graph.values = {name: Value(name, dtype, shape) for name, (dtype, shape) in shapes.items()}
    graph.nodes = [Node("BagReduce", "bags", changes.pop("inputs", ("rows", "offsets", "kept")), ("y",), changes)]
    graph.values["y"] = Value("y", "float32", (2, 3))
    return graph


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "median"}, "mode is one of"),
        ({"empty": "nothing"}, "empty one of"),
        ({"inputs": ("rows",)}, "has 1 inputs"),
        ({"shapes": {"rows": ("int64", (4, 3))}}, "rows must be float32 or float64"),
        ({"shapes": {"offsets": ("float32", (3,))}}, "offsets must be a vector"),
        ({"shapes": {"offsets": ("int64", (0,))}}, "offsets must be a vector"),
        ({"shapes": {"kept": ("bool", (3,))}}, "which rows count"),
    ],
)
def test_bags_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((GraphError, UnsupportedOperatorError), match=message):
        check_nodes(_bags(**changes))


def test_the_graph_of_those_refusals_is_good_itself() -> None:
    check_nodes(_bags())
    assert lookup(_bags().nodes[0]).name == "BagReduce"


def _loop(body: list[onnx.NodeProto], result: str) -> onnx.ModelProto:
    """A loop as the older exporter writes it, with another body."""
    kinds = {"ids": TensorProto.INT64, "offsets": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(name, kind, ["N"]) for name, kind in kinds.items()]
    bodies = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
    ]
    results = [
        helper.make_tensor_value_info("goes on", TensorProto.BOOL, []),
        helper.make_tensor_value_info(result, TensorProto.FLOAT, None),
    ]
    subgraph = helper.make_graph([node("Identity", ["yes"], ["goes on"]), *body], "body", bodies, results)
    nodes = [
        node("Constant", [], ["yes"], value=helper.make_tensor("v", TensorProto.BOOL, [], [1])),
        node("Constant", [], ["table"], value=helper.make_tensor("v", TensorProto.FLOAT, [4, 1], [0.0, 1, 2, 3])),
        node("Constant", [], ["axis"], value_ints=[0]),
        node("Shape", ["offsets"], ["s"]),
        node("Squeeze", ["s", "axis"], ["count"]),
        node("Loop", ["count", "yes"], ["y"], name="bags", body=subgraph),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "k"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_another_loop_is_refused_by_name() -> None:
    """What looks like bags but is none is not taken for bags."""
    body = [
        node("Gather", ["offsets", "i"], ["from"]),
        node("Unsqueeze", ["from", "axis"], ["from1"]),
        node("Slice", ["ids", "from1", "from1", "axis"], ["own"]),
        node("Gather", ["table", "own"], ["rows"]),
        node("ReduceSum", ["rows", "axis"], ["row"], keepdims=0),
    ]
    with pytest.raises(UnsupportedOperatorError, match="Loop node 'bags'"):
        convert(_loop(body, "row"), candidates="N")


def test_a_body_that_grows_without_end_is_refused_quickly() -> None:
    """Values that are used twice are written out twice: forty of them would be a trillion."""
    body = [node("Gather", ["table", "i"], ["v0"])]
    body += [node("Add", [f"v{k}", f"v{k}"], [f"v{k + 1}"]) for k in range(40)]
    with pytest.raises(UnsupportedOperatorError, match="Loop node 'bags'"):
        convert(_loop(body, "v40"), candidates="N")


def test_expressions() -> None:
    x, axes = ("outer", "x"), ("ints", (1,))
    assert expression_of("ReduceSum", [x, axes], {"keepdims": 0}) == ("ReduceSum", x, axes, 0)
    assert expression_of("ReduceSum", [x], {"axes": [1]}) == ("ReduceSum", x, axes, 1)
    assert expression_of("CastLike", [axes, x], {}) == axes
    captured: dict[str, Any] = {}
    assert match(("Mul", "?a", ("Neg", "?b")), ("Mul", x, ("Neg", axes)), captured)
    assert captured == {"a": x, "b": axes}
    assert not match(("Mul", "?a", "?a"), ("Mul", x, axes), {})
