"""What a drawing of a graph shows: boxes for inputs, nodes and outputs, and links for the values between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rerank_engine.graph import Graph, Node, Value
from rerank_engine.inspect.layers import Link


@dataclass(frozen=True)
class Item:
    """Something that is drawn as a box.

    Attributes
    ----------
    kind
        What it stands for.
    name
        Of the input, node or output.
    results
        Values that leave it and are read, each by a port of its own, in order.
    node
        Index of the node; None for inputs and outputs.
    value
        What an input gives or an output takes; None for nodes.
    """

    kind: Literal["input", "node", "output"]
    name: str
    results: tuple[Value, ...]
    node: int | None = None
    value: Value | None = None


@dataclass(frozen=True)
class Picture:
    """Boxes in an order in which links go from a lower to a higher index, and links."""

    items: tuple[Item, ...]
    links: tuple[Link, ...]

    def value(self, link: Link) -> Value:
        """What runs along a link."""
        return self.items[link.source].results[link.port]


def make_picture(graph: Graph) -> Picture:
    """Find out what is to be drawn; constants are no boxes, they belong to their readers.

    A result that nothing reads has no port and no link. An output that is a constant stands alone.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> shape = (Dim("N"),)
    >>> graph = Graph("g", ["x"], ["y"], values={name: Value(name, "float32", shape) for name in ("x", "y")})
    >>> graph.nodes.append(Node("Relu", "relu", ("x",), ("y",)))
    >>> [item.kind for item in make_picture(graph).items], make_picture(graph).links
    (['input', 'node', 'output'], (Link(source=0, port=0, targets=(1,)), Link(source=1, port=0, targets=(2,))))
    """
    values = graph.values
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}

    def results(names: Sequence[str]) -> tuple[Value, ...]:
        return tuple(values[name] for name in names if name in read)

    items = [Item("input", name, results([name]), value=values[name]) for name in graph.inputs]
    items += [Item("node", node.name, results(node.outputs), node=index) for index, node in enumerate(graph.nodes)]
    items += [Item("output", name, (), value=values[name]) for name in graph.outputs]
    made = {value.name: (index, port) for index, item in enumerate(items) for port, value in enumerate(item.results)}
    readers: dict[str, list[int]] = {name: [] for name in made}
    for index, item in enumerate(items):
        for name in _reads(item, graph.nodes):
            if name in readers:
                readers[name].append(index)
    links = tuple(Link(*made[name], tuple(targets)) for name, targets in readers.items())
    return Picture(tuple(items), links)


def _reads(item: Item, nodes: list[Node]) -> list[str]:
    """Names that a box reads, each once."""
    if item.node is not None:
        return list(dict.fromkeys(nodes[item.node].inputs))
    return [item.name] if item.kind == "output" else []
