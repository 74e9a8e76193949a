"""``rerank doctor``: what works is said to work, what is broken is named with the way out."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from rerank_engine import image
from rerank_engine.errors import CompileError
from rerank_engine.runtime import Engine
from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app, checks
from rerank_sdk.cli.golden import golden_check


@pytest.fixture(autouse=True)
def builtin(bundle: Bundle, kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny bundle stands in for the built-in one; the cache belongs to the tests."""
    path = tmp_path / "tiny.rrb"
    bundle.save(path)
    monkeypatch.setattr("rerank_sdk.bundle.builtin_bundle", lambda: path)
    monkeypatch.setenv("RERANK_CACHE_DIR", str(kit.cache_dir))
    return path


def examine(*options: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *options])
    found = json.loads(result.stdout)
    assert found["ok"] == (result.exit_code == 0)
    return result.exit_code, {check["name"]: check for check in found["checks"]}


def test_everything_works() -> None:
    exit_code, found = examine()
    assert exit_code == 0
    assert {check["status"] for check in found.values()} <= {"ok", "absent"}
    assert all(check["advice"] for check in found.values())
    assert list(found)[:4] == ["python", "numpy", "numba", "llvmlite"]
    assert found["numpy"]["found"] == np.__version__
    assert found["executable memory"]["found"] == "works"
    assert "float32 lanes" in found["CPU target"]["found"]
    assert "cpu, max abs error" in found["built-in bundle"]["found"]
    assert {name for name in found if name.startswith("extra")} == {f"extra [{name}]" for name in checks.EXTRAS}


def test_for_people() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert result.stdout.endswith("everything works\n")
    assert "built-in bundle" in result.stdout
    assert "nothing to do" in result.stdout


def test_extras_are_those_of_the_distribution() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name: needs for name, needs in project["optional-dependencies"].items() if name != "dev"}
    modules = {"scikit-learn": "sklearn"}
    found = {name: [need.split(">")[0] for need in needs] for name, needs in declared.items()}
    assert {name: sorted(modules.get(need, need) for need in needs) for name, needs in found.items()} == {
        name: sorted(brought) for name, brought in checks.EXTRAS.items()
    }


def test_a_missing_extra_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.EXTRAS, "gpu", ("no_such_module",))
    exit_code, found = examine()
    assert exit_code == 0
    assert found["extra [gpu]"]["status"] == "absent"
    assert "reserved" in found["extra [gpu]"]["advice"]


def test_a_bundle_of_ones_own(kit: Any, tmp_path: Path) -> None:
    kit.bundle(name="mine").save(tmp_path / "mine.rrb")
    exit_code, found = examine("--bundle", str(tmp_path / "mine.rrb"))
    assert exit_code == 0
    assert found["bundle"]["found"].startswith("mine: cpu")


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04"])
def test_a_damaged_bundle(content: bytes | None, builtin: Path) -> None:
    if content is None:
        builtin.unlink()
    else:
        builtin.write_bytes(content)
    exit_code, found = examine()
    assert exit_code == 1
    assert found["built-in bundle"]["status"] == "broken"
    assert "install rerank-sdk again" in found["built-in bundle"]["advice"]


def test_memory_that_may_not_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, code: bytes) -> None:
        raise CompileError("this system does not let the process run generated code: no")

    monkeypatch.setattr(image.ExecutableMemory, "__init__", refuse)
    exit_code, found = examine()
    assert exit_code == 1
    assert found["executable memory"]["status"] == "broken"
    assert "numpy" in found["built-in bundle"]["found"]
    assert found["built-in bundle"]["status"] == "broken"


def test_a_cache_that_cannot_be_written(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(builtin / "below"))
    exit_code, found = examine()
    assert exit_code == 1
    assert found["cache folder"]["status"] == "broken"
    assert "RERANK_CACHE_DIR" in found["cache folder"]["advice"]


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert checks.check_package("numba").status == "broken"
    assert "pip install" in checks.check_package("numba").advice


def test_a_processor_without_a_code_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert checks.check_target().status == checks.check_executable_memory().status == "broken"
    assert "riscv64" in checks.check_target().found
    assert "x86-64 or AArch64" in checks.check_executable_memory().advice


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "OLDEST_PYTHON", (99, 0))
    assert checks.check_python().advice == "use Python 99.0 or newer"


def test_a_check_that_fails_is_broken_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> checks.Check:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(checks, "check_machine", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "ZeroDivisionError: surprise" in result.stdout
    assert result.stdout.endswith("broken: machine\n")
    assert "built-in bundle" in result.stdout


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_wrong_machine_code_is_found(wrong: float, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Engine.run

    def run(self: Engine, inputs: Mapping[str, NDArray[Any]]) -> Any:
        results = right(self, inputs)
        assert isinstance(results, dict)
        results["score"][-1] += wrong * max(1, np.abs(results["score"]).max())
        return results

    assert golden_check(bundle).passed
    monkeypatch.setattr(Engine, "run", run)
    exit_code, found = examine()
    assert exit_code == 1
    assert found["built-in bundle"]["status"] == "broken"
    assert "allowed" in found["built-in bundle"]["found"]


def test_the_golden_check_is_deterministic_and_sees_the_whole_model(bundle: Bundle, kit: Any) -> None:
    # Whether machine code was found stored depends on what ran before; the numbers must not.
    first, second = (dataclasses.replace(golden_check(bundle), reason="") for _ in range(2))
    assert first == second
    assert 0 < first.max_abs_error <= first.limit
    single = golden_check(kit.bundle(kit.make_model(head=False)))
    assert single.passed
