"""What an app imports: the re-ranker, and the types that go in and come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_engine.errors import RerankError
    from rerank_features.events import Event, Item, Request
    from rerank_sdk.bundle import Bundle
    from rerank_sdk.ranking import Ranking, Reason
    from rerank_sdk.reranker import Reranker
    from rerank_sdk.store import EventStore

__version__ = "0.1.0"

__all__ = ["Bundle", "Event", "EventStore", "Item", "Ranking", "Reason", "Request", "RerankError", "Reranker"]

_HOMES = {
    "Bundle": "rerank_sdk.bundle",
    "Event": "rerank_features.events",
    "EventStore": "rerank_sdk.store",
    "Item": "rerank_features.events",
    "Ranking": "rerank_sdk.ranking",
    "Reason": "rerank_sdk.ranking",
    "Request": "rerank_features.events",
    "RerankError": "rerank_engine.errors",
    "Reranker": "rerank_sdk.reranker",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
