"""The matrix products of a graph, and how much of its work each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rerank_engine.dimensions import names_in, product, resolve
from rerank_engine.graph import CANDIDATES, Graph, Node
from rerank_engine.kernels.gemm import Product, uses_dot
from rerank_engine.ops.registry import attribute

_TYPICAL_SIZE = 50
"""Of every named dimension, where products are ranked by their work."""

WORTH_SEARCHING = 10_000
"""Multiplications for one candidate below which a model has nothing to gain: a call takes a microsecond."""


@dataclass(frozen=True)
class ProductWork:
    """A product of one or more nodes with the same depth and columns.

    Attributes
    ----------
    product
        Of the node with most work.
    multiplications
        For one candidate, of all the nodes, at a typical size of the other dimensions.
    """

    product: Product
    multiplications: int

    @property
    def key(self) -> tuple[int, int]:
        """Depth and columns."""
        return self.product.inner, self.product.columns

    def to_plain(self) -> dict[str, Any]:
        """What JSON holds."""
        return asdict(self.product)


def products_of(graph: Graph) -> list[ProductWork]:
    """The products with packed weights whose tiling can be chosen, most work first.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Value
    >>> graph = Graph("linear", inputs=["x"], outputs=["y"])
    >>> graph.values["x"] = Value("x", "float32", (Dim("N"), 30))
    >>> graph.values["y"] = Value("y", "float32", (Dim("N"), 20))
    >>> weight = graph.add_constant("w", np.ones((30, 20), np.float32))
    >>> graph.nodes.append(Node("MatMul", "score", ("x", weight), ("y",)))
    >>> [(one.key, one.multiplications) for one in products_of(graph)]
    [((30, 20), 600)]
    """
    found: dict[tuple[int, int], list[ProductWork]] = {}
    for node in graph.nodes:
        work = _work_of(graph, node)
        if work is not None:
            found.setdefault(work.key, []).append(work)
    joined = []
    for same in found.values():
        most = max(same, key=lambda one: one.multiplications)
        joined.append(ProductWork(most.product, sum(one.multiplications for one in same)))
    return sorted(joined, key=lambda one: (-one.multiplications, one.key))


def is_too_small(graph: Graph) -> bool:
    """Whether a search cannot gain anything."""
    return sum(work.multiplications for work in products_of(graph)) < WORTH_SEARCHING


def nothing_to_search() -> dict[str, Any]:
    """The report of a search of such a model."""
    return {"is_used": False, "reason": "its matrix products are too small to gain", "tilings": {}, "trials": []}


def _work_of(graph: Graph, node: Node) -> ProductWork | None:
    if node.op != "MatMul" or node.inputs[1] not in graph.constants:
        return None
    left, right = graph.values[node.inputs[0]], graph.constants[node.inputs[1]]
    if left.dtype != "float32" or right.ndim != 2 or uses_dot(right.shape[1]) or not right.size:
        return None
    inner, columns = right.shape
    sizes: Mapping[str, int] = dict.fromkeys(names_in(left.shape), _TYPICAL_SIZE)
    rows = resolve(product(left.shape[:-1]), sizes) / (_TYPICAL_SIZE if CANDIDATES in sizes else 1)
    kind = Product(inner, columns, attribute(node, "activation"), attribute(node, "alpha"), len(node.inputs) == 3)
    return ProductWork(kind, round(rows * inner * columns))
