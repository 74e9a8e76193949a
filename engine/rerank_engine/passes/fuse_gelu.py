"""GELU that exporters spelled out becomes one operator; the exact form stays exact, the approximation by tanh itself.

    0.5 * x * (1 + erf(x / sqrt(2)))                                  becomes    Gelu(x)
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³)))          becomes    Gelu(x; approximate=tanh)
    x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x³))               becomes    Gelu(x; approximate=tanh)

Constants count as these only when they differ by no more than their rounding to float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rerank_engine.graph import Graph, Node
from rerank_engine.passes.editing import Editor
from rerank_engine.passes.expressions import OPERATORS, Expression, Factors, close, expand

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715

_CURVES: Mapping[str, tuple[str, dict[float, float], float]] = {
    "Erf": ("none", {1.0: math.sqrt(0.5)}, 0.5),
    "Tanh": ("tanh", {1.0: _TANH_SCALE, 3.0: _TANH_SCALE * _CUBIC}, 0.5),
    "Sigmoid": ("tanh", {1.0: 2 * _TANH_SCALE, 3.0: 2 * _TANH_SCALE * _CUBIC}, 1.0),
}
"""By the function in it: the attribute, coefficients of the powers of x inside, and the coefficient outside."""

_DEEPEST = 6
"""Operators between x and the function, and between the function and the result."""


def fuse_gelu(graph: Graph) -> Graph:
    """Fuse each GELU whose inner values nobody else reads."""
    editor = Editor(graph)
    for node in editor.nodes():
        if node.op in _CURVES and editor.has(node):
            _fuse(editor, node)
    return editor.finish()


def _fuse(editor: Editor, curve: Node) -> None:
    approximate, inside, outside = _CURVES[curve.op]
    bent = curve.outputs[0]
    for source in _ancestors(editor, curve.inputs[0]):
        argument = expand(editor, curve.inputs[0], {source})
        wanted: dict[Factors, float] = {((source, power),): factor for power, factor in inside.items()}
        if argument is None or not _is_sum(argument, wanted):
            continue
        product: dict[Factors, float] = {tuple(sorted(((source, 1.0), (bent, 1.0)))): outside}
        if curve.op != "Sigmoid":
            product[((source, 1.0),)] = outside
        for root in _descendants(editor, bent):
            name = root.outputs[0]
            found = expand(editor, name, {source, bent})
            if found is None or not _is_sum(found, product) or editor.shape(name) != editor.shape(source):
                continue
            members = (found.nodes | argument.nodes | {bent}) - {name}
            if editor.are_private(members, root):
                editor.change(root, "Gelu", [source], {"approximate": approximate})
                editor.remove(members)
                return


def _is_sum(found: Expression, wanted: dict[Factors, float]) -> bool:
    return found.terms.keys() == wanted.keys() and all(close(found.terms[key], wanted[key]) for key in wanted)


def _ancestors(editor: Editor, name: str) -> list[str]:
    """Values that arithmetic makes ``name`` of, the farthest first."""
    found: dict[str, None] = {}
    layer = [name]
    for _ in range(_DEEPEST):
        makers = [maker for entry in layer if (maker := editor.maker(entry, *OPERATORS)) is not None]
        layer = [entry for maker in makers for entry in maker.inputs if editor.array(entry) is None]
        for entry in layer:
            found.pop(entry, None)
            found[entry] = None
    return [*found][::-1]


def _descendants(editor: Editor, name: str) -> list[Node]:
    """Nodes that arithmetic makes of ``name``, the farthest first."""
    found: dict[str, Node] = {}
    layer = [name]
    for _ in range(_DEEPEST):
        nodes = [node for entry in layer for node in editor.readers(entry) if node.op in OPERATORS]
        layer = [node.outputs[0] for node in nodes]
        for node in nodes:
            found.pop(node.outputs[0], None)
            found[node.outputs[0]] = node
    return [*found.values()][::-1]
