"""A thin layer over llvmlite's builder, in the terms of kernels: addresses, vectors, loops with carried values.

The same emitters serve every target: vectors are LLVM's portable vector types, fused multiply-add is
``llvm.fmuladd`` (which never becomes a library call), and a width of one is a plain scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir

from rerank_engine.graph import DTYPES

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
F64 = ir.DoubleType()
POINTER = ir.PointerType()

ELEMENT_TYPES: dict[str, ir.Type] = {
    "float32": F32,
    "float64": F64,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "uint8": I8,
    "uint16": I16,
    "uint32": I32,
    "uint64": I64,
    "bool": I8,
}
"""How each dtype lies in memory. Integers carry no sign in LLVM: what depends on it asks the dtype."""

ELEMENT_BYTES: dict[str, int] = {name: DTYPES[name].itemsize for name in ELEMENT_TYPES}

Carried = list[Any]
Index: TypeAlias = "ir.Value | int"
"""A 64-bit count, index or stride: known now, or known when the code runs."""


def i64(value: int) -> ir.Constant:
    """A 64-bit integer constant."""
    return ir.Constant(I64, value)


def widen(element: ir.Type, width: int) -> ir.Type:
    """The vector of ``width`` elements, or the element itself for a width of one."""
    return element if width == 1 else ir.VectorType(element, width)


def width_of(value: ir.Value) -> int:
    """Lanes of an IR value."""
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def element_of(value: ir.Value) -> ir.Type:
    """Element type of an IR value."""
    return value.type.element if isinstance(value.type, ir.VectorType) else value.type


def pieces(length: int, lanes: int) -> list[tuple[int, int]]:
    """Cut ``length`` elements into (start, width) pieces of at most ``lanes``, widths powers of two.

    >>> pieces(43, 16)
    [(0, 16), (16, 16), (32, 8), (40, 2), (42, 1)]
    """
    cut, start, width = [], 0, lanes
    while start < length:
        while width > length - start:
            width //= 2
        cut.append((start, width))
        start += width
    return cut


class Emitter:
    """Writes instructions of one function.

    Parameters
    ----------
    builder
        Positioned where the next instruction goes.
    lanes
        float32 lanes of the target's widest useful vector, a power of two.
    """

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.b = builder
        self.lanes = lanes

    # --- constants -----------------------------------------------------------------------------------------

    def splat_constant(self, element: ir.Type, width: int, number: float | int) -> ir.Constant:
        """A constant in every lane."""
        if width == 1:
            return ir.Constant(element, number)
        return ir.Constant(ir.VectorType(element, width), [number] * width)

    def like(self, value: ir.Value, number: float | int) -> ir.Constant:
        """A constant of the same type as ``value``."""
        return self.splat_constant(element_of(value), width_of(value), number)

    # --- memory --------------------------------------------------------------------------------------------

    def value(self, index: Index) -> ir.Value:
        """An index as an instruction's operand."""
        return i64(index) if isinstance(index, int) else index

    def mul(self, left: Index, right: Index) -> Index:
        """Product of two indices, computed now where both are known."""
        if isinstance(left, int) and isinstance(right, int):
            return left * right
        for one, other in ((left, right), (right, left)):
            if isinstance(one, int) and one in (0, 1):
                return other if one else 0
        return self.b.mul(self.value(left), self.value(right))

    def add(self, left: Index, right: Index) -> Index:
        """Sum of two indices, computed now where both are known."""
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        if isinstance(left, int) and left == 0:
            return right
        if isinstance(right, int) and right == 0:
            return left
        return self.b.add(self.value(left), self.value(right))

    def sub(self, left: Index, right: Index) -> Index:
        """Difference of two indices, computed now where both are known."""
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        return left if isinstance(right, int) and right == 0 else self.b.sub(self.value(left), self.value(right))

    def at(self, base: ir.Value, byte_offset: Index) -> ir.Value:
        """The address ``byte_offset`` bytes after ``base``."""
        if isinstance(byte_offset, int):
            if byte_offset == 0:
                return base
            byte_offset = i64(byte_offset)
        return self.b.gep(base, [byte_offset], source_etype=I8)

    def load(self, address: ir.Value, element: ir.Type, width: int = 1) -> ir.Value:
        """Load ``width`` elements; aligned to the element only."""
        return self.b.load(address, align=_bytes(element), typ=widen(element, width))

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Store all lanes of ``value``; aligned to the element only."""
        self.b.store(value, address, align=_bytes(element_of(value)))

    def store_lanes(self, value: ir.Value, address: ir.Value, count: int) -> None:
        """Store only the first ``count`` lanes."""
        width, size = width_of(value), _bytes(element_of(value))
        if count >= width:
            self.store(value, address)
            return
        for start, part in pieces(count, width):
            self.store(self.slice_lanes(value, start, part), self.at(address, start * size))

    def slice_lanes(self, value: ir.Value, start: int, count: int) -> ir.Value:
        """Lanes ``start`` to ``start + count`` of a vector."""
        if count == 1:
            return self.b.extract_element(value, ir.Constant(I32, start))
        undefined = ir.Constant(value.type, ir.Undefined)
        mask = ir.Constant(ir.VectorType(I32, count), list(range(start, start + count)))
        return self.b.shuffle_vector(value, undefined, mask)

    def splat(self, scalar: ir.Value, width: int) -> ir.Value:
        """Copy a scalar to every lane."""
        if width == 1:
            return scalar
        undefined = ir.Constant(ir.VectorType(scalar.type, width), ir.Undefined)
        one = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, width), [0] * width))

    # --- arithmetic ----------------------------------------------------------------------------------------

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """Call an LLVM intrinsic whose name carries the type of its first argument."""
        kind = arguments[0].type
        suffix = type_suffix(kind)
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        full = f"{name}.{suffix}"
        function = self.b.module.globals.get(full) or ir.Function(self.b.module, function_type, full)
        return self.b.call(function, list(arguments))

    def fma(self, left: ir.Value, right: ir.Value, addend: ir.Value) -> ir.Value:
        """``left * right + addend``, fused where the target can."""
        return self.intrinsic("llvm.fmuladd", left.type, [left, right, addend])

    def maximum(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """The larger of two; NaN when either is NaN."""
        larger = self.b.select(self.b.fcmp_ordered(">", left, right), left, right)
        return self.b.select(self.b.fcmp_unordered("uno", left, left), left, larger)

    def minimum(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """The smaller of two; NaN when either is NaN."""
        smaller = self.b.select(self.b.fcmp_ordered("<", left, right), left, right)
        return self.b.select(self.b.fcmp_unordered("uno", left, left), left, smaller)

    def sum_lanes(self, value: ir.Value) -> ir.Value:
        """Add all lanes, halves first, so that the order is the same on every target."""
        width = width_of(value)
        while width > 1:
            width //= 2
            low = self.slice_lanes(value, 0, width)
            high = self.slice_lanes(value, width, width)
            value = self.b.fadd(low, high)
        return value

    def max_lanes(self, value: ir.Value) -> ir.Value:
        """The largest lane; NaN when any lane is NaN."""
        width = width_of(value)
        while width > 1:
            width //= 2
            value = self.maximum(self.slice_lanes(value, 0, width), self.slice_lanes(value, width, width))
        return value

    # --- control -------------------------------------------------------------------------------------------

    def loop(
        self,
        start: ir.Value | int,
        stop: ir.Value | int,
        step: int,
        body: Callable[[ir.Value, Carried], Carried | None],
        carried: Sequence[ir.Value] = (),
    ) -> tuple[ir.Value, Carried]:
        """Run ``body(index, carried)`` while ``index + step <= stop``; return where it ended and what it carried.

        The index that comes back is the first one that was not handled: the start of the remainder.
        """
        first = i64(start) if isinstance(start, int) else start
        last = i64(stop) if isinstance(stop, int) else stop
        entry = self.b.block
        head = self.b.append_basic_block("head")
        inside = self.b.append_basic_block("body")
        after = self.b.append_basic_block("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(first, entry)
        values: Carried = []
        for value in carried:
            phi = self.b.phi(value.type)
            phi.add_incoming(value, entry)
            values.append(phi)
        following = self.b.add(index, i64(step), flags=("nsw",))
        self.b.cbranch(self.b.icmp_signed("<=", following, last), inside, after)
        self.b.position_at_end(inside)
        results = body(index, list(values)) or []
        index.add_incoming(following, self.b.block)
        for phi, result in zip(values, results, strict=True):
            phi.add_incoming(result, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return index, values

    def nest(self, sizes: Sequence[Index], body: Callable[[list[ir.Value]], None]) -> None:
        """Run ``body(indices)`` for every index of an array of these sizes, the last one fastest."""

        def walk(axis: int, indices: list[ir.Value]) -> None:
            if axis == len(sizes):
                body(indices)
            else:
                self.each(sizes[axis], lambda index: walk(axis + 1, [*indices, index]))

        walk(0, [])

    def each(self, stop: Index, body: Callable[[ir.Value], None]) -> None:
        """Run ``body(index)`` for every index below ``stop``; a single round is written without a loop."""
        if isinstance(stop, int) and stop == 1:
            body(i64(0))
            return

        def step(index: ir.Value, _: Carried) -> None:
            body(index)

        self.loop(0, stop, 1, step)


def _bytes(element: ir.Type) -> int:
    if isinstance(element, ir.FloatType):
        return 4
    return 8 if isinstance(element, ir.DoubleType) else max(1, element.width // 8)


def type_suffix(kind: ir.Type) -> str:
    """How a type stands in the names of LLVM's intrinsics."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{type_suffix(kind.element)}"
    if isinstance(kind, ir.PointerType):
        return "p0"
    if isinstance(kind, ir.DoubleType):
        return "f64"
    return "f32" if isinstance(kind, ir.FloatType) else f"i{kind.width}"
