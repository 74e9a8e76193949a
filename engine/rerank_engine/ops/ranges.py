"""Operators that make numbers out of sizes: the named dimensions themselves, and ranges over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import Dim, divide_exactly, names_in, resolve
from rerank_engine.errors import GraphError
from rerank_engine.graph import CANDIDATES, DTYPES, Node, Shape, Value, attribute_shape
from rerank_engine.ops.registry import Array, Operator, attribute, refuse, register

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

_INTEGERS = ("int32", "int64")


def ceil_divide(left: int | Dim, right: int | Dim) -> int | Dim | None:
    """Divide two entries and round up; None where the quotient is no polynomial for every size.

    Only the constant part is rounded, so the factor of every named part must divide exactly.

    >>> ceil_divide(7, 2), ceil_divide(Dim("N", 2) - 1, 2), ceil_divide(Dim("N"), 2)
    (4, Dim('N'), None)
    """
    if isinstance(left, int) and isinstance(right, int):
        return None if right == 0 else -(-left // right)
    if isinstance(left, Dim) and isinstance(right, int) and right > 0:
        constant = next((coefficient for names, coefficient in left.terms if not names), 0)
        named = divide_exactly(left - constant, right)
        return None if named is None else named + -(-constant // right)
    return divide_exactly(left, right)


def _infer_dimensions(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if inputs or attribute(node, "dtype") not in _INTEGERS:
        raise refuse(node, f"takes no input and makes {' or '.join(_INTEGERS)}")
    count = len(attribute_shape(node.attributes["entries"]))
    if attribute(node, "is_scalar") and count != 1:
        raise refuse(node, f"a scalar has one entry, not {count}")
    return [(attribute(node, "dtype"), () if attribute(node, "is_scalar") else (count,))]


def _reference_dimensions(
    _: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    entries = attribute_shape(attributes["entries"])
    if unknown := names_in(entries) - set(attributes["sizes"] or {}):
        raise GraphError(f"Dimensions: no input gives the size of {sorted(unknown)[0]!r}")
    numbers = [resolve(entry, attributes["sizes"]) for entry in entries]
    return [np.array(numbers, DTYPES[attributes["dtype"]]).reshape(shapes[0])]


def _lower_dimensions(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES

    e, dtype = lowering.emitter, attribute(node, "dtype")
    target, entries = lowering.address(node.outputs[0]), attribute_shape(node.attributes["entries"])
    if unknown := names_in(entries) - set(lowering.plan.names) - {CANDIDATES}:
        raise GraphError(f"Dimensions node {node.name!r}: no input gives the size of {sorted(unknown)[0]!r}")
    for index, entry in enumerate(entries):
        number = e.value(lowering.size(entry))
        if dtype == "int32":
            number = e.b.trunc(number, ELEMENT_TYPES[dtype])
        e.store(number, e.at(target, index * ELEMENT_BYTES[dtype]))


def _infer_range(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if inputs or attribute(node, "dtype") not in _INTEGERS:
        raise refuse(node, f"takes no input and makes {' or '.join(_INTEGERS)}")
    shape = attribute_shape(node.attributes["count"])
    if len(shape) != 1:
        raise refuse(node, f"count {shape} must be one number")
    return [(attribute(node, "dtype"), shape)]


def _reference_range(
    _: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    numbers = attributes["start"] + attributes["step"] * np.arange(shapes[0][0], dtype=np.int64)
    return [numbers.astype(DTYPES[attributes["dtype"]])]


def _lower_range(lowering: Lowering, node: Node) -> None:
    from rerank_engine.codegen.emitter import ELEMENT_TYPES, i64

    e, dtype = lowering.emitter, attribute(node, "dtype")
    output = lowering.view(node.outputs[0])

    def one(indices: list[Any]) -> None:
        number = e.b.add(e.b.mul(indices[0], i64(attribute(node, "step"))), i64(attribute(node, "start")))
        output.store(e.b.trunc(number, ELEMENT_TYPES[dtype]) if dtype == "int32" else number, indices)

    e.nest(output.sizes, one)


register(
    Operator(
        "Dimensions",
        "sizes of named dimensions, as numbers to compute with",
        _infer_dimensions,
        _reference_dimensions,
        attributes={"entries": None, "is_scalar": 0, "dtype": "int64"},
        lower=_lower_dimensions,
        uses_sizes=True,
    )
)
register(
    Operator(
        "Range",
        "start, start + step, ...: as many numbers as `count` says",
        _infer_range,
        _reference_range,
        attributes={"count": None, "start": 0, "step": 1, "dtype": "int64"},
        lower=_lower_range,
    )
)
