"""XGBoost: JSON and UBJSON models, boosters and scikit-learn estimators become graphs.

Sources: the schema in XGBoost's documentation ("Introduction to Model IO") and its model reader, versions 1.0 to 3.
XGBoost computes in float32: features, thresholds, leaves and sums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph
from rerank_engine.importers.trees.graph import check_output, ensemble_graph
from rerank_engine.importers.trees.model import Array, Ensemble, Linear, Transform
from rerank_engine.importers.trees.sources import Fields, parse_json, read_bytes
from rerank_engine.importers.trees.ubjson import parse_ubjson
from rerank_engine.importers.trees.xgboost_tree import parse_tree

_OLDEST = 1
_MOST_OUTPUTS = 1 << 20
_MOST_FEATURES = 2**31 - 1

_LOGIT_EDGE = np.float32(1e-6)
_FIRST_RAW_LOGIT_VERSION = 3
"""From here on the base score of binary:logitraw is known to be a sum; versions before it changed its meaning."""

BINARY_START = (b"binf", b"bs64")
"""How the binary format of old versions starts."""


def _same(score: Array) -> Array:
    return score


def _logit(score: Array) -> Array:
    # Where all labels are alike the stored mean is 0 or 1; XGBoost keeps this distance from both.
    score = np.clip(score, _LOGIT_EDGE, np.float32(1) - _LOGIT_EDGE)
    inverse = np.float32(1) / score - np.float32(1)
    return -np.log(inverse.astype(np.float64))


def _log(score: Array) -> Array:
    return np.log(score.astype(np.float64))


_OBJECTIVES: Mapping[str, tuple[Transform, Callable[[Array], Array]]] = {
    **dict.fromkeys(
        (
            "reg:squarederror",
            "reg:linear",
            "reg:squaredlogerror",
            "reg:pseudohubererror",
            "reg:absoluteerror",
            "reg:quantileerror",
            "reg:expectileerror",
            "rank:pairwise",
            "rank:ndcg",
            "rank:map",
        ),
        (Transform(), _same),
    ),
    **dict.fromkeys(("reg:logistic", "binary:logistic"), (Transform("sigmoid"), _logit)),
    "binary:logitraw": (Transform(), _same),
    "binary:hinge": (Transform("positive"), _same),
    **dict.fromkeys(
        ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), (Transform("exp"), _log)
    ),
    "multi:softprob": (Transform("softmax"), _same),
    "multi:softmax": (Transform("largest"), _same),
}
"""What each objective does to the sums, and how it turns the stored base score into a sum."""


def import_xgboost(source: str | os.PathLike[str] | bytes | Any, *, output: str = "prediction") -> Graph:
    """Import an XGBoost model.

    Parameters
    ----------
    source
        Path or bytes of a model in JSON or UBJSON; an ``xgboost.Booster``; a fitted estimator of
        ``xgboost.sklearn``, whose best iteration and ``missing`` value are respected.
    output
        "prediction": what ``Booster.predict`` gives, such as probabilities. "raw": the sums of the leaves, as with
        ``output_margin=True``.

    Returns
    -------
    Graph
        Input ``features`` (N, F) float32, NaN for missing; output ``score`` float32, (N,) or, with several classes
        or targets, (N, K). Categorical features are category numbers.

    Raises
    ------
    ConversionError
        The source is no XGBoost model, is damaged, or uses something that is not supported.

    Examples
    --------
    >>> graph = import_xgboost("ranker.ubj")  # doctest: +SKIP
    """
    check_output(output)
    if isinstance(source, str | os.PathLike | bytes):
        name = "xgboost" if isinstance(source, bytes) else Path(source).stem
        document, missing = parse_model(read_bytes(source)), None
    else:
        name, (document, missing) = "xgboost", _from_object(source)
    model = describe(document, name)
    return ensemble_graph(replace(model, missing_value=missing), output)


def parse_model(data: bytes) -> Any:
    """Parse a model file of either form.

    Raises
    ------
    ConversionError
        It is in the binary format of old versions, or damaged.
    """
    if data.startswith(BINARY_START):
        raise ConversionError(
            "this XGBoost model is in the old binary format; save it as JSON: booster.save_model('model.json')"
        )
    start = data.lstrip()[:2]
    if start[:1] != b"{":
        raise ConversionError("an XGBoost model in JSON or UBJSON starts with '{'; this source does not")
    second = data.lstrip()[1:].lstrip()[:1]
    return parse_json(data, "the XGBoost model") if second in (b'"', b"}") else parse_ubjson(data)


def describe(document: Any, name: str = "xgboost") -> Ensemble | Linear:
    """Put a parsed model into neutral terms.

    Raises
    ------
    ConversionError
        It is damaged, or uses something that is not supported; the message names the place.
    """
    root = Fields(document, "model")
    if "learner" not in root:
        raise ConversionError("this is no XGBoost model: it has no 'learner'")
    version = root.integers("version")
    if len(version) != 3 or version[0] < _OLDEST:
        raise ConversionError(f"XGBoost model version {version.tolist()} is not supported; supported: 1.0 and later")
    learner = root.object("learner")
    parameters = learner.object("learner_model_param")
    features = parameters.integer("num_feature", low=1, high=_MOST_FEATURES)
    outputs = max(
        1,
        parameters.integer("num_class", 0, high=_MOST_OUTPUTS),
        parameters.integer("num_target", 1, high=_MOST_OUTPUTS),
    )
    objective = learner.object("objective").text("name")
    if objective not in _OBJECTIVES:
        raise ConversionError(f"XGBoost objective {objective!r} is not supported; supported: {', '.join(_OBJECTIVES)}")
    if objective == "binary:logitraw" and version[0] < _FIRST_RAW_LOGIT_VERSION:
        raise ConversionError(
            f"objective {objective!r} of XGBoost {version[0]} is not supported: what its base_score means differs"
            " between versions; load the model with XGBoost 3, save it again and compare the predictions"
        )
    transform, to_sum = _OBJECTIVES[objective]
    if transform.kind in ("softmax", "largest") and outputs == 1:
        raise ConversionError(f"objective {objective!r} with one class; the model is damaged")
    base = _base(parameters, outputs, objective, to_sum)
    metadata = {"source": "xgboost", "objective": objective, "version": ".".join(map(str, version.tolist()))}
    if "feature_names" in learner:
        metadata["feature_names"] = json.dumps([str(entry) for entry in learner.list("feature_names")])
    booster = learner.object("gradient_booster")
    kind = booster.text("name")
    if kind == "gblinear":
        return _linear(booster.object("model"), features, base, Linear(name, base, base, transform, None, metadata))
    if kind not in ("gbtree", "dart"):
        raise ConversionError(f"XGBoost booster {kind!r} is not supported; supported: gbtree, dart, gblinear")
    model = (booster.object("gbtree") if kind == "dart" else booster).object("model")
    entries = model.list("trees")
    groups = model.integers("tree_info", len(entries))
    weights = booster.numbers("weight_drop", len(entries)) if kind == "dart" else np.ones(len(entries))
    trees = tuple(
        parse_tree(entry, f"trees[{number}]", outputs, int(groups[number]), float(weights[number]))
        for number, entry in enumerate(entries)
    )
    return Ensemble(name, features, trees, base, transform=transform, metadata=metadata)


def _linear(model: Fields, features: int, base: Array, linear: Linear) -> Linear:
    outputs = len(base)
    weights = model.singles("weights", (features + 1) * outputs).reshape(features + 1, outputs)
    if not np.isfinite(weights).all():
        raise model.bad("weights", "finite numbers")
    # Unlike the tree boosters, this one takes the first class's base score for all of them.
    return replace(linear, weight=weights[:-1], bias=weights[-1] + base[0])


def _base(parameters: Fields, outputs: int, objective: str, to_sum: Callable[[Array], Array]) -> Array:
    """Start of the sums: a number, a text of one, or (since 3.1) a text of a list, in terms of predictions."""
    stored: Any = parameters.value.get("base_score")
    try:
        listed = json.loads(stored) if isinstance(stored, str) and stored.lstrip().startswith("[") else [stored]
        score = np.array([float(entry) for entry in listed], np.float64)
    except (TypeError, ValueError, RecursionError):
        raise parameters.bad("base_score", "a number or a list of numbers") from None
    if len(score) not in (1, outputs):
        raise parameters.bad("base_score", f"1 or {outputs} numbers")
    with np.errstate(all="ignore"):
        sums = to_sum(score.astype(np.float32)).astype(np.float32)
    if np.isnan(sums).any():
        raise ConversionError(f"base_score {stored} is out of range for objective {objective!r}; the model is damaged")
    return np.ascontiguousarray(np.broadcast_to(sums, outputs))


def _from_object(source: Any) -> tuple[Any, float | None]:
    """Document and further missing value of a booster or an estimator of the xgboost package."""
    missing: float | None = None
    try:
        booster = source
        if hasattr(source, "get_booster"):
            booster = source.get_booster()
            given = float(source.missing)
            missing = None if np.isnan(given) else given
            best = booster.attr("best_iteration")
            if best is not None and source.booster != "gblinear":
                booster = booster[: int(best) + 1]
        raw = bytes(booster.save_raw("ubj"))
    except Exception as error:  # of the other package: an estimator that is not fitted, or anything else
        raise ConversionError(
            f"expected an XGBoost model file, Booster or fitted estimator, got {type(source).__name__}: {error}"
        ) from error
    return parse_model(raw), missing
