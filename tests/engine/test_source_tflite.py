"""TFLite files: TensorFlow's own interpreter's numbers, through ONNX Runtime and through the engine; refusals; damage.

The files and the interpreter's outputs are made by ``data/make_tensorflow_models.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from rerank_engine import convert, load
from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.tflite import tflite_to_onnx
from rerank_engine.importers.tflite.handlers import HANDLERS
from rerank_engine.importers.tflite.reader import read_tflite
from rerank_engine.importers.tflite.schema import OPERATORS
from rerank_engine.reference import evaluate

Array = NDArray[Any]
DATA = Path(__file__).parent / "data"

INTEGER_STEPS = 2
"""By how many steps of the output's scale a quantised operator may differ: the interpreter rounds in between."""


def load_groups(name: str) -> dict[str, dict[str, Array]]:
    """Arrays of an archive by group and name."""
    groups: dict[str, dict[str, Array]] = {}
    with np.load(DATA / name) as archive:
        index, data = json.loads(archive["index"].tobytes()), archive["data"].tobytes()
    for key, (dtype, shape, place) in index.items():
        group, _, rest = key.partition("/")
        count = int(np.prod(shape))
        groups.setdefault(group, {})[rest] = np.frombuffer(data, np.dtype(dtype), count, place).reshape(shape)
    return groups


def pick(group: Mapping[str, Array], length: int, kind: str) -> dict[str, Array]:
    start = f"{length}/{kind}/"
    return {name.removeprefix(start): array for name, array in group.items() if name.startswith(start)}


OPERATOR_CASES = load_groups("tflite_operators.npz")
MODELS = load_groups("tflite_models.npz")
REFUSED = load_groups("tflite_refused.npz")

LOOSE = {
    # The interpreter rounds the inputs of each layer to 8 bits, which the file does not ask for.
    "mlp_dynamic": 0.02,
    "mlp_int8": 0.02,
}

BEYOND_THE_IMPORTER = {
    # Broadcasting of shapes that hold the number of candidates.
    "broadcast_args",
}


