"""What a model costs: parameters, bytes and arithmetic of each node, as exact polynomials over the named dimensions.

Bytes moved are compulsory traffic, as the roofline model counts it [1]_: every array that a node reads or writes
once, whatever a cache then saves; of a look-up the rows that are read, not the table. Fused nodes move less, because
their results in between are not stored: what is really stored, ``rerank inspect --plan`` tells.

References
----------
.. [1] S. Williams, A. Waterman and D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
   Architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rerank_engine.dimensions import Dim, divide_exactly, product, resolve
from rerank_engine.graph import CANDIDATES, DTYPES, Graph, Node, Value, is_per_candidate
from rerank_engine.inspect.flops import count_flops
from rerank_engine.ops import check_nodes
from rerank_engine.plan.steps import Mode, find_varying, node_mode


@dataclass(frozen=True)
class NodeCost:
    """What one node costs in one call.

    Attributes
    ----------
    name, op
        Of the node.
    mode
        When it runs: ``"once"`` a call, for each ``"block"`` of candidates, or over the ``"whole"`` list.
    flops
        Arithmetic operations.
    bytes_read, bytes_written
        Arrays in and out, constants included; 0 for a Reshape, which moves nothing.
    parameters
        Numbers in the floating-point constants that it is the first to read.
    constant_bytes
        Bytes of all constants that it is the first to read.
    """

    name: str
    op: str
    mode: Mode
    flops: int | Dim
    bytes_read: int | Dim
    bytes_written: int | Dim
    parameters: int
    constant_bytes: int

    @property
    def bytes_moved(self) -> int | Dim:
        """Read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes
    ----------
    nodes
        In the order of the graph's nodes.
    parameters, constant_bytes
        Of all constants of the graph, also those that no node reads.
    """

    nodes: tuple[NodeCost, ...]
    parameters: int
    constant_bytes: int

    @property
    def flops(self) -> int | Dim:
        """Arithmetic operations of one call."""
        return _total(node.flops for node in self.nodes)

    @property
    def flops_once(self) -> int | Dim:
        """The part that runs once a call, whatever the candidates are."""
        return _total(node.flops for node in self.nodes if node.mode == "once")

    @property
    def flops_candidates(self) -> int | Dim:
        """The part that depends on the candidates."""
        return _total(node.flops for node in self.nodes if node.mode != "once")

    @property
    def flops_per_candidate(self) -> int | Dim | None:
        """That part for one candidate; None where it is no multiple of their number."""
        return divide_exactly(self.flops_candidates, Dim(CANDIDATES))

    @property
    def bytes_moved(self) -> int | Dim:
        """Bytes that all nodes read and write in one call."""
        return _total(node.bytes_moved for node in self.nodes)

    @property
    def activation_bytes(self) -> int | Dim:
        """Bytes of the results of all nodes, as if each were stored."""
        return _total(node.bytes_written for node in self.nodes)

    def at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The totals that depend on named dimensions, as numbers.

        Parameters
        ----------
        sizes
            Size of each named dimension of the model.

        Examples
        --------
        >>> from rerank_engine.graph import Dim
        >>> Cost((NodeCost("relu", "Relu", "block", Dim("N"), Dim("N", 4), Dim("N", 4), 0, 0),), 0, 0).at({"N": 100})
        {'flops': 100, 'bytes_moved': 800, 'activation_bytes': 400}
        """
        names = ("flops", "bytes_moved", "activation_bytes")
        return {name: resolve(getattr(self, name), sizes) for name in names}


def cost(graph: Graph) -> Cost:
    """Count what a model costs.

    Parameters
    ----------
    graph
        A graph that verifies.

    Returns
    -------
    Cost
        One entry a node, and totals. The conventions stand in :mod:`rerank_engine.inspect.flops` and in this module.

    Raises
    ------
    UnsupportedOperatorError
        A node uses an operator, an attribute or a shape that is not understood.
    GraphError
        A declared dtype or shape is not what the operator makes.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> graph = Graph("linear", inputs=["x"], outputs=["y"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    >>> graph.values["y"] = Value("y", "float32", (Dim("N"), 1))
    >>> weight = graph.add_constant("w", np.ones((3, 1), np.float32))
    >>> graph.nodes.append(Node("MatMul", "score", ("x", weight), ("y",)))
    >>> counted = cost(graph)
    >>> counted.flops, counted.parameters, counted.at({"N": 100})["flops"]
    (Dim('N', 6), 3, 600)
    """
    check_nodes(graph)
    modes = node_modes(graph)
    waiting = dict(graph.constants)
    nodes = []
    for index, node in enumerate(graph.nodes):
        first = [waiting.pop(name) for name in dict.fromkeys(node.inputs) if name in waiting]
        read, written = _traffic(graph, node)
        nodes.append(
            NodeCost(
                name=node.name,
                op=node.op,
                mode=modes[index],
                flops=count_flops(graph, node),
                bytes_read=read,
                bytes_written=written,
                parameters=sum(array.size for array in first if array.dtype.kind == "f"),
                constant_bytes=sum(array.nbytes for array in first),
            )
        )
    return Cost(tuple(nodes), graph.parameter_count(), sum(array.nbytes for array in graph.constants.values()))


def node_modes(graph: Graph) -> list[Mode]:
    """When each node runs, by its index, as the plan says.

    A Reshape, which no step computes, counts for the mode of what it renames where its rows allow that.
    """
    varying = find_varying(graph)
    known: dict[str, Mode] = {}
    modes: list[Mode] = []
    for node in graph.nodes:
        mode = node_mode(graph, node, varying)
        if node.op == "Reshape" and mode != "once":
            values = [graph.values[name] for name in (node.inputs[0], node.outputs[0])]
            rows = all(is_per_candidate(value.shape) for value in values)
            mode = "block" if rows and known.get(node.inputs[0]) != "whole" else "whole"
        modes.append(mode)
        known.update(dict.fromkeys(node.outputs, mode))
    return modes


def byte_size(value: Value) -> int | Dim:
    """Bytes of a value."""
    return product([*value.shape, DTYPES[value.dtype].itemsize])


def _total(sizes: Iterable[int | Dim]) -> int | Dim:
    total: int | Dim = 0
    for size in sizes:
        total = total + size
    return total


_Read = Callable[[list["int | Dim"], "int | Dim"], "int | Dim"]

_READS: Mapping[str, _Read] = {
    "Reshape": lambda _, __: 0,
    # What is picked, and the places; not the whole of what it is picked from.
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), lambda sizes, made: made + sizes[1]),
    "Slice": lambda _, made: made,
}
"""Bytes read of the inputs, given their sizes and that of the results, where it is not all of them."""


def _traffic(graph: Graph, node: Node) -> tuple[int | Dim, int | Dim]:
    """Bytes that a node reads and writes."""
    made = _total(byte_size(graph.values[name]) for name in node.outputs)
    sizes = [byte_size(graph.values[name]) for name in node.inputs]
    if node.op in _READS:
        return _READS[node.op](sizes, made), 0 if node.op == "Reshape" else made
    return _total(byte_size(graph.values[name]) for name in dict.fromkeys(node.inputs)), made
