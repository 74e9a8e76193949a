"""Group nodes into steps, and steps into phases.

Sub(k, q) ─▶ Mul(·, w) ─▶ Sigmoid        one step: one loop, nothing stored in between
MatMul                                   one step
Reshape                                  no step: another name for the same bytes

A step that does not depend on the candidate runs once a call. One whose rows do not depend on each other runs over
blocks of candidates that fit into the cache. One that mixes candidates (attention over the list, a sum over it)
runs over all of them at once, and what it reads is stored for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, depends_on_candidates, is_per_candidate
from rerank_engine.ops import lookup
from rerank_engine.ops.registry import keeps_its_node

Mode = Literal["once", "block", "whole"]


@dataclass(frozen=True)
class Step:
    """Nodes that run as one piece of code.

    Attributes
    ----------
    nodes
        In execution order; the last one makes the results.
    reads
        Values that the step loads, in a stable order.
    writes
        The values that it stores.
    mode
        ``"once"`` a call, for a ``"block"`` of candidates, or for the ``"whole"`` list.
    """

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    mode: Mode

    @property
    def is_pointwise(self) -> bool:
        """Whether the nodes are elementwise and share one loop."""
        return lookup(self.nodes[-1]).pointwise is not None

    @property
    def label(self) -> str:
        """Operators of the step, for people."""
        return "+".join(node.op for node in self.nodes)


@dataclass(frozen=True)
class Phase:
    """Steps that run together: one after the other, for all candidates or for one block after another."""

    mode: Mode
    steps: tuple[Step, ...]


def find_aliases(graph: Graph) -> dict[str, str]:
    """Map each reshaped value to the value whose bytes it shares."""
    base: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Reshape":
            source = node.inputs[0]
            base[node.outputs[0]] = base.get(source, source)
    return base


def find_copied_outputs(graph: Graph, aliases: Mapping[str, str]) -> Iterator[int]:
    """Yield the outputs that need a copy at the end: a step writes only one output in place."""
    computed = {name for node in graph.nodes for name in node.outputs} - set(aliases)
    for index, name in enumerate(graph.outputs):
        base = aliases.get(name, name)
        if base in computed:
            computed.remove(base)
        else:
            yield index


def group_steps(graph: Graph) -> list[Step]:
    """Cut the nodes of a graph into steps, in execution order; what nothing reads has no step."""
    producers, consumers, aliases = graph.producers(), graph.consumers(), find_aliases(graph)
    pinned = set(graph.outputs)
    varying = find_varying(graph)
    needed = {aliases.get(name, name) for name in graph.outputs}
    position = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
    steps: list[Step] = []
    for node in reversed(graph.nodes):
        if node.op == "Reshape" or (needed.isdisjoint(node.outputs) and not keeps_its_node(graph, node)):
            continue
        members = {node.outputs[0]: node}
        if lookup(node).pointwise is not None:
            _absorb(graph, node, members, producers, consumers, pinned)
        elif lookup(node).absorbs is not None:
            members |= _input_on_the_way(graph, node, producers, consumers, pinned)
        ordered = tuple(sorted(members.values(), key=lambda member: position[member.outputs[0]]))
        reads = tuple(dict.fromkeys(name for member in ordered for name in member.inputs if name not in members))
        needed.update(aliases.get(name, name) for name in reads)
        steps.append(Step(ordered, reads, node.outputs, node_mode(graph, node, varying)))
    return steps[::-1]


def group_phases(graph: Graph, steps: list[Step]) -> list[Phase]:
    """Put steps into as few phases as their order allows; odd levels are blocks, even ones the whole list."""
    aliases = find_aliases(graph)
    level_of: dict[str, int] = {}
    levels: dict[int, list[Step]] = {}
    for step in steps:
        before = max((level_of.get(aliases.get(name, name), 0) for name in step.reads), default=0)
        level = 0
        if step.mode != "once":
            wanted = 1 if step.mode == "block" else 0
            level = max(before, 1)
            level += level % 2 != wanted
        levels.setdefault(level, []).append(step)
        level_of.update(dict.fromkeys(step.writes, level))
    return [Phase(levels[level][0].mode, tuple(levels[level])) for level in sorted(levels)]


def find_varying(graph: Graph) -> set[str]:
    """Names of the values that depend on the candidates, by shape or by content."""
    varying = {name for name in graph.inputs if depends_on_candidates(graph.values[name].shape)}
    for node in graph.nodes:
        if not varying.isdisjoint(node.inputs) or any(
            depends_on_candidates(graph.values[name].shape) for name in node.outputs
        ):
            varying.update(node.outputs)
    return varying


def node_mode(graph: Graph, node: Node, varying: set[str]) -> Mode:
    """How a node runs, given the values that :func:`find_varying` names."""
    if varying.isdisjoint(node.outputs):
        return "once"
    outputs = [graph.values[name] for name in node.outputs]
    if not all(is_per_candidate(value.shape) for value in outputs):
        return "whole"
    operator = lookup(node)
    if operator.pointwise is not None:
        return "block"
    inputs = [graph.values[name] for name in node.inputs]
    return "block" if operator.per_row is not None and operator.per_row(node, inputs, outputs) else "whole"


def _input_on_the_way(
    graph: Graph, node: Node, producers: dict[str, Node], consumers: dict[str, list[Node]], pinned: set[str]
) -> dict[str, Node]:
    """The nodes that make the first input of a node and nothing else, where it does without storing it."""
    name, absorbs = node.inputs[0], lookup(node).absorbs
    producer = producers.get(name)
    if absorbs is None or producer is None or name in pinned or len(consumers[name]) > 1 or node.inputs.count(name) > 1:
        return {}
    members = {name: producer}
    if lookup(producer).pointwise is not None:
        _absorb(graph, producer, members, producers, consumers, pinned)
    elif producer.op != "Concat":
        return {}
    return members if absorbs(graph, node, list(members.values())) else {}


def _absorb(
    graph: Graph,
    root: Node,
    members: dict[str, Node],
    producers: dict[str, Node],
    consumers: dict[str, list[Node]],
    pinned: set[str],
) -> None:
    """Draw the producers of a step into it, as long as nothing is computed twice but copies."""
    work = product(graph.values[root.outputs[0]].shape)
    grown = True
    while grown:
        grown = False
        for member in list(members.values()):
            for name in member.inputs:
                producer = producers.get(name)
                if producer is None or name in members or lookup(producer).pointwise is None:
                    continue
                same_work = product(graph.values[name].shape) == work
                private = name not in pinned and all(reader.outputs[0] in members for reader in consumers[name])
                if producer.op == "Expand" or (same_work and private):
                    members[name] = producer
                    grown = True
