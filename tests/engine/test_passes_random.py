"""Random graphs out of what passes look for, whole and in pieces: any subset of passes keeps their numbers."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import RerankError
from rerank_engine.graph import Node, Value, shape_attribute
from rerank_engine.ops import lookup
from rerank_engine.passes import run_passes
from rerank_engine.passes.pipeline import MOST_ROUNDS, PASSES
from rerank_engine.reference import evaluate

SEEDS = range(240)
COMPILED_EVERY = 40

SHAPES: list[tuple[Any, ...]] = [("N", 6), ("N", 3, 4), ("N", 4, 3), (3, 4), ("N", 1, 4), ("N", 2, 3, 4)]


class RandomGraph:
    """Grows a graph by random nodes and motifs over values that are there."""

    def __init__(self, builder: Any, draw: random.Random) -> None:
        self.b, self.draw = builder, draw
        self.arrays = np.random.default_rng(draw.randrange(2**31))
        self.pool: list[str] = [builder.input("float32", *shape, domain="plain") for shape in SHAPES]

    def shape(self, name: str) -> tuple[Any, ...]:
        return tuple(self.b.graph.values[name].shape)

    def number(self, value: float) -> str:
        return str(self.b.constant(np.full(self.draw.choice([(), (1,), (1, 1)]), value)))

    def weight(self, *shape: int) -> str:
        return str(self.b.constant(self.arrays.uniform(0.5, 1.5, size=shape) * self.arrays.choice([-1, 1], size=shape)))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node whose attributes are given as the graph has them."""
        name = f"{op.lower()}{len(self.b.graph.nodes)}"
        node = Node(op, name, inputs, (name,), attributes)
        ((dtype, shape),) = lookup(node).infer(node, [self.b.graph.values[entry] for entry in inputs])
        self.b.graph.values[name] = Value(name, dtype, shape)
        self.b.graph.nodes.append(node)
        return name

    def grow(self) -> None:
        """Add one node or motif, where it fits the value that was drawn."""
        value = self.draw.choice(self.pool[-8:] if self.draw.random() < 0.8 else self.pool)
        kinds = ("unary", "binary", "constant", "constant", "product", "product", "turn", "turn", "reshape", "reshape")
        kinds += ("expand", "cut", "join", "reduce", "normal", "gelu", "attention", "softmax")
        try:
            self.pool.append(getattr(self, self.draw.choice(kinds))(value, self.shape(value)))
        except (RerankError, IndexError, TypeError, ValueError):
            return  # it does not fit: another shape, or nothing to draw from

    def unary(self, x: str, _: Any) -> str:
        return self.node(self.draw.choice(["Relu", "Tanh", "Neg", "Sigmoid", "Identity", "Abs"]), x)

    def binary(self, x: str, _: Any) -> str:
        both = [x, self.draw.choice([*self.pool, x])]
        self.draw.shuffle(both)
        return self.node(self.draw.choice(["Add", "Sub", "Mul"]), *both)

    def constant(self, x: str, shape: Any) -> str:
        fixed = [dim for dim in shape if isinstance(dim, int)]
        choices = [self.number(1.0), self.number(self.draw.uniform(0.5, 2)), self.weight(*fixed[-1:])]
        choices += [self.weight(*fixed[-2:]), self.weight(*fixed[-2:-1], 1)]
        op, other = self.draw.choice(["Add", "Sub", "Mul", "Div"]), self.draw.choice(choices)
        return self.node(op, *((x, other) if op == "Div" or self.draw.random() < 0.6 else (other, x)))

    def product(self, x: str, shape: Any) -> str:
        return self.node("MatMul", x, self.weight(shape[-1], self.draw.choice([1, 3, 4, 6])))

    def turn(self, x: str, shape: Any) -> str:
        return self.node("Transpose", x, perm=tuple(self.draw.sample(range(len(shape)), len(shape))))

    def reshape(self, x: str, shape: Any) -> str:
        dims, at = list(shape), self.draw.randrange(len(shape))
        if self.draw.random() < 0.5:
            dims[at : at + 2] = [math.prod(dims[at : at + 2], start=1)]
        elif isinstance(dims[at], int) and dims[at] % 2 == 0:
            dims[at : at + 1] = [2, dims[at] // 2]
        else:
            dims.insert(at, 1)
        return self.node("Reshape", x, shape=shape_attribute(dims[:6]))

    def expand(self, x: str, shape: Any) -> str:
        return self.node("Expand", x, shape=shape_attribute(self.draw.choice([3, 5]) if d == 1 else d for d in shape))

    def cut(self, x: str, shape: Any) -> str:
        axis = self.draw.choice([axis for axis, dim in enumerate(shape) if isinstance(dim, int) and dim > 1])
        middle = self.draw.randrange(1, shape[axis])
        parts = [self.node("Slice", x, axis=axis, start=a, stop=b) for a, b in ((0, middle), (middle, shape[axis]))]
        if self.draw.random() < 0.3:
            parts.reverse()
        return self.node("Concat", *parts, *[x] * self.draw.randrange(2), axis=axis)

    def join(self, x: str, shape: Any) -> str:
        others = [y for y in self.pool if self.shape(y)[:-1] == shape[:-1]]
        joined = self.node("Concat", x, *self.draw.choices(others, k=self.draw.randint(0, 3)), axis=len(shape) - 1)
        self.pool.append(joined)
        return self.product(joined, self.shape(joined))

    def reduce(self, x: str, shape: Any) -> str:
        op, axis = self.draw.choice(["ReduceMean", "ReduceSum", "ReduceMax"]), self.draw.randrange(1, len(shape))
        return self.node(op, x, axes=(axis,), keepdims=self.draw.randint(0, 1))

    def softmax(self, x: str, shape: Any) -> str:
        return self.node("Softmax", x, axis=self.draw.randrange(len(shape)))

    def normal(self, x: str, shape: Any) -> str:
        over = {"axes": (len(shape) - 1,), "keepdims": 1}
        mean = self.node("ReduceMean", x, **over)
        d = self.node("Sub", x, mean)
        variance = self.node("ReduceMean", self.node("Mul", d, d), **over)
        root = self.node("Sqrt", self.node("Add", variance, self.number(0.1)))
        self.leak(mean, d, root)
        if self.draw.random() < 0.5:
            return self.node("Mul", self.node("Div", d, root), self.weight(shape[-1]))
        factor = self.node("Mul", self.node("Div", self.number(1.0), root), self.weight(shape[-1]))
        shift = self.node("Sub", self.weight(shape[-1]), self.node("Mul", mean, factor))
        return self.node("Add", self.node("Mul", x, factor), shift)

    def gelu(self, x: str, _: Any) -> str:
        bent = self.node("Erf", self.node("Div", x, self.number(math.sqrt(2))))
        share = self.node("Add", bent, self.number(1.0))
        self.leak(bent, share)
        return self.node("Mul", self.node("Mul", x, share), self.number(0.5))

    def attention(self, x: str, shape: Any) -> str:
        other = self.draw.choice(
            [y for y in self.pool if (*self.shape(y)[:-2], *self.shape(y)[-1:]) == (*shape[:-2], shape[-1])]
        )
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        keys = self.node("Transpose", other, perm=tuple(order))
        query, keys = (self.node("Mul", y, self.number(0.7)) if self.draw.random() < 0.4 else y for y in (x, keys))
        scores = self.node("MatMul", query, keys)
        last = self.shape(scores)[-1]
        if self.draw.random() < 0.4:
            scores = self.node("Mul", scores, self.number(0.3))
        if self.draw.random() < 0.4 and isinstance(last, int):
            scores = self.node("Add", scores, self.weight(last))
        if self.draw.random() < 0.3 and isinstance(last, int):
            shown = str(self.b.constant(self.arrays.random(last) < 0.6, "bool"))
            scores = self.node("Where", shown, scores, self.number(self.draw.choice([-1e9, -2.0])))
        weights = self.node("Softmax", scores, axis=-1)
        self.leak(weights)
        return self.node("MatMul", weights, other)

    def leak(self, *names: str) -> None:
        """Sometimes let others read a value from within a motif."""
        if self.draw.random() < 0.2:
            self.pool.append(self.draw.choice(names))


def assert_same(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    for name, array in expected.items():
        assert actual[name].shape == array.shape
        most = np.abs(array[np.isfinite(array)]).max(initial=0.0)
        finite = np.isfinite(array)
        np.testing.assert_allclose(actual[name][finite], array[finite], rtol=0, atol=tolerance * (most + 0.1))


@pytest.mark.parametrize("first", SEEDS[::COMPILED_EVERY])
def test_random_graphs_keep_their_numbers(tools: Any, first: int) -> None:
    changed_by: set[str] = set()
    for seed in range(first, first + COMPILED_EVERY):
        draw, b = random.Random(seed), tools.GraphBuilder()
        grown = RandomGraph(b, draw)
        for _ in range(draw.randint(3, 22)):
            grown.grow()
        made = [node.outputs[0] for node in b.graph.nodes] or [grown.unary(grown.pool[0], ())]
        b.output(*dict.fromkeys([made[-1], *draw.sample(made, min(len(made), draw.randint(0, 3)))]))
        share = draw.choice([0.0, 0.3, 0.7])
        # Each pass by its own number: a new one changes nothing for the others.
        skip = [name for name in PASSES if random.Random(f"{seed} {name}").random() < share]
        graph = b.finish()
        after, reports = run_passes(graph, skip)
        alone = run_passes(graph, [name for name in PASSES if name != "fuse_matmul"])[1]
        changed_by |= {report.name for report in (*reports, *alone) if report.removed}
        assert max((report.round for report in reports), default=1) < MOST_ROUNDS, seed
        assert run_passes(after, skip)[0].nodes == after.nodes, f"seed {seed}: a second run finds something"
        for candidates in (0, 1, 3):
            feeds = b.feeds(candidates, seed)
            expected = evaluate(graph, feeds, precise=True)
            assert_same(evaluate(after, feeds, precise=True), expected, 1e-5)
            if seed == first:
                assert_same(tools.Compiled(after)(feeds), expected, 1e-4)
    fusions = {"fuse_gelu", "fuse_layer_norm", "fuse_attention", "fuse_matmul"}
    assert changed_by >= {"remove_identity", "merge_copies", "remove_transpose", "common_subexpressions", *fusions}
