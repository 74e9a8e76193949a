"""Looking into a graph: what it costs, and drawings of it as a picture and as text.

>>> from rerank_engine.inspect import cost, draw_svg, draw_text
"""

from rerank_engine.inspect.cost import Cost, NodeCost, cost
from rerank_engine.inspect.svg import draw_svg
from rerank_engine.inspect.text import draw_text

__all__ = ["Cost", "NodeCost", "cost", "draw_svg", "draw_text"]
