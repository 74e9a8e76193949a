"""Models that XGBoost trained, against XGBoost's own predictions: JSON, UBJSON, boosters and estimators."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees import import_xgboost
from rerank_engine.importers.trees.xgboost import describe
from rerank_engine.reference import evaluate

Array = NDArray[Any]
COUNTS = (0, 1, 7, 200)
TYPES = ["q"] * 4 + ["c"]


def data(seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    features = random.standard_normal((500, 5)).astype(np.float32)
    features[random.random((500, 5)) < 0.1] = np.nan
    features[:, 4] = random.integers(0, 50, 500)
    target = np.nan_to_num(features[:, 0]) * np.where(features[:, 4] % 3 == 0, 1, -1)
    return features, target + np.nan_to_num(features[:, 1]) ** 2


def train(parameters: dict[str, Any], labels: Any = None, rounds: int = 9, **more: Any) -> xgboost.Booster:
    features, target = data()
    categorical = parameters.pop("categorical", False)
    matrix = xgboost.DMatrix(
        features,
        None if labels is None and "label_lower_bound" in more else target if labels is None else labels(target),
        feature_types=TYPES if categorical else None,
        enable_categorical=categorical,
        **more,
    )
    return xgboost.train({"nthread": 1, "verbosity": 0, "max_depth": 4, "seed": 3, **parameters}, matrix, rounds)


def compare(
    booster: xgboost.Booster, source: Any, run: Any, rows: Any, exact: bool = True, raw_only: bool = False
) -> None:
    """Raw sums must have the very bits, predictions those of another exponential function."""
    categorical = booster.feature_types is not None
    for output in ("raw",) if raw_only else ("raw", "prediction"):
        graph = import_xgboost(source, output=output)
        for count in COUNTS:
            features = rows(count, 5, seed=count, infinite=False)
            found = run(graph, {"features": features})["score"]
            assert found.dtype == np.float32
            if count == 0:
                assert found.shape[0] == 0
                continue
            matrix = xgboost.DMatrix(
                features, feature_types=TYPES if categorical else None, enable_categorical=categorical
            )
            expected = booster.predict(matrix, output_margin=output == "raw")
            assert found.shape == expected.shape
            if output == "raw" and exact:
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("objective", "labels"),
    [
        ("reg:squarederror", lambda y: y),
        ("reg:squaredlogerror", np.abs),
        ("reg:pseudohubererror", lambda y: y),
        ("reg:absoluteerror", lambda y: y),
        ("reg:logistic", lambda y: (y > 0.5) * 0.8 + 0.1),
        ("binary:logistic", lambda y: y > 0.5),
        ("binary:logitraw", lambda y: y > 0.5),
        ("binary:hinge", lambda y: y > 0.5),
        ("count:poisson", lambda y: np.round(np.abs(y))),
        ("reg:gamma", lambda y: np.abs(y) + 0.1),
        ("reg:tweedie", np.abs),
        ("survival:cox", lambda y: np.abs(y) + 0.1),
    ],
)
def test_objectives(objective: str, labels: Any, run: Any, rows: Any) -> None:
    booster = train({"objective": objective}, labels)
    # The logarithm of the base score may differ from the C library's in its last bit.
    compare(booster, booster, run, rows, exact=not objective.startswith(("reg:gam", "reg:twe")))


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_classes(objective: str, run: Any, rows: Any) -> None:
    booster = train({"objective": objective, "num_class": 3}, lambda y: np.digitize(y, [0, 1]))
    compare(booster, booster, run, rows)


@pytest.mark.parametrize("objective", ["rank:ndcg", "rank:pairwise", "rank:map"])
def test_rankers(objective: str, run: Any, rows: Any) -> None:
    booster = train({"objective": objective}, lambda y: y > 0.5, group=[20] * 25)
    compare(booster, booster, run, rows)


def test_survival_with_bounds(run: Any, rows: Any) -> None:
    bound = np.abs(data()[1]) + 0.1
    booster = train({"objective": "survival:aft"}, label_lower_bound=bound, label_upper_bound=bound + 1)
    compare(booster, booster, run, rows)


@pytest.mark.parametrize(
    "parameters",
    [
        {"categorical": True, "max_cat_to_onehot": 1},
        {"categorical": True, "max_cat_to_onehot": 100},
        {"booster": "dart", "rate_drop": 0.4},
        {"num_parallel_tree": 4, "subsample": 0.5},
        {"tree_method": "exact", "gamma": 3.0},
        {"tree_method": "approx"},
        {"grow_policy": "lossguide", "max_leaves": 20, "max_depth": 0, "tree_method": "hist"},
        {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]},
        {"base_score": 0.25},
        {"max_depth": 12, "min_child_weight": 0.0},
    ],
    ids=lambda value: "-".join(value),
)
@pytest.mark.parametrize("form", ["json", "ubj"])
def test_every_kind_of_tree(parameters: dict[str, Any], form: str, run: Any, rows: Any, tmp_path: Path) -> None:
    booster = train(dict(parameters))
    path = tmp_path / f"model.{form}"
    booster.save_model(path)
    compare(booster, path, run, rows, exact="dart" not in parameters.values(), raw_only=True)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_several_targets(strategy: str, run: Any, rows: Any) -> None:
    booster = train({"multi_strategy": strategy, "tree_method": "hist"}, lambda y: np.stack([y, y**2, -y], axis=1))
    compare(booster, booster, run, rows)


@pytest.mark.parametrize("classes", [0, 3])
def test_linear_booster(classes: int, run: Any) -> None:
    several = {"objective": "multi:softprob", "num_class": classes}
    booster = train(
        {"booster": "gblinear", **(several if classes else {"objective": "binary:logistic"})},
        lambda y: np.digitize(y, [0.5, 1.5]) if classes else y > 0.5,
    )
    features, _ = data(4)
    for output in ("raw", "prediction"):
        found = run(import_xgboost(booster, output=output), {"features": features})["score"]
        expected = booster.predict(xgboost.DMatrix(features), output_margin=output == "raw")
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_alike(label: int, run: Any, rows: Any) -> None:
    booster = train({"objective": "binary:logistic"}, lambda y: np.full(len(y), label))
    compare(booster, booster, run, rows)


@pytest.mark.parametrize("kind", ["XGBRegressor", "XGBClassifier", "XGBRanker", "XGBRFRegressor"])
def test_estimators(kind: str, run: Any, rows: Any) -> None:
    features, target = data()
    model = getattr(xgboost, kind)(n_estimators=6, max_depth=3, n_jobs=1)
    fit = {"group": [20] * 25} if kind == "XGBRanker" else {}
    model.fit(features, target if "Regressor" in kind else (target > 0.5).astype(int), **fit)
    compare(model.get_booster(), model, run, rows)


def test_an_estimator_keeps_its_best_iteration_and_its_missing_value(run: Any) -> None:
    features, target = data()
    filled = np.where(np.isnan(features), np.float32(-999), features)
    model = xgboost.XGBRegressor(n_estimators=40, n_jobs=1, missing=-999, early_stopping_rounds=2, learning_rate=0.9)
    model.fit(filled[:250], target[:250], eval_set=[(filled[250:], target[250:])], verbose=False)
    assert model.best_iteration < model.get_booster().num_boosted_rounds() - 1
    found = run(import_xgboost(model), {"features": filled})["score"]
    np.testing.assert_array_equal(found, model.predict(filled))


# --- older versions and refusals ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    booster = train({"categorical": True, "objective": "binary:logistic"}, lambda y: y > 0.5, 2)
    return dict(json.loads(bytes(booster.save_raw("json"))))


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    place: Any = copy
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return dict(copy)


PARAMETERS = "learner.learner_model_param"
TREE = "learner.gradient_booster.model.trees.0"


@pytest.mark.parametrize("stored", ["5.5E-1", "[5.5E-1]", 0.55, "0.55"])
def test_base_score_in_the_forms_of_all_versions(document: dict[str, Any], stored: Any) -> None:
    ensemble = describe(changed(document, f"{PARAMETERS}.base_score", stored))
    np.testing.assert_allclose(ensemble.base, [np.log(0.55 / 0.45)], rtol=1e-6)  # type: ignore[union-attr]


def test_a_model_of_version_1_without_newer_fields(rows: Any) -> None:
    booster = train({"objective": "binary:logistic", "base_score": 0.5}, lambda y: y > 0.5)
    old = json.loads(bytes(booster.save_raw("json")))
    model = old["learner"]["gradient_booster"]["model"]
    old["version"] = [1, 0, 2]
    old["learner"]["learner_model_param"] = {"base_score": "5E-1", "num_class": "0", "num_feature": "5"}
    del model["iteration_indptr"], model["cats"]
    for tree in model["trees"]:
        for name in ("split_type", "categories", "categories_nodes", "categories_segments", "categories_sizes"):
            del tree[name]
        tree["default_left"] = [bool(entry) for entry in tree["default_left"]]
    features = rows(100, 5, infinite=False)
    found = evaluate(import_xgboost(json.dumps(old).encode(), output="raw"), {"features": features})["score"]
    np.testing.assert_array_equal(found, booster.predict(xgboost.DMatrix(features), output_margin=True))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("learner", None, "no 'learner'"),
        ("version", [0, 9, 0], "version"),
        ("learner.objective.name", "reg:novel", "objective 'reg:novel' is not supported"),
        ("learner.objective.name", "multi:softprob", "with one class"),
        ("learner.gradient_booster.name", "gbforest", "booster 'gbforest' is not supported"),
        (f"{PARAMETERS}.num_feature", "0", "num_feature"),
        (f"{PARAMETERS}.num_feature", "2", "feature outside"),
        (f"{PARAMETERS}.base_score", "[1, 2]", "base_score"),
        (f"{PARAMETERS}.base_score", "x", "base_score"),
        (f"{PARAMETERS}.base_score", "nan", "out of range"),
        ("learner.gradient_booster.model.tree_info", [0], "tree_info"),
        ("learner.gradient_booster.model.tree_info", [0, 7], "output 7 of 1"),
        (f"{TREE}.tree_param.num_nodes", "3", "left_children"),
        (f"{TREE}.left_children", None, "left_children is missing"),
        (f"{TREE}.left_children", "text", "left_children"),
        (f"{TREE}.split_indices", [0.5], "split_indices"),
        (f"{TREE}.categories", [10**9], "lie outside"),
        (f"{TREE}.categories_nodes", [], "categories_segments"),
        (f"{TREE}.tree_param.size_leaf_vector", "5", "leaves of 5 values for 1 outputs"),
    ],
)
def test_damaged_models_are_refused_by_name(document: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        import_xgboost(json.dumps(changed(document, path, value)).encode())


def test_raw_logits_of_old_versions_are_refused(document: dict[str, Any]) -> None:
    old = changed(changed(document, "learner.objective.name", "binary:logitraw"), "version", [1, 7, 6])
    with pytest.raises(ConversionError, match="differs between versions"):
        import_xgboost(json.dumps(old).encode())


def test_a_circle_is_refused(document: dict[str, Any]) -> None:
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    children = list(tree["left_children"])
    children[children[0]] = 0
    with pytest.raises(ConversionError, match="circle"):
        import_xgboost(json.dumps(changed(document, f"{TREE}.left_children", children)).encode())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"binf\x00\x00", "old binary format"),
        (b"PK\x03\x04", "starts with"),
        (b"", "starts with"),
        (b'{"learner": ', "no readable JSON"),
        (b"{L\x00", "UBJSON"),
        ("no/such/file.json", "cannot read"),
        (object(), "got object"),
        (xgboost.XGBRegressor(), "got XGBRegressor"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_model_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        import_xgboost(source)


@pytest.mark.parametrize("kind", ["gbtree", "dart", "gblinear", "vectors"])
def test_numbers_beyond_float32_are_infinite_quietly_or_refused(kind: str) -> None:
    """Every list of numbers in turn; whatever comes of it, no warning comes with it."""
    parameters: dict[str, Any] = {"booster": kind} if kind != "vectors" else {"multi_strategy": "multi_output_tree"}
    labels = (lambda y: np.stack([y, -y], axis=1)) if kind == "vectors" else (lambda y: y)
    document = json.loads(bytes(train(parameters, labels, rounds=2).save_raw("json")))
    changes = 0

    def walk(value: Any) -> None:
        nonlocal changes
        entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, entry in entries:
            if isinstance(entry, float):
                for huge in (1e300, -1e300):
                    value[key] = huge
                    changes += 1
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        with contextlib.suppress(ConversionError):
                            import_xgboost(json.dumps(document).encode())
                value[key] = entry
                if isinstance(value, list):
                    break  # One number of a list stands for the others.
            elif isinstance(entry, dict | list):
                walk(entry)

    walk(document)
    assert changes > 1
