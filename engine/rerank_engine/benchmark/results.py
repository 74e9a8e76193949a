"""From times and errors to what is reported: who is right, who is best, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.benchmark.ours import CACHED
from rerank_engine.benchmark.rounds import Times

LARGEST_ERROR = 1e-3
"""Relative to the largest score; an engine beyond it is wrong, and no peer to compare with."""

OURS = "ours"


def relative_error(scores: Sequence[NDArray[Any]], truth: Sequence[NDArray[Any]]) -> float:
    """Largest difference in units of the largest score; infinite where shapes differ or scores are no numbers.

    Examples
    --------
    >>> relative_error([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    0.25
    >>> relative_error([np.array([1.0])], [np.array([1.0, 2.0])])
    inf
    """
    if len(scores) != len(truth):
        return float("inf")
    worst = 0.0
    for given, right in zip(scores, truth, strict=True):
        flat, expected = np.asarray(given, np.float64).reshape(-1), np.asarray(right, np.float64).reshape(-1)
        if flat.shape != expected.shape:
            return float("inf")
        if flat.size == 0:
            continue
        difference = np.abs(flat - expected).max()
        scale = np.abs(expected).max()
        error = float(difference / scale) if scale > 0 else float(difference)
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def compare(
    times: Mapping[str, Times], errors: Mapping[str, float], *, flops: int = 0, peak_gflops: float | None = None
) -> dict[str, Any]:
    """Make the entry of one model and size.

    Parameters
    ----------
    times
        By engine; ours is called ``"ours"``, other forms of our calls ``"ours_..."``. That with a history that stays
        gives ``cached_us`` and ``cached_ratio``.
    errors
        By engine, relative.
    flops
        Operations of one call, as the converted graph needs them.
    peak_gflops
        What one core can do; None where it is not known.

    Examples
    --------
    >>> entry = compare({"ours": Times(10, 12, 5), "a": Times(15, 20, 5), "b": Times(5, 6, 5)}, {"b": 0.5})
    >>> entry["best_peer"], entry["ratio"], entry["peers"]["b"]["wrong"]
    ('a', 1.5, True)
    """
    engines = {name: _figures(one, errors.get(name, 0.0)) for name, one in times.items()}
    ours = engines.pop(OURS, None)
    forms = {name: engines.pop(name) for name in list(engines) if name.startswith(f"{OURS}_")}
    best = min(
        (name for name, one in engines.items() if not one["wrong"]),
        key=lambda name: engines[name]["p50_us"],
        default=None,
    )
    best_us = engines[best]["p50_us"] if best is not None else None
    entry: dict[str, Any] = {
        "ours_us": ours["p50_us"] if ours else None,
        "ours_p99_us": ours["p99_us"] if ours else None,
        "ours_error": ours["error"] if ours else None,
        "best_peer": best,
        "best_peer_us": best_us,
        "ratio": None,
        "flops": flops,
        "share_of_peak": None,
        "peers": engines,
    }
    if forms:
        entry["forms"] = forms
    cached = forms.get(CACHED)
    if cached and not cached["wrong"]:
        entry["cached_us"] = cached["p50_us"]
        entry["cached_ratio"] = best_us / cached["p50_us"] if best_us is not None else None
    if ours and not ours["wrong"]:
        if best_us is not None:
            entry["ratio"] = best_us / ours["p50_us"]
        if peak_gflops:
            entry["share_of_peak"] = flops / (ours["p50_us"] * 1e3 * peak_gflops)
    return entry


def _figures(times: Times, error: float) -> dict[str, Any]:
    return {
        "p50_us": times.p50_us,
        "p99_us": times.p99_us,
        "calls": times.calls,
        "error": error if math.isfinite(error) else None,
        "wrong": is_wrong(error),
    }


def is_wrong(error: float) -> bool:
    """Whether scores with this error are not the model's."""
    return not error <= LARGEST_ERROR
