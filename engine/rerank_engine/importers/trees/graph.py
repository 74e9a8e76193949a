"""A described ensemble becomes a graph: the features, one TreeEnsemble node, and the objective's transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.graph import CANDIDATES, Dim, Graph, Node, Shape, Value, shape_attribute
from rerank_engine.importers.trees.arrays import ensemble_arrays
from rerank_engine.importers.trees.model import Array, Ensemble, Linear, Transform
from rerank_engine.ops import lookup
from rerank_engine.ops.trees import KEY_RANGES

FEATURES, SCORE = "features", "score"
"""Names of the input and the output."""

OUTPUTS = ("prediction", "raw")
"""What the score may be: what the framework's ``predict`` gives, or the sums before the objective's transform."""


def ensemble_graph(model: Ensemble | Linear, output: str = "prediction", features_dtype: str = "float32") -> Graph:
    """Build the graph of an ensemble.

    Parameters
    ----------
    model
        The description.
    output
        "prediction" or "raw".
    features_dtype
        Dtype of the input, "float32" or "float64".

    Returns
    -------
    Graph
        Input ``features`` (N, F); output ``score``, (N,) for one output and (N, K) for several, in the dtype of the
        sums (float32 for "largest" and "positive" too, as the frameworks give them).

    Raises
    ------
    ConversionError
        An option is unknown, or the description is damaged.
    """
    check_output(output)
    if features_dtype not in KEY_RANGES:
        raise ConversionError(f"features of dtype {features_dtype!r} are not supported; use {' or '.join(KEY_RANGES)}")
    columns = model.features if isinstance(model, Ensemble) else len(model.weight)
    builder = _Builder(model.name, {key: str(text) for key, text in model.metadata.items()})
    features = builder.input(FEATURES, features_dtype, (Dim(CANDIDATES), columns))
    if model.missing_value is not None:
        known = builder.node("Equal", [features, builder.number(model.missing_value, features)])
        features = builder.node("Where", [known, builder.number(np.nan, features), features])
    if isinstance(model, Ensemble):
        sums = builder.ensemble(features, model, features_dtype)
    else:
        sums = builder.linear(features, model)
    return builder.finish(sums if output == "raw" else builder.transformed(sums, model.transform))


def check_output(output: str) -> None:
    """Check the option.

    Raises
    ------
    ConversionError
        It is unknown.
    """
    if output not in OUTPUTS:
        raise ConversionError(f"output {output!r} is not known; known: {', '.join(OUTPUTS)}")


class _Builder:
    """A graph, one call a node."""

    def __init__(self, name: str, metadata: dict[str, str]) -> None:
        self.graph = Graph(name, metadata=metadata)

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        self.graph.values[name] = Value(name, dtype, shape)
        self.graph.inputs.append(name)
        return name

    def number(self, number: float, like: str) -> str:
        """A scalar constant in the dtype of another value."""
        dtype = self.graph.values[like].dtype
        return self.graph.add_constant(f"{number:g}_{dtype}", np.array(number, dtype))

    def node(self, op: str, inputs: list[str], attributes: Mapping[str, Any] | None = None, output: str = "") -> str:
        name = output or f"{op.lower()}.{len(self.graph.nodes)}"
        node = Node(op, name, tuple(inputs), (name,), dict(attributes or {}))
        ((dtype, shape),) = lookup(node).infer(node, [self.graph.values[entry] for entry in inputs])
        self.graph.values[name] = Value(name, dtype, shape)
        self.graph.nodes.append(node)
        return name

    def ensemble(self, features: str, model: Ensemble, features_dtype: str) -> str:
        arrays = ensemble_arrays(model, features_dtype)
        constants = [self.graph.add_constant(f"trees/{name}", array) for name, array in arrays.named().items()]
        attributes = {
            "features": model.features,
            "aggregate": model.aggregate,
            "divisor": float(model.divisor),
            "zero_threshold": float(model.zero_threshold),
        }
        return self.node("TreeEnsemble", [features, *constants], attributes)

    def linear(self, features: str, model: Linear) -> str:
        known = self.node("Equal", [features, features])
        filled = self.node("Where", [known, features, self.number(0.0, features)])
        product = self.node("MatMul", [filled, self._constant("weight", model.weight)])
        return self.node("Add", [product, self._constant("bias", model.bias)])

    def _constant(self, name: str, array: Array) -> str:
        return self.graph.add_constant(name, np.ascontiguousarray(array))

    def transformed(self, value: str, transform: Transform) -> str:
        """Append what the objective does."""
        if transform.scale != 1.0:
            value = self.node("Mul", [value, self.number(transform.scale, value)])
        if transform.kind == "identity":
            return value
        if transform.kind in _ONE_NODE:
            op, attributes = _ONE_NODE[transform.kind]
            return self.node(op, [value], attributes)
        if transform.kind == "signed_square":
            return self.node("Mul", [self.node("Abs", [value]), value])
        if transform.kind == "positive":
            positive = self.node("Greater", [value, self.number(0.0, value)])
            return self.node("Cast", [positive], {"to": "float32"})
        if transform.kind == "largest":
            number = self.node("ArgMax", [value], {"axis": 1, "keepdims": 1})
            return self.node("Cast", [number], {"to": "float32"})
        raise ConversionError(f"transform {transform.kind!r} is not known")

    def finish(self, value: str) -> Graph:
        """Name the output; a single column becomes a vector."""
        shape = self.graph.values[value].shape
        wanted = shape[:1] if shape[1] == 1 else shape
        self.node("Reshape", [value], {"shape": shape_attribute(wanted)}, SCORE)
        self.graph.outputs.append(SCORE)
        self.graph.verify()
        return self.graph


_ONE_NODE: dict[str, tuple[str, dict[str, Any]]] = {
    "sigmoid": ("Sigmoid", {}),
    "exp": ("Exp", {}),
    "softplus": ("Softplus", {}),
    "softmax": ("Softmax", {"axis": -1}),
}
