"""``rerank verify``: what it tells of right and of wrong models, and how it ends."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

from rerank_engine import convert
from rerank_engine.model import Model
from rerank_engine.verify import onnx_runners
from rerank_sdk.cli import app


@pytest.fixture(autouse=True)
def _frameworks(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the tests, and the framework that needs no process of its own."""
    monkeypatch.setenv("RERANK_CACHE_DIR", str(kit.cache_dir))
    monkeypatch.setattr(onnx_runners, "find_spec", lambda _: None)


def rerank(*words: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, words)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """``tanh(table[item] * dense) @ weight``."""
    random = np.random.default_rng(1)
    weights = {"table": (9, 3), "weight": (3, 1)}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "item"], ["vector"], "embed"),
            helper.make_node("Mul", ["vector", "dense"], ["product"], "interact"),
            helper.make_node("Tanh", ["product"], ["hidden"], "squash"),
            helper.make_node("MatMul", ["hidden", "weight"], ["score"], "last"),
        ],
        "small",
        [
            helper.make_tensor_value_info("item", TensorProto.INT64, ["N"]),
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["N", 3]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [
            numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def wrong(source: Path, tmp_path: Path) -> Path:
    """A model of the same source with another table."""
    graph = convert(source).graph
    table = graph.constants["table"] * np.float32(1.01)
    path = tmp_path / "wrong.rrm"
    Model(replace(graph, constants={**graph.constants, "table": table}, sample=None)).save(path)
    return path


def test_a_right_model(source: Path) -> None:
    result = rerank(source, "--layers")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "verified: the model gives the numbers of its source" in result.stdout
    assert "onnx.reference" in result.stdout
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("N=")] == ["N=0", "N=1", "N=7", "N=50"]
    assert any(line.startswith("hidden") and "Tanh" in line for line in lines)
    assert "\x1b" not in result.stdout


def test_the_report_as_json(source: Path) -> None:
    words = (source, "--json", "--lengths", "0, 7", "--seed", "5")
    result = rerank(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["passed"] is True
    assert (found["seed"], found["lengths"], found["tolerance"]) == (5, [0, 7], 2e-6)
    assert found["min_kendall_tau"] == 1.0
    assert found["min_top_k_agreement"] == {"1": 1.0, "5": 1.0}
    assert {case["outcome"] for case in found["cases"]} == {"compared", "refused"}
    assert rerank(*words).stdout == result.stdout


def test_a_wrong_model_names_the_layer(source: Path, wrong: Path) -> None:
    result = rerank(source, "--model", wrong)
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "not verified" in words
    assert "first difference at 'vector' (model), made by Gather 'embed', in the source Gather 'embed'" in words
    assert "differs output 'score'" not in words
    found = json.loads(rerank(source, "--model", wrong, "--json").stdout)
    assert found["passed"] is False
    assert found["first_difference"]["source_node"] == "embed"
    assert found["first_difference"]["source_operator"] == "Gather"
    assert found["problems"]


def test_a_tolerance_may_be_given(source: Path, wrong: Path) -> None:
    assert rerank(source, "--model", wrong, "--tolerance", "0.5", "--lengths", "7").exit_code == 0


def test_a_vocabulary_may_be_given(source: Path) -> None:
    found = json.loads(rerank(source, "--vocabulary", "item=4", "--lengths", "7", "--json").stdout)
    refused = [case["name"] for case in found["cases"] if case["outcome"] == "refused"]
    assert found["passed"] is True
    assert refused == []
    assert rerank(source, "--vocabulary", "item=90", "--lengths", "50").exit_code == 1


def test_empty_lists_alone_prove_nothing(source: Path) -> None:
    result = rerank(source, "--lengths", "0")
    assert result.exit_code == 1
    assert "no number of the source was compared" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--lengths", "1,x"],
        ["--lengths", "-1"],
        ["--lengths", ""],
        ["--seed", "-1"],
        ["--tolerance", "0"],
        ["--vocabulary", "item"],
        ["--vocabulary", "item=0"],
        ["--model", "missing.rrm"],
        ["--frobnicate"],
    ],
)
def test_a_wrong_call(source: Path, words: list[str]) -> None:
    result = rerank(source, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def test_what_cannot_be_verified_at_all_is_one_line(source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    for words in ((broken,), (source, "--candidates", "rows"), (source, "--vocabulary", "user=3")):
        result = rerank(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1


def test_what_a_framework_says_is_not_part_of_the_report(tmp_path: Path) -> None:
    import lightgbm

    random = np.random.default_rng(0)
    features = random.normal(size=(200, 3))
    data = lightgbm.Dataset(features, features[:, 0] > 0)
    booster = lightgbm.train({"objective": "binary", "num_threads": 1}, data, 3)
    path = tmp_path / "old.txt"
    # A parameter of an older version, of which LightGBM warns.
    path.write_text(booster.model_to_string().replace("[max_bin:", "[max_conflict_rate: 0]\n[max_bin:"))
    result = rerank(path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["passed"]
