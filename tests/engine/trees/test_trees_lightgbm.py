"""Models that LightGBM trained, against LightGBM's own predictions: text, JSON, boosters and estimators."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees import import_lightgbm
from rerank_engine.importers.trees.lightgbm import objective_transform
from rerank_engine.reference import evaluate

Array = NDArray[Any]
COUNTS = (0, 1, 7, 200)


def data(seed: int = 0) -> tuple[Array, Array]:
    """Five features: normal ones with gaps, one of mostly zeros, categories."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((600, 5))
    features[random.random((600, 5)) < 0.1] = np.nan
    features[:, 2] = np.where(random.random(600) < 0.6, 0.0, features[:, 2])
    features[:, 3] = random.integers(0, 50, 600)
    features[:, 4] = random.integers(0, 6, 600)
    target = np.nan_to_num(features[:, 0]) * np.where(features[:, 3] % 3 == 0, 1, -1) + (features[:, 4] == 2)
    return features, target + np.nan_to_num(features[:, 2])


def train(
    parameters: dict[str, Any], labels: Callable[[Array], Array] = lambda y: y, rounds: int = 12, **more: Any
) -> lightgbm.Booster:
    features, target = data()
    settings = {"num_leaves": 15, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1, "seed": 1, **parameters}
    return lightgbm.train(settings, lightgbm.Dataset(features, labels(target), **more), rounds)


def compare(booster: lightgbm.Booster, source: Any, run: Any, rows: Any, outputs: Any = ("raw", "prediction")) -> None:
    """Raw sums must have the very bits, predictions those of another exponential function."""
    for output in outputs:
        graph = import_lightgbm(source, output=output)
        for count in COUNTS:
            features = rows(count, booster.num_feature(), seed=count)
            found = run(graph, {"features": features})["score"]
            assert found.dtype == np.float64
            if count == 0:
                assert found.shape[0] == 0
                continue
            expected = np.asarray(booster.predict(features, raw_score=output == "raw", num_threads=1))
            assert found.shape == expected.shape
            if output == "raw":
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({"objective": "regression"}, lambda y: y),
        ({"objective": "regression", "reg_sqrt": True}, lambda y: y),
        ({"objective": "regression_l1"}, lambda y: y),
        ({"objective": "huber"}, lambda y: y),
        ({"objective": "fair"}, lambda y: y),
        ({"objective": "quantile", "alpha": 0.7}, lambda y: y),
        ({"objective": "mape"}, lambda y: y),
        ({"objective": "poisson"}, np.abs),
        ({"objective": "gamma"}, lambda y: np.abs(y) + 0.1),
        ({"objective": "tweedie"}, np.abs),
        ({"objective": "binary", "sigmoid": 2.5}, lambda y: y > 0.3),
        ({"objective": "cross_entropy"}, lambda y: (y > 0.3) * 0.8 + 0.1),
        ({"objective": "cross_entropy_lambda"}, lambda y: (y > 0.3) * 0.8 + 0.1),
        ({"objective": "multiclass", "num_class": 3}, lambda y: np.digitize(y, [-0.5, 0.5])),
        ({"objective": "multiclassova", "num_class": 3}, lambda y: np.digitize(y, [-0.5, 0.5])),
    ],
    ids=lambda value: value["objective"] + "_sqrt" * ("reg_sqrt" in value) if isinstance(value, dict) else "",
)
def test_every_objective(parameters: dict[str, Any], labels: Any, run: Any, rows: Any) -> None:
    booster = train(parameters, labels)
    compare(booster, booster, run, rows)


@pytest.mark.parametrize("objective", ["lambdarank", "rank_xendcg"])
def test_rankers(objective: str, run: Any, rows: Any) -> None:
    booster = train({"objective": objective}, lambda y: np.digitize(y, [-0.5, 0.5]), group=[20] * 30)
    compare(booster, booster, run, rows)


