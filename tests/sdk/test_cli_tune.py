"""``rerank tune``: the search for kernels from the command line, and what ``rerank doctor`` tells of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rerank_engine.image import Image
from rerank_engine.runtime import load
from rerank_engine.search import tune as tuning
from rerank_engine.search.trials import SearchResult, Trial
from rerank_sdk.cli import app
from rerank_sdk.cli.checks import check_search


def rerank(*words: object) -> Result:
    return CliRunner().invoke(app, ["tune", *map(str, words)])


@pytest.fixture
def model(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "tiny.rrm"
    kit.make_model().save(path)
    return path


def test_json_has_the_report_that_the_engine_tells(model: Path) -> None:
    result = rerank(model, "--budget-s", "1", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["reason"] == "its matrix products are too small to gain"
    engine = load(model)
    assert engine.backend_reason == "stored machine code"
    assert str(engine.cache_path) == report["image"]
    assert engine.explain()["search"] == {name: report[name] for name in report if name not in ("model", "image")}


def test_a_bundle_is_tuned_for_the_re_ranker(bundle: Any, model: Path) -> None:
    path = model.parent / "feed.rrb"
    bundle.save(path)
    result = rerank(path)
    assert result.exit_code == 0, result.output
    assert "its matrix products are too small to gain" in result.stdout
    assert load(bundle.model()).backend_reason == "stored machine code"


def test_the_text_shows_what_was_found_and_what_failed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = (Trial(8, 32, "5x2", 120, 1.2), Trial(8, 32, "6x2", 120, None, "the process ended by signal 11"))

    def search(works: Any, budget_s: float, *, command: Any, progress: Any) -> SearchResult:
        for trial in trials:
            progress(trial)
        return SearchResult({}, {}, trials, budget_s, is_complete=False)

    monkeypatch.setattr(tuning, "is_too_small", lambda _: False)
    monkeypatch.setattr(tuning, "search_tilings", search)
    result = rerank(model)
    assert result.exit_code == 0, result.output
    assert "no tiling is faster than the default" in result.stdout
    assert "1 candidate failed: the process ended by signal 11" in result.stdout
    assert "2 tried (as many as the time allowed)" in " ".join(result.stdout.split())


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "inf", "x"])
def test_a_budget_is_a_time(model: Path, budget: str) -> None:
    assert rerank(model, "--budget-s", budget).exit_code == 2


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "other.rrm"
    path.write_text("not a model")
    result = rerank(path)
    assert result.exit_code == 1
    assert "not a .rrm model file" in result.stderr


def test_the_doctor_counts_searches(model: Path) -> None:
    assert check_search().found.startswith("0 models compiled, 0 searched")
    path = load(model).cache_path
    image = Image.read(path)
    del image.meta["search"]  # it says that the model is too small
    image.write(path)
    assert check_search().found == "1 models compiled, 0 searched, 0 with other kernels than the default"
    assert "rerank tune MODEL" in check_search().advice
    image.meta["search"] = {"is_used": True, "reason": "faster: 1.20x at N=10"}
    image.write(path)
    (path.parent / "damaged.rri").write_bytes(b"nothing")
    found = check_search()
    assert found.found.startswith("1 models compiled, 1 searched, 1 with other kernels than the default; ")
    assert found.found.endswith("faster: 1.20x at N=10")
    assert found.advice == "nothing to do"


def test_inspect_shows_the_search(model: Path) -> None:
    path = load(model).cache_path
    image = Image.read(path)
    tilings = {"8x32": {"default": "4x2", "chosen": "6|5x2", "ratio": 1.2}}
    image.meta["search"] = {"is_used": True, "reason": "faster: 1.20x at N=10", "tilings": tilings}
    image.write(path)
    for words in ([str(path)], [str(model), "--plan"]):
        text = " ".join(CliRunner().invoke(app, ["inspect", *words]).stdout.split())
        assert "kernel search faster: 1.20x at N=10 product 8x32 tiles 6|5x2 for 4x2" in text
