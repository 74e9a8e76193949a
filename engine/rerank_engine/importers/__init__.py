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
    from rerank_engine.graph import Graph
    from rerank_engine.model import Model

__all__ = ["convert"]


def convert(
    source: str | Path | Any,
    *,
    candidates: str | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    unknown_rows: Mapping[str, int] | None = None,
    maxima: Mapping[str, int] | None = None,
    example_inputs: Any = None,
    weights: str | Path | None = None,
    output: str | None = None,
    signature: str | None = None,
    dimensions: Mapping[str, str] | None = None,
    shared: Collection[str] | None = None,
    expose_head: bool = False,
    skip_passes: Collection[str] = (),
) -> Model:
    """Convert a trained model.

    Parameters
    ----------
    source
        An ONNX file or ``onnx.ModelProto``; a ``torch.nn.Module`` or ``"model.py:factory"``; a TensorFlow SavedModel
        folder; a TFLite file; a LightGBM or XGBoost booster, estimator or model file; a fitted scikit-learn
        estimator; a Caffe ``.prototxt`` or ``.caffemodel``.
    candidates
        Name of the dimension that counts candidates, when several named ones stand first in an input. By default
        the only one is taken.
    constants
        Inputs that are fixed for good, with their values: a ``k``, axes, a shape.
    unknown_rows
        For inputs that hold ids: the row of the table that stands for every id outside it. Without one, a bad id is
        an error when the model runs.
    maxima
        Largest allowed size of named dimensions, ``{"N": 500}``; a longer list is an error when the model runs.
    example_inputs
        For a PyTorch module: the inputs to export it with.
    weights
        For a Caffe ``.prototxt``: its ``.caffemodel``.
    output
        For LightGBM and XGBoost: ``"prediction"`` (default), or ``"raw"`` for the sum of the leaves.
    signature
        For a SavedModel or TFLite file with several signatures: which one.
    dimensions
        For a SavedModel or TFLite file: names of first dimensions that do not count candidates, by input,
        ``{"history": "T"}``.
    shared
        For a PyTorch module: names of inputs whose first dimension does not count candidates.
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
        The source is unreadable or inconsistent, or an option means nothing for it.
    MissingExtraError
        A package that reads this kind of source is not installed.

    Examples
    --------
    >>> model = convert("din.onnx")  # doctest: +SKIP
    >>> model.save("din.rrm")  # doctest: +SKIP
    """
    from rerank_engine.importers.kinds import SourceOptions, read_source
    from rerank_engine.importers.limits import check_sizes, check_storable, is_quick_to_run
    from rerank_engine.model import Model
    from rerank_engine.passes.expose_head import expose_last_layer
    from rerank_engine.sample import make_sample

    options = SourceOptions(candidates, constants, example_inputs, weights, output, signature, dimensions, shared)
    graph = read_source(source, options)
    graph.verify()
    check_sizes(graph)
    graph = _declare(graph, unknown_rows or {}, maxima or {})
    if expose_head:
        graph = expose_last_layer(graph)
        graph.verify()
    graph, reports = run_passes(graph, skip_passes)
    check_storable(graph)
    sample = make_sample(graph) if is_quick_to_run(graph) else None
    return Model(replace(graph, sample=sample), tuple(reports))


def _declare(graph: Graph, unknown_rows: Mapping[str, int], maxima: Mapping[str, int]) -> Graph:
    """Add what the caller says of inputs and dimensions."""
    from rerank_engine.graph import names_in
    from rerank_engine.importers.unknown_rows import set_unknown_rows

    names = names_in(dim for name in graph.inputs for dim in graph.values[name].shape)
    for name, most in maxima.items():
        if name not in names:
            raise ConversionError(f"maxima: no dimension is called {name!r}; dimensions: {', '.join(sorted(names))}")
        if most < 1:
            raise ConversionError(f"maxima: {name}={most} must be at least 1")
    graph = set_unknown_rows(graph, unknown_rows)
    graph = replace(graph, maxima=dict(maxima))
    graph.verify()
    return graph
