"""The engine's pages say what the engine does: tables of operators, attributes, sources and limits equal the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper

from rerank_engine import convert
from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.format.layout import MAJOR_VERSION, MINOR_VERSION
from rerank_engine.importers import positions
from rerank_engine.importers.caffe.layers import LAYERS
from rerank_engine.importers.kinds import KINDS
from rerank_engine.importers.onnx import OLDEST_OPSET, newest_opset
from rerank_engine.importers.onnx_handlers import HANDLERS, control_flow, sequences
from rerank_engine.importers.tflite.handlers import HANDLERS as TFLITE_HANDLERS
from rerank_engine.importers.trees import xgboost
from rerank_engine.importers.trees.lightgbm import objective_transform
from rerank_engine.ops import OPERATORS
from rerank_engine.passes import pipeline
from rerank_engine.sample import MAX_SAMPLE_BYTES
from rerank_engine.verify import compare, truth
from rerank_engine.verify.sources import open_source

DOCS = Path(__file__).parent.parent.parent / "docs"
ML = "ai.onnx.ml"
SECTIONS = {"": "Operators", ML: "Operators of ai.onnx.ml"}

Table = Callable[[str, str], list[list[str]]]


def page(name: str) -> str:
    """Text of a page, on one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


# --- operators of the graph --------------------------------------------------------------------------------


def test_operator_table_equals_the_registry(table: Table) -> None:
    wanted = []
    for operator in sorted(OPERATORS.values(), key=lambda entry: entry.name):
        attributes = ", ".join(
            name if default is None else f"{name} = {default!r}" for name, default in operator.attributes.items()
        )
        wanted.append([operator.name, operator.summary.replace("`", ""), attributes or "–"])
    assert table("operators.md", "The table") == wanted


# --- ONNX --------------------------------------------------------------------------------------------------


def test_every_domain_of_the_handlers_has_a_section() -> None:
    assert {domain for domain, _ in HANDLERS} == set(SECTIONS)


@pytest.mark.parametrize("domain", SECTIONS, ids=SECTIONS.values())
def test_onnx_tables_list_the_handlers(domain: str, table: Table, onnx_attributes: ModuleType) -> None:
    rows = table("onnx.md", SECTIONS[domain])
    read = sorted(key[1] for key in HANDLERS if key[0] == domain and not onnx_attributes.is_refused(key))
    assert [row[0] for row in rows] == read
    assert all(cell for row in rows for cell in row)


def test_refused_operators_are_listed_with_their_reasons(table: Table, onnx_attributes: ModuleType) -> None:
    rows = {row[0]: row[1] for row in table("onnx.md", "Operators that are refused")}
    refused = {key[1]: onnx_attributes.refusal(key) for key in HANDLERS if onnx_attributes.is_refused(key)}
    assert rows == refused


@pytest.mark.parametrize("domain", SECTIONS, ids=SECTIONS.values())
def test_attributes_of_the_onnx_tables_are_what_the_handlers_ask_for(
    domain: str, table: Table, onnx_attributes: ModuleType
) -> None:
    """Each is part of ONNX too: the probe finds only attributes of ONNX's schemas."""
    for name, cell, _ in table("onnx.md", SECTIONS[domain]):
        texts = []
        for attribute in onnx_attributes.attributes_of((domain, name)):
            only = "" if attribute.only is None else f" = {attribute.only!r}"
            until = "" if attribute.last_opset is None else f" until {attribute.last_opset}"
            texts.append(f"{attribute.name}{only}{until}")
        assert cell == (", ".join(texts) or "–"), name


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: key[1])
def test_an_attribute_that_is_not_listed_is_refused_by_name(key: tuple[str, str], onnx_attributes: ModuleType) -> None:
    for version, attribute in onnx_attributes.not_understood(key):
        with pytest.raises(UnsupportedOperatorError, match=rf"^{key[1]} node .*\b{attribute.name}\b"):
            onnx_attributes.call(key, version, onnx_attributes.OnnxBuilder, [attribute])


def test_the_probe_finds_what_is_not_understood(onnx_attributes: ModuleType) -> None:
    """Without it the test before this one could pass on nothing."""
    found = {(key[1], attribute.name) for key in HANDLERS for _, attribute in onnx_attributes.not_understood(key)}
    assert {
        ("MaxPool", "storage_order"),
        ("Constant", "sparse_value"),
        ("BatchNormalization", "training_mode"),
    } <= found


