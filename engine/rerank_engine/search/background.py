"""A search in a process beside this one, while the default plan answers.

Nothing here needs the compiler: a process that starts from stored code stays without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine.errors import RerankError
from rerank_engine.image import Image

if TYPE_CHECKING:
    from rerank_engine.graph import Graph

MOST_ATTEMPTS = 3
"""A search that ends with the program is begun again by the next launch, but not for ever."""

_TIMEOUT_S = 300.0
"""For compiling a model again and comparing, beyond the budget of the search."""


class BackgroundSearch:
    """A search that runs, or the reason why none does.

    Parameters
    ----------
    read
        Gives the model.
    path
        Its file; empty where it has none.
    image
        Where its machine code is stored, without a search so far.
    key
        Name under which the engine expects it.
    budget_s
        Time to search.
    done
        Called in another thread with the stored image once it holds what was found.
    """

    def __init__(
        self,
        read: Callable[[], Graph],
        path: str,
        image: Path,
        key: str,
        budget_s: float,
        done: Callable[[Image], None],
    ) -> None:
        self.state = "running"
        self._finished = threading.Event()
        self._attempts = image.with_suffix(".attempts")
        reason = _why_not(image) or self._begin()
        if reason:
            self._end(f"not run: {reason}")
            return

        def run() -> None:
            try:
                self._end(self._run(read, path, image, [key, str(budget_s)], budget_s + _TIMEOUT_S, done))
            except (RerankError, OSError, ValueError, KeyError) as error:
                self._end(f"failed: {error}")

        threading.Thread(target=run, name="rerank-search", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has come."""
        return self._finished.wait(timeout_s)

    def _begin(self) -> str:
        """Count this attempt; why it is one too many, or an empty text."""
        try:
            before = int(self._attempts.read_text(encoding="ascii")) if self._attempts.exists() else 0
        except (OSError, ValueError):
            before = 0
        if before >= MOST_ATTEMPTS:
            return f"{before} searches were cut off; rerank tune MODEL does it in one go"
        try:
            self._attempts.write_text(str(before + 1), encoding="ascii")
        except OSError as error:
            return f"it cannot be noted that it was begun: {error}"
        return ""

    def _run(
        self,
        read: Callable[[], Graph],
        path: str,
        image: Path,
        words: list[str],
        timeout_s: float,
        done: Callable[[Image], None],
    ) -> str:
        with tempfile.TemporaryDirectory(prefix="rerank-search-") as folder:
            model = path or str(Path(folder) / "model.rrm")
            if not path:
                from rerank_engine.format.writer import write_model

                write_model(read(), model)
            problem = _run_process([model, str(image), *words], timeout_s)
        if problem:
            return f"failed: {problem}"
        found = Image.read(image)
        reason: str = found.meta["search"]["reason"]
        done(found)
        self._attempts.unlink(missing_ok=True)
        return reason

    def _end(self, state: str) -> None:
        self.state = state
        self._finished.set()


def _why_not(image: Path) -> str:
    if not image.exists():
        return "the machine code could not be stored"
    if getattr(sys, "frozen", False) or not sys.executable:
        return "this program is no Python interpreter that could be started again"
    return ""


def _run_process(words: list[str], timeout_s: float) -> str:
    """Run the search; why it failed, or an empty text."""
    entries = os.pathsep.join(entry for entry in sys.path if entry)
    options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rerank_engine.search", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": entries},
        encoding="utf-8",
        errors="replace",
        **options,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        # Its stdin stays open for as long as this process lives: the end of it is the end of the search.
        timer = threading.Timer(timeout_s, process.stdin.close)
        timer.daemon = True
        timer.start()
        said = process.stderr.read()
        code = process.wait()
        timer.cancel()
    finally:
        process.stdin.close()
        process.stderr.close()
    lines = [line for line in said.splitlines() if line.strip()]
    return "" if code == 0 else lines[-1] if lines else f"exit code {code}"
