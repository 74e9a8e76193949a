"""``rerank demo``, ``train``, ``replay`` and ``bench`` on a made-up log in place of MovieLens."""

import ast
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rerank_engine.errors import DataError
from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app
from rerank_sdk.cli.train import ModelName
from rerank_simulator import movielens
from rerank_simulator.logs import RatingLog

DAY_MS = 86_400_000
USERS, ITEMS, VISITS = 16, 48, 5


def make_log() -> RatingLog:
    """Users with one of two tastes come back every ten days or so and rate six items, a minute apart."""
    generator = np.random.default_rng(5)
    rows = []
    for user in range(USERS):
        unrated = list(generator.permutation(ITEMS))
        for visit in range(VISITS):
            start_ms = visit * 10 * DAY_MS + int(generator.integers(0, 8 * DAY_MS))
            for step in range(6):
                item = int(unrated.pop())
                own = item % 2 == user % 2
                rating = float(generator.choice([4, 5] if own else [1, 2, 3, 4]))
                rows.append((user, item, rating, start_ms + 60_000 * step))
    user_rows, item_rows, ratings, times = zip(*rows, strict=True)
    return RatingLog.from_rows(
        user_rows,
        item_rows,
        ratings,
        times,
        user_ids=[f"u{number}" for number in range(USERS)],
        item_ids=[f"i{number}" for number in range(ITEMS)],
        titles=[f"Film [red]{number}[/red] & <more>" for number in range(ITEMS)],
        years=[1990 + number % 10 for number in range(ITEMS)],
        genres=[("Drama",) if number % 2 else ("Comedy",) for number in range(ITEMS)],
    )


@pytest.fixture(scope="module")
def log() -> RatingLog:
    return make_log()


@pytest.fixture
def bundle_file(kit: Any, tmp_path: Path) -> Path:
    """The tiny model over embeddings as long as those of the experiment."""
    path = tmp_path / "tiny.rrb"
    kit.bundle(spec=kit.make_spec(movielens.movielens_spec().items.embedding_dim)).save(path)
    return path


@pytest.fixture(autouse=True)
def _no_network(log: RatingLog, bundle_file: Path, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*, progress: Callable[[str], None]) -> RatingLog:
        progress("fetching nothing")
        return log

    monkeypatch.setattr("rerank_simulator.logs.load_movielens", load)
    monkeypatch.setattr("rerank_sdk.bundle.builtin_bundle", lambda: bundle_file)
    monkeypatch.setenv("RERANK_CACHE_DIR", str(kit.cache_dir))


