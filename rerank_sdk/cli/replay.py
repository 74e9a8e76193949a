"""``rerank replay``: real lists of MovieLens through policies, with intervals."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank_sdk.cli.metrics import lift_words, show_metrics
from rerank_sdk.cli.options import BundlePath, JsonFlag
from rerank_sdk.cli.output import print_json, progress, say
from rerank_sdk.cli.sources import load_bundle, load_log

if TYPE_CHECKING:
    from rerank_simulator.intervals import Interval


class PolicyName(StrEnum):
    """Policies, from the weakest to the strongest by expectation."""

    POPULARITY = "popularity"
    SERVER = "server"
    WITHOUT_EVENTS = "without-events"
    MODEL = "model"
    PERSONALISED = "personalised"


def replay(
    bundle: BundlePath = None,
    policy: Annotated[
        list[PolicyName] | None, typer.Option("--policy", help="Only this policy; may be repeated. All when left out.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Judge policies on real lists of MovieLens-100K."""
    from rerank_simulator import movielens
    from rerank_simulator.replay import replay as run_replay

    names = {
        PolicyName.POPULARITY: movielens.POPULARITY,
        PolicyName.SERVER: movielens.SERVER,
        PolicyName.WITHOUT_EVENTS: movielens.WITHOUT_EVENTS,
        PolicyName.MODEL: movielens.WITH_EVENTS,
        PolicyName.PERSONALISED: movielens.PERSONALISED,
    }
    chosen = [names[one] for one in PolicyName if not policy or one in policy]
    loaded = load_bundle(bundle)
    log = load_log()
    with movielens.standard_policies(loaded) as policies, progress() as report:
        entries = list(movielens.replay_entries(movielens.make_timeline(log)))
        result = run_replay(entries, {name: policies[name] for name in chosen}, progress=report)
    ladder = [name for name in chosen if name != movielens.POPULARITY]
    pairs = list(pairwise(ladder))
    if movielens.SERVER in ladder:
        pairs += [(movielens.SERVER, name) for name in ladder[2:]]
    lifts = [_lift(result, policy, baseline) for baseline, policy in pairs]
    summary = {
        "bundle": loaded.name,
        "users": len(set(result.users.tolist())),
        "lists": len(result.users),
        "lists_without_relevant": result.lists_without_relevant,
        "metrics": result.summary(),
        "lifts": lifts,
    }
    if json:
        print_json(summary)
    else:
        _show(summary)


def _lift(result: Any, policy: str, baseline: str) -> dict[str, Any]:
    lift = result.lift(policy, baseline, "ndcg10")
    return {
        "policy": policy,
        "baseline": baseline,
        "metric": "ndcg10",
        "absolute": _ends(lift.absolute),
        "relative": _ends(lift.relative) if lift.relative is not None else None,
    }


def _ends(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def _show(summary: dict[str, Any]) -> None:
    say(
        f"{summary['bundle']} on MovieLens-100K: {summary['lists']:,} lists of {summary['users']:,} users;"
        f" {summary['lists_without_relevant']:,} lists without a relevant candidate are left out."
        " Server lists are constructed. Intervals: 95%, by user."
    )
    show_metrics(summary["metrics"])
    for lift in summary["lifts"]:
        say(lift_words(lift))
