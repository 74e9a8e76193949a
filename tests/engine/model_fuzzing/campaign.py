"""Many cases in worker processes, so that a crash or a hang ends one worker and is charged to its case."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from .outcome import CRASH, FAILURES, HANG, Outcome

Report = Callable[[int, str, Outcome], None]
"""Called for each case with its number, the way of damage, and the outcome."""


@dataclass
class Tally:
    """What became of all cases.

    Attributes
    ----------
    outcomes
        Number of cases by outcome.
    ways
        Number of cases by way of damage and outcome.
    findings
        One entry a failure.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    ways: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, index: int, way: str, outcome: Outcome) -> None:
        """Count one case."""
        kinds = self.ways.setdefault(way, {})
        for counts in (self.outcomes, kinds):
            counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
        if outcome.kind in FAILURES:
            self.findings.append({"case": index, "way": way, "kind": outcome.kind, "detail": outcome.detail})

    @property
    def cases(self) -> int:
        """All cases."""
        return sum(self.outcomes.values())


def work(run: Callable[[int], tuple[str, Outcome]], cases: Iterable[int], out: IO[str]) -> None:
    """Run cases in this process, and write a line before and after each; ``run`` gives way of damage and outcome."""
    for index in cases:
        print(json.dumps({"begin": index}), file=out, flush=True)
        way, outcome = run(index)
        end = {"end": index, "way": way, "kind": outcome.kind, "detail": outcome.detail[:600]}
        print(json.dumps(end), file=out, flush=True)


def supervise(command: Sequence[str], cases: range, limit_s: float, report: Report) -> None:
    """Run cases in a process of their own; start another one after each crash or hang.

    A hang counts when the case hangs again in a fresh process: a busy machine may hold up any case once.

    Parameters
    ----------
    command
        Runs :func:`work`; gets first, end and step of the cases as further arguments.
    cases
        Which ones.
    limit_s
        Longest time without a line, in seconds, before the worker is ended.
    report
        Called for each case.
    """
    tried_again: int | None = None
    while cases:
        done, failure = _one_worker([*command, *map(str, (cases.start, cases.stop, cases.step))], limit_s, report)
        begin = cases.start if done is None else done + cases.step
        if failure is not None and failure.kind == HANG and begin != tried_again:
            tried_again = begin
        elif failure is not None:
            report(begin, "unknown", failure)
            begin += cases.step
        cases = range(begin, cases.stop, cases.step)


def _one_worker(command: Sequence[str], limit_s: float, report: Report) -> tuple[int | None, Outcome | None]:
    """Run one process to its end; returns the last case that it finished, and how it failed."""
    done: int | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reading = threading.Thread(target=lambda stream: errors.extend(stream), args=(process.stderr,), daemon=True)
        reading.start()
        try:
            for entry in _entries(process.stdout, limit_s):
                if "end" in entry:
                    done = entry["end"]
                    report(entry["end"], entry["way"], Outcome(entry["kind"], entry["detail"]))
        except TimeoutError:
            process.kill()
            process.wait()
            return done, Outcome(HANG, f"no answer within {limit_s} s")
        status = process.wait()
        reading.join()
    return done, Outcome(CRASH, f"exit status {status}: {''.join(errors)[-600:]}") if status else None


def _entries(stream: IO[str], limit_s: float) -> Iterator[dict[str, Any]]:
    """Lines of a worker as they come; TimeoutError when none comes in time."""
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        # The stream may be closed meanwhile, after the end of a worker that hung.
        with contextlib.suppress(ValueError):
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=limit_s)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            return
        # What others print, or half a line of a dead process, is no entry.
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def run_campaign(
    command: Sequence[str], count: int, workers: int, limit_s: float, on_case: Callable[[Tally], None]
) -> Tally:
    """Run cases ``0 .. count - 1`` in several processes.

    Parameters
    ----------
    command
        As for :func:`supervise`.
    count, workers
        Number of cases, and of processes at a time.
    limit_s
        As for :func:`supervise`.
    on_case
        Called after each case with what was counted so far.
    """
    tally, lock = Tally(), threading.Lock()

    def report(index: int, way: str, outcome: Outcome) -> None:
        with lock:
            tally.add(index, way, outcome)
            on_case(tally)

    threads = [
        threading.Thread(target=supervise, args=(command, range(first, count, workers), limit_s, report))
        for first in range(min(workers, count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.findings.sort(key=lambda finding: finding["case"])
    return tally


def limit_memory(size_bytes: int) -> None:
    """Let this process take no more memory, where the system can do that: a trap becomes MemoryError."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))
