"""One matrix product as machine code of its own, to be checked and timed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from rerank_engine.arena import PADDING, aligned_bytes
from rerank_engine.codegen.assembly import compile_assembly
from rerank_engine.codegen.elf import FlatImage
from rerank_engine.codegen.emitter import I64, POINTER, Emitter
from rerank_engine.codegen.function import module_text
from rerank_engine.codegen.target import Target
from rerank_engine.image import ExecutableMemory
from rerank_engine.kernels.gemm import Product, Tiling, multiply_panels
from rerank_engine.ops.registry import OPERATORS
from rerank_engine.packing import pack

ENTRY = "kernel"
TOLERANCE = 2e-6
"""Largest error against float64, relative to the largest result."""

Float32 = NDArray[np.float32]


def build_kernel(product: Product, tiling: Tiling, target: Target, rows: int) -> FlatImage:
    """Machine code of ``kernel(left, right, bias, target, times)``, which multiplies ``rows`` rows ``times`` times.

    Raises
    ------
    CompileError
        The compiler refused it.
    """
    module = ir.Module(name="kernel")
    module.triple = target.triple
    once = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), "once")
    once.linkage = "internal"
    once.attributes.add("noinline")
    e = Emitter(ir.IRBuilder(once.append_basic_block("entry")), target.lanes)
    left, right, bias, result = once.args
    multiply_panels(
        e,
        product,
        tiling,
        target.registers,
        lefts=[left],
        right=right,
        bias=bias if product.has_bias else None,
        target=result,
        rows=rows,
    )
    e.b.ret_void()
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4 + [I64]), ENTRY)
    e = Emitter(ir.IRBuilder(kernel.append_basic_block("entry")), target.lanes)
    *arguments, times = kernel.args
    e.each(times, lambda _: e.b.call(once, arguments))
    e.b.ret_void()
    return compile_assembly(module_text(module, target), target, ENTRY)


@dataclass
class Operands:
    """Random operands of a product, and the right result.

    Attributes
    ----------
    left, right, bias
        Of shapes (rows, inner), (inner, columns) and (columns,).
    want
        The result in float64.
    """

    left: Float32
    right: Float32
    bias: Float32
    want: NDArray[np.float64]

    @classmethod
    def draw(cls, product: Product, rows: int, seed: int = 0) -> Operands:
        """Draw operands whose results are of the order of one."""
        random = np.random.default_rng(seed)
        left = random.normal(size=(rows, product.inner)).astype(np.float32)
        right = random.normal(0, product.inner**-0.5, (product.inner, product.columns)).astype(np.float32)
        bias = random.normal(size=product.columns).astype(np.float32)
        given = [array.astype(np.float64) for array in (left, right, bias)[: 3 if product.has_bias else 2]]
        attributes = {"activation": product.activation, "alpha": product.alpha}
        (want,) = OPERATORS["MatMul"].reference(given, attributes, [(rows, product.columns)])
        return cls(left, right, bias, want)


class Kernel:
    """A product in memory, ready to be called.

    Parameters
    ----------
    code
        What :func:`build_kernel` made.
    product, tiling, target
        What it is.
    operands
        What it multiplies.
    """

    def __init__(self, code: FlatImage, product: Product, tiling: Tiling, target: Target, operands: Operands) -> None:
        self._memory = ExecutableMemory(code.code)
        kind: Callable[..., Any] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
        self._call = kind(self._memory.address + code.entries[ENTRY])
        self._want = operands.want
        width = tiling.vectors * target.lanes
        # Room for what must not be written there.
        self._result = _aligned(operands.want.size + 2 * product.columns)
        self._buffers = [
            _filled(operands.left.reshape(-1)),
            _filled(pack(operands.right, "panels", width)),
            _filled(pack(operands.bias, "padded", width)),
            self._result,
        ]
        self._addresses = [buffer.ctypes.data for buffer in self._buffers]

    def error(self) -> str:
        """What is wrong with the result; empty when it is right and nothing else was written."""
        self._result[:] = np.nan
        self._call(*self._addresses, 1)
        want = self._want
        if not np.isnan(self._result[want.size :]).all():
            return "it writes behind its last row"
        difference = np.abs(self._result[: want.size].reshape(want.shape) - want).max(initial=0.0)
        largest = np.abs(want).max(initial=0.0)
        if not difference <= TOLERANCE * largest:
            return f"off by {difference:.2g} where the largest result is {largest:.2g}"
        return ""

    def time_ns(self, times: int) -> float:
        """Nanoseconds of one of ``times`` products."""
        started = perf_counter_ns()
        self._call(*self._addresses, times)
        return (perf_counter_ns() - started) / times


def _aligned(size: int) -> Float32:
    return aligned_bytes(4 * size + PADDING).view(np.float32)


def _filled(values: Float32) -> Float32:
    buffer = _aligned(values.size)
    buffer[: values.size] = values
    return buffer
