"""Stored machine code: found again, made again when damaged or foreign, done without when it cannot be stored."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine import load, runtime
from rerank_engine.image import Image
from rerank_engine.model import Model
from rerank_engine.runtime import Engine, image_key


@pytest.fixture(scope="module")
def model(tools: Any) -> Model:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3)
    return Model(b.output(b.node("MatMul", x, b.constant(np.arange(6.0).reshape(3, 2)))).finish())


def assert_right(engine: Engine) -> None:
    assert engine.backend == "cpu"
    x = np.array([[1, 2, 3], [0, 0, 1]], np.float32)
    np.testing.assert_array_equal(engine.run({engine.inputs[0].name: x}), [[16, 22], [4, 5]])


def test_the_second_load_reads_the_stored_image(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(model, cache_dir=tmp_path)
    assert first.backend_reason == "compiled for this machine"
    assert [path.name for path in tmp_path.iterdir()] == [first.cache_path.name]
    monkeypatch.setitem(__import__("sys").modules, "rerank_engine.codegen.compile", None)
    second = load(model, cache_dir=str(tmp_path))
    assert second.backend_reason == "stored machine code"
    assert_right(second)


def test_the_default_directory_is_the_users_cache(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(tmp_path))
    engine = load(model)
    assert engine.cache_path.is_file()
    assert tmp_path in engine.cache_path.parents


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text", "directory"])
def test_a_damaged_image_is_made_again(model: Model, tmp_path: Path, damage: str) -> None:
    path = load(model, cache_dir=tmp_path).cache_path
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    contents = {"flipped": bytes(raw), "cut": bytes(raw[:-1]), "empty": b"", "text": b"hello" * 40}
    path.unlink()
    if damage == "directory":
        path.mkdir()
    else:
        path.write_bytes(contents[damage])
    engine = load(model, cache_dir=tmp_path)
    assert engine.backend_reason.startswith("compiled again: ")
    assert_right(engine)
    if damage != "directory":
        assert load(model, cache_dir=tmp_path).backend_reason == "stored machine code"


def test_an_image_of_another_model_is_not_run(model: Model, tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    other = load(Model(b.output(b.node("Neg", b.input("float32", "N", 900))).finish()), cache_dir=tmp_path)
    path = load(model, cache_dir=tmp_path).cache_path
    shutil.copy(other.cache_path, path)
    engine = load(model, cache_dir=tmp_path)
    assert "was made for another model or machine" in engine.backend_reason
    assert_right(engine)


def test_another_users_image_is_made_again(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(model, cache_dir=tmp_path)
    real = os.fstat

    def foreign(handle: int) -> os.stat_result:
        fields = list(real(handle))
        fields[4] = 4242
        return os.stat_result(fields)

    monkeypatch.setattr(os, "getuid", lambda: 1000, raising=False)
    monkeypatch.setattr(os, "fstat", foreign)
    engine = load(model, cache_dir=tmp_path)
    assert engine.backend_reason.startswith("compiled again: image ")
    assert "belongs to user 4242, not to this one" in engine.backend_reason
    monkeypatch.undo()
    assert_right(engine)


def test_a_directory_that_cannot_be_written(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Image, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Image, "write", refuse)
    engine = load(model, cache_dir=tmp_path)
    assert engine.backend_reason.startswith("compiled for this machine; not stored: ")
    assert_right(engine)
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    engine = load(model, cache_dir=tmp_path / "file")
    assert "not stored: " in engine.backend_reason
    assert_right(engine)


def test_a_directory_that_cannot_be_read(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Image:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Image, "read", refuse)
    engine = load(model, cache_dir=tmp_path)
    assert engine.backend_reason.startswith("compiled again: [Errno 13] Permission denied")
    assert_right(engine)


def test_the_key_follows_model_machine_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {image_key("a"), image_key("b")}
    monkeypatch.setattr(runtime, "ENGINE_VERSION", "next")
    keys.add(image_key("a"))
    monkeypatch.setattr(runtime, "machine_signature", lambda: ("linux", "x86_64", "other"))
    keys.add(image_key("a"))
    assert len(keys) == 4
    assert image_key("a") == image_key("a")


@pytest.mark.parametrize(
    "missing", ["entries", "first", "interface", "names", "interface_offset", "dynamic", "reports"]
)
def test_an_image_whose_description_does_not_fit_is_made_again(model: Model, tmp_path: Path, missing: str) -> None:
    path = load(model, cache_dir=tmp_path).cache_path
    image = Image.read(path)
    image.meta[missing] = 5
    image.write(path)
    engine = load(model, cache_dir=tmp_path)
    assert_right(engine)
    if missing not in ("interface_offset", "dynamic", "reports"):  # these are not needed for the first call
        assert "rejected: stored machine code, whose self-check failed: its description" in engine.backend_reason
        assert load(model, cache_dir=tmp_path).backend_reason == "stored machine code"
