"""How scores become an order."""

from rerank_sdk.policy.order import order_unpinned

__all__ = ["order_unpinned"]
