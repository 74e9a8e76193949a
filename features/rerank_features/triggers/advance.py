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

from typing import Any

from rerank_features.triggers.state import MAX_ACTIVE, Register, ScopeState, UserState
from rerank_features.triggers.trie import FOREVER_MS, CompiledRule, Edge, Move, Node

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
    if move.excluded is not None:
        scope.seen[move.excluded] = number
    # Steps are gathered before any is taken: one event must not be two steps of a match.
    opened = _open_steps(move, scope, time_ms) if move.waits and scope.arrivals else ()
    first = (number, time_ms)
    for edge in move.first:
        if edge.checked and not _passes(edge, scope, state, known):
            continue
        reached = first if edge.count == 1 else _count(edge, scope, number, first)
        if reached is not None:
            _arrive(edge.child, scope, state, number, reached, time_ms, matches)
    for edge, arrived, start, start_ms in opened:
        if edge.checked and not _passes(edge, scope, state, known):
            continue
        entry = (start, start_ms) if arrived >= _barrier(edge, scope, number) else None
        reached = entry if edge.count == 1 else _count(edge, scope, number, entry)
        if reached is not None:
            _arrive(edge.child, scope, state, number, reached, time_ms, matches)


def _passes(edge: Edge, scope: ScopeState, state: UserState, known: dict[str, Any]) -> bool:
    """Whether the event keeps the bounds of a step, and the step can still lead to a firing."""
    if edge.once_rule in scope.floors:
        return False
    return edge.accepts is None or edge.accepts(known, state.lengths)


def _open_steps(move: Move, scope: ScopeState, time_ms: int) -> list[tuple[Edge, int, int, int]]:
    """The steps that partial matches wait for and whose kind fits; matches that are too old are dropped.

    Looks at the nodes that can go on with this kind, or at those that have a partial match, whichever are fewer.
    """
    arrivals, kind, nodes = scope.arrivals, move.kind, move.nodes
    steps: list[tuple[Edge, int, int, int]] = []
    spent: list[int] = []
    for place in arrivals if move.wild or len(arrivals) < len(move.named) else move.named:
        arrival = arrivals.get(place)
        if arrival is None:
            continue
        arrived, start, start_ms = arrival
        node = nodes[place]
        if time_ms - start_ms > node.within_ms:
            spent.append(place)
        else:
            steps += [(edge, arrived, start, start_ms) for edge in node.edges.get(kind, node.wild)]
    for place in spent:
        del arrivals[place]
    return steps


def _barrier(edge: Edge, scope: ScopeState, number: int) -> int:
    """The last event of the match so far must not be older than this. It may itself be of an excluded kind."""
    barrier = number - 1 if edge.contiguous else -1
    for kind in edge.without:
        seen = scope.seen.get(kind, -1)
        if seen > barrier:
            barrier = seen
    return barrier


def _count(edge: Edge, scope: ScopeState, number: int, entry: tuple[int, int] | None) -> tuple[int, int] | None:
    """Count one event of a step of several: the start of the match whose last event it is, or None."""
    place = edge.child.index
    register = scope.registers.get(place)
    if register is None:
        if len(scope.registers) >= MAX_ACTIVE:
            scope.drop_matches()
        register = scope.registers[place] = Register(edge.count)
    starts = register.starts
    # The barrier again, without a call: this is where most events of a feed end.
    if edge.contiguous and register.moved < number - 1:
        starts.clear()
    for kind in edge.without:
        if scope.seen.get(kind, -1) > register.moved:
            starts.clear()
    register.moved = number
    starts.appendleft(entry)
    return starts[-1] if len(starts) == edge.count else None


def _arrive(
    node: Node,
    scope: ScopeState,
    state: UserState,
    number: int,
    reached: tuple[int, int],
    time_ms: int,
    matches: Matches,
) -> None:
    """A match, by number and time of its first event, has come to a node: fire what it completes, and keep it."""
    start, start_ms = reached
    for rule in node.rules:
        if rule.plain:
            matches.append((rule, start_ms))
        elif _may_fire(rule, scope, state, start, start_ms, time_ms):
            scope.floors[rule.index] = FOREVER_MS if rule.once else number
            if rule.limited:
                state.fired[rule.index] = (time_ms, state.events)
            matches.append((rule, start_ms))
            if node.counts_for_one:
                # No start that is counted so far is late enough for the next match of the only rule.
                scope.registers[node.index].starts.clear()
    if node.goes_on:
        arrivals = scope.arrivals
        if len(arrivals) >= MAX_ACTIVE and node.index not in arrivals:
            scope.drop_matches()
        arrivals[node.index] = (number, start, start_ms)


def _may_fire(rule: CompiledRule, scope: ScopeState, state: UserState, start: int, start_ms: int, time_ms: int) -> bool:
    if start <= scope.floors.get(rule.index, 0) or time_ms - start_ms > rule.within_ms:
        return False
    if not rule.limited or rule.index not in state.fired:
        return True
    fired_ms, fired_event = state.fired[rule.index]
    return time_ms - fired_ms >= rule.debounce_ms and state.events - fired_event > rule.cooldown_events
