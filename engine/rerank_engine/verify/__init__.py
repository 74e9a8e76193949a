"""Verification: a converted model against the framework that it came from, over inputs like those of a recommender."""

from rerank_engine.verify.report import VerificationReport
from rerank_engine.verify.sources import SourceLayer, SourceRunner
from rerank_engine.verify.verify import verify

__all__ = ["SourceLayer", "SourceRunner", "VerificationReport", "verify"]
