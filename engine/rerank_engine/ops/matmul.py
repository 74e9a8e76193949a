"""Matrix products: weights packed for the tile, or two computed matrices; bias and activation ride along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import Graph, Node, Shape, Value, depends_on_candidates, shape_text
from rerank_engine.ops.registry import OPERATORS, Array, Operator, attribute, broadcast, refuse, register, rows_aligned

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")

FUSED_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu")
"""Activations that a matrix product may apply to its result before storing it."""


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if not 2 <= len(inputs) <= 3:
        raise refuse(node, f"takes two matrices and at most a bias, has {len(inputs)} inputs")
    left, right = inputs[:2]
    if attribute(node, "activation") not in ("", *FUSED_ACTIVATIONS):
        raise refuse(node, f"activation {node.attributes['activation']!r} is not one of {', '.join(FUSED_ACTIVATIONS)}")
    if left.dtype != right.dtype or left.dtype not in _DTYPES:
        raise refuse(node, f"needs two matrices of one dtype of {', '.join(_DTYPES)}, has {left} and {right}")
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise refuse(node, f"needs matrices, has {left} and {right}")
    if left.shape[-1] != right.shape[-2]:
        raise refuse(node, f"inner dimensions differ: {shape_text(left.shape)} and {shape_text(right.shape)}")
    batch = broadcast(node, [left.shape[:-2], right.shape[:-2]])
    if len(inputs) == 3 and (inputs[2].dtype, inputs[2].shape) != ("float32", (right.shape[-1],)):
        raise refuse(node, f"bias {inputs[2]} must be float32{shape_text((right.shape[-1],))}")
    if (len(inputs) == 3 or attribute(node, "activation")) and left.dtype != "float32":
        raise refuse(node, "a bias or an activation rides along with float32 only")
    return [(left.dtype, (*batch, left.shape[-2], right.shape[-1]))]


def _reference(inputs: Sequence[Array], attributes: Mapping[str, Any], _: Sequence[tuple[int, ...]]) -> list[Array]:
    with np.errstate(all="ignore"):
        result = np.asarray(inputs[0] @ inputs[1])
        if len(inputs) == 3:
            result = result + inputs[2]
    if attributes.get("activation"):
        activation = OPERATORS[attributes["activation"]]
        extra = {"alpha": attributes["alpha"]} if "alpha" in activation.attributes else {}
        return activation.reference([result], extra, [result.shape])
    return [result]


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import gemm

    left, right = lowering.values[node.inputs[0]], lowering.values[node.inputs[1]]
    inner, columns = right.shape[-2:]
    has_fixed_bias = all(lowering.constant(name) is not None for name in node.inputs[2:])
    if left.dtype != "float32" or not isinstance(inner, int) or not isinstance(columns, int) or not has_fixed_bias:
        _lower_general(lowering, node)
        return
    parts = lowering.absorbed[0].inputs if lowering.absorbed else node.inputs[:1]
    kind = gemm.Product(
        inner=inner,
        columns=columns,
        activation=attribute(node, "activation"),
        alpha=attribute(node, "alpha"),
        has_bias=len(node.inputs) == 3,
        joined=tuple(_width(lowering.values[name]) for name in parts) if lowering.absorbed else (),
    )
    single = all(dim == 1 for dim in right.shape[:-2])
    if lowering.constant(node.inputs[1]) is not None and len(right.shape) == 2:
        gemm.multiply_packed(
            lowering,
            kind,
            lefts=[lowering.address(name) for name in parts],
            rows=lowering.rows(left.shape[:-1]),
            weight=node.inputs[1],
            bias=node.inputs[2] if kind.has_bias else None,
            target=lowering.address(node.outputs[0]),
        )
        return
    output = lowering.values[node.outputs[0]]
    if not single and not all(_whole_batch(value.shape, output.shape) for value in (left, right)):
        _lower_general(lowering, node)
        return
    rows = lowering.rows(left.shape[:-1]) if single else lowering.size(left.shape[-2])
    gemm.multiply_batched(
        lowering,
        kind,
        left=lowering.address(node.inputs[0]),
        right=lowering.address(node.inputs[1]),
        target=lowering.address(node.outputs[0]),
        bias=node.inputs[2] if kind.has_bias else None,
        batch=1 if single else lowering.rows(output.shape[:-2]),
        rows=rows,
        left_stride=0 if single or _is_single(left.shape) else lowering.rows(left.shape[-2:]),
        right_stride=0 if single else lowering.rows(right.shape[-2:]),
        target_stride=0 if single else lowering.rows(output.shape[-2:]),
    )


def _absorbs(graph: Graph, node: Node, makers: Sequence[Node]) -> bool:
    """Whether the left matrix is columns side by side that can be read where they lie, for a packed product."""
    from rerank_engine.kernels.gemm import uses_dot

    left, right = graph.values[node.inputs[0]], graph.constants.get(node.inputs[1])
    if [maker.op for maker in makers] != ["Concat"] or right is None or right.ndim != 2 or uses_dot(right.shape[1]):
        return False
    if (
        left.dtype != "float32"
        or not depends_on_candidates(left.shape)
        or not set(node.inputs[2:]) <= set(graph.constants)
    ):
        return False
    (concat,) = makers
    parts = [graph.values[name] for name in concat.inputs]
    return concat.attributes["axis"] % len(left.shape) == len(left.shape) - 1 and all(
        isinstance(part.shape[-1], int) for part in parts
    )


def _width(value: Value) -> int:
    width = value.shape[-1]
    assert isinstance(width, int), f"{value} was absorbed into a product, which needs its columns"
    return width


def _is_single(shape: Shape) -> bool:
    return all(dim == 1 for dim in shape[:-2])


def _whole_batch(shape: Shape, output: Shape) -> bool:
    """Whether an operand has the batch of the result, or one matrix for all of it."""
    return _is_single(shape) or product(shape[:-2]) == product(output[:-2])


def _lower_general(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels.gemm import Product, activate
    from rerank_engine.kernels.product import multiply_views

    e = lowering.emitter
    kind = Product(0, 0, attribute(node, "activation"), attribute(node, "alpha"))
    multiply_views(
        e,
        lowering.view(node.inputs[0]),
        lowering.view(node.inputs[1]),
        lowering.view(node.outputs[0]),
        bias=lowering.view(node.inputs[2]) if len(node.inputs) == 3 else None,
        finish=(lambda value: activate(e, kind, value)) if kind.activation else None,
    )


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """A row of the result needs its own row on the left, and a right side without candidates or one in the same row."""
    return rows_aligned(node, inputs[:1], outputs) and (
        not depends_on_candidates(inputs[1].shape) or rows_aligned(node, inputs[:2], outputs)
    )


register(
    Operator(
        "MatMul",
        "matrix product, plus a bias row and an activation where a pass has fused them",
        _infer,
        _reference,
        attributes={"activation": "", "alpha": 0.0},
        lower=_lower,
        per_row=_per_row,
        absorbs=_absorbs,
    )
)
