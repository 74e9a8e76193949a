"""One handler for each ONNX operator that is understood: which attributes, which forms, and what it becomes."""

from importlib import import_module
from pkgutil import iter_modules

from rerank_engine.importers.onnx_handlers.registry import HANDLERS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")  # each fills the table

__all__ = ["HANDLERS"]
