"""Try one candidate after the other in a worker process, until the time is up."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rerank_engine.kernels.gemm import MANY, Tiling, legal_tilings
from rerank_engine.search.products import ProductWork
from rerank_engine.workers import Worker, WorkerFailed, environment_of_ours

MANY_ROWS, FEW_ROWS = 120, 10
"""Rows at which tilings for many rows, and for few, are compared; most tiles fit evenly into the first."""

WORKER = (sys.executable, "-P", "-m", "rerank_engine.search.worker")
"""Starts a process that candidates run in. ``-P``: no file of the working folder must hide a module."""

BETTER = 1.03
"""A candidate must be this much faster than the default: less is noise."""

_ROUNDS = 9
_MODEL_ROUNDS = 25
_FEW_CHOICES = 3
_RUN_TIMEOUT_S = 1.0
"""For a candidate to run some times; it takes a millisecond unless it hangs."""

_OPEN_TIMEOUT_S = 10.0
_COMPILE_TIMEOUT_S = 20.0
_LEAST_S = 0.02
"""Not worth starting another candidate for."""

assert FEW_ROWS < MANY <= MANY_ROWS


@dataclass(frozen=True)
class Trial:
    """What became of a candidate.

    Attributes
    ----------
    inner, columns
        Of the product.
    tiling
        As text, for example ``5x4``.
    rows
        How many were multiplied.
    ratio
        Time of the default over its time; None where it has none.
    reason
        Why it has none.
    """

    inner: int
    columns: int
    tiling: str
    rows: int
    ratio: float | None
    reason: str = ""


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes
    ----------
    tilings
        The best tilings that are faster than the default, by depth and columns.
    ratios
        For these, time of the default over theirs, the mean over few and many rows.
    trials
        Every candidate that was begun.
    elapsed_s
        Time that it took.
    is_complete
        Whether nothing was left to try.
    """

    tilings: Mapping[tuple[int, int], Tiling]
    ratios: Mapping[tuple[int, int], float]
    trials: Sequence[Trial]
    elapsed_s: float
    is_complete: bool


@dataclass
class _State:
    """What is known of one product."""

    work: ProductWork
    choices: Sequence[Tiling]
    waiting: list[tuple[Tiling, int]]
    ratios: dict[tuple[int, int, int], float] = field(default_factory=dict)
    begun: int = 0

    @property
    def default(self) -> Tiling:
        """What is taken without a search."""
        return self.choices[0]

    def best(self) -> tuple[Tiling, float]:
        """The best tiling so far; one of another width only where it was tried with few rows as well."""
        found = self.default, 1.0
        for vectors in {self.default.vectors, *(vectors for vectors, _, _ in self.ratios)}:
            many = self._of(vectors, MANY_ROWS)
            few = self._of(vectors, FEW_ROWS)
            if many and few:
                (many_rows, one), (few_rows, other) = (max(part, key=lambda pair: pair[1]) for part in (many, few))
                mean = float((one * other) ** 0.5)
                if mean >= BETTER and mean > found[1]:
                    found = Tiling(vectors, many_rows, few_rows), mean
        return found

    def _of(self, vectors: int, rows: int) -> list[tuple[int, float]]:
        """Rows and ratio of every tile of this width that was tried with as many rows, the default among them."""
        here = (vectors, rows)
        known = [(tile, ratio) for (width, tile, tried), ratio in self.ratios.items() if (width, tried) == here]
        if vectors == self.default.vectors:
            known.append((self.default.many_rows if rows == MANY_ROWS else self.default.few_rows, 1.0))
        return known


def search_tilings(
    works: Sequence[ProductWork],
    budget_s: float,
    *,
    command: Sequence[str] = WORKER,
    progress: Callable[[Trial], None] | None = None,
) -> SearchResult:
    """Look for the fastest tilings.

    Parameters
    ----------
    works
        The products; each gets candidates in proportion to its work.
    budget_s
        Time after which no further candidate is begun.
    command
        What to start as a worker.
    progress
        Called with each trial.

    Raises
    ------
    WorkerFailed
        No worker can be started, or the default itself fails.
    """
    started = perf_counter()
    deadline = started + budget_s
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="rerank-search-") as folder:
        bench = CandidateBench(command, Path(folder) / "log")
        try:
            lanes, registers = bench.target()
            choices = [legal_tilings(work.product.columns, lanes, registers) for work in works]
            states = [
                _State(work, possible, [(one, MANY_ROWS) for one in possible[1:]])
                for work, possible in zip(works, choices, strict=True)
            ]
            for state, tiling, rows in _next_candidates(states, deadline):
                trial = bench.compare(state.work, state.default, tiling, rows)
                trials.append(trial)
                if progress is not None:
                    progress(trial)
                if trial.ratio is not None:
                    state.ratios[tiling.vectors, tiling.many_rows, rows] = trial.ratio
                    _follow_up(state, tiling, rows)
        finally:
            bench.close()
    best = {state.work.key: found for state in states if (found := state.best())[0] != state.default}
    return SearchResult(
        tilings={key: tiling for key, (tiling, _) in best.items()},
        ratios={key: ratio for key, (_, ratio) in best.items()},
        trials=tuple(trials),
        elapsed_s=perf_counter() - started,
        is_complete=not any(state.waiting for state in states),
    )


