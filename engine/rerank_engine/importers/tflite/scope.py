"""One graph of the file while its operators are translated: what each of its tensors is called in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.fold import fold_integers
from rerank_engine.importers.tflite.handlers import HANDLERS
from rerank_engine.importers.tflite.reader import ABSENT, Quantization, Tensor, TfliteModel
from rerank_engine.importers.tflite.writer import ONNX_TYPES, Writer

Bound = str | NDArray[Any]
"""A value from outside: its ONNX name, or the constant itself."""

_QUANTIZED_TYPES = ("int8", "uint8")
"""Element types of quantised values between operators."""


def translate_graph(
    model: TfliteModel,
    number: int,
    name: str,
    inputs: Mapping[int, str],
    outputs: Sequence[tuple[int, str]],
    dimensions: Mapping[str, str],
) -> onnx.ModelProto:
    """Translate a graph of the file.

    Parameters
    ----------
    model
        What was read.
    number
        Which graph.
    name
        Name of the ONNX graph.
    inputs
        What the outside calls the inputs, by the number of the tensor.
    outputs
        Number of the tensor and outside name of each output.
    dimensions
        Input name to the name of its first dimension, where that varies.
    """
    writer = Writer([*inputs.values(), *(output for _, output in outputs)])
    scope = Scope(writer, model, number, inputs, "", dict(reversed(outputs)))
    ins = [_describe_input(scope.tensor(tensor), known, dimensions[known]) for tensor, known in inputs.items()]
    scope.run()
    outs = []
    for tensor_number, output in outputs:
        known = scope.stored(tensor_number)
        if known != output:
            writer.node("Identity", [known], [output])
        tensor = scope.tensor(tensor_number)
        shape = [size if size >= 0 else None for size in tensor.shape]
        outs.append(helper.make_tensor_value_info(output, onnx_type(tensor), shape))
    return writer.finish(name, ins, outs)


def _describe_input(tensor: Tensor, name: str, dimension: str) -> onnx.ValueInfoProto:
    if tensor.data is not None or tensor.is_variable:
        raise ConversionError(f"input {name!r} is a constant or a variable in the file")
    shape: list[int | str] = [
        size if size >= 0 else dimension if axis == 0 else f"{name}_{axis}" for axis, size in enumerate(tensor.shape)
    ]
    return helper.make_tensor_value_info(name, onnx_type(tensor), shape)


def onnx_type(tensor: Tensor) -> int:
    """ONNX element type of a value between operators; one that is not understood stops the conversion."""
    if tensor.dtype not in ONNX_TYPES:
        raise UnsupportedOperatorError(
            f"tensor {tensor.name!r} has type {tensor.dtype}; supported: {', '.join(ONNX_TYPES)}"
        )
    if tensor.dtype in _QUANTIZED_TYPES and tensor.quantization is None:
        raise UnsupportedOperatorError(f"tensor {tensor.name!r} has type {tensor.dtype} without a scale")
    return int(ONNX_TYPES[tensor.dtype])


class Scope:
    """Values of one graph of the file; a loop runs its graph in a new scope each time.

    Parameters
    ----------
    writer
        Where nodes go.
    model
        What was read.
    number
        Which graph.
    inputs
        What the graph's inputs are, by the number of the tensor.
    prefix
        What new names start with.
    output_names
        Names that tensors must have outside, by their number.
    """

    def __init__(
        self,
        writer: Writer,
        model: TfliteModel,
        number: int,
        inputs: Mapping[int, Bound],
        prefix: str = "",
        output_names: Mapping[int, str] | None = None,
    ) -> None:
        self.writer = writer
        self.model = model
        self.prefix = prefix
        self.number = number
        self.graph = model.subgraphs[number]
        self._output_names = output_names or {}
        self._stored: dict[int, str] = {}
        self._real: dict[int, str] = {}
        self._known: dict[int, NDArray[Any]] = {}
        self._shared: set[str] = set()  # Names that others may read, so that no node may give them up.
        self._made = {*inputs, *(output for entry in self.graph.operators for output in entry.outputs)}
        for tensor, value in inputs.items():
            self.bind(tensor, value)

    def run(self) -> None:
        """Translate every operator."""
        for operator in self.graph.operators:
            self.writer.count_operator()
            call = Call(self, operator)
            handler = HANDLERS.get(operator.name)
            if handler is None:
                raise call.refuse("this operator is not supported; change the model, or export it to ONNX another way")
            try:
                if not fold_integers(call):
                    handler(call)
            except ConversionError:
                raise
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise call.refuse(f"its tensors or options do not fit each other: {error}") from error

    def nested(self, number: int, values: Sequence[Bound], prefix: str) -> Scope:
        """Run another graph of the file on values of this one."""
        inputs = self.model.subgraphs[number].inputs
        scope = Scope(self.writer, self.model, number, dict(zip(inputs, values, strict=True)), prefix)
        scope.run()
        return scope

    def value(self, number: int) -> Bound:
        """Value as stored: itself where it is a known whole number, which counters of loops are, else its name."""
        array = self.constant(number)
        return array if array is not None and array.dtype.kind in "ib" and array.size == 1 else self.stored(number)

    # --- reading ------------------------------------------------------------------------------------------

    def tensor(self, number: int) -> Tensor:
        """Tensor of a number."""
        if number == ABSENT:
            raise ConversionError("an operator lacks a tensor that it needs")
        return self.graph.tensors[number]

    def label(self, number: int) -> str:
        """Name for what is written about a tensor."""
        return self.prefix + (self.tensor(number).name or f"tensor_{number}")

    def constant(self, number: int) -> NDArray[Any] | None:
        """Real value of a constant: half precision and quantised integers as float32; None for no constant."""
        if number in self._known:
            return self._known[number]
        tensor = self.tensor(number)
        # A constant without elements has no bytes.
        if number in self._made or tensor.is_variable or (tensor.data is None and 0 not in tensor.shape):
            return None
        if tensor.is_sparse:
            raise ConversionError(f"constant {tensor.name!r} is sparse, which is not supported")
        array = tensor.array()
        if tensor.quantization is not None and array.dtype.kind in "iu":
            return dequantize(array, tensor.quantization, tensor.name)
        return array.astype(np.float32) if array.dtype == np.float16 else array

    def real(self, number: int) -> str:
        """ONNX name of a tensor's real value; quantised integers are turned into float32."""
        if number in self._real:
            return self._real[number]
        key = (self.number, number)
        if key in self.writer.file_constants and number not in self._known:
            return self.writer.file_constants[key]
        array, tensor = self.constant(number), self.tensor(number)
        if array is not None:
            name = self.writer.initializer(tensor.name or f"tensor_{number}", array)
            if number not in self._known:
                self.writer.file_constants[key] = name
        elif tensor.quantization is not None and tensor.dtype != "float32":
            name = self.writer.emit("DequantizeLinear", [self.stored(number), *self._scale(tensor)], self.label(number))
        else:
            name = self.stored(number)
        self._real[number] = name
        self._shared.add(name)
        return name

    def stored(self, number: int) -> str:
        """ONNX name of a tensor as the file stores it."""
        if number not in self._stored:
            tensor = self.tensor(number)
            if self.constant(number) is None:
                raise ConversionError(f"tensor {tensor.name!r} is used before an operator makes it")
            array = self._known[number] if number in self._known else tensor.array()
            self._file(number, self.writer.initializer(self.label(number), array))
        return self._stored[number]

    # --- writing ------------------------------------------------------------------------------------------

    def bind(self, number: int, value: Bound) -> None:
        """Let a tensor be a value that exists already, in the stored form."""
        self._claim(number)
        if isinstance(value, str):
            self._file(number, value)
        else:
            self._known[number] = value

    def define(self, number: int, value: str) -> None:
        """File a real value as an operator's output, quantised where the file says so."""
        self._claim(number)
        tensor = self.tensor(number)
        onnx_type(tensor)
        name = self._output_names.get(number) or self.writer.unique(self.label(number))
        if tensor.quantization is not None and tensor.dtype != "float32":
            self.writer.node("QuantizeLinear", [value, *self._scale(tensor)], [name])
        elif value in self._shared or not self.writer.rename_last(value, name):
            self.writer.node("Identity", [value], [name])
        self._file(number, name)
        self.writer.declare(name, tensor)

    def _file(self, number: int, name: str) -> None:
        self._stored[number] = name
        self._shared.add(name)

    def _claim(self, number: int) -> None:
        tensor = self.tensor(number)
        if number in self._stored or number in self._known or tensor.data is not None or tensor.is_variable:
            raise ConversionError(f"tensor {tensor.name!r} has more than one origin")

    def _scale(self, tensor: Tensor) -> tuple[str, str]:
        """ONNX names of scale and zero point."""
        quantization = tensor.quantization
        assert quantization is not None
        if tensor.dtype not in _QUANTIZED_TYPES or quantization.scale.size != 1:
            raise UnsupportedOperatorError(
                f"tensor {tensor.name!r} is quantised as {tensor.dtype} with {quantization.scale.size} scales;"
                f" values between operators may be {' or '.join(_QUANTIZED_TYPES)} with one scale"
            )
        limits = np.iinfo(tensor.dtype)
        zero_point = int(quantization.zero_point[0])
        if not limits.min <= zero_point <= limits.max:
            raise ConversionError(f"tensor {tensor.name!r} has the zero point {zero_point}, outside {tensor.dtype}")
        base = self.prefix + (tensor.name or "tensor")
        return (
            self.writer.initializer(f"{base}/scale", quantization.scale[0]),
            self.writer.initializer(f"{base}/zero_point", np.array(zero_point, tensor.dtype)),
        )


def dequantize(array: NDArray[Any], quantization: Quantization, name: str) -> NDArray[np.float32]:
    """Turn stored integers into real values."""
    scale, zero_point = quantization.scale, quantization.zero_point
    around = [1] * array.ndim
    if scale.size > 1:
        if not 0 <= quantization.axis < array.ndim or array.shape[quantization.axis] != scale.size:
            raise ConversionError(f"constant {name!r} of shape {list(array.shape)} has {scale.size} scales")
        around[quantization.axis] = -1
    # Integers of a bias need more digits than float32 has until they are scaled.
    exact = (array.astype(np.float64) - zero_point.reshape(around)) * scale.reshape(around)
    with np.errstate(over="ignore"):
        real = np.asarray(exact, np.float32)
    if not np.isfinite(real).all():
        raise ConversionError(f"constant {name!r} is larger than float32 can hold, by its scale")
    return real
