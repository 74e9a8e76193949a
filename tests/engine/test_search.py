"""Kernel search: what is worth measuring, candidates that go wrong, whole models, a search beside a running engine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine import Model, load, runtime
from rerank_engine.codegen.compile import compile_graph
from rerank_engine.codegen.target import host_target
from rerank_engine.errors import InputError
from rerank_engine.image import Image
from rerank_engine.kernels.gemm import Product, Tiling, choose_tiling, legal_tilings
from rerank_engine.search import background, trials, tune
from rerank_engine.search.kernel import Kernel, Operands, build_kernel
from rerank_engine.search.products import ProductWork, products_of
from rerank_engine.search.trials import CandidateBench, search_tilings
from rerank_engine.workers import WorkerFailed

SABOTAGED = Path(__file__).parent / "search_workers" / "sabotaged.py"
WORK = ProductWork(Product(24, 128, "Relu", 0.0, True), 24 * 128)


def network(tools: Any, inner: int = 96, columns: int = 128) -> Model:
    """A model whose products are worth a search, with a sample."""
    from rerank_engine.sample import make_sample

    random = np.random.default_rng(4)
    b = tools.GraphBuilder()
    x = b.input("float32", "N", inner, domain="plain")
    hidden = b.node(
        "MatMul",
        x,
        b.constant(random.normal(0, 0.1, (inner, columns))),
        b.constant(random.normal(size=columns)),
        activation="Relu",
    )
    score = b.node("MatMul", hidden, b.constant(random.normal(0, 0.1, (columns, 1))))
    graph = b.output(b.node("Reshape", score, shape=("N",))).finish()
    graph.sample = make_sample(graph)
    return Model(graph)


def name(tiling: Tiling) -> str:
    return f"{tiling.many_rows}x{tiling.vectors}"


def choices() -> list[Tiling]:
    target = host_target()
    return legal_tilings(WORK.product.columns, target.lanes, target.registers)


def sabotaged(**faults: Tiling) -> list[str]:
    return [sys.executable, str(SABOTAGED), *(f"{name(tiling)}={fault}" for fault, tiling in faults.items())]


# --- what is worth it ---------------------------------------------------------------------------------------------


def test_products_are_ranked_by_their_work(tools: Any) -> None:
    b = tools.GraphBuilder()
    weight = [b.constant(np.ones(shape, np.float32)) for shape in ((8, 20), (20, 30), (20, 30), (30, 2), (8, 5))]
    first = b.node("MatMul", b.input("float32", "N", 8), weight[0], activation="Relu")
    history = b.input("float32", "N", 6, 20)
    b.node("MatMul", history, weight[1])
    second = b.node("MatMul", first, weight[2])
    once = b.node("MatMul", b.input("float32", "T", 8), weight[4])
    b.output(b.node("MatMul", second, weight[3]), b.node("MatMul", once, b.input("float32", 5, 7)), history)
    found = products_of(b.finish())
    assert [(one.key, one.multiplications) for one in found] == [
        ((20, 30), 600 + 6 * 600),
        ((8, 5), 50 * 40),
        ((8, 20), 160),
    ], "no work is counted for two columns, which go along the depth, nor for computed right sides"
    assert found[2].product == Product(8, 20, "Relu", 0.0, False)


@pytest.mark.parametrize("rows", [1, 10, 37])
@pytest.mark.parametrize("activation", ["", "Relu", "Sigmoid", "Tanh", "LeakyRelu"])
def test_a_kernel_is_right_and_its_check_can_fail(rows: int, activation: str) -> None:
    product = Product(33, 70, activation, 0.2, rows > 1)
    target = host_target()
    tiling = choose_tiling(70, target.lanes, target.registers)
    operands = Operands.draw(product, rows)
    code = build_kernel(product, tiling, target, rows)
    kernel = Kernel(code, product, tiling, target, operands)
    assert kernel.error() == ""
    assert kernel.time_ns(3) > 0
    operands.want[rows - 1, 69] += 0.5
    operands.want[0] = np.abs(operands.want[0])
    assert "off by" in Kernel(code, product, tiling, target, operands).error()


# --- candidates that go wrong --------------------------------------------------------------------------------------


def test_what_is_wrong_or_crashes_or_hangs_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them wins, none takes this process down, and those that come after are tried all the same."""
    monkeypatch.setattr(trials, "_RUN_TIMEOUT_S", 2.0)
    bad = ("wrong", "crash", "overrun", "hang", "refuse", "silent")
    default, *others = choices()
    seen: list[str] = []
    result = search_tilings(
        [WORK],
        120.0,
        command=sabotaged(slow=default, **dict(zip(bad, others, strict=False))),
        progress=lambda trial: seen.append(trial.tiling),
    )
    assert result.is_complete
    assert seen == [trial.tiling for trial in result.trials]
    reasons = {trial.tiling: trial.reason for trial in result.trials if trial.ratio is None}
    assert set(reasons) == {str(tiling) for tiling in others[: len(bad)]}
    wrong, crash, overrun, hang, refuse, silent = (reasons[str(tiling)] for tiling in others[: len(bad)])
    assert wrong.startswith("wrong: off by")
    assert "the process ended" in crash
    assert overrun == "wrong: it writes behind its last row"
    assert hang == "no answer to 'check' within 2 s"
    assert refuse == "CompileError: the compiler does not like it"
    assert silent == "the process ended with exit code 7"
    # The default is slow here, so one of the sound ones has won, tried with many rows and with few.
    (chosen,) = result.tilings.values()
    assert result.ratios[WORK.key] > trials.BETTER
    sound = {name(tiling) for tiling in others[len(bad) :]}
    assert f"{chosen.many_rows}x{chosen.vectors}" in sound
    assert f"{chosen.few_rows}x{chosen.vectors}" in sound | {name(default)}


