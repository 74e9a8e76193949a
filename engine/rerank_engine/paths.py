"""Where files that can be made again are kept."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from pathlib import Path

    return Path(user_cache_text())


def user_cache_text() -> str:
    """The same as text. Importing ``pathlib`` takes longer than loading a model."""
    own = os.environ.get("RERANK_CACHE_DIR")
    if own:
        return os.path.expanduser(own)  # noqa: PTH111
    shared = os.environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser("~")  # noqa: PTH111
    if shared and os.path.isabs(shared):  # noqa: PTH117
        root = shared
    elif sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")  # noqa: PTH118
    elif sys.platform == "darwin":
        root = os.path.join(home, "Library", "Caches")  # noqa: PTH118
    else:
        root = os.path.join(home, ".cache")  # noqa: PTH118
    return os.path.join(root, "rerank-sdk")  # noqa: PTH118
