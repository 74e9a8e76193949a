"""A plan becomes one LLVM function.

    int32 entry(weights, arena, inputs, outputs, n):
        flush denormals from here on
        status = 0
        steps that do not depend on the candidate, then copies of such outputs
        for first in 0, block, 2*block, ... below n:
            steps for candidates first .. min(first + block, n), then copies of outputs
        restore the floating-point mode
        return status

``inputs`` and ``outputs`` are tables of pointers; everything in between lies in the arena. Nothing is allocated and
nothing outside the function is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import I32, I64, POINTER, Emitter, i64
from rerank_engine.codegen.lowering import Lowering
from rerank_engine.codegen.target import Target
from rerank_engine.graph import Node, Shape, Value, elements_per_candidate, is_per_candidate
from rerank_engine.kernels import copy
from rerank_engine.kernels.pointwise import Operand, pointwise_loop
from rerank_engine.ops import lookup
from rerank_engine.plan import Plan, Step

ENTRY = "rerank_entry"

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
    gathers
        Nodes whose ids may be bad: status ``k`` of the function means node ``k - 1``.
    """

    assembly: str
    gathers: tuple[Node, ...]


def generate(plan: Plan, target: Target) -> Generated:
    """Write the function of a plan. Fills the plan's weight table on the way."""
    module = ir.Module(name="rerank")
    module.triple = target.triple
    gathers: list[Node] = []
    steps = [*plan.once, *plan.per_block]
    functions = [_step_function(plan, module, step, index, target, gathers) for index, step in enumerate(steps)]
    once, per_block = functions[: len(plan.once)], functions[len(plan.once) :]
    once += _copy_function(plan, module, target, per_candidate=False)
    per_block += _copy_function(plan, module, target, per_candidate=True)
    _entry_function(plan, module, target, once, per_block)
    # Without this LLVM turns copy loops into calls of memcpy, which the image has not.
    extra = ' "no-builtins"' + (" noredzone" if target.calling_convention == "win64cc" else "")
    text = re.sub(r"^(define [^\n]*)$", rf"\1{extra}", str(module), flags=re.MULTILINE)
    return Generated(text, tuple(gathers))


def _step_function(
    plan: Plan, module: ir.Module, step: Step, index: int, target: Target, gathers: list[Node]
) -> ir.Function:
    function = ir.Function(module, _STEP_TYPE, f"step{index}_{step.label[:40]}")
    function.linkage = "internal"
    emitter = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    lowering = Lowering(plan, module, emitter, function.args, target.registers, gathers)
    if step.is_pointwise:
        _lower_pointwise(lowering, step)
    else:
        (node,) = step.nodes
        lower = lookup(node).lower
        assert lower is not None, f"operator {node.op} has neither a lowering nor a pointwise form"
        lower(lowering, node)
    emitter.b.ret_void()
    return function


def _copy_function(plan: Plan, module: ir.Module, target: Target, *, per_candidate: bool) -> list[ir.Function]:
    """The function that fills the outputs which no step writes, or none."""
    values, outputs = plan.graph.values, plan.graph.outputs
    copied = [index for index in plan.copied_outputs if is_per_candidate(values[outputs[index]].shape) == per_candidate]
    if not copied:
        return []
    function = ir.Function(module, _STEP_TYPE, f"copy_outputs_{'per_block' if per_candidate else 'once'}")
    function.linkage = "internal"
    emitter = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    lowering = Lowering(plan, module, emitter, function.args, target.registers, [])
    for index in copied:
        value = values[outputs[index]]
        length = elements_per_candidate(value.shape)
        copy.block_copy(
            emitter,
            source=lowering.address(value.name),
            target=lowering.output_address(index),
            rows=lowering.candidates if per_candidate else 1,
            length=length,
            source_stride=length,
            target_stride=length,
            dtype=value.dtype,
        )
    emitter.b.ret_void()
    return [function]


def _lower_pointwise(lowering: Lowering, step: Step) -> None:
    graph = lowering.graph
    output = graph.values[step.writes]
    literals = {
        name: graph.constants[name].reshape(-1)[0]
        for name in step.reads
        if name in graph.constants and graph.constants[name].size == 1
    }
    loaded = [name for name in step.reads if name not in literals]

    def operand(name: str) -> Operand:
        value = graph.values[name]
        return Operand(lowering.address(name), value.dtype, _broadcast_strides(value, output.shape))

    def compute(e: Emitter, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        width = max((value.type.count if isinstance(value.type, ir.VectorType) else 1 for value in values), default=1)
        known = dict(zip(loaded, values, strict=True))
        for name, number in literals.items():
            known[name] = _literal(e, graph.values[name].dtype, width, number)
        for node in step.nodes:
            operator = lookup(node)
            assert operator.pointwise is not None
            attributes = {key: node.attributes.get(key, default) for key, default in operator.attributes.items()}
            known[node.outputs[0]] = operator.pointwise(e, [known[name] for name in node.inputs], attributes)
        return [known[step.writes]]

    first = output.shape[0] if output.shape else 1
    pointwise_loop(
        lowering.emitter,
        sizes=lowering.sizes(step.writes),
        candidates=lowering.candidates,
        dynamic_scale=None if isinstance(first, int) else first.scale,
        reads=[operand(name) for name in loaded],
        writes=[operand(step.writes)],
        compute=compute,
    )


def _literal(e: Emitter, dtype: str, width: int, number: float) -> ir.Constant:
    from rerank_engine.codegen.emitter import ELEMENT_TYPES, I1

    if dtype == "float32":
        return e.splat_constant(ELEMENT_TYPES[dtype], width, float(number))
    return e.splat_constant(I1 if dtype == "bool" else ELEMENT_TYPES[dtype], width, int(number))


def _broadcast_strides(value: Value, output: Shape) -> tuple[int, ...]:
    """Elements to the next index of each output dimension; 0 where the value is repeated."""
    strides: list[int] = []
    step = 1
    for axis in range(len(output) - 1, -1, -1):
        own_axis = axis - (len(output) - len(value.shape))
        dim = value.shape[own_axis] if own_axis >= 0 else 1
        strides.insert(0, 0 if dim == 1 else step)
        if isinstance(dim, int):
            step *= dim
    return tuple(strides)


def _entry_function(
    plan: Plan, module: ir.Module, target: Target, once: list[ir.Function], per_block: list[ir.Function]
) -> None:
    entry = ir.Function(module, _ENTRY_TYPE, ENTRY)
    if target.calling_convention:
        entry.calling_convention = target.calling_convention
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    e = Emitter(b, target.lanes)
    weights, arena, inputs, outputs, count = entry.args
    restore = _flush_denormals(e, target)
    b.store(i64(0), arena, align=8)
    for function in once:
        b.call(function, [weights, arena, inputs, outputs, i64(0), i64(0)])
    if per_block:

        def run(first: ir.Value, candidates: ir.Value) -> None:
            for function in per_block:
                b.call(function, [weights, arena, inputs, outputs, first, candidates])

        rest, _ = e.loop(0, count, plan.block, lambda first, _: run(first, i64(plan.block)))
        with b.if_then(b.icmp_signed("<", rest, count)):
            run(rest, b.sub(count, rest))
    status = b.trunc(b.load(arena, align=8, typ=I64), I32)
    restore()
    b.ret(status)


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
