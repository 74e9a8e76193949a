"""The state of a re-ranker at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from rerank_sdk.store import StoreHealth


@dataclass(frozen=True)
class Health:
    """How a re-ranker is doing.

    Attributes
    ----------
    store
        Of the event store.
    bundle
        Name of the bundle in use, or None.
    backend
        What computes scores; ``"server"`` when nothing does.
    backend_reason
        Why that one.
    problem
        Why there is no model, or None.
    """

    store: StoreHealth
    bundle: str | None
    backend: str
    backend_reason: str
    problem: str | None
