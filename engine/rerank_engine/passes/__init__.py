"""Graph to graph, one pass a file, each named and verified after it ran."""

from rerank_engine.passes.pipeline import PASSES, PassReport, run_passes

__all__ = ["PASSES", "PassReport", "run_passes"]