def test_the_probe_notices_a_handler_that_reads_no_attributes(
    onnx_attributes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HANDLERS, ("", "Silent"), lambda builder, node: None)
    with pytest.raises(AssertionError, match="never asks"):
        onnx_attributes.asked(("", "Silent"), 17)


def test_opsets_are_stated() -> None:
    text = page("onnx.md")
    assert f"Opset {OLDEST_OPSET} to the newest" in text
    newest_ml = max(schema.since_version for schema in defs.get_all_schemas() if schema.domain == ML)
    assert f"Versions 1 to {newest_ml} of `{ML}`" in text


# --- operators that ONNX defines by others -----------------------------------------------------------------

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)

Inputs = Mapping[str, tuple[int, Sequence[int | str]]]
"""Element type and shape by name."""


def one_node(
    operator: str,
    inputs: Inputs,
    constants: Mapping[str, NDArray[Any]] | None = None,
    domain: str = "",
    outputs: Sequence[str] = ("y",),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node, whose first output is the model's."""
    arrays = dict(constants or {})
    graph = helper.make_graph(
        [helper.make_node(operator, [*inputs, *arrays], outputs, domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    imports = [helper.make_opsetid("", newest_opset()), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports)


def sequence_map() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, FLOAT, ["N", 2]) for name in ("part", "made", "x", "y")]
    body = helper.make_graph([helper.make_node("Neg", ["part"], ["made"])], "body", ends[:1], ends[1:2])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["parts"]),
        helper.make_node("SequenceMap", ["parts"], ["mapped"], body=body),
        helper.make_node("ConcatFromSequence", ["mapped"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "map", ends[2:3], [helper.make_tensor_value_info("y", FLOAT, ["N", 4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


HEADS: Inputs = {name: (FLOAT, ["N", 2, 4, 8]) for name in "qkv"}
CLASSES: Inputs = {"x": (FLOAT, ["N", 3]), "target": (INT64, ["N"])}
STEPS: Inputs = {name: (FLOAT, ["N", 3, 16]) for name in "qkv"}

FUNCTIONS: Mapping[tuple[str, str], onnx.ModelProto] = {
    ("", "AffineGrid"): one_node("AffineGrid", {"theta": (FLOAT, [2, 2, 3])}, {"size": np.array([2, 3, 4, 5])}),
    ("", "Attention"): one_node("Attention", HEADS, is_causal=1),
    ("", "Bernoulli"): one_node("Bernoulli", {"x": (FLOAT, ["N", 3])}),
    ("", "BlackmanWindow"): one_node("BlackmanWindow", {}, {"size": np.array(8)}),
    ("", "CausalConvWithState"): one_node(
        "CausalConvWithState",
        {"x": (FLOAT, ["N", 4, 6])},
        {"w": np.ones((4, 1, 3), np.float32)},
        outputs=("y", "state"),
    ),
    ("", "CenterCropPad"): one_node("CenterCropPad", {"x": (FLOAT, ["N", 6])}, {"shape": np.array([4])}, axes=[1]),
    ("", "DynamicQuantizeLinear"): one_node(
        "DynamicQuantizeLinear", {"x": (FLOAT, ["N", 6])}, outputs=("y", "scale", "zero_point")
    ),
    ("", "HammingWindow"): one_node("HammingWindow", {}, {"size": np.array(8)}),
    ("", "HannWindow"): one_node("HannWindow", {}, {"size": np.array(8)}),
    ("", "LinearAttention"): one_node(
        "LinearAttention", STEPS, outputs=("y", "state"), q_num_heads=2, kv_num_heads=2, update_rule="linear"
    ),
    ("", "NegativeLogLikelihoodLoss"): one_node("NegativeLogLikelihoodLoss", CLASSES),
    ("", "RotaryEmbedding"): one_node(
        "RotaryEmbedding", {"x": (FLOAT, ["N", 2, 3, 8]), "cos": (FLOAT, ["N", 3, 4]), "sin": (FLOAT, ["N", 3, 4])}
    ),
    ("", "SequenceMap"): sequence_map(),
    ("", "SoftmaxCrossEntropyLoss"): one_node("SoftmaxCrossEntropyLoss", CLASSES),
    ("", "SwiGLU"): one_node("SwiGLU", {"gate": (FLOAT, ["N", 8]), "value": (FLOAT, ["N", 8])}),
    ("ai.onnx.preview", "FlexAttention"): one_node("FlexAttention", HEADS, domain="ai.onnx.preview"),
}
"""A small model with each operator that ONNX defines by others and that has no handler of its own."""


def test_functions_are_all_that_onnx_defines_by_others(table: Table) -> None:
    defined = {
        (schema.domain, schema.name)
        for schema in defs.get_all_schemas()
        if (schema.has_function or schema.has_context_dependent_function) and not schema.deprecated
    }
    assert set(FUNCTIONS) == defined - set(HANDLERS)
    rows = table("onnx.md", "Operators read by their ONNX definition")
    assert sorted(("" if row[1] == "–" else row[1], row[0]) for row in rows) == sorted(FUNCTIONS)


@pytest.mark.parametrize("key", FUNCTIONS, ids=lambda key: key[1])
def test_functions_are_read_or_refused_as_their_table_says(key: tuple[str, str], table: Table) -> None:
    rows = table("onnx.md", "Operators read by their ONNX definition")
    ((_, _, note),) = [row for row in rows if row[0] == key[1]]
    assert note
    if note.startswith("refused: "):
        with pytest.raises(UnsupportedOperatorError):
            convert(FUNCTIONS[key])
    else:
        assert len(convert(FUNCTIONS[key]).outputs) == 1


# --- sources -----------------------------------------------------------------------------------------------


def test_source_table_equals_the_kinds(table: Table) -> None:
    rows = table("sources.md", "Sources")
    assert [(row[0], row[2]) for row in rows] == [(kind.name, ", ".join(sorted(kind.options))) for kind in KINDS]


def test_every_kind_of_source_has_a_section() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / "sources.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(headings) == {kind.name for kind in KINDS}
    assert all(kind.name in page("engine.md").partition("## Sources")[2] for kind in KINDS)


def test_frameworks_that_verify_runs_are_listed(table: Table, tmp_path: Path) -> None:
    source = tmp_path / "net.prototxt"
    source.touch()
    with pytest.raises(ConversionError) as caught:
        open_source(source)
    known = re.search(r"known: ([^;]+);", str(caught.value))
    assert known
    assert [row[0] for row in table("verify.md", "Frameworks")] == known[1].split(", ")


def test_tflite_operators_are_listed() -> None:
    section = page("sources.md").partition("### TFLite operators")[2].partition("## ")[0]
    assert re.findall(r"`(\w+)`", section) == sorted(TFLITE_HANDLERS)


def test_caffe_table_equals_the_layers(table: Table) -> None:
    def text(names: Sequence[str]) -> str:
        return ", ".join(names) or "–"

    wanted = [[name, text(layer.understood), text(layer.ignored)] for name, layer in sorted(LAYERS.items())]
    assert table("sources.md", "Caffe layers") == wanted


def test_objectives_of_lightgbm_are_known(table: Table) -> None:
    (names,) = [row[1].split(", ") for row in table("sources.md", "LightGBM") if row[0] == "objectives"]
    for name in names:
        assert objective_transform(name, 3 if name.startswith("multiclass") else 1)


def test_objectives_of_xgboost_equal_the_code(table: Table) -> None:
    (names,) = [row[1].split(", ") for row in table("sources.md", "XGBoost") if row[0] == "objectives"]
    assert sorted(names) == sorted(xgboost._OBJECTIVES)


# --- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("onnx.md", f"at most {control_flow.MOST_ROUNDS:,} rounds"),
        ("onnx.md", f"from 1 to {control_flow.MOST_ROUNDS:,}"),
        ("onnx.md", f"at most {sequences.MOST_MEMBERS:,} parts"),
        ("onnx.md", f"at most {positions.MOST_POSITIONS:,} constant ones"),
        ("model-file.md", f"larger than {MAX_SAMPLE_BYTES // 1024} KiB"),
        ("model-file.md", f"format {MAJOR_VERSION}.{MINOR_VERSION} and reads {MAJOR_VERSION}.x"),
        ("passes.md", {8: "at most eight times"}[pipeline.MOST_ROUNDS]),
        ("verify.md", f"{compare.TOLERANCE:.0e} of the largest".replace("e-0", "e-")),
        ("verify.md", f"{compare.TOLERANCE_DOUBLE:.0e} for float64"),
        ("verify.md", f"{compare.NOISE_FACTOR:.0f} times what those runs disagree by"),
        ("verify.md", f"computed {({4: 'four'})[truth.TRIALS]} times more"),
    ],
)
def test_numbers_equal_the_code(name: str, text: str) -> None:
    assert text in page(name)
