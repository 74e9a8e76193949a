"""Ensembles of decision trees from LightGBM and XGBoost: found by their content, read, and turned into graphs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank_engine.importers.trees.lightgbm import import_lightgbm
from rerank_engine.importers.trees.xgboost import BINARY_START, import_xgboost

__all__ = ["detect", "import_lightgbm", "import_xgboost"]

_FIRST_BYTES = 1 << 16


def detect(source: str | os.PathLike[str] | bytes | Mapping[str, Any] | Any) -> str | None:
    r"""Tell which framework made a source, by its content.

    Parameters
    ----------
    source
        Path of a file, its bytes, the text of a LightGBM model, a dumped model, or an object of either package.

    Returns
    -------
    str or None
        "lightgbm", "xgboost", or None for anything else, also for a file that is not there.

    Examples
    --------
    >>> detect("tree\nversion=v4\n"), detect(b'{"learner": {}}'), detect(b"PK")
    ('lightgbm', 'xgboost', None)
    """
    if isinstance(source, Mapping):
        return _by_keys(source)
    if isinstance(source, str) and "\n" in source:
        return _by_content(source[:_FIRST_BYTES].encode("utf-8", "replace"), lambda: source.encode("utf-8", "replace"))
    if isinstance(source, bytes):
        return _by_content(source[:_FIRST_BYTES], lambda: source)
    if isinstance(source, str | os.PathLike):
        try:
            with Path(source).open("rb") as file:
                start = file.read(_FIRST_BYTES)
            return _by_content(start, Path(source).read_bytes)
        except (OSError, ValueError):
            return None
    for kind in type(source).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("lightgbm", "xgboost"):
            return package
    return None


def _by_content(start: bytes, whole: Any) -> str | None:
    if start.startswith(BINARY_START):
        return "xgboost"
    text = start.lstrip()
    if text[:4] == b"tree" and text[4:].lstrip(b" \t\r")[:1] in (b"\n", b""):
        return "lightgbm"
    if text[:1] != b"{":
        return None
    if text[1:].lstrip()[:1] not in (b'"', b"}"):
        return "xgboost" if b"learner" in start or b"gradient_booster" in start else None
    if b'"learner"' not in start and b'"tree_info"' not in start and len(start) < _FIRST_BYTES:
        return None
    try:
        document = json.loads(whole())
    except (ValueError, RecursionError):
        # A damaged model is still one of its framework: its importer says what is wrong.
        return "xgboost" if b'"learner"' in start else "lightgbm" if b'"tree_info"' in start else None
    return _by_keys(document) if isinstance(document, Mapping) else None


def _by_keys(document: Mapping[str, Any]) -> str | None:
    if "tree_info" in document:
        return "lightgbm"
    return "xgboost" if "learner" in document else None
