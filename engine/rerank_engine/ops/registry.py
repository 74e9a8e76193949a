"""The one table of operators: everything that the engine knows of an operator stands in its entry.

Importers ask which attributes are understood, passes ask for shapes, the reference evaluator asks for NumPy, the
code generator asks for the lowering, and tests and documentation walk over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError, UnsupportedOperatorError
from rerank_engine.graph import (
    Dim,
    Graph,
    Node,
    Shape,
    Value,
    depends_on_candidates,
    is_per_candidate,
    shape_text,
)

if TYPE_CHECKING:
    from llvmlite import ir

    from rerank_engine.codegen.emitter import Emitter
    from rerank_engine.codegen.lowering import Lowering

Array = NDArray[Any]
Infer = Callable[[Node, Sequence[Value]], list[tuple[str, Shape]]]
Reference = Callable[[Sequence[Array], Mapping[str, Any], Sequence[tuple[int, ...]]], list[Array]]
Pointwise = Callable[["Emitter", Sequence["ir.Value"], Mapping[str, Any]], "ir.Value"]
Lower = Callable[["Lowering", Node], None]
PerRow = Callable[[Node, Sequence[Value], Sequence[Value]], bool]
Scratch = Callable[[Node, Sequence[Value]], list[tuple[str, Shape]]]
CheckConstants = Callable[[Node, Mapping[str, Array]], None]


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name
        Key in the table; the ONNX name where the meaning is the same.
    summary
        One line for people.
    infer
        Node and input values to (dtype, shape) of each output; refuses what it cannot do, by name.
    reference
        Inputs, attributes and output shapes to outputs, in NumPy, in the dtype of the inputs.
    attributes
        Every attribute that is understood, with its default (None: required).
    pointwise
        Writes the value of one vector of elements; such operators are fused with each other.
    lower
        Writes the loops of an operator that is not pointwise.
    per_row
        Node, input and output values to whether, with outputs that have rows of candidates, each row depends on the
        same candidate's rows only. Such nodes run over blocks of candidates. Without it the node always runs over
        all of them at once; pointwise operators need none.
    scratch
        Node and input values to (dtype, shape) of buffers that the lowering needs while it runs.
    uses_sizes
        Whether the reference also gets the sizes of the named dimensions, as the attribute ``sizes``.
    may_refuse_sizes
        Node and input values to whether the shapes of the result hold for some sizes of the named dimensions only,
        which shows when the node runs. It then runs even if nothing reads its elements: its shape may have been used.
    absorbs
        Graph, node, and the nodes that make its first input and nothing else (one Concat, or elementwise ones), to
        whether it needs no such input to be stored. The lowering finds these nodes in ``Lowering.absorbed``.
    check_constants
        Looks into the arrays of constant inputs that machine code will trust, and raises what it finds.
    version
        Stored in model files; raised when the meaning changes.
    """

    name: str
    summary: str
    infer: Infer
    reference: Reference
    attributes: Mapping[str, Any] = field(default_factory=dict)
    pointwise: Pointwise | None = None
    lower: Lower | None = None
    per_row: PerRow | None = None
    scratch: Scratch | None = None
    uses_sizes: bool = False
    may_refuse_sizes: Callable[[Node, Sequence[Value]], bool] | None = None
    absorbs: Callable[[Graph, Node, Sequence[Node]], bool] | None = None
    check_constants: CheckConstants | None = None
    version: int = 1


OPERATORS: dict[str, Operator] = {}


def register(operator: Operator) -> Operator:
    """Add an operator to the table."""
    if operator.name in OPERATORS:
        raise GraphError(f"operator {operator.name!r} is registered twice")
    OPERATORS[operator.name] = operator
    return operator


