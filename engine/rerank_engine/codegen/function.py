"""A plan becomes one LLVM function.

    int32 entry(weights, arena, inputs, outputs, n):
        flush denormals from here on
        status = 0
        steps that do not depend on the candidate, unless they still stand from the last call
        phase by phase:
            steps that need the whole list: once, for all n
            steps whose rows are independent: for first in 0, block, 2*block, ... below n, for one block each
        copies of outputs that no step wrote in place
        restore the floating-point mode
        return status

``inputs`` and ``outputs`` are tables of pointers; everything in between lies in the arena, whose header holds the
sizes of the named dimensions and the places of what depends on them. Nothing is allocated and nothing outside the
function is called.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.arena import REUSE_OFFSET, SIZES_OFFSET, STATUS_OFFSET
from rerank_engine.codegen.assembly import with_attributes
from rerank_engine.codegen.elementwise import elements_of
from rerank_engine.codegen.emitter import I32, I64, POINTER, Carried, Emitter, i64
from rerank_engine.codegen.lowering import Lowering
from rerank_engine.codegen.python_call import can_be_called_directly, emit_python_call
from rerank_engine.codegen.target import Target
from rerank_engine.dimensions import broadcast_strides
from rerank_engine.graph import CANDIDATES
from rerank_engine.kernels import copy
from rerank_engine.kernels.gemm import Tilings
from rerank_engine.kernels.pointwise import Operand, pointwise_loop
from rerank_engine.native_call import ENTRY, PYTHON_CALL
from rerank_engine.ops import lookup
from rerank_engine.plan import Plan, Step
from rerank_engine.plan.steps import Mode, Phase

_STEP_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, POINTER, POINTER, I64, I64])
_ENTRY_TYPE = ir.FunctionType(I32, [POINTER, POINTER, POINTER, POINTER, I64])

_X86_FLUSH_BITS = 0x8040
_ARM_FLUSH_BIT = 1 << 24


@dataclass(frozen=True)
class Generated:
    """LLVM assembly of a model and what its caller must know.

    Attributes
    ----------
    assembly
        The module's text.
    reports
        Messages about bad values: status ``k`` of the function means message ``k - 1``.
    entries
        Functions that are called from outside.
    """

    assembly: str
    reports: tuple[str, ...]
    entries: tuple[str, ...]


def generate(plan: Plan, target: Target, tilings: Tilings) -> Generated:
    """Write the function of a plan. Fills the plan's weight table on the way."""
    module = ir.Module(name="rerank")
    module.triple = target.triple
    reports: list[str] = []
    numbers = itertools.count()

    def functions(phase: Phase) -> list[ir.Function]:
        return [_step_function(plan, module, step, next(numbers), target, tilings, reports) for step in phase.steps]

    phases = [(phase.mode, functions(phase)) for phase in plan.phases]
    phases.append(("whole", _copy_function(plan, module, target)))
    entry = _entry_function(plan, module, target, phases)
    entries = [ENTRY]
    if can_be_called_directly(plan):
        emit_python_call(module, entry, plan, target)
        entries.append(PYTHON_CALL)
    return Generated(module_text(module, target), tuple(reports), tuple(entries))


def module_text(module: ir.Module, target: Target) -> str:
    """Assembly of a module, with the attributes that every function needs."""
    # Without it LLVM takes comparisons for tests of bits, which tell a denormal from the zero that it counts as.
    return with_attributes(str(module), target, '"denormal-fp-math"="preserve-sign,preserve-sign"')


def _step_function(
    plan: Plan,
    module: ir.Module,
    step: Step,
    index: int,
    target: Target,
    tilings: Tilings,
    reports: list[str],
) -> ir.Function:
    function = ir.Function(module, _STEP_TYPE, f"step{index}_{step.label[:40]}")
    function.linkage = "internal"
    emitter = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    absorbed = () if step.is_pointwise else step.nodes[:-1]
    lowering = Lowering(plan, module, emitter, function.args, step.mode, target.registers, tilings, reports, absorbed)
    if step.is_pointwise:
        _lower_pointwise(lowering, step)
    else:
        node = step.nodes[-1]
        lower = lookup(node).lower
        assert lower is not None, f"operator {node.op} has neither a lowering nor a pointwise form"
        lower(lowering, node)
    emitter.b.ret_void()
    return function


