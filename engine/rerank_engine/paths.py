"""Where files that can be made again are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache_dir() -> Path:
    """The project's cache directory of this user; ``RERANK_CACHE_DIR`` overrides it.

    Examples
    --------
    >>> user_cache_dir().name
    'rerank-sdk'
    """
    if override := os.environ.get("RERANK_CACHE_DIR"):
        return Path(override) / "rerank-sdk"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rerank-sdk"
