"""All sound sources."""

from __future__ import annotations

from collections.abc import Callable, Collection

from . import caffe, onnx_nodes, onnx_operators, onnx_rankers, tflite, trees
from .source import DEFAULT_KINDS, ONNX_NODES, SHARES, Source

_MAKERS: tuple[tuple[Collection[str], Callable[[], list[Source]]], ...] = (
    (SHARES, trees.sources),
    (SHARES, caffe.sources),
    (SHARES, tflite.sources),
    (SHARES, onnx_rankers.sources),
    (SHARES, onnx_operators.sources),
    ((ONNX_NODES,), onnx_nodes.sources),
)
"""What makes sources, and of which kinds; of any kind where that costs little."""


def read_corpus(kinds: Collection[str] = DEFAULT_KINDS) -> list[Source]:
    """Sources of some kinds."""
    makers = [make for made, make in _MAKERS if not set(kinds).isdisjoint(made)]
    return [source for make in makers for source in make() if source.kind in kinds]
