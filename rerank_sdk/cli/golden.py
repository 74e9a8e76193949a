"""The golden check of a bundle: what runs against the NumPy reference, on made-up lists and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine import load
from rerank_engine.reference import evaluate
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_sdk.bundle import check_fit

if TYPE_CHECKING:
    from rerank_sdk.bundle import Bundle

CANDIDATES = (1, 37, 200)
"""Lengths of the lists: less than a block of the compiled code, no multiple of one, several."""

TOLERANCE = 1e-4
"""Largest difference that passes, in parts of the largest score or of 1, whichever is more."""

_EVENTS = 40
_WORDS = tuple(f"word-{number}" for number in range(8))
_DAY_MS = 86_400_000
_SEARCH_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class GoldenResult:
    """What the check found.

    Attributes
    ----------
    backend, reason
        What computed the scores, and why that.
    max_abs_error
        Largest difference from the reference, in float64, over all outputs.
    limit
        What it may be.
    """

    backend: str
    reason: str
    max_abs_error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the limit."""
        return self.max_abs_error <= self.limit


def golden_check(bundle: Bundle, *, seed: int = 0) -> GoldenResult:
    """Compare a bundle's machine code with the NumPy reference in float64.

    The inputs are the bundle's own features of random items after random events, so that every id is one that the
    model knows.

    Parameters
    ----------
    bundle
        Model and features.
    seed
        Of items and events.

    Raises
    ------
    BundleError, ModelFileError, SpecError
        The bundle cannot be used.
    """
    model, spec = bundle.model(), bundle.spec()
    check_fit(model, spec)
    engine = load(model)
    # A first start at installation time is to leave nothing for later ones.
    engine.wait_for_search(_SEARCH_TIMEOUT_S)
    pipeline = FeaturePipeline(spec)
    generator = np.random.default_rng(seed)
    error, largest = 0.0, 1.0
    for count in CANDIDATES:
        arrays = _features(pipeline, spec, generator, count)
        inputs = {value.name: arrays[value.name] for value in model.inputs}
        reference = evaluate(model.graph, inputs, precise=True)
        result = engine.run(inputs)
        results = result if isinstance(result, dict) else {engine.outputs[0].name: result}
        for name, expected in reference.items():
            difference = np.abs(results[name].astype(np.float64) - expected)
            # Not a number compares false, and must not pass for that.
            difference[np.isnan(difference)] = np.inf
            error = max(error, float(difference.max(initial=0.0)))
            largest = max(largest, float(np.abs(expected).max(initial=0.0)))
    return GoldenResult(engine.backend, engine.backend_reason, error, TOLERANCE * largest)


def _features(
    pipeline: FeaturePipeline, spec: FeatureSpec, generator: np.random.Generator, count: int
) -> dict[str, NDArray[Any]]:
    """Features of a random list for a user of its own, with events on items of the list and others."""
    user = f"user-{count}"
    items = [_item(spec, generator, f"item-{count}-{number}") for number in range(count + _EVENTS)]
    pipeline.remember(items)
    kinds = sorted({kind for part in (*spec.dense, *spec.sequences) for kind in getattr(part, "kinds", ())})
    for time_ms in np.sort(generator.integers(1, _DAY_MS, _EVENTS)).tolist():
        item = items[int(generator.integers(len(items)))]
        kind = str(generator.choice(kinds or ["click"]))
        value = float(generator.uniform(0, 5))
        pipeline.update(Event(user=user, item=item.id, kind=kind, time_ms=time_ms, value=value))
    request = Request(
        user=user,
        time_ms=_DAY_MS,
        candidates=tuple(items[:count]),
        scores=tuple(generator.normal(size=count).tolist()),
        context={
            **{name: float(generator.normal()) for name in spec.context.numeric},
            **{name: str(generator.choice(_WORDS)) for name in spec.context.categorical},
        },
    )
    return dict(pipeline.emit(request).arrays)


def _item(spec: FeatureSpec, generator: np.random.Generator, name: str) -> Item:
    fields = spec.items
    embedding = tuple(generator.normal(size=fields.embedding_dim).tolist()) if fields.embedding_dim else None
    return Item(
        id=name,
        categorical={field: str(generator.choice(_WORDS)) for field in fields.categorical},
        multi_categorical={
            field: tuple(str(word) for word in generator.choice(_WORDS, 2, replace=False))
            for field in fields.multi_categorical
        },
        numeric={field: float(generator.normal()) for field in fields.numeric},
        embedding=embedding,
    )
