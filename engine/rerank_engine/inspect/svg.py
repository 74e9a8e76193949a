"""A graph as one SVG file: no font, script or picture from elsewhere; readable on light and on dark ground."""

from __future__ import annotations

from html import escape

from rerank_engine.graph import Graph, Node
from rerank_engine.inspect.cards import LINE_HEIGHT, PADDING, Card, Text, make_cards, text_width
from rerank_engine.inspect.cost import Cost, NodeCost, cost
from rerank_engine.inspect.labels import (
    MODE_TEXTS,
    amount_text,
    array_text,
    attributes_text,
    headline,
    printable,
    value_text,
)
from rerank_engine.inspect.layers import Link
from rerank_engine.inspect.layout import Layout, Line, Point, lay_out
from rerank_engine.inspect.picture import Picture, make_picture

_HEADING_SIZE = 17.0
_HEADER_HEIGHT = 84.0
_MARGIN = 16.0
_LABEL_HEIGHT = 15.0
_LABEL_MIDDLE = 13.0
"""From the lower edge of a box to the middle of the labels below it."""
_CORNER = 5.0

_STYLE = """
.rr{--page:#ffffff;--ink:#1b2430;--soft:#566270;--line:#8793a1;--plain:#f3f5f8;--edge:#b9c3ce;
--once:#e6f0fd;--once-edge:#4a86d0;--block:#e4f5ea;--block-edge:#3a9a5e;--whole:#fdf0de;--whole-edge:#c97f1f;
font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (prefers-color-scheme:dark){.rr{--page:#12171d;--ink:#e6ebf1;--soft:#a3afbc;--line:#76849a;--plain:#1f2731;
--edge:#4b5867;--once:#16283f;--once-edge:#5b97e0;--block:#153023;--block-edge:#4fb477;--whole:#38290f;
--whole-edge:#dd9a3d}}
.rr .page,.rr .label rect{fill:var(--page)}
.rr text{fill:var(--ink);font-size:11px;white-space:pre}
.rr .heading{font-size:17px;font-weight:bold}
.rr .operator{font-size:13px;font-weight:bold}
.rr .name{font-size:13px}
.rr .soft,.rr .label text{fill:var(--soft)}
.rr .box{stroke-width:1.2;fill:var(--plain);stroke:var(--edge)}
.rr .once .box{fill:var(--once);stroke:var(--once-edge)}
.rr .block .box{fill:var(--block);stroke:var(--block-edge)}
.rr .whole .box{fill:var(--whole);stroke:var(--whole-edge)}
.rr .link path{fill:none;stroke:var(--line);stroke-width:1.3}
.rr .link .tip{fill:var(--line);stroke:none}
.rr .link:hover path{stroke:var(--ink);stroke-width:2}
""".strip().replace("\n", "")


def draw_svg(graph: Graph) -> str:
    """Draw a graph as a picture.

    Nodes stand in layers from top to bottom. Their colour tells when they run, their text what they are, what they
    cost and which constants they read; more shows where the pointer rests. Dtype and shape stand on the lines. The
    same graph always gives the same text.

    Parameters
    ----------
    graph
        A graph that verifies.

    Returns
    -------
    str
        An SVG document, complete in itself.

    Raises
    ------
    UnsupportedOperatorError
        A node uses an operator, an attribute or a shape that is not understood.
    GraphError
        A declared dtype or shape is not what the operator makes.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Graph, Node, Value
    >>> shape = (Dim("N"), 3)
    >>> graph = Graph("g", ["x"], ["y"], values={name: Value(name, "float32", shape) for name in ("x", "y")})
    >>> graph.nodes.append(Node("Relu", "relu", ("x",), ("y",)))
    >>> document = draw_svg(graph)
    >>> document.startswith("<svg xmlns="), "float32(N, 3)" in document
    (True, True)
    """
    counted = cost(graph)
    picture = make_picture(graph)
    cards = make_cards(graph, counted, picture)
    layout = lay_out([card.box for card in cards], picture.links)
    header, needed = _draw_header(graph, counted)
    width, height = max(layout.width, needed), layout.height + _HEADER_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rr" role="img" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}">',
        f"<title>{_escape(graph.name)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width:g}" height="{height:g}"/>',
        *header,
        f'<g transform="translate({round((width - layout.width) / 2)} {_HEADER_HEIGHT:g})">',
        *(_draw_link(picture, link, line) for link, line in zip(picture.links, layout.lines, strict=True)),
        *(_draw_label(picture, link, layout, cards[link.source]) for link in picture.links),
        *(
            _draw_card(card, corner, *_describe(graph, counted, card))
            for card, corner in zip(cards, layout.corners, strict=True)
        ),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return escape(printable(text))


def _draw_header(graph: Graph, counted: Cost) -> tuple[list[str], float]:
    """Name, totals, and what the colours mean, and the width that they take."""
    totals = " · ".join(headline(graph, counted))
    name = printable(graph.name)
    parts = [
        f'<text class="heading" x="{_MARGIN:g}" y="30">{escape(name)}</text>',
        f'<text class="soft" x="{_MARGIN:g}" y="51">{_escape(totals)}</text>',
    ]
    at = _MARGIN
    for mode in dict.fromkeys(mode for mode in MODE_TEXTS for node in counted.nodes if node.mode == mode):
        parts.append(f'<g class="{mode}"><rect class="box" x="{at:g}" y="63" width="12" height="12" rx="3"/></g>')
        parts.append(f'<text class="soft" x="{at + 18:g}" y="73">{MODE_TEXTS[mode]}</text>')
        at += 18 + text_width(MODE_TEXTS[mode]) + 20
    return parts, max(text_width(name, _HEADING_SIZE), text_width(totals), at) + 2 * _MARGIN


