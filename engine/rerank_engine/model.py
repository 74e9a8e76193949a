"""A model as the user holds it: a graph that can be saved, identified and described."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from rerank_engine.format import ModelSource, read_model, write_model
from rerank_engine.format.layout import file_identity
from rerank_engine.format.writer import encode_model
from rerank_engine.graph import Graph, Node, Value

if TYPE_CHECKING:
    from rerank_engine.passes.pipeline import PassReport


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A converted model.

    Attributes
    ----------
    graph
        What it computes.
    reports
        What each pass changed when the model was converted; not part of the file.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> graph = Graph("linear", inputs=["x"], outputs=["y"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    >>> graph.values["y"] = Value("y", "float32", (Dim("N"), 1))
    >>> weight = graph.add_constant("w", np.ones((3, 1), np.float32))
    >>> graph.nodes.append(Node("MatMul", "score", ("x", weight), ("y",)))
    >>> model = Model(graph)
    >>> model
    Model('linear': x: float32(N, 3) -> y: float32(N, 1); nodes: 1, parameters: 3)
    >>> print(model.summary())
    model    linear
    input    x: float32(N, 3)
    output   y: float32(N, 1)
    <BLANKLINE>
    operator  nodes  parameters  bytes
    MatMul        1           3     12
    total         1           3     12
    """

    graph: Graph
    reports: tuple[PassReport, ...] = ()

    @classmethod
    def read(cls, source: ModelSource) -> Model:
        """Read a model file, or its bytes.

        Raises
        ------
        ModelFileError
            Not a model file, of another version, or damaged.
        """
        return cls(read_model(source))

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the model file, all or nothing, and return its content hash.

        Raises
        ------
        GraphError
            The graph breaks a rule; nothing is written.
        ModelFileError
            The file cannot be written; an existing one is unchanged.
        """
        return write_model(self.graph, path)

    @property
    def file_identity(self) -> bytes:
        """What stands for the file which :meth:`save` would write now."""
        return file_identity(encode_model(self.graph).header)

    @property
    def content_hash(self) -> str:
        """Hex SHA-256 that identifies the model: that of the file which :meth:`save` would write now.

        It is computed at each use, because the graph may have changed.
        """
        return encode_model(self.graph).content_hash

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.graph.name

    @property
    def inputs(self) -> list[Value]:
        """What the caller gives, in order."""
        return [self.graph.values[name] for name in self.graph.inputs]

    @property
    def outputs(self) -> list[Value]:
        """What the caller gets, in order."""
        return [self.graph.values[name] for name in self.graph.outputs]

    def summary(self) -> str:
        """Describe the model as text: inputs, outputs, and nodes, parameters and bytes by operator.

        A constant that several nodes read counts for the first; parameters are the floating-point numbers.
        """
        lines = [f"model    {self.name}"]
        lines += [f"input    {value}" for value in self.inputs]
        lines += [f"output   {value}" for value in self.outputs]
        return "\n".join([*lines, "", *_table(_rows(self.graph))])

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}: {_listed(self.inputs)} -> {_listed(self.outputs)}; "
            f"nodes: {len(self.graph.nodes)}, parameters: {self.graph.parameter_count():,})"
        )


def _listed(values: Iterable[Value]) -> str:
    texts = [str(value) for value in values]
    return ", ".join(texts) if len(texts) <= 3 else f"{texts[0]}, … {len(texts) - 1} more"


class _Row(NamedTuple):
    """One line of the summary."""

    operator: str
    nodes: int
    parameters: int
    size_bytes: int


def _rows(graph: Graph) -> list[_Row]:
    """One row an operator, most bytes first, then what no node reads, then the total."""
    waiting = dict(graph.constants)
    nodes_by_op: dict[str, list[Node]] = {}
    constants_by_op: dict[str, list[NDArray[Any]]] = {}
    for node in graph.nodes:
        nodes_by_op.setdefault(node.op, []).append(node)
        read = [waiting.pop(name) for name in dict.fromkeys(node.inputs) if name in waiting]
        constants_by_op.setdefault(node.op, []).extend(read)
    rows = [_row(op, len(nodes), constants_by_op[op]) for op, nodes in nodes_by_op.items()]
    rows.sort(key=lambda row: (-row.size_bytes, row.operator))
    if waiting:
        rows.append(_row("(no node)", 0, list(waiting.values())))
    return [*rows, _row("total", len(graph.nodes), list(graph.constants.values()))]


def _row(operator: str, nodes: int, constants: list[NDArray[Any]]) -> _Row:
    parameters = sum(array.size for array in constants if array.dtype.kind == "f")
    return _Row(operator, nodes, parameters, sum(array.nbytes for array in constants))


def _table(rows: list[_Row]) -> list[str]:
    cells = [("operator", "nodes", "parameters", "bytes")]
    cells += [(row.operator, f"{row.nodes:,}", f"{row.parameters:,}", f"{row.size_bytes:,}") for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return ["  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3))]) for row in cells]
