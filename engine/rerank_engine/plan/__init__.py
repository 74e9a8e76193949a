"""Graph to plan: which nodes become one loop, what runs once, where each value lies."""

from rerank_engine.plan.plan import Plan, Step, WeightItem, make_plan

__all__ = ["Plan", "Step", "WeightItem", "make_plan"]
