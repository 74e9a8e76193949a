"""What layer functions write with: one object a layer, over the ONNX graph that all of them build."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.caffe.network import Names, WiredLayer
from rerank_engine.importers.caffe.weights import MOST_AXES, MOST_ELEMENTS, Weights

if TYPE_CHECKING:
    import onnx

BATCH = "N"
"""The first dimension of every input."""

Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class Blob:
    """A value: its name in the ONNX graph, its dimensions (``BATCH`` may be the first), and its NumPy dtype name."""

    name: str
    dims: Dims
    dtype: str = "float32"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)


@dataclass
class OnnxParts:
    """Parts of an ONNX graph while it is built."""

    label: str
    names: Names
    batch: int
    blobs: dict[str, Blob] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)


def dims_text(dims: Sequence[int | str]) -> str:
    """Write dimensions as people do.

    >>> dims_text(("N", 4))
    '(N, 4)'
    """
    return f"({', '.join(str(dim) for dim in dims)}{',' if len(dims) == 1 else ''})"


class LayerWriter:
    """Reads one layer and writes its nodes.

    Attributes
    ----------
    name
        Unique name of the layer; its nodes and constants are named after it.
    bottoms
        What it reads.
    tops
        Names of what it must make.
    parameter
        The message of its own parameters, or None when its type has none.
    batch
        The batch that the inputs declare.
    """

    def __init__(self, parts: OnnxParts, weights: Weights, layer: WiredLayer, parameter_field: str) -> None:
        self._parts = parts
        self._weights = weights
        self._layer = layer
        self._field = parameter_field
        self.name = layer.name
        self.bottoms = [parts.blobs[name] for name in layer.bottoms]
        self.tops = layer.tops
        self.parameter: Any = getattr(layer.message, parameter_field) if parameter_field else None
        self.batch = parts.batch

    # --- errors --------------------------------------------------------------------------------------------

    def _message(self, why: str, parameter: str) -> str:
        where = f"field {self._field}.{parameter}: " if parameter else ""
        return f"{self._parts.label}: layer {self._layer.message.name!r} ({self._layer.message.type}): {where}{why}"

    def wrong(self, why: str, parameter: str = "") -> ConversionError:
        """Build the error for a layer that contradicts itself or its bottoms."""
        return ConversionError(self._message(why, parameter))

    def refuse(self, why: str, parameter: str = "") -> UnsupportedOperatorError:
        """Build the error for a layer that is right, but not supported."""
        return UnsupportedOperatorError(self._message(why, parameter))

    # --- what the layer says -------------------------------------------------------------------------------

    def has(self, parameter: str) -> bool:
        """Tell whether a parameter is given."""
        return bool(self.parameter.HasField(parameter))

    def number(self, parameter: str) -> float:
        """Read a finite float parameter."""
        value = float(getattr(self.parameter, parameter))
        if not math.isfinite(value):
            raise self.wrong(f"{value} is no finite number", parameter)
        return value

    def positive(self, parameter: str) -> int:
        """Read a size that must be at least 1."""
        value = int(getattr(self.parameter, parameter))
        if value < 1:
            raise self.wrong(f"{value} must be 1 or more", parameter)
        return value

    def axis(self, parameter: str = "axis") -> int:
        """Read an axis of the first bottom; a negative one counts from the end."""
        axis, blob = int(getattr(self.parameter, parameter)), self.bottoms[0]
        if not -blob.rank <= axis < blob.rank:
            raise self.wrong(f"axis {axis} is out of range for the bottom of shape {dims_text(blob.dims)}", parameter)
        return axis % blob.rank

    @property
    def trains(self) -> bool:
        """Whether the layer itself asks to work as in training, whatever the phase of the network."""
        message = self._layer.message
        train = message.DESCRIPTOR.fields_by_name["phase"].enum_type.values_by_name["TRAIN"].number
        return bool(message.HasField("phase") and message.phase == train)

    def need_weights(self, count: int) -> None:
        """Check the number of trained blobs."""
        found = self._weights.count(self._layer.message.name)
        if found != count:
            raise self.wrong(f"it needs {count} weight blobs, {self._weights.label} has {found}")

    def weight(self, index: int, shape: Sequence[int | str]) -> NDArray[np.float32]:
        """Read one trained blob, float32, in the wanted shape."""
        if BATCH in shape:
            raise self.refuse(f"its weights would have shape {dims_text(shape)}, over the candidates; use a later axis")
        return self._weights.array(self._layer.message.name, index, tuple(int(dim) for dim in shape))

    def count(self, dims: Sequence[int | str]) -> int:
        """Number of elements of dimensions that must not hold the batch."""
        if BATCH in dims:
            raise self.refuse(f"it joins the batch with other dimensions ({dims_text(dims)}), which mixes candidates")
        return math.prod(int(dim) for dim in dims)

    # --- what it writes ------------------------------------------------------------------------------------

    def constant(self, role: str, array: NDArray[Any]) -> str:
        """File a constant and return its name, ``layer/role``."""
        from onnx import numpy_helper

        name = self._parts.names.make(f"{self.name}/{role}")
        self._parts.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def scalar(self, role: str, value: float) -> str:
        """File one float32 number."""
        with np.errstate(over="ignore", under="ignore"):
            return self.constant(role, np.array(value, np.float32))

    def integers(self, role: str, values: Sequence[int]) -> str:
        """File int64 numbers."""
        return self.constant(role, np.array(values, np.int64))

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Write an inner node and return the name of its result."""
        name = self._parts.names.make(f"{self.name}/{operator.lower()}")
        return self._write(operator, name, inputs, (name,), attributes)

    def finish(
        self, operator: str, inputs: Sequence[str], dims: Sequence[int | str], dtype: str = "float32", **attributes: Any
    ) -> None:
        """Write the node that makes the only top; it is named like the layer."""
        self.declare(0, dims, dtype)
        self._write(operator, self.name, inputs, self.tops, attributes)

    def finish_all(self, operator: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Write the node that makes every top, each declared before."""
        self._write(operator, self.name, inputs, self.tops, attributes)

    def copy(self, blob: Blob) -> None:
        """Write a node for each top that hands a blob on."""
        for index, top in enumerate(self.tops):
            self.declare(index, blob.dims, blob.dtype)
            name = self._parts.names.make(f"{self.name}/{top}") if len(self.tops) > 1 else self.name
            self._write("Identity", name, [blob.name], (top,), {})

    def declare(self, index: int, dims: Sequence[int | str], dtype: str = "float32") -> None:
        """Declare a top."""
        blob = Blob(self.tops[index], tuple(dims), dtype)
        inner = blob.dims[1:] if blob.dims[:1] == (BATCH,) else blob.dims
        if BATCH in inner:
            raise self.refuse(f"top {blob.name!r} would have shape {dims_text(dims)}; the batch must stay first")
        count = math.prod(int(dim) for dim in inner)
        if blob.rank > MOST_AXES or not 1 <= count <= MOST_ELEMENTS or any(int(dim) < 1 for dim in inner):
            raise self.wrong(f"top {blob.name!r} would have shape {dims_text(dims)}, beyond what a blob may have")
        self._parts.blobs[blob.name] = blob

    def _write(
        self, operator: str, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, Any]
    ) -> str:
        from onnx import helper

        self._parts.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return outputs[0]

    def shape_vector(self, dims: Sequence[int | str]) -> str:
        """File the second input of an ONNX Reshape; 0 stands for the batch, which is copied, also when it is empty."""
        return self.integers("shape", [0 if dim == BATCH else int(dim) for dim in dims])
