"""Machine code of AArch64 run in this process by QEMU's processor core, whatever this machine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from unicorn import UC_ARCH_ARM64, UC_MODE_ARM, Uc
from unicorn.arm64_const import (
    UC_ARM64_REG_CPACR_EL1,
    UC_ARM64_REG_LR,
    UC_ARM64_REG_SP,
    UC_ARM64_REG_W0,
    UC_ARM64_REG_X0,
    UC_ARM64_REG_X1,
    UC_ARM64_REG_X2,
    UC_ARM64_REG_X3,
    UC_ARM64_REG_X4,
)

from rerank_engine.binding import bind_sizes
from rerank_engine.codegen.compile import compile_graph
from rerank_engine.codegen.target import named_target
from rerank_engine.graph import Graph
from rerank_engine.interface import from_plain
from rerank_engine.native_call import ENTRY
from rerank_engine.session import Session

Array = NDArray[Any]

_PAGE = 0x1000
_FIRST = 0x10_0000
_STACK_BYTES = 1 << 20
_RETURN = 0x1000
"""An address without code: the emulator stops when the function returns to it."""


class _Code:
    """What a session takes for machine code."""

    direct = None
    weights_address = 0

    def __init__(self, image: Any) -> None:
        self.meta = image.meta
        self.interface = from_plain(self.meta["interface"], image.data[self.meta["interface_offset"] :])


class Emulated:
    """A graph compiled for AArch64, over arrays of this process."""

    def __init__(self, graph: Graph, cpu: str = "aarch64") -> None:
        self.graph = graph
        image = compile_graph(graph, named_target(cpu))
        self._core = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        self._core.reg_write(UC_ARM64_REG_CPACR_EL1, 3 << 20)  # Floating point on.
        self._next = _FIRST
        self._entry = self._place(image.code) + image.meta["entries"][ENTRY]
        self._weights = self._place(image.data)
        self._stack = self._place(bytes(_STACK_BYTES)) + _STACK_BYTES - 64
        code = _Code(image)
        self._session = Session(code)  # type: ignore[arg-type]
        code.call = self._call  # type: ignore[attr-defined]
        self._arena: tuple[int, int] = (0, 0)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        sizes = bind_sizes([self.graph.values[name] for name in self.graph.inputs], feeds, self.graph.maxima)
        return self._session.run(feeds, sizes)

    def _place(self, content: bytes | memoryview) -> int:
        """Copy bytes to pages of the emulated memory, with a page of nothing behind them."""
        address, size = self._next, -(-max(len(content), 1) // _PAGE) * _PAGE
        self._core.mem_map(address, size)
        self._core.mem_write(address, bytes(content))
        self._next += size + _PAGE
        return address

    def _call(self, *arguments: int) -> int:
        session = self._session
        placed = [self._place(array.tobytes()) for array in (session._arena, *session._inputs, *session._outputs)]
        arena, inputs, outputs = placed[0], placed[1 : 1 + len(session._inputs)], placed[1 + len(session._inputs) :]
        tables = [self._place(np.array([*addresses, 0], np.uint64).tobytes()) for addresses in (inputs, outputs)]
        registers = (UC_ARM64_REG_X0, UC_ARM64_REG_X1, UC_ARM64_REG_X2, UC_ARM64_REG_X3, UC_ARM64_REG_X4)
        values = (self._weights, arena, *tables, arguments[-1])
        for register, value in zip(registers, values, strict=True):
            self._core.reg_write(register, value)
        self._core.reg_write(UC_ARM64_REG_SP, self._stack)
        self._core.reg_write(UC_ARM64_REG_LR, _RETURN)
        self._core.emu_start(self._entry, _RETURN)
        for address, array in zip((arena, *outputs), (session._arena, *session._outputs), strict=True):
            raw = np.frombuffer(self._core.mem_read(address, array.nbytes), np.uint8)
            array.view(np.uint8)[...] = raw
        return int(np.uint32(self._core.reg_read(UC_ARM64_REG_W0)).astype(np.int32))
