"""The table of handlers, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rerank_engine.importers.onnx import OnnxBuilder

if TYPE_CHECKING:
    import onnx

Handler = Callable[[OnnxBuilder, "onnx.NodeProto"], None]

HANDLERS: dict[tuple[str, str], Handler] = {}
"""What becomes of each ONNX operator that is understood, by domain (empty for ONNX's own) and name."""


def handles(*names: str, domain: str = "") -> Callable[[Handler], Handler]:
    """Put a handler into the table."""

    def add(handler: Handler) -> Handler:
        for name in names:
            if (domain, name) in HANDLERS:
                raise ValueError(f"{name} has two handlers")
            HANDLERS[domain, name] = handler
        return handler

    return add


def inputs(builder: OnnxBuilder, node: onnx.NodeProto) -> list[str]:
    """Names in the graph of a node's inputs."""
    return [builder.value_name(name) for name in node.input]


def axes_of(builder: OnnxBuilder, node: onnx.NodeProto, since: int, **defaults: Any) -> list[int]:
    """Axes from the attribute of old opsets or the input of new ones."""
    if builder.opset < since:
        return list(builder.attributes({"axes": [], **defaults})["axes"])
    builder.attributes(defaults)
    return builder.integers(node.input[1], "axes") if len(node.input) > 1 and node.input[1] else []