def loaded_by(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Arrays that elementwise nodes read together, in order: neither made by them, nor constants of one element."""
    made = {node.outputs[0] for node in nodes}
    reads = dict.fromkeys(name for node in nodes for name in node.inputs if name not in made)
    return [name for name in reads if name not in graph.constants or graph.constants[name].size != 1]


def keeps_its_node(graph: Graph, node: Node) -> bool:
    """Whether a node has to run even if nothing reads what it makes."""
    refuses = lookup(node).may_refuse_sizes
    return refuses is not None and refuses(node, [graph.values[name] for name in node.inputs])


def lookup(node: Node) -> Operator:
    """Find the operator of a node and check its attributes.

    Raises
    ------
    UnsupportedOperatorError
        The operator, or one of its attributes, is not known.
    """
    operator = OPERATORS.get(node.op)
    if operator is None:
        raise UnsupportedOperatorError(
            f"operator {node.op!r} of node {node.name!r} is not supported; supported: {', '.join(sorted(OPERATORS))}"
        )
    if unknown := set(node.attributes) - set(operator.attributes):
        raise UnsupportedOperatorError(
            f"{node.op} node {node.name!r}: attribute {sorted(unknown)[0]!r} is not understood"
            f" (understood: {', '.join(sorted(operator.attributes)) or 'none'})"
        )
    return operator


def check_nodes(graph: Graph) -> None:
    """Check that every node makes the dtypes and shapes that the graph declares.

    Machine code trusts shapes, and a graph may come from a file: here what it says is compared with what it does.

    Raises
    ------
    UnsupportedOperatorError
        An operator, attribute or shape is not understood.
    GraphError
        An attribute is missing or of another kind, or a result is declared with another dtype or shape.
    """
    for node in graph.nodes:
        operator = lookup(node)
        for name, default in operator.attributes.items():
            given = node.attributes.get(name, default)
            if not _fits(given, default):
                raise GraphError(f"{node.op} node {node.name!r}: attribute {name!r} is missing or wrong: {given!r}")
        try:
            made = operator.infer(node, [graph.values[name] for name in node.inputs])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise GraphError(f"{node.op} node {node.name!r}: inputs or attributes do not fit: {error!r}") from error
        declared = [(graph.values[name].dtype, graph.values[name].shape) for name in node.outputs]
        if made != declared:
            results = ", ".join(f"{dtype}{shape_text(shape)}" for dtype, shape in made)
            raise GraphError(
                f"{node.op} node {node.name!r} makes {results}, but the graph declares"
                f" {', '.join(str(graph.values[name]) for name in node.outputs)}"
            )
        if operator.check_constants is not None:
            operator.check_constants(node, graph.constants)


def _fits(given: Any, default: Any) -> bool:
    """Whether an attribute is of its default's kind; without a default it is an integer, a text, or a tuple of them."""
    if default is None:
        return all(type(entry) in (int, str) for entry in (given if isinstance(given, tuple) else (given,)))
    if isinstance(default, tuple) and default:
        return isinstance(given, tuple) and all(_fits(entry, default[0]) for entry in given)
    return isinstance(given, (int, float) if isinstance(default, float) else type(default))


def attribute(node: Node, name: str) -> Any:
    """Value of an attribute, or its default."""
    return node.attributes.get(name, OPERATORS[node.op].attributes[name])


def refuse(node: Node, why: str) -> UnsupportedOperatorError:
    """Build the error that names operator, node and reason."""
    return UnsupportedOperatorError(f"{node.op} node {node.name!r}: {why}")


def broadcast(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Shape of an elementwise result (NumPy's rule; a named dimension meets only itself or 1)."""
    rank = max(len(shape) for shape in shapes)
    result: list[int | Dim] = []
    for axis in range(rank):
        found: int | Dim = 1
        for shape in shapes:
            at = axis - (rank - len(shape))
            dim = shape[at] if at >= 0 else 1
            if dim == 1:
                continue
            if found not in (1, dim):
                raise refuse(node, f"shapes {', '.join(map(shape_text, shapes))} do not broadcast")
            found = dim
        result.append(found)
    return tuple(result)


def rows_aligned(_: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """Tell whether every value with candidates has them in rows; for operators that leave the first axis alone."""
    return all(
        is_per_candidate(value.shape) for value in (*inputs, *outputs) if depends_on_candidates(value.shape)
    ) and all(len(value.shape) == len(outputs[0].shape) for value in inputs if depends_on_candidates(value.shape))


def rows_of_first(_: Node, inputs: Sequence[Value], __: Sequence[Value]) -> bool:
    """Tell whether the first input alone has candidates, in rows; for operators that work row by row."""
    return is_per_candidate(inputs[0].shape) and not any(depends_on_candidates(value.shape) for value in inputs[1:])


def normal_axis(node: Node, axis: int, rank: int) -> int:
    """Turn a negative axis into a positive one and check its range."""
    if not -rank <= axis < rank:
        raise refuse(node, f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def as_dtype(array: Array, like: Array) -> Array:
    """Cast a result back to the dtype that its input had, as the engine computes in one dtype."""
    return np.asarray(array, dtype=like.dtype)
