"""Speed of event store and features: ``rerank bench features``.

>>> from rerank_simulator.feature_benchmark import benchmark_features
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_simulator.feature_benchmark.run import benchmark_features

__all__ = ["benchmark_features"]


def __getattr__(name: str) -> object:
    """Import the benchmark when it is first used: the processes that it kills need none of it."""
    if name != "benchmark_features":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rerank_simulator.feature_benchmark.run import benchmark_features

    return benchmark_features
