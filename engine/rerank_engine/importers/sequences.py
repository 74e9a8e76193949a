"""Sequences of tensors whose members are known while importing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from rerank_engine.importers.onnx import OnnxBuilder

_SEQUENCES: WeakKeyDictionary[OnnxBuilder, dict[str, tuple[str, ...]]] = WeakKeyDictionary()
_JOINED: WeakKeyDictionary[OnnxBuilder, dict[str, str]] = WeakKeyDictionary()


def sequences_of(builder: OnnxBuilder) -> dict[str, tuple[str, ...]]:
    """Members of each sequence, as names in the graph, by ONNX name."""
    return _SEQUENCES.setdefault(builder, {})


def joined_of(builder: OnnxBuilder) -> dict[str, str]:
    """Sequences of as many members as a named dimension says: one value that holds them all along the first axis."""
    return _JOINED.setdefault(builder, {})
