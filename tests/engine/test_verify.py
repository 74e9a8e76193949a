"""Verification: right models pass, planted faults are found and named, and what was not compared is a failure."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rerank_engine import convert, load
from rerank_engine.errors import CompileError, ConversionError, InputError
from rerank_engine.graph import Graph
from rerank_engine.model import Model
from rerank_engine.ops.registry import OPERATORS
from rerank_engine.passes import PASSES
from rerank_engine.verify import SourceLayer, SourceRunner, VerificationReport, onnx_runners, sources, verify
from rerank_engine.verify.compare import NOISE_FACTOR, TOLERANCE, compare, kendall_tau, top_k_agreement
from rerank_engine.verify.inputs import InputCase, generate_cases
from rerank_engine.verify.isolated import IsolatedRunner
from rerank_engine.verify.onnx_runners import OnnxReferenceRunner, OnnxRuntimeRunner
from rerank_engine.verify.truth import Noise, compute_truth, measure_noise
from rerank_engine.verify.uses import find_uses

Array = NDArray[Any]
ITEMS, EVENTS, HISTORY = 11, 7, 5


def make_proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    """An item, a masked history that is pooled, dense features, two layers."""
    random = np.random.default_rng(5)
    weights: dict[str, Array] = {
        "items": random.normal(size=(ITEMS, 4)).astype(np.float32),
        "events": random.normal(size=(EVENTS, 4)).astype(np.float32),
        "nothing": np.zeros((), np.float32),
        "first": np.array([0], np.int64),
        "last": np.array([1], np.int64),
        "w1": random.normal(size=(7, 6)).astype(np.float32),
        "b1": random.normal(size=6).astype(np.float32),
        "w2": random.normal(size=(6, 1)).astype(np.float32),
        "b2": random.normal(size=1).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["items", "item"], ["item_vector"], "embed_item"),
        helper.make_node("Gather", ["events", "history"], ["event_vectors"], "embed_history"),
        helper.make_node("Where", ["mask", "event_vectors", "nothing"], ["masked"], "mask_history"),
        helper.make_node("ReduceSum", ["masked", "first"], ["pooled"], "pool", keepdims=0),
        helper.make_node("Mul", ["item_vector", "pooled"], ["interest"], "interact"),
        helper.make_node("Concat", ["interest", "dense"], ["features"], "join", axis=1),
        helper.make_node("Gemm", ["features", "w1", "b1"], ["product"], "hidden_layer"),
        helper.make_node("Tanh", ["product"], ["hidden"], "hidden_activation"),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["logit"], "last_layer"),
        helper.make_node("Squeeze", ["logit", "last"], ["score"], "flatten"),
    ]
    inputs: dict[str, tuple[int, Sequence[Any]]] = {
        "item": (TensorProto.INT64, ["N"]),
        "history": (TensorProto.INT64, [HISTORY]),
        "mask": (TensorProto.BOOL, [HISTORY, 1]),
        "dense": (TensorProto.FLOAT, ["N", 3]),
    }
    return make_proto(nodes, inputs, {"score": ["N"]}, weights)


def one_node(op: str, shape: Sequence[Any] = ("N",), **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["score"], f"the_{op.lower()}", **attributes)
    return make_proto([node], {"x": (TensorProto.FLOAT, shape)}, {"score": shape}, {})


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code of sound operators; tests that plant a fault keep theirs apart."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture
def check(shared_cache: Path) -> Callable[..., VerificationReport]:
    """Verify with onnxruntime in this process."""

    def run(source: onnx.ModelProto, model: Model | None = None, **options: Any) -> VerificationReport:
        if "runners" not in options:
            options["runners"] = [OnnxRuntimeRunner(source)]
        options.setdefault("lengths", (0, 1, 7))
        options.setdefault("cache_dir", shared_cache)
        return verify(source, model, **options)

    return run


class Altered:
    """A source that answers something else than it should."""

    def __init__(self, source: onnx.ModelProto, change: Callable[[dict[str, Array]], Mapping[str, Array]]) -> None:
        self._inner = OnnxRuntimeRunner(source)
        self._change = change
        self.name = "altered"
        self.outputs = self._inner.outputs
        self.layers = self._inner.layers

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._change(self._inner.run(inputs))

    def close(self) -> None:
        self._inner.close()


class Broken(Altered):
    """A source that never runs."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        raise RuntimeError("out of order")