def test_what_is_slow_does_not_win() -> None:
    default, *others = choices()
    result = search_tilings([WORK], 120.0, command=sabotaged(slow=others[0]))
    (slow,) = (trial for trial in result.trials if trial.tiling == str(others[0]) and trial.rows == trials.MANY_ROWS)
    assert slow.ratio is not None
    assert slow.ratio < 1
    assert all(tiling not in (others[0], default) for tiling in result.tilings.values())


def test_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.perf_counter()
    result = search_tilings([WORK], 0.0)
    assert (result.trials, result.tilings, result.is_complete) == ((), {}, False)
    assert result.elapsed_s <= time.perf_counter() - started
    ticks = iter(range(1000))
    monkeypatch.setattr(trials, "perf_counter", lambda: float(next(ticks)))
    assert len(search_tilings([WORK], 3.5).trials) == 3, "each look at the clock takes a second"


def test_a_default_that_fails_ends_the_search() -> None:
    with pytest.raises(WorkerFailed, match=r"the default tiling \d+x\d of 24x128 fails: wrong: off by"):
        search_tilings([WORK], 60.0, command=sabotaged(wrong=choices()[0]))
    with pytest.raises(WorkerFailed, match="cannot be started"):
        search_tilings([WORK], 60.0, command=[str(SABOTAGED.parent / "missing")])


# --- whole models ---------------------------------------------------------------------------------------------------


