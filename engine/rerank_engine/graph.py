"""The typed graph: values with named dimensions, nodes in execution order, and the rules that hold between them.

A model is a straight line of nodes over named values. A dimension is a number, or an expression over names that get
their size when the model runs: ``N``, the number of candidates, and any other that the source names, such as the
length of a history. Nothing is planned again when a size changes.

>>> from rerank_engine.graph import Dim, shape_text
>>> shape_text((Dim("N"), 32))
'(N, 32)'
>>> shape_text((Dim("N", 50), 32))
'(50*N, 32)'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.dimensions import Dim, divide_exactly, names_in, product, solved_names
from rerank_engine.errors import GraphError
from rerank_engine.values import (
    CANDIDATES,
    DTYPES,
    Sample,
    Shape,
    Value,
    attribute_shape,
    concrete,
    shape_attribute,
    shape_text,
)

__all__ = [
    "CANDIDATES",
    "DTYPES",
    "Dim",
    "Graph",
    "Node",
    "Sample",
    "Shape",
    "Value",
    "attribute_shape",
    "concrete",
    "depends_on_candidates",
    "divide_exactly",
    "dtype_name",
    "elements_per_candidate",
    "is_per_candidate",
    "names_in",
    "product",
    "shape_attribute",
    "shape_text",
]


def depends_on_candidates(shape: Shape) -> bool:
    """Tell whether the number of candidates occurs in a shape."""
    return CANDIDATES in names_in(shape)


def is_per_candidate(shape: Shape) -> bool:
    """Tell whether a value of this shape is a row, or a fixed number of rows, for each candidate, one after another."""
    return (
        bool(shape)
        and isinstance(shape[0], Dim)
        and all(names.count(CANDIDATES) == 1 for names, _ in shape[0].terms)
        and not depends_on_candidates(shape[1:])
    )


def elements_per_candidate(shape: Shape) -> int | Dim:
    """Elements of the shape for one candidate (all of them when it is not per candidate)."""
    total = product(shape)
    if not is_per_candidate(shape) or total == 0:
        return total
    each = divide_exactly(total, Dim(CANDIDATES))
    assert each is not None, "is_per_candidate says that N divides the first dimension"
    return each


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
    maxima
        Largest allowed size of a named dimension; a name that is missing has no bound.
    unknown_rows
        For inputs that hold ids: the row that stands for every id outside ``0 .. rows - 1``. An input that is
        missing here has no such row, and a bad id is an error.
    sample
        Stored inputs and outputs for self-checks.
    """

    name: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    maxima: dict[str, int] = field(default_factory=dict)
    unknown_rows: dict[str, int] = field(default_factory=dict)
    sample: Sample | None = None

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
        self._verify_names(known)

    def _verify_names(self, known: set[str]) -> None:
        """Check that every dimension name gets its size from an input, and that what is said of inputs fits."""
        given = solved_names(dim for name in self.inputs for dim in self.values[name].shape)
        for name in known:
            if unbound := names_in(self.values[name].shape) - given:
                raise GraphError(f"value {self.values[name]}: no input gives the size of {sorted(unbound)[0]!r}")
        for name, most in self.maxima.items():
            if name not in given or most < 1:
                raise GraphError(f"maximum {most} of dimension {name!r}: expected a named dimension and at least 1")
        for name in self.unknown_rows:
            if name not in self.inputs:
                raise GraphError(f"unknown row for {name!r}, which is no input")


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
    for dim in value.shape:
        if isinstance(dim, int) and dim < 0:
            raise GraphError(f"value {value} has a negative dimension")