def texts(report: VerificationReport) -> str:
    return "\n".join(report.problems)


# --- what is right passes ----------------------------------------------------------------------------------


def test_a_right_model_passes_with_evidence(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, layers=True)
    assert report.passed, texts(report)
    assert report.first_difference is None
    assert (report.backend, report.policies, report.notes) == ("cpu", (), ())
    assert report.max_scaled_error is not None
    assert report.max_scaled_error < TOLERANCE
    assert report.min_kendall_tau == 1.0
    assert report.min_top_k_agreement == {1: 1.0, 5: 1.0}
    kinds = {case.name.removeprefix("N=7: "): case.outcome for case in report.cases if case.name.startswith("N=7")}
    refused = {f"{name} {where}" for name in ("item", "history") for where in ("last+1", "below")}
    assert {name for name, outcome in kinds.items() if outcome == "refused"} == refused
    compared = {name for name, outcome in kinds.items() if outcome == "compared"}
    assert {"mix", "ids first", "ids last", "mask none", "mask all", "number large", "number nan"} <= compared
    assert [layer.value for layer in report.layers] == [
        *("item_vector", "event_vectors", "masked", "pooled", "interest"),
        *("features", "product", "hidden", "logit", "score"),
    ]
    assert all(layer.cases >= 20 and layer.outside == 0 for layer in report.layers)
    assert report.layers[6].node == "hidden_layer"


