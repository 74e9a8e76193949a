"""One operator while it is translated: its tensors, its options, and ways to write ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.importers.tflite.reader import ABSENT, Operator
from rerank_engine.importers.tflite.schema import FUSED_ACTIVATIONS, OPTIONS
from rerank_engine.importers.tflite.writer import ONNX_TYPES

if TYPE_CHECKING:
    from rerank_engine.importers.tflite.scope import Scope

LARGEST = 2**63 - 1
"""The end of an axis in ONNX's Slice."""


class Call:
    """What a handler sees.

    Positions count the operator's own inputs and outputs from 0.
    """

    def __init__(self, scope: Scope, operator: Operator) -> None:
        self.scope = scope
        self.operator = operator

    @property
    def label(self) -> str:
        """Name for what is emitted: the name of the first output in the file."""
        for number in self.operator.outputs:
            if number != ABSENT:
                return self.scope.label(number)
        return f"{self.operator.name}_{self.operator.index}"

    def refuse(self, why: str) -> UnsupportedOperatorError:
        """Build the error that names the operator."""
        return UnsupportedOperatorError(
            f"TFLite operator {self.operator.name} number {self.operator.index} ({self.label!r}): {why}"
        )

    # --- what the file says -------------------------------------------------------------------------------

    def arity(self, fewest: int, most: int | None = None, outputs: int = 1) -> int:
        """Check the numbers of inputs and outputs, and return the number of inputs."""
        count = len(self.operator.inputs)
        if not fewest <= count <= (most or fewest):
            raise self.refuse(f"it has {count} inputs; expected {fewest} to {most or fewest}")
        if len(self.operator.outputs) != outputs:
            raise self.refuse(f"it has {len(self.operator.outputs)} outputs; expected {outputs}")
        return count

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.operator.inputs) and self.operator.inputs[position] != ABSENT

    def options(self, table: str) -> dict[str, Any]:
        """Options of the operator with the schema's defaults; what is not understood stops the conversion."""
        schema, found = OPTIONS[table], self.operator.options
        if self.operator.options_number not in (0, schema.number) or (found and not self.operator.options_number):
            raise self.refuse(f"it carries options of kind {self.operator.options_number}, expected {table}")
        if found is None:
            return {name: () if field.kind.endswith("[]") else field.default for name, field in schema.fields.items()}
        unknown = set(found.used_slots()) - {field.slot for field in schema.fields.values()}
        if unknown:
            raise self.refuse(f"option {min(unknown)} of {table} is not understood; the file is newer than this reader")
        values: dict[str, Any] = {}
        for name, field in schema.fields.items():
            if field.kind.endswith("[]"):
                values[name] = found.numbers(field.slot, field.kind.removesuffix("[]")) or ()
            else:
                value = found.number(field.slot, field.kind, field.default)
                values[name] = bool(value) if field.kind == "bool" else value
        return values

    def no_options(self) -> None:
        """Check that the operator carries no option that changes it."""
        found = self.operator.options
        if found is not None and found.used_slots():
            raise self.refuse(f"option {found.used_slots()[0]} is not understood; the file is newer than this reader")

    def choice(self, name: str, value: int, names: Sequence[str]) -> str:
        """Turn the number of an enumeration into its name."""
        if not 0 <= value < len(names):
            raise self.refuse(f"{name}={value} is not understood; known: {', '.join(names)}")
        return names[value]

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of an input; -1 where it varies."""
        return self.scope.tensor(self.operator.inputs[position]).shape

    def rank(self, position: int) -> int:
        """Rank of an input."""
        return len(self.shape(position))

    def dtype(self, position: int) -> str:
        """Element type of an input's real value."""
        tensor = self.scope.tensor(self.operator.inputs[position])
        if tensor.dtype == "float16" or (tensor.quantization is not None and tensor.dtype != "float32"):
            return "float32"
        return tensor.dtype

    def output_dtype(self, position: int = 0) -> str:
        """Element type of an output, as stored."""
        return self.scope.tensor(self.operator.outputs[position]).dtype

    def output_shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an output; -1 where it varies."""
        return self.scope.tensor(self.operator.outputs[position]).shape

    def axis(self, axis: int, rank: int) -> int:
        """Turn a negative axis into a positive one; one out of range stops the conversion."""
        if not -rank <= axis < rank:
            raise self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    def constant(self, position: int, what: str) -> NDArray[Any]:
        """Real value of an input that must be constant."""
        array = self.scope.constant(self.operator.inputs[position])
        if array is None:
            raise self.refuse(f"{what} must be constant")
        return array

    def integers(self, position: int, what: str) -> list[int]:
        """Whole numbers of an input that must be constant, as a flat list."""
        array = self.constant(position, what)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise self.refuse(f"{what} must be a list of whole numbers")
        return [int(entry) for entry in array.reshape(-1)]

    def integer(self, position: int, what: str) -> int:
        """Whole number of an input that must be constant."""
        found = self.integers(position, what)
        if len(found) != 1:
            raise self.refuse(f"{what} must be one number, not {len(found)}")
        return found[0]

    # --- what is written ----------------------------------------------------------------------------------

    def input(self, position: int) -> str:
        """ONNX name of an input's real value."""
        return self.scope.real(self.operator.inputs[position])

    def inputs(self) -> list[str]:
        """ONNX names of all inputs."""
        return [self.input(position) for position in range(len(self.operator.inputs))]

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Append an ONNX node."""
        return self.scope.writer.emit(op, inputs, self.label, outputs, **attributes)

    def new(self, array: Any, dtype: str, what: str) -> str:
        """File a constant of our own."""
        return self.scope.writer.initializer(f"{self.label}/{what}", np.asarray(array, dtype))

    def scalar(self, value: float, dtype: str, what: str = "value") -> str:
        """File a number of our own."""
        return self.new(value, dtype, what)

    def long(self, position: int) -> str:
        """ONNX name of an input of whole numbers as int64, which ONNX wants for shapes."""
        number = self.operator.inputs[position]
        array = self.scope.constant(number)
        if array is not None:
            return self.new(self.integers(position, f"input {position}"), "int64", f"input_{position}")
        if self.dtype(position) not in ("int32", "int64"):
            raise self.refuse(f"input {position} must be int32 or int64, not {self.dtype(position)}")
        return self.cast(self.scope.stored(number), self.dtype(position), "int64")

    def cast(self, value: str, source: str, target: str) -> str:
        """Change the element type, where it differs."""
        if source == target:
            return value
        if target not in ONNX_TYPES:
            raise self.refuse(f"type {target} is not supported")
        return self.emit("Cast", value, to=ONNX_TYPES[target])

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape to constant sizes; one may be -1."""
        return self.emit("Reshape", value, self.new(list(shape), "int64", "shape"))

    def unsqueeze(self, value: str, axes: Sequence[int]) -> str:
        """Insert axes of size 1."""
        return self.emit("Unsqueeze", value, self.new(list(axes), "int64", "axes"))

    def transposed(self, position: int, order: Sequence[int]) -> str:
        """ONNX name of an input with its axes in another order; of a constant, this is done now."""
        array = self.scope.constant(self.operator.inputs[position])
        if array is None:
            return self.emit("Transpose", self.input(position), perm=list(order))
        return self.new(array.transpose(order), array.dtype.name, f"transposed_{position}")

    def activate(self, value: str, number: int) -> str:
        """Apply a fused activation."""
        name = self.choice("fused_activation_function", number, FUSED_ACTIVATIONS)
        dtype = self.output_dtype()
        kind = dtype if dtype in ("int32", "int64") else "float32"
        if name == "NONE":
            return value
        if name == "RELU":
            return self.emit("Relu", value)
        if name in ("RELU_N1_TO_1", "RELU6"):
            low, high = (-1, 1) if name == "RELU_N1_TO_1" else (0, 6)
            return self.emit("Clip", value, self.scalar(low, kind, "low"), self.scalar(high, kind, "high"))
        if name == "TANH" and kind == "float32":
            return self.emit("Tanh", value)
        raise self.refuse(f"the fused activation {name} is not supported for {dtype}")

    def result(self, value: str, position: int = 0) -> None:
        """File the value of an output."""
        self.scope.define(self.operator.outputs[position], value)
