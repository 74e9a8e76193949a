"""Ensembles of trees of domain ai.onnx.ml, in the forms of its versions 1, 3 and 5.

Where onnxruntime and ONNX's text disagree the model is refused; the messages say about what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.ml_scores import (
    ML_DOMAIN,
    TEXT_LABELS,
    class_labels,
    decode,
    label_by_largest,
    label_by_sign,
    matrix,
    named,
    output_name,
    post_transform,
    scalar,
)
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.importers.trees.arrays import ensemble_arrays
from rerank_engine.importers.trees.model import Ensemble
from rerank_engine.importers.trees.onnx_nodes import (
    NodeLists,
    always_voted,
    float_list,
    new_node_lists,
    node_trees,
    old_node_lists,
)

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

_MOST_TARGETS = 1 << 20
_AGGREGATES_BY_NUMBER = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS_BY_NUMBER = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

_NODE_ATTRIBUTES: Mapping[str, Any] = {
    "nodes_treeids": [],
    "nodes_nodeids": [],
    "nodes_featureids": [],
    "nodes_modes": [],
    "nodes_values": [],
    "nodes_values_as_tensor": None,
    "nodes_truenodeids": [],
    "nodes_falsenodeids": [],
    "nodes_missing_value_tracks_true": [],
    "nodes_hitrates": [],
    "nodes_hitrates_as_tensor": None,
    "base_values": [],
    "base_values_as_tensor": None,
    "post_transform": b"NONE",
}


@handles("TreeEnsembleRegressor", domain=ML_DOMAIN)
def _regressor(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {
            **_NODE_ATTRIBUTES,
            "n_targets": 1,
            "aggregate_function": b"SUM",
            "target_treeids": [],
            "target_nodeids": [],
            "target_ids": [],
            "target_weights": [],
            "target_weights_as_tensor": None,
        }
    )
    with named(builder):
        nodes = old_node_lists(found, "target")
    base = float_list(found, "base_values")
    scores = _emit(builder, node, nodes, _count(builder, found["n_targets"]), decode(found["aggregate_function"]), base)
    post_transform(builder, scores, decode(found["post_transform"]), node.output[0])


@handles("TreeEnsembleClassifier", domain=ML_DOMAIN)
def _classifier(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {
            **_NODE_ATTRIBUTES,
            "class_treeids": [],
            "class_nodeids": [],
            "class_ids": [],
            "class_weights": [],
            "class_weights_as_tensor": None,
            "classlabels_int64s": [],
            "classlabels_strings": [],
        }
    )
    labels = class_labels(builder, found["classlabels_int64s"], found["classlabels_strings"])
    count = len(found["classlabels_int64s"]) or len(found["classlabels_strings"])
    with named(builder):
        nodes = old_node_lists(found, "class")
    transform, base = decode(found["post_transform"]), float_list(found, "base_values")
    voted = np.unique(nodes.votes[:, 1])
    if count == 2 and len(voted) == 1:
        _binary(builder, node, nodes, int(voted[0]), labels, transform, base)
        return
    if count == 2 and len(base):
        raise builder.refuse("base_values of two classes that both have votes are not supported: runtimes disagree")
    scores = _emit(builder, node, nodes, count, "SUM", base)
    _label(builder, node, labels, lambda: _largest(builder, node, nodes, count, base, scores, labels))
    post_transform(builder, scores, transform, output_name(node, 1) or None)


def _largest(
    builder: OnnxBuilder,
    node: onnx.NodeProto,
    nodes: NodeLists,
    count: int,
    base: Array,
    scores: str,
    labels: Array | None,
) -> None:
    label = output_name(node, 0)
    assert labels is not None
    if count <= 2:
        builder.unavailable[label] = (
            "the label of two classes that both have votes is not supported: onnxruntime gives 0 or 1; use the scores"
        )
    elif not len(base) and not always_voted(nodes, count).all():
        builder.unavailable[label] = "some class may get no vote, and runtimes disagree about its score; use the scores"
    else:
        label_by_largest(builder, scores, labels, label)


def _label(builder: OnnxBuilder, node: onnx.NodeProto, labels: Array | None, make: Callable[[], None]) -> None:
    """Make the label where it is wanted and no text."""
    name = output_name(node, 0)
    if not name:
        return
    if labels is None:
        builder.unavailable[name] = TEXT_LABELS
    else:
        make()


def _binary(
    builder: OnnxBuilder,
    node: onnx.NodeProto,
    nodes: NodeLists,
    voted: int,
    labels: Array | None,
    transform: str,
    base: Array,
) -> None:
    """Two classes of which one has votes: the other one's score follows from it, as exporters mean it."""
    if len(base) > 1 or (len(base) and voted == 1):
        raise builder.refuse("base_values of two classes where one has votes are not supported: runtimes disagree")
    positive = bool((nodes.weights >= 0).all())
    votes = np.stack([nodes.votes[:, 0], np.zeros(len(nodes.votes), np.int64)], axis=1)
    score = _emit(builder, node, replace(nodes, votes=votes), 1, "SUM", base)
    threshold = 0.5 if positive else 0.0
    _label(
        builder,
        node,
        labels,
        lambda: label_by_sign(builder, score, threshold, np.asarray(labels), output_name(node, 0)),
    )
    output = output_name(node, 1) or None
    if voted == 1:
        # The score of a class without votes is 0.
        other = builder.emit("Mul", [score, scalar(builder, 0.0, score)])
        post_transform(builder, builder.emit("Concat", [other, score], {"axis": 1}), transform, output)
        return
    if transform not in ("NONE", "LOGISTIC"):
        raise builder.refuse(f"post_transform {transform} of two classes where one has votes is not supported")
    if transform == "NONE" and positive:
        other = builder.emit("Sub", [scalar(builder, 1.0, score), score])
    else:
        other = builder.emit("Neg", [score])
    both = builder.emit("Concat", [other, score], {"axis": 1})
    post_transform(builder, both, transform, output)


