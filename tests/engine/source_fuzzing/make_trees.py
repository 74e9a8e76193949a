"""Train the small tree models in ``data``: ``python make_trees.py`` writes them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"

Array = NDArray[Any]


def rows() -> tuple[Array, Array]:
    """Four features: two normal ones with gaps, one of zeros and numbers, one of categories."""
    random = np.random.default_rng(0)
    features = random.standard_normal((200, 4))
    features[random.random((200, 4)) < 0.1] = np.nan
    features[:, 2] = np.where(random.random(200) < 0.5, 0.0, features[:, 2])
    features[:, 3] = random.integers(0, 9, 200)
    return features, np.nan_to_num(features[:, 0]) + np.where(features[:, 3] % 3 == 0, 1, -1)


LIGHTGBM: dict[str, tuple[dict[str, Any], Any]] = {
    "binary": ({"objective": "binary", "max_cat_to_onehot": 1, "zero_as_missing": True}, lambda y: y > 0.3),
    "classes": ({"objective": "multiclass", "num_class": 3}, lambda y: np.digitize(y, [-0.5, 0.5])),
    "linear": ({"objective": "regression", "linear_tree": True}, lambda y: y),
    "forest": ({"objective": "poisson", "boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}, np.abs),
}
XGBOOST: dict[str, tuple[dict[str, Any], Any]] = {
    "binary": ({"objective": "binary:logistic", "max_cat_to_onehot": 1}, lambda y: y > 0.3),
    "classes": ({"objective": "multi:softprob", "num_class": 3}, lambda y: np.digitize(y, [-0.5, 0.5])),
    "dart": ({"booster": "dart", "rate_drop": 0.4}, lambda y: y),
    "targets": ({"multi_strategy": "multi_output_tree", "tree_method": "hist"}, lambda y: np.stack([y, -y], axis=1)),
    "linear": ({"booster": "gblinear", "objective": "reg:squarederror"}, lambda y: y),
}


def main() -> None:
    """Write every file."""
    features, target = rows()
    for name, (parameters, labels) in LIGHTGBM.items():
        settings = {"num_leaves": 5, "min_data_in_leaf": 5, "min_data_per_group": 5, "verbose": -1, "num_threads": 1}
        data = lightgbm.Dataset(features, labels(target), categorical_feature=[3])
        booster = lightgbm.train({**settings, "seed": 1, **parameters}, data, 2)
        (DATA / f"lightgbm_{name}.txt").write_text(booster.model_to_string())
        (DATA / f"lightgbm_{name}.json").write_text(json.dumps(booster.dump_model(), separators=(",", ":")))
    for name, (parameters, labels) in XGBOOST.items():
        categorical = name in ("binary", "dart")
        matrix = xgboost.DMatrix(
            features,
            labels(target),
            feature_types=[*"qqq", "c"] if categorical else None,
            enable_categorical=categorical,
        )
        booster = xgboost.train({"nthread": 1, "verbosity": 0, "max_depth": 3, "seed": 3, **parameters}, matrix, 2)
        for form in ("json", "ubj"):
            booster.save_model(DATA / f"xgboost_{name}.{form}")


if __name__ == "__main__":
    main()
