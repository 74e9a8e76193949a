"""Graph to plan: which nodes become one loop, what runs once, where each value lies."""

from rerank_engine.plan.plan import Plan, WeightItem, make_plan
from rerank_engine.plan.steps import Phase, Step

__all__ = ["Phase", "Plan", "Step", "WeightItem", "make_plan"]
