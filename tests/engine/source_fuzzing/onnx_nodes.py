"""The models of ONNX's own node tests, one operator each."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from rerank_engine.conformance import node_cases
from rerank_engine.conformance_refusals import reason

from .source import ONNX_NODES, Source

_MOST_BYTES = 50_000


def sources() -> list[Source]:
    """Those that are read; integers that may decide shapes are constants in them."""
    found = []
    for case in node_cases():
        if not reason(case.name):
            model = onnx.ModelProto.FromString(case.model.SerializeToString())
            _bind(model.graph, case.data_sets[0][0])
            content = model.SerializeToString(deterministic=True)
            if len(content) <= _MOST_BYTES:
                found.append(Source(ONNX_NODES, case.name, {"model.onnx": content}, "model.onnx"))
    return found


def _bind(graph: onnx.GraphProto, arrays: list[object]) -> None:
    """Turn small inputs of integers into constants."""
    for entry, array in list(zip(graph.input, arrays, strict=False)):
        if isinstance(array, np.ndarray) and array.dtype.kind in "iub" and array.ndim <= 1:
            graph.initializer.append(numpy_helper.from_array(array, entry.name))
    bound = {tensor.name for tensor in graph.initializer}
    kept = [entry for entry in graph.input if entry.name not in bound]
    if kept:
        del graph.input[:]
        graph.input.extend(kept)
    else:
        del graph.initializer[:]
