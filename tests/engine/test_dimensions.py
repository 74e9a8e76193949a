"""Sizes that are known only at run time: exact arithmetic, and models in which they stand anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node as node

from rerank_engine import convert, load
from rerank_engine.binding import bind_sizes
from rerank_engine.dimensions import Dim, divide_exactly, product, resolve
from rerank_engine.errors import ConversionError, GraphError, InputError
from rerank_engine.graph import Value

SIZES = {"N": 7, "T": 3, "K": 2}
LAST = np.iinfo(np.int64).max


def integers(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def expressions() -> st.SearchStrategy[int | Dim]:
    leaves = st.one_of(st.integers(-4, 6), st.sampled_from([Dim(name) for name in SIZES]))
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.tuples(parts, parts).map(lambda two: two[0] + two[1]),
            st.tuples(parts, parts).map(lambda two: two[0] - two[1]),
            st.tuples(parts, parts).map(lambda two: two[0] * two[1]),
        ),
        max_leaves=6,
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions(), expressions())
def test_arithmetic_is_exact(left: int | Dim, right: int | Dim) -> None:
    one, other = resolve(left, SIZES), resolve(right, SIZES)
    assert resolve(left + right, SIZES) == one + other
    assert resolve(left - right, SIZES) == one - other
    assert resolve(left * right, SIZES) == one * other
    assert left - left == 0
    assert left * right == right * left
    if right != 0:
        assert divide_exactly(left * right, right) == left
    quotient = divide_exactly(left, right)
    if quotient is not None:
        assert quotient * right == left


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions())
def test_what_is_written_is_read_again(size: int | Dim) -> None:
    assert Dim.parse(str(size)) == size
    if isinstance(size, Dim):
        assert eval(repr(size), {"Dim": Dim}) == size
        assert hash(Dim.parse(str(size))) == hash(size)


@pytest.mark.parametrize("text", ["", "N+", "*N", "2N", "N**T", "+", "1.5", "N T", "2**3", "N-", "(N)", "N/2", "é"])
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(GraphError, match="no size"):
        Dim.parse(text)


def test_names_that_are_none() -> None:
    for name in ("", "2N", "N T", "N*T", "é", "x" * 65):
        with pytest.raises(GraphError, match="no name"):
            Dim(name)
    with pytest.raises(GraphError, match="times 0"):
        Dim("N", 0)
    with pytest.raises(GraphError, match="beyond"):
        Dim("N", 2**47) * 4
    assert product([Dim("N"), 0, Dim("T")]) == 0


def test_expressions_are_bounded() -> None:
    """A file may hold any text: it must not keep anyone busy."""
    for text in ("+".join(f"m{index}" for index in range(20_000)), "*".join(f"m{index}" for index in range(17))):
        with pytest.raises(GraphError, match="more than 64 terms or 16 factors"):
            Dim.parse(text)


def test_a_name_that_no_input_gives_alone_is_refused(tools: Any) -> None:
    b = tools.GraphBuilder()
    b.graph.values["x"] = Value("x", "float32", (Dim("N") * Dim("T"),))
    b.graph.inputs.append("x")
    b.output("x")
    with pytest.raises(GraphError, match="no input gives the size"):
        b.finish()


def test_sizes_are_read_off_the_inputs() -> None:
    n, t = Dim("N"), Dim("T")
    values = [Value("a", "float32", (n * t, 2)), Value("b", "float32", (t + 1,)), Value("c", "float32", (50 * n,))]

    def arrays(a: int, b: int, c: int) -> dict[str, Any]:
        return {"a": np.zeros((a, 2)), "b": np.zeros(b), "c": np.zeros(c)}

    assert bind_sizes(values, arrays(12, 4, 200)) == {"N": 4, "T": 3}
    for wrong in (arrays(13, 4, 200), arrays(12, 0, 200), arrays(12, 4, 201), arrays(8, 4, 200)):
        with pytest.raises(InputError, match="got shape"):
            bind_sizes(values, wrong)
    with pytest.raises(InputError, match=r"N = 4 .* above the model's declared maximum of 3"):
        bind_sizes(values, arrays(12, 4, 200), {"N": 3})


# --- models ------------------------------------------------------------------------------------------------


def feeds_for(inputs: dict[str, Any], sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    feeds = {}
    for name, (dtype, dims) in inputs.items():
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in dims)
        feeds[name] = random.normal(size=shape).astype(dtype) if dtype == "float32" else random.integers(0, 5, shape)
    return feeds


MODELS: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], str]] = {
    "attention over a history of any length": (
        [
            node("Transpose", ["keys"], ["turned"], perm=[1, 0]),
            node("MatMul", ["query", "turned"], ["scores"]),
            node("Softmax", ["scores"], ["shares"], axis=-1),
            node("MatMul", ["shares", "keys"], ["mixed"]),
            node("Concat", ["query", "mixed"], ["joined"], axis=1),
            node("MatMul", ["joined", "weight"], ["y"]),
        ],
        {"query": ("float32", ["N", 4]), "keys": ("float32", ["T", 4])},
        {"weight": np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)},
        "N",
    ),
    "attention over the list": (
        [
            node("MatMul", ["x", "weight"], ["q"]),
            node("Transpose", ["x"], ["turned"], perm=[1, 0]),
            node("MatMul", ["q", "turned"], ["scores"]),
            node("Softmax", ["scores"], ["shares"], axis=-1),
            node("MatMul", ["shares", "x"], ["mixed"]),
            node("Add", ["mixed", "x"], ["sum"]),
            node("Relu", ["sum"], ["y"]),
        ],
        {"x": ("float32", ["N", 4])},
        {"weight": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)},
        "N",
    ),
    "every pair of candidate and event": (
        [
            node("Unsqueeze", ["x", "one"], ["wide"]),
            node("Unsqueeze", ["keys", "zero"], ["long"]),
            node("Sub", ["wide", "long"], ["pairs"]),
            node("Reshape", ["pairs", "flat"], ["rows"]),
            node("MatMul", ["rows", "weight"], ["made"]),
            node("Shape", ["x"], ["sx"], end=1),
            node("Shape", ["keys"], ["sk"], end=1),
            node("Concat", ["sx", "sk"], ["both"], axis=0),
            node("Reshape", ["made", "both"], ["square"]),
            node("ReduceSum", ["square", "one"], ["y"], keepdims=0),
        ],
        {"x": ("float32", ["N", 4]), "keys": ("float32", ["T", 4])},
        {
            "one": integers(1),
            "zero": integers(0),
            "flat": integers(-1, 4),
            "weight": np.linspace(-1, 1, 4, dtype=np.float32).reshape(4, 1),
        },
        "N",
    ),
    "a token in front of the list": (
        [
            node("Concat", ["user", "x"], ["tokens"], axis=0),
            node("Slice", ["tokens", "one", "last", "zero"], ["rest"]),
            node("Slice", ["tokens", "minus", "last", "zero"], ["newest"]),
            node("Mul", ["rest", "newest"], ["made"]),
            node("ReduceMean", ["tokens"], ["mean"], axes=[0], keepdims=1),
            node("Sub", ["made", "mean"], ["y"]),
        ],
        {"user": ("float32", [1, 4]), "x": ("float32", ["N", 4])},
        {"one": integers(1), "zero": integers(0), "minus": integers(-1), "last": integers(LAST)},
        "N",
    ),
    "the position in the list": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "n"], ["size"]),
            node("Range", ["n", "size", "step"], ["place"]),
            node("Cast", ["place"], ["number"], to=1),
            node("Unsqueeze", ["number", "one"], ["column"]),
            node("Cast", ["size"], ["length"], to=1),
            node("Div", ["column", "length"], ["share"]),
            node("Add", ["x", "share"], ["y"]),
        ],
        {"x": ("float32", ["N", 4])},
        {"n": np.array(0), "step": np.array(1), "one": integers(1)},
        "N",
    ),
    "candidates on the last axis": (
        [
            node("MatMul", ["weight", "x"], ["made"]),
            node("Softmax", ["made"], ["shares"], axis=1),
            node("ReduceMax", ["shares"], ["y"], axes=[0], keepdims=0),
        ],
        {"x": ("float32", [4, "N"])},
        {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)},
        "N",
    ),
    "a batch of one around the list": (
        [
            node("MatMul", ["x", "weight"], ["made"]),
            node("ReduceMean", ["made"], ["mean"], axes=[1], keepdims=1),
            node("Sub", ["made", "mean"], ["centred"]),
            node("Squeeze", ["centred", "zero"], ["y"]),
        ],
        {"x": ("float32", [1, "N", 4])},
        {"weight": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2), "zero": integers(0)},
        "N",
    ),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_like_onnxruntime_at_any_size(tools: Any, name: str) -> None:
    nodes, inputs, constants, candidates = MODELS[name]
    model = tools.onnx_model(
        nodes, inputs, ["y"], constants=constants, opset=17, ranks={"y": 2} if "pos" in name else {}
    )
    graph = convert(model, candidates=candidates).graph
    bare = convert(
        model, candidates=candidates, skip_passes=("split_concat", "fuse_matmul", "common_subexpressions")
    ).graph
    compiled = tools.Compiled(graph)
    for sizes in ({"N": 1, "T": 1}, {"N": 7, "T": 5}, {"N": 200, "T": 50}, {"N": 3, "T": 300}, {"N": 130, "T": 2}):
        feeds = feeds_for(inputs, sizes, seed=sizes["N"])
        expected = tools.run_onnxruntime(model, feeds)["y"]
        exact = tools.expect(bare, feeds)["y"]
        for array in (compiled(feeds)["y"], tools.expect(graph, feeds)["y"]):
            assert array.shape == expected.shape
            np.testing.assert_allclose(array, exact, rtol=2e-6, atol=2e-6 * max(1.0, np.abs(exact).max()))
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


def test_empty_lists_and_histories(tools: Any) -> None:
    for name, (nodes, inputs, constants, candidates) in MODELS.items():
        model = tools.onnx_model(nodes, inputs, ["y"], constants=constants, opset=17)
        graph = convert(model, candidates=candidates).graph
        feeds = feeds_for(inputs, {"N": 0, "T": 2})
        (array,), (expected,) = tools.Compiled(graph)(feeds).values(), tools.expect(graph, feeds).values()
        assert array.shape == expected.shape, name
        assert array.size == 0


def test_a_list_that_is_too_short_is_an_error(tools: Any) -> None:
    nodes = [
        node("Slice", ["x", "three", "last", "zero"], ["tail"]),
        node("ReduceSum", ["tail", "zero"], ["y"], keepdims=0),
    ]
    constants = {"three": integers(3), "zero": integers(0), "last": integers(LAST)}
    model = tools.onnx_model(nodes, {"x": ("float32", ["N", 4])}, ["y"], constants=constants, opset=17)
    engine = load(convert(model))
    for candidates in (3, 5):
        x = np.ones((candidates, 4), np.float32)
        np.testing.assert_array_equal(engine.run({"x": x}), np.full(4, candidates - 3))
    with pytest.raises(InputError, match="too short"):
        engine.run({"x": np.ones((2, 4), np.float32)})


def test_maxima(tools: Any, tmp_path: Any) -> None:
    model = tools.onnx_model([node("Relu", ["x"], ["y"])], {"x": ("float32", ["N", 4])}, ["y"], opset=17)
    converted = convert(model, maxima={"N": 5})
    converted.save(tmp_path / "m.rrm")
    engine = load(tmp_path / "m.rrm")
    assert engine.run({"x": np.zeros((5, 4), np.float32)}).shape == (5, 4)
    with pytest.raises(InputError, match=r"N = 6 .*'x'.* above the model's declared maximum of 5"):
        engine.run({"x": np.zeros((6, 4), np.float32)})
    with pytest.raises(ConversionError, match="no dimension is called 'M'; dimensions: N"):
        convert(model, maxima={"M": 5})
    with pytest.raises(ConversionError, match="N=0 must be at least 1"):
        convert(model, maxima={"N": 0})


def test_inputs_that_are_fixed(tools: Any) -> None:
    nodes = [node("TopK", ["x", "k"], ["y", "i"])]
    model = tools.onnx_model(nodes, {"x": ("float32", ["N", 4]), "k": ("int64", [1])}, ["y", "i"], opset=17)
    graph = convert(model, constants={"k": integers(2)}).graph
    assert graph.inputs == ["x"]
    x = np.array([[1, 5, 5, 2]], np.float32)
    results = tools.Compiled(graph)({"x": x})
    np.testing.assert_array_equal(results["i"], [[1, 2]])
    with pytest.raises(ConversionError, match="'nope' is no input"):
        convert(model, constants={"nope": integers(2)})


def test_a_row_for_unknown_ids(tools: Any, tmp_path: Any) -> None:
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    nodes = [
        node("Cast", ["id"], ["wide"], to=7),
        node("Gather", ["table", "wide"], ["row"]),
        node("Gather", ["table", "other"], ["more"]),
        node("Add", ["row", "more"], ["y"]),
    ]
    inputs = {"id": ("int32", ["N"]), "other": ("int64", ["N"])}
    model = tools.onnx_model(nodes, inputs, ["y"], constants={"table": table}, opset=17)
    convert(model, unknown_rows={"id": 0}).save(tmp_path / "m.rrm")
    engine = load(tmp_path / "m.rrm")
    ids = np.array([3, 4, -1, 99, -99, 2**31 - 1], np.int32)
    other = np.ones(6, np.int64)
    np.testing.assert_array_equal(engine.run({"id": ids, "other": other}), table[[3, 0, 0, 0, 0, 0]] + table[1])
    with pytest.raises(InputError, match=r"id 4 in 'other' is outside the table .* which has 4 rows"):
        engine.run({"id": ids, "other": other + 3})
    for rows, why in (
        ({"nope": 0}, "no input 'nope'"),
        ({"id": 4}, "row 4 is none of the 4 rows"),
        ({"id": -1}, "row -1 is none"),
    ):
        with pytest.raises(ConversionError, match=why):
            convert(model, unknown_rows=rows)
    plain = tools.onnx_model([node("Relu", ["x"], ["y"])], {"x": ("float32", ["N"])}, ["y"], opset=17)
    with pytest.raises(ConversionError, match="'x' reaches no table"):
        convert(plain, unknown_rows={"x": 0})
