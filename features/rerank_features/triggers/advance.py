"""Moves the partial matches of one scope on by one event.

Why one partial match a node is enough: of all partial matches that have come to a node, the one that began last keeps
every time limit and every "not since the last firing" that another keeps, and the newest arrival is never later in
its start than an earlier one. So a node keeps its newest start and its newest arrival, nothing else, and the result is
that of looking at all combinations of events. A step of several events keeps its starts in a shift register: each
event that fits moves all of them on by one place.

``without`` and "no gaps" cost nothing while the events come: they are looked up when a step is taken, by comparing
sequence numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rerank_features.triggers.state import MAX_ACTIVE, Register, ScopeState, Start, UserState
from rerank_features.triggers.trie import FOREVER_MS, CompiledRule, Edge, Move, Node, Step

Matches = list[tuple[CompiledRule, int]]
"""Rules that an event fires, with the time at which the match began."""


def advance(
    move: Move, scope: ScopeState, state: UserState, known: dict[str, Any], time_ms: int, matches: Matches
) -> None:
    """Move on by one event, given by its fields.

    Parameters
    ----------
    move
        Which edges an event of this kind can take in this scope.
    time_ms
        The user's time, which is the event's own unless that is late.
    matches
        What fires is added here.
    """
    number = scope.number = scope.number + 1
    if move.excluded:
        scope.seen[move.kind] = number
    first = (number, time_ms)
    steps: Iterable[Step] = move.first
    if move.waits and scope.arrivals:
        # Steps are gathered before any is taken: one event must not be two steps of a match.
        steps = [*move.first, *_open_steps(move, scope, time_ms)]
    # One loop without calls: this runs at every impression, and a call costs as much as three of its lines.
    for edge, arrival in steps:
        if edge.checked and (
            edge.once_rule in scope.floors or (edge.accepts is not None and not edge.accepts(known, state.lengths))
        ):
            continue
        # The last event of the match so far must not be older than this. It may itself be of an excluded kind.
        barrier = -1
        if edge.guarded:
            if edge.contiguous:
                barrier = number - 1
            for kind in edge.without:
                seen = scope.seen.get(kind, -1)
                if seen > barrier:
                    barrier = seen
        start = first if arrival is None else arrival[1] if arrival[0] >= barrier else None
        if edge.count > 1:
            register = scope.registers.get(edge.place) or _new_register(edge, scope)
            starts = register.starts
            if register.moved < barrier:
                starts.clear()
            register.moved = number
            starts.appendleft(start)
            if len(starts) < edge.count:
                continue
            start = starts[-1]
        if start is not None:
            _arrive(edge.child, scope, state, number, start, time_ms, matches)


def _open_steps(move: Move, scope: ScopeState, time_ms: int) -> list[Step]:
    """The steps that partial matches wait for and whose kind fits; matches that are too old are dropped.

    Looks at the nodes that can go on with this kind, or at those that have a partial match, whichever are fewer.
    """
    arrivals, kind, nodes = scope.arrivals, move.kind, move.nodes
    steps: list[Step] = []
    spent: list[int] = []
    for place in arrivals if move.wild or len(arrivals) < len(move.named) else move.named:
        arrival = arrivals.get(place)
        if arrival is None:
            continue
        node = nodes[place]
        if time_ms - arrival[1][1] > node.within_ms:
            spent.append(place)
        else:
            steps += [(edge, arrival) for edge in node.edges.get(kind, node.wild)]
    for place in spent:
        del arrivals[place]
    return steps


def _new_register(edge: Edge, scope: ScopeState) -> Register:
    if len(scope.registers) >= MAX_ACTIVE:
        scope.drop_matches()
    register = scope.registers[edge.place] = Register(edge.count)
    return register


def _arrive(
    node: Node, scope: ScopeState, state: UserState, number: int, start: Start, time_ms: int, matches: Matches
) -> None:
    """A match has come to a node: fire what it completes, and keep it for what goes on from there."""
    for rule in node.rules:
        if rule.plain:
            matches.append((rule, start[1]))
        elif _may_fire(rule, scope, state, start, time_ms):
            scope.floors[rule.index] = FOREVER_MS if rule.once else number
            if rule.limited:
                state.fired[rule.index] = (time_ms, state.events)
            matches.append((rule, start[1]))
            if node.counts_for_one:
                # No start that is counted so far is late enough for the next match of the only rule.
                scope.registers[node.index].starts.clear()
    if node.goes_on:
        arrivals = scope.arrivals
        if len(arrivals) >= MAX_ACTIVE and node.index not in arrivals:
            scope.drop_matches()
        arrivals[node.index] = (number, start)


def _may_fire(rule: CompiledRule, scope: ScopeState, state: UserState, start: Start, time_ms: int) -> bool:
    if start[0] <= scope.floors.get(rule.index, 0) or time_ms - start[1] > rule.within_ms:
        return False
    if not rule.limited or rule.index not in state.fired:
        return True
    fired_ms, fired_event = state.fired[rule.index]
    return time_ms - fired_ms >= rule.debounce_ms and state.events - fired_event > rule.cooldown_events
