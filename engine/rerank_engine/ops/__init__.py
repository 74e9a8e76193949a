"""Operators, one file a family: attributes understood, shape rule, NumPy reference and lowering in one place."""

from rerank_engine.ops import gather, layout, matmul, pointwise, reduce  # noqa: F401  (they fill the table)
from rerank_engine.ops.registry import OPERATORS, Operator, attribute, check_nodes, lookup

__all__ = ["OPERATORS", "Operator", "attribute", "check_nodes", "lookup"]
