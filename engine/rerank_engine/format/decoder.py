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
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.layout import ALIGNMENT, Source
from rerank_engine.format.verifier import verify_buffer
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Value
from rerank_engine.ops import OPERATORS

DTYPE_CODES: Mapping[str, int] = {
    "float32": fbs.DType.Float32,
    "int32": fbs.DType.Int32,
    "int64": fbs.DType.Int64,
    "bool": fbs.DType.Bool,
}
"""The dtypes of :data:`rerank_engine.graph.DTYPES` as the file writes them."""

MAX_RANK = 32
MAX_NAME_LENGTH = 4096
MAX_VALUE_BYTES = 2**48
"""More than today's processors can address: a larger shape is damage, or overflows later."""

_DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}", re.ASCII)


@dataclass(frozen=True)
class Extent:
    """Where a constant's bytes stand.

    Attributes
    ----------
    name
        Of the value.
    byte_offset
        From the start of the WEIGHTS section.
    byte_size
        Equal to the size of the value's shape and dtype.
    """

    name: str
    byte_offset: int
    byte_size: int


@dataclass(frozen=True)
class DecodedGraph:
    """A graph whose constants are still bytes.

    Attributes
    ----------
    graph
        Complete but for ``constants``, which are empty.
    extents
        One per constant, in the file's order.
    """

    graph: Graph
    extents: tuple[Extent, ...]


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
    >>> decode_graph(data[128 : 128 + size], 12, Source("one.rrm")).extents
    (Extent(name='w', byte_offset=0, byte_size=12),)
    """
    verify_buffer(section, source, unknown_fields=unknown_fields)
    return _Decoder(fbs.Graph.GetRootAs(section, 0), source).decode(weights_size)


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
        self.names: list[str] = []

    def fail(self, place: str, problem: str) -> NoReturn:
        raise self.source.damaged(f"section GRAPH, {place}", problem)

    def decode(self, weights_size: int) -> DecodedGraph:
        root = self.root
        dim_names = self.unique(
            (self.name(root.DimNames(i), f"dim_names[{i}]") for i in range(root.DimNamesLength())),
            "dim_names",
        )
        values = [self.value(root.Values(i), dim_names, f"values[{i}]") for i in range(root.ValuesLength())]
        self.names = self.unique((value.name for value in values), "values")
        graph = Graph(
            name=self.name(root.Name(), "name"),
            inputs=self.indexed(root.InputsAsNumpy(), "inputs"),
            outputs=self.indexed(root.OutputsAsNumpy(), "outputs"),
            nodes=[self.node(root.Nodes(i), f"nodes[{i}]") for i in range(root.NodesLength())],
            values=dict(zip(self.names, values, strict=True)),
            metadata=self.metadata(),
        )
        extents = [
            self.extent(root.Constants(i), values, weights_size, f"constants[{i}]")
            for i in range(root.ConstantsLength())
        ]
        self.unique((extent.name for extent in extents), "constants")
        self.check_overlap(extents)
        return DecodedGraph(graph, tuple(extents))

    def value(self, table: Any, dim_names: list[str], place: str) -> Value:
        name = self.name(table.Name(), f"{place}.name")
        code = table.Dtype()
        if code not in _DTYPE_NAMES:
            self.fail(f"{place}.dtype", f"code {code} of {name!r}, known: {sorted(_DTYPE_NAMES)}")
        rank = table.ShapeLength()
        if rank > MAX_RANK:
            self.fail(f"{place}.shape", f"{rank} dimensions of {name!r}, at most {MAX_RANK} are allowed")
        shape = tuple(self.dim(table.Shape(i), dim_names, f"{place}.shape[{i}]") for i in range(rank))
        dtype = _DTYPE_NAMES[code]
        # Zeros count as ones: the other dimensions must stay within what an array may have.
        if DTYPES[dtype].itemsize * _product(max(_extent(dim), 1) for dim in shape) > MAX_VALUE_BYTES:
            self.fail(f"{place}.shape", f"{name!r} has more than {MAX_VALUE_BYTES} bytes")
        return Value(name, dtype, shape)

    def dim(self, struct: Any, dim_names: list[str], place: str) -> int | Dim:
        size, scale, name = struct.Size(), struct.Scale(), struct.Name()
        if name == 0:
            if size < 0 or scale != 1:
                self.fail(place, f"fixed dimension with size {size} and scale {scale}")
            return int(size)
        if name > len(dim_names):
            self.fail(place, f"dimension name {name} of {len(dim_names)}")
        if size != 0 or scale < 1:
            self.fail(place, f"named dimension with size {size} and scale {scale}")
        return Dim(dim_names[name - 1], int(scale))

    def node(self, table: Any, place: str) -> Node:
        op = self.identifier(table.Op(), f"{place}.op")
        if (version := table.OpVersion()) != (known := operator_version(op)):
            raise ModelFileError(
                f"{self.source.name}: section GRAPH, {place}: version {version} of operator {op}, but this "
                f"rerank-sdk knows version {known}; update it, or convert the source model again"
            )
        attributes = dict(
            self.attribute(table.Attributes(i), f"{place}.attributes[{i}]") for i in range(table.AttributesLength())
        )
        if len(attributes) != table.AttributesLength():
            self.fail(f"{place}.attributes", "a name stands twice")
        return Node(
            op=op,
            name=self.name(table.Name(), f"{place}.name"),
            inputs=tuple(self.indexed(table.InputsAsNumpy(), f"{place}.inputs")),
            outputs=tuple(self.indexed(table.OutputsAsNumpy(), f"{place}.outputs")),
            attributes=attributes,
        )

    def attribute(self, table: Any, place: str) -> tuple[str, Any]:
        name = self.identifier(table.Name(), f"{place}.name")
        accessor_type, plain = _ATTRIBUTES[table.ValueType()]
        accessor, content = accessor_type(), table.Value()
        accessor.Init(content.Bytes, content.Pos)
        return name, plain(accessor)

    def extent(self, table: Any, values: list[Value], weights_size: int, place: str) -> Extent:
        index, offset, size = table.Value(), table.ByteOffset(), table.ByteSize()
        if index >= len(values):
            self.fail(place, f"value {index} of {len(values)}")
        value = values[index]
        if any(isinstance(dim, Dim) for dim in value.shape):
            self.fail(place, f"constant {value} has no fixed shape")
        needed = DTYPES[value.dtype].itemsize * _product(_extent(dim) for dim in value.shape)
        if size != needed:
            self.fail(place, f"constant {value} has {size} bytes, expected {needed}")
        if offset % ALIGNMENT:
            self.fail(place, f"constant {value.name!r} at byte {offset}, not {ALIGNMENT}-byte aligned")
        if offset + size > weights_size:
            self.fail(
                place,
                f"constant {value.name!r} at bytes {offset} to {offset + size} of {weights_size} in WEIGHTS",
            )
        return Extent(value.name, offset, size)

    def check_overlap(self, extents: list[Extent]) -> None:
        end, before = 0, ""
        for extent in sorted(extents, key=lambda extent: (extent.byte_offset, extent.byte_size)):
            if extent.byte_size == 0:
                continue
            if extent.byte_offset < end:
                self.fail("constants", f"{before!r} and {extent.name!r} overlap")
            end, before = extent.byte_offset + extent.byte_size, extent.name

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

    def indexed(self, indices: Any, place: str) -> list[str]:
        names = self.names
        numbers = indices.tolist()
        if numbers and max(numbers) >= len(names):
            self.fail(place, f"value {max(numbers)} of {len(names)}")
        return [names[number] for number in numbers]

    def unique(self, names: Iterable[str], place: str) -> list[str]:
        found = list(names)
        if len(set(found)) != len(found):
            name, count = Counter(found).most_common(1)[0]
            self.fail(place, f"{name!r} stands {count} times")
        return found


def _extent(dim: int | Dim) -> int:
    return dim.scale if isinstance(dim, Dim) else dim


def _product(numbers: Iterable[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


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
