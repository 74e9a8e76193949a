"""Public logs as plain arrays."""

from rerank_simulator.logs.movielens import RatingLog, load_movielens

__all__ = ["RatingLog", "load_movielens"]
