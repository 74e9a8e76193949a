"""Whether an ONNX model computes what its source computes, measured on the source's own outputs.

Exporters make mistakes that no checker of files can see: a constant baked at the traced length, a branch taken for
one length and kept for all, an attribute left out of a recurrent layer. Running both sides is the only proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, RerankError

if TYPE_CHECKING:
    import onnx

RELATIVE_TOLERANCE = 1e-4
"""Largest difference, as a part of the largest magnitude in the output. Float32 rounding stays far below."""

_LOG_FATAL = 4


@dataclass(frozen=True)
class Sample:
    """Inputs of one list, and what the source computed from them."""

    candidates: int
    feeds: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]


def check_agreement(model: onnx.ModelProto, samples: Sequence[Sample], source: str) -> None:
    """Run a model on samples and compare.

    ONNX Runtime runs it where it is installed, else our own importer and reference. Lists without candidates are not
    tried: ONNX Runtime 1.32 ends the whole process when it runs a recurrent layer on an empty batch.

    Parameters
    ----------
    model
        What was made from the source.
    samples
        At least two list lengths.
    source
        What the source is called in messages.

    Raises
    ------
    ConversionError
        The model fails where the source did not, or computes something else.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import TensorProto, helper
    >>> node = helper.make_node("Neg", ["x"], ["y"])
    >>> ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy"]
    >>> graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    >>> ones = np.ones(3, np.float32)
    >>> check_agreement(model, [Sample(3, {"x": ones}, {"y": ones})], "the module")
    Traceback (most recent call last):
    rerank_engine.errors.ConversionError: the ONNX export differs from the module for 3 candidates: output 'y' is off by 2 where the largest magnitude is 1; the exporter is wrong, a list length is baked into the model, or the source is random
    """  # noqa: E501  (a doctest's message is one line)
    run = _runner(model)
    for sample in samples:
        try:
            found = run(sample)
        except RerankError:
            raise
        except Exception as error:
            raise ConversionError(
                f"the ONNX export of {source} fails for {count_text(sample.candidates)}, where {source} does not:"
                f" {_line(error)}; a list length is probably baked into the model"
            ) from error
        for name, expected in sample.expected.items():
            why = _difference(found[name], expected)
            if why:
                raise ConversionError(
                    f"the ONNX export differs from {source} for {count_text(sample.candidates)}: output {name!r} {why};"
                    " the exporter is wrong, a list length is baked into the model, or the source is random"
                )


def count_text(count: int) -> str:
    """Say a number of candidates."""
    return f"{count} candidate{'' if count == 1 else 's'}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> str:
    """Say how two outputs differ, or nothing."""
    if found.shape != expected.shape:
        return f"has the shape {list(found.shape)}, expected {list(expected.shape)}"
    if found.dtype != expected.dtype:
        return f"has the type {found.dtype}, expected {expected.dtype}"
    if found.dtype.kind != "f":
        wrong = int((found != expected).sum())
        return f"has {wrong} other values" if wrong else ""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return "has NaN or infinity in other places"
    if not finite.any():
        return ""
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.abs(found[finite].astype(np.float64) - expected[finite]).max())
    magnitude = float(np.abs(expected[finite]).max())
    # A found infinity makes the error infinite or NaN, which is no agreement either.
    if not error <= RELATIVE_TOLERANCE * magnitude + float(np.finfo(np.float32).tiny):
        return f"is off by {error:.3g} where the largest magnitude is {magnitude:.3g}"
    return ""


def _runner(model: onnx.ModelProto) -> Any:
    try:
        import onnxruntime
    except ImportError:
        return _own_runner(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_FATAL
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ConversionError(f"ONNX Runtime cannot load the exported model: {_line(error)}") from error
    names = [output.name for output in session.get_outputs()]
    taken = {entry.name for entry in session.get_inputs()}

    def run(sample: Sample) -> dict[str, NDArray[Any]]:
        feeds = {name: array for name, array in sample.feeds.items() if name in taken}
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def _own_runner(model: onnx.ModelProto) -> Any:
    from rerank_engine.importers.onnx import import_onnx
    from rerank_engine.reference import evaluate

    graph = import_onnx(model)
    graph.verify()
    return lambda sample: evaluate(graph, sample.feeds)
