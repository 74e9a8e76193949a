"""The part of reading a SavedModel that needs TensorFlow; it runs in a process of its own and imports nothing of ours.

Called as ``python -c SOURCE REQUEST``, where the request is JSON: ``path``, ``signature`` (or null), ``opset``,
``lengths``, ``dimensions`` (of each input by name) and ``candidates``. Written to the working directory:
``model.onnx``, ``samples.npz`` with inputs and TensorFlow's own outputs, and ``answer.json``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OTHER_LENGTH = 4
"""Size of varying dimensions that do not count candidates, in samples."""

_LARGEST_ID = 2
_PASSES_INDICES = (
    "Add", "Cast", "Concat", "Expand", "Gather", "Identity", "Mod", "Mul", "Reshape", "Slice", "Squeeze", "Sub",
    "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""ONNX operators through which ids reach the table that they index."""


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Convert, and run TensorFlow on samples."""
    for name in ("tensorflow", "tf2onnx"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return {"missing": name, "message": str(error)}
    tf: Any = importlib.import_module("tensorflow")
    converter: Any = importlib.import_module("tf2onnx.convert")
    onnx: Any = importlib.import_module("onnx")
    loaded = tf.saved_model.load(request["path"])
    keys = sorted(key for key in loaded.signatures if not key.startswith("_"))
    key: str = request["signature"] or ""
    if request["signature"] is None and len(keys) == 1:
        key = keys[0]
    if key not in keys:
        return {"signatures": keys}
    function = loaded.signatures[key]
    specs = function.structured_input_signature[1]
    if any(spec.shape.rank is None or spec.dtype.name == "string" for spec in specs.values()):
        return {"inputs": {name: str(spec) for name, spec in specs.items()}}
    sys.argv = [
        "tf2onnx", "--saved-model", request["path"], "--signature_def", key, "--tag", "serve",
        "--opset", str(request["opset"]), "--output", "model.onnx",
    ]  # fmt: skip
    converter.main()
    model = onnx.load("model.onnx")
    record_samples(tf, function, specs, id_limits(model, onnx), request)
    return {"key": key, "inputs": sorted(specs), "outputs": sorted(function.structured_outputs)}


def id_limits(model: Any, onnx: Any) -> dict[str, int]:
    """Find the number of rows of the smallest table that each whole-numbered input can index."""
    tables = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    limits: dict[str, int] = {}
    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    for entry in model.graph.input:
        if entry.type.tensor_type.elem_type not in integers:
            continue
        reached, limit = {entry.name}, None
        for node in model.graph.node:  # In the order of computation.
            if node.op_type == "Gather" and node.input[0] in tables and node.input[1] in reached:
                axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
                rows = tables[node.input[0]][axis]
                limit = rows if limit is None else min(limit, rows)
            elif node.op_type in _PASSES_INDICES and reached.intersection(node.input):
                reached.update(node.output)
        limits[entry.name] = limit or _LARGEST_ID
    return limits


def record_samples(
    tf: Any, function: Any, specs: Mapping[str, Any], limits: Mapping[str, int], request: Mapping[str, Any]
) -> None:
    """Draw inputs for each list length and write them with what TensorFlow makes of them."""
    np: Any = importlib.import_module("numpy")
    found: dict[str, Any] = {}
    for length in request["lengths"]:
        random = np.random.default_rng(length)
        feeds = {}
        for name, spec in sorted(specs.items()):
            shape = list(spec.shape)
            for axis, size in enumerate(shape):
                if size is None:
                    counts = axis == 0 and request["dimensions"].get(name, request["candidates"])
                    shape[axis] = length if counts == request["candidates"] else OTHER_LENGTH
            kind = spec.dtype.as_numpy_dtype
            if np.issubdtype(kind, np.floating):
                feeds[name] = random.normal(0, 1, shape).astype(kind)
            else:
                feeds[name] = random.integers(0, limits.get(name, _LARGEST_ID), shape).astype(kind)
        outputs = function(**{name: tf.constant(array) for name, array in feeds.items()})
        found |= {f"{length}/in/{name}": array for name, array in feeds.items()}
        found |= {f"{length}/out/{name}": tensor.numpy() for name, tensor in outputs.items()}
    np.savez("samples.npz", **found)


if __name__ == "__main__":
    try:
        answer = main(json.loads(sys.argv[1]))
    except (Exception, SystemExit) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path("answer.json").write_text(json.dumps(answer))
