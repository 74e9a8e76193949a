"""A :class:`~rerank_engine.graph.Graph` becomes the GRAPH section: the reverse of :mod:`.decoder`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import flatbuffers
import numpy as np

from rerank_engine.errors import GraphError
from rerank_engine.format.arrays import Extent, Placement
from rerank_engine.format.decoder import DTYPE_CODES, NO_VOCABULARY, operator_version
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.verifier import FILE_IDENTIFIER
from rerank_engine.graph import Dim, Graph, Node, Value, names_in
from rerank_engine.semantics import input_vocabulary

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


def encode_graph(graph: Graph, order: Sequence[str], placement: Placement) -> bytes:
    """Write the GRAPH section.

    Parameters
    ----------
    graph
        A graph that verifies.
    order
        Every value's name, in the order in which the file numbers them.
    placement
        Where the arrays' bytes stand in WEIGHTS.

    Raises
    ------
    GraphError
        A name, attribute or dimension that the schema cannot hold.

    Examples
    --------
    >>> graph = Graph("same", inputs=["x"], outputs=["x"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    >>> encode_graph(graph, ["x"], Placement())[4:8]
    b'RRM2'
    """
    return _Encoder(graph, order).encode(placement)


class _Encoder:
    """Builds the GRAPH section back to front, as FlatBuffers wants: children before parents."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self.graph = graph
        self.names = names
        self.numbering = {name: number for number, name in enumerate(names)}
        self.builder = flatbuffers.Builder(4096)
        self.builder.ForceDefaults(True)
        shapes = [graph.values[name].shape for name in names]
        self.dimensions = list(dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, Dim)))
        self.dimension_names = sorted(names_in(self.dimensions))

    def encode(self, placement: Placement) -> bytes:
        graph, builder = self.graph, self.builder
        vocabulary = input_vocabulary(graph)
        metadata = self.tables([self.metadata(key, graph.metadata[key]) for key in sorted(graph.metadata, key=str)])
        samples = self.tables([self.sample(placement, graph.sample.tolerance)] if graph.sample else [])
        constants = self.tables([self.constant(extent) for extent in placement.constants])
        nodes = self.tables([self.node(node) for node in graph.nodes])
        outputs = self.indices(graph.outputs)
        inputs = self.tables([self.input(name, vocabulary.get(name, NO_VOCABULARY)) for name in graph.inputs])
        values = self.tables([self.value(graph.values[name]) for name in self.names])
        dimensions = self.tables([self.dimension(dim) for dim in self.dimensions])
        dimension_names = self.tables([self.dimension_name(name) for name in self.dimension_names])
        name = self.text(graph.name, "graph name")
        fbs.GraphStart(builder)
        fbs.GraphAddName(builder, name)
        fbs.GraphAddDimensionNames(builder, dimension_names)
        fbs.GraphAddDimensions(builder, dimensions)
        fbs.GraphAddValues(builder, values)
        fbs.GraphAddInputs(builder, inputs)
        fbs.GraphAddOutputs(builder, outputs)
        fbs.GraphAddNodes(builder, nodes)
        fbs.GraphAddConstants(builder, constants)
        fbs.GraphAddSamples(builder, samples)
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

    def dimension_name(self, name: str) -> int:
        builder = self.builder
        text = self.text(name, "dimension name")
        fbs.DimensionNameStart(builder)
        fbs.DimensionNameAddName(builder, text)
        fbs.DimensionNameAddMaximum(builder, self.whole(self.graph.maxima.get(name, 0), f"maximum of {name!r}"))
        return int(fbs.DimensionNameEnd(builder))

    def dimension(self, dim: Dim) -> int:
        builder = self.builder
        terms = []
        for names, coefficient in dim.terms:
            indices = self.numbers([self.dimension_names.index(name) for name in names], np.uint32)
            fbs.TermStart(builder)
            fbs.TermAddCoefficient(builder, coefficient)
            fbs.TermAddNames(builder, indices)
            terms.append(int(fbs.TermEnd(builder)))
        content = self.tables(terms)
        fbs.DimensionStart(builder)
        fbs.DimensionAddTerms(builder, content)
        return int(fbs.DimensionEnd(builder))

    def value(self, value: Value) -> int:
        builder = self.builder
        shape = self.numbers([self.dim(dim, value) for dim in value.shape], np.int64)
        name = self.text(value.name, "value name")
        fbs.ValueStart(builder)
        fbs.ValueAddName(builder, name)
        fbs.ValueAddDtype(builder, DTYPE_CODES[value.dtype])
        fbs.ValueAddShape(builder, shape)
        return int(fbs.ValueEnd(builder))

    def dim(self, dim: int | Dim, value: Value) -> int:
        """A dimension as the file counts: a size, or -1 minus the index of an expression."""
        if isinstance(dim, Dim):
            return -1 - self.dimensions.index(dim)
        try:
            size = index(dim)
        except TypeError:
            raise GraphError(f"value {value}: dimension {dim!r} is no integer") from None
        if size not in _INT64:
            raise GraphError(f"value {value}: dimension {dim} is too large for the file")
        return size

    def whole(self, number: Any, what: str) -> int:
        """A number of at least 0 that the file can hold."""
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or int(number) not in _UINT64:
            raise GraphError(f"{what} is {number!r}, expected an integer of at least 0")
        return int(number)

    def input(self, name: str, vocabulary: int) -> int:
        builder = self.builder
        row = self.graph.unknown_rows.get(name)
        policy = fbs.OutOfRange.Raise if row is None else fbs.OutOfRange.UnknownRow
        fbs.InputStart(builder)
        fbs.InputAddValue(builder, self.numbering[name])
        fbs.InputAddVocabulary(builder, vocabulary)
        fbs.InputAddOutOfRange(builder, policy)
        fbs.InputAddUnknownRow(builder, 0 if row is None else self.whole(row, f"unknown row of input {name!r}"))
        return int(fbs.InputEnd(builder))

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

    def sample(self, placement: Placement, tolerance: float) -> int:
        builder = self.builder
        outputs = self.tables([self.sample_array(extent) for extent in placement.sample_outputs])
        inputs = self.tables([self.sample_array(extent) for extent in placement.sample_inputs])
        fbs.SampleStart(builder)
        fbs.SampleAddInputs(builder, inputs)
        fbs.SampleAddOutputs(builder, outputs)
        fbs.SampleAddTolerance(builder, tolerance)
        return int(fbs.SampleEnd(builder))

    def sample_array(self, extent: Extent) -> int:
        builder = self.builder
        shape = self.numbers(extent.shape, np.int64)
        fbs.SampleArrayStart(builder)
        fbs.SampleArrayAddValue(builder, self.numbering[extent.name])
        fbs.SampleArrayAddShape(builder, shape)
        fbs.SampleArrayAddByteOffset(builder, extent.byte_offset)
        fbs.SampleArrayAddByteSize(builder, extent.byte_size)
        return int(fbs.SampleArrayEnd(builder))

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
