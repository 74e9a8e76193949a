"""Whole networks, written through Caffe's schema: ONNX Runtime and the engine against OpenCV 4 and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]

SIZES = (0, 1, 7, 200)
RANDOM_SEED = 5


def draw(*shape: int) -> Array:
    """Weights of a size that keeps activations near 1; the same in every run."""
    random = np.random.default_rng(sum(shape) + RANDOM_SEED)
    return (random.normal(size=shape) / np.sqrt(max(shape[-1] if len(shape) > 1 else 4, 1))).astype(np.float32)


def layer(name: str, kind: str, bottoms: str, top: str = "", rest: str = "") -> str:
    reads = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    writes = " ".join(f'top: "{blob}"' for blob in (top or name).split())
    return f'layer {{ name: "{name}" type: "{kind}" {reads} {writes} {rest} }}'


def source(name: str, *dims: int) -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return layer(name, "Input", "", name, f"input_param {{ shape {{ {shape} }} }}")


def product(name: str, bottom: str, outputs: int, top: str = "") -> str:
    return layer(name, "InnerProduct", bottom, top, f"inner_product_param {{ num_output: {outputs} }}")


@dataclass(frozen=True)
class Sample:
    """A network, the shapes of its inputs after the batch, and its output. ``engine``: the engine has its operators."""

    text: str
    weights: Mapping[str, list[Array]]
    inputs: Mapping[str, tuple[int, ...]]
    output: str
    engine: bool = True
    empty: bool = True


def mlp() -> Sample:
    """Two hidden layers with normalisation in place, dropout, and a sigmoid."""
    text = [source("x", 1, 12)]
    weights: dict[str, list[Array]] = {}
    bottom, size = "x", 12
    for index, outputs in enumerate((16, 8)):
        name = f"fc{index}"
        text += [
            product(name, bottom, outputs),
            layer(f"bn{index}", "BatchNorm", name, name),
            layer(f"scale{index}", "Scale", name, name, "scale_param { bias_term: true }"),
            layer(f"relu{index}", "ReLU", name, name),
            layer(f"drop{index}", "Dropout", name, name),
        ]
        weights[name] = [draw(outputs, size), draw(outputs)]
        weights[f"bn{index}"] = [draw(outputs), np.abs(draw(outputs)) + 0.5, np.array([1.75], np.float32)]
        weights[f"scale{index}"] = [draw(outputs), draw(outputs)]
        bottom, size = name, outputs
    text += [product("logit", bottom, 1), layer("score", "Sigmoid", "logit")]
    weights["logit"] = [draw(1, size), draw(1)]
    return Sample("\n".join(text), weights, {"x": (12,)}, "score")


def classifier() -> Sample:
    """A softmax classifier over a legacy four-dimensional input, in the old ``layers`` form."""
    text = """
        name: "classes"
        input: "data" input_dim: 10 input_dim: 6 input_dim: 2 input_dim: 1
        layers { name: "fc1" type: INNER_PRODUCT bottom: "data" top: "fc1" blobs_lr: 1 blobs_lr: 2
                 inner_product_param { num_output: 9 weight_filler { type: "xavier" } } }
        layers { name: "tanh1" type: TANH bottom: "fc1" top: "fc1" }
        layers { name: "fc2" type: INNER_PRODUCT bottom: "fc1" top: "fc2" inner_product_param { num_output: 5 } }
        layers { name: "prob" type: SOFTMAX bottom: "fc2" top: "prob" }
    """
    weights = {"fc1": [draw(9, 12), draw(9)], "fc2": [draw(5, 9), draw(5)]}
    return Sample(text, weights, {"data": (6, 2, 1)}, "prob")


def towers() -> Sample:
    """Two towers over embedded ids: sums and products of both, joined with dense inputs."""
    text = [
        source("user", 1, 8),
        source("item", 1, 8),
        source("dense", 1, 5),
        product("user_tower", "user", 6),
        layer("user_relu", "PReLU", "user_tower", "user_tower"),
        product("item_tower", "item", 6),
        layer("item_relu", "ReLU", "item_tower", "item_tower", "relu_param { negative_slope: 0.2 }"),
        layer("both", "Eltwise", "user_tower item_tower", "", "eltwise_param { operation: PROD }"),
        layer("apart", "Eltwise", "user_tower item_tower", "", "eltwise_param { coeff: 1 coeff: -0.5 }"),
        layer("joined", "Concat", "both apart dense", "joined"),
        product("hidden", "joined", 10),
        layer("squash", "TanH", "hidden", "hidden"),
        product("score", "hidden", 1),
    ]
    weights = {
        "user_tower": [draw(6, 8), draw(6)],
        "user_relu": [draw(6)],
        "item_tower": [draw(6, 8) + np.float32(0.01), draw(6)],
        "hidden": [draw(10, 17), draw(10)],
        "score": [draw(1, 10), draw(1)],
    }
    return Sample("\n".join(text), weights, {"user": (8,), "item": (8,), "dense": (5,)}, "score")


def gates() -> Sample:
    """Parts of one input gate each other; the pieces are reshaped, taken to the maximum and flattened."""
    text = [
        source("x", 1, 12),
        layer("cut", "Slice", "x", "left right rest", "slice_param { axis: 1 slice_point: 4 slice_point: 8 }"),
        layer("gate", "Sigmoid", "left"),
        layer("gated", "Eltwise", "gate right", "", "eltwise_param { operation: PROD }"),
        layer("shifted", "Power", "rest", "", "power_param { power: 2 scale: 0.5 shift: -0.25 }"),
        layer("larger", "Eltwise", "gated shifted", "", "eltwise_param { operation: MAX }"),
        layer("grid", "Reshape", "larger", "", "reshape_param { shape { dim: 0 dim: 2 dim: -1 } }"),
        layer("share", "Softmax", "grid", "", "softmax_param { axis: 2 }"),
        layer("flat", "Flatten", "share"),
        layer("all", "Concat", "flat gated x"),
        product("score", "all", 2),
        layer("positive", "Exp", "score"),
    ]
    return Sample("\n".join(text), {"score": [draw(2, 20), draw(2)]}, {"x": (12,)}, "positive")


def images() -> Sample:
    """Convolutions with groups and dilation, both poolings, normalisation of channels."""
    convolution = "convolution_param {{ num_output: {} kernel_size: 3 {} }}".format
    text = [
        source("pixels", 1, 2, 11, 9),
        layer("conv1", "Convolution", "pixels", "", convolution(4, "pad: 1")),
        layer("bn1", "BatchNorm", "conv1", "conv1"),
        layer("scale1", "Scale", "conv1", "conv1", "scale_param { bias_term: true }"),
        layer("relu1", "ReLU", "conv1", "conv1"),
        layer("pool1", "Pooling", "conv1", "", "pooling_param { kernel_size: 2 stride: 2 }"),
        layer("conv2", "Convolution", "pool1", "", convolution(6, "group: 2 pad: 2 dilation: 2")),
        layer("elu2", "ELU", "conv2", "conv2"),
        layer("pool2", "Pooling", "conv2", "", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }"),
        product("fc", "pool2", 3),
        layer("prob", "Softmax", "fc"),
    ]
    weights = {
        "conv1": [draw(4, 2, 3, 3), draw(4)],
        "bn1": [draw(4), np.abs(draw(4)) + 0.5, np.ones(1, np.float32)],
        "scale1": [draw(4), draw(4)],
        "conv2": [draw(6, 2, 3, 3), draw(6)],
        "fc": [draw(3, 6 * 3 * 2), draw(3)],
    }
    return Sample("\n".join(text), weights, {"pixels": (2, 11, 9)}, "prob", engine=False, empty=False)


SAMPLES: list[Callable[[], Sample]] = [mlp, classifier, towers, gates, images]


def feeds_of(sample: Sample, candidates: int) -> dict[str, Array]:
    random = np.random.default_rng(candidates)
    return {name: random.normal(size=(candidates, *shape)).astype(np.float32) for name, shape in sample.inputs.items()}


@pytest.mark.parametrize("make", SAMPLES, ids=lambda make: make.__name__)
def test_network_agrees_with_opencv(caffe: Any, make: Callable[[], Sample]) -> None:
    sample = make()
    model = caffe.Model(sample.text, sample.weights)
    converted = model.to_onnx()
    assert [output.name for output in converted.graph.output] == [sample.output]
    for candidates in SIZES:
        feeds = feeds_of(sample, candidates)
        if candidates == 0:
            if sample.empty:
                assert caffe.run_onnx(converted, feeds)[sample.output].shape[0] == 0
            continue
        (expected,) = model.opencv(feeds, [sample.output])
        found = caffe.run_onnx(converted, feeds)[sample.output]
        caffe.assert_close(found, expected, f"{make.__name__}, N = {candidates}", 5e-6)


@pytest.mark.parametrize("make", [make for make in SAMPLES if make().engine], ids=lambda make: make.__name__)
def test_network_runs_in_the_engine(caffe: Any, make: Callable[[], Sample]) -> None:
    sample = make()
    model = caffe.Model(sample.text, sample.weights)
    feeds = [feeds_of(sample, candidates) for candidates in SIZES]
    for candidates, entry, found in zip(SIZES, feeds, caffe.run_engine(model.to_onnx(), feeds), strict=True):
        result = found[sample.output]
        assert len(result) == candidates
        if candidates:
            (expected,) = model.opencv(entry, [sample.output])
            caffe.assert_close(result, expected, f"{make.__name__}, N = {candidates}", 5e-6)


def test_values_between_agree_layer_by_layer(caffe: Any) -> None:
    sample = towers()
    model = caffe.Model(sample.text, sample.weights)
    feeds = feeds_of(sample, 7)
    layers = ["both", "apart", "joined", "squash", "score"]
    blobs = ["both", "apart", "joined", "hidden", "score"]
    found = caffe.run_onnx(model.to_onnx(), feeds, blobs)
    for blob, expected in zip(blobs, model.opencv(feeds, layers), strict=True):
        caffe.assert_close(found[blob], expected, blob, 5e-6)


def test_names_of_layers_and_blobs_are_kept(caffe: Any) -> None:
    sample = mlp()
    graph = caffe.Model(sample.text, sample.weights).to_onnx().graph
    values = {node.name: list(node.output) for node in graph.node}
    assert values["fc0"] == ["fc0@fc0"]
    assert values["bn0"] == ["fc0@bn0"]
    assert values["scale0"] == ["fc0@scale0"]
    assert values["relu0"] == ["fc0@relu0"]
    assert values["drop0"] == ["fc0"]
    assert values["scale0/mul"] == ["scale0/mul"]
    assert {tensor.name for tensor in graph.initializer} >= {"fc0/weight", "fc0/bias", "bn0/mean", "scale0/scale"}
    assert [str(dim.dim_param or dim.dim_value) for dim in graph.input[0].type.tensor_type.shape.dim] == ["N", "12"]
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.value_info
    }
    assert shapes["fc1@bn1"] == ["N", 8]


EMBEDDED = "\n".join(
    [
        source("user_id", 4),
        source("item_ids", 4, 3),
        source("dense", 4, 2),
        layer("user", "Embed", "user_id", "", "embed_param { input_dim: 20 num_output: 6 bias_term: false }"),
        layer("first", "Slice", "item_ids", "id others", "slice_param { slice_point: 1 }"),
        layer("item", "Embed", "id", "", "embed_param { input_dim: 30 num_output: 6 }"),
        layer("near", "Embed", "others", "", "embed_param { input_dim: 30 num_output: 6 bias_term: false }"),
        layer("item_row", "Flatten", "item"),
        layer("near_row", "Flatten", "near"),
        layer("match", "Eltwise", "user item_row", "", "eltwise_param { operation: PROD }"),
        layer("joined", "Concat", "match near_row dense user"),
        product("hidden", "joined", 8),
        layer("relu", "ReLU", "hidden", "hidden"),
        product("score", "hidden", 1),
    ]
)
EMBEDDED_WEIGHTS = {
    "user": [draw(20, 6)],
    "item": [draw(30, 6), draw(6)],
    "near": [draw(30, 6)],
    "hidden": [draw(8, 26), draw(8)],
    "score": [draw(1, 8), draw(1)],
}


def embedded_in_float64(feeds: Mapping[str, Array]) -> Array:
    """The network as Caffe's layer catalogue defines it."""
    weights = {name: [blob.astype(np.float64) for blob in blobs] for name, blobs in EMBEDDED_WEIGHTS.items()}
    user = weights["user"][0][feeds["user_id"]]
    item = weights["item"][0][feeds["item_ids"][:, 0]] + weights["item"][1]
    near = weights["near"][0][feeds["item_ids"][:, 1:]].reshape(len(user), 12)
    joined = np.concatenate([user * item, near, feeds["dense"], user], 1)
    hidden = np.maximum(joined @ weights["hidden"][0].T + weights["hidden"][1], 0)
    return hidden @ weights["score"][0].T + weights["score"][1]


