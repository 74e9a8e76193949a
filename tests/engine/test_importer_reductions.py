"""ONNX reductions, selections and normalisations of every version, against ONNX Runtime or chosen numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import InputError, RerankError, UnsupportedOperatorError
from rerank_engine.importers.onnx_handlers import HANDLERS

Array = NDArray[Any]
Inputs = Mapping[str, tuple[str, Sequence[Any]]]
X: Inputs = {"x": ("float32", ["N", 3, 4])}
NAMED: Inputs = {"x": ("float32", ["N", "T", 4])}


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def floats(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def feeds_of(inputs: Inputs, sizes: Mapping[str, int]) -> dict[str, Array]:
    random = np.random.default_rng(sum(sizes.values()))
    feeds: dict[str, Array] = {}
    for name, (dtype, dims) in inputs.items():
        shape = tuple(sizes[dim] if isinstance(dim, str) else int(dim) for dim in dims)
        if dtype.startswith("float"):
            feeds[name] = random.normal(0, 2, shape).astype(dtype)
        else:
            feeds[name] = random.integers(0 if dtype.startswith("u") else -6, 6, shape).astype(dtype)
    return feeds


def assert_like_onnxruntime(
    tools: Any,
    opset: int,
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs = X,
    constants: Mapping[str, Array] | None = None,
    sizes: Sequence[Mapping[str, int]] = ({"N": 5, "T": 6}, {"N": 1, "T": 1}),
    ranks: Mapping[str, int] | None = None,
    *,
    has_empty: bool = True,
) -> None:
    outputs = [name for one in nodes for name in one.output if name and name[0] == "r"]
    model = tools.onnx_model(nodes, inputs, outputs, constants=constants, opset=opset, ranks=ranks)
    compiled = tools.Compiled(convert(model, candidates="N").graph)
    for each in sizes:
        feeds = feeds_of(inputs, each)
        expected, actual = tools.run_onnxruntime(model, feeds), compiled(feeds)
        assert list(actual) == list(expected)
        for name, array in actual.items():
            label = f"{name} at {each}"
            assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), label
            np.testing.assert_allclose(array, expected[name], 1e-5, 1e-5, err_msg=label)
    if has_empty:
        for name, array in compiled(feeds_of(inputs, {"N": 0, "T": 3})).items():
            assert array.shape[:1] == (0,), name


# --- reductions --------------------------------------------------------------------------------------------------

REDUCTIONS = ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
PLACES = ([1], [-1], [0], [0, 2], [1, 2], [0, 1, 2])


def reductions(op: str, *, as_input: bool) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes, constants = [], {}
    for index, axes in enumerate(PLACES):
        for keepdims in (0, 1):
            name = f"r{index}_{keepdims}"
            if as_input:
                constants[f"axes{index}"] = integers(*axes)
                nodes.append(node(op, ["x", f"axes{index}"], [name], keepdims=keepdims))
            else:
                nodes.append(node(op, ["x"], [name], axes=axes, keepdims=keepdims))
    nodes.append(node(op, ["x"], ["rall"]))
    return nodes, constants


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("opset", [7, 13, 18])
def test_reductions_over_any_axes(tools: Any, kind: str, opset: int) -> None:
    op = f"Reduce{kind}"
    nodes, constants = reductions(op, as_input=opset >= (13 if kind == "Sum" else 18))
    assert_like_onnxruntime(tools, opset, nodes, NAMED if opset in (7, 18) else X, constants, has_empty=False)


def test_log_of_a_sum(tools: Any) -> None:
    for opset in (7, 18):
        nodes, constants = reductions("ReduceLogSum", as_input=opset >= 18)
        for one in nodes:
            one.input[0] = "positive"
        assert_like_onnxruntime(tools, opset, [node("Abs", ["x"], ["positive"]), *nodes], X, constants, has_empty=False)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_reductions_of_other_dtypes(tools: Any, dtype: str) -> None:
    kinds = {
        "int32": ("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare"),
        "int64": ("Sum", "Max", "Min", "Prod"),
        "float64": ("Sum", "Max", "Mean", "L2", "LogSumExp"),
    }[dtype]
    nodes = [node(f"Reduce{kind}", ["x", "axes"], [f"r{kind}"]) for kind in kinds]
    assert_like_onnxruntime(tools, 18, nodes, {"x": (dtype, ["N", 3, 4])}, {"axes": integers(0, 2)}, has_empty=False)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_extremes_of_small_integers(tools: Any, dtype: str) -> None:
    nodes = [node(op, ["x", "axes"], [f"r{op}"]) for op in ("ReduceMax", "ReduceMin")]
    assert_like_onnxruntime(tools, 18, nodes, {"x": (dtype, ["N", 3, 4])}, {"axes": integers(1)})


def convert_one(tools: Any, opset: int, nodes: Sequence[onnx.NodeProto], **constants: Array) -> Any:
    known = {"x": ("float32", ["N", 3, 4]), "m": ("float32", ["N", 6]), "t": ("float32", ["N", "T"])}
    known |= {"i": ("int64", [2]), "w": ("float32", [3])}
    read = {name for one in nodes for name in one.input}
    inputs = {name: entry for name, entry in known.items() if name in read}
    outputs = [name for one in nodes for name in one.output if name]
    return convert(tools.onnx_model(nodes, inputs, outputs, constants=constants, opset=opset), candidates="N")


def run_model(tools: Any, model: Any, **given: Any) -> list[Array]:
    feeds = {
        value.name: np.zeros([dim if isinstance(dim, int) else 2 for dim in value.shape], value.dtype)
        for value in (model.graph.values[name] for name in model.graph.inputs)
    }
    feeds |= {name: np.asarray(array, np.float32) for name, array in given.items()}
    return list(tools.Compiled(model.graph)(feeds).values())


def test_no_axes_reduce_nothing_where_the_model_says_so(tools: Any) -> None:
    """The steps before and after the sum remain, as the newest text of ONNX has it."""
    kinds = ("Sum", "Mean", "Max", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    nodes = [node(f"Reduce{kind}", ["m"], [kind], noop_with_empty_axes=1) for kind in kinds]
    m = np.abs(floats(2, 6)) + 0.1
    m[0, 0] = -0.5
    results = dict(zip(kinds, run_model(tools, convert_one(tools, 18, nodes), m=m), strict=True))
    np.testing.assert_array_equal(results["Sum"], m)
    np.testing.assert_array_equal(results["Mean"], m)
    np.testing.assert_array_equal(results["Max"], m)
    np.testing.assert_allclose(results["L1"], np.abs(m), 1e-6)
    np.testing.assert_allclose(results["L2"], np.abs(m), 1e-6)
    np.testing.assert_allclose(results["SumSquare"], m * m, 1e-6)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(results["LogSum"], np.log(m), 1e-5, 1e-6)
    np.testing.assert_allclose(results["LogSumExp"], m, 1e-5, 1e-6)


def test_log_sum_exp_at_the_ends(tools: Any) -> None:
    (made,) = run_model(
        tools,
        convert_one(tools, 13, [node("ReduceLogSumExp", ["m"], ["y"], axes=[1], keepdims=0)]),
        m=[[1000.0] * 6, [-1000.0] * 6, [-np.inf] * 6, [np.inf, *[-np.inf] * 5], [np.nan, *[0.0] * 5]],
    )
    np.testing.assert_allclose(made, [1000 + np.log(6), -1000 + np.log(6), -np.inf, np.inf, np.nan], 1e-6)


def test_reductions_of_scalars(tools: Any) -> None:
    inputs: Inputs = {"s": ("float32", []), "x": ("float32", ["N", 2])}
    nodes = [node(f"Reduce{kind}", ["s"], [f"r{kind}"]) for kind in ("Sum", "Mean", "L1", "L2")]
    assert_like_onnxruntime(tools, 18, [*nodes, node("Neg", ["x"], ["rx"])], inputs, has_empty=False)


def test_sizes_are_reduced_while_importing(tools: Any) -> None:
    """Exporters write numbers of elements as products over shapes; a Reshape needs to know them."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["count"], keepdims=1),
        node("Reshape", ["x", "count"], ["r1"]),
        node("ReduceProd", ["s"], ["scalar"], keepdims=0),
        node("Unsqueeze", ["scalar", "zero"], ["vector"]),
        node("Reshape", ["x", "vector"], ["r2"]),
    ]
    assert_like_onnxruntime(tools, 13, nodes, NAMED, {"zero": integers(0)}, ranks={"r1": 1, "r2": 1})


