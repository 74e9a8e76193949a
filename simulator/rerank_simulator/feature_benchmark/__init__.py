"""Speed of event store and features: ``rerank bench features``.

>>> from rerank_simulator.feature_benchmark import benchmark_features
"""

from rerank_simulator.feature_benchmark.run import benchmark_features

__all__ = ["benchmark_features"]
