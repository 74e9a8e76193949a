"""A TFLite file to plain values: tensors, operators, signatures, and the bytes of constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.tflite.flatbuffer import Buffer, Table
from rerank_engine.importers.tflite.schema import (
    IDENTIFIER,
    LARGEST_ONE_BYTE_OPERATOR,
    OPERATORS,
    TENSOR_TYPES,
    VERSION,
)

ABSENT = -1
"""Number of an optional tensor that an operator does not have."""

_LARGEST_DIMENSION = 2**31 - 1
_SMALLEST_FILE_BYTES = 8


@dataclass(frozen=True)
class Quantization:
    """Real value = (stored - zero_point) * scale, one pair for the tensor or one for each index of ``axis``."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    axis: int


@dataclass(frozen=True)
class Tensor:
    """One tensor.

    Attributes
    ----------
    name
        The file's own name; may be empty.
    dtype
        Name of the element type, of :data:`~rerank_engine.importers.tflite.schema.TENSOR_TYPES`.
    shape
        Sizes; -1 where the size varies.
    data
        Bytes of a constant, or None.
    quantization
        What the stored integers mean, or None.
    is_variable
        Whether the tensor keeps its value between calls.
    is_sparse
        Whether the bytes are in a sparse form.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview | None
    quantization: Quantization | None
    is_variable: bool
    is_sparse: bool

    def array(self) -> NDArray[Any]:
        """Constant, as stored.

        Raises
        ------
        ConversionError
            The type is not one of NumPy's, or the number of bytes does not fit the shape.
        """
        data = self.data if self.data is not None else memoryview(b"")
        if self.dtype not in _NUMPY_TYPES:
            raise ConversionError(f"constant {self.name!r} has type {self.dtype}, which is not supported")
        dtype = np.dtype(_NUMPY_TYPES[self.dtype])
        if any(size < 0 for size in self.shape) or math.prod(self.shape) * dtype.itemsize != len(data):
            raise ConversionError(
                f"constant {self.name!r} of shape {list(self.shape)} and type {self.dtype} cannot have"
                f" {len(data)} bytes"
            )
        array: NDArray[Any] = np.frombuffer(data, dtype).reshape(self.shape)
        if self.dtype == "bool" and array.view(np.uint8).max(initial=0) > 1:
            raise ConversionError(f"constant {self.name!r} holds other bytes than 0 and 1 for its truth values")
        return array


_NUMPY_TYPES = {
    "float32": "<f4",
    "float16": "<f2",
    "float64": "<f8",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "bool": "?",
}


@dataclass(frozen=True)
class Operator:
    """One operator: its name, the numbers of its tensors, and its options, unread."""

    name: str
    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_number: int
    options: Table | None


@dataclass(frozen=True)
class Subgraph:
    """Tensors, and the operators between them in the order of computation."""

    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """A named entry: what inputs and outputs are called outside."""

    key: str
    inputs: MappingProxyType[str, int]
    outputs: MappingProxyType[str, int]
    subgraph: int


@dataclass(frozen=True)
class TfliteModel:
    """All that is read of a file."""

    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]


def read_tflite(data: bytes) -> TfliteModel:
    """Read a file.

    Parameters
    ----------
    data
        The file's bytes; constants stay views of them.

    Raises
    ------
    ConversionError
        The bytes are no TFLite model of version 3, or are damaged.

    Examples
    --------
    >>> read_tflite(b"no model at all")
    Traceback (most recent call last):
    rerank_engine.errors.ConversionError: not a TFLite model: it does not carry the mark 'TFL3'
    """
    if len(data) < _SMALLEST_FILE_BYTES or data[4:8] != IDENTIFIER:
        raise ConversionError(f"not a TFLite model: it does not carry the mark {IDENTIFIER.decode()!r}")
    buffer = Buffer(data)
    root = Table.root(buffer)
    version = root.integer(0, "u32")
    if version != VERSION:
        raise ConversionError(f"TFLite schema version {version} is not supported; supported: {VERSION}")
    codes = [_operator_name(table) for table in root.tables(1)]
    contents = [_contents(buffer, table) for table in root.tables(4)]
    subgraphs = tuple(_subgraph(table, codes, contents) for table in root.tables(2))
    if not subgraphs:
        raise ConversionError("the file holds no graph")
    signatures = tuple(_signature(table, subgraphs) for table in root.tables(7))
    return TfliteModel(subgraphs, signatures)


def _operator_name(table: Table) -> str:
    # Files of before 2020 know only the one-byte slot; later ones fill both where the number fits.
    number = max(table.integer(0, "i8"), table.integer(3, "i32"))
    if table.integer(0, "i8") < 0 or number == LARGEST_ONE_BYTE_OPERATOR:
        raise ConversionError("the file is damaged: an operator has no number")
    if number == OPERATORS.index("CUSTOM"):
        return f"CUSTOM {table.text(1)!r}"
    return OPERATORS[number] if number < len(OPERATORS) else f"number {number}"


def _contents(buffer: Buffer, table: Table) -> memoryview | None:
    offset, size = table.integer(1, "u64"), table.integer(2, "u64")
    if offset > 1:  # Models over 2 GB keep constants behind the tables.
        return buffer.span(offset, size)
    found = table.data(0)
    return found if found is not None and len(found) else None


def _subgraph(table: Table, codes: list[str], contents: list[memoryview | None]) -> Subgraph:
    tensors = tuple(_tensor(entry, contents) for entry in table.tables(0))

    def numbers(source: Table, slot: int, *, optional: bool = False) -> tuple[int, ...]:
        found = source.integers(slot) or ()
        lowest = ABSENT if optional else 0
        for number in found:
            if not lowest <= number < len(tensors):
                raise ConversionError(f"the file is damaged: it refers to tensor {number} of {len(tensors)}")
        return found

    operators = []
    for index, entry in enumerate(table.tables(3)):
        code = entry.integer(0, "u32")
        if code >= len(codes):
            raise ConversionError(f"the file is damaged: operator {index} is of kind {code} of {len(codes)}")
        outputs = numbers(entry, 2, optional=True)
        second = entry.integer(11, "u8")
        options_number, options = (-second, entry.table(12)) if second else (entry.integer(3, "u8"), entry.table(4))
        operators.append(
            Operator(codes[code], index, numbers(entry, 1, optional=True), outputs, options_number, options)
        )
    return Subgraph(tensors, numbers(table, 1), numbers(table, 2), tuple(operators))


def _tensor(table: Table, contents: list[memoryview | None]) -> Tensor:
    name = table.text(3)
    shape = table.integers(0) or ()
    signature = table.integers(7)
    kind, place = table.integer(1, "i8"), table.integer(2, "u32")
    if place >= max(len(contents), 1):
        raise ConversionError(f"the file is damaged: tensor {name!r} is in buffer {place} of {len(contents)}")
    data = contents[place] if contents else None
    # The signature repeats the shape with -1 for what varies; an empty one says that nothing does.
    if signature and len(signature) != len(shape):
        raise ConversionError(f"tensor {name!r}: shape {list(shape)} and signature {list(signature)} disagree")
    if signature and data is None:
        shape = tuple(-1 if declared == -1 else size for size, declared in zip(shape, signature, strict=True))
    if any(not -1 <= size <= _LARGEST_DIMENSION for size in shape):
        raise ConversionError(f"tensor {name!r} has the impossible shape {list(shape)}")
    if not 0 <= kind < len(TENSOR_TYPES):
        raise ConversionError(f"tensor {name!r} has the unknown type {kind}")
    if table.integer(10, "u32"):
        raise ConversionError(f"tensor {name!r} is kept in another file, which is not supported")
    return Tensor(
        name,
        TENSOR_TYPES[kind],
        shape,
        data,
        _quantization(table.table(4), name),
        bool(table.integer(5, "bool")),
        table.table(6) is not None,
    )


def _quantization(table: Table | None, name: str) -> Quantization | None:
    if table is None:
        return None
    if table.integer(4, "u8"):
        raise ConversionError(f"tensor {name!r} is quantised in a way that is not supported; use scale and zero point")
    scale = table.numbers(2, "f32") or ()
    if not scale:
        return None  # Ranges without a scale are notes of training and mean nothing to the interpreter.
    zero_point = table.integers(3, "i64") or (0,) * len(scale)
    if len(zero_point) == 1:
        zero_point = zero_point * len(scale)
    if len(zero_point) != len(scale):
        raise ConversionError(f"tensor {name!r} has {len(scale)} scales and {len(zero_point)} zero points")
    scales = np.array(scale, np.float32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ConversionError(f"tensor {name!r} has a scale that is no positive number")
    return Quantization(scales, np.array(zero_point, np.int64), table.integer(6, "i32"))


def _signature(table: Table, subgraphs: tuple[Subgraph, ...]) -> Signature:
    key, number = table.text(2), table.integer(4, "u32")
    if number >= len(subgraphs):
        raise ConversionError(f"the file is damaged: signature {key!r} is of graph {number} of {len(subgraphs)}")
    count = len(subgraphs[number].tensors)

    def names(slot: int) -> MappingProxyType[str, int]:
        found: dict[str, int] = {}
        for entry in table.tables(slot):
            name, tensor = entry.text(0), entry.integer(1, "u32")
            if name in found or tensor >= count:
                raise ConversionError(f"the file is damaged: signature {key!r} names {name!r} wrongly")
            found[name] = tensor
        return MappingProxyType(found)

    return Signature(key, names(0), names(1), number)
