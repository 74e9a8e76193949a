"""What the importer must not accept: every message names file, layer and field."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import ConversionError, MissingExtraError, UnsupportedOperatorError
from rerank_engine.importers.caffe import caffe_to_onnx, files
from rerank_engine.importers.caffe.layers import LAYERS
from rerank_engine.importers.caffe.schema import message_class

UNSUPPORTED, WRONG = UnsupportedOperatorError, ConversionError

# (inputs by name with their dimensions, type and rest of the layer "it", its weights, error, what the message says)
Refusal = tuple[str, str, list[tuple[int, ...]], type[Exception], str]

REFUSED: list[Refusal] = [
    # Layers as such.
    ("x:5", "LRN", [], UNSUPPORTED, "layer 'it' (LRN): this layer type is not supported; supported: Input, AbsVal"),
    ("x:5", 'Data data_param { source: "db" }', [], UNSUPPORTED, "write a deploy.prototxt with an Input layer"),
    ("x:5", "", [], WRONG, "layer 'it' (no type): it has no type"),
    ("x:5 y:5", "ReLU", [], WRONG, "layer 'it' (ReLU): it takes 1 bottoms, got 2"),
    ("x:5", "Eltwise", [], WRONG, "it takes 2 or more bottoms, got 1"),
    ("x:5 y:5 z:5", "Scale", [], WRONG, "it takes 1 to 2 bottoms, got 3"),
    ("x:5", 'ReLU top: "more"', [], WRONG, "it takes 1 tops, got 2"),
    ("x:5", 'ReLU scale_param { axis: 1 }', [], UNSUPPORTED, "field 'scale_param' has no meaning for this layer"),
    ("x:5", 'ReLU transform_param { scale: 2 }', [], UNSUPPORTED, "field 'transform_param' has no meaning"),
    # Activations.
    ("x:5", 'ReLU relu_param { negative_slope: nan }', [], WRONG, "field relu_param.negative_slope: nan is no finite"),
    ("x:", "PReLU", [()], WRONG, "needs a channel axis"),
    ("x:5", 'Clip clip_param { min: 0 }', [], WRONG, "field clip_param.max: it is required"),
    ("x:5", 'Clip clip_param { min: 2 max: 1 }', [], WRONG, "2.0 is above max 1.0"),
    ("x:5", 'Exp exp_param { base: 0 }', [], WRONG, "field exp_param.base: 0.0 must be positive, or -1"),
    ("x:5", 'Exp exp_param { shift: 200 }', [], WRONG, "field exp_param.shift: base ** 200.0 is inf"),
    ("x:5", 'Exp exp_param { base: 1e30 shift: 1e30 }', [], WRONG, "is inf in float32"),
    ("x:5", 'Exp exp_param { shift: -200 }', [], WRONG, "base ** -200.0 is 0.0"),
    ("x:5", 'Log log_param { base: 1 }', [], WRONG, "field log_param.base: 1 is no base"),
    ("x:5", 'Softmax softmax_param { axis: 2 }', [], WRONG, "field softmax_param.axis: axis 2 is out of range"),
    ("x:5", 'Dropout phase: TRAIN', [], UNSUPPORTED, "phase: TRAIN on the layer"),
    # Arithmetic.
    ("x:5 y:4", "Eltwise", [], WRONG, "bottom 1 has shape (N, 4), the first one (N, 5)"),
    ("x:5 y:5", 'Eltwise eltwise_param { coeff: 1 }', [], WRONG, "field eltwise_param.coeff: 1 coefficients for 2"),
    ("x:5 y:5", 'Eltwise eltwise_param { coeff: 1 coeff: inf }', [], WRONG, "no finite number"),
    (
        "x:5 y:5", 'Eltwise eltwise_param { operation: MAX coeff: 1 coeff: 1 }', [], WRONG,
        "operation MAX takes no coefficients",
    ),
    ("x:5", "Scale", [(4,)], WRONG, "layer 'it': blob 0 has shape (4,); the layer needs (5,)"),
    ("x:5", "Scale", [(5,), (5,)], WRONG, "it needs 1 weight blobs, <caffemodel> has 2"),
    ("x:5", 'Scale scale_param { num_axes: 3 }', [(5,)], WRONG, "3 axes from axis 1 on do not fit shape (N, 5)"),
    ("x:5", 'Scale scale_param { num_axes: -2 }', [(5,)], WRONG, "field scale_param.num_axes"),
    ("x:5", 'Scale scale_param { axis: 0 }', [(5,)], UNSUPPORTED, "over the candidates; use a later axis"),
    ("x:5 y:5", "Scale", [], WRONG, "shape (N, 5) does not fit (N, 5) from axis 1 on"),
    ("x:5 y:", 'Scale scale_param { axis: 0 bias_term: true }', [(1,)], UNSUPPORTED, "over the candidates"),
    ("x:5", 'BatchNorm phase: TRAIN', [(5,), (5,), (1,)], UNSUPPORTED, "statistics of the batch mix candidates"),
    (
        "x:5", 'BatchNorm batch_norm_param { use_global_stats: false }', [(5,), (5,), (1,)], UNSUPPORTED,
        "field batch_norm_param.use_global_stats: statistics of the batch mix candidates",
    ),
    ("x:5", 'BatchNorm batch_norm_param { eps: -3 }', [(5,), (5,), (1,)], WRONG, "variance + eps is not positive"),
    ("x:", "BatchNorm", [(1,), (1,), (1,)], UNSUPPORTED, "no channel axis"),
    ("x:5", 'Reduction reduction_param { axis: 2 }', [], WRONG, "field reduction_param.axis: axis 2 is out of range"),
    ("x:5", 'ArgMax argmax_param { top_k: 2 }', [], UNSUPPORTED, "field argmax_param.top_k: only the largest one"),
    # Layout.
    ("x:5 y:5,1", "Concat", [], WRONG, "bottom 1 of shape (N, 5, 1) cannot be joined with (N, 5) along axis 1"),
    ("x:5 y:5", 'Concat concat_param { axis: 0 }', [], UNSUPPORTED, "joins the batch with other dimensions"),
    ("x:5 y:5", 'Concat concat_param { axis: 1 concat_dim: 1 }', [], WRONG, "both axis and concat"),
    ("x:6", 'Slice top: "b" slice_param { slice_point: 1 slice_point: 2 }', [], WRONG, "2 tops need 1 points, got 2"),
    ("x:5", 'Slice top: "b"', [], WRONG, "5 elements cannot be cut into 2 equal parts"),
    ("x:5", 'Slice top: "b" slice_param { slice_point: 5 }', [], WRONG, "must rise and lie inside of 5"),
    ("x:5", 'Slice top: "b" slice_param { axis: 0 }', [], UNSUPPORTED, "joins the batch with other dimensions"),
    ("x:5", 'Flatten flatten_param { axis: 0 }', [], UNSUPPORTED, "joins the batch with other dimensions"),
    ("x:5", 'Flatten flatten_param { axis: 1 end_axis: 0 }', [], WRONG, "axis 1 comes after end_axis 0"),
    ("x:6", 'Reshape reshape_param { shape { dim: -1 dim: -1 } }', [], WRONG, "more than one -1"),
    ("x:6", 'Reshape reshape_param { shape { dim: 0 dim: 0 dim: 0 } }', [], WRONG, "0 copies an axis"),
    ("x:6", 'Reshape reshape_param { shape { dim: 0 dim: 4 } }', [], WRONG, "cannot hold the elements of (N, 6)"),
    ("x:6", 'Reshape reshape_param { shape { dim: 0 dim: 4 dim: -1 } }', [], WRONG, "cannot hold the elements"),
    ("x:6", 'Reshape reshape_param { shape { dim: 1 dim: -1 } }', [], UNSUPPORTED, "start with 0, which"),
    ("x:6", 'Reshape reshape_param { shape { dim: -1 dim: 3 } }', [], UNSUPPORTED, "start with 0, which"),
    ("x:6", 'Reshape reshape_param { shape { dim: 2 dim: 3 } }', [], UNSUPPORTED, "start with 0, which"),
    ("x:6", 'Reshape reshape_param { shape { dim: 1 } num_axes: 0 }', [], UNSUPPORTED, "the batch must stay"),
    ("x:6", 'Reshape reshape_param { shape { dim: 0 } num_axes: 0 }', [], UNSUPPORTED, "it must stay first"),
    ("x:6", 'Reshape reshape_param { axis: 4 }', [], WRONG, "field reshape_param.num_axes: axis and num_axes"),
    (
        "x:6", f'Reshape reshape_param {{ shape {{ {"dim: 1 " * 40} }} }}', [], WRONG,
        "40 dimensions; Caffe allows 32",
    ),
    ("x:6", 'Tile tile_param { axis: 0 tiles: 2 }', [], UNSUPPORTED, "joins the batch with other dimensions"),
    ("x:6", "Tile", [], WRONG, "field tile_param.tiles: 0 must be 1 or more"),
    ("x:65536", 'Tile tile_param { tiles: 65536 }', [], WRONG, "beyond what a blob may have"),
    # Products.
    ("x:5", "InnerProduct", [(2, 5), (2,)], WRONG, "field inner_product_param.num_output: 0 must be 1 or more"),
    (
        "x:5", 'InnerProduct inner_product_param { num_output: 2 }', [(5, 2), (2,)], WRONG,
        "blob 0 has shape (5, 2); the layer needs (2, 5)",
    ),
    (
        "x:5", 'InnerProduct inner_product_param { num_output: 2 axis: 0 }', [(2, 5), (2,)], UNSUPPORTED,
        "joins the batch with other dimensions ((N, 5))",
    ),
    ("x:5", 'InnerProduct inner_product_param { num_output: 2 }', [], WRONG, "it holds no weights of layer 'it'"),
    ("x:5", 'Embed embed_param { num_output: 2 }', [(4, 2), (2,)], WRONG, "field embed_param.input_dim"),
    # Space.
    ("x:5", "Convolution", [], UNSUPPORTED, "0 spatial axes are not supported"),
    ("x:2,4,4", 'Convolution convolution_param { num_output: 2 }', [], WRONG, "convolution_param.kernel_size: it is"),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 2 kernel_size: 3 axis: 2 }', [], UNSUPPORTED,
        "channels must be on axis 1",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 2 kernel_size: 5 }', [], WRONG,
        "the kernel does not fit into the padded bottom of shape (N, 2, 4, 4)",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 3 kernel_size: 1 group: 2 }', [], WRONG,
        "2 channels and 3 outputs cannot be split into 2",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 3 kernel_size: 1 stride_h: 2 }', [], WRONG,
        "field convolution_param.stride: [2, 0] must be 1 or more",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 3 kernel_size: 1 kernel_h: 2 }', [], WRONG,
        "kernel_h and kernel_w need two spatial axes, and kernel_size left out",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 3 kernel_size: [1, 1, 1] }', [], WRONG,
        "3 values for 2 spatial axes",
    ),
    (
        "x:2,4,4", 'Convolution convolution_param { num_output: 3 kernel_size: 1 dilation: [1, 1, 1] }', [], WRONG,
        "field convolution_param.dilation: 3 values for 2",
    ),
    ("x:5", 'Pooling pooling_param { kernel_size: 2 }', [], UNSUPPORTED, "needs two spatial axes"),
    ("x:2,4,4", 'Pooling pooling_param { pool: STOCHASTIC kernel_size: 2 }', [], UNSUPPORTED, "STOCHASTIC is not"),
    ("x:2,4,4", 'Pooling pooling_param { kernel_size: 2 pad: 2 }', [], WRONG, "must be smaller than the kernel"),
    ("x:2,4,4", 'Pooling pooling_param { kernel_size: 5 }', [], UNSUPPORTED, "longer than the padded axis of 4"),
    ("x:2,4,4", 'Pooling pooling_param { kernel_size: 1 stride: 4 }', [], UNSUPPORTED, "outside of the bottom"),
    ("x:2,4,4", 'Pooling pooling_param { global_pooling: true kernel_size: 2 }', [], WRONG, "leave out the kernel"),
    ("x:2,4,4", 'Pooling pooling_param { global_pooling: true stride: 2 }', [], WRONG, "goes with stride 1"),
    ("x:2,4,70000", 'Pooling pooling_param { kernel_size: 2 }', [], UNSUPPORTED, "longer than 65536"),
]  # fmt: skip


def source(name: str, dims: str, batch: int = 5) -> str:
    shape = " ".join(f"dim: {dim}" for dim in [batch, *dims.split(",")] if dim != "")
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {shape} }} }} }}\n'


def message_of(error: type[Exception], *arguments: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        caffe_to_onnx(*arguments)
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "body", "blobs", "error", "says"), REFUSED, ids=[f"{n}" for n in range(len(REFUSED))]
)
def test_layer_is_refused_by_name(
    caffe: Any, inputs: str, body: str, blobs: list[tuple[int, ...]], error: type[Exception], says: str
) -> None:
    named = [entry.split(":") for entry in inputs.split()]
    text = "".join(source(name, dims) for name, dims in named)
    bottoms = " ".join(f'bottom: "{name}"' for name, _ in named)
    kind, _, rest = body.partition(" ")
    typed = f'type: "{kind}"' if kind else ""
    text += f'layer {{ name: "it" {typed} {bottoms} top: "out" {rest} }}'
    weights = caffe.write_weights({"it": [np.ones(shape, np.float32) for shape in blobs], "other": [np.ones(1)]})
    message = message_of(error, text, weights)
    assert says in message
    assert "layer 'it'" in message
    assert message.startswith(("<prototxt>: ", "<caffemodel>: "))


X = source("x", "5")
RELU = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }\n'

NETWORKS: list[tuple[str, type[Exception], str]] = [
    ("", WRONG, "<prototxt>: it holds no layers"),
    (X, WRONG, "no layer makes a result that is left over as an output"),
    (X + 'layer { name: "r" type: "ReLU" bottom: "z" top: "y" }', WRONG, "bottom 0, 'z', is made by no earlier layer"),
    (X + RELU + RELU, WRONG, "top 0, 'y', is already made by another layer"),
    (X + X, WRONG, "top 0, 'x', is already made by another layer"),
    (X + 'layer { name: "r" type: "ReLU" bottom: "x" }', WRONG, "layer 'r' (ReLU): it has no top"),
    (X + 'layer { name: "r" type: "ReLU" bottom: "x" top: "" }', WRONG, "top 0 has no name"),
    (
        X + 'layer { name: "r" type: "Flatten" bottom: "x" top: "x" }', WRONG,
        "layer 'r' (Flatten): top 0, 'x', is also its bottom; this layer cannot work in place",
    ),
    (
        X + RELU + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "x" top: "l" }'
        'layer { name: "a" type: "AbsVal" bottom: "l" top: "z" }', WRONG,
        "bottom 0, 'l', comes from the loss or accuracy layer 'l'",
    ),
    (
        X + RELU + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "x" top: "l" top: "p" }', UNSUPPORTED,
        "layer 'l' (SoftmaxWithLoss): its second top 'p' is not supported",
    ),
    ('layer { name: "x" type: "Input" top: "x" }', WRONG, "field input_param.shape: 1 tops need as many shapes, got 0"),
    (source("x", "0") + RELU, WRONG, "[5, 0] of 'x' is no shape with a batch first"),
    (source("x", "-3") + RELU, WRONG, "[5, -3] of 'x' is no shape"),
    (
        X + source("z", "5", 7) + RELU + 'layer { name: "a" type: "AbsVal" bottom: "z" top: "b" }', WRONG,
        "inputs declare different batches (x: 5, z: 7)",
    ),
    (X + 'layer { name: "i" type: "Input" bottom: "x" top: "y" }', WRONG, "an Input layer has no bottom"),
    ("input_dim: 4 " + RELU, WRONG, "input_dim or input_shape is given, but no input"),
    ('input: "x" ' + RELU, WRONG, "1 inputs need 4 values of input_dim, got 0"),
    ('input: "x" input_dim: 3 ' + RELU, WRONG, "1 inputs need 4 values of input_dim, got 1"),
    ('input: "x" input_shape { dim: 3 } input_dim: 3 ' + RELU, WRONG, "both input_dim and input_shape"),
    ('input: "x" input_shape { dim: 3 } input_shape { dim: 3 } ' + RELU, WRONG, "1 inputs have 2 values of input"),
    (
        'layers { layer { name: "conv" type: "conv" num_output: 3 } bottom: "x" top: "y" }', UNSUPPORTED,
        "layer 'conv' is written in the oldest form (V0, layers { layer { … } }); upgrade the files with Caffe's tools"
        " upgrade_net_proto_text",
    ),
    (X + 'layers { name: "r" type: RELU bottom: "x" top: "y" }', WRONG, "it mixes 'layers' and 'layer'"),
    (
        X + 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" include { min_level: 0 } exclude { max_level: 1 } }',
        WRONG,
        "layer 'r' has include and exclude rules",
    ),
    ("state { level: 2 } " + X + RELU, WRONG, "state.level 2 is not supported"),
    (X + 'layer { name: "r" typo: "ReLU" }', WRONG, 'has no field named "typo"'),
    (X + 'layer { name: "r" type: "ReLU" relu_param { slope: 1 } }', WRONG, '"caffe.ReLUParameter" has no field named'),
    (X + 'layer { name: "r" type: "ReLU" ', WRONG, "no network in Caffe's text form"),
    ("\x00\x01{", WRONG, "no network in Caffe's text form"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error", "says"), NETWORKS, ids=[f"{n}" for n in range(len(NETWORKS))])
def test_network_is_refused_by_name(text: str, error: type[Exception], says: str) -> None:
    assert says in message_of(error, text.encode())


PRODUCT = X + ('layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }')


def weights_of(**fields: Any) -> bytes:
    network = message_class("NetParameter")()
    layer = network.layer.add(name="fc")
    blob = layer.blobs.add(**{name: value for name, value in fields.items() if name != "dims"})
    blob.shape.dim.extend(fields.get("dims", ()))
    layer.blobs.add(data=[1, 2]).shape.dim.append(2)
    return network.SerializeToString()


BLOBS = [
    (weights_of(data=[1.0] * 9, dims=[2, 5]), "layer 'fc': blob 0 declares shape (2, 5), but holds 9 values"),
    (weights_of(dims=[1 << 40, 1 << 40]), "but holds 0 values"),
    (weights_of(data=[1.0] * 10, dims=[-2, -5]), "declares shape (-2, -5)"),
    (weights_of(data=[1.0], dims=[1] * 40), "declares 40 dimensions; Caffe allows 32"),
    (
        weights_of(data=[1.0] * 10, num=1, channels=1, height=5, width=2),
        "has shape (1, 1, 5, 2); the layer needs (2, 5)",
    ),
]


@pytest.mark.parametrize(("weights", "says"), BLOBS, ids=[f"{n}" for n in range(len(BLOBS))])
def test_weights_that_do_not_fit_are_refused(weights: bytes, says: str) -> None:
    message = message_of(WRONG, PRODUCT, weights)
    assert message.startswith("<caffemodel>: layer 'fc'")
    assert says in message


def test_weights_that_are_missing_or_doubled_are_refused(caffe: Any) -> None:
    assert "layer 'fc' has weights; give the .caffemodel that holds them" in message_of(WRONG, PRODUCT)
    blobs = [np.ones((2, 5)), np.ones(2)]
    twice = caffe.write_weights({"fc": blobs}) * 2
    assert "two layers with weights are called 'fc'" in message_of(WRONG, PRODUCT, twice)
    same_name = PRODUCT + (
        'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "z" inner_product_param { num_output: 2 } }'
    )
    assert "give each its own name" in message_of(WRONG, same_name, caffe.write_weights({"fc": blobs}))


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    assert "cannot read the Caffe prototxt" in message_of(WRONG, str(tmp_path / "missing.prototxt"))
    assert "cannot read the Caffe prototxt" in message_of(WRONG, "a\0b")
    assert "cannot read the Caffe caffemodel" in message_of(WRONG, X + RELU, tmp_path)
    assert "this is an HDF5 snapshot" in message_of(WRONG, X + RELU, b"\x89HDF\r\n\x1a\n" + bytes(64))
    assert "no network in Caffe's binary form" in message_of(WRONG, X + RELU, b"\xff" * 64)
    assert "it holds no layers" in message_of(WRONG, X + RELU, b"")
    assert "70000 layers are more than the 65536" in message_of(WRONG, None, b"\xa2\x06\x00" * 70000)
    assert "is given as the .caffemodel" in message_of(WRONG, b"\xff\xfe{")
    assert "expected a path or bytes" in message_of(WRONG, 3)
    assert "give a prototxt, a caffemodel, or both" in message_of(WRONG, None)


def test_files_that_are_too_large_are_refused_unread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "_LARGEST_TEXT_BYTES", 10)
    path = tmp_path / "large.prototxt"
    path.write_text(X + RELU)
    for source in (path, (X + RELU).encode()):
        message = message_of(WRONG, source)
        assert f"{path.stat().st_size} bytes are more than the 10 that a prototxt may have" in message


def test_a_parameter_that_no_function_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = X + 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" relu_param { negative_slope: 1 } }'
    monkeypatch.setitem(LAYERS, "ReLU", replace(LAYERS["ReLU"], understood=()))
    assert "layer 'r' (ReLU): field relu_param.negative_slope is not understood" in message_of(UNSUPPORTED, text)


def test_names_that_are_no_text_are_refused() -> None:
    network = message_class("NetParameter")(name="net")
    network.layer.add(name="abcd", type="ReLU", bottom=["x"], top=["wxyz"])
    content = network.SerializeToString()
    for name in (b"net", b"abcd", b"wxyz"):
        damaged = content.replace(name, b"\xff\xfe" + name[2:])
        assert "which is no UTF-8 text" in message_of(WRONG, None, damaged)


def test_fields_of_other_caffes_are_refused_by_number() -> None:
    """A caffemodel as the network: what this schema does not know may change what a layer computes."""
    network = message_class("NetParameter")()
    network.layer.add(name="x", type="Input", top=["x"]).input_param.shape.add(dim=[1, 3])
    layer = network.layer.add(name="r", type="ReLU", bottom=["x"], top=["y"])
    layer.relu_param.SetInParent()
    layer.relu_param.MergeFromString(b"\xf8\x01\x01")
    message = message_of(UNSUPPORTED, None, network.SerializeToString())
    assert "layer 'r' (ReLU): field number 31 of ReLUParameter is no field of BVLC Caffe" in message
    layer.ClearField("relu_param")
    layer.MergeFromString(b"\xc8\x0c\x01")
    assert "field number 201 of LayerParameter" in message_of(UNSUPPORTED, None, network.SerializeToString())


@pytest.mark.parametrize("missing", ["onnx", "google.protobuf"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"rerank-sdk\[convert\]"):
        caffe_to_onnx(X + RELU)
