"""A replay as one offline HTML page with its JSON twin, and as a picture."""

from rerank_simulator.report.html import draw_picture, write_report
from rerank_simulator.report.result import DemoResult

__all__ = ["DemoResult", "draw_picture", "write_report"]