# --- boxes -------------------------------------------------------------------------------------------------


def _draw_card(card: Card, corner: Point, style: str, about: str) -> str:
    (x, y), box = corner, card.box
    is_node = card.item.node is not None
    rounding = 6 if is_node else box.height / 2
    parts = [
        f'<g class="{card.item.kind} {style}"><title>{_escape_lines(about)}</title>',
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{box.width:g}" height="{box.height:g}" rx="{rounding:g}"/>',
    ]
    baseline = y + PADDING + 8
    for text in card.texts:
        parts += _draw_text(text, x, baseline, box.width, is_centred=not is_node)
        baseline += LINE_HEIGHT
    return "".join([*parts, "</g>"])


def _draw_text(text: Text, x: float, y: float, width: float, *, is_centred: bool) -> list[str]:
    place = f'x="{x + width / 2:g}" text-anchor="middle"' if is_centred else f'x="{x + PADDING:g}"'
    parts = [f'<text class="{text.style}" {place} y="{y:g}">{_escape(text.body)}</text>']
    if text.aside:
        end = x + width - PADDING
        parts.append(f'<text class="soft" x="{end:g}" text-anchor="end" y="{y:g}">{_escape(text.aside)}</text>')
    return parts


def _describe(graph: Graph, counted: Cost, card: Card) -> tuple[str, str]:
    """Class of a box, and what shows when the pointer rests on it."""
    item = card.item
    if item.node is not None:
        node, own = graph.nodes[item.node], counted.nodes[item.node]
        return own.mode, _describe_node(graph, node, own)
    lines = [f"{item.kind} {item.name}"]
    if item.value is not None:
        lines.append(value_text(item.value))
    if item.kind == "input" and item.name in graph.unknown_rows:
        lines.append(f"row {graph.unknown_rows[item.name]} stands for unknown ids")
    return "end", "\n".join(lines)


def _describe_node(graph: Graph, node: Node, own: NodeCost) -> str:
    lines = [f"{node.op} {node.name}".rstrip(), f"runs {MODE_TEXTS[own.mode]}"]
    if attributes := attributes_text(node):
        lines.append(attributes)
    for name in node.inputs:
        array = graph.constants.get(name)
        told = value_text(graph.values[name]) if array is None else f"constant {array_text(array)}"
        lines.append(f"reads {name}: {told}")
    lines += [f"makes {name}: {value_text(graph.values[name])}" for name in node.outputs]
    lines.append(f"FLOPs: {amount_text(own.flops)}")
    lines.append(f"bytes read: {amount_text(own.bytes_read)}, written: {amount_text(own.bytes_written)}")
    if own.constant_bytes:
        lines.append(f"parameters: {own.parameters:,} ({own.constant_bytes:,} bytes of constants)")
    return "\n".join(lines)


def _escape_lines(text: str) -> str:
    return "\n".join(_escape(line) for line in text.split("\n"))


# --- lines -------------------------------------------------------------------------------------------------


def _draw_link(picture: Picture, link: Link, line: Line) -> str:
    value = picture.value(link)
    path = "".join(_draw_path(corners) for corners in line.paths)
    tips = "".join(f"M{x:g} {y:g}l-3.5 -7h7z" for x, y in line.ends)
    if not line.ends:
        return ""
    return (
        f'<g class="link"><title>{_escape(f"{value.name}: {value_text(value)}")}</title>'
        f'<path d="{path}"/><path class="tip" d="{tips}"/></g>'
    )


def _draw_path(corners: tuple[Point, ...]) -> str:
    """A line with rounded corners."""
    parts = [f"M{corners[0][0]:g} {corners[0][1]:g}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        radius = min(_CORNER, _length(before, corner) / 2, _length(corner, after) / 2)
        start, end = _toward(corner, before, radius), _toward(corner, after, radius)
        parts.append(f"L{start[0]:g} {start[1]:g}Q{corner[0]:g} {corner[1]:g} {end[0]:g} {end[1]:g}")
    parts.append(f"L{corners[-1][0]:g} {corners[-1][1]:g}")
    return "".join(parts)


def _length(one: Point, other: Point) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _toward(start: Point, end: Point, distance: float) -> Point:
    """A place on a horizontal or vertical line."""
    length = _length(start, end)
    part = distance / length if length else 0.0
    return (start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part)


def _draw_label(picture: Picture, link: Link, layout: Layout, card: Card) -> str:
    """Dtype and shape, on the line right below the box that it leaves."""
    text = value_text(picture.value(link))
    left, top = layout.corners[link.source]
    x, y = left + card.box.ports[link.port], top + card.box.height + _LABEL_MIDDLE
    width = text_width(text) + 6
    return (
        f'<g class="label"><rect x="{x - width / 2:g}" y="{y - _LABEL_HEIGHT / 2:g}" width="{width:g}"'
        f' height="{_LABEL_HEIGHT:g}"/><text x="{x:g}" y="{y + 4:g}" text-anchor="middle">{_escape(text)}</text></g>'
    )
