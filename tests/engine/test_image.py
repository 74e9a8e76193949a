"""Stored machine code: written whole, checked before it may run, refused when it is not ours."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine import image as image_module
from rerank_engine.errors import CompileError, ModelFileError
from rerank_engine.image import ExecutableMemory, Image

IMAGE = Image(bytes(range(256)) * 5, {"entries": {"main": 64}, "name": "Ω"}, memoryview(bytes(range(99, 256)) * 3))
EMPTY = Image(b"", {}, memoryview(b""))


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.rri"
    IMAGE.write(path)
    assert Image.read(path) == IMAGE
    IMAGE.write(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["a.rri"], "no partial file is left"
    if hasattr(os, "getuid"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_empty_code_round_trip(tmp_path: Path) -> None:
    EMPTY.write(tmp_path / "a.rri")
    assert Image.read(tmp_path / "a.rri") == EMPTY


def test_data_lies_at_an_aligned_address(tmp_path: Path) -> None:
    for size in range(0, 200, 7):
        Image(bytes(size), {"name": "x" * size}, IMAGE.data).write(tmp_path / "a.rri")
        read = Image.read(tmp_path / "a.rri")
        assert np.frombuffer(read.data, np.uint8).ctypes.data % 64 == 0
        assert read.data == IMAGE.data
        assert read.data.readonly


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.rri"
    IMAGE.write(path)
    good = path.read_bytes()
    for index in range(0, len(good), 7):
        bad = bytearray(good)
        bad[index] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match=r"is damaged|is not an image of this version"):
            Image.read(path)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 40, 63, 64, 71, 72, 73, 500, 1400])
def test_every_cut_is_noticed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.rri"
    IMAGE.write(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"is truncated|is damaged"):
        Image.read(path)


def test_appended_bytes_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.rri"
    IMAGE.write(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelFileError, match=r"is damaged: \d+ bytes where \d+ are stated"):
        Image.read(path)


def test_damage_in_large_constants_is_noticed(tmp_path: Path) -> None:
    """Whole blocks of 64 KiB are summed by columns before they are hashed; what is left is hashed as it is."""
    path = tmp_path / "a.rri"
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, 3 * 65536 + 640, np.uint8)
    Image(b"code", {"name": "large"}, memoryview(data.tobytes())).write(path)
    good = path.read_bytes()
    start = len(good) - len(data)
    places = [0, 1, 65535, 65536, 131072, 196607, 196608, len(data) - 1, *rng.integers(0, len(data), 60)]
    for place in places:
        bad = bytearray(good)
        bad[start + place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match="its hash does not match"):
            Image.read(path)
    for first, size in ((0, 4096), (65536, 65536), (70000, 512), (189000, 8000)):
        bad = bytearray(good)
        bad[start + first : start + first + size] = bytes(size)
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match="its hash does not match"):
            Image.read(path)
    path.write_bytes(good)
    assert Image.read(path).data == data.tobytes()


def test_another_users_image_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rri"
    IMAGE.write(path)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1, raising=False)
    if owner == 0:
        # Files of root are trusted, so pretend that this one belongs to somebody else.
        real = os.fstat
        monkeypatch.setattr(os, "fstat", lambda handle: _Status(real(handle), 4242))
        owner = 4242
    with pytest.raises(ModelFileError, match=f"belongs to user {owner}, not to this one: not executed"):
        Image.read(path)


class _Status:
    def __init__(self, status: os.stat_result, owner: int) -> None:
        self._status = status
        self.st_uid = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._status, name)


def test_a_failed_write_leaves_the_old_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rri"
    IMAGE.write(path)

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        EMPTY.write(path)
    monkeypatch.undo()
    assert Image.read(path) == IMAGE
    assert len(list(tmp_path.iterdir())) == 1


def test_memory_that_may_not_run_is_a_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    name = "_map_windows" if sys.platform == "win32" else "_map_posix"
    monkeypatch.setattr(image_module if sys.platform == "win32" else ExecutableMemory, name, refuse)
    with pytest.raises(CompileError, match=r"does not let the process run generated code: .*Operation not permitted"):
        ExecutableMemory(b"\xc3")
    monkeypatch.undo()
    with pytest.raises(CompileError, match="does not let the process run generated code"):
        ExecutableMemory(b"")


def test_the_bytes_are_copied(tmp_path: Path) -> None:
    code = bytearray(b"\xc3" * 5000)
    memory = ExecutableMemory(bytes(code))
    code[:] = b"\0" * 5000
    assert ctypes.string_at(memory.address, 5000) == b"\xc3" * 5000


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is no regular file"):
        Image.read(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.rri")
        with pytest.raises(ModelFileError, match="is no regular file"):
            Image.read(tmp_path / "pipe.rri")
