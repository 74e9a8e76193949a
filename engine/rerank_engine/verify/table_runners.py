"""Run models of tables by their own framework: LightGBM, XGBoost, scikit-learn. One input, one output, no layers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.ops.registry import Array
from rerank_engine.verify.runner import SourceLayer, SourceRunner


class TableRunner:
    """A model that maps a table of features to scores.

    Parameters
    ----------
    name
        Framework and version.
    predict
        (N, F) features to (N,) or (N, K) scores.
    output
        Name of the output in the converted graph.
    """

    def __init__(self, name: str, predict: Callable[[Array], Any], output: str) -> None:
        self.name = name
        self.outputs: Sequence[str] = [output]
        self.layers: Sequence[SourceLayer] = []
        self._predict = predict

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`SourceRunner.run`."""
        return {self.outputs[0]: np.asarray(self._predict(inputs["features"]))}

    def close(self) -> None:
        """Nothing is held."""


def open_lightgbm(source: Any) -> tuple[SourceRunner, ...]:
    """A LightGBM text model, booster or estimator."""
    lightgbm = _package("lightgbm")
    if isinstance(source, str | Path):
        if Path(source).read_bytes().lstrip()[:1] == b"{":
            raise ConversionError("LightGBM itself does not read a JSON dump: verify the text model or the booster")
        with _quiet():
            booster = lightgbm.Booster(model_file=str(source))
    else:
        booster = getattr(source, "booster_", source)

    def predict(features: Array) -> Any:
        with _quiet():
            return booster.predict(features, num_threads=1) if len(features) else _empty(booster.predict, features)

    return (TableRunner(f"lightgbm {version('lightgbm')}", predict, "score"),)


def _quiet() -> contextlib.redirect_stdout[Any]:
    """What LightGBM has to say goes to the standard error output: the other one belongs to the report."""
    return contextlib.redirect_stdout(sys.stderr)


def open_xgboost(source: Any) -> tuple[SourceRunner, ...]:
    """An XGBoost model file, booster or estimator."""
    xgboost = _package("xgboost")
    if isinstance(source, str | Path):
        booster = xgboost.Booster(model_file=str(source))
    else:
        booster = source.get_booster() if hasattr(source, "get_booster") else source

    def predict(features: Array) -> Any:
        names = booster.feature_names
        return booster.predict(xgboost.DMatrix(features, feature_names=names, nthread=1))

    return (TableRunner(f"xgboost {xgboost.__version__}", predict, "score"),)


def open_sklearn(source: Any) -> tuple[SourceRunner, ...]:
    """A fitted scikit-learn estimator: its probabilities, or its predictions as a column."""
    classifier = hasattr(source, "predict_proba")

    def predict(features: Array) -> Any:
        if not len(features):
            return _empty(predict, features)
        found = source.predict_proba(features) if classifier else source.predict(features)
        return found if found.ndim == 2 else found[:, None]

    output = "probabilities" if classifier else "variable"
    return (TableRunner(f"scikit-learn {version('scikit-learn')}", predict, output),)


def _empty(predict: Callable[[Array], Any], features: Array) -> Array:
    """The shape of no scores, from that of one: these frameworks refuse an empty table."""
    return np.asarray(predict(np.zeros((1, features.shape[1]), features.dtype)))[:0]


def _package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ConversionError(f"verifying needs the framework itself: pip install {name}") from error
