"""The typed graph: values with named dimensions, nodes in execution order, and the rules that hold between them.

A model is a straight line of nodes over named values. One dimension may vary at run time: ``N``, the number of
candidates. It stands first in a shape, alone or times a constant (``N``, ``50*N`` after a reshape). Everything
else is fixed, so the arena can be planned once.

>>> from rerank_engine.graph import Dim, shape_text
>>> shape_text((Dim("N"), 32))
'(N, 32)'
>>> shape_text((Dim("N", 50), 32))
'(50*N, 32)'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError

CANDIDATES = "N"
"""Name of the dimension that counts candidates."""


class Dim(NamedTuple):
    """A dimension known by name only until run time.

    Attributes
    ----------
    name
        ``"N"``, the number of candidates.
    scale
        Constant factor: ``Dim("N", 50)`` has ``50 * N`` entries.
    """

    name: str
    scale: int = 1

    def __str__(self) -> str:
        return self.name if self.scale == 1 else f"{self.scale}*{self.name}"


Shape = tuple[int | Dim, ...]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
"""The dtypes that a value may have."""


def shape_text(shape: Shape) -> str:
    """Write a shape as people do: ``(N, 32)``."""
    inside = ", ".join(str(dim) for dim in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def is_per_candidate(shape: Shape) -> bool:
    """Tell whether a value of this shape has rows of candidates."""
    return bool(shape) and isinstance(shape[0], Dim)


def row_count(shape: Shape, candidates: int) -> tuple[int, ...]:
    """Resolve the named dimension of ``shape`` for ``candidates`` candidates."""
    return tuple(dim.scale * candidates if isinstance(dim, Dim) else dim for dim in shape)


def elements_per_candidate(shape: Shape) -> int:
    """Elements of the shape for one candidate (all of them when the value does not depend on the candidate)."""
    total = 1
    for dim in shape:
        total *= dim.scale if isinstance(dim, Dim) else dim
    return total


@dataclass(frozen=True)
class Value:
    """A named tensor.

    Attributes
    ----------
    name
        Unique in its graph.
    dtype
        A key of :data:`DTYPES`.
    shape
        Dimensions; only the first may be a :class:`Dim`.
    """

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{shape_text(self.shape)}"


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes
    ----------
    op
        Key of the operator registry (``rerank_engine.ops``).
    name
        Name in the source model, for messages.
    inputs
        Names of values, in the operator's order.
    outputs
        Names of the values it makes.
    attributes
        Plain values only: int, float, str, or tuples of them.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    """A model: inputs, constants, nodes in execution order, outputs.

    Attributes
    ----------
    name
        Of the model.
    inputs
        Values that the caller gives, in order.
    outputs
        Names of the values that the caller gets, in order.
    nodes
        In an order in which every input exists before it is read.
    constants
        Weights and other fixed arrays by value name, C-contiguous.
    values
        Every value by name: inputs, constants and results.
    metadata
        Free text that travels in the file, for example the source and its opset.
    """

    name: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def producers(self) -> dict[str, Node]:
        """Map each computed value to the node that makes it."""
        return {output: node for node in self.nodes for output in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Map each value to the nodes that read it."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node)
        return readers

    def add_constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant, or find the same one again, and return its name."""
        array = np.asarray(array, order="C")
        base, count = name, 1
        while name in self.values:
            if name in self.constants and _same(self.constants[name], array):
                return name
            name, count = f"{base}.{count}", count + 1
        self.constants[name] = array
        self.values[name] = Value(name, dtype_name(array.dtype), array.shape)
        return name

    def parameter_count(self) -> int:
        """Count the numbers in all floating-point constants."""
        return sum(array.size for array in self.constants.values() if array.dtype.kind == "f")

    def verify(self) -> None:
        """Check every rule of a graph.

        Raises
        ------
        GraphError
            Names the node or value and the rule that it breaks.
        """
        for name, value in self.values.items():
            _verify_value(name, value)
        for name, array in self.constants.items():
            declared = self.values.get(name)
            if declared is None or declared.shape != array.shape or declared.dtype != dtype_name(array.dtype):
                raise GraphError(f"constant {name!r} does not match its declared value {declared}")
        known = set(self.inputs) | set(self.constants)
        if missing := known - set(self.values):
            raise GraphError(f"values without a declaration: {sorted(missing)}")
        for node in self.nodes:
            for name in node.inputs:
                if name not in known:
                    raise GraphError(f"node {node.name!r} ({node.op}) reads {name!r} before anything makes it")
            for name in node.outputs:
                if name in known:
                    raise GraphError(f"node {node.name!r} ({node.op}) makes {name!r}, which exists already")
                if name not in self.values:
                    raise GraphError(f"node {node.name!r} ({node.op}) makes {name!r}, which has no declaration")
                known.add(name)
        if not self.outputs:
            raise GraphError(f"graph {self.name!r} has no output")
        if missing := set(self.outputs) - known:
            raise GraphError(f"outputs that nothing makes: {sorted(missing)}")


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of a NumPy dtype in the graph.

    Raises
    ------
    GraphError
        The engine has no such dtype.
    """
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise GraphError(f"dtype {dtype} is not one of {', '.join(DTYPES)}")


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _verify_value(name: str, value: Value) -> None:
    if value.name != name:
        raise GraphError(f"value {value.name!r} is filed under {name!r}")
    if value.dtype not in DTYPES:
        raise GraphError(f"value {name!r} has dtype {value.dtype!r}; known: {', '.join(DTYPES)}")
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, Dim):
            if axis != 0 or dim.name != CANDIDATES or dim.scale < 1:
                raise GraphError(f"value {value}: only the first dimension may be {CANDIDATES}")
        elif dim < 0:
            raise GraphError(f"value {value} has a negative dimension")