def test_the_framework_is_found_and_runs_in_its_own_process(proto: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    report = verify(path, lengths=[3], cache_dir=tmp_path)
    assert report.passed, texts(report)
    assert [name.split()[0] for name in report.sources] == ["onnxruntime", "onnx.reference"]
    assert {case.source.split()[0] for case in report.cases} == {"onnxruntime"}


def test_the_same_seed_gives_the_same_bytes(proto: onnx.ModelProto, check: Any) -> None:
    first, again, other = (json.dumps(check(proto, seed=seed, lengths=[7]).to_dict()) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_model_of_fixed_shape(check: Any) -> None:
    report = check(one_node("Sigmoid", (1, 4)))
    assert report.passed, texts(report)
    assert {case.name.partition(":")[0] for case in report.cases} == {"fixed"}


def test_saturated_and_tied_scores_are_no_difference(check: Any) -> None:
    report = check(one_node("Sigmoid"), lengths=[1, 50])
    assert report.passed, texts(report)
    zero = next(case for case in report.cases if case.name == "N=50: number zero")
    assert zero.outputs[0].kendall_tau is None
    assert zero.outputs[0].top_k_agreement == {1: 1.0, 5: 1.0, 10: 1.0}


def test_rounding_that_a_model_blows_up_is_no_difference(check: Any) -> None:
    nodes = [
        helper.make_node("Add", ["x", "far"], ["moved"], "move"),
        helper.make_node("Sub", ["moved", "far"], ["score"], "back"),
    ]
    weights = {"far": np.array(3_000.3, np.float32)}
    source = make_proto(nodes, {"x": (TensorProto.FLOAT, ["N"])}, {"score": ["N"]}, weights)
    report = check(source, without_sample(source))
    assert report.passed, texts(report)
    assert max(case.outputs[0].engine.scaled_error for case in report.cases) > 10 * TOLERANCE


# --- planted faults are found and named --------------------------------------------------------------------


def plant(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    monkeypatch.setitem(OPERATORS, name, replace(OPERATORS[name], **parts))


def without_sample(source: onnx.ModelProto) -> Model:
    """A model whose machine code is not checked when it is loaded."""
    return Model(replace(convert(source).graph, sample=None))


@pytest.mark.parametrize("has_sample", [True, False])
def test_wrong_machine_code_of_an_operator(
    proto: onnx.ModelProto, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_sample: bool
) -> None:
    plant(monkeypatch, "Mul", pointwise=OPERATORS["Add"].pointwise)
    report = check(proto, convert(proto) if has_sample else without_sample(proto), cache_dir=tmp_path)
    assert not report.passed
    found = report.first_difference
    assert found is not None
    assert (found.stage, found.value, found.operator) == ("machine code", "interest", "Mul")
    assert (found.source_node, found.source_operator) == ("interact", "Mul")
    assert {one.name for one in found.inputs} == {"item_vector", "pooled"}
    assert all(one.minimum is not None and one.minimum < one.maximum for one in found.inputs)
    assert "interact" in found.explain()
    assert "source differs" not in texts(report)
    told = "the self-check failed" if has_sample else "the compiled engine differs from float64"
    assert told in texts(report)


def test_an_operator_that_is_misunderstood(
    proto: onnx.ModelProto, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = OPERATORS["Sigmoid"]
    plant(monkeypatch, "Tanh", reference=wrong.reference, pointwise=wrong.pointwise)
    report = check(proto, cache_dir=tmp_path)
    found = report.first_difference
    assert found is not None
    assert (found.stage, found.value, found.source_node) == ("conversion", "hidden", "hidden_activation")
    assert "the source differs from the converted graph" in texts(report)


def test_a_changed_weight(proto: onnx.ModelProto, check: Any) -> None:
    model = without_sample(proto)
    (name,) = (name for name, array in model.graph.constants.items() if array.shape == (ITEMS, 4))
    table = model.graph.constants[name].copy()
    table[ITEMS - 1, 2] += 0.01
    changed = Model(replace(model.graph, constants={**model.graph.constants, name: table}))
    report = check(proto, changed)
    found = report.first_difference
    assert found is not None
    assert (found.stage, found.value, found.source_node) == ("model", "item_vector", "embed_item")
    assert "ids last" in texts(report)
    assert check(proto, model).passed


def test_a_fault_of_a_pass(proto: onnx.ModelProto, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_tanh(graph: Graph) -> Graph:
        return replace(graph, nodes=[replace(node, op="Relu") if node.op == "Tanh" else node for node in graph.nodes])

    monkeypatch.setitem(PASSES, "fold_constants", break_tanh)
    found = check(proto).first_difference
    assert found is not None
    assert (found.stage, found.value) == ("passes", "hidden")
    assert (found.source_node, found.source_operator) == ("hidden_activation", "Tanh")


def test_the_model_of_another_source(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, convert(one_node("Tanh")))
    assert "the model takes the inputs x; the source takes dense, history, item, mask" in report.problems
    assert not report.passed


def test_layers_that_do_not_compile_are_told(
    proto: onnx.ModelProto, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CompileError("too large")

    monkeypatch.setattr("rerank_engine.verify.localise.load_with_outputs", fail)
    report = check(proto, layers=True)
    assert "no layer was compared: source and graph name no value together, or did not run" in report.problems
    assert report.notes == ("layers of the machine code could not be had: CompileError: too large",)


def test_a_model_file_is_read(proto: onnx.ModelProto, check: Any, tmp_path: Path) -> None:
    convert(proto).save(tmp_path / "model.rrm")
    assert check(proto, tmp_path / "model.rrm").passed


def test_a_fault_of_stored_code_only(proto: onnx.ModelProto, check: Any, tmp_path: Path) -> None:
    model = without_sample(proto)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, "Mul", pointwise=OPERATORS["Add"].pointwise)
        load(model, cache_dir=tmp_path)
    report = check(proto, model, cache_dir=tmp_path)
    found = report.first_difference
    assert found is not None
    assert (found.stage, found.value) == ("machine code", "score")
    assert any("only in the fused function" in note for note in report.notes)


def test_a_layer_that_differs_although_the_output_does_not(proto: onnx.ModelProto, check: Any) -> None:
    def change(values: dict[str, Array]) -> dict[str, Array]:
        return {**values, "pooled": values["pooled"] + np.float32(0.5)}

    options = {"runners": [Altered(proto, change)], "lengths": [7]}
    assert check(proto, **options).passed
    report = check(proto, **options, layers=True)
    assert not report.passed
    assert report.first_difference is not None
    assert report.first_difference.source_node == "pool"
    assert "layer 'pooled' (ReduceSum 'pool')" in texts(report)


def test_a_wrong_number_in_one_row_is_found(proto: onnx.ModelProto, check: Any) -> None:
    def change(values: dict[str, Array]) -> dict[str, Array]:
        score = values["score"].copy()
        score[3:4] += np.float32(1e-3)
        return {**values, "score": score}

    report = check(proto, runners=[Altered(proto, change)], lengths=[7])
    assert "1 of 7 elements differ" in texts(report)
    assert report.first_difference is not None
    assert report.first_difference.source_node == "flatten"


# --- missing evidence is a failure -------------------------------------------------------------------------


def test_a_source_that_does_not_run(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, runners=[Broken(proto, dict), Broken(proto, dict)])
    assert not report.passed
    assert "N=7: mix: the source did not run: altered: out of order; altered: out of order" in report.problems
    empty = "empty list: the source did not run: altered: out of order; altered: out of order;"
    assert any(text.startswith(empty) for text in report.policies)
    assert "no number of the source was compared" in report.problems
    assert report.max_abs_error is None
    assert report.first_difference is None


def test_no_framework_at_all(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, runners=[])
    assert not report.passed
    assert report.sources == ()
    assert "no framework runs the source" in texts(report)


def test_a_source_that_nothing_runs(proto: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"something")
    report = verify(tmp_path / "model.pt", convert(proto), lengths=[1], cache_dir=tmp_path)
    assert not report.passed
    assert "the source does not run: nothing here runs the source" in texts(report)


def test_the_next_framework_is_asked_and_named(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, runners=[Broken(proto, dict), OnnxReferenceRunner(proto)], lengths=[7])
    assert report.passed, texts(report)
    assert {case.source.split()[0] for case in report.cases if case.outcome == "compared"} == {"onnx.reference"}
    assert report.notes
    assert report.notes[0].endswith("was asked where altered: out of order")


def test_without_onnxruntime(proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runners, "find_spec", lambda _: None)
    report = verify(proto, lengths=[7], cache_dir=tmp_path)
    assert report.passed, texts(report)
    assert [name.split()[0] for name in report.sources] == ["onnx.reference"]


def test_empty_lists_alone_prove_nothing(proto: onnx.ModelProto, check: Any) -> None:
    report = check(proto, lengths=[0])
    assert [case.outcome for case in report.cases] == ["compared"]
    assert report.problems == ("no number of the source was compared",)
    assert not report.passed


def test_a_missing_output(proto: onnx.ModelProto, check: Any) -> None:
    def change(values: dict[str, Array]) -> dict[str, Array]:
        return {name: array for name, array in values.items() if name != "score"}

    assert "output 'score': the source gave no array for it" in texts(check(proto, runners=[Altered(proto, change)]))


def test_an_output_that_the_model_lacks(proto: onnx.ModelProto, check: Any) -> None:
    two = onnx.ModelProto()
    two.CopyFrom(proto)
    two.graph.output.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["N", 6]))
    assert "the model has no output 'hidden'" in texts(check(two, convert(proto)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda score: score[:, None], r"shape (7, 1), expected (7,)"),
        (lambda score: score.astype(np.int64), "holds integers, expected floats"),
        (lambda score: score[:-1], r"shape (6,), expected (7,)"),
    ],
)
def test_another_shape_or_kind(proto: onnx.ModelProto, check: Any, change: Any, told: str) -> None:
    runner = Altered(proto, lambda values: {**values, "score": change(values["score"])})
    assert told in texts(check(proto, runners=[runner], lengths=[7]))


def test_no_layer_in_common(proto: onnx.ModelProto, check: Any) -> None:
    class Nameless(Altered):
        def __init__(self) -> None:
            super().__init__(proto, lambda values: {"score": values["score"]})
            self.layers: Sequence[SourceLayer] = ()

    report = check(proto, runners=[Nameless()], lengths=[7], layers=True)
    assert "no layer was compared" in texts(report)
    assert check(proto, runners=[Nameless()], lengths=[7]).passed


def test_numpy_in_place_of_machine_code(
    proto: onnx.ModelProto, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CompileError("no memory may be executed")

    monkeypatch.setattr("rerank_engine.codegen.compile.compile_graph", fail)
    report = check(proto, cache_dir=tmp_path)
    assert report.backend == "numpy"
    assert "the compiled engine did not run: no machine code: no memory may be executed" in report.problems


def test_inputs_that_everyone_refuses(check: Any) -> None:
    nodes = [
        helper.make_node("Mul", ["id", "two"], ["doubled"], "double"),
        helper.make_node("Add", ["doubled", "base"], ["index"], "shift"),
        helper.make_node("Gather", ["table", "index"], ["score"], "embed"),
    ]
    weights: dict[str, Array] = {
        "two": np.array(2, np.int64),
        "base": np.array(20, np.int64),
        "table": np.arange(40, dtype=np.float32),
    }
    source = make_proto(nodes, {"id": (TensorProto.INT64, ["N"])}, {"score": ["N"]}, weights)
    report = check(source, lengths=[50])
    assert not report.passed
    assert "N=50: mix: these inputs should be right, but everyone refuses them" in texts(report)
    assert "vocabularies={input: count}" in texts(report)
    assert check(source, lengths=[50], vocabularies={"id": 10}).passed


# --- NaN, and ids outside their tables ---------------------------------------------------------------------


def test_a_source_that_drops_nan_is_told_as_a_policy(proto: onnx.ModelProto, check: Any) -> None:
    runner = Altered(proto, lambda values: {**values, "score": np.nan_to_num(values["score"])})
    report = check(proto, runners=[runner], lengths=[7])
    assert report.passed, texts(report)
    assert report.policies == ("output 'score': altered gives numbers where NaN went in",)


def test_an_engine_that_drops_nan_differs(check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quiet(e: Any, args: Any, _: Any) -> Any:
        return e.b.select(e.b.fcmp_ordered("ord", args[0], args[0]), args[0], e.like(args[0], 0.0))

    plant(monkeypatch, "Abs", pointwise=quiet)
    negative = check(one_node("Abs"), without_sample(one_node("Abs")), lengths=[7], cache_dir=tmp_path)
    assert any(text.startswith("N=7: number nan: output 'score': the compiled") for text in negative.problems)


def test_an_infinity_for_a_number_differs() -> None:
    truth = np.array([1.0, np.inf, -np.inf, np.nan])
    for at, value in itertools.product(range(4), (2.0, np.inf, -np.inf, np.nan)):
        actual = truth.copy()
        actual[at] = value
        same = value == truth[at] or (math.isnan(value) and at == 3)
        assert compare("x", actual, truth).passed == same
    assert compare("x", np.array([1.0, np.inf, -np.inf, 0.0]), truth, may_drop_nans=True).dropped_nans == 1


def test_a_source_that_answers_ids_outside_the_table(proto: onnx.ModelProto, check: Any) -> None:
    class Wrapping(Altered):
        def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            rows = {"item": ITEMS, "history": EVENTS}
            return super().run(
                {name: array % rows.get(name, 1) if name in rows else array for name, array in inputs.items()}
            )

    report = check(proto, runners=[Wrapping(proto, dict)], lengths=[7])
    assert report.passed, texts(report)
    assert "id 11 in input 'item': altered answers, the model refuses" in report.policies
    assert len(report.policies) == 4


def test_only_one_of_ours_refuses(proto: onnx.ModelProto, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def clamp(inputs: Sequence[Array], *_: Any) -> list[Array]:
        return [inputs[0][np.clip(inputs[1], 0, len(inputs[0]) - 1)]]

    plant(monkeypatch, "Gather", reference=clamp)
    assert "N=7: item last+1: only the engine refuses these inputs" in texts(check(proto, lengths=[7]))


def test_a_declared_unknown_row(proto: onnx.ModelProto, check: Any) -> None:
    graph = convert(proto).graph
    nodes = [
        replace(node, attributes={**node.attributes, "unknown_row": 0}) if "item" in node.inputs else node
        for node in graph.nodes
    ]
    report = check(proto, Model(replace(graph, nodes=nodes, unknown_rows={"item": 0})), lengths=[7])
    assert report.passed, texts(report)
    assert any("takes the row for unknown ids" in text for text in report.policies)


# --- inputs ------------------------------------------------------------------------------------------------


def cases_of(source: onnx.ModelProto, **options: Any) -> dict[str, InputCase]:
    return {case.name: case for case in generate_cases(convert(source, skip_passes=tuple(PASSES)).graph, **options)}


def test_inputs_cover_what_they_promise(proto: onnx.ModelProto) -> None:
    cases = cases_of(proto)
    assert {case.sizes["N"] for case in cases.values()} == {0, 1, 7, 50}
    assert [name for name in cases if name.startswith("N=0")] == ["N=0: mix"]
    mix = cases["N=50: mix"].inputs
    assert set(mix["item"].tolist()) == set(range(ITEMS))
    assert set(mix["mask"].reshape(-1).tolist()) == {True, False}
    assert set(cases["N=7: ids first"].inputs["item"].tolist()) == {0}
    assert set(cases["N=7: ids last"].inputs["history"].tolist()) == {EVENTS - 1}
    assert set(cases["N=7: ids minus one"].inputs["item"].tolist()) == {-1}
    assert not cases["N=7: mask none"].inputs["mask"].any()
    assert cases["N=7: mask all"].inputs["mask"].all()
    assert (cases["N=7: number negative"].inputs["dense"] <= 0).all()
    assert np.abs(cases["N=50: number large"].inputs["dense"]).max() > 1e4
    assert np.isnan(cases["N=7: number nan"].inputs["dense"]).all(axis=1).sum() == 1
    assert sorted(cases["N=7: item last+1"].inputs["item"])[-1] == ITEMS
    assert sorted(cases["N=7: item below"].inputs["item"])[0] == -ITEMS - 1
    assert cases["N=7: history last+1"].outside == ("history", EVENTS)


def test_inputs_are_the_same_bytes_for_a_seed(proto: onnx.ModelProto) -> None:
    def content(seed: int) -> bytes:
        return b"".join(
            array.tobytes() for case in cases_of(proto, seed=seed).values() for array in case.inputs.values()
        )

    assert content(1) == content(1)
    assert content(1) != content(2)


def test_offsets_of_joined_tables_are_read_off_the_graph() -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["whole"], "whole", to=TensorProto.INT64),
        helper.make_node("Add", ["whole", "offsets"], ["index"], "offset"),
        helper.make_node("Gather", ["table", "index"], ["score"], "embed"),
    ]
    weights: dict[str, Array] = {
        "offsets": np.array([0, 3, 5], np.int64),
        "table": np.arange(9, dtype=np.float32),
    }
    source = make_proto(nodes, {"ids": (TensorProto.INT32, ["N", 3])}, {"score": ["N", 3]}, weights)
    cases = cases_of(source, lengths=[7])
    assert cases["N=7: ids last"].inputs["ids"].tolist() == [[8, 5, 3]] * 7
    assert cases["N=7: ids minus one"].inputs["ids"].tolist() == [[-1, -4, -6]] * 7
    name, wrong = cases["N=7: ids last+1"].outside or ("", 0)
    assert name == "ids"
    assert wrong in (9, 6, 4)
    assert cases["N=7: ids last+1"].inputs["ids"].dtype == np.int32


def test_a_length_that_is_compared_is_a_mask_of_whole_numbers() -> None:
    nodes = [
        helper.make_node("Less", ["places", "length"], ["is_there"], "inside"),
        helper.make_node("Where", ["is_there", "x", "nothing"], ["score"], "mask"),
    ]
    weights: dict[str, Array] = {"places": np.arange(6), "nothing": np.zeros((), np.float32)}
    inputs = {"length": (TensorProto.INT64, ["N", 1]), "x": (TensorProto.FLOAT, ["N", 6])}
    source = make_proto(nodes, inputs, {"score": ["N", 6]}, weights)
    uses = {use.value.name: use for use in find_uses(convert(source).graph)}
    assert (uses["length"].use, uses["length"].largest, uses["x"].use) == ("mask", 6, "number")
    assert set(cases_of(source, lengths=[7])["N=7: mask all"].inputs["length"].reshape(-1)) == {6}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lengths": []}, "at least one"),
        ({"lengths": [-1]}, "none of them negative"),
        ({"lengths": "7"}, "whole numbers"),
        ({"lengths": [1.5]}, "whole numbers"),
        ({"seed": -1}, "seed=-1"),
        ({"tolerance": 0.0}, "tolerance=0"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"vocabularies": {"user": 3}}, "vocabulary of 'user'"),
        ({"vocabularies": {"item": 0}}, "vocabulary of 'item'"),
    ],
)
def test_wrong_options(proto: onnx.ModelProto, check: Any, options: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check(proto, **options)


def test_a_source_that_cannot_be_converted(check: Any) -> None:
    with pytest.raises(ConversionError, match="NonMaxSuppression"):
        check(one_node("NonMaxSuppression"), runners=[])


# --- truth and noise ---------------------------------------------------------------------------------------


def test_the_truth_is_float64_with_the_range_of_float32(proto: onnx.ModelProto) -> None:
    graph = convert(one_node("Exp")).graph
    x = np.array([0.1, 100.0, -100.0, np.nan], np.float32)
    score = compute_truth(graph, {"x": x}, {"N": 4})["score"]
    assert score.dtype == np.float64
    assert score[0] == np.exp(np.float64(x[0]))
    assert score[1] == np.inf
    assert 0 < score[2] < 1e-43
    assert np.isnan(score[3])


def test_noise_is_the_rounding_of_float32_and_keeps_ties() -> None:
    graph = convert(one_node("Tanh")).graph
    x = np.repeat(np.linspace(-2, 2, 50), 2).astype(np.float32)
    sizes = {"N": len(x)}
    truth = compute_truth(graph, {"x": x}, sizes)
    noise = measure_noise(graph, {"x": x}, sizes, truth)["score"]
    assert not noise.unstable.any()
    assert 2**-26 < noise.spread.max() < 2**-21
    assert np.array_equal(noise.spread[::2], noise.spread[1::2])
    assert np.array_equal(noise.spread, measure_noise(graph, {"x": x}, sizes, truth)["score"].spread)


def test_what_rounding_decides_is_unstable_and_exact_ties_are_not() -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["left"], "left"),
        helper.make_node("Tanh", ["y"], ["right"], "right"),
        helper.make_node("Greater", ["left", "right"], ["more"], "compare"),
        helper.make_node("Cast", ["more"], ["score"], "number", to=TensorProto.FLOAT),
    ]
    float_input = (TensorProto.FLOAT, ["N"])
    graph = convert(
        make_proto(nodes, {"x": float_input, "y": float_input}, {"score": ["N"]}, {}), skip_passes=tuple(PASSES)
    ).graph
    x = np.linspace(0.3, 0.6, 200).astype(np.float32)
    near, sizes = np.nextafter(x, np.float32(0)), {"N": 200}
    for y, unstable in ((near, True), (x, False), (x - np.float32(0.1), False)):
        truth = compute_truth(graph, {"x": x, "y": y}, sizes)
        found = measure_noise(graph, {"x": x, "y": y}, sizes, truth)["more"]
        assert found.unstable.any() == unstable


