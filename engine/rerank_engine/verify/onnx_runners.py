"""Run an ONNX model.

By onnxruntime, in a process of its own because some models make it abort (a GRU over an empty list does), and by the
reference evaluator of the ``onnx`` package where onnxruntime is missing or does not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.ops.registry import Array
from rerank_engine.verify.isolated import IsolatedRunner
from rerank_engine.verify.runner import SourceLayer, SourceRunner

if TYPE_CHECKING:
    import onnx


class OnnxReferenceRunner:
    """The reference evaluator of the ``onnx`` package: NumPy, slow, close to the specification.

    Parameters
    ----------
    model
        An ``onnx.ModelProto``.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = _inlined(model)
        self.name = f"onnx.reference {version('onnx')}"
        self.outputs: Sequence[str] = [entry.name for entry in self._model.graph.output]
        self.layers: Sequence[SourceLayer] = onnx_layers(self._model)
        self._dtypes = _input_dtypes(self._model)
        self._evaluator: Any = None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`SourceRunner.run`."""
        if self._evaluator is None:
            from onnx.reference import ReferenceEvaluator

            self._evaluator = ReferenceEvaluator(self._model)
        with np.errstate(all="ignore"):
            found = self._evaluator.run(None, _cast(inputs, self._dtypes), intermediate=True)
        return _tensors(found.items())

    def close(self) -> None:
        """Forget the evaluator."""
        self._evaluator = None


class OnnxRuntimeRunner:
    """onnxruntime on the CPU, one thread, its optimiser off, so that every value of the file is computed.

    Parameters
    ----------
    model
        An ``onnx.ModelProto``.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx
        import onnxruntime

        model = _inlined(model)
        self.name = f"onnxruntime {onnxruntime.__version__}"
        self.outputs: Sequence[str] = [entry.name for entry in model.graph.output]
        self.layers: Sequence[SourceLayer] = onnx_layers(model)
        self._dtypes = _input_dtypes(model)
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        known = {entry.name for entry in model.graph.output}
        extended.graph.output.extend(
            onnx.ValueInfoProto(name=layer.value) for layer in self.layers if layer.value not in known
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            extended.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._names = [entry.name for entry in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`SourceRunner.run`."""
        found = self._session.run(self._names, _cast(inputs, self._dtypes))
        return _tensors(zip(self._names, found, strict=True))

    def close(self) -> None:
        """Do nothing: the session goes with the object."""


def open_onnx(source: str | Path | onnx.ModelProto) -> tuple[SourceRunner, ...]:
    """Make the runners of an ONNX model, the best first.

    Returns
    -------
    tuple of SourceRunner
        onnxruntime in a process of its own, where it is installed, and the reference evaluator.

    Raises
    ------
    MissingExtraError
        ``onnx`` is not installed.
    ConversionError
        The model cannot be read.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise MissingExtraError("running the ONNX model", "convert") from error
    try:
        model = onnx.load(str(source)) if isinstance(source, str | Path) else source
    except (DecodeError, OSError, onnx.checker.ValidationError) as error:
        raise ConversionError(f"cannot read the ONNX model {source}: {error}") from error
    reference = OnnxReferenceRunner(model)
    if not has_onnxruntime():
        return (reference,)
    first = IsolatedRunner(
        f"onnxruntime {version('onnxruntime')}",
        OnnxRuntimeRunner,
        _inlined(model),
        outputs=reference.outputs,
        layers=reference.layers,
    )
    return (first, reference)


def has_onnxruntime() -> bool:
    """Whether onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


def onnx_layers(model: onnx.ModelProto) -> list[SourceLayer]:
    """List every value that the nodes of an ONNX model make, in order."""
    return [
        SourceLayer(output, node.name or node.output[0], node.op_type)
        for node in model.graph.node
        for output in node.output
        if output
    ]


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline local functions as the importer does, so that values have the same names."""
    if not model.functions:
        return model
    from rerank_engine.importers.local_functions import inline_functions

    return inline_functions(model)


def _input_dtypes(model: onnx.ModelProto) -> dict[str, np.dtype[Any]]:
    from onnx import helper

    return {
        entry.name: helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type) for entry in model.graph.input
    }


def _cast(inputs: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    return {name: np.asarray(array, dtypes.get(name, array.dtype)) for name, array in inputs.items()}


def _tensors(values: Iterable[tuple[str, Any]]) -> dict[str, Array]:
    """Keep what is a tensor; sequences and maps are not compared."""
    return {name: np.asarray(value) for name, value in values if isinstance(value, np.ndarray | np.generic)}
