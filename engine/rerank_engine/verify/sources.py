"""Which framework runs a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rerank_engine.errors import ConversionError
from rerank_engine.importers.kinds import find_kind
from rerank_engine.verify.onnx_runners import open_onnx
from rerank_engine.verify.runner import SourceLayer, SourceRunner
from rerank_engine.verify.table_runners import open_lightgbm, open_sklearn, open_xgboost

__all__ = ["SourceLayer", "SourceRunner", "open_source", "register_source"]

Opener = Callable[[Any], tuple[SourceRunner, ...]]


def open_source(source: Any) -> tuple[SourceRunner, ...]:
    """Find the framework of a source.

    Parameters
    ----------
    source
        What :func:`rerank_engine.convert` takes.

    Raises
    ------
    ConversionError
        Nothing here runs such a source; pass ``runners=``.
    MissingExtraError
        The framework is not installed.
    """
    for matches, opener in _OPENERS:
        if matches(source):
            return opener(source)
    shown = source if isinstance(source, str | Path) else type(source).__name__
    raise ConversionError(
        f"nothing here runs the source {shown}; known: ONNX, LightGBM, XGBoost, scikit-learn;"
        " pass runners=[…], see rerank_engine.verify.SourceRunner"
    )


def register_source(matches: Callable[[Any], bool], opener: Opener) -> None:
    """Add a framework, tried before those that are known.

    Parameters
    ----------
    matches
        Whether a source is of this framework.
    opener
        Source to runners, the best first.
    """
    _OPENERS.insert(0, (matches, opener))


def _is_onnx(source: Any) -> bool:
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() == ".onnx"
    return type(source).__name__ == "ModelProto" and type(source).__module__.startswith("onnx")


def _is_kind(name: str) -> Callable[[Any], bool]:
    return lambda source: find_kind(source).name == name


_OPENERS: list[tuple[Callable[[Any], bool], Opener]] = [
    (_is_onnx, open_onnx),
    (_is_kind("LightGBM"), open_lightgbm),
    (_is_kind("XGBoost"), open_xgboost),
    (_is_kind("scikit-learn"), open_sklearn),
]
