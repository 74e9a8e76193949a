"""Layer and RMS normalisation that exporters spelled out become one operator again.

    (x - mean) / sqrt(mean((x - mean)²) + epsilon) * gamma + beta         becomes    LayerNormalization(x, gamma, beta)
    x * m + (beta - mean * m), m = gamma * (variance + epsilon) ** -0.5   becomes    LayerNormalization(x, gamma, beta)
    x / sqrt(mean(x²) + epsilon) * gamma                                  becomes    RMSNormalization(x, gamma)

Every value is written as a sum of products first, so the order of operations does not matter: one rule serves the forms
of PyTorch, Keras and tf2onnx, and those that people write. A deviation with Bessel's correction is a LayerNormalization
with another epsilon and gamma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Graph, Node
from rerank_engine.passes.editing import Editor
from rerank_engine.passes.expressions import OPERATORS, Factors, close, expand, mean_of

_MOST_ROOTS = 24
"""Values behind a deviation that are tried as the end of a normalisation."""


@dataclass(frozen=True)
class _Deviation:
    """A value ``scale * mean((x - mean(x))²) + epsilon``, or the same without the mean.

    Attributes
    ----------
    name
        Of the value.
    source
        The x.
    axes
        Over which the means are taken.
    is_centered
        Whether the mean is taken away.
    scale, epsilon
        Numbers, both for the mean of squares.
    nodes
        First outputs of the nodes in between.
    """

    name: str
    source: str
    axes: tuple[int, ...]
    is_centered: bool
    scale: float
    epsilon: float
    nodes: frozenset[str]


@dataclass(frozen=True)
class _Parameters:
    """Scale and shift of the normalised value, in the shape of the dimensions that are normalised."""

    gamma: NDArray[np.float64]
    beta: NDArray[np.float64]


def fuse_layer_norm(graph: Graph) -> Graph:
    """Fuse each normalisation over the last dimensions whose inner values nobody else reads."""
    editor = Editor(graph)
    for node in editor.nodes():
        if node.op in ("Sqrt", "Pow", "Reciprocal", "Div") and editor.has(node):
            deviation = _deviation(editor, node)
            if deviation is not None:
                _fuse(editor, deviation)
    return editor.finish()


def _deviation(editor: Editor, node: Node) -> _Deviation | None:
    """What a node takes the square root of, if that is a mean of squares."""
    name = node.inputs[-1] if node.op in ("Reciprocal", "Div") else node.inputs[0]
    padded = expand(editor, name)
    if padded is None or not 1 <= len(padded.terms) <= 2:
        return None
    terms = dict(padded.terms)
    epsilon = terms.pop((), 0.0)
    if len(terms) != 1 or epsilon < 0:
        return None
    ((factors, scale),) = terms.items()
    if len(factors) != 1 or factors[0][1] != 1.0 or scale <= 0:
        return None
    mean = mean_of(editor, factors[0][0])
    if mean is None:
        return None
    squares, axes, factor, nodes = mean
    base = _root(editor, squares)
    if base is None or axes != tuple(range(axes[0], len(editor.shape(squares)))):
        return None
    nodes |= padded.nodes | {squares}
    center = _centered(editor, base, axes)
    source, more = center if center is not None else (base, frozenset())
    return _Deviation(name, source, axes, center is not None, scale * factor, epsilon, nodes | more)


def _root(editor: Editor, name: str) -> str | None:
    """What a value is the square of."""
    node = editor.maker(name, "Mul", "Pow")
    if node is None:
        return None
    if node.op == "Mul":
        return node.inputs[0] if node.inputs[0] == node.inputs[1] else None
    same_shape = editor.shape(node.inputs[0]) == editor.shape(name)
    return node.inputs[0] if editor.number(node.inputs[1]) == 2.0 and same_shape else None


def _centered(editor: Editor, name: str, axes: tuple[int, ...]) -> tuple[str, frozenset[str]] | None:
    """What a value is less its mean, and the nodes in between."""
    node = editor.maker(name, "Sub", "Add")
    if node is None:
        return None
    pairs = [node.inputs] if node.op == "Sub" else [node.inputs, node.inputs[::-1]]
    for source, other in pairs:
        mean = mean_of(editor, other)
        sign = 1.0 if node.op == "Sub" else -1.0
        if mean is not None and mean[:2] == (source, axes) and close(mean[2], sign):
            return source, mean[3] | {name}
    return None


def _fuse(editor: Editor, deviation: _Deviation) -> None:
    """Replace the last value that is the normalised source, scaled and shifted by constants."""
    for root in _roots(editor, deviation):
        name = root.outputs[0]
        found = expand(editor, name, {deviation.source, deviation.name})
        if found is None or editor.shape(name) != editor.shape(deviation.source):
            continue
        inside = (found.nodes | deviation.nodes) - {name}
        means: set[str] = set()
        parameters = _parameters(editor, deviation, found.terms, means)
        inside |= means
        if parameters is None or not editor.are_private(inside, root):
            continue
        _replace(editor, root, deviation, parameters)
        editor.remove(inside)
        return


def _roots(editor: Editor, deviation: _Deviation) -> Iterator[Node]:
    """Nodes behind the deviation that arithmetic leads to, the last ones first."""
    found: dict[str, Node] = {}
    waiting = [deviation.name]
    while waiting and len(found) < _MOST_ROOTS:
        for node in editor.readers(waiting.pop(0)):
            if node.op in OPERATORS and node.outputs[0] not in found:
                found[node.outputs[0]] = node
                waiting.append(node.outputs[0])
    yield from reversed(found.values())


def _parameters(
    editor: Editor, deviation: _Deviation, terms: dict[Factors, float], means: set[str]
) -> _Parameters | None:
    """Gamma and beta, if the terms are a normalisation; gathers the nodes that make the mean."""
    shape = tuple(editor.shape(deviation.source)[axis] for axis in deviation.axes)
    fixed = tuple(dim for dim in shape if isinstance(dim, int))
    if len(fixed) != len(shape):
        return None
    beta = np.zeros(fixed)
    gamma: NDArray[np.float64] | None = None
    subtracted: NDArray[np.float64] | None = None
    for factors, coefficient in terms.items():
        powers = dict(factors)
        is_normalised = powers.pop(deviation.name, 0.0) == -0.5
        if not is_normalised:
            if deviation.name in dict(factors):
                return None
            part = _product(editor, powers, coefficient, fixed)
            if part is None or not deviation.is_centered:
                return None
            beta = beta + part
            continue
        if powers.pop(deviation.source, 0.0) == 1.0:
            part = _product(editor, powers, coefficient, fixed)
            if part is None or gamma is not None:
                return None
            gamma = part
            continue
        if deviation.source in dict(factors) or subtracted is not None:
            return None
        mean, factor = _take_mean(editor, deviation, powers, means)
        part = _product(editor, powers, -coefficient * factor, fixed) if mean else None
        if part is None:
            return None
        subtracted = part
    if gamma is None or (subtracted is not None) != deviation.is_centered:
        return None
    if subtracted is not None and not np.allclose(subtracted, gamma, rtol=3e-7, atol=0):
        return None
    return _Parameters(gamma / np.sqrt(deviation.scale), beta)


def _take_mean(editor: Editor, deviation: _Deviation, powers: dict[str, float], means: set[str]) -> tuple[bool, float]:
    """Take the mean of the source out of a product's factors; tells its own factor."""
    for name, exponent in list(powers.items()):
        mean = mean_of(editor, name)
        if mean is not None and exponent == 1.0 and mean[:2] == (deviation.source, deviation.axes):
            del powers[name]
            means.update(mean[3])
            return True, mean[2]
    return False, 0.0


