"""Words of a drawing: amounts, shapes, attributes, and texts that are cut to a width."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from rerank_engine.dimensions import Dim
from rerank_engine.graph import Graph, Node, Value, shape_text
from rerank_engine.inspect.cost import Cost
from rerank_engine.ops import OPERATORS

_UNITS = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))

MODE_TEXTS: Mapping[str, str] = {
    "once": "once a call",
    "block": "for blocks of candidates",
    "whole": "over the whole list",
}
"""When a node runs, in words."""


def amount_text(amount: int | Dim, *, short: bool = False) -> str:
    """Write an amount over named dimensions for people.

    Parameters
    ----------
    amount
        A number or polynomial.
    short
        Three digits and a unit of a thousand, a million, ..., in place of all digits.

    Examples
    --------
    >>> from rerank_engine.dimensions import Dim
    >>> amount_text(Dim("N", 12345) + 1000), amount_text(Dim("N", 12345) + 1000, short=True), amount_text(7)
    ('12,345*N + 1,000', '12.3k*N + 1k', '7')
    """
    if isinstance(amount, int):
        return _number(amount, short)
    text = ""
    for names, coefficient in amount.terms:
        number = _number(abs(coefficient), short)
        body = "*".join(names if abs(coefficient) == 1 and names else [number, *names])
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {body}" if text else f"-{body}" if coefficient < 0 else body
    return text


def _number(number: int, short: bool) -> str:
    if not short:
        return f"{number:,}"
    if number >= 10**18:
        digits = str(number)
        return f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"
    for factor, unit in _UNITS:
        if number >= factor:
            return f"{number / factor:.3g}{unit}" if number < 999.5 * factor else f"{number / factor:,.0f}{unit}"
    return str(number)


def bytes_text(amount: int) -> str:
    """Write a number of bytes for people.

    >>> bytes_text(196), bytes_text(66_564)
    ('196 B', '66.6 kB')
    """
    text = _number(amount, short=True)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


def value_text(value: Value) -> str:
    """Dtype and shape: ``float32(N, 32)``."""
    return f"{value.dtype}{shape_text(value.shape)}"


def array_text(array: NDArray[Any]) -> str:
    """A constant: its dtype and shape, or its number when it is a single one.

    >>> import numpy as np
    >>> array_text(np.zeros((3, 1), np.float32)), array_text(np.array(0.5, np.float32))
    ('float32(3, 1)', '0.5')
    """
    if array.size == 1 and array.ndim <= 1:
        return f"{array.reshape(-1)[0]:.6g}" if array.dtype.kind == "f" else str(array.reshape(-1)[0])
    return f"{array.dtype}{shape_text(array.shape)}"


def attributes_text(node: Node) -> str:
    """Attributes that differ from their defaults, without the shapes, which stand beside the lines."""
    known = OPERATORS[node.op].attributes if node.op in OPERATORS else {}
    told = {
        name: value
        for name, value in node.attributes.items()
        if name not in ("shape", "activation") and not (name in known and known[name] == value)
    }
    return ", ".join(f"{name}={_plain(value)}" for name, value in told.items())


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_plain(entry) for entry in value) + ("," if len(value) == 1 else "") + ")"
    return str(value)


def printable(text: str) -> str:
    r"""Replace what neither a terminal nor XML can show: control characters, halves of pairs.

    >>> printable("a\x1b[31mb") == "a\ufffd[31mb"
    True
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if _is_hidden(letter) else letter for letter in text)


def _is_hidden(letter: str) -> bool:
    is_no_character = ord(letter) & 0xFFFE == 0xFFFE
    return is_no_character or unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def columns(text: str) -> int:
    """Columns that a text takes in a font of fixed width: 2 for wide characters, 0 for marks above others.

    >>> columns("abc"), columns("\u8868")
    (3, 2)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def shorten(text: str, most: int) -> str:
    """Cut a text in the middle, where names of exporters tell least.

    Parameters
    ----------
    text
        What must fit.
    most
        Columns that there are.

    Examples
    --------
    >>> shorten("/model/layers.0/attention/MatMul_3", 20)
    '/model…tion/MatMul_3'
    """
    if columns(text) <= most:
        return text
    head, tail, used = "", "", 1
    for letter in text:
        if columns(head) + columns(letter) > most // 3:
            break
        head += letter
    used += columns(head)
    for letter in reversed(text):
        if used + columns(letter) > most:
            break
        tail, used = letter + tail, used + columns(letter)
    return f"{head}…{tail}"


def constant_text(graph: Graph, name: str, most: int) -> str:
    """A constant's name and what it is, in at most ``most`` columns where that is enough for the latter."""
    what = array_text(graph.constants[name])
    return f"{shorten(printable(name), max(6, most - columns(what) - 1))} {what}"


def operator_text(node: Node) -> str:
    """The operator, with the activation that a pass has put into it: ``MatMul + Relu``."""
    activation = node.attributes.get("activation")
    return f"{node.op} + {activation}" if isinstance(activation, str) and activation else node.op


def headline(graph: Graph, counted: Cost) -> list[str]:
    """Nodes, parameters, bytes and arithmetic of a model."""
    once, rest = counted.flops_once, counted.flops_candidates
    flops = [f"{amount_text(once, short=True)} once a call"] if once != 0 else []
    flops += [amount_text(rest, short=True)] if rest != 0 or not flops else []
    return [
        f"nodes: {len(graph.nodes):,}",
        f"parameters: {counted.parameters:,}",
        f"constants: {bytes_text(counted.constant_bytes)}",
        f"FLOPs: {' + '.join(flops)}",
    ]
