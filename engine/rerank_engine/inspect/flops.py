"""Arithmetic of each operator, as exact polynomials over the named dimensions.

Conventions
-----------
A multiplication and an addition count one each, so a product of (M, K) and (K, C) counts ``2 * M * K * C``, as in
LAPACK's operation counts [1]_. Other functions weigh what McMahon's normalised operations give them [2]_: addition,
subtraction, multiplication and comparison 1, division and square root 4, exponential, logarithm, trigonometric and
other transcendental functions 8. What is composed of several is their sum: a sigmoid is an exponential, an addition
and a division, 13. Integers and truth values count like floating-point numbers. What only moves elements counts 0.

Where the work depends on the data, the count is that of the whole input: sequences of full length, the deepest path
of every tree. Of a TopK only the one comparison for each element is counted, not the sorting of what it keeps.

References
----------
.. [1] S. Blackford and J. Dongarra, "Installation Guide for LAPACK", LAPACK Working Note 41, 1999, appendix C.
.. [2] F. H. McMahon, "The Livermore Fortran Kernels: A Computer Test of the Numerical Performance Range", Lawrence
   Livermore National Laboratory, UCRL-53745, 1986.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_engine.dimensions import Dim, product
from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.graph import Graph, Node, Value
from rerank_engine.ops import attribute
from rerank_engine.ops.einsum import split_equation
from rerank_engine.ops.registry import Array
from rerank_engine.ops.trees import EnsembleArrays

DIVIDE = SQRT = 4
TRANSCENDENTAL = 8
_SIGMOID = TRANSCENDENTAL + 1 + DIVIDE
_SOFTPLUS = 2 * TRANSCENDENTAL + 1
_ELU = 1 + TRANSCENDENTAL + 2
_GELU = {"none": TRANSCENDENTAL + 4, "tanh": TRANSCENDENTAL + 8}

POINTWISE_WEIGHTS: Mapping[str, int] = {
    **dict.fromkeys(("BitCast", "Cast", "Expand", "Identity", "Where"), 0),
    **dict.fromkeys(("Abs", "Add", "And", "BitShift", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual"), 1),
    **dict.fromkeys(("Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Relu", "Round", "Sign"), 1),
    **dict.fromkeys(("Sub", "Xor"), 1),
    **dict.fromkeys(("Clip", "LeakyRelu", "PRelu"), 2),
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh"), TRANSCENDENTAL),
    **dict.fromkeys(("Erf", "Exp", "Log", "Sin", "Sinh", "Tan", "Tanh"), TRANSCENDENTAL),
    "Div": DIVIDE,
    "Elu": _ELU,
    "Mod": DIVIDE + 3,
    "Pow": 2 * TRANSCENDENTAL + 1,
    "Sigmoid": _SIGMOID,
    "Softplus": _SOFTPLUS,
    "Sqrt": SQRT,
}
"""Operations for each element of the result, by operator. ``Gelu`` depends on an attribute and has a rule below."""

_CELL_WEIGHTS: Mapping[str, int] = {
    "Relu": 1,
    "Tanh": TRANSCENDENTAL,
    "Sigmoid": _SIGMOID,
    "Softsign": 2 + DIVIDE,
    "Softplus": _SOFTPLUS,
    "Affine": 2,
    "LeakyRelu": 2,
    "ThresholdedRelu": 1,
    "ScaledTanh": TRANSCENDENTAL + 2,
    "HardSigmoid": 4,
    "Elu": _ELU,
}
"""Operations of an activation inside a recurrent cell."""

_CLIP = 2
_SOFTMAX = 1 + 1 + TRANSCENDENTAL + 1 + DIVIDE
"""Largest, difference, exponential, sum and division."""


@dataclass(frozen=True)
class _Call:
    """A node with everything that its count depends on."""

    node: Node
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    constants: Mapping[str, Array]

    def attribute(self, name: str) -> Any:
        return attribute(self.node, name)

    def size(self, index: int = 0) -> int | Dim:
        """Elements of an input."""
        return product(self.inputs[index].shape)

    @property
    def made(self) -> int | Dim:
        """Elements of the first result."""
        return product(self.outputs[0].shape)


Rule = Callable[[_Call], "int | Dim"]


def count_flops(graph: Graph, node: Node) -> int | Dim:
    """Count the arithmetic operations of one node in one call.

    Parameters
    ----------
    graph
        A graph whose nodes are checked (:func:`rerank_engine.ops.check_nodes`).
    node
        One of its nodes.

    Returns
    -------
    int or Dim
        Operations, over the named dimensions.

    Raises
    ------
    UnsupportedOperatorError
        Nothing is known of the operator's arithmetic.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> shapes = {"x": (Dim("N"), 64), "w": (64, 32), "y": (Dim("N"), 32)}
    >>> graph = Graph("layer", values={name: Value(name, "float32", shape) for name, shape in shapes.items()})
    >>> count_flops(graph, Node("MatMul", "layer", ("x", "w"), ("y",)))
    Dim('N', 4096)
    """
    call = _Call(
        node,
        [graph.values[name] for name in node.inputs],
        [graph.values[name] for name in node.outputs],
        graph.constants,
    )
    if node.op in FLOPS_RULES:
        return FLOPS_RULES[node.op](call)
    if node.op in POINTWISE_WEIGHTS:
        return POINTWISE_WEIGHTS[node.op] * call.made
    raise UnsupportedOperatorError(f"{node.op} node {node.name!r}: nothing is known of this operator's arithmetic")


# --- products ----------------------------------------------------------------------------------------------


def _matmul(call: _Call) -> int | Dim:
    inner = call.inputs[0].shape[-1]
    activation = call.attribute("activation")
    along = (len(call.inputs) == 3) + (POINTWISE_WEIGHTS[activation] if activation else 0)
    return call.made * inner * 2 + along * call.made


def _einsum(call: _Call) -> int | Dim:
    operands, result = split_equation(call.attribute("equation"))
    sizes = {
        letter: dim
        for subscripts, value in zip(operands, call.inputs, strict=True)
        for letter, dim in zip(subscripts, value.shape, strict=True)
    }
    additions = 1 if set(sizes) - set(result) else 0
    return (len(operands) - 1 + additions) * product(sizes.values())


def _attention(call: _Call) -> int | Dim:
    queries, keys, values = call.inputs[:3]
    *rows, columns = call.outputs[0].shape
    scores = product([*rows, keys.shape[-1]])
    along = 1 + _SOFTMAX + call.attribute("has_mask")
    inner = queries.shape[-1] + columns
    assert values.shape[-1] == columns, "the shape rule says so"
    return scores * inner * 2 + along * scores


# --- reductions, normalisations ----------------------------------------------------------------------------


def _reduce(per_result: int = 0) -> Rule:
    """One operation an element, and more for each result."""
    return lambda call: call.size() + per_result * call.made


def _softmax(per_element: int, per_line: int) -> Rule:
    """Operations for each element, and for each line along the axis."""

    def rule(call: _Call) -> int | Dim:
        shape = call.inputs[0].shape
        axis = call.attribute("axis") % len(shape)
        return per_element * call.size() + per_line * product(shape[:axis] + shape[axis + 1 :])

    return rule


def _normalize(per_element: int, per_row: int) -> Rule:
    """Operations for each element, one more for a scale and for a bias, and operations for each row."""

    def rule(call: _Call) -> int | Dim:
        shape = call.inputs[0].shape
        rows = product(shape[: call.attribute("axis") % len(shape)])
        return (per_element + len(call.inputs) - 1) * call.size() + per_row * rows

    return rule


def _bags(call: _Call) -> int | Dim:
    return call.size() + (DIVIDE * call.made if call.attribute("mode") == "mean" else 0)


# --- recurrent layers: products with the state, then the cell, for each step of each sequence --------------


def _cell(call: _Call) -> tuple[list[int], int]:
    """Weights of the activations with the clip before them, where there is one, and the hidden size."""
    clip = _CLIP if call.attribute("clip") else 0
    weights = [_CELL_WEIGHTS[name] for name in call.attribute("activations")]
    clipped = [weight + (clip if index < 2 else 0) for index, weight in enumerate(weights)]
    hidden = call.outputs[0].shape[-1]
    assert isinstance(hidden, int), "the shape rule says so"
    return clipped, hidden


def _over_time(call: _Call, gates: int, hidden: int, per_unit: int) -> int | Dim:
    batch, steps = call.inputs[0].shape[:2]
    return product([batch, steps, 2 * gates * hidden * hidden + per_unit * hidden])


def _rnn(call: _Call) -> int | Dim:
    (f,), hidden = _cell(call)
    return _over_time(call, 1, hidden, 1 + f)


def _gru(call: _Call) -> int | Dim:
    (f, g), hidden = _cell(call)
    update_and_reset, candidate, blend = 2 * (1 + f), 3 + g, 4
    return _over_time(call, 3, hidden, update_and_reset + candidate + blend)


def _lstm(call: _Call) -> int | Dim:
    (f, g, finish), hidden = _cell(call)
    coupled = bool(call.attribute("input_forget"))
    sigmoid_gates = 2 if coupled else 3
    gates = sigmoid_gates * (1 + f) + 1 + g + (1 if coupled else 0)
    peepholes = 2 * sigmoid_gates if call.attribute("has_peepholes") else 0
    return _over_time(call, 4, hidden, gates + peepholes + 3 + finish + 1)


# --- the rest ----------------------------------------------------------------------------------------------


def _scatter(call: _Call) -> int | Dim:
    return 0 if call.attribute("reduction") == "none" else call.size(2)


def _trees(call: _Call) -> int | Dim:
    """A comparison for each level of every tree, and an operation for each entry of the largest leaf."""
    arrays = EnsembleArrays(*(call.constants[name] for name in call.node.inputs[1:]))
    trees, outputs = len(arrays.tree_start) - 1, len(arrays.base)
    leaves = trees * int(np.diff(arrays.leaf_start).max(initial=0))
    if arrays.linear_start is not None:
        leaves += trees * 2 * int(np.diff(arrays.linear_start).max(initial=0))
    finish = outputs * {"SUM": 0, "AVERAGE": DIVIDE + 1}.get(call.attribute("aggregate"), 1)
    return call.inputs[0].shape[0] * (deepest_paths(arrays) + leaves + finish)


def deepest_paths(arrays: EnsembleArrays) -> int:
    """Sum over all trees of the questions on the longest way from root to leaf."""
    tree = np.repeat(np.arange(len(arrays.tree_start) - 1), np.diff(arrays.tree_start))
    total, current = 0, arrays.tree_start[:-1].astype(np.int64)
    while current.size:
        total += len(np.unique(tree[current]))
        following = arrays.nodes[current, 2:4].reshape(-1)
        current = np.unique(following[following >= 0]).astype(np.int64)
    return total


def _nothing(_: _Call) -> int | Dim:
    return 0


FLOPS_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Concat", "Dimensions", "Gather", "GatherElements", "GatherND", "Range", "Reshape"), _nothing),
    **dict.fromkeys(("Slice", "Transpose", "Windows"), _nothing),
    **dict.fromkeys(("ArgMax", "ArgMin", "CumProd", "CumSum", "Hardmax", "TopK"), _reduce()),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"), _reduce()),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    "Attention": _attention,
    "BagReduce": _bags,
    "Einsum": _einsum,
    "GRU": _gru,
    "Gelu": lambda call: _GELU[call.attribute("approximate")] * call.made,
    # Sum, difference, square, sum, product; then two means, an addition, a square root and its inverse.
    "LayerNormalization": _normalize(5, 3 * DIVIDE + 1 + SQRT),
    "LSTM": _lstm,
    "LogSoftmax": _softmax(1 + 1 + TRANSCENDENTAL + 1 + 1, TRANSCENDENTAL),
    "MatMul": _matmul,
    # Square, sum, product; then a mean, an addition, a square root and its inverse.
    "RMSNormalization": _normalize(3, 2 * DIVIDE + 1 + SQRT),
    "RNN": _rnn,
    "ReduceMean": _reduce(DIVIDE),
    "Softmax": _softmax(_SOFTMAX, 0),
    "TreeEnsemble": _trees,
}
"""How the operators count that are not a fixed weight for each element of their result."""
