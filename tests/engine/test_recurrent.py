"""RNN, GRU and LSTM as ONNX files: every direction, option and activation against ONNX Runtime, and peers' failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from rerank_engine import convert
from rerank_engine.errors import InputError, UnsupportedOperatorError

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS, HIDDEN = 3, 6


def build(
    tools: Any,
    op: str,
    *,
    steps: Any = 5,
    batch: Any = 2,
    bias: bool = True,
    lengths: bool = False,
    states: bool = False,
    peepholes: bool = False,
    hidden: int = HIDDEN,
    seed: int = 0,
    scale: float = 0.5,
    **attributes: Any,
) -> Any:
    """A model of one layer with all of its outputs."""
    random = np.random.default_rng(seed)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[op]

    def weights(*shape: int) -> Any:
        return random.normal(0, scale, shape).astype(np.float32)

    constants = {"W": weights(directions, gates * hidden, INPUTS), "R": weights(directions, gates * hidden, hidden)}
    names = ["x", "W", "R", "", "", "", "", ""]
    inputs: dict[str, Any] = {"x": ("float32", [steps, batch, INPUTS])}
    if bias:
        names[3], constants["B"] = "B", weights(directions, 2 * gates * hidden)
    if lengths:
        names[4], inputs["lengths"] = "lengths", ("int32", [batch])
    if states:
        names[5], inputs["h"] = "h", ("float32", [directions, batch, hidden])
        if op == "LSTM":
            names[6], inputs["c"] = "c", ("float32", [directions, batch, hidden])
    if peepholes:
        names[7], constants["P"] = "P", weights(directions, 3 * hidden)
    while not names[-1]:
        names.pop()
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    node = make_node(op, names, outputs, name="layer", hidden_size=hidden, **attributes)
    return tools.onnx_model([node], inputs, outputs, constants=constants, opset=17)


def check(tools: Any, model: Any, *, n: int, lengths: Any = None, tolerance: float = 2e-6) -> None:
    graph = convert(model, candidates="N" if any("N" in str(entry.type) for entry in model.graph.input) else None).graph
    random = np.random.default_rng(n)
    feeds = {}
    for entry in model.graph.input:
        shape = [dim.dim_value or n for dim in entry.type.tensor_type.shape.dim]
        feeds[entry.name] = random.normal(size=shape).astype(np.float32)
    if lengths is not None:
        feeds["lengths"] = np.resize(np.array(lengths, np.int32), feeds["x"].shape[1])
    expected = tools.run_onnxruntime(model, feeds)
    for backend in (tools.Compiled(graph)(feeds), tools.expect(graph, feeds)):
        for name, array in backend.items():
            assert array.shape == expected[name].shape
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"states": True},
        {"lengths": True, "states": True},
        {"clip": 0.3},
        {"batch": 1, "hidden": 17},
    ],
    ids=str,
)
def test_like_onnxruntime(tools: Any, op: str, direction: str, options: dict[str, Any]) -> None:
    lengths = [5, 2] if options.get("lengths") else None
    check(tools, build(tools, op, direction=direction, **options), n=3, lengths=lengths)


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize(
    "form", [{"batch": "N"}, {"steps": "N", "batch": 1}, {"batch": "N", "lengths": True, "states": True}]
)
@pytest.mark.parametrize("n", [1, 7, 200])
def test_candidates_as_sequences_and_as_steps(tools: Any, op: str, form: dict[str, Any], n: int) -> None:
    lengths = [5, 1, 2, 4] if form.get("lengths") else None
    if lengths and n == 1:
        lengths = [3]
    model = build(tools, op, direction="bidirectional", hidden=8, **form)
    check(tools, model, n=n, lengths=lengths, tolerance=1e-5 if "steps" in form else 2e-6)


@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_both_equations_of_the_gated_unit(tools: Any, reset: int, direction: str) -> None:
    """A peer is off by 0.1 to 0.3 for linear_before_reset=0 (Keras' reset_after=False)."""
    check(tools, build(tools, "GRU", linear_before_reset=reset, direction=direction, states=True), n=1)


def test_options_of_the_long_short_term_memory(tools: Any) -> None:
    check(tools, build(tools, "LSTM", peepholes=True, states=True), n=1)
    check(tools, build(tools, "LSTM", input_forget=1, clip=0.3), n=1)


@pytest.mark.parametrize(
    ("activations", "alpha", "beta"),
    [
        (["Sigmoid", "Relu"], None, None),
        (["HardSigmoid", "Softsign"], [0.3], [0.4]),
        (["Sigmoid", "LeakyRelu"], [0.2], None),
        (["Sigmoid", "Elu"], [0.7], None),
        (["Sigmoid", "Affine"], [0.5], [0.1]),
        (["Sigmoid", "ScaledTanh"], [0.9], [0.8]),
        (["Sigmoid", "Softplus"], None, None),
        (["Sigmoid", "ThresholdedRelu"], [0.1], None),
    ],
)
def test_activations(tools: Any, activations: list[str], alpha: Any, beta: Any) -> None:
    """A peer ignores them and is off by 2.5."""
    given = {"activation_alpha": alpha, "activation_beta": beta}
    options = {key: value for key, value in given.items() if value is not None}
    check(tools, build(tools, "GRU", activations=activations, **options), n=1, tolerance=5e-6)


def test_what_is_not_understood_is_refused_by_name(tools: Any) -> None:
    for options, why in (
        ({"activations": ["Sigmoid", "Cosh"]}, "activation 'Cosh' is not one of"),
        ({"activations": ["Sigmoid"]}, "expected 2"),
        ({"activation_alpha": [1.0, 2.0, 3.0]}, "take fewer parameters"),
    ):
        with pytest.raises(UnsupportedOperatorError, match=f"GRU node 'layer': .*{why}"):
            convert(build(tools, "GRU", **options))


@pytest.mark.parametrize("length", [-1, 6])
def test_a_length_beyond_the_sequence_is_an_error(tools: Any, length: int) -> None:
    graph = convert(build(tools, "GRU", lengths=True)).graph
    feeds = {"x": np.zeros((5, 2, INPUTS), np.float32), "lengths": np.array([3, length], np.int32)}
    with pytest.raises(InputError, match=f"{length}"):
        tools.Compiled(graph)(feeds)
    with pytest.raises(InputError, match=f"{length}"):
        tools.expect(graph, feeds)


def test_no_sequences_and_no_steps(tools: Any) -> None:
    forms: list[dict[str, Any]] = [{"batch": "N"}, {"steps": "N"}]
    for form in forms:
        graph = convert(build(tools, "LSTM", **form)).graph
        shape = (5, 0, INPUTS) if "batch" in form else (0, 2, INPUTS)
        feeds = {"x": np.zeros(shape, np.float32)}
        expected = tools.expect(graph, feeds)
        for name, array in tools.Compiled(graph)(feeds).items():
            assert array.shape == expected[name].shape
            np.testing.assert_array_equal(array, expected[name])


def test_an_empty_sequence_leaves_the_initial_state(tools: Any) -> None:
    """Without an initial state that is what ONNX Runtime answers too; with one it answers zero."""
    check(tools, build(tools, "GRU", lengths=True, direction="bidirectional"), n=3, lengths=[0, 5])
    graph = convert(build(tools, "GRU", lengths=True, states=True)).graph
    random = np.random.default_rng(1)
    state = random.normal(size=(1, 2, HIDDEN)).astype(np.float32)
    feeds = {"x": np.ones((5, 2, INPUTS), np.float32), "h": state, "lengths": np.array([0, 2], np.int32)}
    results = tools.Compiled(graph)(feeds)
    np.testing.assert_array_equal(results["y_h"][0, 0], state[0, 0])
    np.testing.assert_array_equal(results["y"][:, 0, 0], 0)


def test_fifty_steps_stay_close_to_float64(tools: Any) -> None:
    for op in sorted(GATES):
        model = build(tools, op, steps=50, batch="N", hidden=32, direction="bidirectional", scale=0.15)
        graph = convert(model).graph
        feeds = {"x": np.random.default_rng(4).normal(size=(50, 33, INPUTS)).astype(np.float32)}
        expected = tools.expect(graph, feeds)
        for name, array in tools.Compiled(graph)(feeds).items():
            scale = np.abs(expected[name]).max()
            assert np.abs(array - expected[name]).max() <= 1e-5 * scale


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize(("hidden", "opset"), [(1, 7), (2, 14), (17, 22)])
def test_weights_that_are_computed(tools: Any, op: str, hidden: int, opset: int) -> None:
    """Matrices, biases and lengths come as inputs, over a history and a list of any size."""
    gates = GATES[op] * hidden
    shapes: dict[str, tuple[str, list[Any]]] = {
        "x": ("float32", ["T", "N", INPUTS]),
        "W": ("float32", [2, gates, INPUTS]),
        "R": ("float32", [2, gates, hidden]),
        "B": ("float32", [2, 2 * gates]),
        "lengths": ("int32", ["N"]),
    }
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    random = np.random.default_rng(hidden)
    for reset in (0, 1) if op == "GRU" else (None,):
        extra = {} if reset is None else {"linear_before_reset": reset}
        node = make_node(op, list(shapes), outputs, hidden_size=hidden, direction="bidirectional", **extra)
        model = tools.onnx_model([node], shapes, outputs, opset=opset)
        compiled = tools.Compiled(convert(model, candidates="N").graph)
        for n, steps in ((1, 1), (140, 6), (3, 9)):
            feeds = {
                name: random.normal(0, 0.5, [{"N": n, "T": steps}.get(dim, dim) for dim in shape]).astype(np.float32)
                for name, (dtype, shape) in shapes.items()
                if dtype == "float32"
            }
            feeds["lengths"] = random.integers(1, steps + 1, n).astype(np.int32)
            expected = tools.run_onnxruntime(model, feeds)
            for name, array in compiled(feeds).items():
                assert array.shape == expected[name].shape
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=3e-6, err_msg=f"{name} at {n}, {steps}")
