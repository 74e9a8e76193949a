"""``rerank compile``: machine code beside a model, for processors by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rerank_engine.ready import runnable_targets
from rerank_engine.runtime import load
from rerank_sdk.cli import app


def rerank(*words: object) -> Result:
    return CliRunner().invoke(app, ["compile", *map(str, words)])


@pytest.fixture
def model(kit: Any, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrm"
    kit.make_model().save(path)
    return path


def test_code_for_several_processors(model: Path) -> None:
    best = runnable_targets()[0]
    result = rerank(model, "--target", "aarch64", "--target", best, "--json")
    assert result.exit_code == 0, result.output
    images = json.loads(result.stdout)["images"]
    assert [Path(image["out"]).name for image in images] == ["tiny.aarch64.rri", f"tiny.{best}.rri"]
    assert all(image["bytes"] == Path(image["out"]).stat().st_size > image["code_bytes"] > 0 for image in images)
    assert load(model, cache_dir=model.parent / "cache").backend_reason.startswith("ready machine code")


def test_the_text_names_target_and_file(model: Path) -> None:
    result = rerank(model, "--target", "x86-64-v2", "--out", model.parent / "code.rri")
    assert result.exit_code == 0, result.output
    assert "x86-64-v2:" in result.stdout
    assert (model.parent / "code.rri").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "z80"], "target 'z80' is not known"),
        (["--target", "aarch64", "--target", "x86-64", "--out", "x"], "one file holds code for one target"),
        ([], "Missing option '--target'"),
    ],
)
def test_wrong_calls(model: Path, words: list[str], message: str) -> None:
    result = rerank(model, *words)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_what_is_no_model_is_refused(model: Path) -> None:
    model.write_bytes(b"no model")
    result = rerank(model, "--target", "aarch64")
    assert result.exit_code != 0
    assert "not a .rrm model file" in result.output
