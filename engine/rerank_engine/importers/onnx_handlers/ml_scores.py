"""What the score operators of domain ai.onnx.ml share: features, post transforms, class labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.onnx import OnnxBuilder

if TYPE_CHECKING:
    import onnx

ML_DOMAIN = "ai.onnx.ml"
_SCORE_IS_ZERO = 1e-7
"""SOFTMAX_ZERO takes magnitudes up to this one for zero."""


def matrix(builder: OnnxBuilder, name: str, keep_float64: bool = False) -> str:
    """The graph's name of a matrix of features in float32, or in float64 where that is wanted and given.

    Raises
    ------
    UnsupportedOperatorError
        The value is no (N, F) with a fixed F.
    """
    value = builder.value(name)
    if len(value.shape) != 2 or not isinstance(value.shape[1], int):
        raise builder.refuse(f"the features must have shape (N, F) with a fixed F, are {value}")
    return as_float(builder, value.name, keep_float64)


def as_float(builder: OnnxBuilder, name: str, keep_float64: bool = False) -> str:
    """A value of the graph in float32."""
    dtype = builder.graph.values[name].dtype
    if dtype == "float32" or (dtype == "float64" and keep_float64):
        return name
    if dtype not in ("float64", "int32", "int64"):
        raise builder.refuse(f"features of dtype {dtype} are not supported; supported: float32, float64, int32, int64")
    return builder.emit("Cast", [name], {"to": "float32"})


def scalar(builder: OnnxBuilder, number: float, like: str) -> str:
    """A constant of shape () in the dtype of another value of the graph."""
    dtype = builder.graph.values[like].dtype
    return builder.own_constant(f"{number:g}_{dtype}", np.array(number, dtype))


@contextmanager
def named(builder: OnnxBuilder) -> Iterator[None]:
    """Turn what the lists of a node break into an error that names the node."""
    try:
        yield
    except UnsupportedOperatorError:
        raise
    except ConversionError as error:
        raise builder.refuse(str(error)) from error


def decode(text: bytes | str) -> str:
    """A text attribute."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def post_transform(builder: OnnxBuilder, scores: str, kind: str, output: str | None) -> str:
    """Append the post transform of scores (N, K) with K > 1, or NONE of any.

    Raises
    ------
    UnsupportedOperatorError
        PROBIT, or any transform of a single score: ONNX's text and its runtimes disagree about both.
    """
    if kind == "NONE":
        return builder.emit("Identity", [scores], output=output)
    if kind not in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        raise builder.refuse(
            f"post_transform {kind} is not supported; supported: NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO"
        )
    if builder.graph.values[scores].shape[1] == 1:
        raise builder.refuse(
            f"post_transform {kind} of a single score is not supported: onnxruntime leaves it out, the specification"
            " does not; use NONE and add the transform as a node"
        )
    if kind == "SOFTMAX":
        return builder.emit("Softmax", [scores], {"axis": -1}, output)
    if kind == "LOGISTIC":
        return builder.emit("Sigmoid", [scores], output=output)
    return _softmax_zero(builder, scores, output)


def _softmax_zero(builder: OnnxBuilder, scores: str, output: str | None) -> str:
    """Softmax over the scores that are not zero; the others are scaled like an exponential, and stay near zero."""
    largest = builder.emit("ReduceMax", [scores], {"axes": (1,), "keepdims": 1})
    grown = builder.emit("Exp", [builder.emit("Sub", [scores, largest])])
    scaled = builder.emit("Mul", [scores, builder.emit("Exp", [builder.emit("Neg", [largest])])])
    magnitude = builder.emit("Abs", [scores])
    counts = builder.emit("Greater", [magnitude, scalar(builder, _SCORE_IS_ZERO, scores)])
    zeros = builder.emit("Mul", [grown, scalar(builder, 0.0, scores)])
    total = builder.emit("ReduceSum", [builder.emit("Where", [counts, grown, zeros])], {"axes": (1,), "keepdims": 1})
    return builder.emit("Div", [builder.emit("Where", [counts, grown, scaled]), total], output=output)


def class_labels(builder: OnnxBuilder, integers: Sequence[int], texts: Sequence[bytes]) -> NDArray[np.int64] | None:
    """Integer labels of the classes, or None where they are texts.

    Raises
    ------
    UnsupportedOperatorError
        Both kinds are given, or none.
    """
    if bool(integers) == bool(texts):
        raise builder.refuse("exactly one kind of class labels must be given")
    return np.array(integers, np.int64) if integers else None


def label_by_largest(builder: OnnxBuilder, scores: str, labels: NDArray[np.int64], output: str) -> None:
    """The label of the largest score, the first of equals."""
    number = builder.emit("ArgMax", [scores], {"axis": 1, "keepdims": 0})
    table = builder.own_constant(f"{output}/labels", labels)
    builder.emit("Gather", [table, number], output=output)


def label_by_sign(builder: OnnxBuilder, score: str, threshold: float, labels: NDArray[np.int64], output: str) -> None:
    """The second label where a single score (N, 1) is above a threshold, the first elsewhere."""
    above = builder.emit("Greater", [score, scalar(builder, threshold, score)])
    chosen = builder.emit(
        "Where",
        [above, *(builder.own_constant(f"{output}/label{place}", labels[place : place + 1]) for place in (1, 0))],
    )
    builder.emit_shaped("Reshape", chosen, builder.graph.values[chosen].shape[:1], output)


TEXT_LABELS = (
    "its class labels are texts, and the engine has no texts; leave this output out of the model,"
    " or train with integer labels"
)


def output_name(node: onnx.NodeProto, place: int) -> str:
    """ONNX name of an output, empty when it is left out."""
    return node.output[place] if len(node.output) > place else ""
