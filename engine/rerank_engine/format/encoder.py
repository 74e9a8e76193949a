"""A :class:`~rerank_engine.graph.Graph` becomes the GRAPH section: the reverse of :mod:`.decoder`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import flatbuffers
import numpy as np

from rerank_engine.errors import GraphError
from rerank_engine.format.decoder import DTYPE_CODES, Extent, operator_version
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.verifier import FILE_IDENTIFIER
from rerank_engine.graph import Dim, Graph, Node, Value

_INT64 = range(-(2**63), 2**63)
_UINT32 = range(2**32)


def encode_graph(graph: Graph, order: Sequence[str], extents: Sequence[Extent]) -> bytes:
    """Write the GRAPH section.

    Parameters
    ----------
    graph
        A graph that verifies.
    order
        Every value's name, in the order in which the file numbers them.
    extents
        Where the constants' bytes stand in WEIGHTS.

    Raises
    ------
    GraphError
        A name, attribute or dimension that the schema cannot hold.

    Examples
    --------
    >>> graph = Graph("same", inputs=["x"], outputs=["x"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    >>> encode_graph(graph, ["x"], [])[4:8]
    b'RRM1'
    """
    return _Encoder(graph, order).encode(extents)


class _Encoder:
    """Builds the GRAPH section back to front, as FlatBuffers wants: children before parents."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self.graph = graph
        self.names = names
        self.numbering = {name: number for number, name in enumerate(names)}
        self.builder = flatbuffers.Builder(4096)
        self.builder.ForceDefaults(True)
        self.dim_names = sorted(
            {dim.name for value in graph.values.values() for dim in value.shape if isinstance(dim, Dim)}
        )

    def encode(self, extents: Sequence[Extent]) -> bytes:
        graph, builder = self.graph, self.builder
        metadata = self.tables([self.metadata(key, graph.metadata[key]) for key in sorted(graph.metadata, key=str)])
        constants = self.tables([self.constant(extent) for extent in extents])
        nodes = self.tables([self.node(node) for node in graph.nodes])
        outputs = self.indices(graph.outputs)
        inputs = self.indices(graph.inputs)
        values = self.tables([self.value(graph.values[name]) for name in self.names])
        dim_names = self.tables([self.text(name, "dimension name") for name in self.dim_names])
        name = self.text(graph.name, "graph name")
        fbs.GraphStart(builder)
        fbs.GraphAddName(builder, name)
        fbs.GraphAddDimNames(builder, dim_names)
        fbs.GraphAddValues(builder, values)
        fbs.GraphAddInputs(builder, inputs)
        fbs.GraphAddOutputs(builder, outputs)
        fbs.GraphAddNodes(builder, nodes)
        fbs.GraphAddConstants(builder, constants)
        fbs.GraphAddMetadata(builder, metadata)
        builder.Finish(fbs.GraphEnd(builder), file_identifier=FILE_IDENTIFIER)
        return bytes(builder.Output())

    def text(self, text: Any, what: str) -> int:
        if type(text) is not str:
            raise GraphError(f"{what} {text!r} is {type(text).__name__}, expected str")
        try:
            return int(self.builder.CreateString(text))
        except UnicodeEncodeError as error:
            raise GraphError(f"{what} {text!r} is not valid Unicode: {error.reason}; rename it") from None

    def tables(self, references: list[int]) -> int:
        self.builder.StartVector(4, len(references), 4)
        for reference in reversed(references):
            self.builder.PrependUOffsetTRelative(reference)
        return int(self.builder.EndVector())

    def numbers(self, numbers: Sequence[Any], dtype: type[np.generic]) -> int:
        return int(self.builder.CreateNumpyVector(np.array(numbers, dtype)))

    def indices(self, names: Sequence[str]) -> int:
        return self.numbers([self.numbering[name] for name in names], np.uint32)

    def value(self, value: Value) -> int:
        builder = self.builder
        builder.StartVector(16, len(value.shape), 8)
        for dim in reversed(value.shape):
            fbs.CreateDim(builder, *self.dim(dim, value))
        shape = builder.EndVector()
        name = self.text(value.name, "value name")
        fbs.ValueStart(builder)
        fbs.ValueAddName(builder, name)
        fbs.ValueAddDtype(builder, DTYPE_CODES[value.dtype])
        fbs.ValueAddShape(builder, shape)
        return int(fbs.ValueEnd(builder))

    def dim(self, dim: int | Dim, value: Value) -> tuple[int, int, int]:
        """Size, scale and name of a dimension, as the schema's struct holds them."""
        try:
            if isinstance(dim, Dim):
                size, scale, name = 0, index(dim.scale), 1 + self.dim_names.index(dim.name)
            else:
                size, scale, name = index(dim), 1, 0
        except TypeError:
            raise GraphError(f"value {value}: dimension {dim!r} is no integer") from None
        if size not in _INT64 or scale not in _UINT32:
            raise GraphError(f"value {value}: dimension {dim} is too large for the file")
        return size, scale, name

    def node(self, node: Node) -> int:
        builder = self.builder
        attributes = self.tables([self.attribute(node, name) for name in sorted(node.attributes, key=str)])
        outputs = self.indices(node.outputs)
        inputs = self.indices(node.inputs)
        name = self.text(node.name, f"name of a node {node.op}:")
        op = self.text(node.op, f"operator of node {node.name!r}:")
        fbs.NodeStart(builder)
        fbs.NodeAddOp(builder, op)
        fbs.NodeAddOpVersion(builder, operator_version(node.op))
        fbs.NodeAddName(builder, name)
        fbs.NodeAddInputs(builder, inputs)
        fbs.NodeAddOutputs(builder, outputs)
        fbs.NodeAddAttributes(builder, attributes)
        return int(fbs.NodeEnd(builder))

    def attribute(self, node: Node, name: str) -> int:
        builder = self.builder
        what = f"attribute {name!r} of node {node.name!r} ({node.op})"
        kind, value = self.attribute_value(node.attributes[name], what)
        text = self.text(name, f"name of an attribute of node {node.name!r} ({node.op}):")
        fbs.AttributeStart(builder)
        fbs.AttributeAddName(builder, text)
        fbs.AttributeAddValueType(builder, kind)
        fbs.AttributeAddValue(builder, value)
        return int(fbs.AttributeEnd(builder))

    def attribute_value(self, value: Any, what: str) -> tuple[int, int]:
        """Write an attribute's value and return its type number and reference."""
        element = _element_type(value, what)
        if element is int:
            for number in value if isinstance(value, tuple) else (value,):
                if number not in _INT64:
                    raise GraphError(f"{what}: {number} does not fit into 64 bits")
        if isinstance(value, tuple):
            if element is str:
                content = self.tables([self.text(text, what) for text in value])
            else:
                content = self.numbers(value, _ELEMENTS[element])
        elif element is str:
            content = self.text(value, what)
        else:
            content = value
        name = f"{_KINDS[element]}{'s' if isinstance(value, tuple) else ''}Attribute"
        start, add, end = _table_functions(name)
        start(self.builder)
        add(self.builder, content)
        return getattr(fbs.AttributeValue, name), int(end(self.builder))

    def constant(self, extent: Extent) -> int:
        builder = self.builder
        fbs.ConstantStart(builder)
        fbs.ConstantAddValue(builder, self.numbering[extent.name])
        fbs.ConstantAddByteOffset(builder, extent.byte_offset)
        fbs.ConstantAddByteSize(builder, extent.byte_size)
        return int(fbs.ConstantEnd(builder))

    def metadata(self, key: str, text: str) -> int:
        builder = self.builder
        value_at = self.text(text, f"metadata {key!r}:")
        key_at = self.text(key, "metadata key")
        fbs.MetadataStart(builder)
        fbs.MetadataAddKey(builder, key_at)
        fbs.MetadataAddValue(builder, value_at)
        return int(fbs.MetadataEnd(builder))


_KINDS: dict[type, str] = {bool: "Bool", int: "Int", float: "Float", str: "String"}
_ELEMENTS: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


def _element_type(value: Any, what: str) -> type:
    """Type of a plain value, or of all elements of a tuple; an empty tuple counts as integers."""
    kinds = {type(element) for element in value} or {int} if type(value) is tuple else {type(value)}
    if len(kinds) == 1 and (kind := kinds.pop()) in _KINDS:
        return kind
    raise GraphError(
        f"{what} is {reprlib.repr(value)} of type {type(value).__name__}; "
        "expected bool, int, float, str, or a tuple of one of them"
    )


def _table_functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    return getattr(fbs, f"{name}Start"), getattr(fbs, f"{name}AddValue"), getattr(fbs, f"{name}End")
