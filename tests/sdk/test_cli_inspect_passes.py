"""``rerank inspect --passes``: which nodes each pass removed and added, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from rerank_engine.passes import PASSES
from rerank_sdk.cli import app


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A layer, a GELU spelled out, and eight nodes that do nothing."""
    random = np.random.default_rng(0)
    constants = {
        "w": random.normal(size=(4, 3)),
        "b": random.normal(size=3),
        "two": np.sqrt(2.0),
        "one": 1.0,
        "half": 0.5,
    }
    nodes = [helper.make_node("Identity", ["x"], ["same0"], name="same0")]
    nodes += [helper.make_node("Identity", [f"same{n}"], [f"same{n + 1}"], name=f"same{n + 1}") for n in range(7)]
    nodes += [
        helper.make_node("Gemm", ["same7", "w", "b"], ["layer"], name="layer"),
        helper.make_node("Div", ["layer", "two"], ["inner"], name="inner"),
        helper.make_node("Erf", ["inner"], ["bent"], name="bent"),
        helper.make_node("Add", ["bent", "one"], ["share"], name="share"),
        helper.make_node("Mul", ["layer", "share"], ["product"], name="product"),
        helper.make_node("Mul", ["product", "half"], ["score"], name="score"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def answer(*arguments: Any) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_names_every_changed_node(model: Path) -> None:
    passes = answer("inspect", model, "--passes")["passes"]
    first = [one for one in passes if one["round"] == 1]
    assert [one["name"] for one in first] == list(PASSES)
    found = {one["name"]: one for one in first}
    gelu = found["fuse_gelu"]
    assert gelu["removed_nodes"] == ["inner", "bent", "share", "product", "score"]
    assert gelu["removed"] == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert (gelu["added"], gelu["added_nodes"]) == (["Gelu"], ["score"])
    assert gelu["nodes_before"] - gelu["nodes_after"] == 4
    identities = found["remove_identity"]
    assert {f"same{n}" for n in range(8)} <= {*identities["removed_nodes"]}
    assert found["fuse_attention"]["removed_nodes"] == found["fuse_attention"]["added_nodes"] == []


def test_a_table_for_people(model: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(model), "--passes"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(any(name in line for line in lines) for name in PASSES)
    changed = [line.split() for line in lines if "fuse_gelu" in line and "Gelu" in line and "added" in line]
    assert changed
    assert changed[0][-1] == "score"
    erf = [line for line in lines if "removed" in line and "Erf" in line]
    assert erf
    assert "bent" in erf[0]
    assert "same5, … 2 more" in " ".join(result.stdout.split())


def test_without_the_option_nothing_is_said_of_passes(model: Path) -> None:
    assert "passes" not in answer("inspect", model)
    assert "fuse_gelu" not in CliRunner().invoke(app, ["inspect", str(model)]).stdout
