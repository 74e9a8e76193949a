"""Scaled dot-product attention as one operator: nothing of the size of the matrix of scores is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import Node, Shape, Value, depends_on_candidates, shape_text
from rerank_engine.ops.registry import (
    OPERATORS,
    Array,
    Operator,
    attribute,
    broadcast,
    refuse,
    register,
    rows_aligned,
)

if TYPE_CHECKING:
    from rerank_engine.codegen.emitter import Index
    from rerank_engine.codegen.lowering import Lowering
    from rerank_engine.kernels.views import View

_FLOATS = ("float32", "float64")


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    has_mask, condition = attribute(node, "has_mask"), attribute(node, "condition")
    if has_mask not in (0, 1) or attribute(node, "nan_to_zero") not in (0, 1) or condition not in ("", "keep", "drop"):
        raise refuse(node, "has_mask and nan_to_zero are 0 or 1, condition is empty, 'keep' or 'drop'")
    wanted = 3 + has_mask + bool(condition)
    if len(inputs) != wanted:
        raise refuse(node, f"takes {wanted} inputs as has_mask and condition say, has {len(inputs)}")
    queries, keys, values = inputs[:3]
    dtype = queries.dtype
    if dtype not in _FLOATS or any(value.dtype != dtype for value in inputs[: 3 + has_mask]):
        raise refuse(node, f"needs one dtype, {' or '.join(_FLOATS)}: {', '.join(map(str, inputs))}")
    if condition and inputs[-1].dtype != "bool":
        raise refuse(node, f"condition {inputs[-1]} must be bool")
    for name in ("scale", "fill"):
        _check_number(node, name, dtype)
    if any(len(value.shape) < 2 for value in inputs[:3]):
        raise refuse(node, f"needs matrices, has {', '.join(map(str, inputs[:3]))}")
    if queries.shape[-1] != keys.shape[-2] or keys.shape[-1] != values.shape[-2]:
        raise refuse(node, f"inner dimensions differ: {', '.join(map(str, inputs[:3]))}")
    batch = broadcast(node, [value.shape[:-2] for value in inputs[:3]])
    scores = (*batch, queries.shape[-2], keys.shape[-1])
    for value in inputs[3:]:
        if broadcast(node, [value.shape, scores]) != scores:
            raise refuse(node, f"{value} does not broadcast to the scores {shape_text(scores)}")
    return [(dtype, (*batch, queries.shape[-2], values.shape[-1]))]


def _check_number(node: Node, name: str, dtype: str) -> None:
    number = float(attribute(node, name))
    if math.isnan(number) or (math.isfinite(number) and abs(number) > float(np.finfo(dtype).max)):
        raise refuse(node, f"{name} {number} is no {dtype}")


def _reference(inputs: Sequence[Array], attributes: Mapping[str, Any], _: Sequence[tuple[int, ...]]) -> list[Array]:
    queries, keys, values = inputs[:3]
    with np.errstate(all="ignore"):
        scores = (queries @ keys) * queries.dtype.type(attributes["scale"])
        if attributes["has_mask"]:
            scores = scores + inputs[3]
        if attributes["condition"]:
            fill = scores.dtype.type(attributes["fill"])
            keep = inputs[-1] if attributes["condition"] == "keep" else ~inputs[-1]
            scores = np.where(keep, scores, fill)
        (weights,) = OPERATORS["Softmax"].reference([scores], {"axis": -1}, [scores.shape])
        if attributes["nan_to_zero"]:
            weights = np.where(np.isnan(weights), weights.dtype.type(0), weights)
        return [np.asarray(weights @ values)]


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels.attention import Scoring, attend

    scoring = Scoring(
        scale=float(attribute(node, "scale")),
        has_mask=bool(attribute(node, "has_mask")),
        condition=attribute(node, "condition"),
        fill=float(attribute(node, "fill")),
        nan_to_zero=bool(attribute(node, "nan_to_zero")),
    )
    (scores,) = lowering.scratch(node)
    views = [lowering.view(name) for name in (*node.inputs, *node.outputs)]
    if _shares_keys([lowering.values[name] for name in node.inputs], lowering.values[node.outputs[0]]):
        rows = lowering.rows(lowering.values[node.outputs[0]].shape[:-1])
        views = [_as_matrix(view, rows) for view in views]
    queries, keys, values, *extras, target = views
    attend(
        lowering.module,
        lowering.emitter,
        scoring,
        lowering.registers,
        queries=queries,
        keys=keys,
        values=values,
        mask=extras[0] if scoring.has_mask else None,
        condition=extras[-1] if scoring.condition else None,
        scores=scores,
        target=target,
    )


def _shares_keys(inputs: Sequence[Value], output: Value) -> bool:
    """Whether all queries read the same keys and values: they are the rows of one matrix then, whatever their batch."""
    queries, keys, values, *extras = inputs
    rows = output.shape[:-1]
    return (
        all(dim == 1 for value in (keys, values) for dim in value.shape[:-2])
        and product(queries.shape[:-1]) == product(rows)
        and all(product(value.shape[:-1]) in (1, product(rows)) for value in extras)
    )


def _as_matrix(view: View, rows: Index) -> View:
    """The array with its leading dimensions, which are all of one or make up ``rows``, as one."""
    from rerank_engine.kernels.views import View

    *leading, last = view.sizes or (1,)
    if len(leading) == 1:
        return view
    is_single = all(isinstance(size, int) and size == 1 for size in leading)
    return View.contiguous(view.e, view.address, view.dtype, (1 if is_single else rows, last))


def _scratch(_: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    from rerank_engine.kernels.attention import ROWS, SLACK

    return [(inputs[0].dtype, (ROWS + 1, inputs[1].shape[-1] + SLACK))]


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Each row of queries is on its own, if keys, values and masks are shared or lie in the same rows."""
    return rows_aligned(node, inputs[:1], outputs) and all(
        not depends_on_candidates(value.shape) or rows_aligned(node, [value], outputs) for value in inputs[1:]
    )


register(
    Operator(
        "Attention",
        "softmax(q @ k * scale) @ v of q (..., M, D), k (..., D, S), v (..., S, E). Further inputs: a mask that is"
        " added to the scores (`has_mask`); a bool condition, which by `keep` keeps the scores where it holds, by"
        " `drop` where it does not, and makes the others `fill`. `nan_to_zero`: weights that are NaN count as 0",
        _infer,
        _reference,
        attributes={"scale": 1.0, "has_mask": 0, "condition": "", "fill": -math.inf, "nan_to_zero": 0},
        lower=_lower,
        per_row=_per_row,
        scratch=_scratch,
    )
)
