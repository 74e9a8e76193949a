"""One handler for each TFLite operator that is understood: which options, which forms, and its ONNX nodes."""

from rerank_engine.importers.tflite.handlers import (  # noqa: F401  (they fill the table)
    elementwise,
    layout,
    lookup,
    loops,
    products,
    quantized,
    recurrent,
    reduction,
    windows,
)
from rerank_engine.importers.tflite.handlers.registry import HANDLERS

__all__ = ["HANDLERS"]
