"""ONNX to a graph: reads the file, finds the candidate dimension, and hands each node to its handler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, GraphError, MissingExtraError, UnsupportedOperatorError
from rerank_engine.graph import CANDIDATES, DTYPES, Dim, Graph, Node, Shape, Value, dtype_name, shape_text
from rerank_engine.importers.shapes import ShapeValue
from rerank_engine.ops import lookup

if TYPE_CHECKING:
    import onnx

OLDEST_OPSET, NEWEST_OPSET = 7, 24

ONNX_DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool"}
"""ONNX element types that the engine has, and their names in the graph."""


def import_onnx(source: str | Path | onnx.ModelProto, candidates: str | None = None) -> Graph:
    """Read an ONNX model.

    Parameters
    ----------
    source
        Path or ``onnx.ModelProto``.
    candidates
        Name of the candidate dimension; None takes the only named one.

    Raises
    ------
    UnsupportedOperatorError, ConversionError, MissingExtraError
        See :func:`rerank_engine.convert`.
    """
    try:
        import onnx  # noqa: F401  (checked here once, for a clear message)
    except ImportError as error:
        raise MissingExtraError("reading ONNX models", "convert") from error
    model = _read(source)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ConversionError(f"ONNX opset {opset} is not supported; supported: {OLDEST_OPSET} to {NEWEST_OPSET}")
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    name = Path(source).stem if isinstance(source, str | Path) else (model.graph.name or "model")
    builder = OnnxBuilder(Graph(name, metadata={"source": "onnx", "opset": str(opset)}), opset)
    builder.read_inputs(model.graph, candidates)
    builder.reserved.update(name for node in model.graph.node for name in node.output)
    for node in model.graph.node:
        builder.add(node)
    for output in model.graph.output:
        builder.add_output(output.name)
    return builder.graph


def _read(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    if not isinstance(source, str | Path | onnx.ModelProto):
        raise ConversionError(f"expected a path or an onnx.ModelProto, got {type(source).__name__}")
    try:
        model = onnx.load(str(source)) if isinstance(source, str | Path) else source
        onnx.checker.check_model(model)
    except (DecodeError, OSError, onnx.checker.ValidationError) as error:
        raise ConversionError(
            f"cannot read the ONNX model {source if isinstance(source, str | Path) else ''}: {error}"
        ) from error
    return model


class OnnxBuilder:
    """State while one model is read.

    Attributes
    ----------
    graph
        What has been built so far.
    opset
        Version of the default operator set.
    shapes
        Integer values that are known now, by ONNX name; they never enter the graph.
    reserved
        ONNX names: values of our own making take others, so that every ONNX value keeps its name.
    """

    def __init__(self, graph: Graph, opset: int) -> None:
        self.graph = graph
        self.opset = opset
        self.shapes: dict[str, ShapeValue] = {}
        self.names: dict[str, str] = {}
        self.reserved: set[str] = set()
        self._node: onnx.NodeProto | None = None

    # --- what the model declares ---------------------------------------------------------------------------

    def read_inputs(self, graph: onnx.GraphProto, candidates: str | None) -> None:
        """Declare initializers and inputs, and find the candidate dimension."""
        from onnx import numpy_helper

        if graph.sparse_initializer:
            raise ConversionError("sparse initializers are not supported")
        self.reserved.update(entry.name for entry in (*graph.initializer, *graph.input))
        for tensor in graph.initializer:
            self.constant(tensor.name, numpy_helper.to_array(tensor))
        fixed = {tensor.name for tensor in graph.initializer}
        inputs = [entry for entry in graph.input if entry.name not in fixed]
        named = {
            dim.dim_param for entry in inputs for dim in entry.type.tensor_type.shape.dim if dim.HasField("dim_param")
        }
        if candidates is None:
            if len(named) > 1:
                raise ConversionError(
                    f"the model has several named dimensions ({', '.join(sorted(named))});"
                    " say which one counts candidates: candidates=…"
                )
            candidates = next(iter(named), None)
        elif candidates not in named:
            raise ConversionError(f"no dimension is called {candidates!r}; named dimensions: {sorted(named) or 'none'}")
        for entry in inputs:
            self._read_input(entry, candidates)

    def _read_input(self, entry: onnx.ValueInfoProto, candidates: str | None) -> None:
        kind = entry.type.tensor_type
        if kind.elem_type not in ONNX_DTYPES:
            raise ConversionError(
                f"input {entry.name!r} has ONNX type {kind.elem_type}; supported: {', '.join(DTYPES)}"
            )
        if not kind.HasField("shape"):
            raise ConversionError(f"input {entry.name!r} has no shape; export the model with one")
        shape: list[int | Dim] = []
        for axis, dim in enumerate(kind.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            elif axis == 0 and dim.dim_param in ("", candidates):
                shape.append(Dim(CANDIDATES))
            else:
                raise ConversionError(
                    f"input {entry.name!r}: dimension {axis} ({dim.dim_param or dim.dim_value or 'unknown'}) varies;"
                    " only the first may, and it counts candidates"
                )
        value = Value(entry.name, ONNX_DTYPES[kind.elem_type], tuple(shape))
        self.graph.values[entry.name] = value
        self.graph.inputs.append(entry.name)
        self.names[entry.name] = entry.name

    def add_output(self, name: str) -> None:
        """Declare an output."""
        if name in self.graph.outputs:
            raise ConversionError(f"output {name!r} is declared twice")
        if name not in self.names and name not in self.shapes:
            raise ConversionError(f"output {name!r} is made by no node")
        if name in self.shapes and any(isinstance(entry, Dim) for entry in self.shapes[name].entries):
            raise ConversionError(f"output {name!r} holds the number of candidates, which is no score")
        self.graph.outputs.append(self.value_name(name))

    # --- nodes ---------------------------------------------------------------------------------------------

    def add(self, node: onnx.NodeProto) -> None:
        """Add one ONNX node through its handler."""
        from rerank_engine.importers.onnx_handlers import HANDLERS

        self._node = node
        if node.domain not in ("", "ai.onnx"):
            raise self.refuse(f"operators of domain {node.domain!r} are not supported")
        handler = HANDLERS.get(node.op_type)
        if handler is None:
            raise self.refuse(f"this operator is not supported; supported: {', '.join(sorted(HANDLERS))}")
        try:
            handler(self, node)
        except UnsupportedOperatorError as error:
            if str(error).startswith(f"{node.op_type} node "):
                raise
            raise self.refuse(f"as {error}") from error
        except (ArithmeticError, AttributeError, GraphError, LookupError, TypeError, ValueError) as error:
            # The checker of ONNX sees neither shapes nor values: what does not fit shows only here.
            raise self.refuse(f"its inputs or attributes do not fit each other: {error}") from error

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
                raise self.refuse(f"{name!r} holds the number of candidates, which may only shape other values")
            array = np.array(known.entries, dtype=DTYPES[known.dtype])
            return self.constant(name, array.reshape(()) if known.is_scalar else array)
        raise self.refuse(f"input {name!r} is missing")

    def value(self, name: str) -> Value:
        """The graph's value for an ONNX name."""
        return self.graph.values[self.value_name(name)]

    def array(self, name: str) -> NDArray[Any] | None:
        """The constant behind an ONNX name, or None."""
        if name in self.shapes and name not in self.names:
            return self.graph.constants[self.value_name(name)]
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
            raise self.refuse(f"{what} must be constant")
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
        onnx_node = self._node
        base = output or f"{onnx_node.output[0] if onnx_node else 'value'}/{op.lower()}"
        name, count = base, 1
        while output is None and (name in self.graph.values or name in self.reserved):
            name, count = f"{base}.{count}", count + 1
        label = (onnx_node.name if onnx_node else "") or name
        node = Node(op, label if output else f"{label}/{op}", tuple(inputs), (name,), dict(attributes or {}))
        node = self._unique(node)
        (inferred,) = lookup(node).infer(node, [self.graph.values[entry] for entry in inputs])
        dtype, shape = inferred
        self.graph.nodes.append(node)
        self.graph.values[name] = Value(name, dtype, shape)
        if output is not None:
            self.names[output] = name
        return name

    def _unique(self, node: Node) -> Node:
        taken = {other.name for other in self.graph.nodes}
        name, count = node.name, 1
        while name in taken:
            name, count = f"{node.name}.{count}", count + 1
        return Node(node.op, name, node.inputs, node.outputs, node.attributes)

    def emit_shaped(self, op: str, source: str, shape: Iterable[int | Dim], output: str | None = None) -> str:
        """Append a Reshape or Expand to a shape of the graph."""
        wanted: Shape = tuple(shape)
        scale = 0
        if wanted and isinstance(wanted[0], Dim):
            scale = wanted[0].scale
        if any(isinstance(dim, Dim) for dim in wanted[1:]):
            raise self.refuse(f"shape {shape_text(wanted)}: the candidate dimension must be the first one")
        plain = tuple(1 if isinstance(dim, Dim) else dim for dim in wanted)
        return self.emit(op, [source], {"shape": plain, "candidates": scale}, output)
