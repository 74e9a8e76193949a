"""Quantised operators: the integers of ONNX Runtime, or of the definition where it has no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import ConversionError, UnsupportedOperatorError

Array = NDArray[Any]
Check = Callable[..., None]

LIMITS = {name: np.iinfo(name) for name in ("int8", "uint8", "int16", "uint16", "int32")}
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49999997, -0.0, 126.5, 127.5, 254.5, 255.5, -128.5, -129.0])
"""Ties go to the even neighbour, before the zero point is added."""

FAR = np.array([1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, 32767.5, 65535.5, -32768.5])


def draw(dtype: str, shape: Sequence[int], seed: int = 0) -> Array:
    random = np.random.default_rng(seed + sum(shape))
    if dtype == "float32":
        return np.asarray(random.normal(0, 3, tuple(shape)), dtype)
    low, high = (-1000, 1000) if dtype == "int32" else (LIMITS[dtype].min, LIMITS[dtype].max)
    return random.integers(low, high + 1, tuple(shape)).astype(dtype)


@pytest.fixture
def check(tools: Any) -> Check:
    """Compare a model with ONNX Runtime: whole numbers exactly, floats in their last digits."""

    def compare(
        one: onnx.NodeProto,
        inputs: Mapping[str, tuple[str, Sequence[Any]]],
        constants: Mapping[str, Array],
        *,
        opset: int,
        counts: Sequence[int] = (1, 7, 50),
        feeds: Mapping[str, Array] | None = None,
    ) -> None:
        model = tools.onnx_model([one], inputs, list(one.output), constants=constants, opset=opset)
        compiled = tools.Compiled(convert(model).graph)
        for count in counts:
            given = dict(feeds or {}) or {
                name: draw(dtype, [count if dim == "N" else dim for dim in shape], seed=index)
                for index, (name, (dtype, shape)) in enumerate(inputs.items())
            }
            expected = tools.run_onnxruntime(model, given)
            for name, array in compiled(given).items():
                want = expected[name]
                assert (array.dtype, array.shape) == (want.dtype, want.shape)
                if want.dtype.kind == "f":
                    np.testing.assert_allclose(array, want, rtol=3e-7, err_msg=f"{name} at N={count}")
                else:
                    np.testing.assert_array_equal(array, want, err_msg=f"{name} at N={count}")

    return compare


# --- QuantizeLinear and DequantizeLinear -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
def test_quantize_a_tensor(check: Check, dtype: str, opset: int) -> None:
    values = np.concatenate([HALVES, FAR]).astype(np.float32).reshape(1, -1)
    for zero in (0, LIMITS[dtype].min, LIMITS[dtype].max, 3):
        for scale in (1.0, 0.3, 1e-6):
            constants = {"s": np.array(scale, np.float32), "z": np.array(zero, dtype)}
            one = node("QuantizeLinear", ["x", "s", "z"], ["y"])
            width = values.shape[1]
            check(one, {"x": ("float32", ["N", width])}, constants, opset=opset, feeds={"x": values}, counts=(1,))
    check(
        node("QuantizeLinear", ["x", "s"], ["y"]),
        {"x": ("float32", ["N", 5])},
        {"s": np.array(0.5, np.float32)},
        opset=opset,
    )


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_quantize_to_sixteen_bits(check: Check, dtype: str) -> None:
    values = np.concatenate([HALVES, FAR]).astype(np.float32).reshape(1, -1)
    for zero in (0, LIMITS[dtype].min, LIMITS[dtype].max):
        constants = {"s": np.array(1.0, np.float32), "z": np.array(zero, dtype)}
        one = node("QuantizeLinear", ["x", "s", "z"], ["y"])
        check(one, {"x": ("float32", ["N", 24])}, constants, opset=21, feeds={"x": values}, counts=(1,))


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
@pytest.mark.parametrize("opset", [13, 21])
def test_quantize_along_an_axis(check: Check, axis: int, opset: int) -> None:
    size = (3, 4, 5)[axis]
    scales = np.linspace(0.01, 0.2, size).astype(np.float32)
    for dtype in ("int8", "uint8"):
        zeros = draw(dtype, (size,))
        constants = {"s": scales, "z": zeros}
        check(
            node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis),
            {"x": ("float32", [3, 4, 5])},
            constants,
            opset=opset,
        )
        check(
            node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis),
            {"x": (dtype, [3, 4, 5])},
            constants,
            opset=opset,
        )


def test_candidates_before_the_axis(check: Check) -> None:
    constants = {"s": np.array([0.1, 0.02, 0.5], np.float32), "z": np.array([3, -100, 90], np.int8)}
    check(node("QuantizeLinear", ["x", "s", "z"], ["y"]), {"x": ("float32", ["N", 3])}, constants, opset=13)
    check(node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=1), {"x": ("int8", ["N", 3, 2])}, constants, opset=13)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_dequantize_a_tensor(check: Check, dtype: str) -> None:
    opset = 21 if "16" in dtype else 13
    limits = LIMITS[dtype]
    values = np.array([[limits.min, limits.max, 0, 1, limits.min + 1]], dtype)
    for zero in (0,) if dtype == "int32" else (0, limits.min, limits.max):
        constants = {"s": np.array(0.37, np.float32), "z": np.array(zero, dtype)}
        one = node("DequantizeLinear", ["x", "s", "z"], ["y"])
        check(one, {"x": (dtype, ["N", 5])}, constants, opset=opset, feeds={"x": values}, counts=(1,))
    one = node("DequantizeLinear", ["x", "s"], ["y"])
    check(one, {"x": (dtype, ["N", 5])}, {"s": np.array(2.0, np.float32)}, opset=opset)


@pytest.mark.parametrize(("axis", "block"), [(0, 2), (1, 3), (1, 4), (-1, 2)])
def test_scales_by_block(check: Check, axis: int, block: int) -> None:
    shape = [4, 6, 4]
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    random = np.random.default_rng(1)
    scales = random.uniform(0.01, 0.3, blocks).astype(np.float32)
    for dtype in ("int8", "uint8", "int16"):
        constants = {"s": scales, "z": draw(dtype, blocks)}
        for op, source in (("QuantizeLinear", "float32"), ("DequantizeLinear", dtype)):
            one = node(op, ["x", "s", "z"], ["y"], axis=axis, block_size=block)
            check(one, {"x": (source, shape)}, constants, opset=21, counts=(1,))


def test_the_type_of_the_result_without_a_zero_point(check: Check) -> None:
    for dtype, code in (("int8", 3), ("uint16", 4), ("int16", 5), ("uint8", 2)):
        one = node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=code)
        assert np.dtype(dtype).itemsize < 4
        check(one, {"x": ("float32", ["N", 9])}, {"s": np.array(0.01, np.float32)}, opset=21)


def test_whole_numbers_are_quantised_too(tools: Any) -> None:
    """ONNX Runtime has no kernel for them; compared with the definition."""
    model = tools.onnx_model(
        [node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        {"x": ("int32", ["N", 9])},
        ["y"],
        constants={"s": np.array(3.0, np.float32), "z": np.array(-7, np.int8)},
        opset=13,
    )
    feeds = {"x": draw("int32", (7, 9))}
    expected = np.clip(np.rint(feeds["x"].astype(np.float32) / np.float32(3)) - 7, -128, 127)
    found = tools.Compiled(convert(model).graph)(feeds)["y"]
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, expected)


def test_scales_that_are_computed(tools: Any) -> None:
    """A scale and a zero point that come as inputs, for one tensor and along an axis."""
    model = tools.onnx_model(
        [node("QuantizeLinear", ["x", "s", "z"], ["y"]), node("DequantizeLinear", ["y", "s", "z"], ["w"])],
        {"x": ("float32", ["N", 3]), "s": ("float32", [3]), "z": ("uint8", [3])},
        ["y", "w"],
    )
    feeds = {
        "x": draw("float32", (9, 3)),
        "s": np.array([0.1, 0.2, 0.05], np.float32),
        "z": np.array([0, 128, 255], np.uint8),
    }
    expected = tools.run_onnxruntime(model, feeds)
    for name, array in tools.Compiled(convert(model).graph)(feeds).items():
        np.testing.assert_array_equal(array, expected[name])


# --- products ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")]
)
def test_integer_matrix_product(check: Check, left: str, right: str) -> None:
    weight = draw(right, (5, 4))
    for left_zero in (LIMITS[left].min, LIMITS[left].max, 3):
        constants = {"w": weight, "a": np.array(left_zero, left), "b": np.array(LIMITS[right].max, right)}
        check(node("MatMulInteger", ["x", "w", "a", "b"], ["y"]), {"x": (left, ["N", 5])}, constants, opset=10)
    constants = {"w": weight, "a": np.array(7, left), "b": draw(right, (4,), seed=9)}
    check(node("MatMulInteger", ["x", "w", "a", "b"], ["y"]), {"x": (left, ["N", 5])}, constants, opset=10)
    check(node("MatMulInteger", ["x", "w"], ["y"]), {"x": (left, ["N", 2, 5])}, {"w": weight}, opset=13)
    check(
        node("MatMulInteger", ["x", "w", "", "b"], ["y"]),
        {"x": (left, ["N", 5])},
        {"w": weight, "b": constants["b"]},
        opset=13,
    )
    check(node("MatMulInteger", ["x", "w"], ["y"]), {"x": (left, ["N", 3, 5]), "w": (right, ["N", 5, 2])}, {}, opset=10)


def test_integer_matrix_product_with_a_zero_point_for_each_row(tools: Any) -> None:
    """The definition has it; ONNX Runtime does not."""
    model = tools.onnx_model(
        [node("MatMulInteger", ["x", "w", "a"], ["y"])],
        {"x": ("uint8", [3, 5])},
        ["y"],
        constants={"w": draw("int8", (5, 4)), "a": np.array([0, 100, 255], np.uint8)},
    )
    feeds = {"x": draw("uint8", (3, 5))}
    left = feeds["x"].astype(np.int32) - np.array([[0], [100], [255]])
    found = tools.Compiled(convert(model).graph)(feeds)["y"]
    np.testing.assert_array_equal(found, left @ draw("int8", (5, 4)).astype(np.int32))


def test_vectors_of_whole_numbers(tools: Any) -> None:
    """A vector is a row on the left and a column on the right, as for MatMul."""
    weight, vector = draw("int8", (5, 4)), draw("uint8", (5,))
    for names, shapes in (("xw", {"x": [5], "w": [5, 4]}), ("wx", {"w": [4, 5], "x": [5]}), ("xx", {"x": [5]})):
        declared = {name: ("uint8" if name == "x" else "int8", shape) for name, shape in shapes.items()}
        model = tools.onnx_model([node("MatMulInteger", list(names), ["y"])], declared, ["y"])
        feeds = {"x": vector, "w": weight if names == "xw" else np.ascontiguousarray(weight.T)}
        feeds = {name: array for name, array in feeds.items() if name in declared}
        wide = [feeds[name].astype(np.int32) for name in names]
        found = tools.Compiled(convert(model).graph)(feeds)["y"]
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, wide[0] @ wide[1])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("opset", [10, 21])
def test_quantised_matrix_product(check: Check, dtype: str, opset: int) -> None:
    parameters = {
        "a_s": np.array(0.02, np.float32),
        "a_z": np.array(3, dtype),
        "b_z": np.array(-4 if dtype == "int8" else 120, dtype),
        "y_s": np.array(0.7, np.float32),
        "y_z": np.array(LIMITS[dtype].max - 20, dtype),
    }
    names = ["x", "a_s", "a_z", "w", "b_s", "b_z", "y_s", "y_z"]
    one = node("QLinearMatMul", names, ["y"])
    weight = {"w": draw(dtype, (17, 5)), "b_s": np.array(0.03, np.float32)}
    check(one, {"x": (dtype, ["N", 17])}, parameters | weight, opset=opset)
    columns = {"w": draw(dtype, (17, 5)), "b_s": np.linspace(0.01, 0.2, 5).astype(np.float32), "b_z": draw(dtype, (5,))}
    check(one, {"x": (dtype, ["N", 17])}, parameters | columns, opset=opset)


CONVOLUTIONS: list[tuple[list[Any], tuple[int, ...], dict[str, Any]]] = [
    (["N", 3, 9], (4, 3, 3), {"pads": [1, 1]}),
    (["N", 4, 6, 5], (6, 2, 3, 2), {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    (["N", 4, 6, 5], (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("shape", "weight", "extra"), CONVOLUTIONS)
def test_integer_convolution(check: Check, shape: list[Any], weight: tuple[int, ...], extra: dict[str, Any]) -> None:
    """Padding stands for the zero point."""
    constants = {"w": draw("uint8", weight), "a": np.array(200, np.uint8), "b": np.array(9, np.uint8)}
    for names in (["x", "w", "a", "b"], ["x", "w", "a"], ["x", "w"]):
        one = node("ConvInteger", names, ["y"], **extra)
        check(one, {"x": ("uint8", shape)}, {name: constants[name] for name in names[1:]}, opset=10)


@pytest.mark.parametrize(("shape", "weight", "extra"), CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_convolution(
    check: Check, shape: list[Any], weight: tuple[int, ...], extra: dict[str, Any], dtype: str
) -> None:
    constants = {
        "x_s": np.array(0.05, np.float32),
        "x_z": np.array(11, dtype),
        "w": draw("int8", weight),
        "w_s": np.linspace(0.01, 0.1, weight[0]).astype(np.float32),
        "w_z": np.zeros(weight[0], np.int8),
        "y_s": np.array(0.9, np.float32),
        "y_z": np.array(LIMITS[dtype].max // 2, dtype),
        "b": draw("int32", weight[:1]),
    }
    names = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z"]
    check(node("QLinearConv", [*names, "b"], ["y"], **extra), {"x": (dtype, shape)}, constants, opset=10)
    single = constants | {"w_s": np.array(0.04, np.float32), "w_z": np.array(0, np.int8)}
    del single["b"]
    check(node("QLinearConv", names, ["y"], **extra), {"x": (dtype, shape)}, single, opset=10)


@pytest.mark.parametrize("opset", [11, 21])
def test_ranges_found_while_running(check: Check, opset: int) -> None:
    one = node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    rows = [
        [-1.0, 2.0, 0.3],
        [1.0, 2.0, 3.0],
        [-1.0, -2.0, -0.5],
        [0.0, 0.0, 5.1],
        [0.0, -0.0, -3.0],
        [1e-3, 2e-3, 1e-30],
    ]
    for row in rows:
        feeds = {"x": np.array([row], np.float32)}
        check(one, {"x": ("float32", ["N", 3])}, {}, opset=opset, feeds=feeds, counts=(1,))
    check(one, {"x": ("float32", ["N", 2, 3])}, {}, opset=opset)


@pytest.mark.parametrize(
    ("one", "inputs", "constants", "why"),
    [
        (
            node("QuantizeLinear", ["x", "s"], ["y"], name="q", axis=1),
            {"x": ("float32", ["N", 3])},
            {"s": np.ones(4, np.float32)},
            "does not fit axis 1",
        ),
        (
            node("QuantizeLinear", ["x", "s"], ["y"], name="q", axis=0),
            {"x": ("float32", ["N", 3])},
            {"s": np.ones(3, np.float32)},
            "does not fit axis 0",
        ),
        (
            node("DequantizeLinear", ["x", "s"], ["y"], name="q", block_size=2),
            {"x": ("int8", ["N", 5])},
            {"s": np.ones((2, 2), np.float32)},
            "block_size=2 does not fit",
        ),
        (
            node("QuantizeLinear", ["x", "s"], ["y"], name="q", output_dtype=17),
            {"x": ("float32", ["N", 5])},
            {"s": np.ones((), np.float32)},
            "can be quantised to",
        ),
        (
            node("QuantizeLinear", ["x", "s"], ["y"], name="q", precision=10),
            {"x": ("float32", ["N", 5])},
            {"s": np.ones((), np.float32)},
            "attribute precision=10 is not supported",
        ),
        (
            node("DequantizeLinear", ["x", "s"], ["y"], name="q", output_dtype=10),
            {"x": ("int8", ["N", 5])},
            {"s": np.ones((), np.float32)},
            "attribute output_dtype=10 is not supported",
        ),
    ],
)
def test_refused_by_name(
    tools: Any, one: onnx.NodeProto, inputs: Mapping[str, Any], constants: Mapping[str, Array], why: str
) -> None:
    given = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in inputs.items()
    ]
    fixed = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = onnx.helper.make_tensor_value_info("y", 1, ["a", "b"])
    graph = onnx.helper.make_graph([one], "g", given, [made], fixed)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])
    with pytest.raises(UnsupportedOperatorError, match=f"{one.op_type} node 'q': .*{why}"):
        convert(model)


def test_narrower_kinds_are_refused_by_name(tools: Any) -> None:
    """float8 and int4 weights stop the conversion where they stand."""
    for kind in (onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.INT4):
        tensor = onnx.helper.make_tensor("z", kind, [], [0])
        graph = onnx.helper.make_graph(
            [node("QuantizeLinear", ["x", "s", "z"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, ["N", 3])],
            [onnx.helper.make_tensor_value_info("y", kind, ["N", 3])],
            [tensor, onnx.numpy_helper.from_array(np.array(1, np.float32), "s")],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
        with pytest.raises(ConversionError, match=r"constant 'z' has dtype"):
            convert(model)
