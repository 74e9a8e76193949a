"""The whole benchmark of event store and features, one part after the other."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine import load
from rerank_engine.errors import InputError
from rerank_features.ready import ready_spec
from rerank_simulator.feature_benchmark.bundle import train_shop_bundle
from rerank_simulator.feature_benchmark.kill import kill_rounds
from rerank_simulator.feature_benchmark.logs import load_input
from rerank_simulator.feature_benchmark.measure import (
    append_events_per_s,
    build_events_per_s,
    emit_times,
    percentile,
    state_bytes_per_user,
    track_us,
)
from rerank_simulator.feature_benchmark.sizes import FULL, QUICK
from rerank_simulator.feature_benchmark.stream import generate_items

Progress = Callable[[int, int, str], None]

SEED = 1
_PARTS = 7


def benchmark_features(
    data: str | Path | None = None,
    *,
    quick: bool = False,
    rounds: int | None = None,
    seed: int = SEED,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure event store, feature pipeline and training sets, and kill processes that use them.

    Parameters
    ----------
    data
        What training sets are built from: a path to KuaiRand, ``"movielens"``, or None for a generated stream. All
        other parts use the generated stream.
    quick
        Small sizes, to see that it works: the figures mean little.
    rounds
        Processes killed; 1,000 when left out, with ``quick`` 3.
    seed
        Of everything that is generated.
    progress
        Called with parts done, parts in all, and what comes next.

    Returns
    -------
    dict
        ``append_events_per_s``, ``track_p50_us``, ``track_p99_us``, ``emit_100_p50_us``, ``emit_share_of_rerank``,
        ``naive_ratio``, ``build_events_per_s``, ``state_bytes_per_user``, ``kill_rounds``, ``lost_events``; and what
        they rest on: ``data`` and ``machine``.

    Raises
    ------
    DataError
        The log cannot be read; or a value, an event or a state is wrong: no figure is given then.
    MissingExtraError
        PyTorch is not installed.
    InputError
        The number of rounds is negative.

    Examples
    --------
    >>> benchmark_features(quick=True, rounds=0)  # doctest: +SKIP
    """
    if rounds is not None and rounds < 0:
        raise InputError(f"rounds: expected a number from 0, got {rounds}")
    sizes = QUICK if quick else FULL
    kills = sizes.kill_rounds if rounds is None else rounds
    parts = _PARTS + kills
    report = progress or _silent
    report(0, parts, "reading the data")
    given = load_input(data, seed=seed, visits=sizes.build_visits)
    spec, items = ready_spec("edgerec"), generate_items(sizes.items, seed)
    with tempfile.TemporaryDirectory(prefix="rerank-benchmark-") as folder:
        cache = Path(folder)
        report(1, parts, "training the model")
        bundle = train_shop_bundle(spec, items, seed, visits=sizes.training_visits, epochs=sizes.epochs)
        # Compiled, and searched for faster kernels, before anything is timed.
        load(bundle.model(), cache_dir=cache).wait_for_search()
        report(2, parts, "appending")
        appended = append_events_per_s(items, seed, sizes.appended)
        report(3, parts, "tracking")
        tracked = track_us(bundle, items, seed, sizes.tracked, cache)
        report(4, parts, "emitting")
        emitted = emit_times(spec, bundle, items, seed, rounds=sizes.emitted, naive_rounds=sizes.rescanned, cache=cache)
        report(5, parts, "building training sets")
        built = build_events_per_s(given, sizes.build_repeats)
        report(6, parts, "weighing the state")
        weight = state_bytes_per_user(spec, items, seed, users=sizes.users, events_per_user=sizes.events_per_user)
        killed = kill_rounds(
            bundle, seed, kills, cache, lambda done: report(_PARTS + done, parts, f"killing, round {done}")
        )
    return {
        "append_events_per_s": round(appended),
        "track_p50_us": percentile(tracked, 50),
        "track_p99_us": percentile(tracked, 99),
        "emit_100_p50_us": emitted.emit_us,
        "emit_share_of_rerank": round(emitted.emit_us / emitted.rerank_us, 3),
        "naive_ratio": round(emitted.naive_us / emitted.emit_us, 1),
        "build_events_per_s": round(built),
        "state_bytes_per_user": round(weight),
        "kill_rounds": killed.rounds,
        "lost_events": killed.lost_events,
        "data": given.name,
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on.

    Examples
    --------
    >>> sorted(machine())
    ['numpy', 'processor', 'processors', 'python', 'system']
    """
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _processor() -> str:
    """The processor's name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _silent(*_: object) -> None:
    """Progress that nobody sees."""
