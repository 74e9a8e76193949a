"""Einstein summation of any operands; the importer turns what is a matrix product into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Dim, Node, Shape, Value, depends_on_candidates, is_per_candidate
from rerank_engine.ops.registry import Array, Operator, refuse, register

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Index
    from rerank_engine.codegen.lowering import Lowering

_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")


def split_equation(equation: str) -> tuple[list[str], str]:
    """Subscripts of the operands and of the result.

    >>> split_equation("bij,bjk->bik")
    (['bij', 'bjk'], 'bik')
    """
    left, _, right = equation.partition("->")
    return left.split(","), right


def _sizes(node: Node, inputs: Sequence[Value]) -> dict[str, int | Dim]:
    operands, result = split_equation(node.attributes["equation"])
    if len(operands) != len(inputs):
        raise refuse(node, f"equation {node.attributes['equation']!r} has {len(operands)} operands for {len(inputs)}")
    sizes: dict[str, int | Dim] = {}
    for subscripts, value in zip(operands, inputs, strict=True):
        if len(subscripts) != len(value.shape) or not (subscripts.isalpha() or not subscripts):
            raise refuse(node, f"subscripts {subscripts!r} do not fit {value}")
        for letter, dim in zip(subscripts, value.shape, strict=True):
            if sizes.setdefault(letter, dim) != dim:
                raise refuse(node, f"subscript {letter!r} stands for {sizes[letter]} and for {dim}")
    if len(set(result)) != len(result) or not set(result) <= set(sizes):
        raise refuse(node, f"the result {result!r} repeats or invents a subscript")
    return sizes


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    dtype = inputs[0].dtype
    if dtype not in _DTYPES or any(value.dtype != dtype for value in inputs):
        raise refuse(node, f"needs operands of one dtype of {', '.join(_DTYPES)}, has {', '.join(map(str, inputs))}")
    sizes = _sizes(node, inputs)
    _, result = split_equation(node.attributes["equation"])
    return [(dtype, tuple(sizes[letter] for letter in result))]


def _reference(inputs: Sequence[Array], attributes: Mapping[str, Any], _: Sequence[tuple[int, ...]]) -> list[Array]:
    return [np.asarray(np.einsum(attributes["equation"], *inputs))]


def _per_row(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Rows are independent when one subscript alone counts candidates, and leads the result and what has it."""
    operands, result = split_equation(node.attributes["equation"])
    lead = result[:1]
    return (
        is_per_candidate(outputs[0].shape)
        and all(lead not in subscripts[1:] for subscripts in operands)
        and all(letter == lead for letter, dim in _sizes(node, inputs).items() if depends_on_candidates((dim,)))
    )


def _lower(lowering: Lowering, node: Node) -> None:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import ELEMENT_TYPES, F32, F64

    e = lowering.emitter
    operands, result = split_equation(node.attributes["equation"])
    sizes = {
        letter: lowering.size(dim)
        for letter, dim in _sizes(node, [lowering.values[name] for name in node.inputs]).items()
    }
    views = [lowering.view(name) for name in node.inputs]
    output = lowering.view(node.outputs[0])
    summed = [letter for letter in sizes if letter not in result]
    floats, single = output.dtype.startswith("float"), output.dtype == "float32"
    # One running sum over any number of terms loses digits in float32.
    zero = ir.Constant(F64 if floats else ELEMENT_TYPES[output.dtype], 0)

    def term(indices: Mapping[str, Index]) -> ir.Value:
        total = None
        for view, subscripts in zip(views, operands, strict=True):
            value = view.load([indices[letter] for letter in subscripts])
            value = e.b.fpext(value, F64) if single else value
            total = value if total is None else e.b.fmul(total, value) if floats else e.b.mul(total, value)
        return total

    def add(axis: int, indices: dict[str, Index], total: ir.Value) -> ir.Value:
        if axis == len(summed):
            return e.b.fadd(total, term(indices)) if floats else e.b.add(total, term(indices))
        letter = summed[axis]
        _, (done,) = e.loop(
            0, sizes[letter], 1, lambda index, sums: [add(axis + 1, {**indices, letter: index}, sums[0])], [total]
        )
        return done

    def one(indices: list[ir.Value]) -> None:
        total = add(0, dict(zip(result, indices, strict=True)), zero)
        output.store(e.b.fptrunc(total, F32) if single else total, indices)

    e.nest(output.sizes, one)


register(
    Operator(
        "Einsum",
        "sum of products by subscripts, such as 'bij,bjk->bik'",
        _infer,
        _reference,
        attributes={"equation": None},
        lower=_lower,
        per_row=_per_row,
    )
)
