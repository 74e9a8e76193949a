"""Values as sums of products of other values, so that one formula is known in all its spellings.

    0.5 * x * (1 + erf(x / 1.4142135))        is    0.5 * x + 0.5 * x * erf(...)
    x * m + (beta - mean * m), m = gamma * r  is    x * gamma * r - mean * gamma * r + beta

Such a sum does not depend on the order of operations, on where brackets are, or on how a root is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rerank_engine.graph import Node
from rerank_engine.ops import attribute
from rerank_engine.passes.editing import Editor

Factors = tuple[tuple[str, float], ...]
"""Names of values, each with its exponent, in the order of the names."""

FLOATS = ("float32", "float64")

OPERATORS = ("Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Pow", "Identity")
"""What is looked into; everything else is a value of its own."""

_MOST_TERMS = 8
_DEEPEST = 16


@dataclass(frozen=True)
class Expression:
    """A sum of products.

    Attributes
    ----------
    terms
        Coefficient of each product of values.
    nodes
        First outputs of the nodes that were looked into.
    """

    terms: dict[Factors, float]
    nodes: frozenset[str] = frozenset()


def expand(editor: Editor, name: str, stop: Collection[str] = (), depth: int = 0) -> Expression | None:
    """Write a value as a sum of products of values in ``stop`` and of values that no arithmetic makes.

    Parameters
    ----------
    editor
        The graph.
    name
        The value.
    stop
        Values that are not looked into.
    depth
        How far above another call this one is.

    Returns
    -------
    Expression or None
        None where terms or factors cancel (so that NaN would not stay NaN), or where it gets too large.
    """
    value = editor.value(name)
    number = editor.number(name)
    if value.dtype not in FLOATS:
        return None
    if number is not None and name not in stop:
        return Expression({(): number}) if number else None
    node = editor.maker(name, *OPERATORS)
    if name in stop or node is None or depth == _DEEPEST:
        return _single(name)
    found = _expand_node(editor, node, stop, depth + 1)
    if found is None or len(found.terms) > _MOST_TERMS:
        return None
    return Expression(found.terms, found.nodes | {node.outputs[0]})


def _single(name: str, exponent: float = 1.0) -> Expression:
    return Expression({((name, exponent),): 1.0})


def _expand_node(editor: Editor, node: Node, stop: Collection[str], depth: int) -> Expression | None:
    if node.op == "Sqrt":
        return _power(editor, node.inputs[0], 0.5, stop, depth)
    if node.op == "Pow":
        exponent = editor.number(node.inputs[1])
        return _power(editor, node.inputs[0], exponent, stop, depth) if exponent else _single(node.outputs[0])
    parts = [expand(editor, name, stop, depth) for name in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    if node.op == "Neg":
        return multiply(known[0], Expression({(): -1.0}))
    if node.op == "Reciprocal":
        return _inverse(node.inputs[0], known[0])
    if node.op == "Identity":
        return known[0]
    left, right = known
    if node.op == "Div":
        inverse = _inverse(node.inputs[1], right)
        return multiply(left, inverse) if inverse is not None else None
    if node.op == "Mul":
        return multiply(left, right)
    return add(left, right if node.op == "Add" else multiply(right, Expression({(): -1.0})))


def _power(editor: Editor, name: str, exponent: float, stop: Collection[str], depth: int) -> Expression | None:
    """A small whole power multiplied out; of any other, the base is a value of its own."""
    number = editor.number(name)
    if number is not None and number > 0:
        return Expression({(): number**exponent})
    if exponent in (1.0, 2.0, 3.0) and name not in stop:
        base = result = expand(editor, name, stop, depth)
        for _ in range(int(exponent) - 1):
            result = multiply(result, base)
        return result
    # The square root of an inverse is the inverse of the square root; a product's root would lose signs.
    inverse = editor.maker(name, "Reciprocal", "Div") if exponent == 0.5 and name not in stop else None
    if inverse is not None and (inverse.op == "Reciprocal" or editor.number(inverse.inputs[0]) == 1.0):
        return Expression({((inverse.inputs[-1], -0.5),): 1.0}, frozenset({inverse.outputs[0]}))
    return _single(name, exponent)


def _inverse(name: str, part: Expression) -> Expression | None:
    """One over a product; a sum is a value of its own."""
    if len(part.terms) != 1:
        return _single(name, -1.0)
    ((factors, coefficient),) = part.terms.items()
    return Expression({tuple((base, -exponent) for base, exponent in factors): 1.0 / coefficient}, part.nodes)


def add(left: Expression | None, right: Expression | None) -> Expression | None:
    """Sum of two expressions."""
    if left is None or right is None:
        return None
    terms = dict(left.terms)
    for factors, coefficient in right.terms.items():
        terms[factors] = terms.get(factors, 0.0) + coefficient
    return Expression(terms, left.nodes | right.nodes) if all(terms.values()) else None


def multiply(left: Expression | None, right: Expression | None) -> Expression | None:
    """Product of two expressions."""
    if left is None or right is None or len(left.terms) * len(right.terms) > _MOST_TERMS:
        return None
    total: Expression | None = Expression({}, left.nodes | right.nodes)
    for own, coefficient in left.terms.items():
        for others, more in right.terms.items():
            exponents = dict(own)
            for name, exponent in others:
                if exponents.get(name, exponent) * exponent < 0:
                    return None
                exponents[name] = exponents.get(name, 0.0) + exponent
            total = add(total, Expression({tuple(sorted(exponents.items())): coefficient * more}))
    return total


def close(left: float, right: float, tolerance: float = 3e-7) -> bool:
    """Whether two constants are the same but for their rounding to float32."""
    return abs(left - right) <= tolerance * abs(right)


def mean_of(editor: Editor, name: str) -> tuple[str, tuple[int, ...], float, frozenset[str]] | None:
    """What a value is the mean of, over which axes, and times which factor; and the nodes that make it.

    The result must keep the reduced dimensions as ones, by itself or through a reshape.
    """
    found = expand(editor, name)
    if found is None or len(found.terms) != 1:
        return None
    ((factors, coefficient),) = found.terms.items()
    if len(factors) != 1 or factors[0][1] != 1.0:
        return None
    inner, nodes = factors[0][0], found.nodes
    reshape = editor.maker(inner, "Reshape")
    reduction = editor.maker(reshape.inputs[0] if reshape is not None else inner, "ReduceMean", "ReduceSum")
    if reduction is None:
        return None
    shape = editor.shape(reduction.inputs[0])
    axes = tuple(sorted(axis % len(shape) for axis in reduction.attributes["axes"]))
    if editor.shape(inner) != tuple(1 if axis in axes else dim for axis, dim in enumerate(shape)):
        return None
    if reduction.op == "ReduceSum":
        for axis in axes:
            size = shape[axis]
            if not isinstance(size, int):
                return None
            coefficient *= size
    elif not attribute(reduction, "keepdims") and reshape is None:
        return None
    made = {reduction.outputs[0], *(reshape.outputs if reshape is not None else ())}
    return reduction.inputs[0], axes, coefficient, nodes | made
