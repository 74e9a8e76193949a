"""A graph while a pass changes it: who makes and who reads each value stays known after every change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import Graph, Node, Shape, Value
from rerank_engine.ops import lookup


class Editor:
    """Changes to a graph. The graph that it was made of stays as it is.

    A node is known by its first output. New nodes stand right before a node that is there already, so the order of
    execution holds as long as they read only what that node could read.

    Parameters
    ----------
    graph
        A verified graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        self._graph = replace(graph, constants=dict(graph.constants), values=dict(graph.values))
        self._nodes = {node.outputs[0]: node for node in graph.nodes}
        self._makers = {name: node.outputs[0] for node in graph.nodes for name in node.outputs}
        self._readers: dict[str, dict[str, None]] = {}
        self._order = list(self._nodes)
        self._before: dict[str, list[str]] = {}
        self._node_names = {node.name for node in graph.nodes}
        self._is_changed = False
        self.outputs = frozenset(graph.outputs)
        for node in graph.nodes:
            self._register(node)

    # --- looking -------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """All nodes in execution order; changes do not touch the list."""
        found: list[Node] = []
        for key in self._order:
            self._collect(key, found)
        return found

    def _collect(self, key: str, found: list[Node]) -> None:
        for earlier in self._before.get(key, ()):
            self._collect(earlier, found)
        if key in self._nodes:
            found.append(self._nodes[key])

    def has(self, node: Node) -> bool:
        """Whether the node is still there as it was."""
        return self._nodes.get(node.outputs[0]) is node

    def value(self, name: str) -> Value:
        """A value."""
        return self._graph.values[name]

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self._graph.values[name].shape

    def maker(self, name: str, *ops: str) -> Node | None:
        """The node that makes a value, if it is one of ``ops`` (of any kind when none is given)."""
        key = self._makers.get(name)
        node = self._nodes[key] if key is not None else None
        return node if node is not None and (not ops or node.op in ops) else None

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value, each once."""
        return [self._nodes[key] for key in self._readers.get(name, {})]

    def only_reader(self, name: str) -> Node | None:
        """The node that alone reads a value, which is no output."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def array(self, name: str) -> NDArray[Any] | None:
        """The array of a constant."""
        return self._graph.constants.get(name)

    def number(self, name: str) -> float | None:
        """A constant of one finite element."""
        array = self._graph.constants.get(name)
        if array is None or array.size != 1 or not np.isfinite(array).all():
            return None
        return float(array.item())

    def are_private(self, names: Iterable[str], root: Node) -> bool:
        """Whether nothing but each other and ``root`` reads the values that the nodes called ``names`` make."""
        inside = {*names}
        allowed = inside | {root.outputs[0]}
        return all(
            output not in self.outputs and self._readers.get(output, {}).keys() <= allowed
            for name in inside
            for output in self._nodes[name].outputs
        )

    # --- changing ------------------------------------------------------------------------------------------

    def change(
        self,
        node: Node,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        called: str | None = None,
    ) -> Node:
        """Let a node make its result in another way; outputs and place stay, and so does the name if none is given."""
        self._unregister(node)
        changed = Node(op, called or node.name, tuple(inputs), node.outputs, dict(attributes or {}))
        made = lookup(changed).infer(changed, [self._graph.values[name] for name in inputs])
        for name, (dtype, shape) in zip(node.outputs, made, strict=True):
            self._graph.values[name] = Value(name, dtype, shape)
        self._nodes[node.outputs[0]] = changed
        self._register(changed)
        return changed

    def read(self, node: Node, inputs: Sequence[str]) -> Node:
        """Let a node read other values."""
        return self.change(node, node.op, inputs, node.attributes)

    def add(self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None, *, before: Node) -> str:
        """Add a node with one result, whose name is given back."""
        name = self._free(f"{before.outputs[0]}/{op.lower()}")
        node = Node(op, name, tuple(inputs), (name,), dict(attributes or {}))
        ((dtype, shape),) = lookup(node).infer(node, [self._graph.values[entry] for entry in inputs])
        self._graph.values[name] = Value(name, dtype, shape)
        self._node_names.add(name)
        self._nodes[name] = node
        self._makers[name] = name
        self._before.setdefault(before.outputs[0], []).append(name)
        self._register(node)
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant, or find the same one again."""
        return self._graph.add_constant(name, array)

    def remove(self, names: Collection[str]) -> None:
        """Take nodes away that nobody reads any more, each called by its first output."""
        for name in names:
            node = self._nodes.pop(name)
            self._unregister(node)
            for output in node.outputs:
                del self._makers[output]
                del self._graph.values[output]

    def finish(self) -> Graph:
        """The changed graph; the very one that it was made of when nothing changed."""
        if not self._is_changed:
            return self._source
        return replace(self._graph, nodes=self.nodes())

    def _register(self, node: Node) -> None:
        for name in node.inputs:
            self._readers.setdefault(name, {})[node.outputs[0]] = None

    def _unregister(self, node: Node) -> None:
        self._is_changed = True
        for name in dict.fromkeys(node.inputs):
            del self._readers[name][node.outputs[0]]

    def _free(self, name: str) -> str:
        base, count = name, 1
        while name in self._graph.values or name in self._node_names:
            name, count = f"{base}{count}", count + 1
        return name


def varying_input(editor: Editor, node: Node) -> str | None:
    """What a Mul, Div, Add or Sub scales or shifts by a constant, shape kept; None where it does neither."""
    names = [name for name in node.inputs if editor.array(name) is None]
    if len(names) != 1 or len(node.inputs) != 2 or (node.op in ("Div", "Sub") and node.inputs[0] != names[0]):
        return None
    return names[0] if editor.shape(names[0]) == editor.shape(node.outputs[0]) else None
