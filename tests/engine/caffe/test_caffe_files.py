"""Forms of the two files: ages of the format, phases, weights and their shapes, shared parameters, paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.caffe import caffe_to_onnx
from rerank_engine.importers.caffe.schema import message_class

Array = NDArray[Any]

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }\n'
PRODUCT = 'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 2 } }\n'
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([0.5, -1], np.float32)
X = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)
RESULT = X @ WEIGHT.T + BIAS


def run(caffe: Any, prototxt: str | bytes | Path | None, weights: bytes | Path | None) -> Array:
    model = caffe_to_onnx(prototxt, weights)
    onnx.checker.check_model(model, full_check=True)
    (result,) = caffe.run_onnx(model, {"x": X.reshape(-1, *shape_of(model))}).values()
    return result


def shape_of(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]


@pytest.mark.parametrize(
    "declaration",
    [
        INPUT,
        'input: "x" input_dim: 5 input_dim: 3 input_dim: 1 input_dim: 1\n',
        'input: "x" input_shape { dim: 5 dim: 3 }\n',
    ],
)
def test_inputs_may_be_declared_in_each_way(caffe: Any, declaration: str) -> None:
    weights = caffe.write_weights({"fc": [WEIGHT, BIAS]})
    np.testing.assert_allclose(run(caffe, declaration + PRODUCT, weights), RESULT)


@pytest.mark.parametrize("options", [{}, {"legacy": True}, {"double": True}])
def test_weights_may_be_written_in_each_way(caffe: Any, options: dict[str, bool]) -> None:
    weights = caffe.write_weights({"fc": [WEIGHT, BIAS], "of another net": [BIAS]}, **options)
    np.testing.assert_allclose(run(caffe, INPUT + PRODUCT, weights), RESULT)


def test_files_may_be_paths_or_contents(caffe: Any, tmp_path: Path) -> None:
    prototxt, caffemodel = tmp_path / "deploy.prototxt", tmp_path / "small.caffemodel"
    weights = caffe.write_weights({"fc": [WEIGHT, BIAS]})
    prototxt.write_text(INPUT + PRODUCT)
    caffemodel.write_bytes(weights)
    models = [
        caffe_to_onnx(str(prototxt), str(caffemodel)),
        caffe_to_onnx(prototxt, caffemodel),
        caffe_to_onnx((INPUT + PRODUCT).encode(), weights),
    ]
    for model in models:
        np.testing.assert_allclose(caffe.run_onnx(model, {"x": X})["fc"], RESULT)
    assert [model.graph.name for model in models] == ["deploy", "deploy", "caffe"]


def test_a_caffemodel_may_describe_the_network_itself(caffe: Any) -> None:
    network = message_class("NetParameter")(name="own")
    source = network.layer.add(name="x", type="Input", top=["x"])
    source.input_param.shape.add(dim=[1, 3])
    fc = network.layer.add(name="fc", type="InnerProduct", bottom=["x"], top=["fc"])
    fc.inner_product_param.num_output = 2
    for array in (WEIGHT, BIAS):
        blob = fc.blobs.add(data=array.ravel().tolist())
        blob.shape.dim.extend(array.shape)
    np.testing.assert_allclose(run(caffe, None, network.SerializeToString()), RESULT)


def test_weights_may_stand_in_the_prototxt(caffe: Any) -> None:
    blobs = "blobs { shape { dim: 2 dim: 3 } data: [0, 1, 2, 3, 4, 5] } blobs { shape { dim: 2 } data: [0.5, -1] }"
    text = INPUT + PRODUCT.replace("inner_product_param", f"{blobs} inner_product_param")
    np.testing.assert_allclose(run(caffe, text, None), RESULT)


def test_shared_parameters_are_found_by_their_names(caffe: Any) -> None:
    names = 'param { name: "w" } param { name: "b" }'
    text = (
        INPUT
        + PRODUCT.replace("inner_product_param", f"{names} inner_product_param")
        + PRODUCT.replace('name: "fc"', 'name: "again"')
        .replace('top: "fc"', 'top: "again"')
        .replace("inner_product_param", f"{names} inner_product_param")
        + 'layer { name: "sum" type: "Eltwise" bottom: "fc" bottom: "again" top: "sum" }'
    )
    weights = caffe.write_weights({"fc": [WEIGHT, BIAS]})
    np.testing.assert_allclose(run(caffe, text, weights), 2 * RESULT)
    with pytest.raises(ConversionError, match="layers 'fc' and 'again' share the parameter 'w', but hold different"):
        run(caffe, text, caffe.write_weights({"fc": [WEIGHT, BIAS], "again": [WEIGHT + 1, BIAS]}))


PHASES = (
    'layer { name: "data" type: "Data" top: "x" top: "label" include { phase: TRAIN } data_param { source: "a" } }\n'
    + INPUT.replace('top: "x"', 'top: "x" top: "label"').replace("type", "include { phase: TEST } type")
    + PRODUCT
    + 'layer { name: "noise" type: "Python" bottom: "fc" top: "fc" exclude { phase: TEST } }\n'
    'layer { name: "off" type: "Dropout" bottom: "fc" top: "fc" include { phase: TRAIN } include { not_stage: "a" } }\n'
    'layer { name: "debug" type: "Nonsense" bottom: "fc" top: "y" include { stage: "debug" } }\n'
    'layer { name: "deep" type: "Nonsense" bottom: "fc" top: "y" include { min_level: 1 } }\n'
    'layer { name: "shallow" type: "Nonsense" bottom: "fc" top: "y" include { max_level: -1 } }\n'
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" loss_weight: 1 }\n'
    'layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }\n'
)


def test_layers_of_training_are_left_out(caffe: Any) -> None:
    weights = caffe.write_weights({"fc": [WEIGHT, BIAS]})
    model = caffe_to_onnx(PHASES, weights)
    assert [entry.name for entry in model.graph.input] == ["x"]
    assert [entry.name for entry in model.graph.output] == ["fc"]
    assert [node.name for node in model.graph.node] == ["fc", "off"]
    np.testing.assert_allclose(caffe.run_onnx(model, {"x": X})["fc"], RESULT)


def test_stages_of_the_network_choose_layers(caffe: Any) -> None:
    text = 'state { phase: TRAIN stage: "twice" }\n' + INPUT + (
        'layer { name: "a" type: "Power" bottom: "x" top: "a" power_param { scale: 2 } include { stage: "twice" } }\n'
        'layer { name: "b" type: "Power" bottom: "x" top: "b" power_param { scale: 3 } exclude { stage: "twice" } }\n'
    )  # fmt: skip
    np.testing.assert_array_equal(run(caffe, text, None), 2 * X)


def test_results_that_are_silenced_are_no_outputs(caffe: Any) -> None:
    text = INPUT + (
        'layer { name: "cut" type: "Slice" bottom: "x" top: "a" top: "b" slice_param { slice_point: 1 } }\n'
        'layer { name: "quiet" type: "Silence" bottom: "a" }\n'
        'layer { name: "y" type: "AbsVal" bottom: "b" top: "y" }\n'
    )
    assert [entry.name for entry in caffe_to_onnx(text).graph.output] == ["y"]


def test_an_input_that_is_rewritten_in_place_keeps_its_name(caffe: Any) -> None:
    text = INPUT + 'layer { name: "r" type: "ReLU" bottom: "x" top: "x" }\n' + PRODUCT
    model = caffe_to_onnx(text, caffe.write_weights({"fc": [WEIGHT, BIAS]}))
    assert [list(node.output) for node in model.graph.node] == [["x@r"], ["fc"]]
    np.testing.assert_allclose(caffe.run_onnx(model, {"x": X})["fc"], np.maximum(X, 0) @ WEIGHT.T + BIAS)


def test_names_that_collide_are_told_apart(caffe: Any) -> None:
    """Blobs called like values of ours, and two layers of one name."""
    text = INPUT + (
        'layer { name: "s" type: "Scale" bottom: "x" top: "s/mul" scale_param { bias_term: true } }\n'
        'layer { name: "a" type: "ReLU" bottom: "s/mul" top: "s/scale" }\n'
        'layer { name: "a" type: "AbsVal" bottom: "s/scale" top: "s/bias" }\n'
    )
    weights = caffe.write_weights({"s": [np.full(3, 2, np.float32), np.ones(3, np.float32)]})
    model = caffe_to_onnx(text, weights)
    onnx.checker.check_model(model, full_check=True)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    np.testing.assert_array_equal(caffe.run_onnx(model, {"x": X})["s/bias"], np.maximum(2 * X + 1, 0))


def test_a_thousand_layers_of_one_name_are_read(caffe: Any) -> None:
    step = 'layer { name: "r" type: "Power" bottom: "x" top: "x" power_param { shift: 1 } }\n'
    model = caffe_to_onnx(INPUT + step * 1000 + 'layer { name: "y" type: "AbsVal" bottom: "x" top: "y" }')
    np.testing.assert_array_equal(caffe.run_onnx(model, {"x": X})["y"], np.abs(X + 1000))


def test_old_layers_share_parameters_by_name(caffe: Any) -> None:
    old = 'layers {{ name: "{}" type: INNER_PRODUCT bottom: "x" top: "{}" param: "w" {} }}\n'.format
    rest = "blob_share_mode: STRICT inner_product_param { num_output: 2 bias_term: false }"
    text = (
        'input: "x" input_dim: 1 input_dim: 3 input_dim: 1 input_dim: 1\n' + old("a", "a", rest) + old("b", "b", rest)
    )
    text += 'layers { name: "c" type: ELTWISE bottom: "a" bottom: "b" top: "c" }'
    np.testing.assert_allclose(run(caffe, text, caffe.write_weights({"a": [WEIGHT]})), 2 * X @ WEIGHT.T)


OLD_TYPES: dict[str, Callable[[Array], Array]] = {
    "ABSVAL": np.abs, "BNLL": lambda x: np.log1p(np.exp(x)), "EXP": np.exp, "FLATTEN": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0), "SIGMOID": lambda x: 1 / (1 + np.exp(-x)), "SPLIT": lambda x: x,
    "TANH": np.tanh, "POWER": lambda x: x, "DROPOUT": lambda x: x,
    "THRESHOLD": lambda x: (x > 0).astype(np.float32), "CONCAT": lambda x: x, "SLICE": lambda x: x,
    "SOFTMAX": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "ARGMAX": lambda x: x.argmax(1)[:, None, None],
}  # fmt: skip


@pytest.mark.parametrize("old", OLD_TYPES)
def test_old_type_names_mean_today_s_layers(caffe: Any, old: str) -> None:
    text = f'input: "x" input_shape {{ dim: 1 dim: 3 }} layers {{ name: "y" type: {old} bottom: "x" top: "y" }}'
    np.testing.assert_allclose(run(caffe, text, None), OLD_TYPES[old](X), rtol=1e-6)


LATER_TYPES = {
    "NONE": "no type",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "HDF5_DATA": "HDF5Data",
    "MVN": "MVN",
    "LRN": "LRN",
}


@pytest.mark.parametrize(
    "old", [*LATER_TYPES, "DATA", "DECONVOLUTION", "EUCLIDEAN_LOSS", "IMAGE_DATA", "IM2COL", "WINDOW_DATA"]
)
def test_old_type_names_are_named_as_today_when_refused(old: str) -> None:
    text = (
        f'input: "x" input_shape {{ dim: 1 dim: 3 }} layers {{ name: "y" type: {old} bottom: "x" top: "x" top: "z" }}'
    )
    today = LATER_TYPES.get(old) or "".join(word.capitalize() for word in old.split("_"))
    with pytest.raises(ConversionError, match=rf"layer 'y' \({today}\)"):
        caffe_to_onnx(text)


def test_field_numbers_are_those_of_caffe() -> None:
    """Bytes written by hand from the field numbers of ``caffe.proto``."""
    network = message_class("NetParameter").FromString(
        b"\xa2\x06\x19"  # layer = 100
        b"\x0a\x01y"  # name = 1
        b"\x12\x04ReLU"  # type = 2
        b"\x1a\x01x\x22\x01x"  # bottom = 3, top = 4
        b"\x50\x01"  # phase = 10: TEST
        b"\xda\x07\x05\x0d\x00\x00\x00\x3f"  # relu_param = 123 { negative_slope = 1: 0.5 }
    )
    (layer,) = network.layer
    assert (layer.name, layer.type, list(layer.bottom), layer.phase) == ("y", "ReLU", ["x"], 1)
    assert layer.relu_param.negative_slope == 0.5
    numbers = {
        field.name: field.number
        for field in message_class("LayerParameter").DESCRIPTOR.fields
        if field.name.endswith("_param")
    }
    assert sorted(numbers.values()) == list(range(100, 149))
