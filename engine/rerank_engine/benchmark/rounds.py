"""Interleaved timing: engines take turns in blocks of calls, so that a busy moment of the machine meets all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rerank_engine.workers import Worker, WorkerFailed

ROUNDS = 20
"""Blocks of each engine, where its calls are short enough for so many within the budget."""
_FEWEST_ROUNDS = 3
_LONGEST_BLOCK = 2_000
_CALLS_BEYOND_BUDGET = 3
"""One call and the two warm ones of a block, when a single call is as long as a block's share of the budget."""


@dataclass(frozen=True)
class Times:
    """Calls of one engine.

    Attributes
    ----------
    p50_us, p99_us
        Microseconds of a call.
    calls
        How many were timed.
    """

    p50_us: float
    p99_us: float
    calls: int

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Times:
        """Summarise single calls.

        Examples
        --------
        >>> Times.of([1000, 2000, 3000]).p50_us
        2.0
        """
        p50, p99 = np.percentile(nanoseconds, [50, 99]) / 1e3
        return cls(float(p50), float(p99), len(nanoseconds))


def plan_blocks(call_ns: Mapping[str, float], budget_s: float) -> tuple[int, dict[str, int]]:
    """Choose the number of rounds, and how many calls each engine makes in one.

    Examples
    --------
    >>> plan_blocks({"fast": 10_000, "slow": 1_000_000}, 0.2)
    (20, {'fast': 1000, 'slow': 10})
    >>> plan_blocks({"fast": 10_000, "slow": 100_000_000}, 0.2)
    (3, {'fast': 2000, 'slow': 1})
    """
    budget_ns = budget_s * 1e9
    slowest = max(call_ns.values())
    rounds = int(min(ROUNDS, max(_FEWEST_ROUNDS, budget_ns / (slowest * _CALLS_BEYOND_BUDGET))))
    share_ns = budget_ns / rounds
    return rounds, {name: int(min(_LONGEST_BLOCK, max(1, share_ns // one))) for name, one in call_ns.items()}


def time_interleaved(
    workers: Mapping[str, Worker], budget_s: float, timeout_s: float
) -> tuple[dict[str, Times], dict[str, str]]:
    """Time loaded workers, of which only one works at any time.

    Returns
    -------
    tuple
        Times by engine, and reasons by engine for those that failed on the way.
    """
    failures: dict[str, str] = {}
    times: dict[str, list[int]] = {}
    estimates: dict[str, float] = {}

    def ask(name: str, calls: int) -> list[int]:
        try:
            return [int(one) for one in workers[name].ask({"do": "time", "calls": calls}, timeout_s)["ns"]]
        except WorkerFailed as error:
            failures[name] = str(error)
        except (KeyError, TypeError, ValueError):
            failures[name] = "the answer has no times"
        return []

    for name in workers:
        if first := ask(name, 3):
            estimates[name] = max(1.0, float(np.median(first)))
    if estimates:
        rounds, blocks = plan_blocks(estimates, budget_s)
        for number in range(rounds):
            order = list(blocks) if number % 2 == 0 else list(reversed(blocks))
            for name in order:
                if name not in failures:
                    times.setdefault(name, []).extend(ask(name, blocks[name]))
    return {name: Times.of(taken) for name, taken in times.items() if name not in failures}, failures
