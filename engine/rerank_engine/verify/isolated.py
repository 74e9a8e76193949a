"""A source framework in a process of its own: that it aborts or hangs is an answer, not the end of the program."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from rerank_engine.errors import ConversionError
from rerank_engine.ops.registry import Array
from rerank_engine.verify.runner import SourceLayer, SourceRunner
from rerank_engine.workers import environment_of_ours

TIMEOUT_S = 300.0
"""How long the framework may take for one call, or to load the model."""

_LENGTH = struct.Struct("<Q")
_START = "from rerank_engine.verify.isolated import serve; serve()"


class IsolatedRunner:
    """A runner that lives in another process, which is started when it is needed, and again after it has ended.

    Parameters
    ----------
    name, outputs, layers
        As in :class:`~rerank_engine.verify.SourceRunner`.
    make
        Makes the runner there; an importable function or class.
    argument
        What ``make`` gets; it is pickled.
    timeout_s
        Longest time for one call.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Any], SourceRunner],
        argument: Any,
        *,
        outputs: Sequence[str],
        layers: Sequence[SourceLayer],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = name
        self.outputs = outputs
        self.layers = layers
        self._recipe = (make, argument)
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words: IO[bytes] | None = None

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See :meth:`SourceRunner.run`; raises ConversionError with the framework's message."""
        if self._process is None:
            self._start()
        worked, answer = self._ask(dict(inputs))
        if not worked:
            raise ConversionError(str(answer))
        found: Mapping[str, Array] = answer
        return found

    def close(self) -> None:
        """End the process."""
        process, self._process = getattr(self, "_process", None), None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._last_words):
                if stream is not None:
                    # What was not yet written to a process that is gone cannot be flushed.
                    _quietly(stream.close)

    def _start(self) -> None:
        self._last_words = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process lives)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._last_words,
            env=environment_of_ours(),
        )
        worked, answer = self._ask(self._recipe)
        if not worked:
            self.close()
            raise ConversionError(str(answer))

    def _ask(self, question: Any) -> tuple[bool, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(self._timeout_s, stop)
        timer.start()
        try:
            _write(process.stdin, question)
            answer: tuple[bool, Any] = _read(process.stdout)
        except (OSError, EOFError):
            code, words = process.wait(), self._said()
            self.close()
            if overdue.is_set():
                return False, f"no answer within {self._timeout_s:g} s"
            return False, f"its process ended, exit code {code}{words}"
        finally:
            timer.cancel()
        return answer

    def _said(self) -> str:
        """Last line that the framework wrote to stderr."""
        assert self._last_words is not None
        self._last_words.seek(0)
        lines = self._last_words.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""

    def __del__(self) -> None:
        """End the process with the object."""
        self.close()


def serve() -> None:
    """Answer on stdout what is asked on stdin, until it is closed; the other end is :class:`IsolatedRunner`."""
    # Only this module may write to the pipe: what the framework prints must not get in between.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    questions = sys.stdin.buffer
    try:
        make, argument = _read(questions)
        runner = make(argument)
    except EOFError:
        return
    except Exception as error:
        _write(answers, (False, _message(error)))
        return
    _write(answers, (True, None))
    while True:
        try:
            inputs = _read(questions)
        except EOFError:
            return
        try:
            answer = (True, runner.run(inputs))
        except Exception as error:
            answer = (False, _message(error))
        _write(answers, answer)


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except OSError:
        return
