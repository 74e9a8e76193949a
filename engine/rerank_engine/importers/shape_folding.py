"""Elementwise operators and reductions over shapes are done while importing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.graph import DTYPES
from rerank_engine.importers.shapes import ARITHMETIC, COMPARISONS, ShapeValue, arithmetic, comparison, reduction

if TYPE_CHECKING:
    import onnx

    from rerank_engine.importers.onnx import OnnxBuilder

_REDUCTIONS = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")


def fold_shape_node(builder: OnnxBuilder, node: onnx.NodeProto) -> bool:
    """Compute a node over shape values.

    Parameters
    ----------
    builder
        Gets the result among its ``shapes``, or a truth value among its constants.
    node
        Any node; one whose inputs are no shapes, or whose result would not be a shape, is left alone.

    Returns
    -------
    bool
        Whether the node is done. What is not done is computed when the model runs.
    """
    if not any(name in builder.shapes for name in node.input) or len(node.output) != 1:
        return False
    values = [builder.shape_value(name) for name in node.input if name]
    known = [value for value in values if value is not None]
    operator = node.op_type
    if operator == "Where":
        return _choose(builder, node)
    if operator == "Cast":
        return _cast(builder, node)
    if operator in _REDUCTIONS:
        return _reduce(builder, node)
    if len(known) != len(values) or any(value.dtype != known[0].dtype for value in known) or _has_attributes(node):
        return False
    result: ShapeValue | None = None
    if operator in ARITHMETIC:
        result = arithmetic(operator, known)
    elif operator == "Neg":
        result = arithmetic("Sub", [ShapeValue((0,), True, known[0].dtype), known[0]])
        result = result and ShapeValue(result.entries, known[0].is_scalar, result.dtype)
    elif operator == "Identity":
        result = known[0]
    elif operator in COMPARISONS and len(known) == 2:
        answers = comparison(operator, *known)
        if answers is None:
            return False
        array = np.array(answers, np.bool_)
        builder.constant(node.output[0], array.reshape(()) if all(value.is_scalar for value in known) else array)
        return True
    return _file(builder, node, result)


def _has_attributes(node: onnx.NodeProto) -> bool:
    """Whether a node says more than its name; only ``Mod`` has an attribute, which integers leave alone."""
    return any(not (node.op_type == "Mod" and entry.name == "fmod" and entry.i == 0) for entry in node.attribute)


def _file(builder: OnnxBuilder, node: onnx.NodeProto, value: ShapeValue | None) -> bool:
    if value is None:
        return False
    builder.shapes[node.output[0]] = value
    return True


def _choose(builder: OnnxBuilder, node: onnx.NodeProto) -> bool:
    condition = builder.array(node.input[0])
    left, right = (builder.shape_value(name) for name in node.input[1:])
    if condition is None or condition.ndim > 1 or left is None or right is None or left.dtype != right.dtype:
        return False
    counts = {condition.size, len(left.entries), len(right.entries)} - {1}
    if len(counts) > 1:
        return False
    count = next(iter(counts), 1)
    picks = [bool(pick) for pick in np.broadcast_to(condition.reshape(-1), count)]
    yes, no = (value.entries * count if len(value.entries) == 1 else value.entries for value in (left, right))
    entries = tuple(a if pick else b for pick, a, b in zip(picks, yes, no, strict=True))
    scalar = condition.ndim == 0 and left.is_scalar and right.is_scalar
    return _file(builder, node, ShapeValue(entries, scalar, left.dtype))


def _cast(builder: OnnxBuilder, node: onnx.NodeProto) -> bool:
    to = next((entry.i for entry in node.attribute if entry.name == "to"), 0)
    dtype = next((name for name in ("int32", "int64") if builder.onnx_dtype(name) == to), None)
    value = builder.shapes[node.input[0]]
    limits = np.iinfo(DTYPES[dtype]) if dtype else None
    if (
        dtype is None
        or limits is None
        or any(isinstance(entry, int) and not limits.min <= entry <= limits.max for entry in value.entries)
    ):
        return False
    return _file(builder, node, ShapeValue(value.entries, value.is_scalar, dtype))


def _reduce(builder: OnnxBuilder, node: onnx.NodeProto) -> bool:
    """Reduce a whole shape; it has one axis, so only how that is named differs between versions."""
    value = builder.shapes.get(node.input[0])
    options = {entry.name: entry for entry in node.attribute}
    axes = list(options["axes"].ints) if "axes" in options else []
    if len(node.input) > 1 and node.input[1]:
        given = builder.shape_value(node.input[1])
        if given is None or not given.is_known:
            return False
        axes = [entry for entry in given.entries if isinstance(entry, int)]
    is_identity = not axes and "noop_with_empty_axes" in options and options["noop_with_empty_axes"].i != 0
    if value is None or value.is_scalar or axes not in ([], [0], [-1]) or is_identity:
        return False
    total = reduction(node.op_type, value)
    keeps = options["keepdims"].i != 0 if "keepdims" in options else True
    return total is not None and _file(builder, node, ShapeValue((total,), not keeps, value.dtype))
