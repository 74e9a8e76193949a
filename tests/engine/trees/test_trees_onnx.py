"""Score operators of ai.onnx.ml against onnxruntime: scikit-learn through skl2onnx, and every mode by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import skl2onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn import ensemble, impute, linear_model, pipeline, preprocessing, tree
from threadpoolctl import threadpool_limits

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.onnx import import_onnx

Array = NDArray[Any]
DOMAIN = "ai.onnx.ml"


def runtime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def compare(model: onnx.ModelProto, feeds: Mapping[str, Array], run: Any, tolerance: float = 2e-6) -> dict[str, Array]:
    found, expected = run(import_onnx(model), feeds), runtime(model, feeds)
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape), name
        np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)
    return dict(found)


# --- scikit-learn ------------------------------------------------------------------------------------------------


def data() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    features = random.standard_normal((300, 5)).astype(np.float32)
    return features, features[:, 0] + features[:, 1] ** 2


@pytest.fixture
def whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let skl2onnx write lists of truth values, which newer versions of onnx refuse."""
    from skl2onnx.common import _container

    make = _container.make_node

    def make_node(*arguments: Any, **attributes: Any) -> onnx.NodeProto:
        for name, value in attributes.items():
            if isinstance(value, list) and any(isinstance(entry, bool) for entry in value):
                attributes[name] = [int(entry) for entry in value]
        return make(*arguments, **attributes)

    monkeypatch.setattr(_container, "make_node", make_node)


REGRESSORS = {
    "linear": linear_model.LinearRegression(),
    "tree": tree.DecisionTreeRegressor(max_depth=6),
    "forest": ensemble.RandomForestRegressor(7, max_depth=5, random_state=0),
    "boosting": ensemble.GradientBoostingRegressor(n_estimators=15, random_state=0),
    "histogram": ensemble.HistGradientBoostingRegressor(max_iter=4, max_leaf_nodes=12),
    "scaled": pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.Ridge()),
    "normalized": pipeline.make_pipeline(
        preprocessing.Normalizer(), preprocessing.Binarizer(threshold=0.1), linear_model.LinearRegression()
    ),
}
CLASSIFIERS = {
    "logistic": linear_model.LogisticRegression(),
    "tree": tree.DecisionTreeClassifier(max_depth=6),
    "forest": ensemble.RandomForestClassifier(7, max_depth=5, random_state=0),
    "extra": ensemble.ExtraTreesClassifier(5, max_depth=4, random_state=0),
    "boosting": ensemble.GradientBoostingClassifier(n_estimators=15, random_state=0),
    "histogram": ensemble.HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=12),
    "imputed": pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.StandardScaler(), linear_model.LogisticRegression()
    ),
}


def odd(features: Array, missing: bool) -> Array:
    random = np.random.default_rng(1)
    rows = features[:200].copy()
    rows[random.random(rows.shape) < 0.1] *= 1e4
    if missing:
        rows[random.random(rows.shape) < 0.1] = np.nan
    return rows


@pytest.mark.usefixtures("whole_numbers")
@pytest.mark.parametrize("kind", list(REGRESSORS))
def test_regressors(kind: str, run: Any) -> None:
    features, target = data()
    with threadpool_limits(1):
        model = REGRESSORS[kind].fit(features, target)
    converted = skl2onnx.to_onnx(model, features[:1])
    rows = odd(features, kind == "histogram")
    for count in (0, 1, 7, 200):
        found = run(import_onnx(converted), {"X": rows[:count]})["variable"]
        assert found.shape == (count, 1)
        if count:
            expected = model.predict(rows[:count])
            np.testing.assert_allclose(found[:, 0], expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())


