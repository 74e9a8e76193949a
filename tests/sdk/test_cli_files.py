"""``rerank inspect`` and ``rerank convert`` on files of every kind, sound and damaged."""

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

from rerank_engine.model import Model
from rerank_engine.passes import PASSES
from rerank_engine.runtime import load
from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app
from rerank_sdk.reranker import Reranker
from rerank_sdk.store.schema import APPLICATION_ID


@pytest.fixture(autouse=True)
def _cache(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(kit.cache_dir))


def rerank(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    """The one JSON object of a command that succeeds."""
    result = rerank(*words, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def text(*words: object) -> str:
    """What people read of a command that succeeds."""
    result = rerank(*words)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    return result.stdout


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """``relu(x @ w1 + b1) @ w2``, with an identity in between that a pass removes."""
    generator = np.random.default_rng(3)
    weights = {"w1": (4, 6), "b1": (6,), "w2": (6, 1)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["product"], name="first"),
        helper.make_node("Add", ["product", "b1"], ["sum"], name="bias"),
        helper.make_node("Relu", ["sum"], ["relu"], name="relu"),
        helper.make_node("Identity", ["relu"], ["hidden"], name="same"),
        helper.make_node("MatMul", ["hidden", "w2"], ["score"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [
            numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), key)
            for key, shape in weights.items()
        ],
    )
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def bundle_file(bundle: Bundle, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrb"
    bundle.save(path)
    return path


@pytest.fixture
def model_file(kit: Any, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrm"
    kit.make_model().save(path)
    return path


@pytest.fixture
def state_dir(kit: Any, bundle: Bundle, tmp_path: Path) -> Path:
    with Reranker.open(tmp_path / "state", bundle, cache_dir=kit.cache_dir) as reranker:
        reranker.track([kit.event(1), kit.event(2), kit.event(1, "like", after_s=5, user="bob")])
    return tmp_path / "state"


# --- inspect -----------------------------------------------------------------------------------------------


def test_a_model(model_file: Path) -> None:
    found = answer("inspect", model_file)
    assert (found["kind"], found["bytes"]) == ("model", model_file.stat().st_size)
    model = found["model"]
    assert model["content_hash"] == Model.read(model_file).content_hash
    assert model["inputs"] == [{"name": "dense", "dtype": "float32", "shape": ["N", 5]}]
    assert [value["name"] for value in model["outputs"]] == ["score", "head_input"]
    assert (model["nodes"], model["parameters"]) == (4, 5 * 6 + 6)
    assert model["operators"][0] == {"operator": "MatMul", "nodes": 2, "parameters": 36, "bytes": 144}
    shown = text("inspect", model_file)
    assert model["content_hash"] in shown
    assert "dense: float32 (N, 5)" in shown
    assert "MatMul" in shown


def test_a_bundle_with_its_plan(bundle_file: Path, bundle: Bundle) -> None:
    found = answer("inspect", bundle_file, "--plan")
    assert (found["kind"], found["name"]) == ("bundle", "tiny")
    assert found["features"]["content_hash"] == bundle.spec().content_hash()
    assert found["features"]["groups"]["genres you opened"] == ["genre_clicks"]
    assert found["features"]["sequences"] == {"opened": 8}
    assert found["plan"]["backend"] == "cpu"
    assert [step["label"] for step in found["plan"]["steps"]].count("Identity") == 1
    shown = text("inspect", bundle_file, "--plan")
    assert "genres you opened" in shown
    assert "candidates at a time" in shown


def test_what_a_file_is_does_not_depend_on_its_name(bundle_file: Path, model_file: Path) -> None:
    for path, kind in ((bundle_file, "bundle"), (model_file, "model")):
        renamed = path.rename(path.with_suffix(".onnx"))
        assert answer("inspect", renamed)["kind"] == kind
        renamed.unlink()


def test_machine_code(kit: Any) -> None:
    engine = load(kit.make_model(), cache_dir=kit.cache_dir / "images")
    found = answer("inspect", engine.cache_path)
    assert (found["kind"], found["key"]) == ("image", engine.cache_path.stem)
    assert found["code_bytes"] == engine.explain()["code_bytes"]
    assert found["steps"] == engine.explain()["steps"]
    assert found["target"]["cpu"] in text("inspect", engine.cache_path)


def test_a_store_shows_counts_and_nobody(state_dir: Path, kit: Any) -> None:
    found = answer("inspect", state_dir)
    assert found["kind"] == "store"
    assert (found["users"], found["events"], found["examples"], found["patches"]) == (2, 3, 0, 0)
    assert found["events_by_kind"] == {"click": 2, "like": 1}
    assert (found["first_event_ms"], found["last_event_ms"]) == (kit.START_MS, kit.START_MS + 5_000)
    assert answer("inspect", state_dir / "events.db") == found
    shown = text("inspect", state_dir)
    assert "2023-11-14 22:13:20 UTC to 2023-11-14 22:13:25 UTC" in shown
    assert "ann" not in shown
    assert "bob" not in shown


def test_looking_into_a_store_changes_nothing(state_dir: Path) -> None:
    path = state_dir / "events.db"
    before = path.read_bytes()
    text("inspect", path)
    assert path.read_bytes() == before


def test_an_empty_store(tmp_path: Path, bundle: Bundle, kit: Any) -> None:
    with Reranker.open(tmp_path, bundle, cache_dir=kit.cache_dir):
        pass
    found = answer("inspect", tmp_path)
    assert (found["events"], found["first_event_ms"], found["events_by_kind"]) == (0, None, {})
    assert "event kind" not in text("inspect", tmp_path)


def test_a_store_of_an_older_version_lacks_tables(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "events.db")
    connection.executescript(
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
        "CREATE TABLE users (id INTEGER PRIMARY KEY, user TEXT); INSERT INTO users (user) VALUES ('ann');"
    )
    connection.close()
    found = answer("inspect", tmp_path)
    assert (found["schema_version"], found["users"], found["events"], found["patches"]) == (1, 1, 0, 0)


def test_an_onnx_model_with_its_passes(onnx_file: Path) -> None:
    found = answer("inspect", onnx_file, "--passes", "--plan")
    assert found["kind"] == "onnx"
    assert found["model"]["metadata"]["source"] == "onnx"
    passes = {one["name"]: one for one in found["passes"]}
    assert "Identity" in passes["remove_identity"]["removed"]
    assert found["plan"]["steps"]
    shown = text("inspect", onnx_file, "--passes")
    assert "remove_identity" in shown
    assert "1 Identity" in shown


def test_candidates_of_an_onnx_model(onnx_file: Path) -> None:
    assert answer("inspect", onnx_file, "--candidates", "N")["kind"] == "onnx"
    result = rerank("inspect", onnx_file, "--candidates", "rows")
    assert result.exit_code == 1
    assert "rows" in result.stderr


@pytest.mark.parametrize("option", ["--passes", "--candidates=N"])
def test_options_of_onnx_do_not_fit_other_files(option: str, model_file: Path) -> None:
    result = rerank("inspect", model_file, option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "only a source model is converted" in result.stderr


def test_a_store_has_no_plan(state_dir: Path) -> None:
    result = rerank("inspect", state_dir, "--plan")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--plan" in result.stderr


def test_a_folder_without_a_store(tmp_path: Path) -> None:
    result = rerank("inspect", tmp_path)
    assert result.exit_code == 2
    assert "has no events.db" in result.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.rrm", b""),
        ("a.rrm", b"\x89RRM\r\n\x1a\n cut off"),
        ("a.rrb", b"not a bundle"),
        ("a.rri", b"\x89RERANK-IMAGE\r\n\x01 cut off"),
        ("a.onnx", b"\xff\xff\xff"),
        ("events.db", b"SQLite format 3\x00" + bytes(40)),
        ("a.txt", b"hello"),
        ("empty", b""),
    ],
)
def test_damaged_and_foreign_files_are_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = rerank("inspect", path, "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert path.read_bytes() == content


def test_a_database_of_another_application(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "events.db") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    result = rerank("inspect", tmp_path)
    assert result.exit_code == 1
    assert "another application" in result.stderr


# --- convert -----------------------------------------------------------------------------------------------


def test_convert_writes_what_it_tells(onnx_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "tiny.rrm"
    found = answer("convert", onnx_file, "--out", out, "--expose-head")
    model = Model.read(out)
    assert (found["out"], found["bytes"]) == (str(out), out.stat().st_size)
    assert found["model"]["content_hash"] == model.content_hash
    assert [value.name for value in model.outputs] == ["score", "head_input"]
    assert found["passes"][0]["name"] == "fold_constants"


def test_convert_for_people(onnx_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny.rrm"
    shown = text("convert", onnx_file, "--out", out)
    assert f"written to {out}" in " ".join(shown.split())
    assert "remove_dead" in shown
    assert len(Model.read(out).outputs) == 1


def test_convert_with_a_spec_writes_a_bundle(onnx_file: Path, tmp_path: Path) -> None:
    model = onnx.load(onnx_file)
    for part in (*model.graph.node, *model.graph.input):
        if part.name == "x":
            part.name = "dense"
        if hasattr(part, "input"):
            part.input[:] = ["dense" if name == "x" else name for name in part.input]
    onnx.save(model, tmp_path / "dense.onnx")
    columns = "".join(f'[[dense]]\nkind = "server_rank"\nname = "r{number}"\n' for number in range(4))
    (tmp_path / "feed.toml").write_text(f'name = "feed"\n{columns}')
    out = tmp_path / "feed.rrb"
    answer("convert", tmp_path / "dense.onnx", "--out", out, "--spec", tmp_path / "feed.toml", "--expose-head")
    bundle = Bundle.read(out)
    assert (bundle.name, bundle.spec().name, len(bundle.model().outputs)) == ("feed", "feed", 2)
    refused = rerank("convert", onnx_file, "--out", tmp_path / "b.rrb", "--spec", tmp_path / "feed.toml")
    assert refused.exit_code == 1
    assert "the model reads 'x'" in refused.stderr
    assert not (tmp_path / "b.rrb").exists()


def test_a_model_file_is_no_bundle_and_says_what_to_do(onnx_file: Path, tmp_path: Path) -> None:
    answer("convert", onnx_file, "--out", tmp_path / "tiny.rrm")
    result = rerank("run", "--bundle", tmp_path / "tiny.rrm", "--state", tmp_path / "state")
    assert result.exit_code == 1
    assert "pack it with a feature spec" in result.stderr


def test_passes_can_be_skipped(onnx_file: Path, tmp_path: Path) -> None:
    left_out = ("fuse_matmul", "remove_identity", "merge_copies")
    skipped = [word for name in left_out for word in ("--skip-pass", name)]
    found = answer("convert", onnx_file, "--out", tmp_path / "a.rrm", "--candidates", "N", *skipped)
    names = [one["name"] for one in found["passes"]]
    assert sorted(set(names)) == sorted(set(PASSES) - set(left_out))
    assert "Identity" in [row["operator"] for row in found["model"]["operators"]]


def test_an_unknown_pass_writes_nothing(onnx_file: Path, tmp_path: Path) -> None:
    result = rerank("convert", onnx_file, "--out", tmp_path / "a.rrm", "--skip-pass", "magic")
    assert result.exit_code == 1
    assert "'magic'" in result.stderr
    assert not (tmp_path / "a.rrm").exists()


def test_an_output_that_cannot_be_written(onnx_file: Path) -> None:
    result = rerank("convert", onnx_file, "--out", onnx_file / "below" / "a.rrm")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_a_missing_extra_says_what_to_install(onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = rerank("convert", onnx_file, "--out", tmp_path / "a.rrm")
    assert result.exit_code == 1
    assert "pip install 'rerank-sdk[convert]'" in result.stderr
