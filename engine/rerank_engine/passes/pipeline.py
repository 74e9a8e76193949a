"""The passes in their order, and the record of what each changed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph
from rerank_engine.passes.common_subexpressions import common_subexpressions
from rerank_engine.passes.fold_constants import fold_constants
from rerank_engine.passes.fold_scale import fold_scale
from rerank_engine.passes.fuse_matmul import fuse_matmul
from rerank_engine.passes.remove_dead import remove_dead
from rerank_engine.passes.remove_identity import remove_identity
from rerank_engine.passes.split_concat import split_concat

PASSES: dict[str, Callable[[Graph], Graph]] = {
    "fold_constants": fold_constants,
    "remove_identity": remove_identity,
    "common_subexpressions": common_subexpressions,
    "fold_scale": fold_scale,
    "split_concat": split_concat,
    "fuse_matmul": fuse_matmul,
    "remove_dead": remove_dead,
}
"""Every pass by name, in the order in which they run."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did.

    Attributes
    ----------
    name
        Of the pass.
    nodes_before, nodes_after
        Node counts.
    removed, added
        Operators of the nodes that went and came.
    """

    name: str
    nodes_before: int
    nodes_after: int
    removed: tuple[str, ...]
    added: tuple[str, ...]


def run_passes(graph: Graph, skip: Collection[str] = ()) -> tuple[Graph, list[PassReport]]:
    """Run all passes but the skipped ones; the graph is verified after each.

    Raises
    ------
    ConversionError
        A name in ``skip`` is no pass.
    """
    if unknown := set(skip) - set(PASSES):
        raise ConversionError(f"no pass is called {sorted(unknown)[0]!r}; passes: {', '.join(PASSES)}")
    reports = []
    for name, run in PASSES.items():
        if name in skip:
            continue
        before = graph.nodes
        graph = run(graph)
        graph.verify()
        old, new = {node.name: node for node in before}, {node.name: node for node in graph.nodes}
        removed = tuple(node.op for key, node in old.items() if new.get(key) != node)
        added = tuple(node.op for key, node in new.items() if old.get(key) != node)
        reports.append(PassReport(name, len(before), len(graph.nodes), removed, added))
    return graph, reports
