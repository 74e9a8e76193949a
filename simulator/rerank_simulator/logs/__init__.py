"""Public logs as plain arrays."""

from rerank_simulator.logs.movielens import RatingLog, default_cache_dir, load_movielens

__all__ = ["RatingLog", "default_cache_dir", "load_movielens"]
