"""The model file ``.rrm``: a graph as FlatBuffers, weights mapped behind it, and a strict reader.

>>> import numpy as np
>>> from rerank_engine.format import content_hash, model_bytes, read_model
>>> from rerank_engine.graph import Graph
>>> graph = Graph("bias", outputs=["b"])
>>> _ = graph.add_constant("b", np.zeros(4, np.float32))
>>> data = model_bytes(graph)
>>> model_bytes(read_model(data)) == data
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_engine.format.content import ModelSource, content_hash
    from rerank_engine.format.reader import read_model
    from rerank_engine.format.writer import model_bytes, write_model

__all__ = ["ModelSource", "content_hash", "model_bytes", "read_model", "write_model"]

_HOMES = {
    "ModelSource": "content",
    "content_hash": "content",
    "model_bytes": "writer",
    "read_model": "reader",
    "write_model": "writer",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a stored model is run without what reads and writes one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
