"""A graph becomes a ready image: planned, generated, compiled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from rerank_engine.arena import PADDING, aligned_bytes, joined_bytes, round_up
from rerank_engine.codegen.assembly import compile_assembly
from rerank_engine.codegen.function import generate
from rerank_engine.codegen.target import Target, host_target
from rerank_engine.graph import Graph
from rerank_engine.image import Image
from rerank_engine.interface import interface_of, to_plain
from rerank_engine.kernels.gemm import Tilings
from rerank_engine.packing import pack_all
from rerank_engine.plan import Plan, make_plan
from rerank_engine.session import first_room

_RUNS = {"once": "once", "block": "per block", "whole": "for the whole list"}


def compile_graph(graph: Graph, target: Target | None = None, tilings: Tilings | None = None) -> Image:
    """Plan, generate and compile a graph for a target (default: this machine), with measured tilings if there are any.

    Raises
    ------
    UnsupportedOperatorError
        A node cannot be lowered.
    CompileError
        No machine code could be made.
    """
    started = time.perf_counter()
    target = target or host_target()
    plan = make_plan(graph)
    generated = generate(plan, target, tilings or {})
    flat = compile_assembly(generated.assembly, target, *generated.entries)
    interface = interface_of(graph)
    plain, arrays = to_plain(interface)
    data, interface_offset = _data(plan, arrays)
    meta: dict[str, Any] = {
        "entries": flat.entries,
        "arena_bytes": plan.fixed_bytes,
        "interface": plain,
        "interface_offset": interface_offset,
        "names": list(plan.names),
        "dynamic": [[buffer.name, str(buffer.size_bytes), buffer.first, buffer.last] for buffer in plan.dynamic],
        "weight_bytes": plan.weight_bytes,
        "block": plan.block,
        "target": {"triple": target.triple, "cpu": target.cpu, "lanes": target.lanes, "registers": target.registers},
        "reports": list(generated.reports),
        "steps": [
            {"label": step.label, "writes": ", ".join(step.writes), "runs": _RUNS[step.mode]} for step in plan.steps
        ],
        "compile_ms": round((time.perf_counter() - started) * 1e3, 1),
    }
    meta["first"] = first_room(meta, interface)
    return Image(flat.code, meta, data)


def _data(plan: Plan, arrays: Sequence[NDArray[Any]]) -> tuple[memoryview, int]:
    """Packed constants, some nothing that vectors may reach into, the interface's arrays; and where these start."""
    start = round_up(plan.weight_bytes + PADDING)
    behind = joined_bytes(arrays)
    data = aligned_bytes(start + behind.nbytes)
    items = ((item.name, item.packing, item.width, item.offset) for item in plan.weights.values())
    pack_all(plan.graph.constants, items, data)
    data[start:] = behind
    return data.data, start
