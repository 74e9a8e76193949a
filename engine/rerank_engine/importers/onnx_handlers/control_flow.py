"""If, Loop and Scan, where what they decide is known while importing: a branch is taken, rounds are written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.importers.embedding_bags import embedding_bag
from rerank_engine.importers.functions import rename_nodes
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_file import MOST_NODES, array_of, count_nodes
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx

MOST_ROUNDS = 1024
"""A loop of more rounds than this is refused."""

_BYTES_PER_NODE = 1 << 14
"""Copying this much takes about as long as adding a node."""


@handles("If")
def _if(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"then_branch": None, "else_branch": None})
    condition = builder.array(node.input[0])
    if condition is None or condition.size != 1:
        raise builder.refuse("the condition must be known when the model is converted; export without this branch")
    branch = found["then_branch" if condition.reshape(-1)[0] else "else_branch"]
    prefix = builder.free_prefix(node.name or node.output[0])
    results = _inline(builder, branch, _file_constants(builder, branch, prefix), prefix)
    for output, result in zip(node.output, results, strict=True):
        if output:
            builder.alias(output, result)


@handles("Loop")
def _loop(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    body = builder.attributes({"body": None})["body"]
    if embedding_bag(builder, node, body):
        return
    rounds = MOST_ROUNDS + 1
    if node.input[0]:
        (rounds,) = builder.integers(node.input[0], "the number of rounds")
    going = _condition(builder, node.input[1]) if len(node.input) > 1 and node.input[1] else True
    carried = list(node.input[2:])
    scanned: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    prefix = builder.free_prefix(node.name or next(filter(None, node.output), node.op_type))
    _check_size(builder, body, rounds if node.input[0] else 1)
    constants = _file_constants(builder, body, prefix)
    done = 0
    while going and done < rounds:
        if done >= MOST_ROUNDS:
            raise builder.refuse(f"more than {MOST_ROUNDS} rounds")
        counter, condition = f"{prefix}/{done}/round", f"{prefix}/{done}/going"
        builder.constant(counter, np.array(done, np.int64))
        builder.constant(condition, np.array(True))
        given = dict(zip((entry.name for entry in body.input), (counter, condition, *carried), strict=True))
        results = _inline(builder, body, constants | given, f"{prefix}/{done}")
        going = _condition(builder, results[0])
        carried = results[1 : 1 + len(carried)]
        for each, result in zip(scanned, results[1 + len(carried) :], strict=True):
            each.append(result)
        done += 1
    outputs = list(node.output) + [""] * (len(carried) + len(scanned) - len(node.output))
    for output, result in zip(outputs, carried, strict=False):
        if output:
            builder.alias(output, result)
    for output, results in zip(outputs[len(carried) :], scanned, strict=True):
        if output:
            if not results:
                raise builder.refuse("a loop of no rounds has no result to stack")
            _stack(builder, results, 0, output)


@handles("Scan")
def _scan(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 9:
        raise builder.refuse("Scan before opset 9 has another form; convert the model to a newer opset")
    found = builder.attributes(
        {
            "body": None,
            "num_scan_inputs": None,
            "scan_input_axes": None,
            "scan_input_directions": None,
            "scan_output_axes": None,
            "scan_output_directions": None,
        }
    )
    body, count = found["body"], int(found["num_scan_inputs"])
    states = list(node.input[: len(node.input) - count])
    sources = list(node.input[len(states) :])
    results_count = len(body.output) - len(states)
    axes = _each(builder, found["scan_input_axes"], count)
    backwards = _each(builder, found["scan_input_directions"], count)
    result_axes = _each(builder, found["scan_output_axes"], results_count)
    result_backwards = _each(builder, found["scan_output_directions"], results_count)
    shapes = [builder.value(name).shape for name in sources]
    axes = [builder.axis(axis, len(shape)) for axis, shape in zip(axes, shapes, strict=True)]
    lengths = {shape[axis] for axis, shape in zip(axes, shapes, strict=True)}
    length = next(iter(lengths), None)
    if len(lengths) != 1 or not isinstance(length, int) or not 1 <= length <= MOST_ROUNDS:
        raise builder.refuse(f"the scanned length must be one number from 1 to {MOST_ROUNDS}, is {lengths}")
    _check_size(builder, body, length)
    prefix = builder.free_prefix(node.name or next(filter(None, node.output), node.op_type))
    constants = _file_constants(builder, body, prefix)
    collected: list[list[str]] = [[] for _ in range(results_count)]
    for done in range(length):
        cuts = []
        for index, (name, axis, shape) in enumerate(zip(sources, axes, shapes, strict=True)):
            at = length - 1 - done if backwards[index] else done
            value = builder.value_name(name)
            cut = builder.emit("Slice", [value], {"axis": axis, "start": at, "stop": at + 1})
            onnx_name = f"{prefix}/{done}/scanned{index}"
            builder.emit_shaped("Reshape", cut, shape[:axis] + shape[axis + 1 :], onnx_name)
            cuts.append(onnx_name)
        given = dict(zip((entry.name for entry in body.input), (*states, *cuts), strict=True))
        results = _inline(builder, body, constants | given, f"{prefix}/{done}")
        states = results[: len(states)]
        for each, result in zip(collected, results[len(states) :], strict=True):
            each.append(result)
    for output, result in zip(node.output, states, strict=False):
        if output:
            builder.alias(output, result)
    for index, output in enumerate(node.output[len(states) :]):
        if output:
            each = collected[index][::-1] if result_backwards[index] else collected[index]
            rank = len(builder.value(each[0]).shape) + 1
            _stack(builder, each, builder.axis(result_axes[index], rank), output)


def _file_constants(builder: OnnxBuilder, body: onnx.GraphProto, prefix: str) -> dict[str, str]:
    """File the initializers of a subgraph, once for all rounds, and return their new names by the old ones."""
    names = {tensor.name: f"{prefix}/{tensor.name}" for tensor in body.initializer}
    for tensor in body.initializer:
        builder.constant(names[tensor.name], array_of(tensor))
    return names


def _inline(builder: OnnxBuilder, body: onnx.GraphProto, given: Mapping[str, str], prefix: str) -> list[str]:
    """Add the nodes of a subgraph, over the names of what it is given, and return the ONNX names of its results."""
    size_bytes = sum(node.ByteSize() for node in body.node)
    builder.count_nodes(1 + count_nodes(body.node) + size_bytes // _BYTES_PER_NODE)
    names = dict(given)
    for node in body.node:
        names.update({name: f"{prefix}/{name}" for name in node.output if name})
    builder.add_all(rename_nodes(body.node, names))
    return [names.get(entry.name, entry.name) for entry in body.output]


def _stack(builder: OnnxBuilder, names: list[str], axis: int, output: str) -> None:
    parts = []
    for name in names:
        value = builder.value(name)
        parts.append(builder.emit_shaped("Reshape", value.name, (*value.shape[:axis], 1, *value.shape[axis:])))
    builder.emit("Concat", parts, {"axis": axis}, output)


def _condition(builder: OnnxBuilder, name: str) -> bool:
    known = builder.array(name)
    if known is None or known.size != 1:
        raise builder.refuse("whether the loop goes on must be known when the model is converted")
    return bool(known.reshape(-1)[0])


def _check_size(builder: OnnxBuilder, body: onnx.GraphProto, rounds: int) -> None:
    if rounds > MOST_ROUNDS or rounds * max(1, len(body.node)) > MOST_NODES:
        raise builder.refuse(
            f"{rounds} rounds of {len(body.node)} nodes are too many; at most {MOST_ROUNDS} and {MOST_NODES}"
        )


def _each(builder: OnnxBuilder, given: list[int] | None, count: int) -> list[int]:
    result = [0] * count if given is None else list(given)
    if len(result) != count:
        raise builder.refuse(f"expected {count} axes or directions, got {given}")
    return result