def _copy_function(plan: Plan, module: ir.Module, target: Target) -> list[ir.Function]:
    """The function that fills the outputs which no step writes, or none."""
    if not plan.copied_outputs:
        return []
    function = ir.Function(module, _STEP_TYPE, "copy_outputs")
    function.linkage = "internal"
    emitter = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    lowering = Lowering(plan, module, emitter, function.args, "whole", target.registers, {}, [])
    for index in plan.copied_outputs:
        value = plan.values[plan.graph.outputs[index]]
        source, goal = lowering.address(value.name), lowering.output_address(index)
        copy.copy_row(emitter, source, goal, lowering.rows(value.shape), value.dtype)
    emitter.b.ret_void()
    return [function]


def _lower_pointwise(lowering: Lowering, step: Step) -> None:
    graph = lowering.graph
    output = graph.values[step.writes[0]]
    elements = elements_of(graph, step.nodes, output.name)

    def operand(name: str) -> Operand:
        value = graph.values[name]
        return Operand(lowering.address(name), value.dtype, broadcast_strides(value.shape, output.shape))

    pointwise_loop(
        lowering.emitter,
        shape=output.shape,
        size=lowering.size,
        reads=[operand(name) for name in elements.names],
        writes=[operand(output.name)],
        compute=lambda e, values: [elements.compute(e, values)],
    )


def _entry_function(
    plan: Plan, module: ir.Module, target: Target, phases: Sequence[tuple[Mode, list[ir.Function]]]
) -> ir.Function:
    entry = ir.Function(module, _ENTRY_TYPE, ENTRY)
    if target.calling_convention:
        entry.calling_convention = target.calling_convention
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    e = Emitter(b, target.lanes)
    weights, arena, inputs, outputs, count = entry.args
    restore = _flush_denormals(e, target)
    b.store(i64(0), e.at(arena, STATUS_OFFSET), align=8)

    def run(functions: list[ir.Function], first: ir.Value, candidates: ir.Value) -> None:
        for function in functions:
            b.call(function, [weights, arena, inputs, outputs, first, candidates])

    for mode, functions in phases:
        if mode == "once":
            with b.if_then(b.not_(_still_stands(e, plan, arena))):
                run(functions, i64(0), count)
            continue
        if mode == "whole":
            run(functions, i64(0), count)
            continue

        def run_block(first: ir.Value, _: Carried, functions: list[ir.Function] = functions) -> None:
            run(functions, first, i64(plan.block))

        rest, _ = e.loop(0, count, plan.block, run_block)
        with b.if_then(b.icmp_signed("<", rest, count)):
            run(functions, rest, b.sub(count, rest))
    status = b.trunc(b.load(e.at(arena, STATUS_OFFSET), align=8, typ=I64), I32)
    restore()
    b.ret(status)
    return entry


def _still_stands(e: Emitter, plan: Plan, arena: ir.Value) -> ir.Value:
    """Whether the caller says that the inputs without candidates are those of the last call, and their sizes agree."""
    b = e.b
    same = b.icmp_signed("!=", b.load(e.at(arena, REUSE_OFFSET), align=8, typ=I64), i64(0))
    for index, name in enumerate(plan.names):
        if name == CANDIDATES:
            continue
        last = e.at(arena, plan.last_sizes_offset + 8 * index)
        size = b.load(e.at(arena, SIZES_OFFSET + 8 * index), align=8, typ=I64)
        same = b.and_(same, b.icmp_signed("==", size, b.load(last, align=8, typ=I64)))
        b.store(size, last, align=8)
    return same


def _flush_denormals(e: Emitter, target: Target) -> Callable[[], object]:
    """Switch denormals off (they cost up to a hundred times more) and give back what restores the caller's mode."""
    b = e.b
    if target.architecture == "x86_64":
        kind = ir.FunctionType(ir.VoidType(), [POINTER])
        save = ir.Function(b.module, kind, "llvm.x86.sse.stmxcsr")
        set_mode = ir.Function(b.module, kind, "llvm.x86.sse.ldmxcsr")
        before, during = b.alloca(I32), b.alloca(I32)
        b.call(save, [before])
        mode = b.or_(b.load(before, align=4, typ=I32), ir.Constant(I32, _X86_FLUSH_BITS))
        b.store(mode, during, align=4)
        b.call(set_mode, [during])
        return lambda: b.call(set_mode, [before])
    if target.architecture == "aarch64":
        get = ir.Function(b.module, ir.FunctionType(I64, []), "llvm.aarch64.get.fpcr")
        put = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64]), "llvm.aarch64.set.fpcr")
        mode = b.call(get, [])
        b.call(put, [b.or_(mode, i64(_ARM_FLUSH_BIT))])
        return lambda: b.call(put, [mode])
    return lambda: None
