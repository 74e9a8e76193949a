"""The plan of a model: steps that run once, steps that run for each block of candidates, and a place for every value.

Candidates are independent of each other, so the steps are run over blocks of them: the arena holds one block,
stays in the cache, and any number of candidates is possible. What does not depend on the candidate is computed
once a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rerank_engine.graph import DTYPES, Graph, elements_per_candidate, is_per_candidate
from rerank_engine.ops import check_nodes
from rerank_engine.plan.arena import ALIGNMENT, Lifetime, place
from rerank_engine.plan.steps import Step, find_aliases, find_copied_outputs, group_steps

HEADER_BYTES = 64
"""Start of the arena: status (int64), the offending id (int64), the rest unused."""

BLOCK_BYTES = 256 * 1024
"""Wanted size of what one block of candidates needs: half of a small second-level cache."""

MIN_BLOCK, MAX_BLOCK = 8, 128


@dataclass(frozen=True)
class WeightItem:
    """A constant in the packed weight buffer.

    Attributes
    ----------
    name
        Of the constant.
    packing
        "plain": as it is; "padded": a row padded with zeros to a multiple of ``width``; "panels": (K, C) cut into
        panels of ``width`` columns, zero-padded; "columns": (K, C) stored column by column.
    width
        Columns of a panel, or 0.
    offset
        Bytes from the start of the buffer.
    """

    name: str
    packing: str
    width: int
    offset: int


@dataclass
class Plan:
    """Everything the code generator needs besides the target.

    Attributes
    ----------
    graph
        The model.
    once, per_block
        Steps before the loop over blocks, and in it.
    aliases
        Value to the value whose bytes it shares.
    offsets
        Arena offset in bytes of each stored value.
    arena_bytes
        Size of the arena.
    block
        Candidates computed at a time.
    copied_outputs
        Indices of the outputs that no step writes in place: inputs, constants, second names of the same bytes.
    weights
        Packed constants, filled while code is generated.
    weight_bytes
        Size of the packed weight buffer.
    """

    graph: Graph
    once: list[Step]
    per_block: list[Step]
    aliases: dict[str, str]
    offsets: dict[str, int]
    arena_bytes: int
    block: int
    copied_outputs: tuple[int, ...] = ()
    weights: dict[tuple[str, str, int], WeightItem] = field(default_factory=dict)
    weight_bytes: int = 0

    def storage(self, name: str) -> str:
        """The value whose bytes ``name`` stands for."""
        return self.aliases.get(name, name)


def value_bytes(graph: Graph, name: str, candidates: int) -> int:
    """Bytes of a value for ``candidates`` candidates."""
    value = graph.values[name]
    rows = candidates if is_per_candidate(value.shape) else 1
    return rows * elements_per_candidate(value.shape) * DTYPES[value.dtype].itemsize


def make_plan(graph: Graph) -> Plan:
    """Plan a verified graph.

    Raises
    ------
    UnsupportedOperatorError
        A node uses an operator, an attribute or a shape that is not understood.
    GraphError
        A declared dtype or shape is not what the operator makes: code for it would write out of bounds.
    """
    check_nodes(graph)
    steps = group_steps(graph)
    aliases = find_aliases(graph)
    once = [step for step in steps if not step.per_candidate]
    per_block = [step for step in steps if step.per_candidate]
    in_output = {aliases.get(name, name) for name in graph.outputs}
    last = len(once) + len(per_block)
    order = {step.writes: index for index, step in enumerate([*once, *per_block])}
    reads: dict[str, list[int]] = {}
    for index, step in enumerate([*once, *per_block]):
        for name in step.reads:
            reads.setdefault(aliases.get(name, name), []).append(index)

    def lifetime(step: Step, candidates: int) -> Lifetime:
        first = order[step.writes]
        ends = reads.get(step.writes, [first])
        keep = not step.per_candidate and any(index >= len(once) for index in ends)
        return Lifetime(
            step.writes,
            value_bytes(graph, step.writes, candidates),
            first,
            last if keep else max(first, *ends),
        )

    stored_once = [lifetime(step, 1) for step in once if step.writes not in in_output]
    once_offsets, once_end = place(stored_once, HEADER_BYTES)

    def place_block(candidates: int) -> tuple[dict[str, int], int]:
        block = [lifetime(step, candidates) for step in per_block if step.writes not in in_output]
        return place(block, once_end)

    block = MAX_BLOCK
    while block > MIN_BLOCK and place_block(block)[1] - once_end > BLOCK_BYTES:
        block //= 2
    block_offsets, end = place_block(block)
    return Plan(
        graph=graph,
        once=once,
        per_block=per_block,
        aliases=aliases,
        offsets={**once_offsets, **block_offsets},
        arena_bytes=-(-end // ALIGNMENT) * ALIGNMENT,
        block=block,
        copied_outputs=tuple(find_copied_outputs(graph, aliases)),
    )