def _product(
    editor: Editor, powers: dict[str, float], coefficient: float, shape: tuple[int, ...]
) -> NDArray[np.float64] | None:
    """A product of constants in the shape of the normalised dimensions."""
    total = np.full(shape, coefficient)
    for name, exponent in powers.items():
        array = editor.array(name)
        if array is None:
            return None
        own = array.shape
        while own and len(own) > len(shape) and own[0] == 1:
            own = own[1:]
        if len(own) > len(shape) or any(a not in (1, b) for a, b in zip(own[::-1], shape[::-1], strict=False)):
            return None
        with np.errstate(all="ignore"):
            total = total * array.reshape(own).astype(np.float64) ** exponent
    return total if np.isfinite(total).all() else None


def _replace(editor: Editor, root: Node, deviation: _Deviation, parameters: _Parameters) -> None:
    name, dtype = root.outputs[0], DTYPES[editor.value(deviation.source).dtype]
    inputs = [deviation.source]
    has_beta = bool(parameters.beta.any())
    if has_beta or not (parameters.gamma == 1.0).all():
        inputs.append(editor.constant(f"{name}.gamma", np.ascontiguousarray(parameters.gamma, dtype)))
    if has_beta:
        inputs.append(editor.constant(f"{name}.beta", np.ascontiguousarray(parameters.beta, dtype)))
    op = "LayerNormalization" if deviation.is_centered else "RMSNormalization"
    attributes = {"axis": deviation.axes[0], "epsilon": deviation.epsilon / deviation.scale}
    editor.change(root, op, inputs, attributes)
