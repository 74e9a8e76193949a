"""How an engine's process is started, and a fresh start of it timed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank_engine.workers import WorkerFailed, decode, ended

WORKER = Path(__file__).with_name("worker.py")

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class EngineCommand:
    """How an engine's process is started.

    Attributes
    ----------
    python
        Interpreter of its environment.
    engines
        Python file that defines ``ENGINES``.
    core
        Processor that it is bound to; None for any.
    environment
        Variables on top of those of this process.
    """

    python: str
    engines: str
    core: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, *more: str) -> list[str]:
        """Words of the command line. ``-P``: files beside the worker must not hide modules of the environment."""
        core = [] if self.core is None else ["--core", str(self.core)]
        return [self.python, "-P", str(WORKER), self.engines, *core, *more]

    def variables(self) -> dict[str, str]:
        """Environment of the process: one thread, and no choice of kernels made outside."""
        inherited = {name: text for name, text in os.environ.items() if name not in _UNSET}
        return {**inherited, **dict.fromkeys(_ONE_THREAD, "1"), **self.environment}


def run_start(command: EngineCommand, words: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Start a fresh process that times its own start.

    Raises
    ------
    WorkerFailed
        It failed or took too long.
    """
    try:
        done = subprocess.run(
            command.words("--start", *words),
            capture_output=True,
            env=command.variables(),
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkerFailed(f"no start within {timeout_s:g} s") from None
    except OSError as error:
        raise WorkerFailed(f"cannot be started: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise WorkerFailed(ended(done.returncode, lines[-1] if lines else ""))
    return decode(done.stdout)
