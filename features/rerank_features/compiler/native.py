"""What the kernels need beside plain loops: arrays at given addresses, and functions without a library call.

Numba compiles the kernels, but nothing of Numba is there when they run: no allocation, no reference counts, no C
library. So arrays come from a table of addresses, and a function that returns an array cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from rerank_engine.codegen.emitter import Emitter
from rerank_engine.kernels import math as functions

OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""How every kernel is compiled. No fast-math: the same sums in the same order on every machine."""

compiled = njit(**OPTIONS)
"""Decorator of every kernel."""


def _array(context: Any, builder: ir.IRBuilder, kind: Any, address: ir.Value, shape: list[ir.Value]) -> Any:
    """The array of a type at an address."""
    size = ir.Constant(address.type, kind.dtype.bitwidth // 8)
    strides = [builder.mul(shape[1], size), size] if len(shape) == 2 else [size]
    array = make_array(kind)(context, builder)
    data = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()


def _in_table(dtype: Any, dimensions: int) -> Any:
    kind = types.Array(dtype, dimensions, "C")

    @intrinsic
    def view(_: Any, table: Any, cell: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            base, first = arguments
            cells = builder.inttoptr(base, base.type.as_pointer())

            def read(further: int) -> ir.Value:
                place = builder.add(first, ir.Constant(first.type, further))
                return builder.load(builder.gep(cells, [place]))

            return _array(context, builder, kind, read(0), [read(1 + axis) for axis in range(dimensions)])

        return kind(types.int64, types.int64), codegen

    return view


def _at_address(dtype: Any) -> Any:
    kind = types.Array(dtype, 1, "C")

    @intrinsic
    def view(_: Any, address: Any, count: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return _array(context, builder, kind, arguments[0], [arguments[1]])

        return kind(types.int64, types.int64), codegen

    return view


ints = _in_table(types.int64, 1)
"""``ints(table, cell)``: the array whose address and sizes lie in cells ``cell`` and following of a table."""
int_rows = _in_table(types.int64, 2)
floats = _in_table(types.float64, 1)
float_rows = _in_table(types.float64, 2)
singles = _in_table(types.float32, 1)
single_rows = _in_table(types.float32, 2)
rows32 = _in_table(types.int32, 1)
row_matrix32 = _in_table(types.int32, 2)
byte_rows = _in_table(types.uint8, 2)
record = _at_address(types.int64)
"""``record(address, count)``: so many integers at an address."""
float_record = _at_address(types.float64)
row_record = _at_address(types.int32)


@intrinsic
def matrix(_: Any, array: Any, rows: Any, columns: Any) -> Any:
    """The first elements of a contiguous array as rows. NumPy's ``reshape`` would need Numba's library."""
    kind = types.Array(array.dtype, 2, "C")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        flat = make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.ptrtoint(flat.data, ir.IntType(64))
        return _array(context, builder, kind, address, list(arguments[1:]))

    return kind(array, types.int64, types.int64), codegen


class _SameEverywhere(Emitter):
    """Never fuses a product with a sum, so that targets with and without the instruction agree in every bit."""

    def fma(self, left: ir.Value, right: ir.Value, addend: ir.Value) -> ir.Value:
        return self.b.fadd(self.b.fmul(left, right), addend)


def _function(write: Callable[[Emitter, ir.Value], ir.Value]) -> Any:
    @intrinsic
    def function(_: Any, x: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return write(_SameEverywhere(builder, 1), arguments[0])

        return types.float64(types.float64), codegen

    return function


log1p = _function(functions.logarithm_one_plus)
"""``log(1 + x)``, float64, the same bits on every target."""

exp = _function(functions.exponential)
"""``e**x``, float64, the same bits on every target."""


square_root = _function(functions.square_root)
"""Correctly rounded, float64."""

sine = _function(functions.sine)
"""float64, the same bits on every target."""

cosine = _function(functions.cosine)
"""float64, the same bits on every target."""