def ids_of(candidates: int) -> dict[str, Array]:
    random = np.random.default_rng(candidates)
    return {
        "user_id": random.integers(0, 20, candidates),
        "item_ids": random.integers(0, 30, (candidates, 3)),
        "dense": random.normal(size=(candidates, 2)).astype(np.float32),
    }


def test_embedded_ids_agree_with_float64(caffe: Any) -> None:
    """OpenCV has no Embed; the layer's documented definition is the reference."""
    converted = caffe.Model(EMBEDDED, EMBEDDED_WEIGHTS).to_onnx()
    kinds = {entry.name: entry.type.tensor_type.elem_type for entry in converted.graph.input}
    assert kinds == {
        "user_id": onnx.TensorProto.INT64,
        "item_ids": onnx.TensorProto.INT64,
        "dense": onnx.TensorProto.FLOAT,
    }
    feeds = [ids_of(candidates) for candidates in SIZES]
    for entry, engine in zip(feeds, caffe.run_engine(converted, feeds), strict=True):
        expected = embedded_in_float64(entry)
        caffe.assert_close(caffe.run_onnx(converted, entry)["score"], expected, "ONNX Runtime")
        caffe.assert_close(engine["score"], expected, "engine")


def test_rest_of_the_embedded_network_agrees_with_opencv(caffe: Any) -> None:
    """The same network with the embedded rows as inputs, which OpenCV can read."""
    cut = "\n".join(
        [
            source("user", 4, 6),
            source("item_row", 4, 6),
            source("near_row", 4, 12),
            source("dense", 4, 2),
            *EMBEDDED.splitlines()[9:],
        ]
    )
    weights = {name: EMBEDDED_WEIGHTS[name] for name in ("hidden", "score")}
    for candidates in SIZES[1:]:
        feeds = ids_of(candidates)
        rows = {
            "user": EMBEDDED_WEIGHTS["user"][0][feeds["user_id"]],
            "item_row": EMBEDDED_WEIGHTS["item"][0][feeds["item_ids"][:, 0]] + EMBEDDED_WEIGHTS["item"][1],
            "near_row": EMBEDDED_WEIGHTS["near"][0][feeds["item_ids"][:, 1:]].reshape(-1, 12),
            "dense": feeds["dense"],
        }
        (expected,) = caffe.Model(cut, weights).opencv(rows, ["score"])
        found = caffe.run_onnx(caffe.Model(EMBEDDED, EMBEDDED_WEIGHTS).to_onnx(), feeds)["score"]
        caffe.assert_close(found, expected, f"N = {candidates}", 5e-6)


def test_ids_that_other_layers_read_too_stay_floats(caffe: Any) -> None:
    text = "\n".join(
        [
            source("x", 1, 2),
            layer("rows", "Embed", "x", "", "embed_param { input_dim: 5 num_output: 3 bias_term: false }"),
            layer("flat", "Flatten", "rows"),
            layer("score", "Concat", "flat x"),
        ]
    )
    converted = caffe.Model(text, {"rows": [draw(5, 3)]}).to_onnx()
    assert converted.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    x = np.array([[0, 4], [1.75, 3]], np.float32)
    expected = np.concatenate([draw(5, 3)[x.astype(int)].reshape(2, 6), x], 1)
    np.testing.assert_array_equal(caffe.run_onnx(converted, {"x": x})["score"], expected)
