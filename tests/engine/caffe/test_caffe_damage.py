"""Damaged files: whatever happens to their bytes, there is a typed error or a model that ONNX accepts."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_engine.errors import ConversionError
from rerank_engine.importers.caffe import caffe_to_onnx
from rerank_engine.importers.caffe.schema import message_class

PROTOTXT = """
name: "all"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "id" type: "Input" top: "id" input_param { shape { dim: 4 dim: 1 } } }
layer { name: "pixels" type: "Input" top: "pixels" input_param { shape { dim: 4 dim: 2 dim: 5 dim: 5 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc" inner_product_param { num_output: 4 axis: 1 } }
layer { name: "bn" type: "BatchNorm" bottom: "fc" top: "fc" batch_norm_param { eps: 0.001 } }
layer { name: "sc" type: "Scale" bottom: "fc" top: "fc" scale_param { bias_term: true axis: 1 num_axes: 1 } }
layer { name: "pr" type: "PReLU" bottom: "fc" top: "fc" }
layer { name: "em" type: "Embed" bottom: "id" top: "em" embed_param { num_output: 4 input_dim: 7 bias_term: false } }
layer { name: "fl" type: "Flatten" bottom: "em" top: "fl" flatten_param { axis: 1 end_axis: -1 } }
layer { name: "el" type: "Eltwise" bottom: "fc" bottom: "fl" top: "el" eltwise_param { coeff: 1 coeff: -2 } }
layer { name: "sl" type: "Slice" bottom: "el" top: "a" top: "b" slice_param { axis: 1 slice_point: 1 } }
layer { name: "po" type: "Power" bottom: "a" top: "po" power_param { power: 2 scale: 3 shift: 1 } }
layer { name: "re" type: "Reshape" bottom: "b" top: "re" reshape_param { shape { dim: 0 dim: 3 dim: -1 } } }
layer { name: "rd" type: "Reduction" bottom: "re" top: "rd" reduction_param { axis: 2 operation: MEAN coeff: 2 } }
layer { name: "am" type: "ArgMax" bottom: "rd" top: "am" argmax_param { axis: 1 } }
layer { name: "ti" type: "Tile" bottom: "am" top: "ti" tile_param { axis: 1 tiles: 2 } }
layer { name: "cv" type: "Convolution" bottom: "pixels" top: "cv"
        convolution_param { num_output: 2 kernel_size: 3 group: 2 pad: 1 stride: 1 dilation: 1 } }
layer { name: "pl" type: "Pooling" bottom: "cv" top: "pl" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "pf" type: "Flatten" bottom: "pl" top: "pf" }
layer { name: "cc" type: "Concat" bottom: "po" bottom: "rd" bottom: "ti" bottom: "pf" top: "cc"
        concat_param { axis: 1 } }
layer { name: "so" type: "Softmax" bottom: "cc" top: "so" softmax_param { axis: -1 } }
"""

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "fc": [(4, 6), (4,)], "bn": [(4,), (4,), (1,)], "sc": [(4,), (4,)], "pr": [(4,)], "em": [(7, 4)],
    "cv": [(2, 1, 3, 3), (2,)],
}  # fmt: skip

TOKENS = (
    "-1", "0", "1", "2", "3", "7", "-2", "99", "65536", "2147483647", "-2147483648", "4294967295", "1e38", "nan", "inf",
    "-inf", "true", "TRAIN", "MAX", "SUM", '"x"', '"fc"', '"ReLU"', '"Scale"', '"Input"', '"Data"', '"Silence"', '""',
    "{", "}", "", "include { phase: TRAIN }", "phase: TRAIN", "blobs { }", "param { name: 'w' }", "axis: 0", "axis: 2",
)  # fmt: skip


def caffemodel(caffe: Any) -> bytes:
    return caffe.write_weights({name: [np.ones(s, np.float32) for s in shapes] for name, shapes in SHAPES.items()})


def own_network(weights: bytes) -> bytes:
    """The network and its weights in one binary file."""
    from google.protobuf import text_format

    network = text_format.Parse(PROTOTXT, message_class("NetParameter")())
    trained = message_class("NetParameter").FromString(weights)
    blobs = {layer.name: layer.blobs for layer in trained.layer}
    for layer in network.layer:
        layer.blobs.extend(blobs.get(layer.name, ()))
    return network.SerializeToString()


def damage_bytes(content: bytes, source: random.Random) -> bytes:
    """One to three flips, cuts, repeats or overwritten ranges."""
    data = bytearray(content)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(data) + 1)
        end = min(len(data), at + source.choice((1, 1, 2, 4, 16)))
        action = source.randrange(5)
        if action == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif action == 1:
            del data[at:end]
        elif action == 2:
            data[at:at] = data[at:end]
        elif action == 3:
            data[at:end] = bytes(source.choice((0, 1, 127, 128, 255)) for _ in range(end - at))
        elif len(data) > 2:
            del data[source.randrange(1, len(data)) :]
    return bytes(data)


def damage_text(text: str, source: random.Random) -> str:
    """Exchange, drop or repeat one to three words."""
    words = re.findall(r"\s+|[^\s]+", text)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(words))
        action = source.randrange(4)
        if action == 0:
            words[at] = source.choice(TOKENS)
        elif action == 1:
            del words[at]
        elif action == 2:
            words.insert(at, source.choice(TOKENS))
        else:
            words[at] = words[source.randrange(len(words))]
    return "".join(words)


NUMBERS = (-(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 7, 99, 65536, 2**31 - 1)
REALS = (0.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("nan"), float("inf"))
TEXTS = (
    "x",
    "fc",
    "b",
    "",
    "ReLU",
    "Scale",
    "Bias",
    "Silence",
    "Accuracy",
    "InnerProduct",
    "Reshape",
    "Concat",
    "Embed",
)


def value_for(field: Any, source: random.Random) -> Any:
    if field.enum_type is not None:
        return source.choice([value.number for value in field.enum_type.values])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return source.choice(REALS)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return source.random() < 0.5
    if field.cpp_type == field.CPPTYPE_STRING:
        return source.choice(TEXTS)
    number = source.choice(NUMBERS)
    return abs(number) if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else number


def damage_fields(content: bytes, source: random.Random) -> bytes:
    """Set, clear, repeat or shorten one to three fields of the network, wherever they are."""
    network = message_class("NetParameter").FromString(content)
    for _ in range(source.randint(1, 3)):
        message = source.choice(network.layer)
        field = source.choice([field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields))
        while field.message_type is not None:
            inner: Any = getattr(message, field.name)
            if hasattr(inner, "extend"):
                if not inner or source.random() < 0.1:
                    inner.add()
                message = source.choice(inner)
            else:
                message = inner
            known = [entry for entry, _ in message.ListFields()]
            field = source.choice(known if known and source.random() < 0.6 else list(message.DESCRIPTOR.fields))
        value: Any = getattr(message, field.name)
        if hasattr(value, "extend"):
            if value and source.random() < 0.7:
                value[source.randrange(len(value))] = value_for(field, source)
            elif value and source.random() < 0.5:
                value.pop()
            else:
                value.append(value_for(field, source))
        elif source.random() < 0.2:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, value_for(field, source))
    return bytes(network.SerializeToString())


def survives(prototxt: str | bytes | None, weights: bytes | None) -> bool:
    """Convert; True when a model came out, and ONNX accepts it."""
    try:
        model = caffe_to_onnx(prototxt, weights)
    except ConversionError:
        return False
    onnx.checker.check_model(model, full_check=True)
    return True


def test_undamaged_files_are_read(caffe: Any) -> None:
    weights = caffemodel(caffe)
    assert survives(PROTOTXT, weights)
    assert survives(None, own_network(weights))


@pytest.mark.parametrize("seed", range(8))
def test_damaged_text_gives_a_typed_error_or_a_sound_model(caffe: Any, seed: int) -> None:
    source, weights = random.Random(seed), caffemodel(caffe)
    read = sum(survives(damage_text(PROTOTXT, source).encode(), weights) for _ in range(60))
    assert 0 < read < 60


@pytest.mark.parametrize("seed", range(8))
def test_damaged_weights_give_a_typed_error_or_a_sound_model(caffe: Any, seed: int) -> None:
    source, weights = random.Random(seed), caffemodel(caffe)
    read = sum(survives(PROTOTXT, damage_bytes(weights, source)) for _ in range(60))
    assert read < 60


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_network_in_one_file_gives_a_typed_error_or_a_sound_model(caffe: Any, seed: int) -> None:
    source, network = random.Random(seed), own_network(caffemodel(caffe))
    read = sum(survives(None, damage_bytes(network, source)) for _ in range(60))
    assert read < 60


@pytest.mark.parametrize("seed", range(8))
def test_wrong_fields_give_a_typed_error_or_a_sound_model(caffe: Any, seed: int) -> None:
    source, network = random.Random(seed), own_network(caffemodel(caffe))
    read = sum(survives(None, damage_fields(network, source)) for _ in range(100))
    assert 0 < read < 100


def test_a_file_that_ends_early_is_refused_at_every_length(caffe: Any) -> None:
    weights = caffemodel(caffe)
    for end in range(0, len(weights), 7):
        assert not survives(PROTOTXT, weights[:end])


@given(content=st.binary(max_size=200))
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_of_any_kind_are_refused(content: bytes) -> None:
    for arguments in ((content, None), (None, content), (PROTOTXT, content)):
        assert not survives(*arguments)
