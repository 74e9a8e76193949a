"""Operators that ONNX defines by other operators are read as those, when there is no handler of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rerank_engine.graph import Dim

if TYPE_CHECKING:
    import onnx

    from rerank_engine.importers.onnx import OnnxBuilder


@dataclass(frozen=True)
class FunctionBody:
    """The nodes that stand for one node.

    Attributes
    ----------
    nodes
        Over the names of the model, in order.
    opset
        Version of the operator set in which they are written.
    """

    nodes: list[onnx.NodeProto]
    opset: int


def function_body(builder: OnnxBuilder, node: onnx.NodeProto) -> FunctionBody | None:
    """Write a node as the function by which ONNX defines its operator; None when it has none.

    Raises
    ------
    UnsupportedOperatorError
        A required attribute is missing.
    """
    import onnx
    from onnx import defs

    domain = "" if node.domain == "ai.onnx" else node.domain
    version = builder.opset if not domain else builder.opsets.get(domain, 1)
    try:
        schema = defs.get_schema(node.op_type, version, domain)
    except defs.SchemaError:
        return None
    serialised = b""
    if schema.has_function:
        versions = [each for each in schema.function_opset_versions if each <= builder.opset]
        if versions:
            serialised = schema.get_function_with_opset_version(max(versions))
    elif schema.has_context_dependent_function:
        versions = [each for each in schema.context_dependent_function_opset_versions if each <= builder.opset]
        if versions:
            types = [_type_of(builder, name).SerializeToString() for name in node.input]
            serialised = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), types
            )
    if not serialised:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(serialised)
    names = _names(builder, node, function)
    attributes = {entry.name: entry for entry in node.attribute}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name and name not in attributes:
            attributes[name] = attribute.default_value
    opset = next((entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")), builder.opset)
    return FunctionBody(rename_nodes(function.node, names, attributes), opset)


def rename_nodes(
    nodes: Iterable[onnx.NodeProto],
    names: Mapping[str, str],
    attributes: Mapping[str, onnx.AttributeProto] | None = None,
) -> list[onnx.NodeProto]:
    """Copy nodes with other value names, in their subgraphs too, and with attributes filled in for references."""
    import onnx

    result = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        del copy.attribute[:]
        for entry in node.attribute:
            if entry.ref_attr_name:
                given = (attributes or {}).get(entry.ref_attr_name)
                if given is None:
                    continue
                added = copy.attribute.add()
                added.CopyFrom(given)
                added.name = entry.name
                continue
            added = copy.attribute.add()
            added.CopyFrom(entry)
            if entry.HasField("g"):
                _rename_graph(added.g, names, attributes)
        result.append(copy)
    return result


def _rename_graph(
    graph: onnx.GraphProto, names: Mapping[str, str], attributes: Mapping[str, onnx.AttributeProto] | None
) -> None:
    """Rename what a subgraph takes from outside; its own names hide those."""
    own = {entry.name for entry in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in names.items() if name not in own}
    renamed = rename_nodes(graph.node, outer, attributes)
    del graph.node[:]
    graph.node.extend(renamed)
    for entry in graph.output:
        entry.name = outer.get(entry.name, entry.name)


def _names(builder: OnnxBuilder, node: onnx.NodeProto, function: onnx.FunctionProto) -> dict[str, str]:
    """Names of the function to names of the model; its own intermediates get names of their own."""
    names = {}
    for index, name in enumerate(function.input):
        names[name] = node.input[index] if index < len(node.input) else ""
    for index, name in enumerate(function.output):
        if index < len(node.output) and node.output[index]:
            names[name] = node.output[index]
    prefix = builder.free_prefix(node.name or next(filter(None, node.output), node.op_type))
    for inner in function.node:
        for name in inner.output:
            if name:
                names.setdefault(name, f"{prefix}/{name}")
    return names


def _type_of(builder: OnnxBuilder, name: str) -> onnx.TypeProto:
    from onnx import TypeProto, helper

    if not name:
        return TypeProto()
    value = builder.value(name)
    shape = [str(dim) if isinstance(dim, Dim) else dim for dim in value.shape]
    return helper.make_tensor_type_proto(builder.onnx_dtype(value.dtype), shape)
