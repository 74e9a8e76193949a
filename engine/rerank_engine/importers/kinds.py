"""Which kind of model a source is, and how each kind becomes a graph. Everything but tree ensembles goes by ONNX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.graph import Graph


@dataclass(frozen=True)
class SourceOptions:
    """What a caller may say about a source; None where nothing was said.

    Attributes
    ----------
    candidates
        Name of the dimension that counts candidates.
    constants
        Inputs that are fixed for good, with their values.
    example_inputs
        For a PyTorch module: what it is exported with.
    weights
        For a Caffe network: the ``.caffemodel`` beside the ``.prototxt``.
    output
        For trees: "prediction", or "raw" for the sum of leaves before the objective's transformation.
    signature
        For TensorFlow and TFLite: which of several signatures.
    dimensions
        For TensorFlow and TFLite: names of first dimensions that do not count candidates, by input.
    shared
        For PyTorch: inputs whose first dimension does not count candidates.
    """

    candidates: str | None = None
    constants: Mapping[str, NDArray[Any]] | None = None
    example_inputs: Any = None
    weights: str | Path | None = None
    output: str | None = None
    signature: str | None = None
    dimensions: Mapping[str, str] | None = None
    shared: Collection[str] | None = None

    def given(self) -> set[str]:
        """Names of the options that the caller set."""
        return {field.name for field in fields(self) if getattr(self, field.name) is not None}


@dataclass(frozen=True)
class SourceKind:
    """One kind of model.

    Attributes
    ----------
    name
        For people and for the graph's metadata.
    options
        Options that mean something for it.
    matches
        Tells whether a source is of this kind; looks at contents where a name says nothing.
    read
        Source and options to graph.
    """

    name: str
    options: frozenset[str]
    matches: Callable[[Any], bool]
    read: Callable[[Any, SourceOptions], Graph]


def find_kind(source: Any) -> SourceKind:
    """Find out what a source is.

    Raises
    ------
    ConversionError
        No such file, or nothing that is known.

    Examples
    --------
    >>> find_kind(b"nothing")
    Traceback (most recent call last):
    ...
    rerank_engine.errors.ConversionError: a bytes is no model that is known; known: an ONNX file or ModelProto, ...
    """
    path = _path(source)
    if path is not None and not path.exists():
        raise ConversionError(f"no such file: {path}")
    for kind in KINDS:
        if kind.matches(source):
            return kind
    what = f"{path} ({path.stat().st_size} bytes)" if path is not None else f"a {type(source).__name__}"
    raise ConversionError(f"{what} is no model that is known; known: {_KNOWN}")


def read_source(source: Any, options: SourceOptions) -> Graph:
    """Read a model of any kind.

    Raises
    ------
    ConversionError
        The source is unreadable, of no known kind, or an option means nothing for its kind.
    """
    kind = find_kind(source)
    if senseless := options.given() - kind.options:
        raise ConversionError(
            f"option {sorted(senseless)[0]!r} means nothing for {kind.name};"
            f" its options: {', '.join(sorted(kind.options)) or 'none'}"
        )
    graph = kind.read(source, options)
    graph.metadata.setdefault("source", kind.name)
    if kind.name != "ONNX":
        graph.metadata["source"] = kind.name
    path = _path(source)
    if path is not None and ":" not in path.name:
        graph.name = path.stem or graph.name
    return graph


def _path(source: Any) -> Path | None:
    """The file of a source, without the factory that may be named behind it."""
    if not isinstance(source, str | Path):
        return None
    file, mark, factory = str(source).rpartition(":")
    return Path(file) if mark and file.endswith(".py") and factory.isidentifier() else Path(source)


def _suffix(source: Any, *suffixes: str) -> bool:
    path = _path(source)
    return path is not None and path.suffix.lower() in suffixes


def _comes_from(source: Any, *packages: str) -> bool:
    """Whether a class of one of these packages is among the ancestors of an object's class; imports nothing."""
    return any(base.__module__.partition(".")[0] in packages for base in type(source).__mro__)


# --- kinds -------------------------------------------------------------------------------------------------


def _is_tree(framework: str) -> Callable[[Any], bool]:
    def matches(source: Any) -> bool:
        from rerank_engine.importers.trees import detect

        path = _path(source)
        if path is not None and not path.is_file():
            return False
        return detect(source) == framework

    return matches


