"""Speed of this engine beside its peers: ``rerank bench engine``.

>>> from rerank_engine.benchmark import benchmark_engine
"""

from rerank_engine.benchmark.run import DEFAULT_MODELS, DEFAULT_PEERS, SIZES, benchmark_engine

__all__ = ["DEFAULT_MODELS", "DEFAULT_PEERS", "SIZES", "benchmark_engine"]
