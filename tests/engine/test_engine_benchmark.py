"""The benchmark of engines, with peers that exist for the test only: right, wrong, dying, hanging and noisy ones."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from rerank_engine.benchmark import benchmark_engine, ours
from rerank_engine.benchmark.cards import INPUT_SETS, read_cards
from rerank_engine.benchmark.gains import measure_gains
from rerank_engine.benchmark.peak import peak_gflops
from rerank_engine.benchmark.peers import read_peers
from rerank_engine.benchmark.process import EngineCommand, run_start
from rerank_engine.benchmark.results import LARGEST_ERROR, compare, is_wrong, relative_error
from rerank_engine.benchmark.rounds import Times, plan_blocks, time_interleaved
from rerank_engine.benchmark.session import Session, choose_cores, truth, truth_graph
from rerank_engine.errors import DataError, InputError
from rerank_engine.workers import Worker, WorkerFailed, decode
from rerank_sdk.cli import app

WIDTH = 4
WEIGHT = np.arange(1, WIDTH + 1, dtype=np.float32).reshape(WIDTH, 1)

FAKES = f'''
import os, sys, time
import numpy as np

WEIGHT = np.arange(1, {WIDTH + 1}, dtype=np.float32)
IS_START = "--start" in sys.argv

def right(path, inputs):
    print("a library that prints to stdout")
    os.write(1, b"also past Python\\n")
    assert open(path).read() == "model of the peer"
    return lambda arrays: np.maximum(arrays["x"] @ WEIGHT, 0)

def wrong(path, inputs):
    return lambda arrays: arrays["x"] @ WEIGHT + 1

def short(path, inputs):
    return lambda arrays: np.maximum(arrays["x"] @ WEIGHT, 0)[:-1]

def refusing(path, inputs):
    raise ValueError("no such operator")

def dying(path, inputs):
    sys.stderr.write("Illegal instruction\\n")
    sys.stderr.flush()
    os._exit(3)

def hanging(path, inputs):
    if IS_START:
        raise ValueError("does not start")
    time.sleep(600)

def fading(path, inputs):
    """Right until the calls are timed."""
    calls = [0]
    def call(arrays):
        calls[0] += 1
        if calls[0] > {INPUT_SETS} + 1 and not IS_START:
            os._exit(4)
        return np.maximum(arrays["x"] @ WEIGHT, 0)
    return call

ENGINES = {{one.__name__: one for one in (right, wrong, short, refusing, dying, hanging, fading)}}
LIBRARIES = dict.fromkeys(ENGINES, "json")
'''


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """``relu(x @ weight)`` with its description."""
    folder = tmp_path / "models"
    folder.mkdir()
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["column"], "product"),
            helper.make_node("Relu", ["column"], ["score"], "clip"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(WEIGHT, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "tiny.onnx")
    write_card(folder)
    return folder


def write_card(folder: Path, name: str = "tiny", source: str = "tiny.onnx", **inputs: Any) -> None:
    inputs = inputs or {"x": {"shape": ["N", WIDTH], "dtype": "float32", "kind": "normal"}}
    (folder / f"{name}.json").write_text(json.dumps({"source": source, "inputs": inputs}))


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    path = tmp_path / "fakes.py"
    path.write_text(FAKES)
    return path


@pytest.fixture
def peers(tmp_path: Path, fakes: Path) -> Path:
    """A list with all fakes, one that has no file for some sizes, and one that could not be converted."""
    folder = tmp_path / "peers"
    folder.mkdir()
    (tmp_path / "peer_model.txt").write_text("model of the peer")
    (tmp_path / "fixed_2.txt").write_text("model of the peer")
    (folder / "peers.json").write_text(
        json.dumps(
            {
                "peers": {
                    name: {
                        "python": sys.executable,
                        "engines": str(fakes),
                        "version": "1.0",
                        "models": {"tiny": str(tmp_path / "peer_model.txt")},
                        "reasons": {},
                    }
                    for name in ("right", "wrong", "short", "refusing", "dying", "hanging", "fading")
                }
                | {
                    "unconverted": {
                        "python": sys.executable,
                        "engines": str(fakes),
                        "version": "",
                        "models": {},
                        "reasons": {"tiny": "no such layer"},
                    },
                    "elsewhere": {
                        "python": sys.executable,
                        "engines": str(fakes),
                        "version": "",
                        "models": {"trees": "trees.txt"},
                        "reasons": {},
                    },
                }
            }
        )
    )
    return folder


def test_from_models_and_peers_to_the_result(models: Path, peers: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    measured = benchmark_engine(
        models,
        peers,
        sizes=[2],
        budget_s=0.01,
        repeats=1,
        timeout_s=12,
        progress=lambda *step: steps.append(step),
    )
    assert list(measured) == ["noop_us", "models", "start", "passes", "peak_gflops", "versions", "failures"]
    assert json.loads(json.dumps(measured, allow_nan=False)).keys() == measured.keys()

    entry = measured["models"]["tiny"]["2"]
    assert set(entry["peers"]) == {"right", "wrong", "short"}
    assert entry["best_peer"] == "right"
    assert entry["best_peer_us"] == entry["peers"]["right"]["p50_us"]
    assert entry["ratio"] == entry["best_peer_us"] / entry["ours_us"]
    assert entry["flops"] > 0
    assert entry["share_of_peak"] == entry["flops"] / (entry["ours_us"] * 1e3 * measured["peak_gflops"])
    assert entry["ours_error"] < 1e-6
    assert entry["ours_us"] <= entry["ours_p99_us"]
    assert entry["peers"]["right"]["wrong"] is False
    assert entry["peers"]["wrong"]["wrong"] is True
    assert entry["peers"]["short"]["wrong"] is True
    assert entry["peers"]["short"]["error"] is None
    assert all(one["calls"] > 0 for one in entry["peers"].values())

    failures = measured["failures"]
    assert failures["tiny/wrong/2"].startswith("wrong: relative error ")
    assert failures["tiny/short/2"] == "wrong: relative error inf"
    assert failures["tiny/refusing/2"] == "ValueError: no such operator"
    assert failures["tiny/dying/2"] == "the process ended with exit code 3: Illegal instruction"
    assert failures["tiny/hanging/2"] == "no answer to 'load' within 12 s"
    assert failures["tiny/fading/2"] == "the process ended with exit code 4"
    assert failures["tiny/unconverted"] == "no such layer"
    assert failures["tiny/hanging start"].endswith("ValueError: does not start")
    assert not [key for key in failures if "elsewhere" in key or "/ours" in key or "/right" in key]

    start = measured["start"]["tiny"]
    assert {"ours", "right", "wrong"} <= set(start["engines"])
    for figures in start["engines"].values():
        parts = figures["import_ms"] + figures["load_ms"] + figures["first_ms"]
        assert figures["total_ms"] == pytest.approx(parts)
    best = start["best_peer"]
    assert best in ("right", "fading")  # what is wrong is no peer here either
    assert start["smallest_peer"] in ("right", "fading", None)
    assert start["ratio"] == start["engines"][best]["total_ms"] / start["engines"]["ours"]["total_ms"]
    assert start["first_launch_ms"] > 0
    assert start["search_ms"] is None

    assert set(measured["passes"]["tiny"]) == {"fuse_matmul"}
    assert measured["passes"]["tiny"]["fuse_matmul"] > 0
    assert measured["noop_us"] is None
    assert measured["versions"]["right"] == "1.0"
    assert steps[0] == (0, 3, "tiny")
    assert steps[-1] == (3, 3, "done")


def test_a_model_that_is_not_understood_is_a_failure_and_the_others_are_measured(models: Path, tmp_path: Path) -> None:
    (models / "broken.onnx").write_bytes(b"no model")
    write_card(models, "broken", "broken.onnx")
    write_card(models, "renamed", "tiny.onnx", y={"shape": ["N", WIDTH], "dtype": "float32", "kind": "normal"})
    write_card(models, "wide", "tiny.onnx", x={"shape": ["N", WIDTH + 1], "dtype": "float32", "kind": "normal"})
    measured = benchmark_engine(models, tmp_path, sizes=[1], budget_s=0.001, repeats=1)
    assert measured["models"].keys() == {"tiny", "wide"}
    assert measured["models"]["wide"] == {}
    assert str(WIDTH + 1) in measured["failures"]["wide/reference/1"]
    assert "wide/ours start" in measured["failures"]
    assert "broken.onnx" in measured["failures"]["broken/ours"]
    assert measured["failures"]["renamed/ours"].endswith("has the inputs x, its description y")
    assert "make bench" in measured["failures"]["peers"]
    entry = measured["models"]["tiny"]["1"]
    assert (entry["best_peer"], entry["best_peer_us"], entry["ratio"], entry["peers"]) == (None, None, None, {})


def test_a_history_that_stays_and_the_search_are_measured(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached form gets inputs with one history, and its scores are right for them."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["user", "square"], ["state"]),
            helper.make_node("Add", ["x", "state"], ["sum"]),
            helper.make_node("MatMul", ["sum", "weight"], ["score"]),
        ],
        "history",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH]),
            helper.make_tensor_value_info("user", TensorProto.FLOAT, [1, WIDTH]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(WEIGHT, "weight"), numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "square")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, models / "history.onnx")
    normal = {"dtype": "float32", "kind": "normal"}
    write_card(
        models, "history", "history.onnx", x={"shape": ["N", WIDTH], **normal}, user={"shape": [1, WIDTH], **normal}
    )
    card = read_cards(models, ["history"])[0]
    assert card.has_history
    assert not read_cards(models, ["tiny"])[0].has_history
    same, other = card.draw(4, same_history=True), card.draw(4)
    assert all((one["user"] == same[0]["user"]).all() for one in same)
    assert not (same[0]["x"] == same[1]["x"]).any()
    assert not (other[0]["user"] == other[1]["user"]).any()

    def search(*_: Any, budget_s: float, cache_dir: Path) -> tuple[Path, dict[str, Any]]:
        return cache_dir, {"trials": [1], "is_used": True, "elapsed_s": 0.75}

    monkeypatch.setattr("rerank_engine.search.tune.tune_model", search)
    measured = benchmark_engine(models, models, only=["history"], sizes=[50], budget_s=0.01, repeats=1)
    assert set(measured["failures"]) == {"peers"}
    entry = measured["models"]["history"]["50"]
    assert entry["forms"]["ours_cached"]["error"] < 1e-6
    assert entry["cached_us"] == entry["forms"]["ours_cached"]["p50_us"] > 0
    assert entry["cached_ratio"] is None
    assert measured["start"]["history"]["search_ms"] == 750
    assert set(measured["start"]["history"]["engines"]) == {"ours"}
    gains = measured["passes"]["history"]
    assert gains["history_key"] == entry["ours_us"] / entry["cached_us"]
    assert gains["search"] > 0


def test_the_command_measures_alone_and_says_so(models: Path, tmp_path: Path) -> None:
    options = ["--models", str(models), "--peers", str(tmp_path / "none"), "--sizes", "3", "--budget-s", "0.001"]
    result = CliRunner().invoke(app, ["bench", "engine", *options, "--json"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    assert set(json.loads(result.stdout)["models"]["tiny"]) == {"3"}
    assert result.stderr.startswith("measured without peers: ")
    assert result.stderr.count("\n") == 1


def test_the_command_shows_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = {"p50_us": 15.0, "p99_us": 20.0, "calls": 9, "error": 0.0, "wrong": False}
    entry = compare(
        {"ours": Times(10, 12, 9), "quick": Times(15, 20, 9), "liar": Times(1, 2, 9)},
        {"liar": 1.0},
        flops=1000,
        peak_gflops=1.0,
    )
    assert entry["peers"]["quick"] == peer
    engines = {"ours": {"total_ms": 5.0, "rss_mb": 30.0}, "quick": {"total_ms": 9.0, "rss_mb": 40.0}}
    start = {"engines": engines, "best_peer": "quick", "smallest_peer": "quick"}
    start |= {"first_launch_ms": 700.0, "search_ms": 900.0}
    measured = {
        "noop_us": 1.25,
        "models": {"mlp": {"10": entry}, "din": {"10": {**entry, "cached_us": 5.0, "cached_ratio": 3.0}}},
        "start": {"mlp": start},
        "passes": {"mlp": {"fuse_matmul": 1.5}},
        "peak_gflops": 100.0,
        "versions": {},
        "failures": {"mlp/other": "too old"},
    }
    monkeypatch.setattr("rerank_engine.benchmark.benchmark_engine", lambda *_, **__: measured)
    result = CliRunner().invoke(app, ["bench", "engine"])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["10", "10.0", "12.0", "quick", "15.0", "1.50", "10%"] in lines
    assert ["10", "10.0", "12.0", "quick", "15.0", "1.50", "10%", "5.0", "3.00"] in lines
    assert ["liar", "wrong"] in lines
    assert ["mlp", "5.0", "quick", "9.0", "30.0", "quick", "40.0", "700.0", "900.0"] in lines
    assert ["fuse_matmul", "1.50"] in lines
    assert "mlp/other: too old" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_command_without_models_says_what_makes_them(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "engine", "--models", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "make bench" in result.stderr


@pytest.mark.parametrize("option", [("--sizes", "0"), ("--sizes", "ten"), ("--sizes", "1,,2"), ("--budget-s", "0")])
def test_the_command_refuses_wrong_numbers(option: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, ["bench", "engine", *option]).exit_code == 2


@pytest.mark.parametrize(
    "options", [{"sizes": []}, {"sizes": [0]}, {"budget_s": 0}, {"repeats": 0}, {"timeout_s": 0}, {"budget_s": -1}]
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], models: Path, peers: Path) -> None:
    with pytest.raises(InputError):
        benchmark_engine(models, peers, **options)


# --- times, errors, ratios -----------------------------------------------------------------------------------


def test_the_best_peer_is_the_quickest_that_is_right() -> None:
    times = {"ours": Times(4, 5, 9), "slow": Times(12, 13, 9), "quick": Times(6, 90, 9), "wrong": Times(1, 2, 9)}
    errors = {"ours": 1e-7, "slow": 0.0, "quick": LARGEST_ERROR, "wrong": 2 * LARGEST_ERROR}
    entry = compare(times, errors, flops=8_000, peak_gflops=10.0)
    assert (entry["best_peer"], entry["best_peer_us"], entry["ratio"]) == ("quick", 6, 1.5)
    assert entry["share_of_peak"] == pytest.approx(0.2)
    assert [name for name, one in entry["peers"].items() if one["wrong"]] == ["wrong"]


def test_no_ratio_when_our_scores_are_wrong_or_missing() -> None:
    times = {"ours": Times(4, 5, 9), "other": Times(12, 13, 9)}
    entry = compare(times, {"ours": 1.0}, flops=8, peak_gflops=1.0)
    assert (entry["ratio"], entry["share_of_peak"]) == (None, None)
    entry = compare({"other": Times(12, 13, 9)}, {})
    assert (entry["ours_us"], entry["best_peer"], entry["ratio"]) == (None, "other", None)


def test_another_form_of_our_call_is_no_peer() -> None:
    entry = compare({"ours": Times(4, 5, 9), "ours_into": Times(2, 3, 9), "other": Times(8, 9, 9)}, {})
    assert entry["best_peer"] == "other"
    assert set(entry["peers"]) == {"other"}
    assert entry["forms"]["ours_into"]["p50_us"] == 2


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([[1.0, -4.0]], 0.0),
        ([[[1.0], [-4.0]]], 0.0),
        ([[1.0, -3.0]], 0.25),
        ([[1.0, float("nan")]], float("inf")),
        ([[1.0]], float("inf")),
        ([], float("inf")),
    ],
)
def test_the_error_is_relative_to_the_largest_score(given: Any, error: float) -> None:
    found = relative_error([np.array(one) for one in given], [np.array([1.0, -4.0])])
    assert found == error
    assert is_wrong(found) == (error > LARGEST_ERROR)


def test_no_scores_and_zero_scores_have_an_error_too() -> None:
    assert relative_error([np.zeros((0, 1))], [np.zeros(0)]) == 0
    assert relative_error([np.full(2, 0.5)], [np.zeros(2)]) == 0.5
    assert is_wrong(float("nan"))


def test_times_are_percentiles_in_microseconds() -> None:
    times = Times.of(list(range(1_000, 102_000, 1_000)))
    assert (times.p50_us, times.p99_us, times.calls) == (51, 100, 101)


@pytest.mark.parametrize("budget_s", [0.001, 0.5, 30])
def test_blocks_fill_the_budget_and_are_never_empty(budget_s: float) -> None:
    rounds, blocks = plan_blocks({"fast": 1_000, "middle": 1e6, "slow": 1e9}, budget_s)
    assert rounds >= 3
    assert all(1 <= block <= 2_000 for block in blocks.values())
    assert blocks["fast"] >= blocks["middle"] >= blocks["slow"]


class Recorded:
    """A worker whose calls take a fixed time, and which fails at one of them."""

    def __init__(self, name: str, call_ns: int, asked: list[str], fails_at: int = 0) -> None:
        self.name, self.call_ns, self.asked, self.fails_at = name, call_ns, asked, fails_at
        self.count = 0

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append(self.name)
        self.count += 1
        if self.count == self.fails_at:
            raise WorkerFailed("gone")
        return {"ns": [self.call_ns] * request["calls"]}


def test_engines_take_turns_in_alternating_order() -> None:
    asked: list[str] = []
    workers = {"a": Recorded("a", 10_000, asked), "b": Recorded("b", 20_000, asked), "c": Recorded("c", 9, asked, 4)}
    times, failures = time_interleaved(workers, 0.04, 1)  # type: ignore[arg-type]
    assert asked[:11] == ["a", "b", "c", "a", "b", "c", "c", "b", "a", "a", "b"]
    assert asked[11:15] == ["c", "b", "a", "a"]
    assert failures == {"c": "gone"}
    assert times == {"a": Times(10, 10, 20 * 200), "b": Times(20, 20, 20 * 100)}


def test_an_answer_without_times_is_a_failure() -> None:
    class Mute(Recorded):
        def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            return {"ns": None}

    assert time_interleaved({"a": Mute("a", 1, [])}, 0.01, 1) == (  # type: ignore[dict-item]
        {},
        {"a": "the answer has no times"},
    )
    assert time_interleaved({}, 0.01, 1) == ({}, {})


# --- models and their inputs ---------------------------------------------------------------------------------


def test_inputs_are_drawn_as_described_and_always_the_same(models: Path) -> None:
    write_card(
        models,
        x={"shape": ["N", 3], "dtype": "float32", "kind": "normal"},
        ids={"shape": ["N", 2], "dtype": "int64", "kind": "integers", "below": 5},
        mask={"shape": [7], "dtype": "float32", "kind": "mask", "at_least": 2},
    )
    card = read_cards(models)[0]
    sets, again = card.draw(50), card.draw(50)
    assert len(sets) == INPUT_SETS
    for one, other in zip(sets, again, strict=True):
        assert list(one) == ["x", "ids", "mask"]
        assert all(np.array_equal(one[name], other[name]) for name in one)
        assert (one["x"].shape, one["x"].dtype) == ((50, 3), np.float32)
        assert (one["ids"].shape, one["ids"].dtype) == ((50, 2), np.int64)
        assert set(np.unique(one["ids"])) == set(range(5))
        length = int(one["mask"].sum())
        assert 2 <= length <= 7
        assert one["mask"].tolist() == [1.0] * length + [0.0] * (7 - length)
    assert not np.array_equal(sets[0]["x"], sets[1]["x"])
    assert len({int(one["mask"].sum()) for one in sets}) > 1


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"shape": ["N"], "dtype": "float32", "kind": "uniform"},
        {"shape": ["M"], "dtype": "float32", "kind": "normal"},
        {"shape": [0], "dtype": "float32", "kind": "normal"},
        {"shape": ["N"], "dtype": "object", "kind": "normal"},
        {"shape": ["N"], "dtype": "int64", "kind": "integers"},
        {"shape": ["N"], "dtype": "int64", "kind": "integers", "below": 0},
        {"shape": [], "dtype": "float32", "kind": "mask", "at_least": 1},
        {"shape": ["N"], "dtype": "float32", "kind": "normal", "scale": 2},
    ],
)
def test_a_wrong_description_is_refused(spec: dict[str, Any], models: Path) -> None:
    write_card(models, x=spec)
    with pytest.raises(DataError, match=r"tiny\.json"):
        read_cards(models)


def test_a_missing_source_and_an_unknown_name_are_refused(models: Path) -> None:
    with pytest.raises(DataError, match=r"no model 'mlp'.*there are: tiny"):
        read_cards(models, ["mlp"])
    write_card(models, source="other.onnx")
    with pytest.raises(DataError, match=r"other\.onnx missing"):
        read_cards(models)


@pytest.mark.parametrize("text", ["", "[]", '{"peers": {"a": {}}}', '{"peers": []}'])
def test_a_damaged_list_of_peers_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(text)
    with pytest.raises(DataError, match=r"peers\.json"):
        read_peers(tmp_path)


def test_a_file_for_each_size(peers: Path, tmp_path: Path) -> None:
    listed = json.loads((peers / "peers.json").read_text())
    listed["peers"]["right"]["models"] = {"tiny": str(tmp_path / "fixed_{N}.txt")}
    listed["peers"]["right"]["reasons"] = {"tiny N=10": "too long"}
    (peers / "peers.json").write_text(json.dumps(listed))
    peer = read_peers(peers)[0]
    assert peer.path("tiny", 2) == str(tmp_path / "fixed_2.txt")
    assert (peer.path("tiny", 10), peer.reason("tiny", 10)) == (None, "too long")
    assert (peer.path("tiny", 50), peer.reason("tiny", 50)) == (None, "not converted for 50 candidates")
    assert (peer.path("other", 2), peer.reason("other", 2)) == (None, None)


# --- processes -----------------------------------------------------------------------------------------------


def test_an_engine_gets_one_thread_and_nothing_that_is_meant_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    variables = EngineCommand("python", "engines.py", environment={"EXTRA": "1"}).variables()
    assert not {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH"} & set(variables)
    assert (variables["OMP_NUM_THREADS"], variables["EXTRA"]) == ("1", "1")
    assert "--core" not in EngineCommand("python", "engines.py").words()
    assert EngineCommand("python", "engines.py", 0).words()[-2:] == ["--core", "0"]


def test_the_processors_are_among_those_that_are_allowed() -> None:
    here, there = choose_cores()
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        assert {here, there} <= allowed
        assert (here == there) == (len(allowed) == 1)
    else:
        assert (here, there) == (None, None)


def test_an_interpreter_that_is_missing_is_a_failure(tmp_path: Path, fakes: Path) -> None:
    command = EngineCommand(str(tmp_path / "no-python"), str(fakes))
    with pytest.raises(WorkerFailed, match="cannot be started"):
        Worker(command.words(), command.variables(), tmp_path / "log")
    with pytest.raises(WorkerFailed, match="cannot be started"):
        run_start(command, ["right", "m", "i"], 5)


def test_a_start_that_hangs_is_given_up(tmp_path: Path) -> None:
    sleeping = tmp_path / "sleeping.py"
    sleeping.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(WorkerFailed, match=r"no start within 0\.5 s"):
        run_start(EngineCommand(sys.executable, str(sleeping)), ["right", "m", "i"], 0.5)


def test_a_worker_answers_errors_and_goes_on(tmp_path: Path, fakes: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **{f"{place}/x": np.ones((2, WIDTH), np.float32) for place in range(2)})
    (tmp_path / "model").write_text("model of the peer")
    request = {
        "do": "load",
        "engine": "right",
        "model": str(tmp_path / "model"),
        "inputs": str(tmp_path / "inputs.npz"),
    }
    command = EngineCommand(sys.executable, str(fakes))
    worker = Worker(command.words(), command.variables(), tmp_path / "log")
    try:
        with pytest.raises(WorkerFailed, match="no such operator"):
            worker.ask({**request, "engine": "refusing"}, 60)
        with pytest.raises(WorkerFailed, match="TypeError"):
            worker.ask({"do": "time", "calls": 2}, 60)
        assert worker.is_alive
        assert worker.ask(request, 60) == {}
        assert len(worker.ask({"do": "time", "calls": 5}, 60)["ns"]) == 5
        worker.ask({"do": "outputs", "path": str(tmp_path / "scores.npz")}, 60)
    finally:
        worker.close()
    assert not worker.is_alive
    assert np.load(tmp_path / "scores.npz")["1"].tolist() == [10.0, 10.0]
    assert "past Python" in (tmp_path / "log").read_text()
    with pytest.raises(WorkerFailed, match="the process ended"):
        worker.ask({"do": "time", "calls": 1}, 5)


def test_an_answer_that_is_no_object_is_a_failure() -> None:
    for text in ("", "[1]", "Segmentation"):
        with pytest.raises(WorkerFailed, match="not a JSON object"):
            decode(text)


# --- ours ----------------------------------------------------------------------------------------------------


def test_the_truth_is_the_model_as_written_in_float64(models: Path) -> None:
    card = read_cards(models)[0]
    graph = truth_graph(card)
    assert [node.op for node in graph.nodes] == ["MatMul", "Relu"]
    sets = card.draw(3)
    right = truth(graph, sets)
    assert right[0].dtype == np.float64
    expected = np.maximum(sets[0]["x"].astype(np.float64) @ WEIGHT, 0)
    np.testing.assert_allclose(right[0], expected, rtol=1e-12)


def test_our_engine_is_not_measured_without_machine_code(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        backend = "numpy"
        backend_reason = "memory may not be executed"

    monkeypatch.setattr("rerank_engine.runtime.load", lambda *_, **__: Slow())
    monkeypatch.setenv(ours.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeError, match="memory may not be executed"):
        ours.ENGINES["ours"]("tiny.rrm", {})


def test_a_pass_that_does_nothing_has_no_gain(models: Path, tmp_path: Path) -> None:
    card = read_cards(models)[0]
    session = Session(tmp_path, [], None, 0.001, 60, 1)
    model = session.convert(card, skip=["fuse_matmul"])
    assert measure_gains(session, card, model, 2) == {}
    assert session.failures == {}


def test_the_peak_is_more_than_one_operation_a_nanosecond() -> None:
    assert peak_gflops() > 1
