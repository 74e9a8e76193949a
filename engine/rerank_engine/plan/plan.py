"""The plan of a model: phases of steps, and a place for every value.

The arena has a header, a part whose layout is fixed when the plan is made (what does not depend on a named dimension,
and one block of candidates), and a part for values whose size is known only when the model runs. The places of the
latter stand in the header, so that the code needs no other plan when a size changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rerank_engine.arena import SIZES_OFFSET, DynamicBuffer, Lifetime, place, round_up
from rerank_engine.dimensions import names_in, product
from rerank_engine.graph import DTYPES, Dim, Graph, Value, depends_on_candidates, elements_per_candidate
from rerank_engine.ops import check_nodes, lookup
from rerank_engine.plan.steps import Phase, Step, find_aliases, find_copied_outputs, group_phases, group_steps

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
        panels of ``width`` columns, zero-padded; "columns": (K, C) stored column by column; "trees": the tables of an
        ensemble, whose constants ``name`` joins.
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
    phases
        What runs, in order.
    values
        The graph's values, and the scratch buffers of its steps.
    scratch
        Names of the scratch buffers of each step, by the step's first result.
    aliases
        Value to the value whose bytes it shares.
    offsets
        Arena offset in bytes of each value with a fixed place.
    dynamic
        Values without one; their places are header entries, in this order.
    per_block
        Values of which only the block at hand is stored.
    names
        Named dimensions; their sizes are header entries, in this order.
    fixed_bytes
        Size of the arena without the dynamic values.
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
    phases: list[Phase]
    values: dict[str, Value]
    scratch: dict[str, tuple[str, ...]]
    aliases: dict[str, str]
    offsets: dict[str, int]
    dynamic: tuple[DynamicBuffer, ...]
    per_block: frozenset[str]
    names: tuple[str, ...]
    fixed_bytes: int
    block: int
    copied_outputs: tuple[int, ...] = ()
    weights: dict[tuple[str, str, int], WeightItem] = field(default_factory=dict)
    weight_bytes: int = 0

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for phase in self.phases for step in phase.steps]

    @property
    def last_sizes_offset(self) -> int:
        """Bytes into the header to the sizes of the named dimensions in the last call."""
        return SIZES_OFFSET + 8 * (len(self.names) + len(self.dynamic))

    def storage(self, name: str) -> str:
        """The value whose bytes ``name`` stands for."""
        return self.aliases.get(name, name)


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
    phases = group_phases(graph, group_steps(graph))
    aliases = find_aliases(graph)
    values, scratch = _declare_scratch(graph, phases)
    names = tuple(sorted(names_in(dim for name in graph.inputs for dim in graph.values[name].shape)))
    lifetimes, per_block = _find_lifetimes(graph, values, phases, aliases, scratch)
    static, dynamic = [], []
    for name, (first, last) in lifetimes.items():
        size = product([*_stored_shape(values[name], name in per_block), DTYPES[values[name].dtype].itemsize])
        if name in per_block and isinstance(size, int):
            continue
        if isinstance(size, int):
            static.append(Lifetime(name, size, first, last))
        else:
            size = size * MIN_BLOCK if name in per_block else size
            dynamic.append(DynamicBuffer(name, size, first, last))
    start = round_up(SIZES_OFFSET + 8 * (2 * len(names) + len(dynamic)))
    offsets, end = place(static, start)
    blocks = {
        name: size * DTYPES[values[name].dtype].itemsize
        for name in per_block
        if isinstance(size := elements_per_candidate(values[name].shape), int)
    }

    def place_block(candidates: int) -> tuple[dict[str, int], int]:
        return place([Lifetime(name, size * candidates, *lifetimes[name]) for name, size in blocks.items()], end)

    block = MAX_BLOCK if len(blocks) == len(per_block) else MIN_BLOCK
    while block > MIN_BLOCK and place_block(block)[1] - end > BLOCK_BYTES:
        block //= 2
    block_offsets, end = place_block(block)
    return Plan(
        graph=graph,
        phases=phases,
        values=values,
        scratch=scratch,
        aliases=aliases,
        offsets={**offsets, **block_offsets},
        dynamic=tuple(dynamic),
        per_block=frozenset(per_block),
        names=names,
        fixed_bytes=round_up(end),
        block=block,
        copied_outputs=tuple(find_copied_outputs(graph, aliases)),
    )


def _stored_shape(value: Value, per_block: bool) -> tuple[int | Dim, ...]:
    return (elements_per_candidate(value.shape),) if per_block else value.shape


def _declare_scratch(graph: Graph, phases: list[Phase]) -> tuple[dict[str, Value], dict[str, tuple[str, ...]]]:
    values, scratch = dict(graph.values), {}
    for step in (step for phase in phases for step in phase.steps):
        node = step.nodes[-1]
        wanted = lookup(node).scratch
        if wanted is None:
            continue
        made = []
        for index, (dtype, shape) in enumerate(wanted(node, [graph.values[name] for name in node.inputs])):
            name = f"{step.writes[0]}/scratch{index}"
            while name in values:
                name += "_"
            values[name] = Value(name, dtype, shape)
            made.append(name)
        scratch[step.writes[0]] = tuple(made)
    return values, scratch


def _find_lifetimes(
    graph: Graph,
    values: dict[str, Value],
    phases: list[Phase],
    aliases: dict[str, str],
    scratch: dict[str, tuple[str, ...]],
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """First and last step of every stored value, and which of them are stored for one block only.

    Steps of a block phase run again for each block, so what lives beyond the phase lives through all of it. What does
    not depend on the candidate, but is read by what does, lives on after the last step: the next call may need it.
    """
    in_output = {aliases.get(name, name) for name in graph.outputs}
    numbered = [(index, phase) for index, phase in enumerate(phases) for _ in phase.steps]
    steps = [step for phase in phases for step in phase.steps]
    first_of: dict[int, int] = {}
    last_of: dict[int, int] = {}
    for position, (index, _) in enumerate(numbered):
        first_of.setdefault(index, position)
        last_of[index] = position
    reads: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for name in step.reads:
            reads.setdefault(aliases.get(name, name), []).append(position)
    lifetimes: dict[str, tuple[int, int]] = {}
    per_block: set[str] = set()
    for position, step in enumerate(steps):
        phase_index, phase = numbered[position]
        is_block = phase.mode == "block"
        for name in step.writes:
            if name in in_output:
                continue
            ends = reads.get(name, [position])
            if is_block and all(numbered[end][0] == phase_index for end in ends):
                per_block.add(name)
                lifetimes[name] = (position, max(ends))
                continue
            lasts = [last_of[numbered[end][0]] if numbered[end][1].mode == "block" else end for end in ends]
            if phase.mode == "once" and any(numbered[end][1].mode != "once" for end in ends):
                lasts = [len(steps)]
            lifetimes[name] = (first_of[phase_index] if is_block else position, max(position, *lasts))
        for name in scratch.get(step.writes[0], ()):
            lifetimes[name] = (position, position)
            if is_block and depends_on_candidates(values[name].shape):
                per_block.add(name)
    return lifetimes, per_block