def test_global_pools(tools: Any) -> None:
    inputs: Inputs = {
        "x": ("float32", ["N", 3, 4, 5]),
        "y": ("float32", ["N", 2, "T"]),
    }
    nodes = [node(op, [name], [f"r{op}{name}"]) for op in ("GlobalAveragePool", "GlobalMaxPool") for name in "xy"]
    nodes += [node("GlobalLpPool", ["x"], [f"rp{power}"], p=power) for power in (1, 2, 3)]
    for opset in (7, 18):
        assert_like_onnxruntime(tools, opset, nodes, inputs)


# --- softmax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 11, 12, 13])
def test_softmax_of_every_version(tools: Any, op: str, opset: int) -> None:
    axes = (0, 1, 2) if opset < 11 else (0, 1, 2, -1, -3)
    nodes = [node(op, ["x"], [f"r{index}"], axis=axis) for index, axis in enumerate(axes)]
    nodes += [node(op, ["x"], ["rdefault"])]
    assert_like_onnxruntime(tools, opset, nodes, X if opset != 12 else NAMED)


# --- selections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes_of_every_version(tools: Any, op: str) -> None:
    forms: list[dict[str, Any]] = [{}, {"axis": 1}, {"axis": 2, "keepdims": 0}]
    lasts: list[dict[str, Any]] = [{"axis": 1, "select_last_index": 1}, {"axis": -1, "select_last_index": 1}]
    for opset, dtype in ((7, "float32"), (11, "int32"), (12, "float32"), (13, "int8"), (13, "float64")):
        all_forms = [*forms, *(lasts if opset >= 12 else [])]
        nodes = [node(op, ["x"], [f"r{index}"], **form) for index, form in enumerate(all_forms)]
        inputs = {"x": (dtype, ["N", 3, 4])}
        assert_like_onnxruntime(tools, opset, nodes, inputs, sizes=({"N": 6}, {"N": 1}), has_empty=False)


