"""Metrics with intervals and lifts, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank_sdk.cli.output import make_table, show_table

METRIC_NAMES = {"ndcg10": "NDCG@10", "mrr": "MRR", "recall10": "Recall@10"}
"""Metrics by their name in JSON, as people write them."""


def show_metrics(metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print ``[policy][metric]`` of mean, low and high as a table."""
    columns = list(dict.fromkeys(name for own in metrics.values() for name in own))
    table = make_table("policy", *((METRIC_NAMES.get(name, name), "right") for name in columns))
    for policy, own in metrics.items():
        table.add_row(policy, *(_interval_text(own[name]) if name in own else "-" for name in columns))
    show_table(table)


def lift_words(lift: Mapping[str, Any]) -> str:
    """Say in words how much better a policy is than another.

    Parameters
    ----------
    lift
        ``policy``, ``baseline``, ``metric``; ``relative`` and ``absolute``: mean, low and high of the lift, as a share
        of the baseline's mean (None where there is no meaningful ratio) and as a difference; ``verdict``, which
        otherwise follows from the interval.

    Examples
    --------
    >>> names = {"policy": "model", "baseline": "server order", "metric": "ndcg10"}
    >>> lift_words({**names, "relative": {"mean": 0.121, "low": 0.08, "high": 0.16}})
    'model against server order: NDCG@10 +12.1% (95% interval +8.0% to +16.0%): better'
    >>> lift_words({**names, "relative": None, "absolute": {"mean": 0.1, "low": -0.1, "high": 0.3}})
    'model against server order: NDCG@10 +0.1000 (95% interval -0.1000 to +0.3000): cannot tell'
    """
    ratio = lift.get("relative")
    interval, write = (ratio, _percent) if ratio is not None else (lift.get("absolute"), _difference)
    start = f"{lift['policy']} against {lift['baseline']}: {METRIC_NAMES.get(lift['metric'], lift['metric'])} "
    if interval is None:
        return start + "cannot be compared as a ratio, because the baseline's mean is not above 0"
    verdict = lift.get("verdict") or _verdict(interval)
    low, high = write(interval["low"]), write(interval["high"])
    return f"{start}{write(interval['mean'])} (95% interval {low} to {high}): {verdict}"


def _verdict(interval: Mapping[str, float]) -> str:
    return "better" if interval["low"] > 0 else "worse" if interval["high"] < 0 else "cannot tell"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%"


def _difference(difference: float) -> str:
    return f"{difference:+.4f}"


def _interval_text(interval: Mapping[str, Any]) -> str:
    """Two lines, so that three metrics fit into 80 columns."""
    return f"{interval['mean']:.4f}\n{interval['low']:.4f}-{interval['high']:.4f}"
