"""What stands in each box of a drawing, and how much room that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rerank_engine.graph import Graph
from rerank_engine.inspect.cost import Cost
from rerank_engine.inspect.labels import (
    amount_text,
    attributes_text,
    columns,
    constant_text,
    operator_text,
    printable,
    shorten,
    value_text,
)
from rerank_engine.inspect.layers import far_links
from rerank_engine.inspect.layout import Box
from rerank_engine.inspect.picture import Item, Picture

TITLE_SIZE, TEXT_SIZE = 13.0, 11.0
LINE_HEIGHT, PADDING = 15.0, 10.0

_ADVANCE = 0.61
"""Width of a character of a fixed-width font, as a part of its size; common ones have 0.55 to 0.602."""

_LABEL_ROOM = 14.0
_SKIRT = 24.0
_LEAST_WIDTH = 64.0
_ROOM_AN_ARRIVAL = 9.0
_MOST_COLUMNS = 34
_MOST_CONSTANTS = 6


@dataclass(frozen=True)
class Text:
    """A line of text; ``aside`` stands at the right end of the box."""

    body: str
    style: str = "soft"
    size: float = TEXT_SIZE
    aside: str = ""


@dataclass(frozen=True)
class Card:
    """A box with its words."""

    item: Item
    texts: tuple[Text, ...]
    box: Box


def text_width(text: str, size: float = TEXT_SIZE) -> float:
    """Width of a text in pixels."""
    return columns(text) * size * _ADVANCE


def make_cards(graph: Graph, counted: Cost, picture: Picture) -> list[Card]:
    """Fill all boxes of a picture."""
    arriving = Counter(target for link in picture.links for target in link.targets)
    distant: dict[int, list[str]] = {}
    for number, target in sorted(far_links(len(picture.items), picture.links)):
        distant.setdefault(target, []).append(picture.value(picture.links[number]).name)
    cards = []
    for index, item in enumerate(picture.items):
        texts = _node_texts(graph, counted, item.node) if item.node is not None else _end_texts(item)
        texts += [Text(f"↑ {shorten(printable(name), _MOST_COLUMNS - 2)}") for name in distant.get(index, ())]
        cards.append(Card(item, tuple(texts), _box(item, texts, arriving[index])))
    return cards


def _end_texts(item: Item) -> list[Text]:
    name = Text(shorten(printable(item.name), _MOST_COLUMNS), "name", TITLE_SIZE)
    is_joined = item.kind == "output" or bool(item.results)
    return [name] if is_joined or item.value is None else [name, Text(f"{value_text(item.value)}, not read")]


def _node_texts(graph: Graph, counted: Cost, index: int) -> list[Text]:
    node, flops = graph.nodes[index], counted.nodes[index].flops
    aside = f"{amount_text(flops, short=True)} FLOP" if flops != 0 else ""
    lines = [shorten(printable(text), _MOST_COLUMNS) for text in (node.name, attributes_text(node)) if text]
    names = [name for name in dict.fromkeys(node.inputs) if name in graph.constants]
    shown = names if len(names) <= _MOST_CONSTANTS else names[: _MOST_CONSTANTS - 1]
    lines += [constant_text(graph, name, _MOST_COLUMNS) for name in shown]
    if len(shown) < len(names):
        lines.append(f"… {len(names) - len(shown)} more constants")
    return [Text(operator_text(node), "operator", TITLE_SIZE, aside), *map(Text, lines)]


def _box(item: Item, texts: list[Text], arriving: int) -> Box:
    """Room for the texts, for the labels of the lines that leave, and for the lines that arrive."""
    labels = [text_width(value_text(value)) + _LABEL_ROOM for value in item.results]
    inner = max(
        text_width(text.body, text.size) + text_width(f"  {text.aside}" if text.aside else "") for text in texts
    )
    width = max(inner + 2 * PADDING, sum(labels), 20 + _ROOM_AN_ARRIVAL * arriving, _LEAST_WIDTH)
    width = float(2 * round(width / 2 + 0.5))  # even, so that the middle is a whole number
    spare = (width - sum(labels)) / max(1, len(labels))
    ports, at = [], 0.0
    for label in labels:
        ports.append(float(round(at + (label + spare) / 2)))
        at += label + spare
    return Box(width, 2 * PADDING - 4 + LINE_HEIGHT * len(texts), tuple(ports), _SKIRT if labels else 0.0)
