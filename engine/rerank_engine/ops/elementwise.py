"""What the elementwise operators share: dtypes, shape rules, NumPy references, and code that asks the dtype.

An elementwise operator follows NumPy's broadcasting, and the plan fuses neighbours into one loop. It writes the code of
one vector of elements; the dtypes of its inputs come along as the attribute ``dtypes``, since integers carry no sign in
LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES, Node, Shape, Value
from rerank_engine.ops.registry import Array, Infer, Operator, Pointwise, Reference, broadcast, refuse, register

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter

Args = Sequence["ir.Value"]
Attributes = Mapping[str, Any]

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = tuple(DTYPES)


def infer_elementwise(dtypes: Sequence[str], arity: int, result: str | None = None) -> Infer:
    """Build the shape rule of an operator whose inputs share one dtype.

    Parameters
    ----------
    dtypes
        Those that the operator takes.
    arity
        Number of inputs.
    result
        Dtype of the result; that of the inputs when left out.
    """

    def infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
        require_inputs(node, inputs, arity)
        dtype = inputs[0].dtype
        if any(value.dtype != dtype for value in inputs):
            raise refuse(node, f"inputs differ in dtype: {', '.join(map(str, inputs))}")
        if dtype not in dtypes:
            raise refuse(node, f"dtype {dtype} is not supported; supported: {', '.join(dtypes)}")
        return [(result or dtype, broadcast(node, [value.shape for value in inputs]))]

    return infer


def require_inputs(node: Node, inputs: Sequence[Value], arity: int) -> None:
    """Refuse another number of inputs."""
    if len(inputs) != arity:
        raise refuse(node, f"takes {arity} input{'s' if arity > 1 else ''}, has {len(inputs)}")


def reference_of(function: Callable[..., Any]) -> Reference:
    """Make a reference of a NumPy function that takes the inputs, and the attributes by name."""

    def reference(inputs: Sequence[Array], attributes: Attributes, _: Sequence[tuple[int, ...]]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(*inputs, **attributes))]

    return reference


def add_operator(
    name: str,
    summary: str,
    infer: Infer,
    function: Callable[..., Any],
    emit: Pointwise,
    attributes: Attributes | None = None,
) -> None:
    """Put an operator into the table whose reference is one NumPy function."""
    register(Operator(name, summary, infer, reference_of(function), attributes=attributes or {}, pointwise=emit))


# --- code ------------------------------------------------------------------------------------------------------


def is_float(value: ir.Value) -> bool:
    """Whether the elements are floats of either size."""
    from rerank_engine.codegen.emitter import F32, F64, element_of

    return element_of(value) in (F32, F64)


def is_unsigned(attributes: Attributes) -> bool:
    """Whether the first input is of a dtype without a sign."""
    return attributes["dtypes"][0] in UNSIGNED


def emit_function(name: str) -> Pointwise:
    """Call one of :mod:`rerank_engine.kernels.math` on the inputs."""

    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        from rerank_engine.kernels import math

        return getattr(math, name)(e, *args)

    return emit


def emit_instruction(float_name: str, int_name: str) -> Pointwise:
    """One instruction for floats, another for integers of any kind."""

    def emit(e: Emitter, args: Args, _: Attributes) -> ir.Value:
        return getattr(e.b, float_name if is_float(args[0]) else int_name)(*args)

    return emit


def emit_copy(_: Emitter, args: Args, __: Attributes) -> ir.Value:
    """The element itself."""
    return args[0]


def compare(e: Emitter, symbol: str, left: ir.Value, right: ir.Value, *, unsigned: bool = False) -> ir.Value:
    """Compare elements; one bit each. With NaN only ``!=`` holds."""
    if is_float(left):
        return e.b.fcmp_unordered("!=", left, right) if symbol == "!=" else e.b.fcmp_ordered(symbol, left, right)
    return (e.b.icmp_unsigned if unsigned else e.b.icmp_signed)(symbol, left, right)
