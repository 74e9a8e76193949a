"""LightGBM: text models, JSON dumps, boosters and scikit-learn estimators become graphs.

Sources: the text format and the decisions are those of LightGBM's ``tree.h``, ``tree.cpp`` and ``gbdt_model_text.cpp``
(versions v2 to v4). LightGBM reads features as float64 and takes magnitudes up to 1e-35 for zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph
from rerank_engine.importers.trees.graph import check_output, ensemble_graph
from rerank_engine.importers.trees.lightgbm_json import parse_dump
from rerank_engine.importers.trees.lightgbm_text import parse_text
from rerank_engine.importers.trees.lightgbm_tree import ZERO_THRESHOLD, Booster
from rerank_engine.importers.trees.model import Ensemble, Transform
from rerank_engine.importers.trees.sources import parse_json, read_bytes

_IDENTITY = ("regression", "regression_l2", "l2", "regression_l1", "huber", "fair", "quantile", "mape")
_RANKING = ("lambdarank", "rank_xendcg", "none", "custom", "")


def import_lightgbm(
    source: str | os.PathLike[str] | bytes | Mapping[str, Any] | Any,
    *,
    output: str = "prediction",
    features_dtype: str = "float32",
) -> Graph:
    """Import a LightGBM model.

    Parameters
    ----------
    source
        Path of a text model or of a JSON dump; the text itself; the dictionary of ``Booster.dump_model``; a
        ``lightgbm.Booster``; a fitted ``LGBMClassifier``, ``LGBMRegressor`` or ``LGBMRanker``.
    output
        "prediction": what ``Booster.predict`` gives, such as probabilities. "raw": the sums of the leaves, as with
        ``raw_score=True``.
    features_dtype
        Dtype of the input. With "float64" routing is LightGBM's for every float64; with "float32" for every float32.

    Returns
    -------
    Graph
        Input ``features`` (N, F); output ``score`` float64, (N,) or, with several classes, (N, K). Categorical
        features are category numbers, as in the training data; for pandas categories the lists are in the metadata.

    Raises
    ------
    ConversionError
        The source is no LightGBM model, is damaged, or has an objective that is not known.

    Examples
    --------
    >>> text = '''tree
    ... version=v4
    ... num_class=1
    ... num_tree_per_iteration=1
    ... max_feature_idx=0
    ... objective=binary sigmoid:1
    ... feature_names=x
    ...
    ... Tree=0
    ... num_leaves=2
    ... num_cat=0
    ... split_feature=0
    ... threshold=0.5
    ... decision_type=2
    ... left_child=-1
    ... right_child=-2
    ... leaf_value=-1 1
    ...
    ... end of trees
    ... '''
    >>> graph = import_lightgbm(text, output="raw")
    >>> from rerank_engine.reference import evaluate
    >>> evaluate(graph, {"features": np.array([[0.0], [1.0]], np.float32)})["score"]
    array([-1.,  1.])
    """
    check_output(output)
    name, booster = _read(source)
    return ensemble_graph(describe(booster, name, output), output, features_dtype)


def describe(booster: Booster, name: str = "lightgbm", output: str = "prediction") -> Ensemble:
    """Put a booster into neutral terms; with ``output="raw"`` an unknown objective does not matter."""
    count, outputs = len(booster.trees), booster.trees_per_iteration
    if count % outputs:
        raise ConversionError(f"{count} trees for {outputs} outputs: an iteration is incomplete; the model is damaged")
    metadata = {"source": "lightgbm", "objective": booster.objective or "none"}
    metadata["feature_names"] = json.dumps(list(booster.feature_names))
    if booster.pandas_categorical:
        metadata["pandas_categorical"] = json.dumps(booster.pandas_categorical)
    # Random forests are averaged; LightGBM's raw scores are their sums all the same.
    averaged = booster.average_output and output != "raw"
    return Ensemble(
        name=name,
        features=booster.features,
        trees=booster.trees,
        base=np.zeros(outputs),
        aggregate="AVERAGE" if averaged else "SUM",
        divisor=float(max(1, count // outputs)) if averaged else 1.0,
        zero_threshold=ZERO_THRESHOLD,
        fraction_is_category_zero=True,
        transform=Transform() if output == "raw" else objective_transform(booster.objective, outputs),
        metadata=metadata,
    )


def objective_transform(objective: str, outputs: int) -> Transform:
    """What an objective, as the model file writes it, does to the sums.

    Raises
    ------
    ConversionError
        The objective is not known.

    Examples
    --------
    >>> objective_transform("binary sigmoid:2", 1)
    Transform(kind='sigmoid', scale=2.0)
    """
    kind, *options = objective.split() or [""]
    settings = dict(option.partition(":")[::2] for option in options)
    known = _simple_transform(kind, settings)
    if known is None:
        raise ConversionError(
            f'LightGBM objective {objective!r} is not known; output="raw" gives the sums without its transform'
        )
    if (known.kind == "softmax" or kind in ("multiclassova", "multiclass_ova", "ova", "ovr")) and outputs == 1:
        raise ConversionError(f"objective {objective!r} has one tree an iteration; the model is damaged")
    return known


def _simple_transform(kind: str, settings: Mapping[str, str]) -> Transform | None:
    if kind in _IDENTITY:
        return Transform("signed_square") if "sqrt" in settings else Transform()
    if kind in _RANKING:
        return Transform()
    if kind in ("poisson", "gamma", "tweedie"):
        return Transform("exp")
    if kind in ("binary", "multiclassova", "multiclass_ova", "ova", "ovr"):
        try:
            scale = float(settings.get("sigmoid", "1"))
        except ValueError:
            scale = 0.0
        if not 0 < scale < np.inf:
            raise ConversionError(f"objective {kind!r}: sigmoid:{settings.get('sigmoid')} must be a positive number")
        return Transform("sigmoid", scale)
    if kind in ("multiclass", "softmax"):
        return Transform("softmax")
    if kind in ("cross_entropy", "xentropy"):
        return Transform("sigmoid")
    if kind in ("cross_entropy_lambda", "xentlambda"):
        return Transform("softplus")
    return None


def _read(source: Any) -> tuple[str, Booster]:
    """Name and content of a source."""
    if isinstance(source, Mapping):
        return "lightgbm", parse_dump(source)
    if isinstance(source, str) and source.lstrip()[:5].strip() == "tree" and "\n" in source:
        return "lightgbm", parse_text(source)
    if isinstance(source, str | os.PathLike | bytes):
        name = "lightgbm" if isinstance(source, bytes) else Path(source).stem
        return name, _parse(read_bytes(source))
    text = _model_text(source)
    return "lightgbm", parse_text(text)


def _parse(data: bytes) -> Booster:
    if data.lstrip()[:1] == b"{":
        document = parse_json(data, "the LightGBM model")
        return parse_dump(document)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConversionError(f"the LightGBM model is no text: {error}") from error
    return parse_text(text)


def _model_text(source: Any) -> str:
    """The text model of a booster or an estimator of the lightgbm package."""
    try:
        booster = source.booster_ if hasattr(type(source), "booster_") else source
        text = booster.model_to_string()
    except Exception as error:  # of the other package: an estimator that is not fitted, or anything else
        raise ConversionError(
            f"expected a LightGBM model file, text, dump, Booster or fitted estimator, got {type(source).__name__}:"
            f" {error}"
        ) from error
    if not isinstance(text, str):
        raise ConversionError(f"{type(source).__name__}.model_to_string() gave no text")
    return text