@pytest.mark.parametrize(
    ("parameters", "more"),
    [
        ({"max_cat_to_onehot": 1, "min_data_per_group": 5, "cat_smooth": 1.0}, {"categorical_feature": [3, 4]}),
        ({"max_cat_to_onehot": 100, "min_data_per_group": 5}, {"categorical_feature": [3, 4]}),
        ({"zero_as_missing": True}, {}),
        ({"use_missing": False}, {}),
        ({"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}, {}),
        ({"boosting": "dart", "drop_rate": 0.5}, {}),
        ({"boosting": "goss"}, {}),
        ({"linear_tree": True, "num_leaves": 6}, {}),
        ({"linear_tree": True}, {"categorical_feature": [4]}),
        ({"num_leaves": 200, "min_data_in_leaf": 1}, {}),
        ({"min_data_in_leaf": 100000}, {}),
        ({"objective": "none"}, {}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_every_kind_of_tree(
    parameters: dict[str, Any], more: dict[str, Any], form: str, run: Any, rows: Any, tmp_path: Path
) -> None:
    if parameters.get("objective") == "none":
        labels = data()[1]
        parameters = {"objective": lambda scores, _: (scores - labels, np.ones_like(scores))}
    booster = train({"objective": "binary", **parameters}, lambda y: y > 0.3, **more)
    path = tmp_path / "model"
    if form == "text":
        booster.save_model(path)
    else:
        path.write_text(json.dumps(booster.dump_model()))
    compare(booster, path, run, rows, ["prediction" if "boosting" in parameters else "raw"])


def test_float64_features_are_routed_as_float64(run: Any) -> None:
    booster = train({"objective": "regression"}, categorical_feature=[3, 4], params=None)
    graph = import_lightgbm(booster, features_dtype="float64")
    features, _ = data(3)
    thresholds = [
        float(line) for tree in booster.dump_model()["tree_info"] for line in _thresholds(tree["tree_structure"])
    ]
    random = np.random.default_rng(0)
    pool = np.array(thresholds)
    near = random.random(features.shape) < 0.3
    features[near] = random.choice(np.concatenate([pool, np.nextafter(pool, 9), np.nextafter(pool, -9)]), near.sum())
    np.testing.assert_array_equal(run(graph, {"features": features})["score"], booster.predict(features))
    narrow = features.astype(np.float32)
    found = evaluate(import_lightgbm(booster), {"features": narrow})["score"]
    np.testing.assert_array_equal(found, booster.predict(narrow))
    assert (found != booster.predict(features)).any(), "the dtypes should differ near the thresholds"


def _thresholds(node: dict[str, Any]) -> list[float]:
    if "threshold" not in node:
        return []
    own = [node["threshold"]] if node["decision_type"] == "<=" else []
    return [*own, *_thresholds(node["left_child"]), *_thresholds(node["right_child"])]


@pytest.mark.parametrize("kind", ["LGBMRegressor", "LGBMClassifier", "LGBMRanker"])
def test_estimators(kind: str, run: Any, rows: Any) -> None:
    features, target = data()
    model = getattr(lightgbm, kind)(n_estimators=9, num_leaves=7, n_jobs=1, verbose=-1)
    fit = {"group": [20] * 30} if kind == "LGBMRanker" else {}
    model.fit(features, target if kind == "LGBMRegressor" else (target > 0.3).astype(int), **fit)
    compare(model.booster_, model, run, rows)


def test_the_best_iteration_of_a_booster_counts(rows: Any) -> None:
    booster = train({"objective": "regression"}, rounds=20)
    booster.best_iteration = 4
    features = rows(50, 5)
    found = evaluate(import_lightgbm(booster), {"features": features})["score"]
    np.testing.assert_array_equal(found, booster.predict(features, num_iteration=4))


def test_categories_of_a_data_frame_travel_in_the_metadata() -> None:
    booster = train({"objective": "regression"}, rounds=1)
    text = booster.model_to_string().replace("pandas_categorical:null", 'pandas_categorical:[["a", "b"]]')
    assert import_lightgbm(text).metadata["pandas_categorical"] == '[["a", "b"]]'


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text() -> str:
    booster = train({"objective": "binary", "linear_tree": True}, lambda y: y > 0.3, 3, categorical_feature=[3])
    return str(booster.model_to_string())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tree\n", "trie\n", "starts with the line 'tree'"),
        ("version=v4", "version=v9", "version 'v9' is not supported"),
        ("end of trees", "end of trees"[:-1], "cut off"),
        ("objective=binary sigmoid:1", "objective=novel", "objective 'novel' is not known"),
        ("objective=binary sigmoid:1", "objective=binary sigmoid:x", "must be a positive number"),
        ("objective=binary sigmoid:1", "objective=multiclass num_class:3", "one tree an iteration"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=2", "iteration is incomplete"),
        ("max_feature_idx=4", "max_feature_idx=1", "feature outside 0 to 1"),
        ("max_feature_idx=4", "", "has no 'max_feature_idx'"),
        ("left_child=1", "left_child=77", "no split below"),
        ("left_child=1", "left_child=0", "circle"),
        ("decision_type=", "decision_type=99 ", "entries"),
        ("threshold=", "threshold=x ", "entries"),
        ("leaf_value=", "leaf_value=nan ", "entries"),
        ("num_leaves=", "num_leaves=9", "expected"),
        ("Tree=1", "Treetop", "twice"),
    ],
)
def test_damaged_text_is_refused_by_name(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(ConversionError, match=message):
        import_lightgbm(text.replace(old, new, 1).encode())


def test_an_unknown_objective_does_not_matter_for_raw_sums(text: str) -> None:
    changed = text.replace("objective=binary sigmoid:1", "objective=novel")
    assert import_lightgbm(changed, output="raw").outputs == ["score"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"\xff\xfe\x00", "is no text"),
        ({"a": 1}, "no 'tree_info'"),
        ({"tree_info": [{}], "num_tree_per_iteration": 1, "max_feature_idx": 1}, "tree_structure"),
        (b'{"tree_info": ', "no readable JSON"),
        (b"[" * 100_000, "starts with the line"),
        (b'{"tree_info":' + b"[" * 100_000, "no readable JSON"),
        ("no/such/file.txt", "cannot read"),
        (object(), "got object"),
        (lightgbm.LGBMRanker(), "got LGBMRanker"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_model_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        import_lightgbm(source)


def test_unknown_options_are_refused(text: str) -> None:
    with pytest.raises(ConversionError, match="output 'leaf' is not known"):
        import_lightgbm(text, output="leaf")
    with pytest.raises(ConversionError, match="float16"):
        import_lightgbm(text, features_dtype="float16")


def test_every_objective_has_a_transform() -> None:
    assert objective_transform("regression sqrt", 1).kind == "signed_square"
    assert objective_transform("multiclass num_class:3", 3).kind == "softmax"
    assert objective_transform("", 1).kind == "identity"
