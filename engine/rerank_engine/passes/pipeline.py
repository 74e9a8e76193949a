"""The passes in their order, and the record of what each changed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph, Node
from rerank_engine.ops import check_nodes
from rerank_engine.passes.common_subexpressions import common_subexpressions
from rerank_engine.passes.fold_constants import fold_constants
from rerank_engine.passes.fold_scale import fold_scale
from rerank_engine.passes.fold_shapes import fold_shapes
from rerank_engine.passes.fuse_attention import fuse_attention
from rerank_engine.passes.fuse_gelu import fuse_gelu
from rerank_engine.passes.fuse_layer_norm import fuse_layer_norm
from rerank_engine.passes.fuse_matmul import fuse_matmul
from rerank_engine.passes.merge_copies import merge_copies
from rerank_engine.passes.move_to_product import move_to_product
from rerank_engine.passes.remove_dead import remove_dead
from rerank_engine.passes.remove_identity import remove_identity
from rerank_engine.passes.remove_transpose import remove_transpose
from rerank_engine.passes.split_concat import split_concat
from rerank_engine.passes.split_table import split_table

PASSES: dict[str, Callable[[Graph], Graph]] = {
    # What is known is computed first, so that the others find constants where there are some.
    "fold_constants": fold_constants,
    "fold_shapes": fold_shapes,
    # Nodes that stand between others for nothing would hide them from each other.
    "remove_identity": remove_identity,
    "merge_copies": merge_copies,
    "remove_transpose": remove_transpose,
    # The fusions ask whether a value has one reader; merged values show their true readers.
    "common_subexpressions": common_subexpressions,
    # Before scales are folded: a factor that belongs to one of these must still stand where it was written.
    "fuse_layer_norm": fuse_layer_norm,
    "fuse_gelu": fuse_gelu,
    "fuse_attention": fuse_attention,
    # Brings scales and activations to the product, which then takes in the scales, and at the end the rest.
    "move_to_product": move_to_product,
    "fold_scale": fold_scale,
    # Before a product has a bias and an activation, which its parts could not share.
    "split_concat": split_concat,
    # Once slices that are put together again have gone.
    "split_table": split_table,
    "fuse_matmul": fuse_matmul,
    # The others leave constants behind that nobody reads.
    "remove_dead": remove_dead,
}
"""Every pass by name, in the order in which they run."""

MOST_ROUNDS = 8
"""The passes run in turn until none of them finds anything, at most so often."""


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
        Operators of the nodes that went and came; a node that changed counts as both.
    round
        1 for the first time that the pass ran. Later rounds are reported only where they changed something.
    removed_nodes, added_nodes
        Names of those nodes, in the same order.
    """

    name: str
    nodes_before: int
    nodes_after: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    round: int = 1
    removed_nodes: tuple[str, ...] = ()
    added_nodes: tuple[str, ...] = ()


def run_passes(graph: Graph, skip: Collection[str] = ()) -> tuple[Graph, list[PassReport]]:
    """Run all passes but the skipped ones, until none finds anything; the graph is verified after each.

    No pass is an approximation: with any of them left out, the numbers are the same but for rounding.

    Parameters
    ----------
    graph
        A verified graph; it stays as it is.
    skip
        Names of passes to leave out.

    Returns
    -------
    tuple
        The graph, and a report for each pass.

    Raises
    ------
    ConversionError
        A name in ``skip`` is no pass, or a constant id is outside its constant table.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> shape = (Dim("N"), 3)
    >>> graph = Graph("copy", inputs=["x"], outputs=["y"])
    >>> graph.values = {name: Value(name, "float32", shape) for name in ("x", "same", "y")}
    >>> graph.nodes = [Node("Identity", "one", ("x",), ("same",)), Node("Relu", "two", ("same",), ("y",))]
    >>> changed, reports = run_passes(graph)
    >>> [node.op for node in changed.nodes], [(one.name, one.removed_nodes) for one in reports if one.removed_nodes]
    (['Relu'], [('remove_identity', ('one', 'two'))])
    """
    if unknown := set(skip) - set(PASSES):
        raise ConversionError(f"no pass is called {sorted(unknown)[0]!r}; passes: {', '.join(PASSES)}")
    reports: list[PassReport] = []
    for round_number in range(1, MOST_ROUNDS + 1):
        is_changed = False
        for name, run in PASSES.items():
            if name in skip:
                continue
            before, graph = graph, run(graph)
            differs = _differs(before, graph)
            if differs:
                graph.verify()
                check_nodes(graph)
            if differs or round_number == 1:
                reports.append(_report(name, round_number, before, graph))
            is_changed |= differs
        if not is_changed:
            break
    return graph, reports


def _differs(before: Graph, after: Graph) -> bool:
    """Whether a pass changed anything; constants are never changed in place."""
    if before is after:
        return False
    same_nodes = before.nodes == after.nodes and before.values == after.values
    return not same_nodes or before.constants.keys() != after.constants.keys()


def _report(name: str, round_number: int, before: Graph, after: Graph) -> PassReport:
    removed, added = _missing(before.nodes, after.nodes), _missing(after.nodes, before.nodes)
    return PassReport(
        name=name,
        nodes_before=len(before.nodes),
        nodes_after=len(after.nodes),
        removed=tuple(node.op for node in removed),
        added=tuple(node.op for node in added),
        round=round_number,
        removed_nodes=tuple(node.name for node in removed),
        added_nodes=tuple(node.name for node in added),
    )


def _missing(nodes: list[Node], others: list[Node]) -> list[Node]:
    """The nodes that are not among the others as they are."""
    known = {node.outputs: node for node in others}
    return [node for node in nodes if known.get(node.outputs) != node]
