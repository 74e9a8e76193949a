"""Layer normalisation, RMS normalisation and GELU in the forms that exporters write, and what only looks like them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rerank_engine.graph import Graph
from rerank_engine.ops import check_nodes
from rerank_engine.passes import run_passes
from rerank_engine.passes.fuse_gelu import fuse_gelu
from rerank_engine.passes.fuse_layer_norm import fuse_layer_norm
from rerank_engine.reference import evaluate

RANDOM = np.random.default_rng(5)
LAST = {"axes": (-1,), "keepdims": 1}


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def changed_by(tools: Any, run: Callable[[Graph], Graph], b: Any) -> Graph:
    """What a pass makes of a graph: valid, with the same outputs and numbers, also compiled."""
    before = b.finish()
    after = run(before)
    after.verify()
    check_nodes(after)
    assert after.outputs == before.outputs
    assert run(after).nodes == after.nodes, "a second run finds something"
    feeds = b.feeds(7)
    expected, actual = evaluate(before, feeds, precise=True), evaluate(after, feeds, precise=True)
    compiled = tools.Compiled(after)(feeds)
    for name, array in expected.items():
        scale = np.abs(array).max(initial=0.0)
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-6 * scale, err_msg=name)
        np.testing.assert_allclose(compiled[name], array, rtol=0, atol=2e-6 * scale, err_msg=name)
    return after


class Parts:
    """What normalisations are made of, over a graph that is being built."""

    def __init__(self, b: Any, shape: tuple[Any, ...] = ("N", 3, 8), axes: tuple[int, ...] = (-1,)) -> None:
        self.b = b
        self.over = {"axes": axes, "keepdims": 1}
        self.x = b.input("float32", *shape, domain="plain")
        fixed = shape[min(axes) :]
        self.gamma = b.constant(RANDOM.uniform(0.5, 2, size=fixed))
        self.beta = b.constant(RANDOM.normal(size=fixed))
        self.epsilon = b.constant(1e-3)

    def mean(self, value: str) -> str:
        return str(self.b.node("ReduceMean", value, **self.over))

    def number(self, value: float) -> str:
        return str(self.b.constant(value))

    def __getattr__(self, op: str) -> Callable[..., str]:
        return lambda *inputs, **attributes: str(self.b.node(op, *inputs, **attributes))

    def deviation(self) -> str:
        return self.Sub(self.x, self.mean(self.x))

    def padded(self, deviation: str) -> str:
        return self.Add(self.mean(self.Mul(deviation, deviation)), self.epsilon)


def torch_script(p: Parts) -> str:
    d = p.Sub(p.x, p.mean(p.x))
    variance = p.mean(p.Pow(d, p.number(2.0)))
    return p.Add(p.Mul(p.Div(d, p.Sqrt(p.Add(variance, p.epsilon))), p.gamma), p.beta)


def torch_by_hand(p: Parts) -> str:
    """Mean and variance by themselves, so the mean is taken twice."""
    other = p.Sub(p.x, p.mean(p.x))
    deviation = p.Sqrt(p.Add(p.mean(p.Mul(other, other)), p.epsilon))
    return p.Add(p.beta, p.Mul(p.gamma, p.Div(p.Sub(p.x, p.mean(p.x)), deviation)))


def rsqrt(p: Parts) -> str:
    d = p.deviation()
    return p.Add(p.Mul(p.Mul(d, p.Div(p.number(1.0), p.Sqrt(p.padded(d)))), p.gamma), p.beta)


def power(p: Parts) -> str:
    d = p.deviation()
    return p.Add(p.Mul(p.gamma, p.Mul(d, p.Pow(p.padded(d), p.number(-0.5)))), p.beta)


def root_of_inverse(p: Parts) -> str:
    d = p.deviation()
    return p.Mul(d, p.Mul(p.Sqrt(p.Div(p.number(1.0), p.padded(d))), p.gamma))


def keras(p: Parts) -> str:
    """``batch_normalization`` of TensorFlow: x * m + (beta - mean * m)."""
    mean = p.mean(p.x)
    d = p.Sub(p.x, mean)
    m = p.Mul(p.Div(p.number(1.0), p.Sqrt(p.padded(d))), p.gamma)
    return p.Add(p.Mul(p.x, m), p.Sub(p.beta, p.Mul(mean, m)))


def keras_negative_mean(p: Parts) -> str:
    mean = p.mean(p.x)
    d = p.Sub(p.x, mean)
    m = p.Pow(p.padded(d), p.number(-0.5))
    return p.Add(p.Mul(p.x, m), p.Mul(p.Neg(mean), m))


def scale_only(p: Parts) -> str:
    d = p.Add(p.x, p.Neg(p.mean(p.x)))
    return p.Mul(p.Div(d, p.Sqrt(p.padded(d))), p.gamma)


def bare(p: Parts) -> str:
    d = p.deviation()
    return p.Div(d, p.Sqrt(p.padded(d)))


def shift_only(p: Parts) -> str:
    return p.Add(bare(p), p.beta)


def without_epsilon(p: Parts) -> str:
    d = p.deviation()
    return p.Div(d, p.Sqrt(p.mean(p.Mul(d, d))))


def unbiased(p: Parts) -> str:
    """Bessel's correction, as ``x.var()`` of PyTorch has it."""
    d = p.deviation()
    variance = p.Mul(p.mean(p.Mul(d, d)), p.number(8 / 7))
    return p.Add(p.Mul(p.Div(d, p.Sqrt(p.Add(variance, p.epsilon))), p.gamma), p.beta)


