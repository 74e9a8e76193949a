from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rerank_engine import paths


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"RERANK_CACHE_DIR": "/r", "XDG_CACHE_HOME": "/x"}, "/r"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/rerank-sdk"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/rerank-sdk"),
        ("linux", {}, "/home/me/.cache/rerank-sdk"),
        ("darwin", {}, "/home/me/Library/Caches/rerank-sdk"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/rerank-sdk"),
        ("win32", {}, "/home/me/AppData/Local/rerank-sdk"),
    ],
)
def test_cache_folder_of_each_platform(
    monkeypatch: pytest.MonkeyPatch, platform: Any, environment: Any, expected: Any
) -> None:
    for name in ("RERANK_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(paths.sys, "platform", platform)
    monkeypatch.setattr(paths.os.path, "expanduser", lambda text: text.replace("~", "/home/me"))
    assert paths.user_cache_dir() == Path(expected)