@pytest.mark.usefixtures("whole_numbers")
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", list(CLASSIFIERS))
def test_classifiers(kind: str, classes: int, run: Any) -> None:
    features, target = data()
    labels = np.digitize(target, [1.0] if classes == 2 else [0.0, 1.0, 2.0]) * 3 + 10
    with threadpool_limits(1):
        model = CLASSIFIERS[kind].fit(features, labels)
    converted = skl2onnx.to_onnx(model, features[:1], options={"zipmap": False})
    rows = odd(features, kind in ("histogram", "imputed"))
    for count in (0, 1, 7, 200):
        found = run(import_onnx(converted), {"X": rows[:count]})
        assert found["probabilities"].shape == (count, classes)
        if count:
            np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows[:count]), rtol=3e-6, atol=3e-7)
            np.testing.assert_array_equal(found["label"], model.predict(rows[:count]))


def test_several_targets(run: Any) -> None:
    features, target = data()
    model = ensemble.RandomForestRegressor(5, max_depth=4, random_state=0).fit(features, np.stack([target, -target], 1))
    compare(skl2onnx.to_onnx(model, features[:1]), {"X": features}, run)


def test_text_labels_and_dictionaries_are_refused_with_the_way_out() -> None:
    features, target = data()
    texts = np.where(target > 1, "yes", "no")
    model = linear_model.LogisticRegression().fit(features, texts)
    with pytest.raises(ConversionError, match="output 'label': its class labels are texts"):
        import_onnx(skl2onnx.to_onnx(model, features[:1], options={"zipmap": False}))
    model.fit(features, (target > 1).astype(int))
    with pytest.raises(UnsupportedOperatorError, match="zipmap=False"):
        import_onnx(skl2onnx.to_onnx(model, features[:1]))


# --- by hand -----------------------------------------------------------------------------------------------------


def _output(name: str, element: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, ["N"] if name == "label" else ["N", "K"])


def model_of(node: onnx.NodeProto, outputs: Mapping[str, int], columns: int, kind: int = TensorProto.FLOAT) -> Any:
    version = 5 if node.op_type == "TreeEnsemble" else 3
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("X", kind, ["N", columns])],
        [_output(name, element) for name, element in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


ROWS = np.array([[-1], [1], [np.nan], [0], [0.25], [np.inf], [-np.inf], [-0.0]], np.float32)


def stump(operator: str = "TreeEnsembleRegressor", **changes: Any) -> onnx.NodeProto:
    attributes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.25, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    if operator == "TreeEnsembleRegressor":
        attributes |= {
            "n_targets": 1,
            "target_treeids": [0, 0],
            "target_nodeids": [1, 2],
            "target_ids": [0, 0],
            "target_weights": [1.5, -2.5],
        }
    outputs = ["y"] if operator == "TreeEnsembleRegressor" else ["label", "scores"]
    return helper.make_node(operator, ["X"], outputs, domain=DOMAIN, **{**attributes, **changes})


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("track", [0, 1])
def test_modes_and_missing_values(mode: str, track: int, run: Any) -> None:
    node = stump(nodes_modes=[f"BRANCH_{mode}", "LEAF", "LEAF"], nodes_missing_value_tracks_true=[track, 0, 0])
    compare(model_of(node, {"y": TensorProto.FLOAT}, 1), {"X": ROWS}, run, 0)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("base", [None, [0.5]])
def test_aggregates(aggregate: str, base: list[float] | None, run: Any) -> None:
    two: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0] * 6,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        "nodes_values": [0.25, 0, 0, 0.0, 0, 0],
        "nodes_truenodeids": [1, 0, 0] * 2,
        "nodes_falsenodeids": [2, 0, 0] * 2,
        "target_treeids": [0, 0, 1, 1],
        "target_nodeids": [1, 2, 1, 2],
        "target_ids": [0] * 4,
        "target_weights": [1.0, -2.0, 4.0, 0.5],
    }
    if base is not None:
        two["base_values"] = base
    node = stump(**two, aggregate_function=aggregate)
    compare(model_of(node, {"y": TensorProto.FLOAT}, 1), {"X": ROWS}, run, 0)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_post_transforms(transform: str, run: Any) -> None:
    votes: dict[str, Any] = {
        "target_treeids": [0] * 5,
        "target_nodeids": [1, 1, 2, 2, 2],
        "target_ids": [0, 1, 0, 1, 2],
        "target_weights": [1.5, -2.5, 0.25, 3.0, 1e-9],
    }
    node = stump(**votes, n_targets=3, post_transform=transform)
    compare(model_of(node, {"y": TensorProto.FLOAT}, 1), {"X": ROWS}, run)


