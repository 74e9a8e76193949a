"""MatMul, Gemm, Einsum, convolutions and pooling as ONNX writes them: ONNX Runtime's numbers, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import UnsupportedOperatorError

Array = NDArray[Any]
Check = Callable[..., None]


def numbers(dtype: str, shape: Sequence[int], seed: int = 0) -> Array:
    random = np.random.default_rng(seed + sum(shape))
    if dtype.startswith("float"):
        return np.asarray(random.normal(0, 1, tuple(shape)), dtype)
    return np.asarray(random.integers(0 if dtype.startswith("u") else -9, 10, tuple(shape)), dtype)


@pytest.fixture
def check(tools: Any) -> Check:
    """Compare a model of some nodes with ONNX Runtime at several N, and with given numbers for T."""

    def compare(
        nodes: Sequence[onnx.NodeProto] | onnx.NodeProto,
        inputs: Mapping[str, Any],
        constants: Mapping[str, Array] | None = None,
        *,
        opset: int = 17,
        counts: Sequence[int] = (0, 1, 7, 50),
        steps: int = 5,
        tolerance: float = 2e-6,
    ) -> None:
        nodes = [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes)
        read = {name for one in nodes for name in one.input}
        outputs = [name for one in nodes for name in one.output if name not in read]
        declared = {
            name: shape if isinstance(shape[0] if shape else 0, str) and shape[0] in _DTYPES else ("float32", shape)
            for name, shape in inputs.items()
        }
        model = tools.onnx_model(nodes, declared, outputs, constants=constants, opset=opset)
        names = {dim for _, shape in declared.values() for dim in shape if isinstance(dim, str)}
        graph = convert(model, candidates="N" if "N" in names else None).graph
        compiled = tools.Compiled(graph)
        for count in counts if names else (1,):
            sizes = {"N": count, "T": steps}
            feeds = {
                name: numbers(dtype, [sizes[dim] if isinstance(dim, str) else dim for dim in shape], seed=index)
                for index, (name, (dtype, shape)) in enumerate(declared.items())
            }
            expected = tools.run_onnxruntime(model, feeds)
            for name, array in compiled(feeds).items():
                label = f"{name} of {[one.op_type for one in nodes]} at {sizes}"
                assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), label
                scale = float(np.abs(expected[name]).max(initial=1.0, where=np.isfinite(expected[name])))
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=tolerance * scale, err_msg=label)

    return compare


_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64", "int8", "uint8")


# --- MatMul ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["N", 4], [4, 3]),
        (["N", 4], [4]),
        ([4], ["N", 4, 3]),
        ([4], [4, "N"]),
        ([4], [4]),
        (["N"], ["N"]),
        (["N"], ["N", 3]),
        ([3, "N"], ["N"]),
        ([1, "N"], ["N", 1]),
        (["N", 2, 3], [3]),
        ([2, "N", 3], [3, 5]),
        ([2, 1, "N", 3], [4, 3, 2]),
        (["N", "T", 4], ["N", 4, "T"]),
        (["N", 1, 2, 4], ["T", 4, 3]),
        (["T", "N"], ["N", "T"]),
        (["N", "T"], ["T"]),
        (["N", 2, "T", 4], [2, 4, 3]),
        (["N", 0], [0, 3]),
        (["N", 3], [3, 0]),
    ],
)
@pytest.mark.parametrize("opset", [9, 13])
def test_matmul(check: Check, left: list[Any], right: list[Any], opset: int) -> None:
    check(node("MatMul", ["x", "y"], ["z"]), {"x": left, "y": right}, opset=opset)
    fixed = {"x": left, "y": right}
    for name in ("x", "y"):
        if all(isinstance(dim, int) for dim in fixed[name]) and any(isinstance(dim, str) for dim in left + right):
            rest = {other: shape for other, shape in fixed.items() if other != name}
            check(node("MatMul", ["x", "y"], ["z"]), rest, {name: numbers("float32", fixed[name])}, opset=opset)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint32", "uint64"])
def test_matmul_of_other_dtypes(check: Check, dtype: str) -> None:
    check(node("MatMul", ["x", "w"], ["z"]), {"x": (dtype, ["N", 4])}, {"w": numbers(dtype, (4, 3))}, tolerance=1e-14)
    check(node("MatMul", ["x", "y"], ["z"]), {"x": (dtype, ["N", 2, 4]), "y": (dtype, [4])}, tolerance=1e-14)


def refused(model: onnx.ModelProto, why: str, **options: Any) -> None:
    with pytest.raises(UnsupportedOperatorError, match=why):
        convert(model, **options)


def test_matmul_of_a_number_is_refused(tools: Any) -> None:
    model = tools.onnx_model(
        [node("MatMul", ["x", "y"], ["z"], name="m")],
        {"x": ("float32", ["N", 4]), "y": ("float32", [])},
        ["z"],
        ranks={"z": 1},
    )
    refused(model, "MatMul node 'm': a number without dimensions is no matrix")


# --- Gemm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [[], [1], [3], [1, 3], [1, 1]])
@pytest.mark.parametrize("turned", [0, 1])
def test_gemm_with_every_shape_of_bias(check: Check, bias: list[int], turned: int) -> None:
    weight = numbers("float32", (3, 4) if turned else (4, 3))
    one = node("Gemm", ["x", "w", "c"], ["z"], transB=turned, alpha=0.5, beta=2.0)
    check(one, {"x": ["N", 4]}, {"w": weight, "c": numbers("float32", bias)})
    check(one, {"x": ["N", 4], "c": bias}, {"w": weight})
    check(one, {"x": ["N", 4], "w": weight.shape}, {"c": numbers("float32", bias)}, opset=7)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_of_computed_matrices_any_way_round(check: Check, opset: int) -> None:
    for turned_left, turned_right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left = [4, "N"] if turned_left else ["N", 4]
        right = [3, 4] if turned_right else [4, 3]
        one = node("Gemm", ["x", "y", "c"], ["z"], transA=turned_left, transB=turned_right)
        check(one, {"x": left, "y": right, "c": ["N", 1]}, opset=opset)
        check(one, {"x": left, "y": right, "c": [3]}, opset=opset)
        inner = [5, "N"] if turned_left else ["N", 5]
        again = node("Gemm", ["x", "y", "c"], ["z"], transA=1 - turned_left, transB=turned_right, alpha=-1.5)
        check(again, {"x": inner, "y": [3, "N"] if turned_right else ["N", 3], "c": [5, 1]}, opset=opset)


def test_gemm_without_a_bias(check: Check) -> None:
    weight = {"w": numbers("float32", (4, 3))}
    check(node("Gemm", ["x", "w"], ["z"]), {"x": ["N", 4]}, weight, opset=11)
    check(node("Gemm", ["x", "w", ""], ["z"], alpha=3.0), {"x": ["N", 4]}, weight, opset=13)
    check(node("Gemm", ["x", "x"], ["z"], transB=1), {"x": ["N", 4]})


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint32", "uint64"])
def test_gemm_of_other_dtypes(tools: Any, dtype: str) -> None:
    """ONNX Runtime has no integer kernel: compared with the definition."""
    bias = numbers(dtype, (3,), seed=5)
    model = tools.onnx_model(
        [node("Gemm", ["x", "w", "c"], ["z"], alpha=2.0, beta=3.0)],
        {"x": (dtype, ["N", 4])},
        ["z"],
        constants={"w": numbers(dtype, (4, 3)), "c": bias},
    )
    feeds = {"x": numbers(dtype, (7, 4))}
    found = tools.Compiled(convert(model).graph)(feeds)["z"]
    assert found.dtype == np.dtype(dtype)
    two, three = np.array(2, dtype), np.array(3, dtype)
    expected = two * (feeds["x"] @ numbers(dtype, (4, 3))) + three * bias
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 2.0)])
def test_gemm_with_factors_of_zero(tools: Any, alpha: float, beta: float) -> None:
    """A bias times 0 is left out, NaN and all; a product times 0 is computed, so that NaN stays: as ONNX Runtime."""
    bias = np.array([1, np.nan, np.inf, -1], np.float32)
    model = tools.onnx_model(
        [node("Gemm", ["x", "w", "c"], ["z"], alpha=alpha, beta=beta)],
        {"x": ("float32", ["N", 5])},
        ["z"],
        constants={"w": numbers("float32", (5, 4)), "c": bias},
    )
    feeds = {"x": numbers("float32", (7, 5))}
    feeds["x"][2] = np.nan
    feeds["x"][4, 1] = np.inf
    expected = tools.run_onnxruntime(model, feeds)["z"]
    found = tools.Compiled(convert(model).graph)(feeds)["z"]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("inputs", "extra", "why"),
    [
        ({"x": ["N", 2, 4], "y": [4, 3]}, {}, "needs matrices"),
        ({"x": ["N", 4], "y": [5, 3]}, {}, "inner dimensions differ"),
        ({"x": ["N", 4], "y": [4, 3], "c": [2]}, {}, "does not fit the product"),
        ({"x": [1, 4], "y": [4, 3], "c": [5, 3]}, {}, r"bias .* does not fit the product"),
        ({"x": [1, 4], "y": [4, 3], "c": ["N", 3]}, {}, r"bias .* does not fit the product"),
        ({"x": [2, 4], "y": [4, 3], "c": [1, 2, 3]}, {}, r"bias .* does not fit the product"),
        ({"x": ["N", 4], "y": [4, 3]}, {"transC": 1}, "attribute 'transC' is not understood"),
        ({"x": ("int32", ["N", 4]), "y": ("int32", [4, 3])}, {"alpha": 0.5}, "a factor of 0.5 for int32"),
    ],
)
def test_gemm_refuses_by_name(tools: Any, inputs: dict[str, Any], extra: dict[str, Any], why: str) -> None:
    declared = {name: shape if isinstance(shape, tuple) else ("float32", shape) for name, shape in inputs.items()}
    model = tools.onnx_model([node("Gemm", list(inputs), ["z"], name="g", **extra)], declared, ["z"], ranks={"z": 2})
    # The checker of ONNX knows the attributes of an operator, too.
    with pytest.raises(Exception, match=rf"(Gemm node 'g': .*{why}|Unrecognized attribute: transC)"):
        convert(model)


# --- Einsum ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [["N", 4], [4, 3]]),
        ("ij,jk", [["N", 4], [4, 3]]),
        ("ij", [["N", 4]]),
        ("ba", [["N", 4]]),
        ("i,j", [["N"], [3]]),
        ("bij,bjk->bik", [["N", 2, 3], ["N", 3, 4]]),
        ("bhid,bhjd->bhij", [["N", 2, "T", 3], ["N", 2, "T", 3]]),
        ("bhij,bhjd->bihd", [["N", 2, 3, "T"], ["N", 2, "T", 4]]),
        ("bid,btd->bit", [["N", 1, 4], ["N", "T", 4]]),
        ("nd,td->nt", [["N", 4], ["T", 4]]),
        ("nd,td->tn", [["N", 4], ["T", 4]]),
        ("ntd,nd->nt", [["N", "T", 4], ["N", 4]]),
        ("ntd,td->n", [["N", "T", 4], ["T", 4]]),
        ("i...,i...->...", [[4, "N"], [4, "N"]]),
        ("...i->...", [["N", 2, 3]]),
        ("...", [["N", 3]]),
        ("ii->i", [["N", "N"]]),
        ("ii", [["N", "N"]]),
        ("bii->bi", [["N", 4, 4]]),
        ("bii->b", [["N", 4, 4]]),
        ("iji->j", [[3, "N", 3]]),
        ("ij,jk,kl->il", [["N", 3], [3, 4], [4, 2]]),
        ("i,i,i->", [["N"], ["N"], ["N"]]),
        ("bn,anm,bm->ba", [["N", 2], [5, 2, 3], ["N", 3]]),
        ("bi,bj,bk->bijk", [["N", 2], ["N", 3], ["N", 2]]),
        (",->", [[], []]),
        (",i->i", [[], ["N"]]),
        ("->", [[]]),
        (" i j , j k -> i k ", [["N", 4], [4, 3]]),
        ("ij,jk->ik", [["N", 1], [4, 3]]),
        ("ij,ij->ij", [["N", 1], [1, 4]]),
        ("ij,ij->j", [["N", 1], ["N", 4]]),
        ("bij,bjk->bik", [[1, 2, 3], ["N", 3, 4]]),
        ("Ab,bA->Ab", [["N", 3], [3, "N"]]),
        ("aB,Bc", [["N", 3], [3, 4]]),
        ("ij,kl->", [["N", 3], ["T", 2]]),
        ("ij,kl->ik", [["N", 3], ["T", 2]]),
        ("ij,kl->ki", [["N", 3], ["N", 2]]),
        ("i,j->i", [["N"], ["N"]]),
        ("ij->", [["N", 0]]),
        ("ij,jk->ik", [["N", 0], [0, 3]]),
    ],
)
def test_einsum(check: Check, equation: str, shapes: list[list[Any]]) -> None:
    inputs = {f"x{index}": shape for index, shape in enumerate(shapes)}
    check(node("Einsum", list(inputs), ["z"], equation=equation), inputs, counts=(1, 2, 7, 50), tolerance=4e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [["N", 2, 3], [3, 4]]),
        ("...ij,...jk->...ik", [[2, "N", 2, 3], ["N", 3, 4]]),
        ("...ij,...jk->...ik", [["N", 1, 2, 3], [5, 3, 4]]),
        ("...,...", [["N", 3], [3]]),
        ("...i,i->i...", [[2, "N", 3], [3]]),
        ("a...,...->a...", [["N", 3], [2, 1, 3]]),
    ],
)
def test_an_ellipsis_of_several_ranks(tools: Any, equation: str, shapes: list[list[Any]]) -> None:
    """ONNX Runtime wants one rank for all of them; compared with NumPy, which defines the equations."""
    inputs = {f"x{index}": ("float32", shape) for index, shape in enumerate(shapes)}
    graph = convert(_bare(node("Einsum", list(inputs), ["z"], equation=equation), inputs)).graph
    compiled = tools.Compiled(graph)
    for count in (0, 1, 7):
        feeds = {
            name: numbers("float32", [count if dim == "N" else dim for dim in shape], seed=index)
            for index, (name, (_, shape)) in enumerate(inputs.items())
        }
        expected = np.einsum(equation, *(array.astype(np.float64) for array in feeds.values()))
        found = compiled(feeds)["z"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_einsum_of_other_dtypes(check: Check, dtype: str) -> None:
    inputs = {"x": (dtype, ["N", 3]), "y": (dtype, [3, 4])}
    check(node("Einsum", ["x", "y"], ["z"], equation="ij,jk->ki"), inputs, tolerance=1e-14)
    check(node("Einsum", ["x", "x"], ["z"], equation="ij,kj->ik"), {"x": (dtype, ["N", 3])}, tolerance=1e-14)


@pytest.mark.parametrize(
    ("equation", "shapes", "why"),
    [
        ("ij,jk->ik", [["N", 4]], "has 2 operands for 1"),
        ("ij->ik", [["N", 4]], "repeats or invents a subscript"),
        ("ij->ii", [["N", 4]], "repeats or invents a subscript"),
        ("i->i", [["N", 4]], "do not fit 2 dimensions"),
        ("ijk->i", [["N", 4]], "do not fit 2 dimensions"),
        ("i..j->ij", [["N", 4]], "do not fit"),
        ("ij,jk->ik", [["N", 4], [5, 3]], "subscript 'j' stands for"),
        ("i1->i", [["N", 4]], "sign that is no letter"),
        ("ij,ij->ij", [["N", 4], ["T", 4]], "subscript 'i' stands for"),
        ("ii->i", [["N", 4]], "subscript 'i' stands for"),
        ("i...->i", [["N", 4]], "leaves the ellipsis out"),
        ("...i,...i->i", [["N", 4], ["N", 4]], "leaves the ellipsis out"),
    ],
)
def test_einsum_refuses_by_name(tools: Any, equation: str, shapes: list[Any], why: str) -> None:
    inputs = {f"x{index}": ("float32", shape) for index, shape in enumerate(shapes)}
    one = node("Einsum", list(inputs), ["z"], name="e", equation=equation)
    with pytest.raises(UnsupportedOperatorError, match=rf"Einsum node 'e': .*{why}"):
        convert(_bare(one, inputs), candidates="N")


def _bare(one: onnx.NodeProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """A model that ONNX's shape inference need not like."""
    given = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, (_, shape) in inputs.items()]
    made = onnx.helper.make_tensor_value_info("z", 1, ["a"])
    graph = onnx.helper.make_graph([one], "g", given, [made])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


