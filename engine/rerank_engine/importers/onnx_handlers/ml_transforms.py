"""Linear models, scalers and other preparations of domain ai.onnx.ml, as skl2onnx writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.dimensions import product
from rerank_engine.graph import DTYPES
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_file import array_of
from rerank_engine.importers.onnx_handlers.ml_scores import (
    ML_DOMAIN,
    TEXT_LABELS,
    as_float,
    class_labels,
    decode,
    label_by_largest,
    label_by_sign,
    matrix,
    output_name,
    post_transform,
    scalar,
)
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx

_MOST_KEYS = 256
"""A LabelEncoder of more keys would become a chain of as many comparisons."""


def _linear(builder: OnnxBuilder, features: str, coefficients: Any, intercepts: Any, rows: int, base: str) -> str:
    """``features @ coefficients.T + intercepts``, (N, rows)."""
    width = builder.graph.values[features].shape[1]
    matrix_of = np.array(coefficients, np.float32)
    if len(matrix_of) != rows * width or len(intercepts) not in (0, rows):
        raise builder.refuse(
            f"{len(matrix_of)} coefficients and {len(intercepts)} intercepts do not fit {rows} rows of {width} features"
        )
    weight = builder.own_constant(f"{base}/weight", np.ascontiguousarray(matrix_of.reshape(rows, -1).T))
    scores = builder.emit("MatMul", [features, weight])
    if not len(intercepts):
        return scores
    bias = builder.own_constant(f"{base}/bias", np.array(intercepts, np.float32))
    return builder.emit("Add", [scores, bias])


@handles("LinearRegressor", domain=ML_DOMAIN)
def _linear_regressor(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"coefficients": [], "intercepts": [], "targets": 1, "post_transform": b"NONE"})
    features = matrix(builder, node.input[0])
    output = node.output[0]
    scores = _linear(builder, features, found["coefficients"], found["intercepts"], found["targets"], output)
    post_transform(builder, scores, decode(found["post_transform"]), output)


@handles("LinearClassifier", domain=ML_DOMAIN)
def _linear_classifier(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {
            "coefficients": [],
            "intercepts": [],
            "multi_class": 0,
            "post_transform": b"NONE",
            "classlabels_ints": [],
            "classlabels_strings": [],
        }
    )
    labels = class_labels(builder, found["classlabels_ints"], found["classlabels_strings"])
    count = len(found["classlabels_ints"]) or len(found["classlabels_strings"])
    features = matrix(builder, node.input[0])
    label, output = output_name(node, 0), output_name(node, 1) or None
    rows = len(found["intercepts"])
    if rows not in (count, 1) or (rows == 1 and count != 2):
        raise builder.refuse(f"{rows} intercepts for {count} classes; expected one a class, or one for two classes")
    scores = _linear(builder, features, found["coefficients"], found["intercepts"], rows, output or label)
    if label and labels is None:
        builder.unavailable[label] = TEXT_LABELS
    elif label and labels is not None:
        if rows == 1:
            label_by_sign(builder, scores, 0.0, labels, label)
        else:
            label_by_largest(builder, scores, labels, label)
    transform = decode(found["post_transform"])
    if rows == 1:
        if transform not in ("NONE", "LOGISTIC"):
            raise builder.refuse(f"post_transform {transform} of two classes with one row is not supported")
        if transform == "NONE":
            other = builder.emit("Sub", [scalar(builder, 1.0, scores), scores])
        else:
            other = builder.emit("Neg", [scores])
        scores = builder.emit("Concat", [other, scores], {"axis": 1})
    post_transform(builder, scores, transform, output)


@handles("Scaler", domain=ML_DOMAIN)
def _scaler(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"offset": [], "scale": []})
    value = as_float(builder, builder.value_name(node.input[0]))
    width = builder.graph.values[value].shape[-1]
    for name in ("offset", "scale"):
        if len(found[name]) not in (1, width):
            raise builder.refuse(f"{name} has {len(found[name])} entries for {width} features; expected 1 or {width}")
    offset, scale = (
        builder.own_constant(f"{node.output[0]}/{name}", np.array(found[name], np.float32))
        for name in ("offset", "scale")
    )
    builder.emit("Mul", [builder.emit("Sub", [value, offset]), scale], output=node.output[0])


@handles("Normalizer", domain=ML_DOMAIN)
def _normalizer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    norm = decode(builder.attributes({"norm": b"MAX"})["norm"])
    value = matrix(builder, node.input[0])
    along = {"axes": (1,), "keepdims": 1}
    if norm == "MAX":
        size = builder.emit("ReduceMax", [value], along)
    elif norm == "L1":
        size = builder.emit("ReduceSum", [builder.emit("Abs", [value])], along)
    elif norm == "L2":
        size = builder.emit("Sqrt", [builder.emit("ReduceSum", [builder.emit("Mul", [value, value])], along)])
    else:
        raise builder.refuse(f"norm {norm!r} is not known; known: MAX, L1, L2")
    is_zero = builder.emit("Equal", [size, scalar(builder, 0.0, size)])
    divisor = builder.emit("Where", [is_zero, scalar(builder, 1.0, size), size])
    builder.emit("Div", [value, divisor], output=node.output[0])


@handles("Binarizer", domain=ML_DOMAIN)
def _binarizer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    threshold = float(builder.attributes({"threshold": 0.0})["threshold"])
    value = builder.value(node.input[0])
    if DTYPES[value.dtype].kind != "f":
        raise builder.refuse(f"inputs of dtype {value.dtype} are not supported; supported: float32, float64")
    above = builder.emit("Greater", [value.name, scalar(builder, threshold, value.name)])
    builder.emit("Cast", [above], {"to": value.dtype}, node.output[0])


@handles("Imputer", domain=ML_DOMAIN)
def _imputer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes(
        {
            "imputed_value_floats": [],
            "imputed_value_int64s": [],
            "replaced_value_float": 0.0,
            "replaced_value_int64": 0,
        }
    )
    value = builder.value(node.input[0])
    is_float = DTYPES[value.dtype].kind == "f"
    kind = "floats" if is_float else "int64s"
    imputed = np.array(found[f"imputed_value_{kind}"], DTYPES[value.dtype])
    replaced = found["replaced_value_float" if is_float else "replaced_value_int64"]
    if len(imputed) not in (1, value.shape[-1] if value.shape else 1):
        raise builder.refuse(f"imputed_value_{kind} has {len(imputed)} entries for {value}")
    filling = builder.own_constant(f"{node.output[0]}/imputed", imputed)
    if is_float and np.isnan(replaced):
        known = builder.emit("Equal", [value.name, value.name])
        builder.emit("Where", [known, value.name, filling], output=node.output[0])
        return
    is_replaced = builder.emit("Equal", [value.name, scalar(builder, replaced, value.name)])
    builder.emit("Where", [is_replaced, filling, value.name], output=node.output[0])


@handles("FeatureVectorizer", domain=ML_DOMAIN)
def _feature_vectorizer(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    sizes = builder.attributes({"inputdimensions": []})["inputdimensions"]
    parts = [matrix(builder, name) for name in node.input]
    widths = [builder.graph.values[part].shape[1] for part in parts]
    if sizes and list(sizes) != widths:
        raise builder.refuse(f"inputdimensions {list(sizes)} differ from the inputs' widths {widths}")
    if len(parts) == 1:
        builder.emit("Identity", parts, output=node.output[0])
    else:
        builder.emit("Concat", parts, {"axis": 1}, node.output[0])


@handles("ArrayFeatureExtractor", domain=ML_DOMAIN)
def _array_feature_extractor(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    value, indices = builder.value(node.input[0]), builder.value(node.input[1])
    known = builder.array(node.input[1])
    if known is not None and value.shape and isinstance(value.shape[-1], int):
        wanted = known.reshape(-1).tolist()
        if any(not 0 <= index < value.shape[-1] for index in wanted):
            raise builder.refuse(f"an index is outside the {value.shape[-1]} columns")
        axis = len(value.shape) - 1
        columns = [
            builder.emit("Slice", [value.name], {"axis": axis, "start": index, "stop": index + 1}) for index in wanted
        ]
        if len(columns) == 1:
            builder.emit("Identity", columns, output=node.output[0])
        else:
            builder.emit("Concat", columns, {"axis": axis}, node.output[0])
        return
    if not value.shape:
        raise builder.refuse("a scalar has no elements to take")
    # Rows of the turned array are what stood on the last axis.
    rank = len(value.shape)
    turned = builder.emit("Transpose", [value.name], {"perm": (rank - 1, *range(rank - 1))})
    flat = builder.emit_shaped("Reshape", indices.name, (product(indices.shape),))
    found = builder.emit("Gather", [turned, flat])
    builder.emit("Transpose", [found], {"perm": (*range(1, rank), 0)}, node.output[0])


@handles("LabelEncoder", domain=ML_DOMAIN)
def _label_encoder(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    lists = ("strings", "int64s", "floats")
    found = builder.attributes(
        {
            **{f"{side}_{kind}": () for side in ("keys", "values") for kind in lists},
            **{f"{name}_tensor": None for name in ("keys", "values", "default")},
            "default_string": b"_Unused",
            "default_int64": -1,
            "default_float": -0.0,
        }
    )
    value = builder.value(node.input[0])
    keys, values = (_number_list(found, side) for side in ("keys", "values"))
    if values is None:
        builder.unavailable[node.output[0]] = TEXT_LABELS
        return
    if keys is None or (keys.dtype.kind, len(keys)) != (DTYPES[value.dtype].kind, len(values)) or not len(keys):
        raise builder.refuse("keys and values must be lists of numbers, of one length, the keys of the input's dtype")
    if len(keys) > _MOST_KEYS or np.isnan(keys.astype(float)).any():
        raise builder.refuse(f"NaN keys and more than {_MOST_KEYS} keys are not supported; use ids and an embedding")
    default = np.array(found["default_int64" if values.dtype.kind == "i" else "default_float"], values.dtype)
    if found["default_tensor"] is not None:
        default = array_of(found["default_tensor"]).astype(values.dtype).reshape(())
    result = builder.own_constant(f"{node.output[0]}/default", default)
    for number, (key, entry) in enumerate(zip(keys.tolist(), values, strict=True)):
        is_key = builder.emit("Equal", [value.name, scalar(builder, key, value.name)])
        chosen = builder.own_constant(f"{node.output[0]}/value{number}", np.asarray(entry))
        output = node.output[0] if number == len(keys) - 1 else None
        result = builder.emit("Where", [is_key, chosen, result], output=output)


def _number_list(found: Mapping[str, Any], side: str) -> NDArray[Any] | None:
    """Keys or values of a LabelEncoder, None where they are texts."""
    if found[f"{side}_strings"]:
        return None
    if found[f"{side}_tensor"] is not None:
        array = array_of(found[f"{side}_tensor"]).reshape(-1)
        return array if array.dtype.kind in "if" else None
    if found[f"{side}_int64s"]:
        return np.array(found[f"{side}_int64s"], np.int64)
    return np.array(found[f"{side}_floats"], np.float32)


_WAYS_OUT = {
    "ZipMap": "its result is a list of dictionaries; convert with skl2onnx's option zipmap=False",
    "SVMRegressor": "support vector machines are not supported; train a linear model or trees",
    "SVMClassifier": "support vector machines are not supported; train a linear model or trees",
    "DictVectorizer": "dictionaries are not supported; give the features as a matrix",
    "CastMap": "dictionaries are not supported; give the features as a matrix",
    "CategoryMapper": "texts are not supported; give category numbers",
    "OneHotEncoder": "this operator is not supported; give category numbers, or encode them before the model",
}


@handles(*_WAYS_OUT, domain=ML_DOMAIN)
def _refused(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    raise builder.refuse(_WAYS_OUT[node.op_type])
