"""Small Caffe networks that use most layers: as text with weights beside it, and as one binary file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rerank_engine.importers.caffe.schema import message_class

from .source import CAFFE_BINARY, CAFFE_TEXT, Source

Shapes = Mapping[str, Sequence[tuple[int, ...]]]

_DENSE = """
name: "dense"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "id" type: "Input" top: "id" input_param { shape { dim: 4 dim: 1 } } }
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
layer { name: "cc" type: "Concat" bottom: "po" bottom: "rd" bottom: "ti" top: "cc" concat_param { axis: 1 } }
layer { name: "so" type: "Softmax" bottom: "cc" top: "so" softmax_param { axis: -1 } }
"""
_DENSE_SHAPES: Shapes = {
    "fc": [(4, 6), (4,)],
    "bn": [(4,), (4,), (1,)],
    "sc": [(4,), (4,)],
    "pr": [(4,)],
    "em": [(7, 4)],
}

_PIXELS = """
name: "pixels"
layer { name: "p" type: "Input" top: "p" input_param { shape { dim: 4 dim: 2 dim: 5 dim: 5 } } }
layer { name: "cv" type: "Convolution" bottom: "p" top: "cv"
        convolution_param { num_output: 2 kernel_size: 3 group: 2 pad: 1 stride: 1 dilation: 1 } }
layer { name: "re" type: "ReLU" bottom: "cv" top: "cv" relu_param { negative_slope: 0.1 } }
layer { name: "pl" type: "Pooling" bottom: "cv" top: "pl" pooling_param { pool: AVE kernel_size: 2 stride: 2 pad: 1 } }
layer { name: "pm" type: "Pooling" bottom: "cv" top: "pm" pooling_param { pool: MAX global_pooling: true } }
layer { name: "lf" type: "Flatten" bottom: "pl" top: "lf" }
layer { name: "mf" type: "Flatten" bottom: "pm" top: "mf" }
layer { name: "jo" type: "Concat" bottom: "lf" bottom: "mf" top: "jo" }
layer { name: "ip" type: "InnerProduct" bottom: "jo" top: "ip" inner_product_param { num_output: 3 bias_term: false } }
layer { name: "sg" type: "Sigmoid" bottom: "ip" top: "sg" }
layer { name: "dr" type: "Dropout" bottom: "sg" top: "sg" dropout_param { dropout_ratio: 0.5 } }
layer { name: "ls" type: "SigmoidCrossEntropyLoss" bottom: "sg" bottom: "sg" top: "ls" include { phase: TRAIN } }
"""
_PIXELS_SHAPES: Shapes = {"cv": [(2, 1, 3, 3), (2,)], "ip": [(3, 20)]}

_OLD = """
name: "old"
input: "data" input_dim: 10 input_dim: 6 input_dim: 2 input_dim: 1
layers { name: "fc1" type: INNER_PRODUCT bottom: "data" top: "fc1" blobs_lr: 1 blobs_lr: 2
         inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layers { name: "tanh1" type: TANH bottom: "fc1" top: "fc1" }
layers { name: "prob" type: SOFTMAX bottom: "fc1" top: "prob" }
"""
_OLD_SHAPES: Shapes = {"fc1": [(3, 12), (3,)]}

_NETWORKS = {"dense": (_DENSE, _DENSE_SHAPES), "pixels": (_PIXELS, _PIXELS_SHAPES), "old": (_OLD, _OLD_SHAPES)}


def sources() -> list[Source]:
    """All of them."""
    found = []
    for name, (text, shapes) in _NETWORKS.items():
        weights = _weights(shapes)
        files = {"net.prototxt": text.encode(), "net.caffemodel": weights.SerializeToString()}
        found.append(Source(CAFFE_TEXT, name, files, "net.prototxt", {"weights": "net.caffemodel"}))
        whole = _joined(text, weights).SerializeToString()
        found.append(Source(CAFFE_BINARY, name, {"net.caffemodel": whole}, "net.caffemodel"))
    return found


def _weights(shapes: Shapes) -> Any:
    network = message_class("NetParameter")()
    for seed, (name, arrays) in enumerate(shapes.items()):
        random = np.random.default_rng(seed)
        layer = network.layer.add(name=name)
        for shape in arrays:
            blob = layer.blobs.add()
            blob.shape.dim.extend(shape)
            blob.data.extend(random.uniform(0.1, 1.0, shape).ravel().tolist())
    return network


def _joined(text: str, weights: Any) -> Any:
    """The network with its weights in its own layers."""
    from google.protobuf import text_format

    network = text_format.Parse(text, message_class("NetParameter")())
    blobs = {layer.name: layer.blobs for layer in weights.layer}
    for layer in (*network.layer, *network.layers):
        layer.blobs.extend(blobs.get(layer.name, ()))
    return network
