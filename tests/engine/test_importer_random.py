"""Random small models: ONNX Runtime, our code with all passes and our code with some left out give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.passes.pipeline import PASSES

Array = NDArray[Any]

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "LeakyRelu", "Softmax")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCE = ("ReduceMean", "ReduceMax", "ReduceSum")


class RandomModel:
    """Grows by one node a draw; every value has shape (N, width)."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.widths: dict[str, int] = {"x": draw(st.sampled_from([1, 4, 17])), "y": draw(st.sampled_from([1, 3, 16]))}
        self.inputs = {name: ("float32", ["N", width]) for name, width in self.widths.items()}
        for _ in range(draw(st.integers(2, 9))):
            self.grow()
        made = [name for one in self.nodes for name in one.output if name in self.widths]
        read = {name for one in self.nodes for name in one.input}
        pinned = set(draw(st.lists(st.sampled_from(made), max_size=2)))
        self.outputs = [name for name in made if name in pinned or name not in read]

    def grow(self) -> None:
        kind = self.draw(
            st.sampled_from(("unary", "binary", "constant", "matmul", "gemm", "concat", "reduce", "cut", "turn"))
        )
        source = self.draw(st.sampled_from(sorted(self.widths)))
        getattr(self, kind)(source, self.widths[source])

    def add(self, op: str, inputs: list[str], width: int, **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, [name], **attributes))
        self.widths[name] = width

    def fixed(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def floats(self, *shape: int) -> str:
        return self.fixed(self.random.normal(0, 0.5, shape).astype(np.float32))

    def unary(self, source: str, width: int) -> None:
        self.add(self.draw(st.sampled_from(UNARY)), [source], width)

    def binary(self, source: str, width: int) -> None:
        fitting = [name for name, other in sorted(self.widths.items()) if other in (width, 1) or width == 1]
        other = self.draw(st.sampled_from(fitting))
        self.add(self.draw(st.sampled_from(BINARY)), [source, other], max(width, self.widths[other]))

    def constant(self, source: str, width: int) -> None:
        shape = self.draw(st.sampled_from([(), (width,), (1, width), (1,)]))
        inputs = self.draw(st.permutations([source, self.floats(*shape)]))
        self.add(self.draw(st.sampled_from(BINARY)), list(inputs), width)

    def matmul(self, source: str, width: int) -> None:
        columns = self.draw(st.sampled_from([1, 2, 5, 17]))
        self.add("MatMul", [source, self.floats(width, columns)], columns)

    def gemm(self, source: str, width: int) -> None:
        columns = self.draw(st.sampled_from([1, 3, 16]))
        bias = self.floats(*self.draw(st.sampled_from([(columns,), (1, columns), (1,)])))
        alpha, beta = self.draw(st.sampled_from([(1.0, 1.0), (0.5, 2.0)]))
        weight = self.floats(columns, width)
        self.add("Gemm", [source, weight, bias], columns, transB=1, alpha=alpha, beta=beta)

    def concat(self, source: str, width: int) -> None:
        other = self.draw(st.sampled_from(sorted(self.widths)))
        self.add("Concat", [source, other], width + self.widths[other], axis=self.draw(st.sampled_from([1, -1])))

    def reduce(self, source: str, width: int) -> None:
        op = self.draw(st.sampled_from(REDUCE))
        axes = self.fixed(np.array([1]))
        if op == "ReduceSum":
            self.add(op, [source, axes], 1)
        else:
            self.add(op, [source], 1, axes=[-1])

    def cut(self, source: str, width: int) -> None:
        start = self.draw(st.integers(0, width - 1))
        stop = self.draw(st.integers(start + 1, width))
        bounds = [self.fixed(np.array([number])) for number in (start, stop, 1)]
        self.add("Slice", [source, *bounds], stop - start)

    def turn(self, source: str, width: int) -> None:
        """Reshape to (N, 1, width), transpose, and flatten again: the same elements."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(node("Unsqueeze", [source, self.fixed(np.array([1]))], [f"{name}u"]))
        self.nodes.append(node("Transpose", [f"{name}u"], [f"{name}t"], perm=[0, 2, 1]))
        self.add("Reshape", [f"{name}t", self.fixed(np.array([0, -1]))], width)


@settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_same_numbers_with_any_passes(tools: Any, data: st.DataObject) -> None:
    model = RandomModel(data.draw)
    onnx_model = tools.onnx_model(
        model.nodes, model.inputs, model.outputs, constants=model.constants, ranks=dict.fromkeys(model.outputs, 2)
    )
    candidates = data.draw(st.sampled_from([1, 3, 40]))
    feeds = {
        name: model.random.normal(0, 1, (candidates, model.widths[name])).astype(np.float32) for name in model.inputs
    }
    expected = tools.run_onnxruntime(onnx_model, feeds)
    skipped = data.draw(st.sets(st.sampled_from(sorted(PASSES))))
    for skip in {frozenset(), frozenset(skipped)}:
        graph = convert(onnx_model, skip_passes=skip).graph
        actual = tools.Compiled(graph)(feeds)
        assert list(actual) == list(expected)
        for name, array in actual.items():
            assert array.dtype == expected[name].dtype
            assert array.shape == expected[name].shape
            scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
            np.testing.assert_allclose(
                array / scale, expected[name] / scale, atol=1e-5, err_msg=f"{name}, without {skip}"
            )
