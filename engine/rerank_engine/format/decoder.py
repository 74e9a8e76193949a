"""The GRAPH section becomes a :class:`~rerank_engine.graph.Graph`, if what it says makes sense.

The verifier proves the structure; structure is not meaning. Here every index, dtype, shape, byte size and
name is checked. The writer runs the same code over its own output, so a file that cannot be read is never
written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rerank_engine.errors import ModelFileError
from rerank_engine.format.arrays import Extent, Placement, check_placement
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.layout import Source
from rerank_engine.format.shapes import MAX_RANK, ShapeReader, least_elements, unsolved_name
from rerank_engine.format.verifier import verify_buffer
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Shape, Value
from rerank_engine.ops import OPERATORS
from rerank_engine.semantics import Ids, input_ids

DTYPE_CODES: Mapping[str, int] = {
    "float32": fbs.DType.Float32,
    "int32": fbs.DType.Int32,
    "int64": fbs.DType.Int64,
    "bool": fbs.DType.Bool,
    "float64": fbs.DType.Float64,
    "int8": fbs.DType.Int8,
    "int16": fbs.DType.Int16,
    "uint8": fbs.DType.UInt8,
    "uint16": fbs.DType.UInt16,
    "uint32": fbs.DType.UInt32,
    "uint64": fbs.DType.UInt64,
}
"""The dtypes of :data:`rerank_engine.graph.DTYPES` as the file writes them."""

MAX_NAME_LENGTH = 4096
MAX_VALUES_BYTES = 2**40
"""Most bytes of all values of a graph together, when every named dimension is 1: more is damage, or a trap."""

NO_VOCABULARY = -1

_DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}", re.ASCII)


@dataclass(frozen=True)
class DecodedGraph:
    """A graph whose arrays are still bytes.

    Attributes
    ----------
    graph
        Complete but for ``constants``, which are empty, and ``sample``, which is None.
    placement
        Where the arrays stand.
    tolerance
        That of the sample, None where there is none.
    """

    graph: Graph
    placement: Placement
    tolerance: float | None


def decode_graph(section: bytes, weights_size: int, source: Source, *, unknown_fields: bool = False) -> DecodedGraph:
    """Verify and decode a GRAPH section.

    Parameters
    ----------
    section
        Its bytes; immutable, so that what was verified is what is read.
    weights_size
        Bytes of the WEIGHTS section.
    source
        For messages.
    unknown_fields
        The file is of a newer minor version and may hold fields to ignore.

    Raises
    ------
    ModelFileError
        Names the place in the section and the rule that it breaks.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.format.writer import model_bytes
    >>> from rerank_engine.graph import Graph
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> data = model_bytes(graph)
    >>> size = int.from_bytes(data[24:32], "little")
    >>> decode_graph(data[128 : 128 + size], 12, Source("one.rrm")).placement.constants
    (Extent(name='w', dtype='float32', shape=(3,), byte_offset=0, byte_size=12),)
    """
    verify_buffer(section, source, unknown_fields=unknown_fields)
    decoded = _Decoder(fbs.Graph.GetRootAs(section, 0), source).decode()
    check_placement(decoded.placement, weights_size, source, more_arrays=unknown_fields)
    return decoded


def operator_version(op: str) -> int:
    """Version of an operator's meaning that this engine writes and reads; 1 for operators not in the table.

    >>> operator_version("Unheard")
    1
    """
    return OPERATORS[op].version if op in OPERATORS else 1


class _Decoder:
    """Reads a verified buffer; holds what every check needs."""

    def __init__(self, root: Any, source: Source) -> None:
        self.root = root
        self.source = source
        self.shapes = ShapeReader(root, source)
        self.names: list[str] = []
        self.values: dict[str, Value] = {}
        self.value_bytes = 0

    def fail(self, place: str, problem: str) -> NoReturn:
        raise self.source.damaged(f"section GRAPH, {place}", problem)

    def decode(self) -> DecodedGraph:
        root = self.root
        values = [self.value(root.Values(i), f"values[{i}]") for i in range(root.ValuesLength())]
        self.shapes.check_all_used()
        self.names = self.unique((value.name for value in values), "values")
        self.values = dict(zip(self.names, values, strict=True))
        inputs = [root.Inputs(i) for i in range(root.InputsLength())]
        graph = Graph(
            name=self.name(root.Name(), "name"),
            inputs=self.unique((self.indexed([entry.Value()], "inputs")[0] for entry in inputs), "inputs"),
            outputs=self.indexed(root.OutputsAsNumpy().tolist(), "outputs"),
            nodes=[self.node(root.Nodes(i), f"nodes[{i}]") for i in range(root.NodesLength())],
            values=self.values,
            metadata=self.metadata(),
            maxima=self.shapes.maxima,
        )
        if name := unsolved_name(self.values[name].shape for name in graph.inputs):
            self.fail("inputs", f"none of them gives the size of {name!r} alone")
        ids = input_ids(graph)
        for i, (name, entry) in enumerate(zip(graph.inputs, inputs, strict=True)):
            row = self.semantics(name, ids.get(name, Ids(NO_VOCABULARY, None)), entry, f"inputs[{i}]")
            if row is not None:
                graph.unknown_rows[name] = row
        constants = tuple(self.constant(root.Constants(i), f"constants[{i}]") for i in range(root.ConstantsLength()))
        self.unique((*graph.inputs, *(extent.name for extent in constants)), "inputs and constants")
        return DecodedGraph(graph, *self.sample(constants))

    def value(self, table: Any, place: str) -> Value:
        name = self.name(table.Name(), f"{place}.name")
        code = table.Dtype()
        if code not in _DTYPE_NAMES:
            self.fail(f"{place}.dtype", f"code {code} of {name!r}, known: {sorted(_DTYPE_NAMES)}")
        dtype = _DTYPE_NAMES[code]
        shape = self.shapes.shape(table.ShapeAsNumpy().tolist(), f"{place}.shape")
        self.count(dtype, shape, f"{place}.shape")
        return Value(name, dtype, shape)

    def count(self, dtype: str, shape: Shape, place: str) -> None:
        """Add up the bytes that the values take, so that no small file can stand for a huge model."""
        self.value_bytes += DTYPES[dtype].itemsize * least_elements(shape)
        if self.value_bytes > MAX_VALUES_BYTES:
            self.fail(place, f"the values up to this one have more than {MAX_VALUES_BYTES} bytes")

    def semantics(self, name: str, ids: Ids, table: Any, place: str) -> int | None:
        """Check what the file says of an input's ids against what the graph does, and return its unknown row."""
        policy, row = table.OutOfRange(), table.UnknownRow()
        if policy not in (fbs.OutOfRange.Raise, fbs.OutOfRange.UnknownRow):
            self.fail(f"{place}.out_of_range", f"policy {policy} of {name!r}, known: 1 (raise), 2 (unknown row)")
        unknown_row = row if policy == fbs.OutOfRange.UnknownRow else None
        if unknown_row is None and row:
            self.fail(f"{place}.unknown_row", f"row {row} of {name!r}, which has no unknown row")
        if table.Vocabulary() != ids.vocabulary:
            self.fail(f"{place}.vocabulary", f"{table.Vocabulary()} of {name!r}, by its tables {ids.vocabulary}")
        if ids.mixed or unknown_row != ids.unknown_row:
            tables = "do not agree on one" if ids.mixed else f"have {_row_text(ids.unknown_row)}"
            self.fail(f"{place}.unknown_row", f"{name!r} declares {_row_text(unknown_row)}, its tables {tables}")
        return unknown_row

    def node(self, table: Any, place: str) -> Node:
        op = self.identifier(table.Op(), f"{place}.op")
        name = self.name(table.Name(), f"{place}.name")
        if (version := table.OpVersion()) != (known := operator_version(op)):
            way_out = "update it" if version > known else "convert the source model again"
            raise ModelFileError(
                f"{self.source.name}: section GRAPH, {place}: node {name!r} has version {version} of operator {op}, "
                f"but this rerank-sdk knows version {known}; {way_out}"
            )
        attributes = dict(
            self.attribute(table.Attributes(i), f"{place}.attributes[{i}]") for i in range(table.AttributesLength())
        )
        if len(attributes) != table.AttributesLength():
            self.fail(f"{place}.attributes", "a name stands twice")
        return Node(
            op=op,
            name=name,
            inputs=tuple(self.indexed(table.InputsAsNumpy().tolist(), f"{place}.inputs")),
            outputs=tuple(self.indexed(table.OutputsAsNumpy().tolist(), f"{place}.outputs")),
            attributes=attributes,
        )

    def attribute(self, table: Any, place: str) -> tuple[str, Any]:
        name = self.identifier(table.Name(), f"{place}.name")
        accessor_type, plain = _ATTRIBUTES[table.ValueType()]
        accessor, content = accessor_type(), table.Value()
        accessor.Init(content.Bytes, content.Pos)
        return name, plain(accessor)

    def constant(self, table: Any, place: str) -> Extent:
        value = self.values[self.indexed([table.Value()], place)[0]]
        shape = tuple(dim for dim in value.shape if not isinstance(dim, Dim))
        if len(shape) != len(value.shape):
            self.fail(place, f"constant {value} has no fixed shape")
        return Extent(value.name, value.dtype, shape, table.ByteOffset(), table.ByteSize())

    def sample(self, constants: tuple[Extent, ...]) -> tuple[Placement, float | None]:
        """Read where the sample's arrays stand; what they hold is checked once they are mapped."""
        if (count := self.root.SamplesLength()) > 1:
            self.fail("samples", f"{count} samples, at most 1 is allowed")
        if not count:
            return Placement(constants), None
        table, place = self.root.Samples(0), "samples[0]"
        inputs = tuple(self.sample_array(table.Inputs(i), f"{place}.inputs[{i}]") for i in range(table.InputsLength()))
        outputs = tuple(
            self.sample_array(table.Outputs(i), f"{place}.outputs[{i}]") for i in range(table.OutputsLength())
        )
        self.unique((extent.name for extent in inputs), f"{place}.inputs")
        self.unique((extent.name for extent in outputs), f"{place}.outputs")
        return Placement(constants, inputs, outputs), table.Tolerance()

    def sample_array(self, table: Any, place: str) -> Extent:
        value = self.values[self.indexed([table.Value()], place)[0]]
        shape = tuple(table.ShapeAsNumpy().tolist())
        if len(shape) > MAX_RANK or min(shape, default=0) < 0:
            self.fail(f"{place}.shape", f"{shape[: MAX_RANK + 1]} of {value.name!r}, expected sizes of at least 0")
        self.count(value.dtype, shape, f"{place}.shape")
        return Extent(value.name, value.dtype, shape, table.ByteOffset(), table.ByteSize())

    def metadata(self) -> dict[str, str]:
        entries = [self.root.Metadata(i) for i in range(self.root.MetadataLength())]
        keys = self.unique(
            (self.name(entry.Key(), f"metadata[{i}].key") for i, entry in enumerate(entries)), "metadata"
        )
        return dict(zip(keys, (entry.Value().decode() for entry in entries), strict=True))

    def name(self, text: bytes, place: str) -> str:
        """Decode a name: any words that a source model may use, of sane length, without NUL."""
        name = text.decode()
        if len(name) > MAX_NAME_LENGTH:
            self.fail(place, f"a name of {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed")
        if "\0" in name:
            self.fail(place, f"name {name!r} contains NUL")
        return name

    def identifier(self, text: bytes, place: str) -> str:
        """Decode a name of ours: an operator or an attribute."""
        name = text.decode()
        if not _IDENTIFIER.fullmatch(name):
            self.fail(place, f"{name[:160]!r} is no identifier (letters, digits and _ . : -, at most 128)")
        return name

    def indexed(self, numbers: list[int], place: str) -> list[str]:
        names = self.names
        if numbers and max(numbers) >= len(names):
            self.fail(place, f"value {max(numbers)} of {len(names)}")
        return [names[number] for number in numbers]

    def unique(self, names: Iterable[str], place: str) -> list[str]:
        found = list(names)
        if len(set(found)) != len(found):
            name, count = Counter(found).most_common(1)[0]
            self.fail(place, f"{name!r} stands {count} times")
        return found