def test_float64_features_and_thresholds(run: Any) -> None:
    thresholds = numpy_helper.from_array(np.array([0.1, 0, 0]), "t")
    weights = numpy_helper.from_array(np.array([1.5, -2.5]), "w")
    node = stump(nodes_values_as_tensor=thresholds, target_weights_as_tensor=weights)
    for entry in [entry for entry in node.attribute if entry.name in ("nodes_values", "target_weights")]:
        node.attribute.remove(entry)
    rows = np.array([[0.1], [np.nextafter(0.1, 1)], [np.float32(0.1)], [np.nan]])
    compare(model_of(node, {"y": TensorProto.FLOAT}, 1, TensorProto.DOUBLE), {"X": rows}, run, 0)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_whole_features_become_float32(kind: int, run: Any) -> None:
    rows = np.array([[-3], [0], [1], [2**24 + 1]], helper.tensor_dtype_to_np_dtype(kind))
    node = stump(nodes_values=[2.0**24, 0.0, 0.0])
    whole = run(import_onnx(model_of(node, {"y": TensorProto.FLOAT}, 1, kind)), {"X": rows})
    wanted = runtime(model_of(node, {"y": TensorProto.FLOAT}, 1), {"X": rows.astype(np.float32)})
    np.testing.assert_array_equal(whole["y"], wanted["y"])


@pytest.mark.parametrize("voted", [0, 1])
@pytest.mark.parametrize("weights", [[0.3, 0.8], [-0.3, 0.8], [-0.8, 0.3]])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_two_classes_of_which_one_has_votes(voted: int, weights: list[float], transform: str, run: Any) -> None:
    votes: dict[str, Any] = {
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [voted] * 2,
        "class_weights": weights,
    }
    node = stump("TreeEnsembleClassifier", **votes, classlabels_int64s=[3, 7], post_transform=transform)
    compare(model_of(node, {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}, 1), {"X": ROWS}, run)


def test_three_classes(run: Any) -> None:
    votes: dict[str, Any] = {
        "class_treeids": [0] * 6,
        "class_nodeids": [1, 1, 1, 2, 2, 2],
        "class_ids": [0, 1, 2] * 2,
        "class_weights": [-0.1, -0.5, -0.1, 0.1, 0.2, 0.9],
    }
    bases: list[dict[str, Any]] = [{}, {"base_values": [0.1, 0.0, 0.3]}]
    for base in bases:
        node = stump("TreeEnsembleClassifier", **votes, **base, classlabels_int64s=[30, 10, 20])
        compare(model_of(node, {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}, 1), {"X": ROWS}, run)


def newest(**changes: Any) -> onnx.NodeProto:
    """A root with a leaf on its true side and a membership split on the other."""

    def tensor(values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, dtype), "t")

    attributes: dict[str, Any] = {
        "tree_roots": [0],
        "nodes_splits": tensor([0.5, 0.0]),
        "nodes_modes": tensor([0, 6], np.uint8),
        "nodes_featureids": [0, 1],
        "nodes_truenodeids": [0, 1],
        "nodes_falsenodeids": [1, 2],
        "nodes_trueleafs": [1, 1],
        "nodes_falseleafs": [0, 1],
        "membership_values": tensor([1.0, 2.0, 30.0, np.nan]),
        "leaf_targetids": [0, 1, 0],
        "leaf_weights": tensor([5.0, 7.0, -2.0]),
        "n_targets": 2,
    }
    return helper.make_node("TreeEnsemble", ["X"], ["y"], domain=DOMAIN, **{**attributes, **changes})


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("track", [0, 1])
def test_the_newest_form(aggregate: int, track: int, run: Any) -> None:
    node = newest(aggregate_function=aggregate, nodes_missing_value_tracks_true=[track, track])
    values = [0.0, 0.5, 1.0, 2.0, 1.5, -1.0, 30.0, 31.0, np.nan]
    rows = np.array([[left, right] for left in values for right in values], np.float32)
    compare(model_of(node, {"y": TensorProto.FLOAT}, 2), {"X": rows}, run, 0)


