"""Find the layer at which two computations of one model part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rerank_engine.errors import CompileError
from rerank_engine.graph import Graph
from rerank_engine.model import Model
from rerank_engine.ops.registry import Array
from rerank_engine.runtime import Engine, load
from rerank_engine.verify.compare import Comparison
from rerank_engine.verify.report import InputRange, LayerDifference
from rerank_engine.verify.runner import SourceLayer

Compare = Callable[[str, Array, Array], Comparison]


def shared_values(graph: Graph, names: Iterable[str]) -> list[str]:
    """Results of a graph's nodes that also have one of the names, in the graph's order."""
    known = set(names)
    return [name for node in graph.nodes for name in node.outputs if name in known]


def all_results(graph: Graph) -> list[str]:
    """Every result of a graph's nodes, in order."""
    return [name for node in graph.nodes for name in node.outputs]


def load_with_outputs(graph: Graph, outputs: Sequence[str]) -> Engine:
    """Compile a graph so that it gives the named values instead of its outputs; nothing is left in the cache.

    Raises
    ------
    CompileError
        No machine code could be made.
    """
    changed = replace(graph, outputs=list(outputs), sample=None)
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        engine = load(Model(changed), cache_dir=Path(directory), search_s=0)
    if engine.backend != "cpu":
        raise CompileError(engine.backend_reason)
    return engine


def run_named(engine: Engine, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name, also when there is only one."""
    found = engine.run(inputs)
    return found if isinstance(found, dict) else {engine.outputs[0].name: found}


def first_difference(
    names: Iterable[str], actual: Mapping[str, Array], truth: Mapping[str, Array], compare: Compare
) -> Comparison | None:
    """The first of the names, in their order, whose value differs from the truth; None when none does."""
    for name in names:
        if name in actual and name in truth:
            found = compare(name, actual[name], truth[name])
            if not found.passed:
                return found
    return None


def describe_difference(
    case: str,
    stage: str,
    comparison: Comparison,
    graph: Graph,
    truth: Mapping[str, Array],
    layers: Iterable[SourceLayer],
) -> LayerDifference:
    """Name the node that makes a value, there and in the source, and what came into it."""
    node = graph.producers().get(comparison.name)
    source = next((layer for layer in layers if layer.value == comparison.name), None)
    inputs = [name for name in dict.fromkeys(node.inputs) if name in truth] if node is not None else []
    return LayerDifference(
        case=case,
        stage=stage,
        value=comparison.name,
        node=node.name if node is not None else "",
        operator=node.op if node is not None else "",
        source_node=source.node if source is not None else "",
        source_operator=source.operator if source is not None else "",
        comparison=comparison,
        inputs=tuple(_range(name, truth[name]) for name in inputs),
    )


def _range(name: str, array: Array) -> InputRange:
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return InputRange(name, None, None, array.size)
    return InputRange(name, float(finite.min()), float(finite.max()), array.size - finite.size)