def sums(p: Parts) -> str:
    """Means as sums over counts, without kept dimensions."""
    over = {"axes": (2,), "keepdims": 0}
    total = p.Reshape(p.ReduceSum(p.x, **over), shape=("N", 3, 1))
    d = p.Sub(p.x, p.Div(total, p.number(8.0)))
    squares = p.Mul(p.Reshape(p.ReduceSum(p.Mul(d, d), **over), shape=("N", 3, 1)), p.number(0.125))
    return p.Div(d, p.Sqrt(p.Add(p.epsilon, squares)))


LAYER_NORMS = [
    torch_script, torch_by_hand, rsqrt, power, root_of_inverse, keras, keras_negative_mean, scale_only, bare,
    shift_only, without_epsilon, unbiased, sums,
]  # fmt: skip


def rms_torch(p: Parts) -> str:
    square = p.mean(p.Pow(p.x, p.number(2.0)))
    return p.Mul(p.Mul(p.x, p.Div(p.number(1.0), p.Sqrt(p.Add(square, p.epsilon)))), p.gamma)


def rms_divided(p: Parts) -> str:
    return p.Mul(p.gamma, p.Div(p.x, p.Sqrt(p.padded(p.x))))


def rms_power(p: Parts) -> str:
    return p.Mul(p.x, p.Pow(p.padded(p.x), p.number(-0.5)))


RMS_NORMS = [rms_torch, rms_divided, rms_power]


@pytest.mark.parametrize("form", LAYER_NORMS, ids=lambda form: form.__name__)
def test_every_form_of_layer_normalisation(tools: Any, form: Callable[[Parts], str]) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("Tanh", form(Parts(b))))
    after = changed_by(tools, fuse_layer_norm, b)
    assert ops(after) == ["LayerNormalization", "Tanh"]


@pytest.mark.parametrize("form", RMS_NORMS, ids=lambda form: form.__name__)
def test_every_form_of_rms_normalisation(tools: Any, form: Callable[[Parts], str]) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("Tanh", form(Parts(b))))
    assert ops(changed_by(tools, fuse_layer_norm, b)) == ["RMSNormalization", "Tanh"]


def test_over_several_dimensions_and_behind_a_sum(tools: Any) -> None:
    b = tools.GraphBuilder()
    several = Parts(b, ("N", 4, 3, 2), (1, 2, 3))
    b.output(torch_script(several), keras(Parts(b, ("N", 2, 3), (-2, -1))))
    residual = Parts(b)
    residual.x = b.node("Add", residual.x, b.node("Relu", residual.x))
    b.output(b.node("Add", torch_script(residual), residual.x))
    after = changed_by(tools, fuse_layer_norm, b)
    assert ops(after) == ["LayerNormalization", "LayerNormalization", "Relu", "Add", "LayerNormalization", "Add"]
    assert after.nodes[0].attributes["axis"] == 1


def test_epsilon_and_bessels_correction(tools: Any) -> None:
    b = tools.GraphBuilder()
    b.output(unbiased(Parts(b)))
    (node,) = fuse_layer_norm(b.finish()).nodes
    assert math.isclose(node.attributes["epsilon"], 1e-3 * 7 / 8, rel_tol=1e-6)


def test_two_normalisations_of_one_value_share_it(tools: Any) -> None:
    b = tools.GraphBuilder()
    p = Parts(b)
    shared = bare(p)
    b.output(p.Mul(shared, p.gamma), p.Add(p.Mul(shared, p.number(2.0)), p.beta))
    assert ops(changed_by(tools, fuse_layer_norm, b)) == ["LayerNormalization", "Mul", "Mul", "Add"]


def test_an_added_embedding_is_no_beta(tools: Any) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("Add", scale_only(Parts(b)), b.constant(RANDOM.normal(size=(3, 8)))))
    assert ops(changed_by(tools, fuse_layer_norm, b)) == ["LayerNormalization", "Add"]


