"""All patterns in one trie: rules that begin alike share their first nodes.

There is one root a scope. An edge is a step; two rules share it when the step and ``gaps`` are equal. With the rules
``click, purchase`` and ``click, click`` of one scope the trie is::

    root --click--> 1 --purchase--> 2 (rule 0)
                      --click-----> 3 (rule 1)

A step of several events is one edge all the same; its counter belongs to the node behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rerank_features.triggers.bounds import bounds_of
from rerank_features.triggers.spec import Scope, TriggerRule, TriggerSpec, TriggerStep

FOREVER_MS = 1 << 62
"""Stands for "no limit" among times, and for "never again" among sequence numbers."""


class CompiledRule:
    """What the matcher needs of a rule, in whole milliseconds."""

    __slots__ = (
        "action",
        "cooldown_events",
        "debounce_ms",
        "events",
        "index",
        "limited",
        "name",
        "once",
        "order",
        "plain",
        "within_ms",
    )

    def __init__(self, index: int, rule: TriggerRule) -> None:
        self.index = index
        self.name = rule.name
        self.action = rule.action
        self.within_ms = FOREVER_MS if rule.within_s is None else round(rule.within_s * 1000)
        self.debounce_ms = round(rule.debounce_s * 1000)
        self.cooldown_events = rule.cooldown_events
        self.limited = rule.debounce_s > 0 or rule.cooldown_events > 0
        self.once = rule.once
        self.events = rule.events
        self.plain = rule.events == 1 and not rule.once and not self.limited
        """Whether each event that fits fires, whatever came before."""
        self.order = (-rule.priority, index)


class Edge:
    """A step that leads to a node."""

    __slots__ = ("accepts", "checked", "child", "contiguous", "count", "guarded", "once_rule", "place", "without")

    def __init__(self, step: TriggerStep, gaps: bool, child: Node) -> None:
        self.child = child
        self.place = child.index
        self.count = step.count
        self.contiguous = not gaps
        self.without = step.without
        self.guarded = self.contiguous or bool(step.without)
        """Whether what came since the event before it can rule the step out."""
        self.accepts = bounds_of(step)
        """Whether an event of the right kind keeps all bounds of the step; None when there are none."""
        self.once_rule = -1
        """The rule that fires at most once in a scope and is all that this edge leads to; -1 for none."""
        self.checked = self.accepts is not None
        """Whether there is anything to ask before the step is taken: a bound, or a rule that fires once."""


class Node:
    """A prefix of patterns: where it goes on, by kind, and which rules it completes."""

    __slots__ = ("counts_for_one", "edges", "goes_on", "index", "rules", "wild", "within_ms")

    def __init__(self, index: int) -> None:
        self.index = index
        self.rules: tuple[CompiledRule, ...] = ()
        self.edges: dict[str, tuple[Edge, ...]] = {}
        self.wild: tuple[Edge, ...] = ()
        self.within_ms = 0
        """Longest time limit of the rules that go on from here: an older partial match is of no use."""
        self.goes_on = False
        """Whether a rule goes on from here."""
        self.counts_for_one = False
        """Whether it ends a step of several events and is there for one rule, which it completes."""


Step = tuple[Edge, tuple[int, tuple[int, int]] | None]
"""An edge, and the partial match that it continues: number of its newest event, and its start. None at the root."""


@dataclass(frozen=True, slots=True)
class Move:
    """What an event of one kind can do in one scope.

    Attributes
    ----------
    kind
        Of the event; empty for every kind that no rule of the scope names.
    scope
        Which sequence it moves on.
    excluded
        Whether a step of the scope excludes the kind.
    first
        Steps from the root.
    named
        Nodes behind the root with an edge of this kind.
    wild
        Whether a node behind the root has a wildcard.
    waits
        Whether any node behind the root can go on with this kind.
    nodes
        All nodes of the trie.
    """

    kind: str
    scope: Scope
    excluded: bool
    first: tuple[Step, ...]
    named: tuple[int, ...]
    wild: bool
    waits: bool
    nodes: list[Node]


class Trie:
    """The compiled rules of a spec."""

    __slots__ = ("_members", "_spec", "every_kind", "kinds", "nodes", "registers", "roots", "rules", "without")

    def __init__(self, spec: TriggerSpec) -> None:
        self._spec = spec
        self.rules = tuple(CompiledRule(index, rule) for index, rule in enumerate(spec.rules))
        self.nodes: list[Node] = []
        self.roots: dict[Scope, Node] = {}
        self._members: dict[Scope, list[Node]] = {}
        """Nodes of each scope but the root."""
        self.registers: dict[int, int] = {}
        """Nodes behind a step of several events, with how many."""
        edges: dict[tuple[int, TriggerStep, bool], Edge] = {}
        outgoing: dict[int, list[tuple[TriggerStep, Edge]]] = {}
        completed: dict[int, list[CompiledRule]] = {}
        for rule, compiled in zip(spec.rules, self.rules, strict=True):
            node = self.roots.get(rule.scope)
            if node is None:
                node = self.roots[rule.scope] = self._node()
                self._members[rule.scope] = []
            for step in rule.steps:
                node.within_ms = max(node.within_ms, compiled.within_ms)
                key = (node.index, step, rule.gaps)
                edge = edges.get(key)
                if edge is None:
                    edge = edges[key] = Edge(step, rule.gaps, self._node())
                    self._members[rule.scope].append(edge.child)
                    outgoing.setdefault(node.index, []).append((step, edge))
                    if step.count > 1:
                        self.registers[edge.child.index] = step.count
                node = edge.child
            completed.setdefault(node.index, []).append(compiled)
        for index, rules in completed.items():
            self.nodes[index].rules = tuple(rules)
        for index, steps in outgoing.items():
            self.nodes[index].goes_on = True
            self._dispatch(self.nodes[index], steps)
        for edge in edges.values():
            node = edge.child
            if len(node.rules) == 1 and not node.goes_on:
                node.counts_for_one = edge.count > 1
                if node.rules[0].once:
                    edge.once_rule, edge.checked = node.rules[0].index, True
        self.kinds = frozenset(kind for rule in spec.rules for step in rule.steps for kind in step.kinds + step.without)
        self.without = frozenset(kind for rule in spec.rules for step in rule.steps for kind in step.without)
        # These need to hear of events that no step names.
        self.every_kind = any(
            not rule.gaps or rule.cooldown_events or rule.scope == "session" or any(not s.kinds for s in rule.steps)
            for rule in spec.rules
        )

    def moves(self) -> tuple[dict[str, tuple[Move, ...]], tuple[Move, ...] | None]:
        """What an event does: by kind, and for any other kind, which is None when nothing has to hear of it.

        A scope hears of the kinds that its rules name, or of all where a rule has a wildcard or allows no gaps.
        """
        named: dict[Scope, set[str]] = {scope: set() for scope in self.roots}
        excluded: dict[Scope, set[str]] = {scope: set() for scope in self.roots}
        hears_all: set[Scope] = set()
        for rule in self._spec.rules:
            for step in rule.steps:
                named[rule.scope].update(step.kinds + step.without)
                excluded[rule.scope].update(step.without)
                if not rule.gaps or not step.kinds:
                    hears_all.add(rule.scope)
        waiting: dict[Scope, dict[str, list[int]]] = {scope: {} for scope in self.roots}
        for scope, nodes in self._members.items():
            for node in nodes:
                for kind, edges in node.edges.items():
                    if edges:
                        waiting[scope].setdefault(kind, []).append(node.index)
        has_wild = {scope: any(node.wild for node in nodes) for scope, nodes in self._members.items()}
        others = {scope: self._move("", scope, False, [], has_wild[scope]) for scope in hears_all}
        by_kind = {
            kind: tuple(
                self._move(
                    kind,
                    scope,
                    kind in excluded[scope],
                    waiting[scope].get(kind, []),
                    has_wild[scope],
                )
                if kind in named[scope]
                else others[scope]
                for scope in self.roots
                if kind in named[scope] or scope in hears_all
            )
            for kind in self.kinds
        }
        any_other = tuple(others[scope] for scope in self.roots if scope in hears_all)
        return by_kind, any_other if self.every_kind else None

    def _move(self, kind: str, scope: Scope, excluded: bool, named: list[int], wild: bool) -> Move:
        root = self.roots[scope]
        first = root.edges.get(kind, root.wild)
        return Move(
            kind,
            scope,
            excluded,
            tuple((edge, None) for edge in first),
            tuple(named),
            wild,
            bool(named) or wild,
            self.nodes,
        )

    def _node(self) -> Node:
        self.nodes.append(Node(len(self.nodes)))
        return self.nodes[-1]

    @staticmethod
    def _dispatch(node: Node, steps: list[tuple[TriggerStep, Edge]]) -> None:
        """Sort the edges by kind. Wildcards stand with every kind but those that their step excludes."""
        wild = [(step, edge) for step, edge in steps if not step.kinds]
        by_kind: dict[str, list[Edge]] = {}
        for step, edge in steps:
            for kind in step.kinds:
                by_kind.setdefault(kind, []).append(edge)
        for step, _ in wild:
            for kind in step.without:
                by_kind.setdefault(kind, [])
        for kind, found in by_kind.items():
            found += [edge for step, edge in wild if kind not in step.without]
            node.edges[kind] = tuple(found)
        node.wild = tuple(edge for _, edge in wild)