def spoiled(image: Image, path: Path, fault: str) -> Path:
    """An image of the model with a fault."""
    code, data = image.code, image.data
    if fault == "wrong":
        start = image.meta["interface_offset"]
        data = memoryview((-np.frombuffer(data[:start], np.float32)).tobytes() + bytes(data[start:]))
    elif fault:
        is_x86 = host_target().architecture == "x86_64"
        word = {"crash": (b"\x0f\x0b", bytes(4)), "hang": (b"\xeb\xfe", b"\0\0\0\x14")}[fault][0 if is_x86 else 1]
        code = word * (len(code) // len(word))
    Image(code, image.meta, data).write(path)
    return path


def test_models_are_compared_in_another_process(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_OPEN_TIMEOUT_S", 2.0)
    image = compile_graph(network(tools).graph)
    good = spoiled(image, tmp_path / "good.rri", "")
    expected = {"wrong": "wrong: output .* differs", "crash": "the process ended", "hang": "no answer to 'open'"}
    for fault, told in expected.items():
        bench = CandidateBench(tune.WORKER, tmp_path / "log")
        try:
            with pytest.raises(WorkerFailed, match=told):
                bench.compare_images(good, spoiled(image, tmp_path / "bad.rri", fault), (10,))
        finally:
            bench.close()
    bench = CandidateBench(tune.WORKER, tmp_path / "log")
    ratios = bench.compare_images(good, good, (0, 3, 200))
    bench.close()
    assert sorted(ratios) == [0, 3, 200]
    assert all(ratio > 0 for ratio in ratios.values())


def test_what_is_faster_is_kept_and_gives_the_same_bits(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(tools)
    plain = load(model, cache_dir=tmp_path / "plain")
    monkeypatch.setattr(CandidateBench, "compare_images", lambda *_: {10: 1.2, 50: 1.1, 200: 1.05})
    monkeypatch.setattr(tune, "WORKER", sabotaged(slow=choices()[0]))
    path, report = tune.tune_model(model, budget_s=60.0, cache_dir=tmp_path / "tuned")
    assert report["is_used"], report
    assert report["reason"] == "faster: 1.20x at N=10, 1.10x at N=50, 1.05x at N=200"
    assert set(report["tilings"]) == {"96x128"}
    tuned = load(model, cache_dir=tmp_path / "tuned")
    assert (tuned.backend_reason, tuned.cache_path) == ("stored machine code", path)
    assert tuned.explain()["search"] == report
    assert Image.read(path).code != Image.read(plain.cache_path).code
    for candidates in (0, 1, 15, 16, 17, 131):
        x = np.random.default_rng(candidates).normal(size=(candidates, 96)).astype(np.float32)
        (given,) = (value.name for value in plain.inputs)
        np.testing.assert_array_equal(tuned.run({given: x}), plain.run({given: x}))
    # What was found before stays until something better is found, however short the next search is.
    code = Image.read(path).code
    for ratios, budget_s in (({10: 1.2, 50: 0.9, 200: 1.2}, 60.0), ({10: 2.0}, 0.0)):
        monkeypatch.setattr(CandidateBench, "compare_images", lambda *_, ratios=ratios: ratios)
        _, again = tune.tune_model(model, budget_s=budget_s, cache_dir=tmp_path / "tuned")
        assert again["is_used"]
        assert again["tilings"] == report["tilings"]
        assert again["reason"] == "kept: faster: 1.20x at N=10, 1.10x at N=50, 1.05x at N=200"
        assert Image.read(path).code == code
        assert Image.read(path).meta["search"] == report


def test_a_candidate_that_fails_as_a_whole_leaves_the_default(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise WorkerFailed("the process ended by signal 11")

    monkeypatch.setattr(CandidateBench, "compare_images", fail)
    monkeypatch.setattr(tune, "WORKER", sabotaged(slow=choices()[0]))
    path, report = tune.tune_model(network(tools), budget_s=60.0, cache_dir=tmp_path)
    assert report["reason"] == "the whole model with what was found fails: the process ended by signal 11"
    assert Image.read(path).meta["search"] == report


def test_small_models_and_failures_leave_the_default(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, report = tune.tune_model(network(tools, 10, 12), budget_s=60.0, cache_dir=tmp_path)
    assert report["reason"] == "its matrix products are too small to gain"
    assert Image.read(path).meta["search"] == report
    monkeypatch.setattr(tune, "WORKER", [sys.executable, "-c", "raise SystemExit('no such library')"])
    failed, report = tune.tune_model(network(tools), budget_s=60.0, cache_dir=tmp_path)
    assert report["reason"] == "given up: the process ended with exit code 1: no such library"
    assert "search" not in Image.read(failed).meta, "it may be tried again"
    assert load(network(tools), cache_dir=tmp_path).backend_reason == "stored machine code"


# --- beside a running engine -----------------------------------------------------------------------------------------


def test_a_search_runs_beside_the_engine(tools: Any, tmp_path: Path) -> None:
    model = network(tools)
    engine = load(model, cache_dir=tmp_path, search_s=0.3)
    (given,) = (value.name for value in engine.inputs)
    x = np.ones((20, 96), np.float32)
    before = engine.run({given: x})
    assert engine.explain()["search"]["reason"] == "running" or engine.wait_for_search(0)
    assert engine.wait_for_search(120)
    report = engine.explain()["search"]
    assert report["budget_s"] == 0.3, report
    assert report["search_s"] > 0
    np.testing.assert_array_equal(engine.run({given: x}), before)
    again = load(model, cache_dir=tmp_path, search_s=0.3)
    assert again.backend_reason == "stored machine code"
    assert again.wait_for_search(0), "what was searched once is not searched again"
    assert again.explain()["search"] == report


def test_what_a_search_finds_is_taken_by_the_running_engine(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(tools)

    def find(words: list[str], timeout_s: float) -> str:
        _, image, key, *_ = words
        found = compile_graph(model.graph, tilings={(96, 128): choices()[1]})
        found.meta["key"], found.meta["search"] = key, {"is_used": True, "reason": "faster: much"}
        found.write(Path(image))
        return ""

    monkeypatch.setattr(background, "_run_process", find)
    engine = load(model, cache_dir=tmp_path, search_s=1)
    assert engine.wait_for_search(60)
    assert engine.explain()["search"]["reason"] == "faster: much"
    assert engine.explain()["code_bytes"] == len(Image.read(engine.cache_path).code)
    assert engine.self_check() == ""


@pytest.mark.parametrize(
    ("arrange", "told"),
    [
        (lambda patch: patch.setattr(sys, "frozen", True, raising=False), "is no Python interpreter"),
        (
            lambda patch: patch.setattr(background, "_run_process", lambda *_: "ImportError: x"),
            "failed: ImportError: x",
        ),
        (lambda patch: patch.setattr(background, "_run_process", lambda *_: ""), "has left no result"),
        (lambda patch: patch.setattr(runtime.Image, "write", _no_space), "the machine code could not be stored"),
    ],
)
def test_no_search_is_no_harm(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrange: Any, told: str
) -> None:
    arrange(monkeypatch)
    engine = load(network(tools), cache_dir=tmp_path, search_s=1)
    assert engine.wait_for_search(60)
    assert told in engine.explain()["search"]["reason"]
    assert engine.backend == "cpu"
    assert engine.self_check() == ""


def _no_space(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_that_was_replaced_is_not_tuned_for_the_old_one(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "network.rrm"
    network(tools).save(path)
    real = background._run_process

    def replace_first(words: list[str], timeout_s: float) -> str:
        network(tools, 100).save(path)
        return real(words, timeout_s)

    monkeypatch.setattr(background, "_run_process", replace_first)
    engine = load(path, cache_dir=tmp_path / "images", search_s=0.1)
    assert engine.wait_for_search(120)
    state = f"failed: {path} is not the model any more that was loaded from it"
    assert engine.explain()["search"]["reason"] == state
    assert engine.self_check() == ""


def test_a_search_ends_with_the_program(tools: Any, tmp_path: Path) -> None:
    """Neither the search nor a candidate outlives the process that began it."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("other processes are looked up in /proc")
    path = tmp_path / "network.rrm"
    network(tools, 300, 512).save(path)
    program = (
        "import sys, time; from rerank_engine import load\n"
        f"engine = load({str(path)!r}, cache_dir={str(tmp_path / 'images')!r}, search_s=600)\n"
        "time.sleep(0.5); print(engine.explain()['search']['reason'])\n"
    )
    entries = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": entries, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.strip() == "running", done.stderr
    deadline = time.monotonic() + 20
    while _alive(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(str(tmp_path))
    assert not list(tmp_path.glob("rerank-search-*")), "its temporary files are gone"


def _alive(word: str) -> list[str]:
    """Command lines and working folders of other processes that name a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if word.encode() in line:
                found.append(line.decode(errors="replace")[:200])
    return found


def test_options(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(tools)
    for bad in (-1, float("nan"), float("inf"), "1", [1], True, 3601, 1e300, 10**400):
        with pytest.raises(InputError, match="expected seconds from 0 to 3600"):
            load(model, cache_dir=tmp_path, search_s=bad)  # type: ignore[arg-type]
    for text in ("soon", "-1", "nan", "1e9"):
        monkeypatch.setenv("RERANK_SEARCH_S", text)
        with pytest.raises(InputError, match="expected seconds from 0 to 3600"):
            load(model, cache_dir=tmp_path)
    monkeypatch.setenv("RERANK_SEARCH_S", "0")
    engine = load(model, cache_dir=tmp_path)
    assert engine.explain()["search"] == {"is_used": False, "reason": "not run: rerank tune MODEL does"}
    assert engine.wait_for_search(0)


def test_a_small_model_is_never_searched(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_run_process", lambda *_: pytest.fail("a process was started"))
    for reason in ("compiled for this machine", "stored machine code"):
        engine = load(network(tools, 10, 12), cache_dir=tmp_path, search_s=1)
        assert engine.backend_reason == reason
        assert engine.wait_for_search(0)
        assert engine.explain()["search"]["reason"] == "its matrix products are too small to gain"


def test_a_search_that_was_cut_off_is_begun_again_but_not_for_ever(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = background._run_process
    monkeypatch.setattr(background, "_run_process", lambda *_: "the program ended")
    model = network(tools)
    load(model, cache_dir=tmp_path, search_s=0)
    for _ in range(background.MOST_ATTEMPTS):
        engine = load(model, cache_dir=tmp_path, search_s=0.1)
        assert engine.wait_for_search(60)
        assert engine.explain()["search"]["reason"] == "failed: the program ended"
    engine = load(model, cache_dir=tmp_path, search_s=0.1)
    assert engine.wait_for_search(0)
    assert engine.explain()["search"]["reason"].startswith(
        "not run: 3 searches were begun and none has ended; rerank tune"
    )
    monkeypatch.setattr(background, "_run_process", real)
    (attempts,) = tmp_path.glob("*.attempts")
    attempts.write_text("damaged")
    engine = load(model, cache_dir=tmp_path, search_s=0.1)
    assert engine.wait_for_search(120)
    assert engine.explain()["search"]["budget_s"] == 0.1
    assert not attempts.exists()


def test_a_process_that_only_searches_needs_no_compiler(tools: Any, tmp_path: Path) -> None:
    """The search of code that was stored without one happens elsewhere, compiler and all."""
    path = tmp_path / "network.rrm"
    network(tools).save(path)
    load(path, cache_dir=tmp_path / "images", search_s=0)
    program = (
        "import sys; from rerank_engine import load\n"
        f"engine = load({str(path)!r}, cache_dir={str(tmp_path / 'images')!r}, search_s=0.1)\n"
        "assert engine.wait_for_search(120)\n"
        "print(engine.explain()['search']['budget_s'], engine.backend_reason, 'llvmlite' in sys.modules)\n"
    )
    entries = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": entries}
    )
    assert done.stdout.strip() == "0.1 stored machine code False", done.stderr


def test_one_engine_of_a_process_searches(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def wait(*_: Any) -> str:
        release.wait(60)
        return "the program ended"

    monkeypatch.setattr(background, "_run_process", wait)
    model = network(tools)
    first = load(model, cache_dir=tmp_path, search_s=1)
    others = [load(model, cache_dir=tmp_path, search_s=1) for _ in range(5)]
    told = {engine.explain()["search"]["reason"] for engine in others}
    assert told == {"not run: another engine of this process has begun one"}
    assert not first.wait_for_search(0)
    release.set()
    assert first.wait_for_search(60)
    assert (tmp_path / f"{first.cache_path.stem}.attempts").read_text() == "1"


def test_what_goes_wrong_in_the_thread_is_told(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "_run_process", fail)
    engine = load(network(tools), cache_dir=tmp_path, search_s=1)
    assert engine.wait_for_search(60)
    assert engine.explain()["search"]["reason"] == "failed: can't start new thread"
    monkeypatch.setattr(threading.Thread, "start", fail)
    engine = load(network(tools), cache_dir=tmp_path, search_s=1)
    assert engine.wait_for_search(0)
    assert engine.explain()["search"]["reason"] == "not run: can't start new thread"


def test_no_module_of_the_working_folder_is_run(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    for module in ("json", "numpy", "llvmlite"):
        (evil / f"{module}.py").write_text("raise SystemExit('evil')")
    monkeypatch.chdir(evil)
    engine = load(network(tools), cache_dir=tmp_path, search_s=0.1)
    assert engine.wait_for_search(120)
    assert engine.explain()["search"]["budget_s"] == 0.1
    assert search_tilings([WORK], 0.0).trials == ()


def test_another_working_folder_does_not_matter(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network(tools).save("network.rrm")
    engine = load("network.rrm", cache_dir="images", search_s=0.1)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert engine.wait_for_search(120)
    assert engine.explain()["search"]["budget_s"] == 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_search_of_its_parent(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(background, "_run_process", lambda *_: str(release.wait(60)))
    engine = load(network(tools), cache_dir=tmp_path, search_s=1)
    child = os.fork()
    if child == 0:
        told = engine.explain()["search"]["reason"]
        os._exit(0 if engine.wait_for_search() and told.endswith("forked from") else 1)
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    assert engine.wait_for_search(60)


def test_threads_go_on_while_the_code_is_exchanged(tools: Any, tmp_path: Path) -> None:
    model = network(tools)
    engine = load(model, cache_dir=tmp_path)
    (given,) = (value.name for value in engine.inputs)
    x = np.random.default_rng(0).normal(size=(60, 96)).astype(np.float32)
    want = {size: engine.run({given: x[:size]}) for size in (1, 15, 40, 60)}
    wrong: list[object] = []
    is_over = threading.Event()

    def score() -> None:
        try:
            while not is_over.is_set():
                for size, right in want.items():
                    if not np.array_equal(engine.run({given: x[:size]}), right):
                        wrong.append(size)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=score) for _ in range(4)]
    for thread in threads:
        thread.start()
    for place, tiling in enumerate(choices()[:6]):
        image = compile_graph(model.graph, tilings={(96, 128): tiling})
        image.meta["search"] = {"is_used": True, "reason": f"number {place}"}
        for _ in range(20):
            engine._take_found(image)
            time.sleep(0.001)
    is_over.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert engine.explain()["search"]["reason"] == "number 5"
