"""Subgraphs as nested tuples, so that a loop which an exporter always writes in the same way can be recognised.

A leaf is one of

    ("ints", (0, 1))        integers that are known
    ("zeros",)              floats that are all zero
    ("true",)               a truth value that is known to hold
    ("in", depth, index)    input number ``index`` of the loop that is ``depth`` loops inside
    ("outer", "name")       any other value of the graph around it

and everything else ``(operator, ...)``: see :func:`expression_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.importers.onnx_file import array_of

if TYPE_CHECKING:
    import onnx

    from rerank_engine.importers.onnx import OnnxBuilder

Expression = tuple[Any, ...]

_MOST_VISITS = 2000
"""Beyond this an expression is no pattern of ours; values that are used twice are written out twice."""


class NoExpressionError(Exception):
    """The subgraph has a form that no pattern describes."""


@dataclass
class Scope:
    """Names that a subgraph knows, and the subgraph around it."""

    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    bound: dict[str, Expression] = field(default_factory=dict)
    parent: Scope | None = None


class Reader:
    """Reads the values of a subgraph as expressions.

    Parameters
    ----------
    builder
        Knows the constants and shapes of the graph around it.
    """

    def __init__(self, builder: OnnxBuilder) -> None:
        self._builder = builder
        self._visits = 0

    def loop(self, body: onnx.GraphProto, parent: Scope | None = None, depth: int = 0) -> list[Expression]:
        """Expressions of a loop's results, over its inputs.

        Raises
        ------
        NoExpressionError
            The body is too large, or has what no pattern describes.
        """
        scope = self._scope(body, parent)
        for index, entry in enumerate(body.input):
            scope.bound[entry.name] = ("in", depth, index)
        return [self.value(entry.name, scope, depth) for entry in body.output]

    def _scope(self, graph: onnx.GraphProto, parent: Scope | None) -> Scope:
        scope = Scope(parent=parent)
        for tensor in graph.initializer:
            scope.arrays[tensor.name] = array_of(tensor)
        for node in graph.node:
            scope.nodes.update({name: node for name in node.output if name})
        return scope

    def value(self, name: str, scope: Scope | None, depth: int) -> Expression:
        """Expression of a named value."""
        self._visits += 1
        if self._visits > _MOST_VISITS:
            raise NoExpressionError
        while scope is not None:
            if name in scope.bound:
                return scope.bound[name]
            if name in scope.arrays:
                return self._array(scope.arrays[name])
            if name in scope.nodes:
                return self._node(scope.nodes[name], name, scope, depth)
            scope = scope.parent
        known = self._builder.shape_value(name)
        if known is not None and known.is_known:
            return ("ints", known.entries)
        array = self._builder.array(name)
        if array is not None and (array.size == 1 or not array.any()) and array.dtype.kind in "fb":
            leaf = self._array(array)
            return leaf if leaf[0] != "array" else ("outer", name)
        return ("outer", name)

    @staticmethod
    def _array(array: NDArray[Any]) -> Expression:
        if array.dtype.kind in "iu" and array.size <= 64:
            return ("ints", tuple(int(entry) for entry in array.reshape(-1)))
        if array.dtype.kind == "b" and array.size == 1 and array.all():
            return ("true",)
        if array.dtype.kind == "f" and not np.any(array):
            return ("zeros",)
        return ("array",)

    def _node(self, node: onnx.NodeProto, output: str, scope: Scope, depth: int) -> Expression:
        from onnx import helper

        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Constant" and set(attributes) == {"value"}:
            return self._array(array_of(attributes["value"]))
        if node.op_type == "If":
            condition = self.value(node.input[0], scope, depth)
            place = list(node.output).index(output)
            branches = [attributes[name] for name in ("then_branch", "else_branch")]
            results = [self._branch(branch, place, scope, depth) for branch in branches]
            return ("If", condition, *results)
        if node.op_type == "Loop":
            given = [self.value(name, scope, depth) if name else ("none",) for name in node.input]
            results = self.loop(attributes["body"], scope, depth + 1)
            return ("Loop", list(node.output).index(output), tuple(given), tuple(results))
        inputs = [self.value(name, scope, depth) for name in node.input if name]
        return expression_of(node.op_type, inputs, attributes)

    def _branch(self, graph: onnx.GraphProto, place: int, parent: Scope, depth: int) -> Expression:
        return self.value(graph.output[place].name, self._scope(graph, parent), depth)


def expression_of(operator: str, inputs: Sequence[Expression], attributes: dict[str, Any]) -> Expression:
    """One node as a tuple; what different versions write differently comes out the same.

    >>> expression_of("Gather", [("outer", "x"), ("ints", (0,))], {"axis": 0})
    ('Gather', ('outer', 'x'), ('ints', (0,)))
    """
    plain = (operator, *inputs)
    if operator == "Identity" or (operator == "CastLike" and inputs[0][0] == "ints"):
        return inputs[0]
    if operator.startswith("Reduce"):
        axes = inputs[1] if len(inputs) > 1 else ("ints", tuple(attributes.get("axes", ())))
        return (operator, inputs[0], axes, attributes.get("keepdims", 1))
    if operator in ("Unsqueeze", "Squeeze") and "axes" in attributes:
        return (operator, inputs[0], ("ints", tuple(attributes["axes"])))
    if operator == "Slice" and "starts" not in attributes:
        rest = list(inputs[3:])
        if all(entry == wanted for entry, wanted in zip(rest, (("ints", (0,)), ("ints", (1,))), strict=False)):
            return (operator, *inputs[:3])
        raise NoExpressionError
    if operator in ("Gather", "Concat", "ConcatFromSequence") and attributes.get("axis", 0) == 0:
        return plain
    if operator == "Cast":
        return inputs[0] if inputs[0] == ("true",) else (operator, attributes.get("to", 0), *inputs)
    if operator == "Shape":
        return (operator, attributes.get("start", 0), attributes.get("end"), *inputs)
    if operator == "Reshape":
        return plain
    if attributes:
        raise NoExpressionError
    return plain


def match(pattern: Any, expression: Any, captures: dict[str, Any]) -> bool:
    """Whether an expression has a form; texts that begin with ``?`` take what stands there, the same each time.

    >>> found = {}
    >>> match(("Add", "?a", "?a"), ("Add", ("outer", "x"), ("outer", "x")), found), found["a"]
    (True, ('outer', 'x'))
    """
    if isinstance(pattern, str) and pattern.startswith("?"):
        return bool(captures.setdefault(pattern[1:], expression) == expression)
    if isinstance(pattern, tuple):
        return (
            isinstance(expression, tuple)
            and len(pattern) == len(expression)
            and all(match(each, own, captures) for each, own in zip(pattern, expression, strict=True))
        )
    return bool(pattern == expression)