@pytest.mark.parametrize("opset", [7, 10, 11, 24])
def test_top_k_of_every_version(tools: Any, opset: int) -> None:
    axes = (1, -1)
    if opset < 10:
        nodes = [node("TopK", ["x"], [f"rv{axis}", f"ri{axis}"], k=2, axis=axis) for axis in axes]
    else:
        nodes = [node("TopK", ["x", "k"], [f"rv{axis}", f"ri{axis}"], axis=axis) for axis in axes]
    if opset >= 11:
        nodes += [node("TopK", ["x", "k"], ["rs", "rt"], largest=0), node("TopK", ["x", "k"], ["ru", "rw"], sorted=1)]
    assert_like_onnxruntime(tools, opset, nodes, X, {"k": integers(2)} if opset >= 10 else {})


def test_a_list_is_ranked_whole(tools: Any) -> None:
    """K of the list's own length, as exporters of a sort write it."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("TopK", ["x", "s"], ["rvalues", "rorder"], axis=0),
    ]
    assert_like_onnxruntime(tools, 15, nodes, {"x": ("float32", ["N", 2])}, sizes=({"N": 50}, {"N": 1}))


def test_top_k_beyond_the_list(tools: Any) -> None:
    model = convert_one(tools, 13, [node("TopK", ["t", "k"], ["v", "i"], name="best", axis=1)], k=integers(3))
    with pytest.raises(InputError, match="TopK node 'best' chooses k = 3 along dimension T, which is 2"):
        run_model(tools, model)


@pytest.mark.parametrize("opset", [11, 14])
def test_running_sums_of_every_version(tools: Any, opset: int) -> None:
    for dtype in ("float32", "int32", "int64", "float64"):
        nodes = [
            node("CumSum", ["x", axis], [f"r{axis}{exclusive}{reverse}"], exclusive=exclusive, reverse=reverse)
            for axis in ("a", "b")
            for exclusive in (0, 1)
            for reverse in (0, 1)
        ]
        nodes.append(node("CumSum", ["x", "c"], ["rc"]))
        constants: dict[str, Array] = {"a": np.array(1, np.int64), "b": np.array(-1, np.int32), "c": integers(0)}
        assert_like_onnxruntime(tools, opset, nodes, {"x": (dtype, ["N", "T", 4])}, constants)


# --- normalisation -----------------------------------------------------------------------------------------------


def test_layer_normalization(tools: Any) -> None:
    constants = {"s4": floats(4), "b4": floats(4, seed=2), "s34": floats(3, 4), "b34": floats(3, 4, seed=3)}
    forms: list[tuple[list[str], dict[str, Any]]] = [
        (["x", "s4"], {}),
        (["x", "s4", "b4"], {"epsilon": 0.1}),
        (["x", "s34", "b34"], {"axis": 1}),
        (["x", "s34", "b34"], {"axis": -2, "stash_type": 1}),
    ]
    nodes = [node("LayerNormalization", names, [f"r{index}"], **extra) for index, (names, extra) in enumerate(forms)]
    nodes.append(node("LayerNormalization", ["x", "s4", "b4"], ["ry", "rmean", "rinverse"]))
    assert_like_onnxruntime(tools, 17, nodes, X, constants)


def by_definition(x: Array, axis: int, *parameters: Array) -> Array:
    axes = tuple(range(axis, x.ndim))
    wide = x.astype(np.float64)
    y = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    for array, combine in zip(parameters, (np.multiply, np.add), strict=False):
        y = combine(y, array)
    return y


@pytest.mark.parametrize(
    ("axis", "scale", "bias"),
    [
        (2, (1,), (4,)),
        (1, (4,), (3, 1)),
        (2, (3, 4), (4,)),
        (2, (1, 1, 4), (3, 1)),
        (1, (1, 3, 4), ()),
    ],
)
def test_layer_normalization_broadcasts_its_parameters(
    tools: Any, axis: int, scale: tuple[int, ...], bias: tuple[int, ...]
) -> None:
    constants = {"s": floats(*scale), "b": floats(*bias, seed=2)}
    model = convert_one(tools, 17, [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis)], **constants)
    x = floats(5, 3, 4)
    (made,) = run_model(tools, model, x=x)
    np.testing.assert_allclose(made, by_definition(x, axis, *constants.values()), 1e-5, 1e-6)


def test_statistics_in_other_precisions(tools: Any) -> None:
    inputs = {"x": ("float32", ["N", 4]), "d": ("float64", ["N", 4])}
    nodes = [
        node("LayerNormalization", ["x", "s"], ["a", "b", "c"], stash_type=11),
        node("LayerNormalization", ["d", "e"], ["f", "g", "h"], stash_type=1),
        node("RMSNormalization", ["d", "e"], ["i"], stash_type=11),
    ]
    constants = {"s": floats(4), "e": floats(4).astype(np.float64)}
    graph = convert(tools.onnx_model(nodes, inputs, list("abcfghi"), constants=constants, opset=23)).graph
    x = floats(3, 4)
    results = tools.Compiled(graph)({"x": x, "d": x.astype(np.float64)})
    assert [results[name].dtype.name for name in "abcfghi"] == [
        *("float32", "float64", "float64"),
        *("float64", "float32", "float32", "float64"),
    ]
    for name in "af":
        np.testing.assert_allclose(results[name], by_definition(x, 1, constants["s"]), 1e-5, 1e-6)
    for name, exact in (("b", True), ("g", False)):
        mean = x.astype(np.float64).mean(1, keepdims=True)
        np.testing.assert_allclose(results[name], mean, 1e-14 if exact else 1e-6, 1e-15 if exact else 1e-7)


def test_rms_normalization(tools: Any) -> None:
    constants = {"s4": floats(4), "s34": floats(3, 4), "s1": floats(3, 1)}
    nodes = [
        node("RMSNormalization", ["x", name], [name.upper()], axis=axis) for name, axis in (("s4", -1), ("s34", 1))
    ]
    nodes.append(node("RMSNormalization", ["x", "s1"], ["S1"], epsilon=0.5))
    results = run_model(tools, convert_one(tools, 23, nodes, **constants), x=(x := floats(5, 3, 4)))
    for array, axes, name, epsilon in zip(results, ((2,), (1, 2), (2,)), constants, (1e-5, 1e-5, 0.5), strict=True):
        expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + epsilon) * constants[name]
        np.testing.assert_allclose(array, expected, 2e-6, 1e-7)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization_of_computed_parameters(tools: Any, opset: int) -> None:
    inputs: Inputs = {
        "x": ("float32", ["N", 3, 4]),
        "y": ("float32", ["N", 3]),
        "g": ("float32", [3]),
        "v": ("float32", [3]),
    }
    constants = {"b": floats(3), "m": floats(3, seed=2), "one": np.ones(1, np.float32)}
    nodes = [node("Mul", ["v", "v"], ["vv"]), node("Add", ["vv", "one"], ["variance"])]
    nodes += [
        node("BatchNormalization", [name, "g", "b", "m", "variance"], [f"r{name}"], epsilon=0.01) for name in "xy"
    ]
    assert_like_onnxruntime(tools, opset, nodes, inputs, constants)


def test_batch_normalization_of_each_place(tools: Any) -> None:
    constants = {"g": floats(3, 4), "b": floats(3, 4, seed=2), "m": floats(3, 4, seed=3), "v": np.abs(floats(3, 4)) + 1}
    graph = helper.make_graph(
        [node("BatchNormalization", ["x", *"gbmv"], ["y"], spatial=0)],
        "places",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=8))
    x = floats(2, 3, 4, seed=5)
    (made,) = run_model(tools, model, x=x)
    g, b, m, v = constants.values()
    np.testing.assert_allclose(made, (x - m) / np.sqrt(v + 1e-5) * g + b, 1e-5, 1e-6)


def test_instance_group_and_vector_normalization(tools: Any) -> None:
    inputs: Inputs = {
        "x": ("float32", ["N", 6, 4, 5]),
        "y": ("float32", ["N", 6, "T"]),
    }
    constants = {"s": floats(6), "b": floats(6, seed=2)}
    nodes = [node("InstanceNormalization", [name, "s", "b"], [f"ri{name}"], epsilon=0.01) for name in "xy"]
    nodes += [node("LpNormalization", ["x"], [f"rp{p}{axis}"], p=p, axis=axis) for p in (1, 2) for axis in (1, -1)]
    nodes += [
        node("MeanVarianceNormalization", ["x"], ["rm"]),
        node("MeanVarianceNormalization", ["x"], ["ra"], axes=[1, -1]),
    ]
    sizes = ({"N": 3, "T": 7}, {"N": 1, "T": 2})
    ranks = {name: 4 for one in nodes for name in one.output} | {"riy": 3}
    for opset in (9, 13):
        assert_like_onnxruntime(tools, opset, nodes, inputs, constants, sizes, ranks, has_empty=False)
    group = [node("GroupNormalization", ["x", "s", "b"], ["rg"], num_groups=3)]
    assert_like_onnxruntime(tools, 21, group, {"x": inputs["x"]}, constants)


def test_a_vector_of_zeros_stays_zero(tools: Any) -> None:
    for power in (1, 2):
        model = convert_one(tools, 22, [node("LpNormalization", ["m"], ["y"], p=power)])
        (made,) = run_model(tools, model, m=[[0.0] * 6, [0, 3, 0, -4, 0, 0]])
        expected = [0, 3, 0, -4, 0, 0] / np.array(7.0 if power == 1 else 5.0)
        np.testing.assert_allclose(made, [np.zeros(6), expected], 1e-6)


# --- refusals ----------------------------------------------------------------------------------------------------

REFUSED: list[tuple[int, onnx.NodeProto, str]] = [
    (13, node("ReduceSum", ["x", "i"], ["y"]), "axes must be known"),
    (17, node("ReduceMax", ["x"], ["y"], axes=[1, -2]), "name a dimension twice"),
    (17, node("ReduceProd", ["x"], ["y"], axes=[3]), "axis 3 is out of range for rank 3"),
    (13, node("Softmax", ["x"], ["y"], axis=3), "axis 3 is out of range for rank 3"),
    (11, node("Softmax", ["x"], ["y"], axis=4), "axis 4 is out of range for rank 3"),
    (13, node("ArgMax", ["x"], ["y"], axis=-4), "axis -4 is out of range"),
    (13, node("TopK", ["x", "i"], ["v", "j"]), "must be known when the model is converted"),
    (13, node("TopK", ["x", "k"], ["v", "j"]), "cannot choose k = 9 along axis 2"),
    (13, node("CumSum", ["x", "i"], ["y"]), "the axis must be known"),
    (17, node("LayerNormalization", ["x", "w"], ["y"], stash_type=10), "stash_type=10 is not supported"),
    (17, node("LayerNormalization", ["x", "w"], ["y"]), "do not broadcast"),
    (15, node("BatchNormalization", ["x", *["w"] * 4], ["y", "p", "q"], training_mode=1), "training_mode=1"),
    (9, node("BatchNormalization", ["x", *["w"] * 4], ["y", "p", "q", "r", "s"]), "belong to training"),
    (13, node("BatchNormalization", ["m", *["w"] * 4], ["y"]), r"must be floats of shape (6,)"),
    (13, node("InstanceNormalization", ["m", "w", "w"], ["y"]), "needs (N, C, ...)"),
    (21, node("GroupNormalization", ["x", "w", "w"], ["y"], num_groups=2), "does not divide the 3 channels"),
    (13, node("LpNormalization", ["x"], ["y"], p=3), "p=3 is not supported"),
    (13, node("GlobalMaxPool", ["m"], ["y"]), "needs dimensions behind batch and channels"),
    (13, node("GlobalLpPool", ["x"], ["y"], p=0), "p=0 is not supported"),
]


@pytest.mark.parametrize(("opset", "one", "why"), REFUSED, ids=[f"{one.op_type}-{why[:30]}" for _, one, why in REFUSED])
def test_refused_by_operator_node_and_reason(
    tools: Any, monkeypatch: pytest.MonkeyPatch, opset: int, one: onnx.NodeProto, why: str
) -> None:
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda model: model)
    named = onnx.NodeProto()
    named.CopyFrom(one)
    named.name = "it"
    with pytest.raises(UnsupportedOperatorError, match=re.escape(why)) as caught:
        convert_one(tools, opset, [named], k=integers(9))
    assert str(caught.value).startswith(f"{one.op_type} node 'it")


def test_k_bound_by_the_caller(tools: Any) -> None:
    nodes = [node("TopK", ["x", "k"], ["v", "i"])]
    inputs = {"x": ("float32", ["N", 5]), "k": ("int64", [1])}
    model = tools.onnx_model(nodes, inputs, ["v", "i"], opset=13, ranks={"v": 2, "i": 2})
    with pytest.raises(RerankError, match="give constants="):
        convert(model)
    graph = convert(model, constants={"k": integers(2)}).graph
    assert [str(dim) for dim in graph.values["v"].shape] == ["N", "2"]


def test_every_operator_of_these_files_has_a_handler() -> None:
    others = ("ReduceLogSum", "ArgMax", "ArgMin", "TopK", "CumSum", "CumProd", "Softmax", "LogSoftmax", "Hardmax")
    assert {("", f"Reduce{kind}") for kind in REDUCTIONS} | {("", name) for name in others} <= set(HANDLERS)
