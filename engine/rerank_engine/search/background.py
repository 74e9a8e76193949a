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

from rerank_engine.image import Image
from rerank_engine.workers import environment_of_ours

if TYPE_CHECKING:
    from rerank_engine.graph import Graph

MOST_ATTEMPTS = 3
"""A search that ends with the program is begun again by the next launch, but not for ever."""

_RUNNING: set[str] = set()
_LOCK = threading.Lock()
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
        self._state = "running"
        self._process = os.getpid()
        self._finished = threading.Event()
        self._image = image
        self._name = f"{self._process} {image}"
        reason = _why_not(image) or self._begin()
        if reason:
            self._end(f"not run: {reason}")
            return

        def run() -> None:
            try:
                state = self._run(read, path, [key, str(budget_s)], budget_s + _TIMEOUT_S, done)
            except Exception as error:  # whatever it is, the engine goes on, and nobody waits for ever
                state = f"failed: {error}"
            _RUNNING.discard(self._name)
            self._end(state)

        try:
            threading.Thread(target=run, name="rerank-search", daemon=True).start()
        except RuntimeError as error:
            _RUNNING.discard(self._name)
            self._end(f"not run: {error}")

    @property
    def state(self) -> str:
        """``"running"``, or how it ended."""
        if self._process != os.getpid() and self._state == "running":
            return "not run: it belongs to the process that this one was forked from"
        return self._state

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has come."""
        return self.state != "running" or self._finished.wait(timeout_s)

    def _begin(self) -> str:
        """Count this attempt; why it is one too many, or an empty text."""
        with _LOCK:
            if self._name in _RUNNING:
                return "another engine of this process has begun one"
            attempts = attempts_of(self._image)
            try:
                before = int(attempts.read_text(encoding="ascii")) if attempts.exists() else 0
            except (OSError, ValueError):
                before = 0
            if before >= MOST_ATTEMPTS:
                return f"{before} searches were begun and none has ended; rerank tune MODEL does it in one go"
            try:
                attempts.write_text(str(before + 1), encoding="ascii")
            except OSError as error:
                return f"it cannot be noted that it was begun: {error}"
            _RUNNING.add(self._name)
        return ""

    def _run(
        self,
        read: Callable[[], Graph],
        path: str,
        words: list[str],
        timeout_s: float,
        done: Callable[[Image], None],
    ) -> str:
        # The other process removes the folder when this one ends before it.
        with tempfile.TemporaryDirectory(prefix="rerank-search-", ignore_cleanup_errors=True) as folder:
            model = path or str(Path(folder) / "model.rrm")
            if not path:
                from rerank_engine.format.writer import write_model

                write_model(read(), model)
            problem = _run_process([model, str(self._image), *words, str(os.getpid()), folder], timeout_s)
        if problem:
            return f"failed: {problem}"
        found = Image.read(self._image)
        if "search" not in found.meta:
            return "failed: the process that searches has left no result"
        reason: str = found.meta["search"]["reason"]
        done(found)
        return reason

    def _end(self, state: str) -> None:
        self._state = state
        self._finished.set()


def attempts_of(image: Path) -> Path:
    """Where the searches are counted that were begun for an image and have not ended."""
    return image.with_suffix(".attempts")


def _why_not(image: Path) -> str:
    if not image.exists():
        return "the machine code could not be stored"
    if getattr(sys, "frozen", False) or not sys.executable:
        return "this program is no Python interpreter that could be started again"
    return ""


def _run_process(words: list[str], timeout_s: float) -> str:
    """Run the search; why it failed, or an empty text."""
    environment = environment_of_ours(**dict.fromkeys(("TMPDIR", "TEMP", "TMP"), words[-1]))
    environment.pop("PYTHONINSPECT", None)  # it would not end
    options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rerank_engine.search", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
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
