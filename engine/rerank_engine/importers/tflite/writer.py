"""The ONNX graph while it is written: nodes, constants, names that are taken, and the check of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rerank_engine.errors import ConversionError
from rerank_engine.importers.tflite.reader import Tensor

OPSET = 18
"""Version of ONNX's operators that is written."""

ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
"""Element types that values between operators may have."""

_IR_VERSION = 8
_LARGEST_MODEL_BYTES = 2**31 - 1024**2  # What a protocol buffer can hold, less room for all that is no constant.
_MOST_NODES = 100_000
_MOST_OPERATORS = 100_000
_SMALL_BYTES = 256


class Writer:
    """Collects a graph; every name in it is unique.

    Parameters
    ----------
    reserved
        Names of the graph's inputs and outputs.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._constant_bytes = 0
        self._operators = 0
        self._taken = set(reserved)
        self._declared: dict[str, Tensor] = {}
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.file_constants: dict[tuple[int, int], str] = {}
        """Constants of the file by graph and tensor: a loop's body has them once, however often it is written out."""

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """Append a node whose results already have names."""
        if len(self.nodes) >= _MOST_NODES:
            raise ConversionError(f"the model needs more than {_MOST_NODES} ONNX nodes")
        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), name=outputs[0], **attributes))

    def count_operator(self) -> None:
        """Count an operator of the file that is translated, which may write no node: those of loops may be endless."""
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise ConversionError(f"with its loops written out the model has more than {_MOST_OPERATORS} operators")

    def emit(self, op: str, inputs: Sequence[str], base: str, outputs: int = 1, **attributes: Any) -> str:
        """Append a node and return the name of its first result; further ones end in ``:1`` and so on."""
        name = self.unique(f"{base}/{op}")
        names = [name, *(f"{name}:{index}" for index in range(1, outputs))]
        self._taken.update(names)
        self.node(op, inputs, names, **attributes)
        return name

    def rename_last(self, value: str, name: str) -> bool:
        """Let the last node write ``value`` under another name; only right where nothing has read it yet."""
        if not self.nodes or list(self.nodes[-1].output) != [value]:
            return False
        self.nodes[-1].output[0] = name
        self.nodes[-1].name = name
        return True

    def initializer(self, base: str, array: NDArray[Any]) -> str:
        """File a constant, or find the same small one again, and return its name."""
        key = (array.dtype.name, array.shape, array.tobytes()) if array.nbytes <= _SMALL_BYTES else None
        if key is not None and key in self._small:
            return self._small[key]
        self._constant_bytes += array.nbytes
        if self._constant_bytes > _LARGEST_MODEL_BYTES:
            raise ConversionError(f"the constants take more than {_LARGEST_MODEL_BYTES} bytes, which ONNX cannot hold")
        name = self.unique(base)
        self._initializers[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        if key is not None:
            self._small[key] = name
        return name

    def unique(self, base: str) -> str:
        """Make a name that nothing has yet."""
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}.{count}", count + 1
        self._taken.add(name)
        return name

    def declare(self, name: str, tensor: Tensor) -> None:
        """Remember what the file says of a value, to be checked at the end."""
        self._declared[name] = tensor

    def finish(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Make the model and compare it with ONNX's own view; a difference is a damaged file or our mistake."""
        read = {value for node in self.nodes for value in node.input}
        constants = [tensor for tensor in self._initializers.values() if tensor.name in read]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION, producer_name="tflite"
        )
        try:
            onnx.checker.check_model(model)
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise ConversionError(f"the operators of the file do not fit each other: {error}") from error
        for entry in (*inferred.graph.value_info, *inferred.graph.output):
            if entry.name in self._declared:
                _compare(self._declared[entry.name], entry.type.tensor_type)
        return model


def _compare(tensor: Tensor, found: onnx.TypeProto.Tensor) -> None:
    sizes = [entry.dim_value if entry.HasField("dim_value") else -1 for entry in found.shape.dim]
    fits = not found.HasField("shape") or (
        len(sizes) == len(tensor.shape)
        and all(a == b or a < 0 or b < 0 for a, b in zip(sizes, tensor.shape, strict=True))
    )
    if not fits or found.elem_type != ONNX_TYPES.get(tensor.dtype):
        raise ConversionError(
            f"tensor {tensor.name!r} is declared as {tensor.dtype} {list(tensor.shape)},"
            f" but its operator makes type {found.elem_type} {sizes}"
        )
