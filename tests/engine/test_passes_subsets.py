"""Any subset of the passes gives the same numbers: random subsets over small models, built by hand and by PyTorch."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from rerank_engine import convert
from rerank_engine.graph import Graph
from rerank_engine.passes import run_passes
from rerank_engine.passes.pipeline import PASSES
from rerank_engine.reference import evaluate

SUBSETS = 6
"""Random subsets for each model; each must be the same as no pass at all."""

COMPILED = 3
"""Of the graphs that they give, so many are compiled; all are computed in float64."""

RELATIVE_ERROR = 2e-6


# --- models by hand --------------------------------------------------------------------------------------------


class Maker:
    """An ONNX model, one call a node, with random weights."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        return self.array(self.random.uniform(low, high, size=shape).astype(np.float32))

    def number(self, value: float) -> str:
        return self.array(np.float32(value))

    def array(self, array: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def finish(self, inputs: dict[str, list[Any]], *outputs: str) -> onnx.ModelProto:
        ins = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_rows", None]) for name in outputs]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "zoo", ins, outs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def transformer() -> onnx.ModelProto:
    """A block over the list: normalisation, attention with a mask, GELU, all spelled out."""
    m = Maker(1)
    mean = m("ReduceMean", "x", axes=[-1])
    d = m("Sub", "x", mean)
    deviation = m("Sqrt", m("Add", m("ReduceMean", m("Pow", d, m.number(2)), axes=[-1]), m.number(1e-5)))
    normal = m("Add", m("Mul", m("Div", d, deviation), m.weight(8, low=0.5)), m.weight(8))
    queries, keys, values = (m("Add", m("MatMul", normal, m.weight(8, 8)), m.weight(8)) for _ in range(3))
    scores = m("Mul", m("MatMul", queries, m("Transpose", keys, perm=[1, 0])), m.number(8**-0.5))
    attended = m("MatMul", m("Softmax", m("Add", scores, "mask"), axis=-1), values)
    mixed = m("Add", m("MatMul", attended, m.weight(8, 8)), "x")
    hidden = m("Add", m("MatMul", mixed, m.weight(8, 16)), m.weight(16))
    share = m("Add", m("Erf", m("Div", hidden, m.number(2**0.5))), m.number(1))
    active = m("Mul", m("Mul", hidden, share), m.number(0.5))
    return m.finish({"x": ["N", 8], "mask": ["N", "N"]}, m("MatMul", active, m.weight(16, 1)))


def tower() -> onnx.ModelProto:
    """Dense features: batch normalisation before, between and behind layers, RMS normalisation, activations."""
    m = Maker(2)

    def batch_normal(value: str, channels: int) -> str:
        statistics = [m.weight(channels, low=0.5), m.weight(channels), m.weight(channels), m.weight(channels, low=0.5)]
        return m("BatchNormalization", value, *statistics)

    value = batch_normal("x", 6)
    value = batch_normal(m("Gemm", value, m.weight(6, 8), m.weight(8)), 8)
    value = batch_normal(m("Relu", value), 8)
    value = m("Identity", m("Gemm", value, m.weight(5, 8), m.weight(5), transB=1, alpha=0.5, beta=2.0))
    squares = m("ReduceMean", m("Mul", value, value), axes=[1])
    root = m("Reciprocal", m("Sqrt", m("Add", squares, m.number(1e-3))))
    value = m("Mul", m("Mul", value, root), m.weight(5, low=0.5))
    value = m("Mul", m("Div", value, m.number(3)), m("Mul", m.number(2), m.number(0.5)))
    return m.finish({"x": ["N", 6]}, m("Sigmoid", m("MatMul", value, m.weight(5, 1))), value)


def convolution() -> onnx.ModelProto:
    """A convolution over a history, normalised and activated, pooled."""
    m = Maker(3)
    value = m("Conv", m("Transpose", "x", perm=[0, 2, 1]), m.weight(6, 4, 3), m.weight(6), pads=[1, 1])
    statistics = [m.weight(6, low=0.5), m.weight(6), m.weight(6), m.weight(6, low=0.5)]
    value = m("Relu", m("BatchNormalization", value, *statistics))
    value = m("Transpose", value, perm=[0, 2, 1])
    value = m("Transpose", m("Mul", m("Transpose", value, perm=[0, 2, 1]), m.weight(6, 1)), perm=[0, 2, 1])
    pooled = m("ReduceSum", value, m.array(np.array([1])), keepdims=0)
    return m.finish({"x": ["N", 5, 4]}, m("MatMul", pooled, m.weight(6, 1)))


def target_attention() -> onnx.ModelProto:
    """DIN's first layer over candidate, event, difference and product; weights over a masked history."""
    m = Maker(4)
    shape = m("Concat", m("Slice", m("Shape", "candidate"), *(m.array(np.array([n])) for n in (0, 1))),
              m.array(np.array([5, 4])), axis=0)  # fmt: skip
    query = m("Expand", m("Unsqueeze", "candidate", m.array(np.array([1]))), shape)
    key = m("Expand", "history", shape)
    joined = m("Concat", query, key, m("Sub", query, key), m("Mul", query, key), axis=-1)
    flat = m("Reshape", joined, m.array(np.array([-1, 16])))
    hidden = m("PRelu", m("Gemm", flat, m.weight(16, 6), m.weight(6)), m.weight(1, 6))
    scores = m("Reshape", m("Gemm", hidden, m.weight(6, 1), m.weight(1)), m.array(np.array([-1, 1, 5])))
    weights = m("Softmax", m("Where", m.array(np.arange(5) < 3), scores, m.number(-1e9)), axis=-1)
    pooled = m("Reshape", m("MatMul", weights, "history"), m.array(np.array([-1, 4])))
    both = m("Concat", m("Slice", pooled, *(m.array(np.array([n])) for n in (0, 2, 1))),
             m("Slice", pooled, *(m.array(np.array([n])) for n in (2, 4, 1))), axis=1)  # fmt: skip
    return m.finish(
        {"candidate": ["N", 4], "history": [5, 4]}, m("MatMul", m("Add", both, "candidate"), m.weight(4, 1))
    )


def keras_like() -> onnx.ModelProto:
    """As tf2onnx writes Keras: x * m + (beta - mean * m), an approximate GELU, sizes as data."""
    m = Maker(5)
    mean = m("ReduceMean", "x", axes=[2], keepdims=1)
    d = m("Sub", "x", mean)
    root = m("Sqrt", m("Add", m("ReduceMean", m("Mul", d, d), axes=[2], keepdims=1), m.number(1e-3)))
    factor = m("Mul", m("Reciprocal", root), m.weight(4, low=0.5))
    normal = m("Add", m("Mul", "x", factor), m("Sub", m.weight(4), m("Mul", mean, factor)))
    inner = m("Add", normal, m("Mul", m("Pow", normal, m.number(3)), m.number(0.044715)))
    share = m("Add", m("Tanh", m("Mul", inner, m.number((2 / np.pi) ** 0.5))), m.number(1))
    active = m("Mul", m("Mul", normal, m.number(0.5)), share)
    count = m("Cast", m("Gather", m("Shape", "x"), m.array(np.array(1))), to=TensorProto.FLOAT)
    pooled = m("Div", m("ReduceSum", active, m.array(np.array([1])), keepdims=0), count)
    return m.finish({"x": ["N", 3, 4]}, m("MatMul", pooled, m.weight(4, 2)))


# --- models by PyTorch -----------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention by PyTorch's own function with a mask that hides one row, normalisation by hand, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.gain, self.shift = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.randn(8))
        self.out = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.register_buffer("shown", torch.tensor([[True, True, False], [False, False, False], [True, False, True]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        x = centered / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * self.gain + self.shift
        queries, keys, values = (p(x).reshape(x.shape[0], -1, 2, 4).transpose(1, 2) for p in self.project)
        made = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=self.shown)
        return self.out(made.transpose(1, 2).reshape(x.shape[0], -1, 8) + x)


class Encoder(nn.Module):
    """PyTorch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Tower(nn.Module):
    """A convolution and dense layers with batch normalisation, RMS normalisation by hand, an approximate GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normal = nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.dense = nn.Sequential(nn.Linear(48, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 6))
        self.gain = nn.Parameter(torch.rand(6) + 0.5)
        self.last = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense(torch.relu(self.normal(self.convolution(x))).flatten(1))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        return self.last(nn.functional.gelu(x, approximate="tanh"))


def exported(make: Callable[[], nn.Module], dynamo: bool) -> onnx.ModelProto:
    torch.manual_seed(7)
    module = make().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    example = (torch.randn(4, 3, 8),)
    if dynamo:
        sizes = ({0: torch.export.Dim("N")},)
        return torch.onnx.export(module, example, dynamo=True, dynamic_shapes=sizes, verbose=False).model_proto
    file = io.BytesIO()
    axes = {"x": {0: "N"}}
    torch.onnx.export(module, example, file, dynamo=False, input_names=["x"], dynamic_axes=axes, opset_version=17)
    return onnx.load_from_string(file.getvalue())


ZOO: dict[str, Callable[[], onnx.ModelProto]] = {
    "transformer": transformer,
    "tower": tower,
    "convolution": convolution,
    "target_attention": target_attention,
    "keras_like": keras_like,
    **{
        f"{make.__name__.lower()}_{'dynamo' if dynamo else 'script'}": lambda make=make, dynamo=dynamo: exported(
            make, dynamo
        )
        for make in (Block, Encoder, Tower)
        for dynamo in (False, True)
    },
}

FUSED = {
    "transformer": {"LayerNormalization", "Attention", "Gelu"},
    "tower": {"RMSNormalization"},
    "keras_like": {"LayerNormalization", "Gelu"},
    **{f"block_{how}": {"LayerNormalization", "Attention", "Gelu"} for how in ("script", "dynamo")},
    **{f"encoder_{how}": {"LayerNormalization", "Attention", "Gelu"} for how in ("script", "dynamo")},
    **{f"tower_{how}": {"RMSNormalization", "Gelu"} for how in ("script", "dynamo")},
}
"""Operators that each model has when all passes have run."""


@cache
def imported(name: str) -> Graph:
    """The graph of a model before any pass."""
    return convert(ZOO[name](), skip_passes=tuple(PASSES)).graph


def feeds_of(graph: Graph, candidates: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(candidates)
    shapes = {
        name: [dim if isinstance(dim, int) else dim.evaluate({"N": candidates}) for dim in graph.values[name].shape]
        for name in graph.inputs
    }
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], label: str) -> None:
    for name, array in expected.items():
        most = np.abs(array[np.isfinite(array)]).max(initial=0.0)
        np.testing.assert_allclose(
            actual[name], array, rtol=0, atol=RELATIVE_ERROR * most, equal_nan=True, err_msg=label
        )


@pytest.mark.parametrize("name", ZOO)
def test_random_subsets_of_passes_change_no_number(tools: Any, name: str) -> None:
    graph, draw = imported(name), random.Random(name)
    inputs = [feeds_of(graph, candidates) for candidates in (0, 1, 5)]
    expected = [evaluate(graph, feeds, precise=True) for feeds in inputs]
    seen: set[str] = set()
    for index in range(SUBSETS + 2):
        share = {0: 0.0, 1: 1.0}.get(index, draw.random())
        skip = [key for key in PASSES if draw.random() < share]
        changed, _ = run_passes(graph, skip)
        label = f"{name} without {', '.join(skip) or 'nothing'}"
        for feeds, wanted in zip(inputs, expected, strict=True):
            assert_same(evaluate(changed, feeds, precise=True), wanted, label)
        again, reports = run_passes(changed, skip)
        assert again.nodes == changed.nodes, f"{label}: a second run finds something: {reports}"
        if len(seen) < COMPILED and repr(changed.nodes) not in seen:
            seen.add(repr(changed.nodes))
            compiled = tools.Compiled(changed)
            for feeds, wanted in zip(inputs, expected, strict=True):
                assert_same(compiled(feeds), wanted, f"{label}, compiled")


def test_enough_subsets_are_drawn() -> None:
    assert len(ZOO) * SUBSETS >= 60


@pytest.mark.parametrize("name", FUSED)
def test_exporters_forms_are_found(name: str) -> None:
    changed, _ = run_passes(imported(name))
    found = {node.op for node in changed.nodes}
    assert found >= FUSED[name]
    assert not found & {"Erf", "Softmax", "ReduceMean", "Pow", "Sqrt", "Identity", "Where", "IsNaN"}


@pytest.mark.parametrize("name", [key for key in ZOO if not key.endswith("dynamo")])
def test_each_value_is_right_when_it_is_an_output(name: str) -> None:
    """No pass takes away, or changes, a value that was asked for."""
    graph = imported(name)
    values = [output for node in graph.nodes for output in node.outputs]
    feeds = feeds_of(graph, 3)
    expected = evaluate(Graph(**{**vars(graph), "outputs": values}), feeds, precise=True)
    for value in values:
        pinned = Graph(**{**vars(graph), "outputs": list(dict.fromkeys([*graph.outputs, value]))})
        changed, _ = run_passes(pinned)
        assert changed.outputs == pinned.outputs
        wanted = {key: expected[key] for key in pinned.outputs}
        assert_same(evaluate(changed, feeds, precise=True), wanted, f"{name} with output {value}")
