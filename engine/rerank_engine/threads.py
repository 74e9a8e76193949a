"""One call on several threads: candidates are cut into runs of neighbours, and each thread scores its own.

That is possible where every row of a result depends on its own candidate only. Threads that have nothing to do sleep,
and a list is cut only when each of them gets more work than handing it over costs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rerank_engine.dimensions import Dim
from rerank_engine.values import CANDIDATES

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from numpy.typing import NDArray

    from rerank_engine.interface import Interface

Array: TypeAlias = "NDArray[Any]"
Result: TypeAlias = "Array | dict[str, Array]"

WORTH_NS = 150_000
"""Nanoseconds of work for each thread below which one thread is faster: handing over costs 20 to 40 microseconds."""

_LEAST_ROWS = 16
"""Rows of a call from which the time of a row is learnt."""


def usable_processors() -> int:
    """How many processors this process may use at once: affinity and the quota of its control group count.

    Examples
    --------
    >>> usable_processors() >= 1
    True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(count, _quota("/sys/fs/cgroup/cpu.max")))


def _quota(path: str) -> int:
    """Processors that Linux's control group grants, rounded up; many where it sets no limit."""
    unlimited = 1 << 16
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            quota, period = file.read().split()
        return unlimited if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return unlimited


def why_not_split(interface: Interface, steps: list[dict[str, str]]) -> str:
    """Why the candidates of a model cannot be cut apart; an empty text when they can."""
    for value in (*interface.inputs, *interface.outputs):
        if any(CANDIDATES in dim.names for dim in value.shape[1:] if isinstance(dim, Dim)):
            return f"{value} has candidates on another axis than the first"
        if value.shape and isinstance(value.shape[0], Dim) and _rows_of(value.shape[0]) is None:
            return f"the rows of {value} are no multiple of the candidates"
    if not all(_is_cut(value.shape) for value in interface.outputs):
        return "an output does not depend on the candidates"
    for step in steps:
        if step["runs"] == "for the whole list":
            return f"step {step['label']} sees the whole list"
    return ""


def _is_cut(shape: tuple[int | Dim, ...]) -> bool:
    return bool(shape) and isinstance(shape[0], Dim) and CANDIDATES in shape[0].names


def _rows_of(dim: Dim) -> int | None:
    """Rows for each candidate; 0 where the dimension does not count candidates, None where it counts them otherwise."""
    if CANDIDATES not in dim.names:
        return 0
    return dim.multiple[1] if dim.multiple else None


class Splitter:
    """Runs calls of one engine on several threads.

    Parameters
    ----------
    run
        Scores candidates on the calling thread.
    interface
        The outside of the model, for which :func:`why_not_split` had nothing to say.
    threads
        At least 2.
    """

    def __init__(
        self, run: Callable[[Mapping[str, Array], Hashable], Result], interface: Interface, threads: int
    ) -> None:
        self._run = run
        self._threads = threads
        self._rows = {
            value.name: _rows_of(value.shape[0]) or 0
            for value in interface.inputs
            if value.shape and isinstance(value.shape[0], Dim)
        }
        self._row_ns = 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0
        self._local = threading.local()

    def run(self, inputs: Mapping[str, Array], history_key: Hashable) -> Result:
        """Score candidates, on as many threads as are worth it."""
        key = self._key_of_series(history_key)
        try:
            return self._split(inputs, key)
        except BaseException:
            self._local.series = None, None
            raise

    def _key_of_series(self, history_key: Hashable) -> Hashable:
        """Stands for calls of this thread that follow each other with one key.

        The pool's threads serve all callers, and miss short calls: what they keep must not outlive such a series.
        """
        if history_key is None:
            self._local.series = None, None
            return None
        before, series = getattr(self._local, "series", (None, None))
        if series is None or before != history_key:
            series = object()
            self._local.series = history_key, series
        return series

    def _split(self, inputs: Mapping[str, Array], history_key: Hashable) -> Result:
        count = self._count(inputs)
        threads = min(self._threads, int(count * self._row_ns / WORTH_NS))
        if threads < 2:
            return self._alone(inputs, history_key, count)
        pool = self._pool
        if pool is None or self._pool_process != os.getpid():  # after a fork there are no threads
            from concurrent.futures import ThreadPoolExecutor

            pool = self._pool = ThreadPoolExecutor(self._threads - 1, "rerank")
            self._pool_process = os.getpid()
        ends = [count * part // threads for part in range(threads + 1)]
        parts = [self._part(inputs, start, stop) for start, stop in pairwise(ends)]
        others = [pool.submit(self._run, part, history_key) for part in parts[1:]]
        results: list[Result] = []
        errors: list[Exception] = []
        try:
            results.append(self._run(parts[0], history_key))
        except Exception as error:
            errors.append(error)
        # All are waited for: an array that was handed over is in use until then.
        for other in others:
            try:
                results.append(other.result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return _joined(results)

    def _count(self, inputs: Mapping[str, Array]) -> int:
        """Candidates of a well-formed call; 0 for any other, which then runs as it is and is explained."""
        counts = set()
        for name, rows in self._rows.items():
            array = inputs.get(name) if isinstance(inputs, Mapping) else None
            if not isinstance(array, np.ndarray) or not array.ndim:
                return 0
            if rows:
                counts.add(divmod(array.shape[0], rows))
        if len(counts) != 1:
            return 0
        count, rest = counts.pop()
        return 0 if rest else count

    def _alone(self, inputs: Mapping[str, Array], history_key: Hashable, count: int) -> Result:
        started = perf_counter_ns()
        result = self._run(inputs, history_key)
        if count >= _LEAST_ROWS:
            taken = (perf_counter_ns() - started) / count
            # The shortest time is that of an undisturbed call; it may grow again slowly.
            self._row_ns = min(taken, self._row_ns * 1.05) if self._row_ns else taken
        return result

    def _part(self, inputs: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
        return {
            name: array[rows * start : rows * stop] if (rows := self._rows.get(name, 0)) else array
            for name, array in inputs.items()
        }


def _joined(results: list[Result]) -> Result:
    first = results[0]
    if isinstance(first, dict):
        return {name: np.concatenate([result[name] for result in results]) for name in first}
    return np.concatenate(results)  # type: ignore[arg-type]
