"""Calls of loaded engines: checked against the reference, then timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.benchmark.cards import ModelCard
from rerank_engine.benchmark.ours import CACHED
from rerank_engine.benchmark.process import EngineCommand
from rerank_engine.benchmark.results import compare, is_wrong, relative_error
from rerank_engine.benchmark.rounds import time_interleaved
from rerank_engine.benchmark.session import Session, truth
from rerank_engine.graph import Graph
from rerank_engine.inspect import Cost
from rerank_engine.workers import Worker, WorkerFailed


class Field:
    """The workers of one model: started when needed, started again after they end, all ended together.

    Parameters
    ----------
    session
        The run.
    commands
        How each engine is started.
    """

    def __init__(self, session: Session, commands: Mapping[str, EngineCommand]) -> None:
        self._session = session
        self._commands = commands
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def worker(self, name: str) -> Worker:
        """The running worker of an engine.

        Raises
        ------
        WorkerFailed
            It cannot be started.
        """
        worker = self._workers.get(name)
        if worker is None or not worker.is_alive:
            log = self._session.folder / f"{name.replace('/', '_')}.log"
            command = self._commands[name]
            worker = self._workers[name] = Worker(command.words(), command.variables(), log)
        return worker

    def load(self, name: str, engine: str, path: str, inputs: Path) -> Worker:
        """Have a worker load a model.

        Raises
        ------
        WorkerFailed
            It cannot.
        """
        worker = self.worker(name)
        request = {"do": "load", "engine": engine, "model": path, "inputs": str(inputs)}
        worker.ask(request, self._session.timeout_s)
        return worker

    def scores(self, worker: Worker, name: str) -> list[NDArray[Any]]:
        """Scores of each set of inputs.

        Raises
        ------
        WorkerFailed
            It gives none.
        """
        path = self._session.folder / f"{name.replace('/', '_')}_scores.npz"
        path.unlink(missing_ok=True)
        worker.ask({"do": "outputs", "path": str(path)}, self._session.timeout_s)
        try:
            with np.load(path) as stored:
                return [stored[str(place)] for place in range(len(stored.files))]
        except (OSError, ValueError, KeyError) as error:
            raise WorkerFailed(f"wrote no scores: {error}") from error


def measure_size(
    session: Session, field: Field, card: ModelCard, graph: Graph, cost: Cost, candidates: int, peak: float | None
) -> dict[str, Any]:
    """Check and time every engine on one model and number of candidates."""
    drawn, right = {}, {}
    for same_history in (False, True) if card.has_history else (False,):
        drawn[same_history], sets = session.write_inputs(card, candidates, same_history=same_history)
        right[same_history] = truth(graph, sets)
    ready: dict[str, Worker] = {}
    errors: dict[str, float] = {}
    for name in session.commands(card):
        path = session.peer_path(name, card, candidates)
        if path is None:
            continue
        try:
            same_history = name == CACHED
            worker = field.load(name, name, path, drawn[same_history])
            errors[name] = relative_error(field.scores(worker, name), right[same_history])
        except WorkerFailed as error:
            session.fail(card.name, name, str(error), candidates)
            continue
        ready[name] = worker
        if is_wrong(errors[name]):
            session.fail(card.name, name, f"wrong: relative error {errors[name]:.2g}", candidates)
    times, failures = time_interleaved(ready, session.budget_s, session.timeout_s)
    for name, reason in failures.items():
        session.fail(card.name, name, reason, candidates)
    flops = cost.at(dict.fromkeys(_names(graph), candidates))["flops"]
    return compare(times, errors, flops=flops, peak_gflops=peak)


def _names(graph: Graph) -> Sequence[str]:
    """Named dimensions of the model's inputs: all of them count candidates here."""
    return sorted({str(dim) for name in graph.inputs for dim in graph.values[name].shape if not isinstance(dim, int)})
