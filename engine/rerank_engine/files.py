"""Write a file so that nobody ever sees half of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, parts: Iterable[bytes | memoryview], *, private: bool = False) -> None:
    """Write a new file beside ``path``, bring it to the disk, and put it in the place of ``path`` in one step.

    A reader, or a crash, meets the old file or the new one.

    Parameters
    ----------
    path
        An existing file is replaced.
    parts
        The content.
    private
        Only the owner may read it; otherwise it gets the permissions of an ordinary new file.

    Raises
    ------
    OSError
        It cannot be written; an existing file is unchanged.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a", [b"one ", b"two"])
    ...     (Path(folder) / "a").read_bytes()
    b'one two'
    """
    temporary = path.parent / f".{os.urandom(8).hex()}.part"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
