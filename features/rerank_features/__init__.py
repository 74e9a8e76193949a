"""Events to tensors: the border types, the declarative feature spec, and the pipeline that computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_features.events import Event, Item, Request
    from rerank_features.pipeline import FeatureBatch, FeaturePipeline
    from rerank_features.spec import FeatureSpec
    from rerank_features.triggers import TriggerMatcher, TriggerSpec

__all__ = [
    "Event",
    "FeatureBatch",
    "FeaturePipeline",
    "FeatureSpec",
    "Item",
    "Request",
    "TriggerMatcher",
    "TriggerSpec",
]

_HOMES = {
    "Event": "rerank_features.events",
    "FeatureBatch": "rerank_features.pipeline",
    "FeaturePipeline": "rerank_features.pipeline",
    "FeatureSpec": "rerank_features.spec",
    "Item": "rerank_features.events",
    "Request": "rerank_features.events",
    "TriggerMatcher": "rerank_features.triggers",
    "TriggerSpec": "rerank_features.triggers",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