@pytest.mark.parametrize(
    "case",
    [
        "epsilon outside",
        "another axis",
        "another mean",
        "of another value",
        "not the mean",
        "twice the mean",
        "dynamic gamma",
    ],
)
def test_what_only_looks_like_a_normalisation_stays(tools: Any, case: str) -> None:
    b = tools.GraphBuilder()
    p = Parts(b)
    other = b.input("float32", "N", 3, 8, domain="plain")
    d = p.deviation()
    padded = p.padded(d)
    if case == "epsilon outside":  # (std + epsilon), as hand-written models have it
        result = p.Div(d, p.Add(p.Sqrt(p.mean(p.Mul(d, d))), p.epsilon))
    elif case == "another axis":
        p.over = {"axes": (1,), "keepdims": 1}
        result = torch_script(p)
    elif case == "another mean":
        p.over = {"axes": (1, 2), "keepdims": 1}
        result = p.Div(p.Sub(p.x, p.mean(p.x)), p.Sqrt(padded))
    elif case == "of another value":
        result = p.Div(other, p.Sqrt(padded))
    elif case == "not the mean":
        d = p.Sub(p.x, b.node("ReduceMax", p.x, **LAST))
        result = p.Sub(p.Mul(p.x, p.Pow(p.padded(d), p.number(-0.5))), p.mean(p.x))
    elif case == "twice the mean":
        result = p.Div(p.Sub(d, p.mean(p.x)), p.Sqrt(padded))
    else:
        gamma = b.input("float32", "N", 1, 8, domain="plain")
        result = p.Sub(p.Mul(p.Mul(p.x, p.Pow(padded, p.number(-0.5))), gamma), p.mean(p.x))
    b.output(result)
    after = changed_by(tools, fuse_layer_norm, b)
    assert "LayerNormalization" not in ops(after)


@pytest.mark.parametrize("form", [torch_script, keras, rms_torch], ids=lambda form: form.__name__)
def test_no_value_that_is_asked_for_is_fused_away(tools: Any, form: Callable[[Parts], str]) -> None:
    """Each value of the normalisation is an output once: it is there, with its numbers, whatever is fused."""
    b = tools.GraphBuilder()
    result = form(Parts(b))
    for name in [node.outputs[0] for node in b.graph.nodes if node.outputs[0] != result]:
        b.graph.outputs[:] = [result, name]
        after = fuse_layer_norm(b.finish())
        feeds = b.feeds(4)
        expected, actual = evaluate(b.graph, feeds, precise=True), evaluate(after, feeds, precise=True)
        for key, array in expected.items():
            np.testing.assert_allclose(actual[key], array, rtol=1e-6, atol=1e-6, err_msg=f"{key} beside {name}")


