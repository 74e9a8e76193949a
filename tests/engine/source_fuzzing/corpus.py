"""All sound sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from . import caffe, onnx_operators, onnx_rankers, tflite, trees
from .source import SHARES, Source

_MAKERS: Mapping[str, Callable[[], list[Source]]] = {
    "trees": trees.sources,
    "caffe": caffe.sources,
    "tflite": tflite.sources,
    "rankers": onnx_rankers.sources,
    "operators": onnx_operators.sources,
}


def read_corpus(kinds: Collection[str] = tuple(SHARES)) -> list[Source]:
    """Sources of some kinds."""
    return [source for make in _MAKERS.values() for source in make() if source.kind in kinds]