def rerank(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert "\x1b" not in result.output
    return result


def answer(*words: object) -> dict[str, Any]:
    result = rerank(*words, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "fetching nothing\n"
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def text(*words: object) -> str:
    result = rerank(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def flat(shown: str) -> str:
    """Without the line breaks of an 80-column page."""
    return " ".join(shown.split())


# --- replay ------------------------------------------------------------------------------------------------


def test_replay(log: RatingLog) -> None:
    found = answer("replay")
    assert list(found["metrics"]) == [
        "popularity",
        "server order",
        "model, no recent events",
        "model",
        "model, personalised",
    ]
    assert found["bundle"] == "tiny"
    assert 2 <= found["users"] <= USERS
    assert found["lists"] > found["users"]
    for metrics in found["metrics"].values():
        assert list(metrics) == ["ndcg10", "mrr", "recall10"]
        assert all(0 <= one["low"] <= one["mean"] <= one["high"] <= 1 for one in metrics.values())
    pairs = {(lift["policy"], lift["baseline"]) for lift in found["lifts"]}
    assert {("model", "server order"), ("model", "model, no recent events"), ("model, personalised", "model")} <= pairs
    for lift in found["lifts"]:
        means = [found["metrics"][lift[name]]["ndcg10"]["mean"] for name in ("policy", "baseline")]
        assert lift["absolute"]["mean"] == pytest.approx(means[0] - means[1])
        assert lift["relative"]["mean"] == pytest.approx(means[0] / means[1] - 1)


def test_replay_of_chosen_policies(bundle_file: Path) -> None:
    words = ("replay", "--bundle", bundle_file, "--policy", "model", "--policy", "server")
    found = answer(*words)
    assert list(found["metrics"]) == ["server order", "model"]
    assert [(lift["policy"], lift["baseline"]) for lift in found["lifts"]] == [("model", "server order")]
    shown = text(*words)
    mean = found["metrics"]["model"]["ndcg10"]["mean"]
    assert f"{mean:.4f}" in shown
    assert f"NDCG@10 {100 * found['lifts'][0]['relative']['mean']:+.1f}%" in flat(shown)
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_one_policy_has_no_lift() -> None:
    found = answer("replay", "--policy", "popularity")
    assert (list(found["metrics"]), found["lifts"]) == (["popularity"], [])


def test_a_log_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(**_: object) -> RatingLog:
        raise DataError("MovieLens-100K: no network; place the files by hand")

    monkeypatch.setattr("rerank_simulator.logs.load_movielens", load)
    for command in (["replay"], ["demo"], ["bench", "loop"]):
        result = rerank(*command, "--json")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "error: MovieLens-100K: no network; place the files by hand\n"


def test_a_bundle_that_does_not_fit(kit: Any, tmp_path: Path) -> None:
    kit.bundle().save(tmp_path / "short.rrb")  # embeddings of another length
    result = rerank("replay", "--bundle", tmp_path / "short.rrb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "embedding" in result.stderr


# --- demo --------------------------------------------------------------------------------------------------


def test_demo(tmp_path: Path) -> None:
    report, picture = tmp_path / "out" / "demo.html", tmp_path / "pictures" / "demo.svg"
    found = answer("demo", "--report", report, "--picture", picture)
    assert (found["report"], found["picture"]) == (str(report), str(picture))
    assert "</html>" in report.read_text(encoding="utf-8")
    assert picture.stat().st_size > 1_000
    assert len(found["policies"]) == 5
    assert len(found["story"]["events"]) == 3


def test_demo_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = text("demo")
    found = answer("demo")
    assert (tmp_path / "out" / "demo.html").exists()
    assert f"report: {Path('out/demo.html')}" in shown
    assert "picture" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    story = found["story"]
    assert all(event["title"] in shown for event in story["events"])
    rows = [line for line in shown.splitlines() if line[:2].strip().isdigit() and "Film" in line]
    for place, (old, new) in enumerate(zip(story["server_top"], story["model_top"], strict=True), 1):
        row = next(row for row in rows if row.split()[0] == str(place) and row.count("Film") == 2)
        assert row.count("* Film") == old["relevant"] + new["relevant"]
        assert f" {new['server_place']} " in row
        if new["reasons"]:
            assert f"{new['reasons'][0]['effect']:+.2f}" in row
    assert story["rule"] in flat(shown)
    for policy in found["policies"]:
        assert f"{policy['metrics']['mrr']['mean']:.4f}" in shown
    assert "model against server order: NDCG@10" in flat(shown)
    assert "p99" in shown


def test_demo_does_not_work_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank_simulator.demo.run_demo", lambda *_, **__: pytest.fail("worked before looking"))
    (tmp_path / "file").touch()
    result = rerank("demo", "--report", tmp_path / "file" / "demo.html")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_demo_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("rerank_simulator.demo.run_demo", lambda *_, **__: pytest.fail("worked before looking"))
    result = rerank("demo", "--report", tmp_path / "demo.html")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'rerank-sdk[simulator]'" in result.stderr


# --- bench -------------------------------------------------------------------------------------------------

MEASURED = {
    "track_p50_us": 31.5,
    "track_p99_us": 80.25,
    "rerank_100_p50_us": 1_234.5,
    "rerank_100_p99_us": 2_000.0,
    "import_ms": 12.5,
    "ndcg10": {"model": {"mean": 0.3, "low": 0.25, "high": 0.35}},
    "lift_over_server": {"mean": 0.12, "low": 0.08, "high": 0.16},
    "rounds": 3_000,
    "backend": "cpu",
}


def test_bench_loop(monkeypatch: pytest.MonkeyPatch, log: RatingLog) -> None:
    def measure(given: RatingLog, bundle: Bundle, *, progress: Callable[[int, int, str], None]) -> dict[str, Any]:
        assert given is log
        assert bundle.name == "tiny"
        progress(1, 2, "measuring")
        return MEASURED

    monkeypatch.setattr("rerank_simulator.benchmark.benchmark_loop", measure)
    assert answer("bench", "loop") == MEASURED
    shown = flat(text("bench", "loop"))
    for expected in (
        "track 31.5 80.2",
        "rerank 100 1,234.5 2,000.0",
        "model 0.3000 0.2500 to 0.3500",
        "NDCG@10 +12.0% (95% interval +8.0% to +16.0%): better",
        "import ms 12.5",
        "rounds 3,000",
        "backend cpu",
    ):
        assert expected in shown


# --- train -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """As `rerank_models.train.TrainOptions`, without PyTorch."""

    epochs: int
    patience: int
    batch_lists: int
    learning_rate: float
    weight_decay: float
    dropout: float
    seed: int


@pytest.fixture
def calls(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """Training that takes no time: the tiny bundle comes back, and what was asked for is kept."""
    module = ModuleType("rerank_models.train")
    module.TrainOptions = Options  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rerank_models.train", module)
    made: list[tuple[str, Options]] = []

    def train(model: str, log: RatingLog, *, options: Options, progress: Callable[[int, int, str], None]) -> Bundle:
        progress(1, options.epochs, "validation NDCG@10 0.5")
        made.append((model, options))
        facts = {"validation_ndcg10": 0.5, "epochs": options.epochs, "loss": float("nan")}
        return Bundle("trained", bundle.model_bytes, bundle.spec_text, facts)

    monkeypatch.setattr(movielens, "train_bundle", train)
    return made


def test_train_passes_every_option_on(calls: list[tuple[str, Options]], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "x.rrb"
    given = {
        "epochs": 7,
        "patience": 2,
        "batch_lists": 16,
        "learning_rate": 0.01,
        "weight_decay": 0.0,
        "dropout": 0.25,
        "seed": 9,
    }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    found = answer("train", "--model", "deepfm", "--out", out, *words)
    assert calls == [("deepfm", Options(**given))]  # type: ignore[arg-type]
    assert (found["name"], found["out"], found["bytes"]) == ("trained", str(out), out.stat().st_size)
    assert found["facts"] == {"validation_ndcg10": 0.5, "epochs": 7, "loss": None}
    assert Bundle.read(out).name == "trained"


def test_train_for_people(calls: list[tuple[str, Options]], tmp_path: Path) -> None:
    shown = flat(text("train", "--model", "din", "--out", tmp_path / "x.rrb"))
    assert "bundle trained validation ndcg10 0.5" in shown
    assert f"written to {tmp_path / 'x.rrb'}" in shown
    assert calls[0][0] == "din"


def models_folder() -> Path:
    found = find_spec("rerank_models")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def declared_defaults() -> dict[str, Any]:
    """Fields of `TrainOptions` with their defaults, read from the source: importing it needs PyTorch."""
    tree = ast.parse((models_folder() / "train.py").read_text(encoding="utf-8"))
    (options,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainOptions")
    return {
        node.target.id: ast.literal_eval(node.value)
        for node in options.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }


def test_defaults_are_those_of_the_library(calls: list[tuple[str, Options]], tmp_path: Path) -> None:
    text("train", "--model", "mlp", "--out", tmp_path / "x.rrb")
    assert vars(calls[0][1]) == declared_defaults()


def test_models_are_those_of_the_zoo() -> None:
    from rerank_models.zoo import ZOO

    assert {str(name) for name in ModelName} == set(ZOO)


def test_train_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerank_models.train", None)
    result = rerank("train", "--model", "mlp", "--out", tmp_path / "x.rrb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'rerank-sdk[train]'" in result.stderr
    assert not (tmp_path / "x.rrb").exists()


def test_train_looks_where_it_writes_first(calls: list[tuple[str, Options]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = rerank("train", "--model", "mlp", "--out", tmp_path / "file" / "x.rrb")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert calls == []
