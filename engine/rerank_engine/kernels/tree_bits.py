"""Decision trees without walks: every node is asked for a vector of rows, and rules out leaves by a mask.

See :mod:`rerank_engine.tree_tables` for the method. A step costs one comparison and one masked AND for as many rows as
a vector holds; what it reads is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import (
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    I1,
    I32,
    I64,
    POINTER,
    Carried,
    Emitter,
    Index,
    i64,
    type_suffix,
    widen,
)
from rerank_engine.ops.trees import KEY_RANGES
from rerank_engine.tree_tables import UNROLL, TreeTables

MOST_ROWS = 32
"""Rows that are scored side by side on the widest target: two vectors."""


@dataclass(frozen=True)
class BitEnsemble:
    """What the kernel needs to know.

    Attributes
    ----------
    features
        Address of (rows, columns).
    target
        Address of the column of (rows, outputs) that all leaves add to.
    memory
        Address of the tables.
    tables
        Their sizes and dtypes.
    keys
        Room for ``MOST_ROWS`` order keys of each column.
    sums
        Room for ``MOST_ROWS`` sums.
    rows, columns, outputs
        Sizes.
    features_dtype, sum_dtype
        "float32" or "float64".
    aggregate
        "SUM", "AVERAGE", "MIN" or "MAX": how leaves are joined to what the target holds.
    """

    features: ir.Value
    target: ir.Value
    memory: ir.Value
    tables: TreeTables
    keys: ir.Value
    sums: ir.Value
    rows: Index
    columns: int
    outputs: int
    features_dtype: str
    sum_dtype: str
    aggregate: str


def add_trees(e: Emitter, ensemble: BitEnsemble) -> None:
    """Join the leaves of all trees to the target, row by row in the order of the trees."""
    done: Index = 0
    for width in (2 * e.lanes, e.lanes):
        kernel = _Kernel(e, ensemble, width)
        done, _ = e.loop(done, ensemble.rows, width, kernel.score_all)
    rest = e.sub(ensemble.rows, done)
    with e.b.if_then(e.b.icmp_signed(">", e.value(rest), i64(0))):
        _Kernel(e, ensemble, e.lanes).score(e.value(done), e.value(rest))


class _Kernel:
    """Writes the scoring of ``width`` rows."""

    def __init__(self, e: Emitter, ensemble: BitEnsemble, width: int) -> None:
        self.e = e
        self.ensemble = ensemble
        self.width = width
        self.key_bytes = ELEMENT_BYTES[ensemble.features_dtype]
        self.key = ELEMENT_TYPES[KEY_RANGES[ensemble.features_dtype].dtype.name]
        self.sum_bytes = ELEMENT_BYTES[ensemble.sum_dtype]
        self.sum = ELEMENT_TYPES[ensemble.sum_dtype]
        tables = ensemble.tables
        most_leaves = int((tables.trees[1:, 2] - tables.trees[:-1, 2]).max(initial=0))
        most_leaves = max(most_leaves, len(tables.weights) - int(tables.trees[-1, 2]))
        self.mask = I32 if most_leaves <= 32 else I64
        self.word_bytes = tables.nodes.itemsize
        places = (e.at(ensemble.memory, offset) for offset in tables.offsets())
        self.feature_table, self.tree_table, self.node_table, self.weight_table = places

    def score_all(self, first: ir.Value, _: Carried) -> None:
        self.score(first, None)

    def score(self, first: ir.Value, count: ir.Value | None) -> None:
        """Score rows from ``first`` on: ``count`` of them, or a whole vector."""
        e, b, ensemble = self.e, self.e.b, self.ensemble
        index = self.lanes_of(range(self.width))
        if count is not None:
            # Lanes without a row repeat the last one.
            last = e.splat(b.sub(count, i64(1)), self.width)
            index = b.select(b.icmp_signed("<", index, last), index, last)
        index = b.add(index, e.splat(first, self.width))
        self.load_keys(self.addresses(ensemble.features, index, ensemble.columns * self.key_bytes))
        row_bytes = ensemble.outputs * self.sum_bytes
        start = self.gather(self.addresses(ensemble.target, index, row_bytes), self.sum, self.sum_bytes)
        _, (total,) = e.loop(0, len(ensemble.tables.trees), 1, self.one_tree, [start])
        e.store(total, ensemble.sums)

        def write(lane: ir.Value) -> None:
            value = e.load(e.at(ensemble.sums, e.mul(lane, self.sum_bytes)), self.sum)
            e.store(value, e.at(ensemble.target, e.mul(e.add(first, lane), row_bytes)))

        e.each(count if count is not None else self.width, write)

    def lanes_of(self, numbers: Sequence[int]) -> ir.Constant:
        return ir.Constant(ir.VectorType(I64, self.width), list(numbers))

    def addresses(self, base: ir.Value, index: ir.Value, step_bytes: int) -> ir.Value:
        """Addresses as integers, one a lane."""
        e, b = self.e, self.e.b
        offset = b.mul(index, e.splat_constant(I64, self.width, step_bytes))
        return b.add(e.splat(b.ptrtoint(base, I64), self.width), offset)

    def gather(self, addresses: ir.Value, element: ir.Type, element_bytes: int) -> ir.Value:
        """Load one element a lane."""
        b = self.e.b
        pointers = b.inttoptr(addresses, ir.VectorType(POINTER, self.width))
        kind = widen(element, self.width)
        everywhere = ir.Constant(ir.VectorType(I1, self.width), [1] * self.width)
        name = f"llvm.masked.gather.{type_suffix(kind)}.{type_suffix(pointers.type)}"
        arguments = [pointers, ir.Constant(I32, element_bytes), everywhere, ir.Constant(kind, None)]
        function_type = ir.FunctionType(kind, [argument.type for argument in arguments])
        function = b.module.globals.get(name) or ir.Function(b.module, function_type, name)
        return b.call(function, arguments)

    def load_keys(self, rows: ir.Value) -> None:
        """Turn the rows' features into order keys, feature by feature."""
        e, b = self.e, self.e.b
        marks = KEY_RANGES[self.ensemble.features_dtype]

        def feature(index: ir.Value) -> None:
            column = e.load(e.at(self.feature_table, e.mul(index, 8)), I64)
            offset = b.mul(column, i64(self.key_bytes))
            bits = self.gather(b.add(rows, e.splat(offset, self.width)), self.key, self.key_bytes)
            sign = b.ashr(bits, e.like(bits, self.key.width - 1))
            key = b.xor(bits, b.and_(sign, e.like(bits, marks.mask)))
            e.store(key, e.at(self.ensemble.keys, e.mul(index, self.width * self.key_bytes)))

        e.each(len(self.ensemble.tables.features), feature)

    def one_tree(self, tree: ir.Value, carried: Carried) -> Carried:
        """Ask all nodes of a tree, and join the first leaf that is left to the sums."""
        e, b = self.e, self.e.b
        record = e.at(self.tree_table, e.mul(tree, 24))
        first, last, leaf = (e.load(e.at(record, offset), I64) for offset in (0, 8, 16))

        def nodes(node: ir.Value, left: Carried) -> Carried:
            start = e.at(self.node_table, e.mul(node, 4 * self.word_bytes))
            for number in range(UNROLL):
                left = [self.ask(e.at(start, number * 4 * self.word_bytes), left[0])]
            return left

        everything = e.splat_constant(self.mask, self.width, -1)
        _, (left,) = e.loop(first, last, UNROLL, nodes, [everything])
        bit = self.first_bit(left)
        place = self.addresses(self.weight_table, b.add(bit, e.splat(leaf, self.width)), self.sum_bytes)
        weight = self.gather(place, self.sum, self.sum_bytes)
        (total,) = carried
        if self.ensemble.aggregate in ("SUM", "AVERAGE"):
            return [b.fadd(total, weight)]
        better = b.fcmp_ordered("<" if self.ensemble.aggregate == "MIN" else ">", weight, total)
        return [b.select(better, weight, total)]

    def ask(self, record: ir.Value, left: ir.Value) -> ir.Value:
        """One node: where its answer is no, only the leaves of its mask are left."""
        e, b, word = self.e, self.e.b, self.word_bytes
        place = e.load(record, I32 if word == 4 else I64)
        place = b.sext(place, I64) if word == 4 else place
        key = e.load(e.at(self.ensemble.keys, e.mul(place, self.width * self.key_bytes)), self.key, self.width)
        low, span = (e.splat(e.load(e.at(record, number * word), self.key), self.width) for number in (1, 2))
        mask = e.splat(e.load(e.at(record, 3 * word), self.mask), self.width)
        is_no = b.icmp_unsigned(">", b.sub(key, low), span)
        return b.and_(left, b.select(is_no, mask, e.like(mask, -1)))

    def first_bit(self, left: ir.Value) -> ir.Value:
        """Number of the lowest bit that is set, one a lane. There always is one: no walk ends nowhere."""
        b = self.e.b
        bit = self.e.intrinsic("llvm.cttz", left.type, [left, ir.Constant(I1, 1)])
        return b.zext(bit, ir.VectorType(I64, self.width)) if self.mask is I32 else bit
