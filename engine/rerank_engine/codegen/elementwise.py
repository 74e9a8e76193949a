"""Elementwise nodes as one expression: what is loaded, and what is computed of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_TYPES, I1, Emitter
from rerank_engine.graph import Graph, Node
from rerank_engine.ops.registry import loaded_by, lookup


@dataclass(frozen=True)
class Elements:
    """A value element by element.

    Attributes
    ----------
    names
        Values to load.
    compute
        From their elements (vectors or scalars) to the element.
    """

    names: tuple[str, ...]
    compute: Callable[[Emitter, Sequence[ir.Value]], ir.Value]


def elements_of(graph: Graph, nodes: Sequence[Node], result: str) -> Elements:
    """The value ``result`` as elementwise nodes compute it, or as it lies in memory where there are none.

    Constants of one element become part of the expression.
    """
    if not nodes:
        return Elements((result,), lambda _, values: values[0])
    loaded = tuple(loaded_by(graph, nodes))
    elsewhere = {*loaded, *(node.outputs[0] for node in nodes)}
    literals = {
        name: graph.constants[name].reshape(-1)[0] for node in nodes for name in node.inputs if name not in elsewhere
    }

    def compute(e: Emitter, values: Sequence[ir.Value]) -> ir.Value:
        width = max((value.type.count if isinstance(value.type, ir.VectorType) else 1 for value in values), default=1)
        known = dict(zip(loaded, values, strict=True))
        for name, number in literals.items():
            known[name] = _literal(e, graph.values[name].dtype, width, number)
        for node in nodes:
            operator = lookup(node)
            assert operator.pointwise is not None
            attributes = {key: node.attributes.get(key, default) for key, default in operator.attributes.items()}
            attributes["dtypes"] = tuple(graph.values[name].dtype for name in node.inputs)
            known[node.outputs[0]] = operator.pointwise(e, [known[name] for name in node.inputs], attributes)
        return known[result]

    return Elements(loaded, compute)


def _literal(e: Emitter, dtype: str, width: int, number: float) -> ir.Constant:
    if dtype in ("float32", "float64"):
        return e.splat_constant(ELEMENT_TYPES[dtype], width, float(number))
    return e.splat_constant(I1 if dtype == "bool" else ELEMENT_TYPES[dtype], width, int(number))