def output_step(model: onnx.ModelProto) -> float:
    """Scale of a quantised output, or 0."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    last = makers[model.graph.output[0].name]
    while last.op_type == "Identity":
        last = makers[last.input[0]]
    is_quantised = last.op_type == "DequantizeLinear"
    return float(onnx.numpy_helper.to_array(constants[last.input[1]])) if is_quantised else 0.0


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array], label: str, absolute: float = 0.0) -> None:
    assert set(found) == set(expected), label
    for name, array in expected.items():
        assert found[name].shape == array.shape, f"{label}: {name}"
        assert found[name].dtype == array.dtype, f"{label}: {name}"
        if array.dtype.kind == "f":
            magnitude = float(np.abs(array).max(initial=1.0))
            np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=absolute + 2e-6 * magnitude, err_msg=label)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=label)


# --- operators ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OPERATOR_CASES)
def test_an_operator_computes_what_the_interpreter_computes(case: str, tools: Any) -> None:
    group = OPERATOR_CASES[case]
    model = tflite_to_onnx(group["model"].tobytes())
    absolute = INTEGER_STEPS * output_step(model)
    assert (absolute > 0) == case.endswith("_int8")
    for length in (1, 4):
        found = tools.run_onnxruntime(model, pick(group, length, "in"))
        assert_same(found, pick(group, length, "out"), f"{case} at {length}", absolute)


@pytest.mark.parametrize("case", sorted(set(OPERATOR_CASES) - BEYOND_THE_IMPORTER))
def test_an_operator_reaches_the_engine(case: str) -> None:
    group = OPERATOR_CASES[case]
    source = tflite_to_onnx(group["model"].tobytes())
    graph = convert(source).graph
    for length in (1, 4):
        found = evaluate(graph, pick(group, length, "in"))
        absolute = INTEGER_STEPS * output_step(source)
        assert_same(found, pick(group, length, "out"), f"{case} at {length}", absolute)


def test_every_handler_is_used_by_a_recorded_file() -> None:
    used = set()
    contents = [group["model"].tobytes() for group in OPERATOR_CASES.values()]
    contents += [(DATA / f"{name}.tflite").read_bytes() for name in MODELS]
    for content in contents:
        used |= {operator.name for graph in read_tflite(content).subgraphs for operator in graph.operators}
    assert not set(HANDLERS) - used
    assert set(HANDLERS) <= set(OPERATORS)


# --- whole models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_interpreter_computes(name: str, tools: Any) -> None:
    model = tflite_to_onnx(DATA / f"{name}.tflite")
    for length in (0, 1, 7, 200):
        found = tools.run_onnxruntime(model, pick(MODELS[name], length, "in"))
        assert_same(found, pick(MODELS[name], length, "out"), f"{name} at {length}", LOOSE.get(name, 0.0))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_in_the_engine(name: str, tmp_path: Path) -> None:
    source = tflite_to_onnx(DATA / f"{name}.tflite")
    convert(source).save(tmp_path / "model.rrm")
    engine = load(tmp_path / "model.rrm", cache_dir=tmp_path)
    for length in (0, 1, 7, 200):
        ((output, expected),) = pick(MODELS[name], length, "out").items()
        found = engine.run(pick(MODELS[name], length, "in"))
        assert isinstance(found, np.ndarray)
        assert_same({output: found}, {output: expected}, f"{name} at {length}", LOOSE.get(name, 0.0))


def test_quantised_weights_stay_close_to_the_float_model(tools: Any) -> None:
    feeds = pick(MODELS["mlp_float32"], 200, "in")
    (exact,) = pick(MODELS["mlp_float32"], 200, "out").values()
    (found,) = tools.run_onnxruntime(tflite_to_onnx(DATA / "mlp_dynamic.tflite"), feeds).values()
    (interpreted,) = pick(MODELS["mlp_dynamic"], 200, "out").values()
    # Only the weights are rounded here, so this is nearer to the float model than the interpreter is.
    assert np.abs(found - exact).max() < np.abs(interpreted - exact).max()


# --- names ------------------------------------------------------------------------------------------------------


def shapes(entries: Any) -> dict[str, list[Any]]:
    return {
        entry.name: [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in entries
    }


def test_names_come_from_the_signature_and_the_varying_dimension_counts_candidates() -> None:
    model = tflite_to_onnx(DATA / "mlp_float32.tflite", candidates="items")
    assert shapes(model.graph.input) == {"dense": ["items", 24], "item": ["items"]}
    assert [output.name for output in model.graph.output] == ["output_0"]
    assert model.graph.name == "mlp_float32"


def test_names_come_from_the_tensors_without_a_signature() -> None:
    model = tflite_to_onnx(DATA / "attention.tflite")
    assert shapes(model.graph.input) == {"item": ["N"], "history": [8]}


def test_a_first_dimension_can_have_a_name_of_its_own() -> None:
    model = tflite_to_onnx(DATA / "mlp_float32.tflite", dimensions={"dense": "T"})
    assert shapes(model.graph.input) == {"dense": ["T", 24], "item": ["N"]}
    with pytest.raises(ConversionError, match="no input is called 'color'; inputs: dense, item"):
        tflite_to_onnx(DATA / "mlp_float32.tflite", dimensions={"color": "T"})


def test_a_signature_is_asked_for_by_its_key() -> None:
    same = tflite_to_onnx(DATA / "mlp_float32.tflite", signature="serving_default")
    assert same == tflite_to_onnx(DATA / "mlp_float32.tflite")
    with pytest.raises(ConversionError, match="no signature is called 'train'; signatures: serving_default"):
        tflite_to_onnx(DATA / "mlp_float32.tflite", signature="train")


def test_the_result_is_deterministic_and_free_of_what_is_not_read() -> None:
    model = tflite_to_onnx(DATA / "gru_loop.tflite")
    assert model.SerializeToString() == tflite_to_onnx(DATA / "gru_loop.tflite").SerializeToString()
    read = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= read


def test_a_loop_holds_the_weights_of_its_body_once() -> None:
    loop, unrolled = ((DATA / f"gru_{form}.tflite") for form in ("loop", "unrolled"))
    sizes = [sum(len(t.raw_data) for t in tflite_to_onnx(path).graph.initializer) for path in (loop, unrolled)]
    assert sizes[0] < 1.1 * sizes[1]


# --- refusals ---------------------------------------------------------------------------------------------------

REASONS = {
    "activation": "ADD number 0.*SIGN_BIT",
    "custom": "CUSTOM 'MyOperator'",
    "int16": "type int16",
    "mean_of_integers": "MEAN number 0.*whole numbers",
    "new_option": "ABS number 0.*option 0 is not understood",
    "operator": "WHERE number 0",
    "shuffled_weights": "FULLY_CONNECTED number 0.*shuffled weights",
    "sparse": "sparse",
    "while_by_data": "WHILE number 0.*depends on the inputs.*unroll=True",
}


def test_every_refusal_has_its_reason() -> None:
    assert set(REASONS) == set(REFUSED)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_name(case: str) -> None:
    with pytest.raises(ConversionError, match=REASONS[case]):
        tflite_to_onnx(REFUSED[case]["model"].tobytes())


def test_an_unknown_operator_is_an_unsupported_one() -> None:
    with pytest.raises(UnsupportedOperatorError, match="not supported"):
        tflite_to_onnx(REFUSED["operator"]["model"].tobytes())


def test_sources_that_are_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="cannot read"):
        tflite_to_onnx(tmp_path / "missing.tflite")
    with pytest.raises(ConversionError, match="cannot read"):
        tflite_to_onnx(tmp_path)
    with pytest.raises(ConversionError, match="expected a path or bytes, got int"):
        tflite_to_onnx(3)  # type: ignore[arg-type]


# --- damage -----------------------------------------------------------------------------------------------------


def outcome(content: bytes) -> str:
    """``ok`` or ``refused``; any other error is not caught."""
    try:
        tflite_to_onnx(content)
    except ConversionError:
        return "refused"
    return "ok"


@pytest.mark.parametrize("name", ["wide_deep", "mlp_int8"])
def test_a_file_that_is_cut_off_is_refused(name: str) -> None:
    content = (DATA / f"{name}.tflite").read_bytes()
    for length in range(0, len(content), 97):
        outcome(content[:length])
    assert outcome(content[: len(content) // 2]) == "refused"
    assert outcome(content[:4]) == "refused"
    assert outcome(content) == "ok"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_give_only_typed_errors(seed: int) -> None:
    random = np.random.default_rng(seed)
    seen = set()
    names = ("attention", "gru_loop", "lstm_fused", "mlp_int8")
    content = (DATA / f"{names[seed]}.tflite").read_bytes()
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(int(random.integers(1, 4))):
            place = int(random.integers(8, len(damaged)))
            damaged[place] = int(random.choice([0, 1, 2, 127, 128, 255, random.integers(256)]))
        seen.add(outcome(bytes(damaged)))
    assert seen <= {"ok", "refused"}
    assert "refused" in seen


def test_a_small_file_that_repeats_itself_is_refused() -> None:
    """Twenty thousand operators that are one table with one long list of inputs: 400 million numbers to read."""
    count = 20_000
    builder = flatbuffers.Builder(0)

    def table(slots: Mapping[int, int]) -> int:
        builder.StartObject(8)
        for slot, offset in slots.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return int(builder.EndObject())

    def vector(offsets: list[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in offsets:
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependInt32(0)
    inputs = builder.EndVector()
    operators = vector([table({1: inputs})] * count)
    graph = vector([table({0: vector([table({})]), 3: operators})])
    codes = vector([table({})])
    builder.StartObject(8)
    builder.PrependUint32Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(1, codes, 0)
    builder.PrependUOffsetTRelativeSlot(2, graph, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    with pytest.raises(ConversionError, match="refers to its own parts over and over"):
        tflite_to_onnx(bytes(builder.Output()))
