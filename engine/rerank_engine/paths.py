"""Where files that can be made again are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache_dir() -> Path:
    """Return the folder for what this project may fetch or build again.

    The first that is set decides: ``RERANK_CACHE_DIR`` (taken as it is), ``XDG_CACHE_HOME``, ``LOCALAPPDATA``
    on Windows, ``~/Library/Caches`` on macOS, ``~/.cache`` elsewhere; the last four with ``rerank-sdk``
    below.

    Examples
    --------
    >>> import os
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, RERANK_CACHE_DIR="cache"):
    ...     user_cache_dir().as_posix()
    'cache'
    """
    own = os.environ.get("RERANK_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():
        root = Path(shared)
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path.home() / ".cache"
    return root / "rerank-sdk"
