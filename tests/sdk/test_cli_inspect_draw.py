"""``rerank inspect`` draws models and tells what they cost: model files, bundles, sources of other frameworks."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import lightgbm
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

from rerank_engine.inspect import cost, draw_svg, draw_text
from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app
from rerank_sdk.cli.draw_model import describe_cost, graph_text, show_graph
from rerank_sdk.reranker import Reranker

COLUMNS, HIDDEN = 5, 6
EACH = 2 * COLUMNS * HIDDEN + HIDDEN + 2 * HIDDEN
"""Operations of the small model for each candidate: two products and a ReLU."""


def rerank(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    result = rerank(*words, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def model_file(kit: Any, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrm"
    kit.make_model().save(path)
    return path


@pytest.fixture
def bundle_file(bundle: Bundle, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrb"
    bundle.save(path)
    return path


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    weight = np.ones((COLUMNS, 1), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["score"], name="layer")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", COLUMNS])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "linear.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def trees_file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 4))
    settings = {"objective": "regression", "num_leaves": 4, "verbose": -1, "num_threads": 1, "seed": 0}
    booster = lightgbm.train(settings, lightgbm.Dataset(features, features[:, 0]), num_boost_round=3)
    path = tmp_path / "ranker.txt"
    booster.save_model(path)
    return path


# --- costs -------------------------------------------------------------------------------------------------


def test_costs_of_a_model(model_file: Path, kit: Any) -> None:
    found = answer("inspect", model_file)["cost"]
    assert found == json.loads(json.dumps(describe_cost(kit.make_model().graph)))
    assert (found["flops"], found["flops_once"], found["flops_per_candidate"]) == (f"{EACH}*N", 0, EACH)
    assert (found["parameters"], found["constant_bytes"]) == (36, 144)
    assert found["activation_bytes"] == f"{4 * (HIDDEN + HIDDEN + 1 + HIDDEN)}*N"
    by_operator = {row["operator"]: row["flops"] for row in found["operators"]}
    assert by_operator == {"MatMul": "72*N", "Relu": "6*N", "Identity": 0}
    assert [node["runs"] for node in found["nodes"]] == ["block"] * 4
    shown = rerank("inspect", model_file).stdout
    assert f"FLOPs             {EACH}*N\n" in shown
    assert "with the candidates" not in shown


def test_costs_that_arise_once_a_call(kit: Any, tmp_path: Path) -> None:
    model = kit.make_model()
    for name, value in model.graph.values.items():
        if name not in model.graph.constants:
            model.graph.values[name] = type(value)(name, value.dtype, (1, *value.shape[1:]))
    model.save(tmp_path / "once.rrm")
    found = answer("inspect", tmp_path / "once.rrm")["cost"]
    assert (found["flops"], found["flops_once"], found["flops_candidates"]) == (EACH, EACH, 0)
    assert found["flops_per_candidate"] == 0


# --- drawings ----------------------------------------------------------------------------------------------


def test_a_drawing_of_every_kind_of_file(
    model_file: Path, bundle_file: Path, onnx_file: Path, trees_file: Path, tmp_path: Path
) -> None:
    for file, kind, nodes in ((model_file, "model", 4), (bundle_file, "bundle", 4), (onnx_file, "onnx", 1)):
        target = tmp_path / "pictures" / f"{kind}.svg"
        result = rerank("inspect", file, "--svg", target)
        assert result.exit_code == 0, result.stderr
        assert "drawn into" in result.stdout
        root = ElementTree.fromstring(target.read_text(encoding="utf-8"))
        assert sum((group.get("class") or "").startswith("node ") for group in root.iter()) == nodes
    found = answer("inspect", trees_file, "--svg", tmp_path / "trees.svg", "--graph")
    assert (found["kind"], found["source"], found["svg"]) == ("source", "LightGBM", str(tmp_path / "trees.svg"))
    assert "TreeEnsemble" in found["graph"]
    assert "TreeEnsemble" in (tmp_path / "trees.svg").read_text(encoding="utf-8")


def test_the_drawing_is_the_engine_s(model_file: Path, kit: Any, tmp_path: Path) -> None:
    found = answer("inspect", model_file, "--svg", tmp_path / "a.svg", "--graph")
    graph = kit.make_model().graph
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == draw_svg(graph)
    assert found["graph"] == draw_text(graph, 80)
    assert draw_text(graph, 80) in rerank("inspect", model_file, "--graph").stdout


def test_a_source_is_said_to_be_converted(onnx_file: Path, trees_file: Path) -> None:
    assert "ONNX model, converted to be shown" in rerank("inspect", onnx_file).stdout
    shown = rerank("inspect", trees_file, "--passes").stdout
    assert "LightGBM model, converted to be shown" in shown
    assert "fold_constants" in shown


def test_files_without_a_graph_are_not_drawn(kit: Any, bundle: Bundle, tmp_path: Path) -> None:
    with Reranker.open(tmp_path / "state", bundle, cache_dir=kit.cache_dir):
        pass
    for option in (["--graph"], ["--svg", tmp_path / "a.svg"]):
        result = rerank("inspect", tmp_path / "state", *option)
        assert result.exit_code == 2
        assert "a file of kind store has none" in result.stderr
    assert not (tmp_path / "a.svg").exists()


def test_only_svg_is_written(model_file: Path, tmp_path: Path) -> None:
    result = rerank("inspect", model_file, "--svg", tmp_path / "a.png")
    assert result.exit_code == 2
    assert "does not end with .svg" in result.stderr
    (tmp_path / "file").write_text("in the way")
    result = rerank("inspect", model_file, "--svg", tmp_path / "file" / "a.svg")
    assert result.exit_code == 1
    assert "give another path" in result.stderr


def test_characters_that_the_console_has(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = kit.make_model().graph
    assert "●" in graph_text(graph, 80, "utf-8")
    for encoding in ("ascii", "latin-1", None, "no such encoding"):
        assert graph_text(graph, 80, encoding) == draw_text(graph, 80, ascii_only=True)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    show_graph(graph)
    sys.stdout.flush()
    assert written.getvalue().decode("cp1252").replace("\r\n", "\n") == "\n" + draw_text(graph, 80, ascii_only=True)


def test_the_bundled_example_has_a_cost(bundle: Bundle) -> None:
    graph = bundle.model().graph
    assert cost(graph).parameters == graph.parameter_count()
