"""Group nodes into steps: neighbours that work element by element become one loop, the rest stand alone.

Sub(k, q) ─▶ Mul(·, w) ─▶ Sigmoid        one step: one loop, nothing stored in between
MatMul                                   one step
Reshape                                  no step: another name for the same bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rerank_engine.graph import Graph, Node, elements_per_candidate, is_per_candidate
from rerank_engine.ops import lookup


@dataclass(frozen=True)
class Step:
    """Nodes that run as one piece of code.

    Attributes
    ----------
    nodes
        In execution order; the last one makes the result.
    reads
        Values that the step loads, in a stable order.
    writes
        The value that it stores.
    per_candidate
        False when the step does not depend on the candidate and therefore runs once a call.
    """

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    writes: str
    per_candidate: bool

    @property
    def is_pointwise(self) -> bool:
        """Whether the nodes are elementwise and share one loop."""
        return lookup(self.nodes[-1]).pointwise is not None

    @property
    def label(self) -> str:
        """Operators of the step, for people."""
        return "+".join(node.op for node in self.nodes)


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
    computed = {node.outputs[0] for node in graph.nodes} - set(aliases)
    for index, name in enumerate(graph.outputs):
        base = aliases.get(name, name)
        if base in computed:
            computed.remove(base)
        else:
            yield index


def group_steps(graph: Graph) -> list[Step]:
    """Cut the nodes of a graph into steps, in execution order; what no step and no output reads has no step."""
    producers, consumers, aliases = graph.producers(), graph.consumers(), find_aliases(graph)
    pinned = set(graph.outputs)
    needed = {aliases.get(name, name) for name in graph.outputs}
    steps: list[Step] = []
    for node in reversed(graph.nodes):
        if node.op == "Reshape" or node.outputs[0] not in needed:
            continue
        members = {node.outputs[0]: node}
        if lookup(node).pointwise is not None:
            _absorb(graph, node, members, producers, consumers, pinned)
        ordered = tuple(member for member in graph.nodes if member.outputs[0] in members)
        reads = tuple(dict.fromkeys(name for member in ordered for name in member.inputs if name not in members))
        needed.update(aliases.get(name, name) for name in reads)
        per_candidate = is_per_candidate(graph.values[node.outputs[0]].shape)
        steps.append(Step(ordered, reads, node.outputs[0], per_candidate))
    return steps[::-1]


def _absorb(
    graph: Graph,
    root: Node,
    members: dict[str, Node],
    producers: dict[str, Node],
    consumers: dict[str, list[Node]],
    pinned: set[str],
) -> None:
    """Draw the producers of a step into it, as long as nothing is computed twice but copies."""
    shape = graph.values[root.outputs[0]].shape
    work = (is_per_candidate(shape), elements_per_candidate(shape))
    grown = True
    while grown:
        grown = False
        for member in list(members.values()):
            for name in member.inputs:
                producer = producers.get(name)
                if producer is None or name in members or lookup(producer).pointwise is None:
                    continue
                own = graph.values[name].shape
                same_work = (is_per_candidate(own), elements_per_candidate(own)) == work
                private = name not in pinned and all(reader.outputs[0] in members for reader in consumers[name])
                if producer.op == "Expand" or (same_work and private):
                    members[name] = producer
                    grown = True
