"""The whole benchmark: models, sizes, starts and passes, one after the other, and a reason for whatever fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rerank_engine.benchmark.calls import Field, measure_size
from rerank_engine.benchmark.cards import ModelCard, read_cards
from rerank_engine.benchmark.gains import measure_gains, measure_search
from rerank_engine.benchmark.ours import FORMS
from rerank_engine.benchmark.peak import peak_gflops
from rerank_engine.benchmark.peers import read_peers
from rerank_engine.benchmark.process import run_start
from rerank_engine.benchmark.results import OURS
from rerank_engine.benchmark.session import Session, choose_cores, truth_graph
from rerank_engine.benchmark.start import Start, time_starts
from rerank_engine.errors import CompileError, InputError, RerankError
from rerank_engine.inspect import cost
from rerank_engine.workers import WorkerFailed

SIZES = (1, 10, 50, 200, 1000)
START_SIZE = 50
DEFAULT_MODELS = Path("build/bench/models")
DEFAULT_PEERS = Path("build/bench/peers")

_NOOP = "noop"
_REPEATS = 5
_TIMEOUT_S = 120.0

Progress = Callable[[int, int, str], None]


def benchmark_engine(
    models: str | Path = DEFAULT_MODELS,
    peers: str | Path = DEFAULT_PEERS,
    *,
    only: Collection[str] = (),
    sizes: Sequence[int] = SIZES,
    budget_s: float = 0.5,
    repeats: int = _REPEATS,
    timeout_s: float = _TIMEOUT_S,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure this engine beside its peers, one thread, each in a process of its own, all on one processor.

    Parameters
    ----------
    models
        Folder with models and their descriptions, as ``bench/make_models.py`` writes them.
    peers
        Folder with ``peers.json``; without it this engine is measured alone.
    only
        Names of models; all when empty.
    sizes
        Numbers of candidates.
    budget_s
        Seconds for each engine, model and size.
    repeats
        Fresh starts of each engine and model.
    timeout_s
        Seconds after which a silent engine is given up.
    progress
        Called with steps done, steps in all, and what comes next.

    Returns
    -------
    dict
        ``noop_us``, ``models``, ``start``, ``passes``, ``peak_gflops``, ``versions`` of the peers, and ``failures``:
        reasons by ``model/engine`` or ``model/engine/N``.

    Raises
    ------
    DataError
        There are no models, or a description or the list of peers is damaged.
    InputError
        A size, budget or number of repeats is not positive.

    Examples
    --------
    >>> benchmark_engine(only=["mlp"], sizes=[10])  # doctest: +SKIP
    """
    if not sizes or any(size < 1 for size in sizes):
        raise InputError(f"sizes must be numbers from 1, got {', '.join(map(str, sizes)) or 'none'}")
    if not budget_s > 0 or not timeout_s > 0 or repeats < 1:
        raise InputError(f"budget, timeout and repeats must be above 0, got {budget_s}, {timeout_s} and {repeats}")
    cards, known = read_cards(Path(models), only), read_peers(Path(peers))
    here, there = choose_cores()
    report = progress or _silent
    with tempfile.TemporaryDirectory(prefix="rerank-benchmark-") as folder, _bound_to(there):
        session = Session(Path(folder), known, there, budget_s, timeout_s, repeats)
        if not known:
            session.failures["peers"] = f"no peers listed in {Path(peers).as_posix()}; make them with: make bench"
        peak = _peak(session)
        with _bound_to(here):
            measured = _measure(session, cards, sizes, peak, report)
    return {
        "noop_us": _noop_us(measured["models"]),
        **measured,
        "peak_gflops": peak,
        "versions": {peer.name: peer.version for peer in known},
        "failures": session.failures,
    }


def _measure(
    session: Session, cards: Sequence[ModelCard], sizes: Sequence[int], peak: float | None, report: Progress
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"models": {}, "start": {}, "passes": {}}
    steps = len(cards) * (len(sizes) + 2)
    for place, card in enumerate(cards):
        done = place * (len(sizes) + 2)
        report(done, steps, card.name)
        try:
            model = session.convert(card)
            model.save(session.stored(card))
            graph = truth_graph(card)
        except RerankError as error:
            session.fail(card.name, OURS, str(error))
            continue
        first_launch_ms = _first_launch(session, card)
        entries = found["models"].setdefault(card.name, {})
        with Field(session, session.commands(card)) as field:
            for step, candidates in enumerate(sizes):
                report(done + step, steps, f"{card.name} N={candidates}")
                try:
                    entry = measure_size(session, field, card, graph, cost(model.graph), candidates, peak)
                except RerankError as error:  # a list longer than the model takes, for one
                    session.fail(card.name, "reference", str(error), candidates)
                    continue
                entries[str(candidates)] = entry
        report(done + len(sizes), steps, f"{card.name} start")
        wrong = {peer for entry in entries.values() for peer, one in entry["peers"].items() if one["wrong"]}
        search = measure_search(session, card, model, START_SIZE)
        found["start"][card.name] = {
            **_starts(session, card, wrong),
            "first_launch_ms": first_launch_ms,
            "search_ms": search.get("elapsed_ms"),
        }
        report(done + len(sizes) + 1, steps, f"{card.name} passes")
        found["passes"][card.name] = {
            **measure_gains(session, card, model, START_SIZE),
            **_gain_of_history(entries.get(str(START_SIZE), {})),
            **({"search": search["gain"]} if search else {}),
        }
    report(steps, steps, "done")
    return found


def _gain_of_history(entry: dict[str, Any]) -> dict[str, float]:
    """What it brings that the history stays from call to call."""
    if "cached_us" not in entry or not entry["ours_us"]:
        return {}
    return {"history_key": entry["ours_us"] / entry["cached_us"]}


def _starts(session: Session, card: ModelCard, wrong: Collection[str]) -> dict[str, Any]:
    inputs, _ = session.write_inputs(card, START_SIZE)
    starts = {}
    for name, command in session.commands(card).items():
        if name in FORMS and name != OURS:
            continue
        path = session.peer_path(name, card, START_SIZE)
        if path is not None:
            starts[name] = Start(command, name, path)
    entry, failures = time_starts(starts, inputs, repeats=session.repeats, timeout_s=session.timeout_s, wrong=wrong)
    for name, reason in failures.items():
        session.fail(card.name, f"{name} start", reason)
    return entry


def _first_launch(session: Session, card: ModelCard) -> float | None:
    """Milliseconds from import to the first score with an empty cache: the code is compiled."""
    inputs, _ = session.write_inputs(card, START_SIZE)
    command = session.our_command(session.folder / f"{card.name}_empty_cache")
    try:
        words = [OURS, str(session.stored(card)), str(inputs)]
        return float(run_start(command, words, session.timeout_s)["total_ms"])
    except WorkerFailed as error:
        session.fail(card.name, f"{OURS} first launch", str(error))
        return None


def _peak(session: Session) -> float | None:
    try:
        return peak_gflops()
    except CompileError as error:
        session.failures["peak"] = str(error)
        return None


def _noop_us(models: dict[str, Any]) -> float | None:
    """Time of an empty model's call: that of the smallest list."""
    entries = models.get(_NOOP, {})
    return entries[min(entries, key=int)]["ours_us"] if entries else None


@contextmanager
def _bound_to(core: int | None) -> Iterator[None]:
    """Keep this thread on one processor meanwhile."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _silent(*_: object) -> None:
    """Progress that nobody sees."""