@handles("TreeEnsemble", domain=ML_DOMAIN)
def _ensemble(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {
            "aggregate_function": 1,
            "post_transform": 0,
            "n_targets": 1,
            "tree_roots": [],
            "nodes_splits": None,
            "nodes_modes": None,
            "nodes_featureids": [],
            "nodes_truenodeids": [],
            "nodes_falsenodeids": [],
            "nodes_trueleafs": [],
            "nodes_falseleafs": [],
            "nodes_missing_value_tracks_true": [],
            "nodes_hitrates": None,
            "membership_values": None,
            "leaf_targetids": [],
            "leaf_weights": None,
        }
    )
    if not (0 <= found["aggregate_function"] < 4 and 0 <= found["post_transform"] < 5):
        raise builder.refuse("aggregate_function or post_transform is not known")
    with named(builder):
        nodes = new_node_lists(found)
    aggregate = _AGGREGATES_BY_NUMBER[found["aggregate_function"]]
    scores = _emit(builder, node, nodes, _count(builder, found["n_targets"]), aggregate, np.zeros(0), is_new=True)
    post_transform(builder, scores, _TRANSFORMS_BY_NUMBER[found["post_transform"]], node.output[0])


# --- attributes --------------------------------------------------------------------------------------------------


def _count(builder: OnnxBuilder, targets: int) -> int:
    if not 1 <= targets <= _MOST_TARGETS:
        raise builder.refuse(f"n_targets={targets} is outside 1 to {_MOST_TARGETS}")
    return targets


# --- the ensemble ------------------------------------------------------------------------------------------------


def _emit(
    builder: OnnxBuilder,
    node: onnx.NodeProto,
    nodes: NodeLists,
    outputs: int,
    aggregate: str,
    base: Array,
    is_new: bool = False,
) -> str:
    """Append the node and give back its scores: float32, for the newest form in the dtype of the features."""
    features = matrix(builder, node.input[0], keep_float64=True)
    value = builder.graph.values[features]
    if aggregate not in _AGGREGATES_BY_NUMBER:
        raise builder.refuse(f"aggregate_function {aggregate!r} is not known")
    if len(base) not in (0, outputs):
        raise builder.refuse(f"base_values has {len(base)} entries for {outputs} outputs")
    if len(base) and base.any() and not (always_voted(nodes, outputs) | (base == 0)).all():
        raise builder.refuse("some output may get no vote, and runtimes disagree about its base value")
    width = value.shape[1]
    assert isinstance(width, int)
    with named(builder):
        trees = node_trees(nodes, aggregate)
        ensemble = Ensemble(
            name=node.name,
            features=width,
            trees=trees,
            base=base if len(base) else np.zeros(outputs),
            aggregate=aggregate,
            divisor=float(len(trees)) if aggregate == "AVERAGE" else 1.0,
        )
        arrays = ensemble_arrays(ensemble, value.dtype)
    constants = [builder.own_constant(f"{node.output[-1]}/{name}", array) for name, array in arrays.named().items()]
    attributes = {"features": width, "aggregate": aggregate, "divisor": ensemble.divisor}
    sums = builder.emit("TreeEnsemble", [features, *constants], attributes)
    if is_new and value.dtype == "float64":
        return sums
    return builder.emit("Cast", [sums], {"to": "float32"})
