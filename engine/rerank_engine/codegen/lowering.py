"""What an operator's lowering sees while its code is written: addresses, row counts, packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, I64, Emitter, i64
from rerank_engine.errors import CompileError
from rerank_engine.graph import Dim, Graph, Node, Shape, Value, elements_per_candidate, is_per_candidate
from rerank_engine.plan.arena import PADDING, round_up
from rerank_engine.plan.plan import Plan, WeightItem


class Lowering:
    """The view of one step function.

    Parameters
    ----------
    plan
        Places of values; its weight table is filled on the way.
    module
        The LLVM module.
    emitter
        Positioned in the step's function.
    arguments
        Weights, arena, table of inputs, table of outputs, first candidate of the block, candidates in the block.
    registers
        Vector registers of the target.
    gathers
        Nodes that may meet a bad id, in the order of their report codes.
    """

    def __init__(
        self,
        plan: Plan,
        module: ir.Module,
        emitter: Emitter,
        arguments: Sequence[ir.Value],
        registers: int,
        gathers: list[Node],
    ) -> None:
        self.plan = plan
        self.module = module
        self.emitter = emitter
        self.registers = registers
        self.gathers = gathers
        self.weights, self.arena, self.inputs, self.outputs, self.first, self.candidates = arguments

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.plan.graph

    @property
    def values(self) -> dict[str, Value]:
        """Its values."""
        return self.plan.graph.values

    def rows(self, shape: Shape) -> ir.Value | int:
        """Number of elements of a leading part of a shape, for the candidates of the block."""
        count = elements_per_candidate(shape)
        if not is_per_candidate(shape):
            return count
        return self.emitter.b.mul(self.candidates, i64(count)) if count != 1 else self.candidates

    def sizes(self, name: str) -> list[ir.Value | int]:
        """Dimensions of a value, the first one possibly known at run time only."""
        return [
            self.rows((dim,)) if isinstance(dim, Dim) else dim  # the factor is inside rows()
            for dim in self.values[name].shape
        ]

    def address(self, name: str) -> ir.Value:
        """Where the value's first element of this block lies."""
        e, graph = self.emitter, self.graph
        base = self.plan.storage(name)
        if base in self.plan.offsets:
            return e.at(self.arena, self.plan.offsets[base])
        if base in graph.constants:
            return self.packed(base, "plain", 0)
        if base in graph.inputs:
            return self._entry(self.inputs, graph.inputs.index(base), self.values[base])
        for index, output in enumerate(graph.outputs):
            if self.plan.storage(output) == base:
                return self._entry(self.outputs, index, self.values[base])
        raise CompileError(f"value {name!r} has no place in the plan")

    def output_address(self, index: int) -> ir.Value:
        """Where the first element of this block lies in the caller's array for output number ``index``."""
        return self._entry(self.outputs, index, self.values[self.graph.outputs[index]])

    def _entry(self, table: ir.Value, index: int, value: Value) -> ir.Value:
        e = self.emitter
        start = e.b.load(e.at(table, index * 8), align=8, typ=ir.PointerType())
        if not is_per_candidate(value.shape):
            return start
        row_bytes = elements_per_candidate(value.shape) * ELEMENT_BYTES[value.dtype]
        return e.at(start, e.b.mul(self.first, i64(row_bytes)))

    def packed(self, name: str, packing: str, width: int) -> ir.Value:
        """Where a constant lies in the packed weight buffer; it gets a place when it is asked for first."""
        key = (name, packing, width)
        item = self.plan.weights.get(key)
        if item is None:
            item = WeightItem(name, packing, width, self.plan.weight_bytes)
            self.plan.weights[key] = item
            self.plan.weight_bytes += round_up(packed_bytes(self.graph, item) + PADDING)
        return self.emitter.at(self.weights, item.offset)

    def report_bad_id(self, node: Node, bad: ir.Value) -> None:
        """Write the node's code and the id into the arena's header."""
        if node not in self.gathers:
            self.gathers.append(node)
        e = self.emitter
        e.b.store(ir.Constant(I64, self.gathers.index(node) + 1), self.arena, align=8)
        e.b.store(bad, e.at(self.arena, 8), align=8)


def packed_bytes(graph: Graph, item: WeightItem) -> int:
    """Bytes of a packed constant."""
    array = graph.constants[item.name]
    if item.packing in ("plain", "columns"):
        return array.nbytes
    columns = -(-array.shape[-1] // item.width) * item.width
    return prod(array.shape[:-1]) * columns * array.itemsize