def _row_text(unknown_row: int | None) -> str:
    return "no unknown row" if unknown_row is None else f"unknown row {unknown_row}"


def _strings(accessor: Any) -> tuple[str, ...]:
    return tuple(accessor.Value(i).decode() for i in range(accessor.ValueLength()))


# Accessor class and the way from it to a plain value, by type number. The verifier has checked the numbers.
_ATTRIBUTES: Mapping[int, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    fbs.AttributeValue.BoolAttribute: (fbs.BoolAttribute, lambda it: bool(it.Value())),
    fbs.AttributeValue.IntAttribute: (fbs.IntAttribute, lambda it: it.Value()),
    fbs.AttributeValue.FloatAttribute: (fbs.FloatAttribute, lambda it: it.Value()),
    fbs.AttributeValue.StringAttribute: (fbs.StringAttribute, lambda it: it.Value().decode()),
    fbs.AttributeValue.BoolsAttribute: (fbs.BoolsAttribute, lambda it: tuple(it.ValueAsNumpy().tolist())),
    fbs.AttributeValue.IntsAttribute: (fbs.IntsAttribute, lambda it: tuple(it.ValueAsNumpy().tolist())),
    fbs.AttributeValue.FloatsAttribute: (fbs.FloatsAttribute, lambda it: tuple(it.ValueAsNumpy().tolist())),
    fbs.AttributeValue.StringsAttribute: (fbs.StringsAttribute, _strings),
}