def _next_candidates(states: Sequence[_State], deadline: float) -> Iterator[tuple[_State, Tiling, int]]:
    """Yield candidates, those of the product first that has most work for what it was given."""
    while perf_counter() + _LEAST_S < deadline:
        open_states = [state for state in states if state.waiting]
        if not open_states:
            return
        state = max(open_states, key=lambda one: one.work.multiplications / (1 + one.begun))
        state.begun += 1
        yield (state, *state.waiting.pop(0))


def _follow_up(state: _State, tiling: Tiling, rows: int) -> None:
    """After a good candidate for many rows, see how its width does with few: it and the nearest by rows, next."""
    ratio = state.ratios[tiling.vectors, tiling.many_rows, rows]
    if rows != MANY_ROWS or ratio < BETTER:
        return
    same = [one for one in state.choices if one.vectors == tiling.vectors and one.few_rows <= FEW_ROWS]
    same.sort(key=lambda one: abs(one.few_rows - tiling.many_rows))
    known = {(vectors, tile) for vectors, tile, tried in state.ratios if tried == FEW_ROWS}
    waiting = {(one.vectors, one.few_rows) for one, tried in state.waiting if tried == FEW_ROWS}
    fresh = [one for one in same[:_FEW_CHOICES] if (one.vectors, one.few_rows) not in known | waiting]
    state.waiting[:0] = [(one, FEW_ROWS) for one in fresh if one != state.default]


class CandidateBench:
    """A worker that is started again after it has crashed or hung.

    Parameters
    ----------
    command
        What to start.
    log
        File for what it prints.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._worker: Worker | None = None
        self._kernels: set[str] = set()

    def target(self) -> tuple[int, int]:
        """Lanes and registers."""
        found = self._ask({"do": "target"}, _COMPILE_TIMEOUT_S)
        return int(found["lanes"]), int(found["registers"])

    def compare_images(self, default: Path, candidate: Path, sizes: Sequence[int]) -> dict[int, float]:
        """Time of a call of the default model over that of the candidate, by the number of candidates.

        Raises
        ------
        WorkerFailed
            One of them gives wrong numbers, crashes or hangs.
        """
        ratios = {}
        for size in sizes:
            names = [f"{role} {size}" for role in ("default", "candidate")]
            for name, path in zip(names, (default, candidate), strict=True):
                order = {"do": "open", "name": name, "path": str(path), "candidates": size}
                wrong = self._ask(order, _OPEN_TIMEOUT_S)["wrong"]
                if wrong:
                    raise WorkerFailed(f"wrong: {wrong}")
            ratios[size] = self._ratio(names, _MODEL_ROUNDS, _OPEN_TIMEOUT_S)
        return ratios

    def compare(self, work: ProductWork, default: Tiling, tiling: Tiling, rows: int) -> Trial:
        """Time a candidate beside the default."""
        inner, columns = work.key
        try:
            base = self._kernel(work, default, rows)
        except WorkerFailed as error:
            raise WorkerFailed(f"the default tiling {default} of {inner}x{columns} fails: {error}") from error
        try:
            ratio = self._ratio([base, self._kernel(work, tiling, rows)], _ROUNDS, _RUN_TIMEOUT_S)
        except WorkerFailed as error:
            return Trial(inner, columns, str(tiling), rows, None, str(error))
        return Trial(inner, columns, str(tiling), rows, ratio)

    def _ratio(self, names: Sequence[str], rounds: int, timeout_s: float) -> float:
        """Time of the first of two over that of the second, in turns."""
        times = self._ask({"do": "time", "names": list(names), "rounds": rounds}, timeout_s)["ns"]
        return median(one / other for one, other in zip(*(times[name] for name in names), strict=True))

    def _kernel(self, work: ProductWork, tiling: Tiling, rows: int) -> str:
        """Name of a kernel that was compiled and checked."""
        inner, columns = work.key
        name = f"{inner}x{columns} {tiling} {rows}"
        if name not in self._kernels or self._worker is None or not self._worker.is_alive:
            cut = [tiling.vectors, tiling.many_rows, tiling.few_rows]
            order = {"do": "build", "name": name, "product": work.to_plain(), "tiling": cut, "rows": rows}
            self._ask(order, _COMPILE_TIMEOUT_S)
            wrong = self._ask({"do": "check", "name": name}, _RUN_TIMEOUT_S)["wrong"]
            if wrong:
                raise WorkerFailed(f"wrong: {wrong}")
            self._kernels.add(name)
        return name

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._worker is None or not self._worker.is_alive:
            self._kernels.clear()
            environment = environment_of_ours(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
            self._worker = Worker(self._command, environment, self._log)
        return self._worker.ask(request, timeout_s)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