def _read_lightgbm(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.trees.lightgbm import import_lightgbm

    return import_lightgbm(source, output=options.output or "prediction")


def _read_xgboost(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.trees.xgboost import import_xgboost

    return import_xgboost(source, output=options.output or "prediction")


def _is_torch(source: Any) -> bool:
    path = _path(source)
    if path is not None:
        return path.suffix == ".py" or (path.suffix == ".pt2")
    return _comes_from(source, "torch")


def _read_torch(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.torch_factory import load_factory
    from rerank_engine.importers.torch_source import torch_to_onnx

    example_inputs = options.example_inputs
    if isinstance(source, str | Path):
        source, from_factory = load_factory(str(source))
        example_inputs = from_factory if example_inputs is None else example_inputs
    model = torch_to_onnx(source, example_inputs, shared=tuple(options.shared or ()))
    return _through_onnx(model, options)


def _is_saved_model(source: Any) -> bool:
    from rerank_engine.importers.tensorflow_source import is_saved_model

    path = _path(source)
    return path is not None and is_saved_model(path)


def _read_saved_model(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.tensorflow_source import saved_model_to_onnx

    model = saved_model_to_onnx(source, signature=options.signature, dimensions=options.dimensions)
    return _through_onnx(model, options)


def _is_tflite(source: Any) -> bool:
    path = _path(source)
    if path is None or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8)[4:8] == b"TFL3" or path.suffix == ".tflite"


def _read_tflite(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.tflite import tflite_to_onnx

    model = tflite_to_onnx(source, signature=options.signature, dimensions=options.dimensions)
    return _through_onnx(model, options)


def _read_caffe(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.caffe import caffe_to_onnx

    path = Path(source)
    if path.suffix == ".prototxt":
        return _through_onnx(caffe_to_onnx(path, options.weights), options)
    if options.weights is not None:
        raise ConversionError(f"{path} holds the weights itself; give the .prototxt as the source, or no weights")
    return _through_onnx(caffe_to_onnx(None, path), options)


def _read_sklearn(source: Any, options: SourceOptions) -> Graph:
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType
        from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator
    except ImportError as error:
        raise MissingExtraError("converting scikit-learn models", "sklearn") from error
    columns = getattr(source, "n_features_in_", None)
    if columns is None:
        raise ConversionError(f"{type(source).__name__} is not fitted yet; call fit first")
    classifier = hasattr(source, "predict_proba") or hasattr(source, "decision_function")
    try:
        model = to_onnx(
            source,
            initial_types=[("features", FloatTensorType([None, columns]))],
            options={"zipmap": False} if classifier and hasattr(source, "classes_") else None,
        )
    except (
        MissingConverter,
        MissingShapeCalculator,
        NameError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ConversionError(f"skl2onnx cannot convert {type(source).__name__}: {error}") from error
    return _through_onnx(_without_label(model), options)


def _without_label(model: Any) -> Any:
    """A classifier's scores are what ranks; its label, often a text, is left out."""
    if len(model.graph.output) > 1:
        kept = [entry for entry in model.graph.output if entry.name not in ("label", "output_label")]
        del model.graph.output[:]
        model.graph.output.extend(kept)
    return model


def _is_onnx(source: Any) -> bool:
    if isinstance(source, str | Path):
        path = Path(source)
        # ONNX files have no mark; what no other kind claims is read as one, and the message says what is wrong.
        return path.is_file()
    return _comes_from(source, "onnx") and type(source).__name__ == "ModelProto"


def _through_onnx(source: Any, options: SourceOptions) -> Graph:
    from rerank_engine.importers.onnx import import_onnx

    return import_onnx(source, options.candidates, options.constants)


_ONNX_OPTIONS = frozenset({"candidates", "constants"})

KINDS: tuple[SourceKind, ...] = (
    SourceKind("LightGBM", frozenset({"output"}), _is_tree("lightgbm"), _read_lightgbm),
    SourceKind("XGBoost", frozenset({"output"}), _is_tree("xgboost"), _read_xgboost),
    SourceKind(
        "scikit-learn",
        _ONNX_OPTIONS,
        lambda source: _path(source) is None and _comes_from(source, "sklearn"),
        _read_sklearn,
    ),
    SourceKind("PyTorch", _ONNX_OPTIONS | {"example_inputs", "shared"}, _is_torch, _read_torch),
    SourceKind(
        "TensorFlow SavedModel", _ONNX_OPTIONS | {"signature", "dimensions"}, _is_saved_model, _read_saved_model
    ),
    SourceKind("TFLite", _ONNX_OPTIONS | {"signature", "dimensions"}, _is_tflite, _read_tflite),
    SourceKind(
        "Caffe",
        _ONNX_OPTIONS | {"weights"},
        lambda source: _suffix(source, ".prototxt", ".caffemodel"),
        _read_caffe,
    ),
    SourceKind("ONNX", _ONNX_OPTIONS, _is_onnx, _through_onnx),
)
"""Every kind, in the order in which they are asked."""

_KNOWN = (
    "an ONNX file or ModelProto, a PyTorch module or model.py:factory, a TensorFlow SavedModel folder, a TFLite file,"
    " a LightGBM or XGBoost model or file, a fitted scikit-learn estimator, a Caffe .prototxt or .caffemodel"
)
