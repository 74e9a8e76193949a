"""Larger pieces: recurrent layers, attention, control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from rerank_engine.dimensions import Dim

from .growing import DoesNotFit, Growing, N, T, Tensor, part

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@part(6)
def recurrent(m: Growing) -> None:
    source = m.small(
        m.pick_float(lambda tensor: tensor.rank == 3 and isinstance(tensor.shape[2], int) and tensor.shape[2] > 0), 10.0
    )
    steps, batch, width = source.shape
    assert isinstance(width, int)
    op = m.one_of(list(_GATES))
    direction = m.one_of(["forward", "reverse", "bidirectional"])
    directions, hidden = (2 if direction == "bidirectional" else 1), m.one_of([1, 3, 4, 17])
    gates = _GATES[op] * hidden
    inputs: list[Tensor | str] = [
        source,
        m.floats([directions, gates, width], 0.3),
        m.floats([directions, gates, hidden], 0.3),
        m.floats([directions, 2 * gates], 0.3) if m.chance(0.7) else "",
    ]
    if isinstance(batch, int) and isinstance(steps, int) and steps > 0 and m.chance(0.4):
        inputs.append(m.constant(m.random.integers(1, steps + 1, batch), "int32"))
    if m.chance(0.3):
        start = m.pick_float(lambda tensor: tensor.rank == 3 and tensor.shape == (directions, batch, hidden))
        inputs += [*[""] * (5 - len(inputs)), start]
    elif m.chance(0.3) and isinstance(batch, int):
        inputs += [
            *[""] * (5 - len(inputs)),
            *(m.floats([directions, batch, hidden]) for _ in range(1 + (op == "LSTM"))),
        ]
    extra: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        extra["linear_before_reset"] = m.integer(0, 1)
    if m.chance(0.2):
        extra["clip"] = 0.8
    states = ("float32", (directions, batch, hidden))
    results = [("float32", (steps, directions, batch, hidden)), *[states] * (2 if op == "LSTM" else 1)]
    keep = m.one_of([None, [0], [1]])
    m.add_many(op, inputs, results, bound=2.0, keep=keep, **extra)


@part(4)
def attention(m: Growing) -> None:
    """Softmax of scaled scores, times values, with or without a mask."""
    keys = m.small(m.pick_float(lambda tensor: tensor.rank >= 2 and isinstance(tensor.shape[-1], int)), 8.0)
    width = keys.shape[-1]
    assert isinstance(width, int)
    query = m.pick_float(
        lambda tensor: tensor.rank == keys.rank and tensor.shape[:-2] == keys.shape[:-2] and tensor.shape[-1] == width
    )
    query = m.small(query, 8.0)
    order = [*range(keys.rank - 2), keys.rank - 1, keys.rank - 2]
    turned = m.add("Transpose", [keys], [keys.shape[axis] for axis in order], bound=keys.bound, perm=order)
    shape = [*query.shape[:-1], keys.shape[-2]]
    scores = m.add("MatMul", [query, turned], shape, bound=query.bound * keys.bound * width)
    scaled = m.add(
        m.one_of(["Mul", "Div"]), [scores, m.constant(np.float32(0.7).reshape(()))], shape, bound=scores.bound * 1.5
    )
    masks = [
        tensor
        for tensor in m.tensors
        if tensor.dtype == "bool" and tensor.rank and tensor.shape[-1] == shape[-1] and tensor.rank <= len(shape)
        and all(a in (1, b) for a, b in zip(tensor.shape[::-1], shape[::-1], strict=False))
    ]  # fmt: skip
    if masks and m.chance(0.6):
        mask = m.one_of(masks)
        scaled = m.add("Where", [mask, scaled, m.constant(np.float32(-1e9).reshape(()))], shape, bound=1e9)
        m.forget(scaled)
    weights = m.add("Softmax", [scaled], shape, bound=1.0, axis=-1)
    m.add("MatMul", [weights, keys], query.shape, bound=keys.bound)


@part(4)
def several_heads(m: Growing) -> None:
    """Attention of several heads of one sequence, as transformers write it."""
    source = m.small(m.pick_float(lambda tensor: tensor.rank == 3 and isinstance(tensor.shape[2], int)), 8.0)
    batch, steps, width = source.shape
    assert isinstance(width, int)
    if width % 2 or not width or batch == 0 or steps == 0:
        raise DoesNotFit
    heads = m.one_of([1, 2])
    size = width // heads
    parts = []
    for index in range(3):
        made = source
        if m.chance(0.6):
            made = m.add("MatMul", [source, m.floats([width, width], 0.3)], source.shape, bound=source.bound * width)
            made = m.add("Tanh", [made], source.shape, bound=1.0) if made.bound > 8 else made
        named = sum(isinstance(dim, Dim) for dim in (batch, steps))
        target = [0, 0, heads, size] if named else [batch, steps, heads, size]
        spread = m.add("Reshape", [made, m.integers(*target)], (batch, steps, heads, size), bound=made.bound)
        order, shape = (0, 2, 1, 3), (batch, heads, steps, size)
        if index == 1:
            order, shape = (0, 2, 3, 1), (batch, heads, size, steps)
        parts.append(m.add("Transpose", [spread], shape, bound=made.bound, perm=list(order)))
    scores = m.add("MatMul", parts[:2], (batch, heads, steps, steps), bound=8.0 * 8.0 * size)
    scores = m.add("Mul", [scores, m.constant(np.float32(size**-0.5).reshape(()))], scores.shape, bound=scores.bound)
    weights = m.add("Softmax", [scores], scores.shape, bound=1.0, axis=3)
    mixed = m.add("MatMul", [weights, parts[2]], (batch, heads, steps, size), bound=parts[2].bound)
    turned = m.add("Transpose", [mixed], (batch, steps, heads, size), bound=mixed.bound, perm=[0, 2, 1, 3])
    m.add("Reshape", [turned, m.integers(0, 0, width)], source.shape, bound=mixed.bound)


@part(5)
def attention_operator(m: Growing) -> None:
    """ONNX's own operator, of four dimensions."""
    if m.opset < 23:
        raise DoesNotFit
    query = m.pick_or_input(
        lambda tensor: tensor.rank == 4 and isinstance(tensor.shape[3], int) and 0 not in tensor.shape, (N, 2, T, 4)
    )
    like = (*query.shape[:2], m.one_of([T, 3, query.shape[2]]), query.shape[3])
    keys = m.pick_or_input(lambda tensor: tensor.shape == like, like)
    query, keys = m.small(query, 8.0), m.small(keys, 8.0)
    m.add("Attention", [query, keys, keys], query.shape, bound=keys.bound, is_causal=m.integer(0, 1))


