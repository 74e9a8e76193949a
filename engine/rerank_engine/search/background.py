"""A search in a process beside this one, while the default plan answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rerank_engine.errors import RerankError
from rerank_engine.graph import Graph
from rerank_engine.image import Image
from rerank_engine.search.products import WORTH_SEARCHING, products_of

_TIMEOUT_S = 300.0
"""For compiling a model again and comparing, beyond the budget of the search."""


class BackgroundSearch:
    """A search that runs, or the reason why none does.

    Parameters
    ----------
    graph
        The model.
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
        self, graph: Graph, path: str, image: Path, key: str, budget_s: float, done: Callable[[Image], None]
    ) -> None:
        self.state = "running"
        self._finished = threading.Event()
        reason = _why_not(graph, image, budget_s)
        if reason:
            self._end(f"not run: {reason}")
            return
        arguments = (graph, path, image, key, budget_s, done)
        threading.Thread(target=self._run, args=arguments, name="rerank-search", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has come."""
        return self._finished.wait(timeout_s)

    def _run(
        self, graph: Graph, path: str, image: Path, key: str, budget_s: float, done: Callable[[Image], None]
    ) -> None:
        from rerank_engine.format.writer import write_model

        try:
            with tempfile.TemporaryDirectory(prefix="rerank-search-") as folder:
                model = path or str(Path(folder) / "model.rrm")
                if not path:
                    write_model(graph, model)
                problem = _run_process([model, str(image), key, str(budget_s)], budget_s + _TIMEOUT_S)
            if problem:
                self._end(f"failed: {problem}")
                return
            found = Image.read(image)
            done(found)
            self._end(found.meta["search"]["reason"])
        except (RerankError, OSError, ValueError, KeyError) as error:
            self._end(f"failed: {error}")

    def _end(self, state: str) -> None:
        self.state = state
        self._finished.set()


def _why_not(graph: Graph, image: Path, budget_s: float) -> str:
    if budget_s <= 0:
        return "the time for it is 0"
    if not image.exists():
        return "the machine code could not be stored"
    if getattr(sys, "frozen", False) or not sys.executable:
        return "this program is no Python interpreter that could be started again"
    if sum(work.multiplications for work in products_of(graph)) < WORTH_SEARCHING:
        return "its matrix products are too small to gain"
    return ""


def _run_process(words: list[str], timeout_s: float) -> str:
    """Run the search; why it failed, or an empty text."""
    entries = os.pathsep.join(entry for entry in sys.path if entry)
    options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
    process = subprocess.Popen(
        [sys.executable, "-m", "rerank_engine.search", *words],
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