def test_an_error_within_the_noise_passes_and_one_beyond_does_not() -> None:
    truth, spread = np.array([1.0, 100.0]), np.array([1e-3, 0.0])
    noise = Noise(spread, np.zeros(2, np.bool_))
    for error, passed in ((0.9 * NOISE_FACTOR * 1e-3, True), (1.2 * NOISE_FACTOR * 1e-3, False)):
        assert compare("x", truth + np.array([error, 0.0]), truth, noise=lambda: noise).passed == passed
        assert not compare("x", truth + np.array([0.0, error]), truth, noise=lambda: noise).passed


def test_what_rounding_decides_proves_nothing() -> None:
    truth = np.array([3, 5])
    noise = Noise(np.zeros(2), np.array([True, False]))
    found = compare("x", np.array([4, 5]), truth, noise=lambda: noise)
    assert (found.passed, found.undecided) == (True, 1)
    assert not compare("x", np.array([3, 6]), truth, noise=lambda: noise).passed


def test_as_near_as_an_implementation_that_passed_is_near_enough() -> None:
    truth = np.array([1.0, 2.0])
    actual = truth + np.array([0.0, 1e-4])
    assert not compare("x", actual, truth).passed
    assert compare("x", actual, truth, accepted_error=1.1e-4).passed
    assert not compare("x", truth + np.array([0.0, 1e-3]), truth, accepted_error=1.1e-4).passed


