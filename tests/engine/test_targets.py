"""Code for other processors: run where this machine can, otherwise made and read back without anything external."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from rerank_engine.codegen.compile import compile_graph
from rerank_engine.codegen.target import Target, host_architecture, host_target, named_target
from rerank_engine.errors import CompileError

X86_LEVELS = {
    "x86-64": {"sse2"},
    "x86-64-v2": {"sse4.2", "ssse3", "popcnt"},
    "x86-64-v3": {"avx2", "fma", "bmi2", "f16c"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
ARM = ("aarch64", "cortex-a76", "apple-m1")
NAMES = (*X86_LEVELS, *ARM)


def runs_here(cpu: str) -> bool:
    if host_architecture() != named_target(cpu).architecture:
        return False
    if cpu == "aarch64":
        return True
    features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    return cpu in X86_LEVELS and X86_LEVELS[cpu] <= features


def every_kind_of_kernel(tools: Any) -> Any:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 17, domain="plain")
    weight = np.random.default_rng(0).normal(0, 0.3, (17, 70))
    dense = b.node("MatMul", x, b.constant(weight), b.constant(weight[0]), activation="Sigmoid")
    one = b.node("MatMul", dense, b.constant(weight.T[:, :1]))
    rows = b.node("Gather", b.constant(weight), b.input("int32", "N", 3, domain="17"))
    batch = b.node("MatMul", rows, b.node("Transpose", rows, perm=(0, 2, 1)))
    b.output(one, b.node("Softmax", batch), b.node("ReduceMean", rows, axes=(1,), keepdims=0))
    b.output(b.node("Tanh", b.node("Exp", x)), b.node("ReduceMax", rows, axes=(2,), keepdims=1))
    b.output(b.node("Cast", x, to="int64"), b.node("Cast", b.node("Greater", x, b.constant(0.0)), to="int32"))
    wide = b.node("Concat", x, b.node("Slice", dense, axis=1, start=3, stop=65), axis=1)
    return b.output(b.node("Where", b.node("Less", wide, b.constant(0.5)), wide, b.constant(9.0)))


@pytest.mark.parametrize("cpu", NAMES)
def test_compiles_and_runs_where_it_can(tools: Any, cpu: str) -> None:
    """Without the processor the image must still be complete: no symbol, no relocation is left over."""
    b = every_kind_of_kernel(tools)
    graph, target = b.finish(), named_target(cpu)
    if not runs_here(cpu):
        image = compile_graph(graph, target)
        assert len(image.code) > 4096
        assert all(0 <= offset < len(image.code) for offset in image.meta["entries"].values())
        assert image.meta["target"]["triple"] == f"{target.architecture}-unknown-linux-gnu"
        return
    compiled = tools.Compiled(graph, target)
    for candidates in (0, 1, 15, 131):
        feeds = b.feeds(candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{name} at N={candidates}", 1e-5, 1e-5)
    tools.assert_rows_alone(compiled, b.feeds(131), (0, 14, 127, 128, 130))


def test_at_least_one_named_target_runs_here() -> None:
    assert any(runs_here(cpu) for cpu in NAMES)


def test_levels_differ_in_lanes_and_registers() -> None:
    shapes = {cpu: (named_target(cpu).lanes, named_target(cpu).registers) for cpu in NAMES}
    assert shapes == {
        "x86-64": (4, 16),
        "x86-64-v2": (4, 16),
        "x86-64-v3": (8, 16),
        "x86-64-v4": (16, 32),
        "aarch64": (4, 32),
        "cortex-a76": (4, 32),
        "apple-m1": (4, 32),
    }
    assert named_target("aarch64").cpu == "generic"


def test_a_host_without_avx512_gets_narrower_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    class Features(dict[str, bool]):
        def flatten(self) -> str:
            return ",".join(f"{'+' if on else '-'}{name}" for name, on in self.items())

    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "some-cpu")
    for features, lanes in (
        ({"avx2": True, "avx512f": True}, 16),
        ({"avx2": True, "avx512f": False}, 8),
        ({"avx2": False}, 4),
    ):
        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda features=features: Features(features))
        target = host_target()
        assert target.lanes == lanes
        assert target.features == Features(features).flatten()


def test_the_calling_convention_follows_the_system(monkeypatch: pytest.MonkeyPatch, tools: Any) -> None:
    assert host_target().calling_convention == ("win64cc" if platform.system() == "Windows" else "")
    assert named_target("x86-64-v3").calling_convention == ""
    assert named_target("x86-64-v3-windows").calling_convention == "win64cc"
    assert named_target("cortex-a76").calling_convention == ""
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.setattr("sys.platform", "win32")
    assert host_target().calling_convention == "win64cc"
    b = tools.GraphBuilder()
    graph = b.output(b.node("Tanh", b.input("float32", "N", 17))).finish()
    assert compile_graph(graph, named_target("x86-64-v3-windows")).code != b""
    with pytest.raises(CompileError, match="target 'aarch64-windows' is not known"):
        named_target("aarch64-windows")


def test_unknown_processors_are_refused(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match="target 'pentium-mmx' is not known; known: x86-64, x86-64-v2"):
        named_target("pentium-mmx")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(CompileError, match="no machine code for 'riscv64'; supported: x86_64 and aarch64"):
        host_target()
    b = tools.GraphBuilder()
    graph = b.output(b.node("Neg", b.input("float32", "N"))).finish()
    with pytest.raises(CompileError, match="LLVM refused the generated code for any"):
        compile_graph(graph, Target("nonsense-unknown-linux-gnu", "any", "", 4, 16))


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "aarch64", "arm64"])
def test_architectures_by_any_name(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert host_architecture() in ("x86_64", "aarch64")


def test_compiling_twice_gives_the_same_code(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.node("MatMul", b.input("float32", "N", 17), b.constant(np.ones((17, 5))), activation="Tanh")
    graph = b.output(b.node("Softmax", x), b.node("Exp", x)).finish()
    first, second = compile_graph(graph), compile_graph(graph)
    assert first.code == second.code
    assert {**first.meta, "compile_ms": 0} == {**second.meta, "compile_ms": 0}
