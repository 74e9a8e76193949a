"""Which attributes each handler of an ONNX operator understands, found by calling it.

A handler asks :meth:`OnnxBuilder.attributes` for what it understands before it makes anything. The probe answers that
call with an exception, so that what was asked for is seen for each version of the operator set, without a model of
each operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, defs, helper

from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.graph import Graph, Value
from rerank_engine.importers.onnx import OLDEST_OPSET, OnnxBuilder, newest_opset
from rerank_engine.importers.onnx_handlers import HANDLERS

Key = tuple[str, str]
"""Domain and name of an operator."""

_INPUTS, _OUTPUTS = 9, 3

_OTHER_VALUES: Mapping[int, Any] = {
    AttributeProto.INT: 7,
    AttributeProto.FLOAT: 0.75,
    AttributeProto.STRING: "other",
    AttributeProto.INTS: [7],
    AttributeProto.FLOATS: [0.75],
    AttributeProto.STRINGS: ["other"],
    AttributeProto.TENSOR: helper.make_tensor("other", onnx.TensorProto.FLOAT, [1], [0.75]),
    AttributeProto.SPARSE_TENSOR: onnx.SparseTensorProto(dims=[1]),
    AttributeProto.GRAPH: helper.make_graph([], "other", [], []),
}
"""A value of each kind that is no default."""


@dataclass(frozen=True)
class Asked:
    """What a handler asked for.

    Attributes
    ----------
    understood
        Names of attributes of which every value, or a choice that the handler makes later, is understood.
    only
        Attributes of which one value is understood.
    """

    understood: frozenset[str]
    only: Mapping[str, Any]


@dataclass(frozen=True)
class Attribute:
    """One attribute that is understood.

    Attributes
    ----------
    name
        As in ONNX.
    only
        The one value that is understood; None where it is not only one.
    last_opset
        The last version that has it; None where the newest has it too.
    """

    name: str
    only: Any = None
    last_opset: int | None = None


class _AskedError(Exception):
    """Ends a handler when it has said what it understands."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked


class _Probe(OnnxBuilder):
    def attributes(self, understood: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> dict[str, Any]:
        raise _AskedError(Asked(frozenset(understood), dict(only or {})))


def opsets(key: Key) -> Iterator[tuple[int, defs.OpSchema]]:
    """Versions of the operator's own domain that are read, each with the schema that holds in it."""
    domain, name = key
    versions = range(OLDEST_OPSET, newest_opset() + 1) if not domain else range(1, _newest(domain) + 1)
    for version in versions:
        try:
            schema = defs.get_schema(name, version, domain)
        except defs.SchemaError:
            continue
        if not schema.deprecated:
            yield version, schema


def _newest(domain: str) -> int:
    return max(schema.since_version for schema in defs.get_all_schemas() if schema.domain == domain)


def call(key: Key, version: int, kind: type[OnnxBuilder], attributes: Sequence[AttributeProto] = ()) -> None:
    """Call a handler on a node over float32 inputs of four dimensions."""
    domain, name = key
    graph = Graph("probe")
    for number in range(_INPUTS):
        value = Value(f"input_{number}", "float32", (2, 3, 4, 5))
        graph.values[value.name] = value
        graph.inputs.append(value.name)
    opset = newest_opset() if domain else version
    builder = kind(graph, opset, {"": opset, **({domain: version} if domain else {})})
    builder.names.update({name: name for name in graph.inputs})
    node = helper.make_node(name, graph.inputs, [f"output_{number}" for number in range(_OUTPUTS)], domain=domain)
    node.attribute.extend(attributes)
    builder._node = node
    HANDLERS[key](builder, node)


@cache
def asked(key: Key, version: int) -> Asked | str:
    """What a handler asks for in one version, or the reason why it refuses the operator altogether."""
    try:
        call(key, version, _Probe)
    except _AskedError as error:
        return error.asked
    except UnsupportedOperatorError as error:
        return str(error).partition(": ")[2]
    raise AssertionError(f"{key} in version {version} never asks for its attributes")


def is_refused(key: Key) -> bool:
    """Whether a handler only says why the operator is not read."""
    return all(isinstance(asked(key, version), str) for version, _ in opsets(key))


def refusal(key: Key) -> str:
    """Why an operator is not read."""
    (reason,) = {str(asked(key, version)) for version, _ in opsets(key)}
    return reason


def attributes_of(key: Key) -> list[Attribute]:
    """Attributes of an operator that are understood in some version and are part of ONNX there, by name."""
    found: dict[str, Any] = {}
    last: dict[str, int] = {}
    newest = 0
    for version, schema in opsets(key):
        what, newest = asked(key, version), version
        if isinstance(what, Asked):
            for name in schema.attributes:
                if name in what.understood or name in what.only:
                    found[name], last[name] = what.only.get(name), version
    return [Attribute(name, found[name], last[name] if last[name] < newest else None) for name in sorted(found)]


def not_understood(key: Key) -> Iterator[tuple[int, AttributeProto]]:
    """Versions and attributes of ONNX, each with a value that is not its default, which a handler must refuse."""
    for version, schema in opsets(key):
        what = asked(key, version)
        if isinstance(what, str):
            continue
        for name, attribute in schema.attributes.items():
            if name not in what.understood:
                yield version, _other(name, attribute)


def _other(name: str, attribute: Any) -> AttributeProto:
    made = AttributeProto(name=name, type=int(attribute.type.value))
    made.CopyFrom(helper.make_attribute(name, _OTHER_VALUES[int(attribute.type.value)]))
    return made
