"""A trained model to ONNX: named inputs, a dynamic number of candidates, one output of logits."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path

import onnx
import torch

from rerank_models.zoo import Ranker

_EXAMPLE_CANDIDATES = 5


def export_onnx(model: Ranker, path: str | Path, *, opset: int = 18) -> None:
    """Write a model of the zoo as an ONNX file with the inputs ``model.input_names`` and the output ``score`` (N,).

    Examples
    --------
    >>> export_onnx(model, "din.onnx")  # doctest: +SKIP
    """
    model.eval()
    candidates = torch.export.Dim("N", min=2, max=65536)
    dynamic = tuple({0: candidates} if model.shapes[name].per_candidate else None for name in model.input_names)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # PyTorch's exporter warns of its own deprecated calls.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)
        program = torch.onnx.export(
            model,
            model.example_inputs(_EXAMPLE_CANDIDATES),
            input_names=list(model.input_names),
            output_names=["score"],
            dynamic_shapes=dynamic,
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    onnx.save(_without_traces(program.model_proto), str(path))


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop the exporter's notes: stack traces with paths of the machine that trained, of no use to a reader."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    return model
