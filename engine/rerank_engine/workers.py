"""A process that answers requests, one JSON object a line: with a time limit, and a reason when it fails.

What runs in it may hang or crash and takes nothing else down.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rerank_engine.errors import RerankError

_SHOWN = 300
_END_S = 5.0


def environment_of_ours(**more: str) -> dict[str, str]:
    """Variables for another process of this interpreter: it finds the modules that this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **more}


class WorkerFailed(RerankError):
    """A worker reported an error, ended, or did not answer in time. Whoever asked goes on without it."""


class Worker:
    """A running process.

    Parameters
    ----------
    words
        Its command line.
    environment
        Its variables.
    log
        File for what it prints; the last line of it explains an unexpected end.

    Raises
    ------
    WorkerFailed
        It cannot be started.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._is_closed = False
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        try:
            with log.open("wb") as stream:
                self._process = subprocess.Popen(
                    list(words),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stream,
                    env=dict(environment),
                    encoding="utf-8",
                )
        except OSError as error:
            raise WorkerFailed(f"cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self._replies.put(line)
        self._replies.put(None)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises
        ------
        WorkerFailed
            It answered with an error; or it ended, or did not answer in time, and is gone.
        """
        if self._is_closed:
            raise WorkerFailed(ended(self._process.returncode, last_line(self._log)))
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a process that ended says why below
            self._process.stdin.write(json.dumps(dict(request)) + "\n")
            self._process.stdin.flush()
        try:
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise WorkerFailed(f"no answer to {request['do']!r} within {timeout_s:g} s") from None
        if line is None:
            self.close()
            raise WorkerFailed(ended(self._process.returncode, last_line(self._log)))
        reply = decode(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return not self._is_closed and self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._reader.join(_END_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


def decode(text: str) -> dict[str, Any]:
    """Read an answer; WorkerFailed when it is no JSON object."""
    try:
        reply = json.loads(text)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise WorkerFailed(f"the answer is not a JSON object: {text[:_SHOWN]!r}")
    return reply


def ended(code: int | None, line: str) -> str:
    """Say how a process ended.

    Examples
    --------
    >>> ended(-11, ""), ended(1, "ImportError: no")
    ('the process ended by signal 11', 'the process ended with exit code 1: ImportError: no')
    """
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return f"the process ended {how}" + (f": {line[:_SHOWN]}" if line else "")


def last_line(path: Path) -> str:
    """Last line of a log that is not empty."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
