"""Operators, one file a family: attributes understood, shape rule, NumPy reference and lowering in one place."""

from importlib import import_module
from pkgutil import iter_modules

from rerank_engine.ops.registry import OPERATORS, Operator, attribute, check_nodes, lookup

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")  # each fills the table

__all__ = ["OPERATORS", "Operator", "attribute", "check_nodes", "lookup"]
