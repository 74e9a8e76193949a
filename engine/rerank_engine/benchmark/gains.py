"""What each pass brings: the model converted without it, timed beside the model with all of them."""

from __future__ import annotations

from collections.abc import Mapping

from rerank_engine.benchmark.calls import Field
from rerank_engine.benchmark.cards import ModelCard
from rerank_engine.benchmark.results import OURS
from rerank_engine.benchmark.rounds import time_interleaved
from rerank_engine.benchmark.session import Session
from rerank_engine.errors import RerankError
from rerank_engine.model import Model
from rerank_engine.workers import Worker

_ALL = "all"
SEARCH_S = 0.5
"""Time of a search: that of a first launch."""


def measure_gains(session: Session, card: ModelCard, model: Model, candidates: int) -> dict[str, float]:
    """Time of a call without a pass over the time with all, for each pass that changes the model's outcome."""
    models = {_ALL: model, **_variants(session, card, model)}
    if len(models) == 1:
        return {}
    inputs, _ = session.write_inputs(card, candidates)
    ready: dict[str, Worker] = {}
    with Field(session, dict.fromkeys(models, session.our_command())) as field:
        for name, one in models.items():
            path = session.folder / f"{card.name}_without_{name}.rrm"
            try:
                one.save(path)
                ready[name] = field.load(name, OURS, str(path), inputs)
            except RerankError as error:
                _fail(session, card, name, str(error))
        times, failures = time_interleaved(ready, session.budget_s, session.timeout_s)
    for name, reason in failures.items():
        _fail(session, card, name, reason)
    if _ALL not in times:
        return {}
    return {name: one.p50_us / times[_ALL].p50_us for name, one in times.items() if name != _ALL}


def measure_search(session: Session, card: ModelCard, model: Model, candidates: int) -> dict[str, float]:
    """Search as a first launch does; what it takes, and what it brings.

    Returns
    -------
    dict
        ``elapsed_ms`` until the model runs with what was found, ``gain``: time of a call with the default kernels over
        that with those, 1 where none is better; nothing where there is nothing to search.
    """
    from rerank_engine.search.tune import tune_model

    cache = session.folder / f"{card.name}_tuned"
    try:
        _, report = tune_model(model, budget_s=SEARCH_S, cache_dir=cache)
    except RerankError as error:
        session.fail(card.name, "search", str(error))
        return {}
    if not report["trials"]:
        return {}
    found = {"elapsed_ms": 1e3 * report["elapsed_s"], "gain": 1.0}
    if not report["is_used"]:
        return found
    path, inputs = str(session.stored(card)), session.write_inputs(card, candidates)[0]
    commands = {_ALL: session.our_command(), "search": session.our_command(cache)}
    with Field(session, commands) as field:
        try:
            ready = {name: field.load(name, OURS, path, inputs) for name in commands}
        except RerankError as error:
            session.fail(card.name, "search", str(error))
            return found
        times, failures = time_interleaved(ready, session.budget_s, session.timeout_s)
    for name, reason in failures.items():
        session.fail(card.name, name, reason)
    if len(times) == len(commands):
        found["gain"] = times[_ALL].p50_us / times["search"].p50_us
    return found


def _variants(session: Session, card: ModelCard, model: Model) -> Mapping[str, Model]:
    """The model without each pass that did something; a pass whose work others do as well is left out."""
    worked = dict.fromkeys(report.name for report in model.reports if report.removed or report.added)
    complete = model.content_hash
    variants: dict[str, Model] = {}
    for name in worked:
        try:
            variant = session.convert(card, skip=[name])
            if variant.content_hash != complete:
                variants[name] = variant
        except RerankError as error:
            _fail(session, card, name, str(error))
    return variants


def _fail(session: Session, card: ModelCard, name: str, reason: str) -> None:
    session.fail(card.name, OURS if name == _ALL else f"{OURS} without {name}", reason)
