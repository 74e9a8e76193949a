"""Walks of decision trees. Several trees are walked in step for each row, so that their memory waits overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, I1, I32, I64, Carried, Emitter, i64
from rerank_engine.kernels.tree_bits import BitEnsemble, add_trees
from rerank_engine.ops.trees import KEY_RANGES, MEMBER_FROM_MINUS_ONE, MEMBER_IF_MISSING

LANES = 4
"""Trees that are walked in step."""

_NODE_BYTES = 16


@dataclass(frozen=True)
class Ensemble:
    """What the kernel needs to know of a TreeEnsemble node.

    Attributes
    ----------
    features, target
        Addresses of (rows, columns) and (rows, outputs).
    constants
        Addresses of the constant inputs by name, as :mod:`rerank_engine.ops.trees` lists them.
    rows, trees, columns, outputs
        Sizes; only the rows may be known at run time only.
    features_dtype, sum_dtype
        "float32" or "float64".
    aggregate, divisor, zero_threshold
        Attributes of the node.
    has_sets
        Whether any node asks for membership.
    has_one_entry_a_leaf
        Whether entry i belongs to leaf i.
    only_output
        The output that all leaves add to, or None.
    is_linear
        Whether leaves are linear models.
    """

    features: ir.Value
    target: ir.Value
    constants: Mapping[str, ir.Value]
    rows: ir.Value | int
    trees: int
    columns: int
    outputs: int
    features_dtype: str
    sum_dtype: str
    aggregate: str
    divisor: float
    zero_threshold: float
    has_sets: bool
    has_one_entry_a_leaf: bool
    only_output: int | None
    is_linear: bool


def evaluate_ensemble(e: Emitter, ensemble: Ensemble, bits: BitEnsemble | None) -> None:
    """Write the aggregate of all trees for every row. The arrays are trusted: the operator has checked them.

    With ``bits`` the trees are not walked, and of the constants only ``base`` is needed.
    """
    kernel = _Kernel(e, ensemble)
    kernel.start()
    if bits is not None:
        add_trees(e, bits)
    else:
        done: ir.Value | int = 0
        for lanes in (LANES, 1):
            done, _ = e.loop(done, ensemble.trees, lanes, partial(kernel.walk_rows, lanes))
    kernel.finish()


class _Kernel:
    """Writes the parts of the kernel."""

    def __init__(self, e: Emitter, ensemble: Ensemble) -> None:
        self.e = e
        self.ensemble = ensemble
        self.marks = KEY_RANGES[ensemble.features_dtype]
        self.bits = ELEMENT_TYPES[self.marks.dtype.name]
        self.float = ELEMENT_TYPES[ensemble.features_dtype]
        self.sum = ELEMENT_TYPES[ensemble.sum_dtype]
        self.key_bytes = ELEMENT_BYTES[ensemble.features_dtype]
        self.sum_bytes = ELEMENT_BYTES[ensemble.sum_dtype]

    # --- sums ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Give every output its first value."""
        aggregate = self.ensemble.aggregate
        first = {"AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}.get(aggregate)

        def cell(place: ir.Value, base: ir.Value) -> None:
            self.e.store(base if first is None else ir.Constant(self.sum, first), place)

        self._each_cell(cell)

    def finish(self) -> None:
        """Turn sums into results; a smallest or largest of nothing is 0."""
        e, b, ensemble = self.e, self.e.b, self.ensemble
        if ensemble.aggregate == "SUM":
            return

        def cell(place: ir.Value, base: ir.Value) -> None:
            value = e.load(place, self.sum)
            if ensemble.aggregate == "AVERAGE":
                value = b.fdiv(value, ir.Constant(self.sum, ensemble.divisor))
            else:
                nothing = b.fcmp_ordered("==", e.intrinsic("llvm.fabs", self.sum, [value]), e.like(value, np.inf))
                value = b.select(nothing, e.like(value, 0.0), value)
            e.store(b.fadd(value, base), place)

        self._each_cell(cell)

    def _each_cell(self, body: Callable[[ir.Value, ir.Value], None]) -> None:
        e, b, outputs = self.e, self.e.b, self.ensemble.outputs

        def row(index: ir.Value) -> None:
            start = e.at(self.ensemble.target, b.mul(index, i64(outputs * self.sum_bytes)))

            def one(output: ir.Value) -> None:
                offset = b.mul(output, i64(self.sum_bytes))
                body(e.at(start, offset), e.load(e.at(self.ensemble.constants["base"], offset), self.sum))

            e.each(outputs, one)

        e.each(self.ensemble.rows, row)

    # --- walks -----------------------------------------------------------------------------------------------

    def walk_rows(self, lanes: int, tree: ir.Value, _: Carried) -> None:
        """Walk ``lanes`` neighbouring trees for every row and add what they say, in the order of the trees."""
        e, b, ensemble = self.e, self.e.b, self.ensemble
        starts = [self._index("tree_start", b.add(tree, i64(lane))) for lane in range(lanes)]

        def row(index: ir.Value) -> None:
            features = e.at(ensemble.features, b.mul(index, i64(ensemble.columns * self.key_bytes)))
            target = e.at(ensemble.target, b.mul(index, i64(ensemble.outputs * self.sum_bytes)))
            for leaf in self._leaves(features, starts):
                self._add_leaf(features, target, leaf)

        e.each(ensemble.rows, row)

    def _index(self, name: str, index: ir.Value) -> ir.Value:
        """Entry of an int32 array, as an index."""
        e = self.e
        return e.b.sext(e.load(e.at(self.ensemble.constants[name], e.b.mul(index, i64(4))), I32), I64)

    def _leaves(self, features: ir.Value, starts: Sequence[ir.Value]) -> list[ir.Value]:
        """Walk from the roots until every tree is at a leaf."""
        b = self.e.b
        before = b.block
        head, after = b.append_basic_block("level"), b.append_basic_block("leaves")
        b.branch(head)
        b.position_at_end(head)
        current = [b.phi(I64) for _ in starts]
        following = [self._step(features, node, len(starts) > 1) for node in current]
        for phi, start, step in zip(current, starts, following, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(step, b.block)
        everywhere = following[0]
        for step in following[1:]:
            everywhere = b.and_(everywhere, step)
        b.cbranch(b.icmp_signed(">=", everywhere, i64(0)), head, after)
        b.position_at_end(after)
        return [b.not_(step) for step in following]

    def _step(self, features: ir.Value, current: ir.Value, may_be_done: bool) -> ir.Value:
        """Where the walk goes from a node; a leaf stays where it is."""
        e, b = self.e, self.e.b
        done = b.icmp_signed("<", current, i64(0))
        index = b.select(done, i64(0), current) if may_be_done else current
        node = e.at(self.ensemble.constants["nodes"], b.mul(index, i64(_NODE_BYTES)))
        feature, yes, no = (b.sext(e.load(e.at(node, offset), I32), I64) for offset in (0, 8, 12))
        bits = e.load(e.at(features, b.mul(feature, i64(self.key_bytes))), self.bits)
        question = e.at(self.ensemble.constants["ranges"], b.mul(index, i64(2 * self.key_bytes)))
        low, span = e.load(question, self.bits), e.load(e.at(question, self.key_bytes), self.bits)
        sign = b.ashr(bits, self._key(self.bits.width - 1))
        key = b.xor(bits, b.and_(sign, self._key(self.marks.mask)))
        answer = b.icmp_unsigned("<=", b.sub(key, low), span)
        if self.ensemble.has_sets:
            kind = e.load(e.at(node, 4), I32)
            is_set = b.icmp_signed("!=", kind, ir.Constant(I32, 0))
            answer = b.select(is_set, self._member(kind, is_set, bits, key, low, span), answer)
        following = b.select(answer, yes, no)
        return b.select(done, current, following) if may_be_done else following

    def _key(self, number: int) -> ir.Constant:
        return ir.Constant(self.bits, number)

    def _member(
        self, kind: ir.Value, is_set: ir.Value, bits: ir.Value, key: ir.Value, low: ir.Value, span: ir.Value
    ) -> ir.Value:
        """Whether the truncated feature is in the node's set; nothing outside the words is ever read."""
        e, b = self.e, self.e.b
        first, words = (low, span) if self.bits is I64 else (b.sext(low, I64), b.sext(span, I64))
        value = b.bitcast(bits, self.float)
        # The saturating conversion is defined for every value; NaN gives 0 and is decided below.
        category = b.sext(e.intrinsic("llvm.fptosi.sat.i32", I32, [value]), I64)
        inside = b.and_(is_set, b.icmp_unsigned("<", category, b.shl(words, i64(5))))
        place = b.select(inside, b.add(first, b.ashr(category, i64(5))), i64(0))
        word = e.load(e.at(self.ensemble.constants["bitsets"], b.mul(place, i64(4))), I32)
        bit = b.trunc(b.lshr(word, b.and_(b.trunc(category, I32), ir.Constant(I32, 31))), I1)
        from_minus_one, if_missing = (
            b.icmp_signed("!=", b.and_(kind, ir.Constant(I32, flag)), ir.Constant(I32, 0))
            for flag in (MEMBER_FROM_MINUS_ONE, MEMBER_IF_MISSING)
        )
        # The key of -0.0 is -1.
        not_negative = b.icmp_signed(">=", key, self._key(-1))
        member = b.and_(b.and_(inside, bit), b.or_(from_minus_one, not_negative))
        missing = b.fcmp_unordered("uno", value, value)
        return b.select(missing, if_missing, member)

    # --- leaves ----------------------------------------------------------------------------------------------

    def _add_leaf(self, features: ir.Value, target: ir.Value, leaf: ir.Value) -> None:
        e, b, ensemble = self.e, self.e.b, self.ensemble
        if ensemble.has_one_entry_a_leaf:
            weight = self._number("leaf_weight", leaf)
            if ensemble.is_linear:
                weight = self._linear(features, leaf, weight)
            self._add_entry(target, leaf, weight)
            return

        def entry(index: ir.Value, _: Carried) -> None:
            self._add_entry(target, index, self._number("leaf_weight", index))

        e.loop(self._index("leaf_start", leaf), self._index("leaf_start", b.add(leaf, i64(1))), 1, entry)

    def _number(self, name: str, index: ir.Value) -> ir.Value:
        e = self.e
        return e.load(e.at(self.ensemble.constants[name], e.b.mul(index, i64(self.sum_bytes))), self.sum)

    def _add_entry(self, target: ir.Value, entry: ir.Value, weight: ir.Value) -> None:
        e, b, only = self.e, self.e.b, self.ensemble.only_output
        output = i64(only) if only is not None else self._index("leaf_target", entry)
        place = e.at(target, b.mul(output, i64(self.sum_bytes)))
        known = e.load(place, self.sum)
        if self.ensemble.aggregate in ("SUM", "AVERAGE"):
            e.store(b.fadd(known, weight), place)
        else:
            better = b.fcmp_ordered("<" if self.ensemble.aggregate == "MIN" else ">", weight, known)
            e.store(b.select(better, weight, known), place)

    def _linear(self, features: ir.Value, leaf: ir.Value, fallback: ir.Value) -> ir.Value:
        """The leaf's linear model; the plain weight where one of its features is missing."""
        e, b = self.e, self.e.b

        def term(index: ir.Value, carried: Carried) -> Carried:
            total, missing = carried
            feature = self._index("linear_feature", index)
            value = e.load(e.at(features, b.mul(feature, i64(self.key_bytes))), self.float)
            value = self._as_sum(value)
            size = e.intrinsic("llvm.fabs", self.sum, [value])
            small = b.fcmp_ordered("<=", size, ir.Constant(self.sum, self.ensemble.zero_threshold))
            value = b.select(small, ir.Constant(self.sum, 0.0), value)
            unknown = b.fcmp_unordered("uno", value, value)
            # Multiplied and added in two steps, as the frameworks do it.
            grown = b.fadd(total, b.fmul(self._number("linear_coefficient", index), value))
            return [grown, b.or_(missing, unknown)]

        first = self._index("linear_start", leaf)
        last = self._index("linear_start", b.add(leaf, i64(1)))
        _, (total, missing) = e.loop(first, last, 1, term, [self._number("linear_constant", leaf), ir.Constant(I1, 0)])
        return b.select(missing, fallback, total)

    def _as_sum(self, value: ir.Value) -> ir.Value:
        if self.float == self.sum:
            return value
        return self.e.b.fpext(value, self.sum) if self.sum_bytes == 8 else self.e.b.fptrunc(value, self.sum)
