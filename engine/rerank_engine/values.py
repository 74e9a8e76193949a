"""Values and their dimensions: what a model's caller meets of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rerank_engine.dimensions import Dim, resolve
from rerank_engine.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATES = "N"
"""Name of the dimension that counts candidates."""

Shape: TypeAlias = tuple[int | Dim, ...]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
"""The dtypes that a value may have."""


def shape_text(shape: Shape) -> str:
    """Write a shape as people do: ``(N, 32)``."""
    inside = ", ".join(str(dim) for dim in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def shape_attribute(shape: Iterable[int | Dim]) -> tuple[int, ...] | tuple[str, ...]:
    """Write a shape as an attribute of a node: integers, or texts when a dimension has a name.

    >>> shape_attribute((2, 3)), shape_attribute((Dim("N"), 3))
    ((2, 3), ('N', '3'))
    """
    dims = tuple(shape)
    plain = tuple(dim for dim in dims if isinstance(dim, int))
    return plain if len(plain) == len(dims) else tuple(str(dim) for dim in dims)


def attribute_shape(entries: Sequence[int | str]) -> Shape:
    """Read what :func:`shape_attribute` wrote."""
    return tuple(Dim.parse(entry) if isinstance(entry, str) else int(entry) for entry in entries)


def concrete(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Resolve the named dimensions of ``shape``."""
    return tuple(resolve(dim, sizes) for dim in shape)


class Value(Record):
    """A named tensor.

    Attributes
    ----------
    name
        Unique in its graph.
    dtype
        A key of :data:`DTYPES`.
    shape
        Dimensions, each a number or a :class:`~rerank_engine.dimensions.Dim`.
    """

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{shape_text(self.shape)}"


class Sample(Record):
    """Inputs and what the model must answer to them, stored with it so that any device can check itself.

    Attributes
    ----------
    inputs, outputs
        Arrays by name of every input and output of the graph.
    tolerance
        Largest allowed difference, relative to the largest magnitude of each output.
    """

    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]
    tolerance: float = 1e-4
