"""A graph as lines of text: one line a node, and rails beside them that carry values from node to node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rerank_engine.graph import Graph
from rerank_engine.inspect.cost import Cost, cost
from rerank_engine.inspect.labels import (
    MODE_TEXTS,
    amount_text,
    attributes_text,
    columns,
    constant_text,
    headline,
    operator_text,
    printable,
    shorten,
    value_text,
)
from rerank_engine.inspect.rails import ASCII, BOXES, Rails, Row

_LEAST_WIDTH = 40

_MOST_COLUMNS = 160
"""Of one name or list of attributes; the picture has the whole."""


@dataclass(frozen=True)
class _Entry:
    """What is said of an input, a node or an output."""

    mark: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    head: str
    middle: str
    details: tuple[str, ...]
    constants: tuple[str, ...] = ()


def draw_text(graph: Graph, width: int = 100, *, ascii_only: bool = False) -> str:
    """Draw a graph for a terminal.

    Each input, node and output has a line: what it is, what it makes, what it costs, and in brackets the constants
    that it reads. Values run down the rails on the left; the sign of a node tells when it runs. A value that finds no
    room there is named by its readers.

    Parameters
    ----------
    graph
        A graph that verifies.
    width
        Columns of the terminal, at least 40; longer lines are wrapped.
    ascii_only
        Use no character outside ASCII for the drawing; those in names become question marks.

    Returns
    -------
    str
        Lines, each ended by a line feed.

    Raises
    ------
    UnsupportedOperatorError
        A node uses an operator, an attribute or a shape that is not understood.
    GraphError
        A declared dtype or shape is not what the operator makes.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> shape = (Dim("N"), 3)
    >>> graph = Graph("g", ["x"], ["y"], values={name: Value(name, "float32", shape) for name in ("x", "h", "y")})
    >>> bias = graph.add_constant("bias", np.ones(3, np.float32))
    >>> graph.nodes = [Node("Add", "shift", ("x", bias), ("h",)), Node("Mul", "gate", ("h", "x"), ("y",))]
    >>> print(draw_text(graph, 72, ascii_only=True), end="")
    g
    nodes: 2,  parameters: 3,  constants: 12 B,  FLOPs: 6*N
    * for blocks of candidates
    <BLANKLINE>
    o    input x   float32(N, 3)
    |-*  Add       float32(N, 3)  3*N FLOP  shift  [bias float32(3,)]
    *-'  Mul       float32(N, 3)  3*N FLOP  gate
    @    output y
    """
    width = max(width, _LEAST_WIDTH)
    counted = cost(graph)
    facts = headline(graph, counted)
    totals = _wrap("", [f"{fact}," for fact in facts[:-1]] + facts[-1:], width, indent=2)
    signs = ASCII if ascii_only else BOXES
    modes = {node.mode for node in counted.nodes}
    legend = _wrap("", [f"{signs[mode]} {text}" for mode, text in MODE_TEXTS.items() if mode in modes], width, indent=0)
    body = _body(list(_entries(graph, counted)), width, signs)
    lines = [*_wrap("", [_brief(graph.name)], width, indent=0), *totals, *legend, "", *body]
    text = "".join(line.rstrip() + "\n" for line in lines)
    return text.replace("…", "~").encode("ascii", "replace").decode("ascii") if ascii_only else text


def _entries(graph: Graph, counted: Cost) -> Iterator[_Entry]:
    """Inputs right before their first reader, outputs right after their maker."""
    values = graph.values
    waiting, wanted = dict.fromkeys(graph.inputs), Counter(graph.outputs)
    unread = set(graph.inputs) - {name for node in graph.nodes for name in node.inputs}

    def inputs(names: Sequence[str]) -> Iterator[_Entry]:
        for name in names:
            if name in waiting:
                del waiting[name]
                told = ("not read",) if name in unread and name not in graph.outputs else ()
                yield _Entry("input", (), (name,), f"input {name}", value_text(values[name]), told)
                yield from outputs([name])

    def outputs(names: Sequence[str]) -> Iterator[_Entry]:
        for name in names:
            for _ in range(wanted[name]):
                told = value_text(values[name]) if name in graph.constants else ""
                yield _Entry("output", (name,), (), f"output {name}", told, ())

    yield from inputs([name for name in graph.inputs if name in unread])
    for node, own in zip(graph.nodes, counted.nodes, strict=True):
        yield from inputs(node.inputs)
        made = ", ".join(value_text(values[name]) for name in node.outputs)
        details = [f"{amount_text(own.flops, short=True)} FLOP"] if own.flops != 0 else []
        details += [text for text in (node.name, attributes_text(node)) if text]
        constants = [constant_text(graph, name, 48) for name in dict.fromkeys(node.inputs) if name in graph.constants]
        reads = tuple(name for name in dict.fromkeys(node.inputs) if name not in graph.constants)
        yield _Entry(own.mode, reads, node.outputs, operator_text(node), made, tuple(details), tuple(constants))
        yield from outputs(node.outputs)
    yield from outputs([name for name in dict.fromkeys(graph.outputs) if name in graph.constants])


def _body(entries: Sequence[_Entry], width: int, signs: dict[str, str]) -> list[str]:
    """Rails and words side by side."""
    last = {name: index for index, entry in enumerate(entries) for name in entry.reads}
    rails = Rails(last, most=max(4, (width - _LEAST_WIDTH) // 4))
    rows = [rails.add(index, entry.mark, entry.reads, entry.makes) for index, entry in enumerate(entries)]
    beside = max((row.width for row in rows), default=0) + 1
    heads = min(max((columns(entry.head) for entry in entries), default=0), 24)
    middles = min(max((columns(entry.middle) for entry in entries), default=0), 24)
    lines = []
    for entry, row in zip(entries, rows, strict=True):
        head, *more = _words(entry, row, heads, middles, width - beside)
        lines.append(_pad(row.draw(signs), beside) + head)
        lines += [_pad(row.draw_below(signs), beside) + line for line in more]
    return lines


def _words(entry: _Entry, row: Row, heads: int, middles: int, width: int) -> list[str]:
    """What stands beside the rails, in lines."""
    head = _pad(_brief(entry.head), heads) + "  " + _pad(_brief(entry.middle), middles)
    constants = [f"{text}," for text in entry.constants[:-1]] + [f"{text}]" for text in entry.constants[-1:]]
    constants[:1] = [f"[{text}" for text in constants[:1]]
    units = [*entry.details, *(f"(reads {name})" for name in row.unseen), *constants]
    return _wrap(head, [_brief(unit) for unit in units], width, indent=4)


def _brief(text: str) -> str:
    return shorten(printable(text), _MOST_COLUMNS)


def _wrap(head: str, units: Sequence[str], width: int, *, indent: int) -> list[str]:
    """Put units behind a head, whole ones into each line; only what is wider than a line is cut."""
    lines, current = [], head
    for unit in units:
        if current.strip() and columns(current) + 2 + columns(unit) > width:
            lines.append(current)
            current = " " * indent + unit
        else:
            current += f"  {unit}" if current else unit
    result: list[str] = []
    for line in (*lines, current):
        rest = line.rstrip()
        while columns(rest) > width:
            start, rest = _cut(rest, width)
            result.append(start)
            rest = " " * indent + rest
        result.append(rest)
    return result


def _cut(text: str, width: int) -> tuple[str, str]:
    """As much of a text as fits, and the rest."""
    used = 0
    for at, letter in enumerate(text):
        used += columns(letter)
        if used > width:
            return text[:at], text[at:]
    return text, ""


def _pad(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
