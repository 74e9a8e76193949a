"""Fresh processes: import, load and first score, interleaved like everything else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rerank_engine.benchmark.ours import FORMS
from rerank_engine.benchmark.process import EngineCommand, run_start
from rerank_engine.benchmark.results import OURS
from rerank_engine.workers import WorkerFailed


@dataclass(frozen=True)
class Start:
    """One engine to start.

    Attributes
    ----------
    command
        How.
    engine
        Name in the engines' file.
    model
        File to load.
    """

    command: EngineCommand
    engine: str
    model: str


def time_starts(
    starts: Mapping[str, Start], inputs: Path, *, repeats: int, timeout_s: float, wrong: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Start each engine several times and take the medians; what is wrong is no peer to compare with.

    Returns
    -------
    tuple
        The entry of one model, and reasons by engine for those that did not start.
    """
    taken: dict[str, list[dict[str, float]]] = {}
    failures: dict[str, str] = {}
    # The first round reads files into the page cache and is not counted.
    for number in range(repeats + 1):
        order = list(starts) if number % 2 == 0 else list(starts)[::-1]
        for name in order:
            if name in failures:
                continue
            start = starts[name]
            words = [start.engine, start.model, str(inputs)]
            try:
                figures = run_start(start.command, words, timeout_s)
            except WorkerFailed as error:
                failures[name] = str(error)
                continue
            if number:
                taken.setdefault(name, []).append(figures)
    engines = {name: _medians(runs) for name, runs in taken.items() if name not in failures}
    return _entry(engines, wrong), failures


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(run[key] for run in runs) for key in runs[0]}


def _entry(engines: dict[str, dict[str, float]], wrong: Collection[str]) -> dict[str, Any]:
    """Engines with their figures; the quickest and the smallest peer, and ours beside them."""
    ours = engines.get(OURS)
    peers = {name: one for name, one in engines.items() if name not in (*FORMS, *wrong)}
    best = min(peers, key=lambda name: peers[name]["total_ms"], default=None)
    smallest = min(
        (name for name in peers if "rss_mb" in peers[name]), key=lambda name: peers[name]["rss_mb"], default=None
    )
    return {
        "engines": engines,
        "best_peer": best,
        "ratio": peers[best]["total_ms"] / ours["total_ms"] if best is not None and ours else None,
        "smallest_peer": smallest,
        "rss_ratio": peers[smallest]["rss_mb"] / ours["rss_mb"]
        if smallest is not None and ours and "rss_mb" in ours
        else None,
    }