# --- ranks -------------------------------------------------------------------------------------------------


def tau_by_definition(left: Sequence[float], right: Sequence[float]) -> float | None:
    pairs = list(itertools.combinations(range(len(left)), 2))
    first = [np.sign(left[i] - left[j]) for i, j in pairs]
    second = [np.sign(right[i] - right[j]) for i, j in pairs]
    weight = sum(map(abs, first)) * sum(map(abs, second))
    return float(np.dot(first, second) / math.sqrt(weight)) if weight else None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=25))
def test_kendall_tau_is_the_definition(pairs: list[tuple[int, int]]) -> None:
    left, right = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    found, expected = kendall_tau(np.array(left), np.array(right)), tau_by_definition(left, right)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found == pytest.approx(expected, abs=1e-12)
        assert kendall_tau(np.array(right), np.array(left)) == pytest.approx(found, abs=1e-12)


def test_kendall_tau_with_infinities() -> None:
    scores = np.array([-np.inf, -np.inf, 0.0, np.inf])
    assert kendall_tau(scores, scores) == 1.0
    assert kendall_tau(scores, -scores) == -1.0


def test_top_k_agreement_and_ties() -> None:
    left = np.array([5.0, 4.0, 3.0, 2.0])
    assert top_k_agreement(left, -left, 1) == 0.0
    assert top_k_agreement(left, np.array([5.0, 3.0, 4.0, 2.0]), 2) == 0.5
    assert top_k_agreement(np.zeros(4), np.arange(4.0), 1) == 1.0
    near = np.array([1.0, 1.0 - 1e-7, 0.0])
    assert top_k_agreement(near, near[[1, 0, 2]], 1) == 0.0
    assert top_k_agreement(near, near[[1, 0, 2]], 1, tied=1e-6) == 1.0


