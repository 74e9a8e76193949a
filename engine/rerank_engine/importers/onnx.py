"""ONNX to a graph: reads the file, finds the candidate dimension, and hands each node to its handler."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, GraphError, InputError, MissingExtraError, UnsupportedOperatorError
from rerank_engine.format.shapes import least_elements
from rerank_engine.graph import CANDIDATES, DTYPES, Dim, Graph, Node, Value, dtype_name, shape_attribute
from rerank_engine.importers.limits import MOST_ELEMENTS
from rerank_engine.importers.onnx_file import MOST_NODES, array_of, read_onnx
from rerank_engine.importers.shapes import ShapeValue
from rerank_engine.ops import lookup
from rerank_engine.reference import evaluate_node

if TYPE_CHECKING:
    import onnx

OLDEST_OPSET = 7

_MOST_COMPUTED, _MOST_FLOATS = 4096, 16
"""Numbers that are computed while importing; larger constants, weights above all, are left to the passes."""

_MISFITS = (ArithmeticError, AttributeError, GraphError, InputError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that mean that inputs and attributes do not fit: the checker of ONNX sees neither shapes nor values."""

_FLAGS = frozenset(
    (
        *("allowzero", "ceil_mode", "count_include_pad", "detect_negative", "detect_positive", "exclusive", "fmod"),
        *("is_causal", "keepdims", "largest", "layout", "linear_before_reset", "new_axis", "noop_with_empty_axes"),
        *("reverse", "saturate", "select_last_index", "sorted", "spatial", "transA", "transB", "upper"),
    )
)
"""Attributes that are integers and mean a truth value: about others than 0 and 1 runtimes disagree."""

ONNX_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
"""ONNX element types that the engine has, and their names in the graph."""


def import_onnx(
    source: str | Path | onnx.ModelProto,
    candidates: str | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
) -> Graph:
    """Read an ONNX model.

    Parameters
    ----------
    source
        Path or ``onnx.ModelProto``.
    candidates
        Name of the candidate dimension; None takes the only one that stands first in an input.
    constants
        Inputs that are fixed for good, with their value.

    Raises
    ------
    UnsupportedOperatorError, ConversionError, MissingExtraError
        See :func:`rerank_engine.convert`.
    """
    try:
        import onnx  # noqa: F401  (checked here once, for a clear message)
    except ImportError as error:
        raise MissingExtraError("reading ONNX models", "convert") from error
    model = read_onnx(source)
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    newest = newest_opset()
    if not OLDEST_OPSET <= opsets.get("", newest) <= newest:
        raise ConversionError(f"ONNX opset {opsets['']} is not supported; supported: {OLDEST_OPSET} to {newest}")
    name = Path(source).stem if isinstance(source, str | Path) else (model.graph.name or "model")
    opset = opsets.get("", newest)
    builder = OnnxBuilder(Graph(name, metadata={"source": "onnx", "opset": str(opset)}), opset, opsets)
    builder.read_inputs(model.graph, candidates, constants or {})
    builder.reserved.update(name for node in model.graph.node for name in node.output)
    for node in model.graph.node:
        builder.add(node)
    for output in model.graph.output:
        builder.add_output(output.name)
    return builder.graph


def newest_opset() -> int:
    """Newest version of ONNX's operator set that is read: the installed package knows no newer one."""
    from onnx import defs

    return int(defs.onnx_opset_version())


