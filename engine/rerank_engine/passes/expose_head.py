"""Make the input of the last layer an output, so that a user's own last layer can be added to the scores.

The score must be a sum in which one term is a matrix product with a constant (H, 1) matrix:

    score = other terms + head_input @ w + b

Where several terms have that form, the one behind the most layers is the last layer.
"""

from __future__ import annotations

from dataclasses import replace

from rerank_engine.errors import ConversionError
from rerank_engine.graph import Graph, Node, Value, elements_per_candidate, is_per_candidate

HEAD_INPUT = "head_input"
"""Name of the added output, (N, H) float32."""

_PASS_THROUGH = ("Reshape", "Identity", "Add")


def expose_last_layer(graph: Graph) -> Graph:
    """Add the output :data:`HEAD_INPUT`.

    Raises
    ------
    ConversionError
        The score is not such a sum.
    """
    if HEAD_INPUT in graph.values:
        raise ConversionError(f"the model has a value called {HEAD_INPUT!r} already")
    score = graph.values[graph.outputs[0]]
    if elements_per_candidate(score.shape) != 1:
        raise ConversionError(
            f"output {score} is not one score for each candidate, so it has no last layer; convert without expose_head"
        )
    if not any(is_per_candidate(graph.values[name].shape) for name in graph.inputs):
        raise ConversionError(
            "no dimension of the inputs counts candidates; export the model with a dynamic first dimension"
        )
    layers = _layers_behind(graph)
    terms = [node for node in _terms(graph) if node.op == "MatMul" and _is_last_layer(graph, node)]
    if not terms:
        raise ConversionError(
            f"output {graph.outputs[0]!r} has no last layer of the form x @ w + b (w of shape (H, 1)) in its sum;"
            " give the score before any sigmoid, or convert without expose_head"
        )
    source = graph.values[max(terms, key=lambda node: layers[node.outputs[0]]).inputs[0]]
    value = Value(HEAD_INPUT, "float32", source.shape)
    copy = Node("Identity", HEAD_INPUT, (source.name,), (HEAD_INPUT,))
    return replace(
        graph,
        nodes=[*graph.nodes, copy],
        outputs=[*graph.outputs, HEAD_INPUT],
        values={**graph.values, HEAD_INPUT: value},
    )


def _terms(graph: Graph) -> list[Node]:
    """Nodes whose results are summed to the score."""
    producers = graph.producers()
    terms: list[Node] = []
    waiting = [graph.outputs[0]]
    while waiting:
        node = producers.get(waiting.pop(0))
        if node is not None and node.op in _PASS_THROUGH:
            waiting.extend(node.inputs)
        elif node is not None and node not in terms:
            terms.append(node)
    return terms


def _layers_behind(graph: Graph) -> dict[str, int]:
    """Most matrix products on the way from an input to each value."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        behind = max((depth.get(name, 0) for name in node.inputs), default=0)
        for name in node.outputs:
            depth[name] = behind + (node.op == "MatMul")
    return depth


def _is_last_layer(graph: Graph, node: Node) -> bool:
    weight = graph.constants.get(node.inputs[1])
    shape = graph.values[node.inputs[0]].shape
    return (
        weight is not None and weight.ndim == 2 and weight.shape[1] == 1 and len(shape) == 2 and is_per_candidate(shape)
    )