# --- convolutions ------------------------------------------------------------------------------------------

CONVOLUTIONS: list[tuple[list[Any], tuple[int, ...], dict[str, Any]]] = [
    (["N", 3, 9], (4, 3, 3), {}),
    (["N", 3, 9], (4, 3, 1), {}),
    (["N", 3, 9], (4, 3, 3), {"pads": [1, 2], "strides": [2]}),
    (["N", 3, 9], (4, 3, 3), {"dilations": [3], "pads": [3, 0]}),
    (["N", 4, 9], (6, 2, 3), {"group": 2}),
    (["N", 4, 9], (4, 1, 2), {"group": 4, "dilations": [2]}),
    (["N", 4, 9], (8, 1, 3), {"group": 4, "strides": [2]}),
    (["N", 3, "T"], (4, 3, 3), {"pads": [1, 1]}),
    (["N", 3, "T"], (4, 3, 2), {}),
    (["N", 4, "T"], (4, 1, 3), {"group": 4, "pads": [2, 0]}),
    (["N", 2, "T"], (2, 2, 3), {"auto_pad": "SAME_UPPER"}),
    (["N", 2, "T"], (2, 2, 2), {"auto_pad": "SAME_LOWER"}),
    (["N", 2, "T"], (2, 2, 3), {"auto_pad": "VALID", "dilations": [2]}),
    ([1, 3, "N"], (4, 3, 3), {"pads": [1, 1]}),
    (["N", 3, 6, 7], (4, 3, 3, 2), {"pads": [1, 0, 0, 1], "strides": [2, 1]}),
    (["N", 4, 6, 7], (4, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    (["N", 4, 6, 7], (8, 1, 3, 3), {"group": 4, "dilations": [2, 1]}),
    (["N", 2, "T", 4], (3, 2, 2, 2), {}),
    (["N", 2, 4, "T"], (3, 2, 3, 1), {"strides": [2, 1]}),
    (["N", 2, 3, 4, 5], (3, 2, 2, 2, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 1, 0, 0]}),
    (["N", 1, 5], (1, 1, 5), {}),
    (["N", 2, 5], (3, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2]}),
    (["N", 2, 6], (3, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [2]}),
    (["N", 2, 5, 5], (3, 2, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    (["N", 2, 5, 5], (3, 2, 4, 1), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    (["N", 2, 7], (3, 2, 2), {"auto_pad": "VALID", "strides": [3]}),
    (["N", 2, 2], (1, 2, 2), {"kernel_shape": [2]}),
]


@pytest.mark.parametrize(("shape", "weight", "extra"), CONVOLUTIONS)
@pytest.mark.parametrize("opset", [7, 17])
def test_convolution(
    check: Check, shape: list[Any], weight: tuple[int, ...], extra: dict[str, Any], opset: int
) -> None:
    constants = {"w": numbers("float32", weight), "b": numbers("float32", weight[:1])}
    counts = (0, 1, 9) if shape[0] == "N" else (1, 9)
    check(node("Conv", ["x", "w", "b"], ["z"], **extra), {"x": shape}, constants, opset=opset, counts=counts)
    if opset == 17:
        check(node("Conv", ["x", "w"], ["z"], **extra), {"x": shape, "w": list(weight)}, opset=opset, counts=(1, 9))


POOLS: list[tuple[list[Any], dict[str, Any]]] = [
    (["N", 3, 9], {"kernel_shape": [3]}),
    (["N", 3, 9], {"kernel_shape": [2], "strides": [2]}),
    (["N", 3, 9], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    (["N", 3, 9], {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    (["N", 3, 10], {"kernel_shape": [3], "strides": [3], "ceil_mode": 1, "pads": [0, 1]}),
    (["N", 3, 6, 7], {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]}),
    (["N", 3, 6, 7], {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    (["N", 3, 5, 5], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    (["N", 3, 5, 6], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    (["N", 3, 5, 6], {"kernel_shape": [3, 2], "auto_pad": "VALID"}),
    (["N", 2, 3, 4, 5], {"kernel_shape": [2, 2, 2], "strides": [1, 2, 2], "pads": [1, 0, 0, 0, 1, 1]}),
    (["N", 2, "T"], {"kernel_shape": [3]}),
    (["N", 2, "T"], {"kernel_shape": [2]}),
    (["N", 2, "T", 4], {"kernel_shape": [1, 2], "strides": [1, 2]}),
]


@pytest.mark.parametrize(("shape", "extra"), POOLS)
def test_largest_and_mean_of_windows(check: Check, shape: list[Any], extra: dict[str, Any]) -> None:
    for opset in (10, 12, 19):
        check(node("MaxPool", ["x"], ["z"], **extra), {"x": shape}, opset=opset, counts=(0, 1, 9))
        for included in (0, 1):
            one = node("AveragePool", ["x"], ["z"], count_include_pad=included, **extra)
            check(one, {"x": shape}, opset=opset, counts=(0, 1, 9))


def test_windows_with_gaps(check: Check) -> None:
    extra = {"kernel_shape": [3], "dilations": [2], "strides": [2], "pads": [1, 2]}
    check(node("MaxPool", ["x"], ["z"], **extra), {"x": ["N", 2, 11]}, opset=12, counts=(1, 9))
    check(node("MaxPool", ["x"], ["z"], ceil_mode=1, **extra), {"x": ["N", 2, 12]}, opset=12, counts=(1, 9))
    for included in (0, 1):
        one = node("AveragePool", ["x"], ["z"], count_include_pad=included, **extra)
        check(one, {"x": ["N", 2, 11]}, opset=19, counts=(1, 9))


def test_largest_of_whole_numbers(check: Check) -> None:
    extra = {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}
    for dtype in ("int8", "uint8"):
        check(node("MaxPool", ["x"], ["z"], **extra), {"x": (dtype, ["N", 1, 4, 5])}, opset=12, counts=(1, 9))


def test_pooling_of_everything(check: Check) -> None:
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        check(node(op, ["x"], ["z"]), {"x": ["N", 3, "T"]}, counts=(1, 9))
        check(node(op, ["x"], ["z"]), {"x": ["N", 3, 4, 5]}, counts=(0, 1, 9))


@pytest.mark.parametrize(
    ("op", "shape", "weight", "extra", "why"),
    [
        ("Conv", ["N", 3, "T"], (4, 3, 3), {"strides": [2]}, "stride 2 over dimension T"),
        ("Conv", ["N", 3, "T"], (4, 3, 3), {"strides": [2], "auto_pad": "SAME_UPPER"}, "of unknown size"),
        ("Conv", ["N", "T", 9], (4, 3, 3), {}, "numbers of channels must be known"),
        ("Conv", ["N", 3, 9], (4, 2, 3), {}, "do not fit the weight"),
        ("Conv", ["N", 4, 9], (4, 2, 3), {"group": 3}, "do not fit the weight"),
        ("Conv", ["N", 4, 9], (4, 2, 3), {"group": 0}, "do not fit the weight"),
        ("Conv", ["N", 3, 9], (4, 3, 3), {"kernel_shape": [2]}, "kernel_shape="),
        ("Conv", ["N", 3, 9], (4, 3, 3), {"pads": [-1, 0]}, "do not fit 1 dimensions"),
        ("Conv", ["N", 3, 9], (4, 3, 3), {"pads": [1]}, "do not fit 1 dimensions"),
        ("Conv", ["N", 3, 9], (4, 3, 3), {"strides": [0]}, "must be at least 1"),
        ("Conv", ["N", 3, 9], (4, 3, 3), {"auto_pad": "SAME"}, "is not one of NOTSET"),
        ("Conv", ["N", 3, 1], (4, 3, 3), {}, "larger than dimension 1"),
        ("Conv", ["N", 3], (4, 3), {}, "needs .batch, channels, spatial"),
        ("MaxPool", ["N", 3, "T"], None, {"kernel_shape": [2], "ceil_mode": 1, "strides": [2]}, "of unknown size"),
        ("MaxPool", ["N", 3, 9], None, {"kernel_shape": [2, 2]}, "does not fit 1 spatial"),
        ("MaxPool", ["N", 3, 9], None, {"kernel_shape": [2], "storage_order": 1}, "only 0 is"),
        ("AveragePool", ["N", 3, "T"], None, {"kernel_shape": [3], "pads": [1, 1]}, "leaves padding out"),
    ],
)
def test_windows_refuse_by_name(
    op: str, shape: list[Any], weight: tuple[int, ...] | None, extra: dict[str, Any], why: str
) -> None:
    inputs = {"x": ("float32", shape)} | ({"w": ("float32", list(weight))} if weight else {})
    one = node(op, list(inputs), ["z"], name="c", **extra)
    with pytest.raises(UnsupportedOperatorError, match=rf"{op} node 'c': .*{why}"):
        convert(_bare(one, inputs), candidates="N")


def test_indices_of_the_largest_are_refused(tools: Any) -> None:
    inputs = {"x": ("float32", ["N", 3, 9])}
    one = node("MaxPool", ["x"], ["z", "i"], name="c", kernel_shape=[2])
    with pytest.raises(UnsupportedOperatorError, match="MaxPool node 'c': the output of indices is not supported"):
        convert(_bare(one, inputs))
