"""Matrix products: weights packed for the tile, or two computed matrices; bias and activation ride along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import (
    Dim,
    Node,
    Shape,
    Value,
    depends_on_candidates,
    elements_per_candidate,
    is_per_candidate,
    shape_text,
)
from rerank_engine.ops.registry import OPERATORS, Array, Operator, broadcast, refuse, register, rows_aligned

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

FUSED_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu")
"""Activations that a matrix product may apply to its result before storing it."""


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    left, right = inputs[:2]
    if node.attributes.get("activation", "") not in ("", *FUSED_ACTIVATIONS):
        raise refuse(node, f"activation {node.attributes['activation']!r} is not one of {', '.join(FUSED_ACTIVATIONS)}")
    if len(inputs) > 3:
        raise refuse(node, f"takes two matrices and a bias, has {len(inputs)} inputs")
    if left.dtype != "float32" or right.dtype != "float32":
        raise refuse(node, f"only float32 is supported, has {left} and {right}")
    if len(left.shape) < 1 or len(right.shape) < 2:
        raise refuse(node, f"needs matrices, has {left} and {right}")
    if len(left.shape) == 1:
        raise refuse(node, f"a vector on the left is not supported: {left}")
    if len(right.shape) == 2 and is_per_candidate(right.shape):
        raise refuse(node, f"a right-hand matrix whose rows are candidates is not supported: {right}")
    inner = left.shape[-1]
    if isinstance(inner, Dim) or inner != right.shape[-2]:
        raise refuse(node, f"inner dimensions differ: {shape_text(left.shape)} and {shape_text(right.shape)}")
    if len(left.shape) == 2 and is_per_candidate(left.shape) and len(right.shape) > 2:
        raise refuse(node, f"{shape_text(left.shape)} times {shape_text(right.shape)} mixes candidates")
    if len(right.shape) == 2:
        shape = (*left.shape[:-1], right.shape[-1])
    else:
        batch = broadcast(node, [left.shape[:-2], right.shape[:-2]])
        shape = (*batch, left.shape[-2], right.shape[-1])
    if len(inputs) == 3 and (inputs[2].dtype, inputs[2].shape) != ("float32", (right.shape[-1],)):
        raise refuse(node, f"bias {inputs[2]} must be float32({right.shape[-1]},)")
    return [("float32", shape)]


def _reference(inputs: Sequence[Array], attributes: Mapping[str, Any], _: Sequence[tuple[int, ...]]) -> list[Array]:
    with np.errstate(all="ignore"):
        result = inputs[0] @ inputs[1]
        if len(inputs) == 3:
            result = result + inputs[2]
    if attributes.get("activation"):
        activation = OPERATORS[attributes["activation"]]
        extra = {"alpha": attributes["alpha"]} if "alpha" in activation.attributes else {}
        return activation.reference([result], extra, [result.shape])
    return [result]


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import gemm

    if len(node.inputs) == 3 and node.inputs[2] not in lowering.graph.constants:
        raise refuse(node, f"bias {node.inputs[2]!r} must be constant")
    left, right = lowering.values[node.inputs[0]], lowering.values[node.inputs[1]]
    inner, columns = elements_per_candidate(right.shape[-2:-1]), elements_per_candidate(right.shape[-1:])
    product = gemm.Product(
        inner=inner,
        columns=columns,
        activation=node.attributes.get("activation", ""),
        alpha=node.attributes.get("alpha", 0.0),
        has_bias=len(node.inputs) == 3,
    )
    if node.inputs[1] in lowering.graph.constants and len(right.shape) == 2:
        gemm.multiply_packed(
            lowering,
            product,
            left=lowering.address(node.inputs[0]),
            rows=lowering.rows(left.shape[:-1]),
            weight=node.inputs[1],
            bias=node.inputs[2] if product.has_bias else None,
            target=lowering.address(node.outputs[0]),
        )
        return
    batched = len(right.shape) > 2
    output = lowering.values[node.outputs[0]]
    rows_left = elements_per_candidate(left.shape[-2:-1])
    gemm.multiply_batched(
        lowering,
        product,
        left=lowering.address(node.inputs[0]),
        right=lowering.address(node.inputs[1]),
        target=lowering.address(node.outputs[0]),
        bias=node.inputs[2] if product.has_bias else None,
        batch=lowering.rows(output.shape[:-2]) if batched else lowering.rows(()),
        rows=lowering.rows(left.shape[-2:-1]) if batched else lowering.rows(left.shape[:-1]),
        left_stride=_batch_stride(left.shape, output.shape, rows_left * inner) if batched else 0,
        right_stride=_batch_stride(right.shape, output.shape, inner * columns) if batched else 0,
        target_stride=rows_left * columns if batched else 0,
    )


def _batch_stride(shape: Shape, output: Shape, matrix: int) -> int:
    """Elements from one matrix of a batch to the next: 0 when the whole batch shares one."""
    return 0 if _is_single(shape[:-2]) and not _is_single(output[:-2]) else matrix


def _is_single(batch: Shape) -> bool:
    return not is_per_candidate(batch) and elements_per_candidate(batch) == 1


def check_batches(node: Node, inputs: Sequence[Value]) -> None:
    """Refuse batches that are broadcast along some axes only; all or nothing is supported."""
    left, right = inputs[0].shape[:-2], inputs[1].shape[:-2]
    if not right or left == right or any(_is_single(batch) for batch in (left, right)):
        return
    raise refuse(node, f"batch dimensions {shape_text(left)} and {shape_text(right)} are broadcast in part")


def _infer_checked(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    result = _infer(node, inputs)
    check_batches(node, inputs)
    return result


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """A row of the result needs its own row on the left, and a right side without candidates or one in the same row."""
    return rows_aligned(node, inputs[:1], outputs) and (
        not depends_on_candidates(inputs[1].shape) or rows_aligned(node, inputs[:2], outputs)
    )


register(
    Operator(
        "MatMul",
        "matrix product, plus a bias row and an activation where a pass has fused them",
        _infer_checked,
        _reference,
        attributes={"activation": "", "alpha": 0.0},
        lower=_lower,
        per_row=_per_row,
    )
)