def _body(name: str, nodes: list[object], inputs: list[object], outputs: list[object]) -> object:
    return helper.make_graph(nodes, name, inputs, outputs)


def _info(tensor: Tensor, name: str) -> object:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * tensor.rank)


@part(1.5)
def branch(m: Growing) -> None:
    """A branch on a truth value that is known, or on the rank of a value."""
    source = m.pick_float()
    serial = len(m.nodes)
    sides = [
        _body(
            f"{op}{serial}",
            [helper.make_node(op, [source.name], [f"in{serial}_{op}"])],
            [],
            [_info(source, f"in{serial}_{op}")],
        )
        for op in ("Neg", "Abs")
    ]
    if m.chance(0.5):
        condition: Tensor | str = m.constant(np.array(m.chance(0.5)))
    else:
        sizes = m.add("Shape", [source], [source.rank], "int64", bound=1e4)
        rank = m.add("Size", [sizes], [], "int64", bound=10.0)
        condition = m.add("Equal", [rank, m.constant(np.int64(m.integer(1, 4)).reshape(()))], [], "bool", bound=1.0)
        for tensor in (sizes, rank, condition):
            m.forget(tensor)
    m.add("If", [condition], source.shape, bound=source.bound, then_branch=sides[0], else_branch=sides[1])


@part(1.5)
def loop(m: Growing) -> None:
    """A few rounds that change a state, read a value from outside, and keep what each round saw."""
    state = m.small(m.pick_float(), 4.0)
    outer = m.pick_float(lambda tensor: tensor.shape == state.shape)
    rounds, serial = m.integer(1, 3), len(m.nodes)
    names = {key: f"loop{serial}_{key}" for key in ("i", "going", "state", "next", "out", "kept", "stay", "half")}
    number = helper.make_tensor(f"loop{serial}_number", TensorProto.FLOAT, [], [0.5])
    nodes = [
        helper.make_node("Mul", [names["state"], number.name], [names["half"]]),
        helper.make_node(m.one_of(["Add", "Sub", "Max"]), [names["half"], outer.name], [names["next"]]),
        helper.make_node("Tanh", [names["next"]], [names["kept"]]),
        helper.make_node("Identity", [names["going"]], [names["stay"]]),
    ]
    body = helper.make_graph(
        nodes,
        f"loop{serial}",
        [
            helper.make_tensor_value_info(names["i"], TensorProto.INT64, []),
            helper.make_tensor_value_info(names["going"], TensorProto.BOOL, []),
            _info(state, names["state"]),
        ],
        [
            helper.make_tensor_value_info(names["stay"], TensorProto.BOOL, []),
            _info(state, names["next"]),
            _info(state, names["kept"]),
        ],
        [number],
    )
    results = [("float32", state.shape), ("float32", (rounds, *state.shape))]
    count = m.constant(np.int64(rounds).reshape(()))
    m.add_many(
        "Loop",
        [count, m.one_of(["", m.constant(np.array(True))]), state],
        results,
        bound=rounds * outer.bound + 8,
        body=body,
    )


@part(1)
def scan(m: Growing) -> None:
    """A running mix along a dimension of known length."""
    source = m.small(m.pick_float(lambda tensor: tensor.rank > 0), 4.0)
    axis = m.axis(source, lambda dim: isinstance(dim, int) and 0 < dim < 9)
    rest = [*source.shape[:axis], *source.shape[axis + 1 :]]
    if any(isinstance(dim, Dim) for dim in rest):
        raise DoesNotFit
    start = m.floats([dim for dim in rest if isinstance(dim, int)])
    serial, backwards = len(m.nodes), m.integer(0, 1)
    one = Tensor("", "float32", tuple(rest))
    nodes = [
        helper.make_node("Add", [f"scan{serial}_state", f"scan{serial}_x"], [f"scan{serial}_sum"]),
        helper.make_node("Tanh", [f"scan{serial}_sum"], [f"scan{serial}_next"]),
        helper.make_node("Neg", [f"scan{serial}_next"], [f"scan{serial}_out"]),
    ]
    body = helper.make_graph(
        nodes,
        f"scan{serial}",
        [_info(one, f"scan{serial}_state"), _info(one, f"scan{serial}_x")],
        [_info(one, f"scan{serial}_next"), _info(one, f"scan{serial}_out")],
    )
    length = source.shape[axis]
    results = [("float32", one.shape), ("float32", (length, *rest))]
    m.add_many(
        "Scan",
        [start, source],
        results,
        bound=1.0,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[backwards],
    )