def test_branches_of_the_newest_form_may_share_a_leaf(run: Any) -> None:
    model = model_of(newest(nodes_falsenodeids=[1, 0]), {"y": TensorProto.FLOAT}, 2)
    rows = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 2.5]], np.float32)
    assert run(import_onnx(model), {"X": rows})["y"].tolist() == [[5.0, 0.0], [0.0, 7.0], [5.0, 0.0]]


def test_members_may_be_any_number(run: Any) -> None:
    members = numpy_helper.from_array(np.array([0.1, -3.0, 2.5, np.nan], np.float32), "t")
    model = model_of(newest(membership_values=members), {"y": TensorProto.FLOAT}, 2)
    rows = np.array([[1, value] for value in (0.1, np.nextafter(np.float32(0.1), 1), -3, 2.5, 2, np.nan)], np.float32)
    found = run(import_onnx(model), {"X": rows})["y"]
    assert found.tolist() == [[0.0, 7.0] if member else [-2.0, 0.0] for member in (1, 0, 1, 1, 0, 0)]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_linear_classifiers(rows: int, transform: str, run: Any) -> None:
    node = helper.make_node(
        "LinearClassifier",
        ["X"],
        ["label", "scores"],
        domain=DOMAIN,
        coefficients=[1.0, -0.5][:rows],
        intercepts=[0.1, 0.2][:rows],
        classlabels_ints=[3, 7],
        post_transform=transform,
    )
    features = ROWS[np.isfinite(ROWS[:, 0])]
    compare(model_of(node, {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}, 1), {"X": features}, run)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizers(norm: str, run: Any) -> None:
    node = helper.make_node("Normalizer", ["X"], ["y"], domain=DOMAIN, norm=norm)
    rows = np.array([[1, -2, 0.5], [-1, -2, -3], [0, 0, 0], [0, -1, 0]], np.float32)
    compare(model_of(node, {"y": TensorProto.FLOAT}, 3), {"X": rows}, run)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Scaler", {"offset": [1.0, 0.5, -2.0], "scale": [2.0, 3.0, 4.0]}),
        ("Imputer", {"imputed_value_floats": [9.0], "replaced_value_float": 2.0}),
        ("Imputer", {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": float("nan")}),
        ("Binarizer", {"threshold": 1.5}),
        ("FeatureVectorizer", {"inputdimensions": [3]}),
        ("LinearRegressor", {"coefficients": [1.0] * 6, "targets": 2, "post_transform": "SOFTMAX"}),
        ("LabelEncoder", {"keys_floats": [2.0, 3.0], "values_int64s": [20, 30], "default_int64": -5}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_preparations(operator: str, attributes: dict[str, Any], run: Any) -> None:
    node = helper.make_node(operator, ["X"], ["y"], domain=DOMAIN, **attributes)
    element = TensorProto.INT64 if operator == "LabelEncoder" else TensorProto.FLOAT
    rows = np.array([[1, 2, 3], [np.nan, 2, -1]], np.float32)
    # onnxruntime's Binarizer refuses NaN.
    compare(
        model_of(node, {"y": element}, 3), {"X": rows[: 1 if operator in ("LinearRegressor", "Binarizer") else 2]}, run
    )


def test_features_are_taken_by_constant_indices(run: Any) -> None:
    nodes = [
        helper.make_node("Constant", [], ["i"], value=numpy_helper.from_array(np.array([2, 0], np.int64))),
        helper.make_node("ArrayFeatureExtractor", ["X", "i"], ["y"], domain=DOMAIN),
    ]
    model = model_of(nodes[1], {"y": TensorProto.FLOAT}, 3)
    model.graph.node.insert(0, nodes[0])
    compare(model, {"X": np.arange(6, dtype=np.float32).reshape(2, 3)}, run)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (stump(post_transform="LOGISTIC"), "of a single score"),
        (stump(post_transform="PROBIT"), "post_transform PROBIT"),
        (stump(nodes_modes=["BRANCH_NEAR", "LEAF", "LEAF"]), "node mode 'BRANCH_NEAR'"),
        (stump(nodes_truenodeids=[9, 0, 0]), "that its tree does not have"),
        (stump(nodes_falsenodeids=[0, 0, 0]), "circle"),
        (stump(nodes_nodeids=[0, 1, 1]), "same tree and node id"),
        (stump(nodes_featureids=[0, 0]), "differ in length"),
        (stump(nodes_featureids=[4, 0, 0]), "feature outside 0 to 0"),
        (stump(nodes_values=[float("nan"), 0.0, 0.0]), "threshold is NaN"),
        (stump(nodes_missing_value_tracks_true=[1]), "another length"),
        (stump(target_nodeids=[0, 2]), "no leaf"),
        (stump(target_ids=[0, 3]), "output outside 0 to 0"),
        (stump(target_weights=[1.0]), "differ in length"),
        (stump(n_targets=0), "n_targets=0"),
        (stump(n_targets=2**31), "n_targets"),
        (stump(n_targets=2, base_values=[1.0, 1.0]), "may get no vote"),
        (stump(n_targets=1, base_values=[1.0, 1.0]), "base_values has 2 entries"),
        (stump(aggregate_function="MEDIAN"), "aggregate_function 'MEDIAN'"),
        (stump(aggregate_function="MIN", target_nodeids=[1, 1]), "several votes"),
        (newest(tree_roots=[5]), "tree root 5"),
        (newest(tree_roots=[0, 0]), "share a node"),
        (newest(nodes_falsenodeids=[9, 2]), "outside the lists"),
        (newest(aggregate_function=7), "aggregate_function"),
        (newest(leaf_targetids=[0]), "wrong length"),
        (newest(nodes_modes=numpy_helper.from_array(np.array([np.nan, 6], np.float32))), "nodes_modes holds float32"),
        (newest(nodes_splits=numpy_helper.from_array(np.array([1, 2]))), "nodes_splits holds int64"),
        (newest(leaf_weights=numpy_helper.from_array(np.array([1, 2, 3]))), "leaf_weights holds int64"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(node: onnx.NodeProto, message: str) -> None:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 2 if node.op_type == "TreeEnsemble" else 1])],
        [_output("y", TensorProto.FLOAT)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 5 if node.op_type == "TreeEnsemble" else 3)]
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        import_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert "node 'y'" in str(caught.value)


@pytest.mark.parametrize("operator", ["ZipMap", "SVMRegressor", "OneHotEncoder", "DictVectorizer"])
def test_operators_without_support_name_the_way_out(operator: str) -> None:
    attributes: dict[str, Any] = {"OneHotEncoder": {"cats_int64s": [1, 2]}, "ZipMap": {"classlabels_int64s": [0]}}
    node = helper.make_node(operator, ["X"], ["y"], domain=DOMAIN, **attributes.get(operator, {}))
    with pytest.raises(UnsupportedOperatorError, match=f"{operator} node 'y'.*(give|convert|train)"):
        import_onnx(model_of(node, {"y": TensorProto.FLOAT}, 1))
