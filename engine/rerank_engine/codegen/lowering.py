"""What an operator's lowering sees while its code is written: addresses, sizes, views, packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from llvmlite import ir
from numpy.typing import NDArray

from rerank_engine.arena import BAD_VALUE_OFFSET, PADDING, SIZES_OFFSET, STATUS_OFFSET, round_up
from rerank_engine.codegen.elementwise import Elements, elements_of
from rerank_engine.codegen.emitter import ELEMENT_BYTES, I64, POINTER, Emitter, Index, i64
from rerank_engine.dimensions import product
from rerank_engine.errors import CompileError
from rerank_engine.graph import CANDIDATES, Dim, Graph, Node, Shape, Value, elements_per_candidate, is_per_candidate
from rerank_engine.kernels.gemm import Tiling, Tilings, choose_tiling
from rerank_engine.kernels.views import View
from rerank_engine.packing import TREES, tree_bytes
from rerank_engine.plan import Plan, WeightItem
from rerank_engine.plan.steps import Mode


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
    mode
        Whether the step runs for a block of candidates, or for all of them.
    registers
        Vector registers of the target.
    tilings
        Measured tilings of matrix products.
    reports
        Messages about bad values, in the order of their codes.
    absorbed
        Elementwise nodes that make the input of the step's last node, and are computed on its way.
    """

    def __init__(
        self,
        plan: Plan,
        module: ir.Module,
        emitter: Emitter,
        arguments: Sequence[ir.Value],
        mode: Mode,
        registers: int,
        tilings: Tilings,
        reports: list[str],
        absorbed: Sequence[Node] = (),
    ) -> None:
        self.plan = plan
        self.module = module
        self.emitter = emitter
        self.mode = mode
        self.registers = registers
        self.tilings = tilings
        self.reports = reports
        self.absorbed = absorbed
        self.weights, self.arena, self.inputs, self.outputs, self.first, self.candidates = arguments

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.plan.graph

    @property
    def values(self) -> dict[str, Value]:
        """Its values, and the scratch buffers of its steps."""
        return self.plan.values

    # --- sizes ---------------------------------------------------------------------------------------------

    def size(self, dim: int | Dim) -> Index:
        """A dimension for the candidates at hand."""
        if isinstance(dim, int):
            return dim
        e = self.emitter
        total: Index = 0
        for names, coefficient in dim.terms:
            part: Index = coefficient
            for name in names:
                part = e.mul(part, self._named(name))
            total = e.add(total, part)
        return total

    def _named(self, name: str) -> ir.Value:
        if name == CANDIDATES:
            return self.candidates
        e = self.emitter
        place = SIZES_OFFSET + 8 * self.plan.names.index(name)
        return e.b.load(e.at(self.arena, place), align=8, typ=I64)

    def rows(self, shape: Shape) -> Index:
        """Number of elements of a shape, or of a leading part of it, for the candidates at hand."""
        return self.size(product(shape))

    def sizes(self, name: str) -> list[Index]:
        """Dimensions of a value for the candidates at hand."""
        return [self.size(dim) for dim in self.values[name].shape]

    def elements(self, name: str) -> Elements:
        """The input of the step's node element by element, with what is computed on the way."""
        return elements_of(self.graph, self.absorbed, name)

    # --- places --------------------------------------------------------------------------------------------

    def view(self, name: str) -> View:
        """A value as an array without gaps; for a block, its candidates' rows only."""
        return View.contiguous(self.emitter, self.address(name), self.values[name].dtype, self.sizes(name))

    def scratch(self, node: Node) -> list[View]:
        """The buffers that the operator asked for."""
        return [self.view(name) for name in self.plan.scratch[node.outputs[0]]]

    def constant(self, name: str) -> NDArray[Any] | None:
        """The array of a constant; None for a computed value."""
        return self.graph.constants.get(name)

    def address(self, name: str) -> ir.Value:
        """Where the value's first element lies, for a block that of its first candidate."""
        e, graph, plan = self.emitter, self.graph, self.plan
        base, value = plan.storage(name), self.values[name]
        if base in graph.constants:
            return self.packed(base, "plain", 0)
        if base in plan.offsets:
            start = e.at(self.arena, plan.offsets[base])
        elif (index := self._dynamic_index(base)) is not None:
            place = SIZES_OFFSET + 8 * (len(plan.names) + index)
            start = e.at(self.arena, e.b.load(e.at(self.arena, place), align=8, typ=I64))
        elif base in graph.inputs:
            start = self._entry(self.inputs, graph.inputs.index(base))
        else:
            start = self._entry(self.outputs, self._output_index(base))
        return start if base in plan.per_block else self._moved(start, value)

    def output_address(self, index: int) -> ir.Value:
        """Where the first element lies in the caller's array for output number ``index``."""
        return self._moved(self._entry(self.outputs, index), self.values[self.graph.outputs[index]])

    def _dynamic_index(self, base: str) -> int | None:
        for index, buffer in enumerate(self.plan.dynamic):
            if buffer.name == base:
                return index
        return None

    def _output_index(self, base: str) -> int:
        for index, output in enumerate(self.graph.outputs):
            if self.plan.storage(output) == base:
                return index
        raise CompileError(f"value {base!r} has no place in the plan")

    def _entry(self, table: ir.Value, index: int) -> ir.Value:
        return self.emitter.b.load(self.emitter.at(table, index * 8), align=8, typ=POINTER)

    def _moved(self, start: ir.Value, value: Value) -> ir.Value:
        if self.mode != "block" or not is_per_candidate(value.shape):
            return start
        e = self.emitter
        row_bytes = e.mul(self.size(elements_per_candidate(value.shape)), ELEMENT_BYTES[value.dtype])
        return e.at(start, e.mul(self.first, row_bytes))

    def packed(self, name: str, packing: str, width: int) -> ir.Value:
        """Where a constant lies in the packed weight buffer; it gets a place when it is asked for first."""
        key = (name, packing, width)
        item = self.plan.weights.get(key)
        if item is None:
            item = WeightItem(name, packing, width, self.plan.weight_bytes)
            self.plan.weights[key] = item
            self.plan.weight_bytes += round_up(packed_bytes(self.graph, item) + PADDING)
        return self.emitter.at(self.weights, item.offset)

    def tiling(self, inner: int, columns: int) -> Tiling:
        """How a product of this depth and these columns is cut."""
        measured = self.tilings.get((inner, columns))
        return measured or choose_tiling(columns, self.emitter.lanes, self.registers)

    # --- bad values ----------------------------------------------------------------------------------------

    def report(self, message: str, value: ir.Value) -> None:
        """Make the call fail with ``message``, in which ``{value}`` stands for an int64; the code runs on."""
        if message not in self.reports:
            self.reports.append(message)
        e = self.emitter
        e.b.store(i64(self.reports.index(message) + 1), e.at(self.arena, STATUS_OFFSET), align=8)
        e.b.store(value, e.at(self.arena, BAD_VALUE_OFFSET), align=8)

    def require(self, condition: ir.Value, message: str, value: Index) -> None:
        """Report ``value`` unless the condition holds."""
        e = self.emitter
        with e.b.if_then(e.b.not_(condition), likely=False):
            self.report(message, e.value(value))


def packed_bytes(graph: Graph, item: WeightItem) -> int:
    """Bytes of a packed constant."""
    if item.packing == TREES:
        return tree_bytes(graph.constants, item.name).nbytes
    array = graph.constants[item.name]
    if item.packing in ("plain", "columns"):
        return array.nbytes
    columns = -(-array.shape[-1] // item.width) * item.width
    return prod(array.shape[:-1]) * columns * array.itemsize