def test_float64_is_fused_as_float64(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float64", "N", 8, domain="plain")
    d = b.node("Sub", x, b.node("ReduceMean", x, **LAST))
    padded = b.node("Add", b.node("ReduceMean", b.node("Mul", d, d), **LAST), b.constant(1e-5, "float64"))
    gamma = b.constant(RANDOM.uniform(1, 2, size=8), "float64")
    b.output(b.node("Mul", b.node("Div", d, b.node("Sqrt", padded)), gamma))
    after = changed_by(tools, fuse_layer_norm, b)
    assert ops(after) == ["LayerNormalization"]
    assert after.values[after.outputs[0]].dtype == "float64"


# --- GELU ------------------------------------------------------------------------------------------------------


def erf_torch(p: Parts) -> str:
    share = p.Add(p.Erf(p.Div(p.x, p.number(1.4142135381698608))), p.number(1.0))
    return p.Mul(p.Mul(p.x, share), p.number(0.5))


def erf_half_first(p: Parts) -> str:
    return p.Mul(p.Mul(p.number(0.5), p.x), p.Add(p.number(1.0), p.Erf(p.Mul(p.x, p.number(math.sqrt(0.5))))))


def erf_halved(p: Parts) -> str:
    share = p.Add(p.Erf(p.Mul(p.x, p.Sqrt(p.number(0.5)))), p.number(1.0))
    return p.Mul(p.x, p.Div(share, p.number(2.0)))


def erf_spread(p: Parts) -> str:
    half = p.Mul(p.x, p.number(0.5))
    return p.Add(half, p.Mul(half, p.Erf(p.Div(p.x, p.number(math.sqrt(2.0))))))


EXACT = [erf_torch, erf_half_first, erf_halved, erf_spread]


def _inner(p: Parts, cube: str) -> str:
    return p.Mul(p.Add(p.x, p.Mul(cube, p.number(0.044715))), p.number(math.sqrt(2 / math.pi)))


def _half_share(p: Parts, inner: str) -> str:
    return p.Mul(p.Mul(p.number(0.5), p.x), p.Add(p.Tanh(inner), p.number(1.0)))


def tanh_cube(p: Parts) -> str:
    return _half_share(p, _inner(p, p.Mul(p.Mul(p.x, p.x), p.x)))


def tanh_power(p: Parts) -> str:
    return _half_share(p, _inner(p, p.Pow(p.x, p.number(3.0))))


def tanh_factored(p: Parts) -> str:
    square = p.Mul(p.Mul(p.x, p.number(0.044715)), p.x)
    scaled = p.Mul(p.x, p.number(0.7978845608028654))
    return _half_share(p, p.Mul(scaled, p.Add(square, p.number(1.0))))


def sigmoid(p: Parts) -> str:
    return p.Mul(p.x, p.Sigmoid(p.Mul(p.number(2.0), _inner(p, p.Pow(p.x, p.number(3.0))))))


APPROXIMATE = [tanh_cube, tanh_power, tanh_factored, sigmoid]


@pytest.mark.parametrize("form", [*EXACT, *APPROXIMATE], ids=lambda form: form.__name__)
@pytest.mark.parametrize("of_a_sum", [False, True])
def test_every_form_of_gelu(tools: Any, form: Callable[[Parts], str], of_a_sum: bool) -> None:
    b = tools.GraphBuilder()
    p = Parts(b)
    if of_a_sum:
        p.x = p.Add(p.Mul(p.x, p.number(3.0)), p.beta)
    b.output(p.Neg(form(p)))
    after = changed_by(tools, fuse_gelu, b)
    assert ops(after)[-2:] == ["Gelu", "Neg"]
    assert len(after.nodes) == (4 if of_a_sum else 2)
    gelu = after.nodes[-2]
    assert gelu.attributes["approximate"] == ("none" if form in EXACT else "tanh")
    assert gelu.inputs == (p.x,)


def swish(p: Parts) -> str:
    return p.Mul(p.x, p.Sigmoid(p.Mul(p.x, p.number(1.702))))


def rough_constant(p: Parts) -> str:
    return _half_share(p, p.Mul(p.Add(p.x, p.Mul(p.Pow(p.x, p.number(3.0)), p.number(0.0447))), p.number(0.7978846)))


def rough_root(p: Parts) -> str:
    return p.Mul(p.Mul(p.x, p.number(0.5)), p.Add(p.Erf(p.Mul(p.x, p.number(0.7071))), p.number(1.0)))


def no_half(p: Parts) -> str:
    return p.Mul(p.x, p.Add(p.Erf(p.Div(p.x, p.number(math.sqrt(2.0)))), p.number(1.0)))


def other_factor(p: Parts) -> str:
    share = p.Add(p.Erf(p.Div(p.x, p.number(math.sqrt(2.0)))), p.number(1.0))
    return p.Mul(p.Mul(p.Relu(p.x), p.number(0.5)), share)


@pytest.mark.parametrize("form", [swish, rough_constant, rough_root, no_half, other_factor], ids=lambda f: f.__name__)
def test_what_only_looks_like_gelu_stays(tools: Any, form: Callable[[Parts], str]) -> None:
    b = tools.GraphBuilder()
    b.output(form(Parts(b)))
    assert fuse_gelu(b.finish()) is b.graph


def test_a_gelu_whose_parts_are_read_stays(tools: Any) -> None:
    for form in (erf_torch, tanh_cube):
        b = tools.GraphBuilder()
        result = form(Parts(b))
        for name in [node.outputs[0] for node in b.graph.nodes if node.outputs[0] != result]:
            b.graph.outputs[:] = [result, name]
            assert fuse_gelu(b.finish()) is b.graph


def test_an_exact_graph_never_becomes_the_approximation(tools: Any) -> None:
    """The two differ by up to 4.7e-4: exact stays within rounding of erf, the approximation of its own formula."""
    x = np.linspace(-6, 6, 2001).astype(np.float32).reshape(-1, 1)
    exact = x * 0.5 * (1 + np.vectorize(math.erf)(x.astype(np.float64) * math.sqrt(0.5)))
    wide = x.astype(np.float64)
    approximate = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert 4e-4 < np.abs(exact - approximate).max() < 5e-4
    for form, expected in ((erf_torch, exact), (tanh_power, approximate)):
        b = tools.GraphBuilder()
        p = Parts(b, ("N", 1))
        b.output(form(p))
        graph, _ = run_passes(b.finish())
        assert ops(graph) == ["Gelu"]
        (actual,) = tools.Compiled(graph)({p.x: x}).values()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-7)
