"""One handler for each ONNX operator that is understood: which attributes, which forms, and what it becomes."""

from rerank_engine.importers.onnx_handlers import elementwise, products, shapes  # noqa: F401  (they fill the table)
from rerank_engine.importers.onnx_handlers.registry import HANDLERS

__all__ = ["HANDLERS"]