class OnnxBuilder:
    """State while one model is read.

    Attributes
    ----------
    graph
        What has been built so far.
    opset
        Version of the default operator set.
    opsets
        Version of every operator set, by domain.
    shapes
        Integer values that are known now, by ONNX name; they never enter the graph.
    unavailable
        ONNX names of results that cannot be given, with the reason; it is told when one of them is used.
    reserved
        ONNX names: values of our own making take others, so that every ONNX value keeps its name.
    """

    def __init__(self, graph: Graph, opset: int, opsets: Mapping[str, int] | None = None) -> None:
        self.graph = graph
        self.opset = opset
        self.opsets = dict(opsets or {"": opset})
        self.shapes: dict[str, ShapeValue] = {}
        self.names: dict[str, str] = {}
        self.reserved: set[str] = set()
        self.unavailable: dict[str, str] = {}
        self._dimensions: dict[str, str] = {}
        self._node_names: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._node: onnx.NodeProto | None = None
        self._added = 0

    # --- what the model declares ---------------------------------------------------------------------------

    def read_inputs(
        self, graph: onnx.GraphProto, candidates: str | None, constants: Mapping[str, NDArray[Any]]
    ) -> None:
        """Declare initializers and inputs, and find the candidate dimension."""
        if graph.sparse_initializer:
            raise ConversionError("sparse initializers are not supported; store them dense")
        self.reserved.update(entry.name for entry in (*graph.initializer, *graph.input))
        for tensor in graph.initializer:
            self.constant(tensor.name, array_of(tensor))
        fixed = {tensor.name for tensor in graph.initializer} | set(constants)
        inputs = [entry for entry in graph.input if entry.name not in fixed]
        if unknown := set(constants) - {entry.name for entry in graph.input}:
            raise ConversionError(f"constants: {sorted(unknown)[0]!r} is no input of the model")
        for name, array in constants.items():
            self.constant(name, np.asarray(array))
        self._name_dimensions(inputs, candidates)
        for entry in inputs:
            self._read_input(entry)

    def _name_dimensions(self, inputs: Sequence[onnx.ValueInfoProto], candidates: str | None) -> None:
        """Decide which dimension counts candidates, and give every other named one a name that we can write."""
        named: dict[str, bool] = {}
        unnamed_first = False
        for entry in inputs:
            for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
                if dim.dim_param:
                    named[dim.dim_param] = named.get(dim.dim_param, False) or axis == 0
                elif not dim.HasField("dim_value") or dim.dim_value < 0:
                    unnamed_first = unnamed_first or axis == 0
        first = [name for name, leads in named.items() if leads]
        if candidates is None:
            if len(first) > 1:
                raise ConversionError(
                    f"the model has several named dimensions ({', '.join(sorted(first))});"
                    " say which one counts candidates: candidates=…"
                )
            leading = [*first, *([] if first or unnamed_first or len(named) > 1 else named)]
            candidates = next(iter(leading), None)
        elif candidates not in named:
            raise ConversionError(f"no dimension is called {candidates!r}; named dimensions: {sorted(named) or 'none'}")
        self._dimensions = {"": CANDIDATES}
        if candidates is not None:
            self._dimensions[candidates] = CANDIDATES
        for name in named:
            if name != candidates:
                self._dimensions[name] = self._free_dimension(name)

    def _free_dimension(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)[:48]
        base = base if base and not base[0].isdigit() and base != CANDIDATES else f"dim_{base}"
        name, count = base, 1
        while name in self._dimensions.values():
            name, count = f"{base}_{count}", count + 1
        return name

    def _read_input(self, entry: onnx.ValueInfoProto) -> None:
        kind = entry.type.tensor_type
        if not entry.type.HasField("tensor_type") or kind.elem_type not in ONNX_DTYPES:
            raise ConversionError(
                f"input {entry.name!r} has ONNX type {_type_name(entry)}; supported: {', '.join(DTYPES)}"
            )
        if not kind.HasField("shape"):
            raise ConversionError(f"input {entry.name!r} has no shape; export the model with one")
        shape: list[int | Dim] = []
        for axis, dim in enumerate(kind.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            elif dim.dim_param or axis == 0:
                shape.append(Dim(self._dimensions[dim.dim_param]))
            else:
                name = self._free_dimension(f"{entry.name}_{axis}")
                self._dimensions[f"{entry.name}\0{axis}"] = name
                shape.append(Dim(name))
        value = Value(entry.name, ONNX_DTYPES[kind.elem_type], tuple(shape))
        if least_elements(value.shape) > MOST_ELEMENTS:
            raise ConversionError(f"input {value} has more than {MOST_ELEMENTS} elements")
        self.graph.values[entry.name] = value
        self.graph.inputs.append(entry.name)
        self.names[entry.name] = entry.name

    def add_output(self, name: str) -> None:
        """Declare an output."""
        if name in self.graph.outputs:
            raise ConversionError(f"output {name!r} is declared twice")
        if name in self.unavailable:
            raise ConversionError(f"output {name!r}: {self.unavailable[name]}")
        if name not in self.names and name not in self.shapes:
            raise ConversionError(f"output {name!r} is made by no node")
        ours = self.value_name(name)
        if ours != name:
            # A branch or a loop gives a value a second name, but callers know the output by its own.
            (ours,) = self.emit_many("Identity", [ours], None, [name], label=name)
        self.graph.outputs.append(ours)

    # --- nodes ---------------------------------------------------------------------------------------------

    def add(self, node: onnx.NodeProto) -> None:
        """Add one ONNX node through its handler."""
        from rerank_engine.importers.functions import function_body
        from rerank_engine.importers.onnx_handlers import HANDLERS

        self._node = node
        self.count_nodes(1)
        domain = "" if node.domain == "ai.onnx" else node.domain
        handler = HANDLERS.get((domain, node.op_type))
        if handler is None:
            try:
                body = function_body(self, node)
            except _MISFITS as error:
                raise self.refuse(f"its inputs or attributes do not fit each other: {error}") from error
            if body is None:
                known = sorted(name for where, name in HANDLERS if where == domain)
                what = f"this operator{f' of domain {domain!r}' if domain else ''} is not supported"
                raise self.refuse(f"{what}; supported: {', '.join(known) or 'none of this domain'}")
            self.add_all(body.nodes, body.opset)
            return
        try:
            handler(self, node)
        except UnsupportedOperatorError as error:
            if str(error).startswith(f"{node.op_type} node "):
                raise
            raise self.refuse(f"as {error}") from error
        except _MISFITS as error:
            raise self.refuse(f"its inputs or attributes do not fit each other: {error}") from error

    def count_nodes(self, count: int) -> None:
        """Count nodes that are added or copied, so that no small file keeps the importer busy for long."""
        self._added += count
        if self._added > MOST_NODES:
            raise ConversionError(f"with its loops written out the model has more than {MOST_NODES} nodes")

    def add_all(self, nodes: Iterable[onnx.NodeProto], opset: int | None = None) -> None:
        """Add the nodes of a function or of a branch in place of the node at hand, in its own version."""
        outer, version = self._node, self.opset
        inner = list(nodes)
        self.reserved.update(name for node in inner for name in node.output)
        self.opset = opset if opset is not None else version
        try:
            for node in inner:
                self.add(node)
        finally:
            self._node, self.opset = outer, version

    def alias(self, output: str, source: str) -> None:
        """Give the value behind one ONNX name a second ONNX name."""
        if source in self.shapes and source not in self.names:
            self.shapes[output] = self.shapes[source]
        else:
            self.names[output] = self.value_name(source)

    def free_prefix(self, base: str) -> str:
        """A prefix for the names of an inlined part that no other part has."""
        return _free_name(base, self._prefixes)

    @staticmethod
    def onnx_dtype(dtype: str) -> int:
        """ONNX's number of a dtype."""
        return next(code for code, name in ONNX_DTYPES.items() if name == dtype)

    def refuse(self, why: str) -> UnsupportedOperatorError:
        """Build the error that names the node at hand."""
        node = self._node
        assert node is not None
        return UnsupportedOperatorError(f"{node.op_type} node {node.name or node.output[0]!r}: {why}")

    def attributes(self, understood: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Attributes of the node at hand, with defaults; anything else stops the conversion.

        Parameters
        ----------
        understood
            Name to default.
        only
            Attributes of which just this value is understood.
        """
        from onnx import helper

        assert self._node is not None
        found = {entry.name: helper.get_attribute_value(entry) for entry in self._node.attribute}
        for name, value in found.items():
            if only and name in only:
                if value != only[name]:
                    raise self.refuse(f"attribute {name}={value!r} is not supported; only {only[name]!r} is")
            elif name not in understood:
                raise self.refuse(f"attribute {name!r} is not understood")
            elif name in _FLAGS and value not in (0, 1):
                raise self.refuse(f"attribute {name}={value!r} is no truth value; expected 0 or 1")
        return {name: found.get(name, default) for name, default in understood.items()}

    def axis(self, axis: int, rank: int) -> int:
        """Turn a negative axis into a positive one; one out of range stops the conversion."""
        if not -rank <= axis < rank:
            raise self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    # --- values --------------------------------------------------------------------------------------------

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """File a constant under its ONNX name."""
        if array.dtype not in DTYPES.values():
            raise ConversionError(f"constant {name!r} has dtype {array.dtype}; supported: {', '.join(DTYPES)}")
        ours = self.graph.add_constant(name, array)
        self.names[name] = ours
        return ours

    def own_constant(self, base: str, array: NDArray[Any]) -> str:
        """File a constant that the source has not, or find the same one again, and return its name."""
        name, count = base, 1
        while name in self.reserved or (name in self.graph.values and not self._holds(name, array)):
            name, count = f"{base}.{count}", count + 1
        return self.graph.add_constant(name, array)

    def _holds(self, name: str, array: NDArray[Any]) -> bool:
        known = self.graph.constants.get(name)
        return (
            known is not None
            and (known.dtype, known.shape) == (array.dtype, array.shape)
            and known.tobytes() == array.tobytes()
        )

    def value_name(self, name: str) -> str:
        """Name in the graph of an ONNX value; a known integer vector becomes a constant."""
        if name in self.names:
            return self.names[name]
        if name in self.shapes:
            known = self.shapes[name]
            if any(isinstance(entry, Dim) for entry in known.entries):
                attributes = {
                    "entries": shape_attribute(known.entries),
                    "is_scalar": int(known.is_scalar),
                    "dtype": known.dtype,
                }
                return self.emit_many("Dimensions", [], attributes, [name], label=name)[0]
            array = np.array(known.entries, dtype=DTYPES[known.dtype])
            return self.constant(name, array.reshape(()) if known.is_scalar else array)
        raise self.refuse(f"input {name!r}: {self.unavailable.get(name, 'it is missing')}")

    def value(self, name: str) -> Value:
        """The graph's value for an ONNX name."""
        return self.graph.values[self.value_name(name)]

    def array(self, name: str) -> NDArray[Any] | None:
        """The constant behind an ONNX name, or None."""
        if name in self.shapes and name not in self.names:
            return self.graph.constants.get(self.value_name(name))
        return self.graph.constants.get(self.names.get(name, ""))

    def shape_value(self, name: str) -> ShapeValue | None:
        """Integers behind an ONNX name that are known now, or None."""
        if name in self.shapes:
            return self.shapes[name]
        array = self.array(name)
        if array is None or array.dtype.kind != "i" or array.ndim > 1 or array.size > 64:
            return None
        return ShapeValue(tuple(int(entry) for entry in array.reshape(-1)), array.ndim == 0, dtype_name(array.dtype))

    def integers(self, name: str, what: str) -> list[int]:
        """Constant integers behind an ONNX name."""
        known = self.shape_value(name)
        if known is None or any(isinstance(entry, Dim) for entry in known.entries):
            raise self.refuse(f"{what} must be known when the model is converted; give constants={{…}}")
        return [entry for entry in known.entries if isinstance(entry, int)]

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        output: str | None = None,
    ) -> str:
        """Append a node over graph names and return the name of its result.

        ``output`` is an ONNX name; without it the result is an intermediate with a name of its own.
        """
        (name,) = self.emit_many(op, inputs, attributes, [output])
        return name

    def emit_many(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None,
        outputs: Sequence[str | None],
        label: str = "",
    ) -> list[str]:
        """Append a node with several results; an empty ONNX name, or None, makes an intermediate.

        What is made of small constants alone is computed at once: exporters write sizes, axes and conditions so.
        """
        onnx_node = self._node
        base = f"{next(iter(onnx_node.output), '') if onnx_node else 'value'}/{op.lower()}"
        names: list[str] = []
        for output in outputs:
            name, count = output or base, 1
            while not output and (name in self.graph.values or name in self.reserved or name in names):
                name, count = f"{base}.{count}", count + 1
            names.append(name)
        label = label or (onnx_node.name if onnx_node else "") or names[0]
        node = self._unique(
            Node(op, label if outputs[0] else f"{label}/{op}", tuple(inputs), tuple(names), dict(attributes or {}))
        )
        inferred = lookup(node).infer(node, [self.graph.values[entry] for entry in inputs])
        values = [Value(name, dtype, shape) for name, (dtype, shape) in zip(names, inferred, strict=True)]
        if too_large := [value for value in values if least_elements(value.shape) > MOST_ELEMENTS]:
            raise ConversionError(
                f"{node.op} node {node.name!r}: {too_large[0]} has more than {MOST_ELEMENTS} elements"
            )
        known = self._compute(node, values)
        if known is None:
            self.graph.nodes.append(node)
        else:
            self.graph.constants.update(zip(names, known, strict=True))
        for value, output in zip(values, outputs, strict=True):
            name = value.name
            self.graph.values[name] = value
            if output:
                self.names[output] = name
        return names

    def _compute(self, node: Node, values: Sequence[Value]) -> list[NDArray[Any]] | None:
        """Results of a node over small constants; None when they are not known or not small."""
        constants = self.graph.constants
        shapes = [tuple(dim for dim in value.shape if isinstance(dim, int)) for value in values]
        most = _MOST_FLOATS if any(DTYPES[value.dtype].kind == "f" for value in values) else _MOST_COMPUTED
        if (
            not node.inputs
            or any(name not in constants for name in node.inputs)
            or any(len(shape) != len(value.shape) for shape, value in zip(shapes, values, strict=True))
            or sum(math.prod(shape) for shape in shapes) > most
            or sum(constants[name].size for name in node.inputs) > _MOST_COMPUTED
        ):
            return None
        results = evaluate_node(node, [constants[name] for name in node.inputs], shapes)
        return [
            np.array(result, DTYPES[value.dtype], order="C").reshape(shape)
            for result, value, shape in zip(results, values, shapes, strict=True)
        ]

    def _unique(self, node: Node) -> Node:
        return replace(node, name=_free_name(node.name, self._node_names))

    def emit_shaped(self, op: str, source: str, shape: Iterable[int | Dim], output: str | None = None) -> str:
        """Append a Reshape or Expand to a shape of the graph."""
        return self.emit(op, [source], {"shape": shape_attribute(shape)}, output)


def _free_name(base: str, taken: dict[str, int]) -> str:
    """A name that is not taken yet, and now is; ``taken`` has the next number of each.

    The next one starts where this one ended: a thousand of one name take a thousand steps.
    """
    name, count = base, taken.get(base, 1)
    while name in taken:
        name, count = f"{base}.{count}", count + 1
    taken[base] = count
    taken.setdefault(name, 1)
    return name


def _type_name(entry: onnx.ValueInfoProto) -> str:
    from onnx import TensorProto

    if not entry.type.HasField("tensor_type"):
        return str(entry.type.WhichOneof("value"))
    code = entry.type.tensor_type.elem_type
    return TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else str(code)
