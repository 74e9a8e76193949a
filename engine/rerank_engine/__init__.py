"""Tensors only: model import, the graph, compilation to one machine-code function, and running it.

>>> from rerank_engine import convert, load  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_engine.importers import convert
    from rerank_engine.model import Model
    from rerank_engine.runtime import Engine, load

__all__ = ["Engine", "Model", "convert", "load"]

_HOMES = {
    "Engine": "rerank_engine.runtime",
    "Model": "rerank_engine.model",
    "convert": "rerank_engine.importers",
    "load": "rerank_engine.runtime",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
