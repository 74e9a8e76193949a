"""Caffe files made through the protobuf schema, and the readers whose numbers are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from rerank_engine import convert, load
from rerank_engine.importers.caffe import caffe_to_onnx
from rerank_engine.importers.caffe.schema import message_class

Array = NDArray[Any]


@dataclass(frozen=True)
class CaffeModel:
    """A network as text, and its weights by layer name."""

    prototxt: str
    weights: Mapping[str, Sequence[Array]]

    @property
    def caffemodel(self) -> bytes | None:
        return write_weights(self.weights) if self.weights else None

    def to_onnx(self) -> onnx.ModelProto:
        model = caffe_to_onnx(self.prototxt, self.caffemodel)
        onnx.checker.check_model(model, full_check=True)
        return model

    def opencv(self, feeds: Mapping[str, Array], layers: Sequence[str]) -> list[Array]:
        """Results of layers as OpenCV 4 computes them."""
        files = [np.frombuffer(file, np.uint8) for file in (self.prototxt.encode(), self.caffemodel) if file]
        network = cv2.dnn.readNetFromCaffe(*files)
        for name, array in feeds.items():
            network.setInput(array, name)
        return [array for layer in network.forwardAndRetrieve(list(layers)) for array in layer]


def write_weights(weights: Mapping[str, Sequence[Array]], *, legacy: bool = False, double: bool = False) -> bytes:
    """A ``.caffemodel``; ``legacy`` writes the four old dimensions, ``double`` the field of float64 values."""
    network = message_class("NetParameter")()
    for name, arrays in weights.items():
        layer = network.layer.add(name=name)
        for array in arrays:
            blob = layer.blobs.add()
            if legacy:
                blob.num, blob.channels, blob.height, blob.width = (1,) * (4 - array.ndim) + array.shape
            else:
                blob.shape.dim.extend(array.shape)
            (blob.double_data if double else blob.data).extend(array.ravel().tolist())
    return network.SerializeToString()


def run_onnx(model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
    """Run ONNX Runtime without its own optimisations; inner values may be asked for by name."""
    if outputs:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_engine(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Convert and load once, then run each set of inputs."""
    engine = load(convert(model))
    results = [engine.run(dict(entry)) for entry in feeds]
    (first, *_) = [output.name for output in model.graph.output]
    return [entry if isinstance(entry, dict) else {first: entry} for entry in results]


def assert_close(actual: Array, expected: Array, label: str, tolerance: float = 2e-6) -> None:
    """Compare relative to the largest value of the result."""
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, expected {expected.shape}"
    scale = max(1e-30, float(np.abs(expected).max())) if expected.size else 1.0
    error = float(np.abs(actual.astype(np.float64) - expected).max()) / scale if expected.size else 0.0
    assert error <= tolerance, f"{label}: error {error:.2e} of the largest value"


class Tools:
    """What the tests take from here."""

    Model = CaffeModel
    write_weights = staticmethod(write_weights)
    run_onnx = staticmethod(run_onnx)
    run_engine = staticmethod(run_engine)
    assert_close = staticmethod(assert_close)


@pytest.fixture(scope="session")
def caffe() -> type[Tools]:
    """The tools of this file."""
    return Tools
