"""Functions that a model brings along are put in the place of the nodes that call them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rerank_engine.errors import ConversionError

if TYPE_CHECKING:
    import onnx

_Key = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the functions of a model out where they are called.

    ONNX's own tool does it, but forgets the defaults of their attributes; so every call is given those first.

    Parameters
    ----------
    model
        Checked, and without functions that call themselves. It stays as it is.

    Raises
    ------
    ConversionError
        An attribute that a call leaves out is passed on to a function that has a default for it: which of the two
        then holds cannot be told from outside.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    ...     g (float[N] x) => (float[N] y) { y = own.Bent (x) }
    ...     <domain: "own", opset_import: ["" : 17]>
    ...     Bent <slope: float = 0.25> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }
    ... ''')
    >>> (node,) = inline_functions(model).graph.node
    >>> node.op_type, node.attribute[0].f
    ('LeakyRelu', 0.25)
    """
    from onnx import ModelProto
    from onnx.inliner import inline_local_functions

    if any(function.attribute_proto for function in model.functions):
        spelled = ModelProto()
        spelled.CopyFrom(model)
        _spell_out_defaults(spelled)
        model = spelled
    inlined: onnx.ModelProto = inline_local_functions(model)
    return inlined


def _spell_out_defaults(model: onnx.ModelProto) -> None:
    functions = {(entry.domain, entry.name, entry.overload): entry for entry in model.functions}
    bodies: dict[_Key | None, Iterable[onnx.NodeProto]] = {None: model.graph.node}
    bodies |= {key: entry.node for key, entry in functions.items()}
    passed_on: dict[tuple[_Key, str], str] = {}
    left_out: set[tuple[_Key, str]] = set()
    for caller, nodes in bodies.items():
        for node in _with_subgraphs(nodes):
            key = (node.domain, node.op_type, node.overload)
            if key not in functions:
                continue
            defaults = {entry.name: entry for entry in functions[key].attribute_proto}
            given = {entry.name: entry.ref_attr_name for entry in node.attribute}
            left_out.update((key, name) for name in functions[key].attribute if name not in given)
            if caller is not None:
                passed_on |= {(caller, given[name]): node.op_type for name in defaults if given.get(name)}
            node.attribute.extend(entry for name, entry in defaults.items() if name not in given)
    for (caller, name), op in passed_on.items():
        if (caller, name) in left_out:
            raise ConversionError(
                f"function {caller[1]!r} passes its attribute {name!r} on to {op!r}, which has a default for it, but is"
                f" called without it; give {name!r} in every call"
            )


def _with_subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for entry in node.attribute:
            for graph in [*([entry.g] if entry.HasField("g") else []), *entry.graphs]:
                yield from _with_subgraphs(graph.node)
