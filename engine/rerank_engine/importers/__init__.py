"""Sources become graphs. :func:`convert` is the one door."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.passes import run_passes

if TYPE_CHECKING:
    from rerank_engine.model import Model

__all__ = ["convert"]


def convert(
    source: str | Path | Any,
    *,
    candidates: str | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    expose_head: bool = False,
    skip_passes: Collection[str] = (),
) -> Model:
    """Convert a trained model.

    Parameters
    ----------
    source
        Path of an ONNX file, or an ``onnx.ModelProto``.
    candidates
        Name of the dimension that counts candidates, when several named ones stand first in an input. By default
        the only one is taken.
    constants
        Inputs that are fixed for good, with their values: a ``k``, axes, a shape.
    expose_head
        Add the output ``head_input``, (N, H) float32: what the last layer reads. Per-user learning needs it.
    skip_passes
        Names of passes to leave out.

    Returns
    -------
    Model
        Verified, with the numbers of the source.

    Raises
    ------
    UnsupportedOperatorError
        The model uses an operator, attribute or shape that is not understood; the message names it.
    ConversionError
        The source is unreadable or inconsistent.
    MissingExtraError
        ``onnx`` is not installed.

    Examples
    --------
    >>> model = convert("din.onnx")  # doctest: +SKIP
    >>> model.save("din.rrm")  # doctest: +SKIP
    """
    from rerank_engine.importers.onnx import import_onnx
    from rerank_engine.model import Model
    from rerank_engine.passes.expose_head import expose_last_layer
    from rerank_engine.sample import make_sample

    if isinstance(source, str | Path) and not Path(source).exists():
        raise ConversionError(f"no such file: {source}")
    graph = import_onnx(source, candidates, constants)
    graph.verify()
    if expose_head:
        graph = expose_last_layer(graph)
        graph.verify()
    graph, reports = run_passes(graph, skip_passes)
    return Model(replace(graph, sample=make_sample(graph)), tuple(reports))
