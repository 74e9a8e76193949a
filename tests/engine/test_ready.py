"""Machine code for other processors: NEON is really run, and what lies beside a model is taken when it fits."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine import Model, load, machine, ready, runtime
from rerank_engine.codegen.compile import compile_graph
from rerank_engine.errors import CompileError, InputError
from rerank_engine.image import Image
from rerank_engine.ready import compile_ready, ready_path, runnable_targets
from rerank_engine.sample import make_sample

Emulated = importlib.import_module("emulator").Emulated


def ranker(tools: Any) -> Any:
    """A table, a product with an activation, attention over a history, a normalisation, a sum."""
    random = np.random.default_rng(0)
    b = tools.GraphBuilder()
    table = b.constant(random.normal(size=(20, 24)))
    item = b.node("Gather", table, b.input("int64", "N", domain="20"))
    past = b.node("Gather", table, b.input("int32", "T", domain="20"))
    keys = b.node("Transpose", past, perm=(1, 0))
    summary = b.node("Attention", item, keys, past, scale=0.2)
    joined = b.node("Concat", item, summary, b.input("float32", "N", 5), axis=1)
    hidden = b.node(
        "MatMul",
        joined,
        b.constant(random.normal(0, 0.3, (53, 70))),
        b.constant(random.normal(size=70)),
        activation="Relu",
    )
    score = b.node("MatMul", hidden, b.constant(random.normal(0, 0.3, (70, 1))))
    return b.output(b.node("Sigmoid", b.node("Reshape", score, shape=("N",))), b.node("Softmax", hidden))


def network(tools: Any, operator: str) -> Any:
    """One operator with kernels of its own."""
    random = np.random.default_rng(1)
    b = tools.GraphBuilder()
    if operator == "pointwise":
        x = b.input("float32", "N", 19)
        return b.output(*(b.node(name, x) for name in ("Tanh", "Exp", "Erf", "Sin", "Softplus", "Atan")))
    if operator == "float64":
        x = b.input("float64", "N", 7)
        return b.output(b.node("Exp", x), b.node("ReduceSum", x, axes=(1,), keepdims=0))
    if operator == "reductions":
        x = b.input("float32", "N", 33, domain="plain")
        return b.output(
            b.node("ReduceMean", x, axes=(1,), keepdims=0),
            b.node("ReduceMax", x, axes=(0,), keepdims=1),
            b.node("CumSum", x, axis=1),
        )
    weights = [b.constant(random.normal(0, 0.4, shape)) for shape in ((1, 96, 8), (1, 96, 32), (1, 192))]
    x = b.input("float32", 1, "T", 8)
    return b.output(b.node("GRU", x, *weights, hidden_size=32, linear_before_reset=1))


@pytest.mark.parametrize("cpu", ["aarch64", "cortex-a76"])
def test_neon_gives_the_numbers_of_the_reference(tools: Any, cpu: str) -> None:
    b = ranker(tools)
    graph = b.finish()
    emulated = Emulated(graph, cpu)
    for n, t in ((0, 3), (1, 1), (7, 5), (40, 50)):
        feeds = b.feeds(n, T=t)
        for name, want in tools.expect(graph, feeds).items():
            tools.assert_close(emulated(feeds)[name], want, f"{name} at {n}, {t}", 2e-6, 2e-6)


@pytest.mark.parametrize("operator", ["pointwise", "float64", "reductions"])
def test_neon_runs_every_family_of_kernels(tools: Any, operator: str) -> None:
    b = network(tools, operator)
    graph = b.finish()
    emulated = Emulated(graph)
    for n in (0, 1, 17):
        feeds = b.feeds(n)
        for name, want in tools.expect(graph, feeds).items():
            tools.assert_close(emulated(feeds)[name], want, f"{name} at {n}", 2e-6, 2e-6)


def test_a_bad_id_is_reported_by_neon_code(tools: Any) -> None:
    b = ranker(tools)
    graph = b.finish()
    feeds = b.feeds(4, T=3)
    feeds[graph.inputs[0]] = np.array([1, 2, 20, 3])
    with pytest.raises(InputError, match="id 20"):
        Emulated(graph)(feeds)


# --- beside the model -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tools: Any, tmp_path: Path) -> Path:
    path = tmp_path / "ranker.rrm"
    Model(ranker(tools).finish()).save(path)
    return path


def test_what_lies_beside_a_model_is_taken(saved: Path, tools: Any) -> None:
    cache = saved.parent / "cache"
    best = runnable_targets()[0]
    path, image = compile_ready(saved, best)
    assert path == saved.parent / f"ranker.{best}.rri"
    assert image.meta["ready"][2] == best
    engine = load(saved, cache_dir=cache)
    assert engine.backend_reason == f"ready machine code: {path}"
    assert not cache.exists(), "nothing was compiled"
    b = ranker(tools)
    b.finish()
    feeds = b.feeds(9, T=4)
    for name, want in tools.expect(b.graph, feeds).items():
        tools.assert_close(engine.run(feeds)[name], want, name, 2e-6, 2e-6)  # type: ignore[call-overload]


def test_code_of_this_machine_comes_first(saved: Path) -> None:
    cache = saved.parent / "cache"
    load(saved, cache_dir=cache)
    compile_ready(saved, runnable_targets()[0])
    assert load(saved, cache_dir=cache).backend_reason == "stored machine code"


def test_what_does_not_fit_is_left_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = runnable_targets()[0]
    path, _ = compile_ready(saved, best)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    assert load(saved, cache_dir=saved.parent / "a").backend_reason == "compiled for this machine"
    path.write_bytes(good)
    monkeypatch.setattr(runtime, "ENGINE_VERSION", "another")
    assert load(saved, cache_dir=saved.parent / "b").backend_reason == "compiled for this machine"
    monkeypatch.undo()
    other = saved.with_name("other.rrm")
    other.write_bytes(saved.read_bytes())
    Path(ready_path(str(other), best)).write_bytes(good)
    assert load(other, cache_dir=saved.parent / "c").backend_reason.startswith("ready machine code")
    monkeypatch.setattr(ready, "runnable_targets", list)
    assert load(other, cache_dir=saved.parent / "d").backend_reason == "compiled for this machine"


def test_a_process_with_ready_code_needs_no_compiler(saved: Path) -> None:
    compile_ready(saved, runnable_targets()[0])
    script = (
        "import sys, numpy as np; from rerank_engine import load\n"
        "engine = load(sys.argv[1], cache_dir=sys.argv[2])\n"
        "shapes = {v.name: ([d if isinstance(d, int) else 3 for d in v.shape], v.dtype) for v in engine.inputs}\n"
        "engine.run({name: np.zeros(*shape) for name, shape in shapes.items()})\n"
        "print(engine.backend_reason.split(':')[0], *sorted({'llvmlite', 'numba', 'onnx'} & set(sys.modules)))\n"
    )
    words = [sys.executable, "-c", script, str(saved), str(saved.parent / "cache")]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "ready machine code", result.stderr


LINUX = "model name : any\nflags : fpu popcnt sse4_1 sse4_2 ssse3"
V3 = " avx avx2 bmi1 bmi2 f16c fma movbe"
V4 = " avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("name", "text", "system", "expected"),
    [
        ("x86_64", LINUX, "linux", ["x86-64-v2"]),
        ("x86_64", LINUX + V3, "linux", ["x86-64-v3", "x86-64-v2"]),
        ("x86_64", LINUX + V3 + V4, "linux", ["x86-64-v4", "x86-64-v3", "x86-64-v2"]),
        ("x86_64", LINUX + V4, "linux", ["x86-64-v2"]),
        ("x86_64", "flags : fpu", "linux", []),
        ("arm64", "", "darwin", ["aarch64"]),
        ("riscv64", LINUX, "linux", []),
        (
            "x86_64",
            "machdep.cpu.features: SSSE3 SSE4.1 SSE4.2 POPCNT AVX1.0 FMA F16C MOVBE\nleaf7_features: BMI1 AVX2 BMI2",
            "darwin",
            ["x86-64-v3", "x86-64-v2"],
        ),
    ],
)
def test_levels_follow_from_what_the_system_tells(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, system: str, expected: list[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: name)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(machine, "_processor", lambda: text)
    machine.processor_features.cache_clear()
    try:
        assert runnable_targets() == expected
    finally:
        machine.processor_features.cache_clear()


def test_an_unknown_target_is_refused(saved: Path) -> None:
    with pytest.raises(CompileError, match="target 'x86-64-v9' is not known; known: x86-64, "):
        compile_ready(saved, "x86-64-v9")


def test_code_that_gives_wrong_numbers_is_compiled_again(saved: Path) -> None:
    """A sound file may still hold code for another machine than it says: the model's sample tells."""
    model = Model.read(saved)
    graph = replace(model.graph, sample=make_sample(model.graph))
    Model(graph).save(saved)
    doubled = Model(replace(graph, constants={name: 2 * array for name, array in graph.constants.items()}))
    beside = saved.parent / "beside.rrm"
    doubled.save(beside)

    def spoil(path: Path) -> None:
        """Put the constants of the other model under the meta of the right one."""
        image, other = Image.read(path), compile_graph(doubled.graph)
        start = image.meta["interface_offset"]
        Image(image.code, image.meta, memoryview(bytes(other.data[:start]) + bytes(image.data[start:]))).write(path)

    target = runnable_targets()[0]
    path, _ = compile_ready(saved, target)
    spoil(path)
    engine = load(saved, cache_dir=saved.parent / "cache")
    assert engine.backend == "cpu"
    assert engine.self_check() == ""
    assert engine.backend_reason.startswith(
        f"compiled for this machine; rejected: ready machine code: {path}, whose self-check failed: output"
    )
    path.unlink()
    assert load(saved, cache_dir=saved.parent / "cache").backend_reason == "stored machine code"
    spoil(engine.cache_path)
    again = load(saved, cache_dir=saved.parent / "cache")
    assert again.backend_reason.startswith("compiled again; rejected: stored machine code, whose self-check failed")
    assert load(saved, cache_dir=saved.parent / "cache").backend_reason == "stored machine code"