# --- frameworks --------------------------------------------------------------------------------------------

RUNNERS = """
import os, sys, time

class Runner:
    name, outputs, layers = "odd", ["y"], []

    def __init__(self, how):
        if how == "no start":
            raise ValueError("cannot load")
        print("chatter that must not reach the pipe")

    def run(self, inputs):
        if inputs["x"][0] == 1:
            print("a last word", file=sys.stderr, flush=True)
            os._exit(3)
        if inputs["x"][0] == 2:
            raise KeyError("refused")
        if inputs["x"][0] == 3:
            time.sleep(60)
        print("more chatter", flush=True)
        return {"y": inputs["x"] * 2}

    def close(self):
        pass
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "odd_runners.py").write_text(RUNNERS)
    monkeypatch.syspath_prepend(tmp_path)
    import odd_runners  # type: ignore[import-not-found]

    opened = []

    def make(how: str = "", timeout_s: float = 60.0) -> IsolatedRunner:
        opened.append(IsolatedRunner("odd", odd_runners.Runner, how, outputs=["y"], layers=[], timeout_s=timeout_s))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def x_of(number: float) -> dict[str, Array]:
    return {"x": np.array([number, 5.0])}


def test_a_framework_that_ends_its_process_is_started_again(odd: Any) -> None:
    runner = odd()
    assert isinstance(runner, SourceRunner)
    assert runner.run(x_of(0))["y"].tolist() == [0.0, 10.0]
    with pytest.raises(ConversionError, match="its process ended, exit code 3: a last word"):
        runner.run(x_of(1))
    with pytest.raises(ConversionError, match="KeyError: 'refused'"):
        runner.run(x_of(2))
    assert runner.run(x_of(4))["y"].tolist() == [8.0, 10.0]
    runner.close()
    assert runner.run(x_of(5))["y"].tolist() == [10.0, 10.0]


def test_a_framework_that_hangs(odd: Any) -> None:
    runner = odd(timeout_s=5.0)
    runner.run(x_of(0))
    runner._timeout_s = 0.5
    with pytest.raises(ConversionError, match=r"no answer within 0\.5 s"):
        runner.run(x_of(3))


def test_a_framework_that_does_not_start(odd: Any) -> None:
    with pytest.raises(ConversionError, match="ValueError: cannot load"):
        odd("no start").run(x_of(0))


def test_frameworks_can_be_added(proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_OPENERS", list(sources._OPENERS))
    mine = OnnxReferenceRunner(proto)
    sources.register_source(lambda source: source == "mine", lambda _: (mine,))
    assert sources.open_source("mine") == (mine,)
    other = tmp_path / "other.pt"
    other.write_bytes(b"something")
    with pytest.raises(ConversionError, match=r"nothing here runs the source .*other\.pt; known: ONNX"):
        sources.open_source(other)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ConversionError, match="cannot read the ONNX model"):
        sources.open_source(path)


def test_both_onnx_frameworks_name_the_same_layers(proto: onnx.ModelProto) -> None:
    inputs = cases_of(proto, lengths=[7])["N=7: mix"].inputs
    first, second = OnnxRuntimeRunner(proto), OnnxReferenceRunner(proto)
    assert list(first.layers) == list(second.layers)
    left, right = first.run(inputs), second.run(inputs)
    for layer in first.layers:
        np.testing.assert_allclose(left[layer.value], right[layer.value], rtol=1e-5, atol=1e-5)
