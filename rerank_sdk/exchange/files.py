"""Which file a path means: so that no file is overwritten that is still needed."""

from __future__ import annotations

import os
from pathlib import Path

_BESIDE_STORE = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to the name of a database for the files beside it."""


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths mean one file, by whatever names and links; a file need not exist.

    Examples
    --------
    >>> is_same_file("folder/../log.jsonl", Path.cwd() / "log.jsonl")
    True
    """
    try:
        return Path(one).samefile(other)
    except OSError:  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)


def is_of_store(path: str | Path, store: str | Path) -> bool:
    """Whether a path means an event store, or a file that belongs to it.

    Examples
    --------
    >>> is_of_store("state/events.db-wal", "state/events.db"), is_of_store("events.jsonl", "state/events.db")
    (True, False)
    """
    return any(is_same_file(path, f"{os.path.realpath(store)}{ending}") for ending in _BESIDE_STORE)
