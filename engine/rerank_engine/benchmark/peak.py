"""The most arithmetic that one core does: a loop of multiply-adds that wait for nothing but each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter_ns

from rerank_engine.codegen.assembly import compile_assembly
from rerank_engine.codegen.target import Target, host_target
from rerank_engine.image import ExecutableMemory

_ENTRY = "peak"
_CHAINS = 12
"""More than latency times issue width of any common core (4 or 5 cycles, 2 or 4 a cycle), and fewer than registers."""
_ROUNDS = 20_000
_REPEATS = 60


def peak_gflops() -> float:
    """Measure float32 multiply-adds of one core, in 10**9 operations a second; the best of many short runs.

    Raises
    ------
    CompileError
        No machine code can be made or run here.

    Examples
    --------
    >>> peak_gflops() > 0
    True
    """
    target = host_target()
    flat = compile_assembly(_assembly(target), target, _ENTRY)
    memory = ExecutableMemory(flat.code)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(memory.address + flat.entries[_ENTRY])
    values = (ctypes.c_float * (target.lanes * _CHAINS))()
    shortest_ns = min(_time(run, ctypes.addressof(values)) for _ in range(_REPEATS))
    return 2 * target.lanes * _CHAINS * _ROUNDS / shortest_ns


def _time(run: Callable[[int, int], object], address: int) -> int:
    started = perf_counter_ns()
    run(address, _ROUNDS)
    return perf_counter_ns() - started


def _assembly(target: Target) -> str:
    """A loop over independent accumulators, which are stored at the end so that none is dropped."""
    vector = f"<{target.lanes} x float>"
    chains = range(_CHAINS)
    factor = f"{vector} splat (float 0x3FEFFFFFE0000000)"
    lines = [
        f"declare {vector} @llvm.fmuladd.v{target.lanes}f32({vector}, {vector}, {vector})",
        f"define {target.calling_convention} void @{_ENTRY}(ptr %out, i64 %rounds) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %round = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in chains),
        *(
            f"  %b{i} = call {vector} @llvm.fmuladd.v{target.lanes}f32({vector} %a{i}, {factor}, {factor})"
            for i in chains
        ),
        "  %next = add i64 %round, 1",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %end",
        "end:",
    ]
    for i in chains:
        lines.append(f"  %p{i} = getelementptr {vector}, ptr %out, i64 {i}")
        lines.append(f"  store {vector} %b{i}, ptr %p{i}, align 4")
    return "\n".join([*lines, "  ret void", "}", ""])
