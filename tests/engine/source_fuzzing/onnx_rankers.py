"""ONNX models as rankers have them: layers, embeddings, attention, recurrence, selection, trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, external_data_helper, numpy_helper

from .onnx_builder import ML, Builder
from .source import ONNX, Source

_BAGS = Path(__file__).parent.parent / "data" / "embedding_bags.npz"
_FEW_BAGS = ("new sum", "new sum, padding", "new fixed sum", "old sum")


def sources() -> list[Source]:
    """All of them."""
    makers = (
        *(_perceptron, _towers, _attention, _new_attention, _recurrent, _recurrent_batch, _selection, _indexing),
        *(_trees, _newest_trees, _transforms, _labels, _quantised, _pixels, _external),
    )
    return [*(make() for make in makers), *_bags()]


def _perceptron() -> Source:
    b = Builder("perceptron", 7)
    x = b.input("x", ["N", 4])
    hidden = b.node("Gemm", x, b.weights(5, 4), b.weights(5), transB=1, alpha=0.5)
    hidden = b.node("BatchNormalization", hidden, *(b.constant([1.5] * 5, np.float32) for _ in range(4)), epsilon=1e-3)
    hidden = b.chain(hidden, "Relu", "Dropout", ("LeakyRelu", {"alpha": 0.2}))
    hidden = b.node("PRelu", hidden, b.weights(5))
    return b.source(b.chain(b.node("Gemm", hidden, b.weights(5, 1), b.weights(1)), "Sigmoid"))


def _towers() -> Source:
    b = Builder("towers", 13)
    item, user = b.input("item", ["N"], np.int64), b.input("user", [1], np.int32)
    dense = b.input("dense", ["N", 3])
    rows = b.node("Gather", b.weights(7, 4), item)
    person = b.node("Gather", b.weights(5, 4), b.node("Cast", user, to=TensorProto.INT64))
    count = b.node("Gather", b.node("Shape", item), b.constant(0))
    shape = b.node("Concat", b.node("Unsqueeze", count, b.constant([0])), b.constant([4]), axis=0)
    person = b.node("Expand", person, shape)
    joined = b.node("Concat", b.node("Mul", rows, person), dense, axis=-1)
    left, right = b.nodes_of("Split", [joined, b.constant([3, 4])], 2, axis=1)
    total = b.node("Add", b.node("MatMul", left, b.weights(3, 2)), b.node("MatMul", right, b.weights(4, 2)))
    flat = b.node("Reshape", total, b.constant([-1]))
    clipped = b.node("Clip", flat, b.constant(-2.0, np.float32), b.constant(3.0, np.float32))
    return b.source(b.node("Squeeze", b.node("Unsqueeze", clipped, b.constant([1])), b.constant([1])), joined)


def _attention() -> Source:
    b = Builder("attention", 17)
    item, events = b.input("item", ["N", 4]), b.input("events", ["T", 4])
    mask = b.input("mask", ["T"], np.bool_)
    keys = b.node("Transpose", b.node("MatMul", events, b.weights(4, 4)), perm=[1, 0])
    logits = b.node("Div", b.node("MatMul", item, keys), b.constant(2.0, np.float32))
    logits = b.node("Where", mask, logits, b.constant(-1e4, np.float32))
    mixed = b.node("MatMul", b.node("Softmax", logits, axis=-1), events)
    normal = b.node("LayerNormalization", b.node("Add", item, mixed), b.weights(4), b.weights(4), axis=-1)
    # The exact GELU as exporters write it.
    bent = b.node("Erf", b.node("Div", normal, b.constant(np.sqrt(2), np.float32)))
    bent = b.node("Mul", b.node("Mul", normal, b.node("Add", bent, b.constant(1.0, np.float32))), b.constant(0.5, "f4"))
    scores = b.node("Einsum", bent, b.weights(4), equation="nd,d->n")
    return b.source(scores, b.node("LogSoftmax", logits, axis=1), candidates="N")


def _new_attention() -> Source:
    b = Builder("new_attention", 23)
    query, history = b.input("query", ["N", 2, 4, 8]), b.input("history", ["N", 2, 5, 8])
    found = b.node("Attention", query, history, history, scale=0.3)
    normal = b.node("RMSNormalization", found, b.weights(8), axis=-1)
    return b.source(b.chain(normal, "Mish", ("Gelu", {"approximate": "tanh"})))


def _recurrent() -> Source:
    b = Builder("recurrent", 14)
    events = b.input("events", [6, "N", 4])
    lengths = b.input("lengths", ["N"], np.int32)
    states, last = b.nodes_of(
        "GRU", [events, b.weights(1, 6, 4), b.weights(1, 6, 2), b.weights(1, 12), lengths], 2, hidden_size=2
    )
    both, end, cell = b.nodes_of(
        "LSTM",
        [events, b.weights(2, 8, 4), b.weights(2, 8, 2), b.weights(2, 16)],
        3,
        hidden_size=2,
        direction="bidirectional",
        clip=1.5,
    )
    pieces = [b.node("ReduceMean", value, axes=[0, 1], keepdims=0) for value in (states, last, both, end, cell)]
    return b.source(b.sum(pieces))


def _recurrent_batch() -> Source:
    b = Builder("recurrent_batch", 14)
    events = b.input("events", ["N", 5, 3])
    turned = b.node("Transpose", events, perm=[1, 0, 2])
    states, _ = b.nodes_of(
        "RNN",
        [turned, b.weights(1, 2, 3), b.weights(1, 2, 2), b.weights(1, 4)],
        2,
        hidden_size=2,
        direction="reverse",
        activations=["Tanh"],
    )
    reset, _ = b.nodes_of(
        "GRU",
        [turned, b.weights(1, 6, 3), b.weights(1, 6, 2), b.weights(1, 12)],
        2,
        hidden_size=2,
        linear_before_reset=1,
        activations=["Sigmoid", "Tanh"],
    )
    return b.source(b.node("Squeeze", b.node("Add", states, reset), b.constant([1])))


def _selection() -> Source:
    b = Builder("selection", 18)
    scores, places = b.input("scores", ["N", 5]), b.input("places", ["N", 2], np.int64)
    best, where = b.nodes_of("TopK", [scores, b.constant([2])], 2, axis=1, largest=1)
    picked = b.node("GatherElements", scores, where, axis=1)
    written = b.node("ScatterElements", scores, places, best, axis=1, reduction="add")
    running = b.node("CumSum", written, b.constant(1), exclusive=1, reverse=1)
    first = b.node("ArgMax", b.node("LogSoftmax", running), axis=1, keepdims=0)
    last = b.node("ArgMin", b.node("Hardmax", running), axis=-1, keepdims=0, select_last_index=1)
    spread = b.node("OneHot", first, b.constant(5), b.constant([0.0, 1.0], np.float32), axis=-1)
    even = b.node("Equal", b.node("Mod", last, b.constant(2)), b.constant(0))
    return b.source(picked, b.node("Where", b.node("Unsqueeze", even, b.constant([1])), spread, running))


def _indexing() -> Source:
    b = Builder("indexing", 16)
    x, ids = b.input("x", ["N", 3, 4]), b.input("ids", ["N", 1, 1], np.int64)
    pairs = b.node("GatherND", x, ids, batch_dims=1)
    grid = b.node("ScatterND", b.weights(3, 4), b.constant([[0], [2]]), b.weights(2, 4), reduction="mul")
    kept = b.node("Compress", x, b.constant([True, False, True], np.bool_), axis=1)
    turned = b.node("ReverseSequence", b.weights(4, 3), b.constant([1, 2, 3]), batch_axis=1, time_axis=0)
    low = b.node("Trilu", b.node("MatMul", turned, b.weights(3, 4)), b.constant(0), upper=0)
    total = b.node("Add", b.node("ReduceSum", pairs, b.constant([1]), keepdims=1), b.node("MatMul", kept, low))
    return b.source(total, grid)


def _node_lists(prefix: str) -> dict[str, Any]:
    """Two trees of two splits and three leaves in the lists of versions 1 and 3."""
    return {
        "nodes_treeids": [0] * 5 + [1] * 3,
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.5, -0.25, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [0, 1, 0, 0, 0, 1, 0, 0],
        f"{prefix}_treeids": [0, 0, 0, 1, 1],
        f"{prefix}_nodeids": [2, 3, 4, 1, 2],
        f"{prefix}_ids": [0, 1, 2, 0, 1],
        f"{prefix}_weights": [0.5, -1.0, 2.0, 0.25, 3.0],
    }


def _trees() -> Source:
    b = Builder("trees", 17, ml=3)
    x = b.input("x", ["N", 3])
    regression = b.node("TreeEnsembleRegressor", x, domain=ML, n_targets=3, **_node_lists("target"))
    label, scores = b.nodes_of(
        "TreeEnsembleClassifier",
        [x],
        2,
        domain=ML,
        classlabels_int64s=[3, 5, 9],
        post_transform="SOFTMAX",
        **_node_lists("class"),
    )
    del label  # Some class may get no vote, and runtimes disagree about that.
    return b.source(regression, scores)


def _newest_trees() -> Source:
    b = Builder("newest_trees", 21, ml=5)
    x = b.input("x", ["N", 3])
    arrays = {"nodes_splits": [0.5, 2.0], "leaf_weights": [0.5, -1.0, 2.0], "membership_values": [1.0, 3.0, np.nan]}
    tensors = {name: numpy_helper.from_array(np.array(entries, np.float32), name) for name, entries in arrays.items()}
    modes = numpy_helper.from_array(np.array([0, 6], np.uint8), "modes")
    scores = b.node(
        "TreeEnsemble",
        x,
        domain=ML,
        tree_roots=[0],
        n_targets=2,
        nodes_modes=modes,
        nodes_featureids=[0, 1],
        nodes_truenodeids=[1, 0],
        nodes_trueleafs=[0, 1],
        nodes_falsenodeids=[2, 1],
        nodes_falseleafs=[1, 1],
        leaf_targetids=[0, 1, 0],
        **tensors,
    )
    return b.source(scores)


def _transforms() -> Source:
    b = Builder("transforms", 17, ml=3)
    x = b.input("x", ["N", 3])
    scaled = b.node("Scaler", x, domain=ML, offset=[0.5, 0.0, 1.0], scale=[2.0])
    filled = b.node("Imputer", scaled, domain=ML, imputed_value_floats=[0.5], replaced_value_float=float("nan"))
    normal = b.node("Normalizer", filled, domain=ML, norm="L2")
    signs = b.node("Binarizer", normal, domain=ML, threshold=0.25)
    joined = b.node("FeatureVectorizer", normal, signs, domain=ML, inputdimensions=[3, 3])
    first = b.node("ArrayFeatureExtractor", joined, b.constant([[0, 4]]), domain=ML)
    scores = b.node("LinearRegressor", joined, domain=ML, coefficients=[0.5] * 12, intercepts=[1.0, 2.0], targets=2)
    return b.source(first, scores)


def _labels() -> Source:
    b = Builder("labels", 17, ml=3)
    x, ids = b.input("x", ["N", 3]), b.input("ids", ["N"], np.int64)
    label, scores = b.nodes_of(
        "LinearClassifier",
        [x],
        2,
        domain=ML,
        coefficients=[0.5, -1.0, 2.0] * 3,
        intercepts=[1.0, 2.0, 0.0],
        classlabels_ints=[1, 2, 3],
        post_transform="SOFTMAX",
    )
    coded = b.node("LabelEncoder", ids, domain=ML, keys_int64s=[0, 1, 7], values_int64s=[5, 3, 1], default_int64=9)
    return b.source(label, scores, coded)


def _quantised() -> Source:
    b = Builder("quantised", 13)
    x = b.input("x", ["N", 4])
    scale, zero = b.constant(0.05, np.float32), b.constant(3, np.uint8)
    stored = b.node("QuantizeLinear", x, scale, zero)
    weights = b.constant(b.random.integers(-9, 9, (4, 2)), np.int8)
    product = b.node("MatMulInteger", stored, weights, zero)
    fine = b.node("DequantizeLinear", b.constant(b.random.integers(-9, 9, (2, 4)), np.int8), b.weights(4), axis=1)
    real = b.node("MatMul", b.node("Cast", product, to=TensorProto.FLOAT), fine)
    other = b.constant(b.random.integers(0, 9, (4, 2)), np.uint8)
    joined = b.node("QLinearMatMul", stored, scale, zero, other, scale, zero, scale, zero)
    dynamic = b.nodes_of("DynamicQuantizeLinear", [b.weights(2, 2)], 3)
    return b.source(real, b.node("DequantizeLinear", joined, scale, zero), dynamic[0])


def _pixels() -> Source:
    b = Builder("pixels", 13)
    x = b.input("x", ["N", 2, 6, 6])
    y = b.node("Conv", x, b.weights(4, 1, 3, 3), b.weights(4), pads=[1, 1, 1, 1], group=2, kernel_shape=[3, 3])
    y = b.node("InstanceNormalization", y, b.weights(4), b.weights(4))
    largest = b.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    mean = b.node("AveragePool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
    turned = b.node("DepthToSpace", b.node("Add", largest, mean), blocksize=2, mode="CRD")
    back = b.node("SpaceToDepth", turned, blocksize=2)
    power = b.node("LpPool", back, kernel_shape=[2, 2], p=2)
    pools = [b.node(op, power) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")]
    return b.source(b.node("Flatten", b.sum(pools)))


def _external() -> Source:
    b = Builder("external", 17)
    model = b.model(b.node("Relu", b.node("MatMul", b.input("x", ["N", 16]), b.weights(16, 24))))
    (tensor,) = model.graph.initializer
    content = tensor.raw_data
    external_data_helper.set_external_data(tensor, "weights.bin", offset=64, length=len(content))
    tensor.ClearField("raw_data")
    files = {"model.onnx": model.SerializeToString(deterministic=True), "weights.bin": bytes(64) + content}
    return Source(ONNX, "external", files, "model.onnx")


def _bags() -> list[Source]:
    """What PyTorch's exporters make of embedding bags."""
    with np.load(_BAGS) as archive:
        return [
            Source(
                ONNX,
                f"bags {name}",
                {"model.onnx": archive[f"{name}/model"].tobytes()},
                "model.onnx",
                {} if "fixed" in name else {"candidates": "N"},
            )
            for name in _FEW_BAGS
        ]
