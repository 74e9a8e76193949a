"""What a re-ranking gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank_features import Item


@dataclass(frozen=True)
class Reason:
    """Why an item stands where it stands: one group of features and what it did to the score.

    Attributes
    ----------
    group
        Label of the feature group, as the feature spec names it.
    effect
        Score minus the score with the group at this list's average, compared with the other candidates of the list.
        Positive lifts the item.
    """

    group: str
    effect: float

    def __str__(self) -> str:
        return f"{self.group} ({self.effect:+.2f})"


@dataclass(frozen=True)
class Timings:
    """Where the time of one call went, in milliseconds.

    Attributes
    ----------
    features_ms, scoring_ms, policy_ms
        Computing features, running the model, ordering.
    total_ms
        The whole call.
    """

    features_ms: float = 0.0
    scoring_ms: float = 0.0
    policy_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True)
class Ranking:
    """A reordered list.

    Attributes
    ----------
    items
        The candidates in their new order.
    order
        (N,) int64: place in the server's order of each entry of ``items``.
    scores
        (N,) float32: the model's score of each entry of ``items``; the server's where it fell back (NaN without any).
    timings
        Where the time went.
    backend
        What computed the scores: ``"cpu"``, ``"numpy"``, or ``"server"`` when the server's order is given back.
    fallback
        Why the server's order came back, or None.
    notes
        Things worth knowing that are no reason to fall back, for example a clock that went backwards.
    patch_version
        Version of the user's patch that took part; 0 for none.
    """

    items: tuple[Item, ...] = field(repr=False)
    order: NDArray[np.int64]
    scores: NDArray[np.float32]
    timings: Timings
    backend: str
    fallback: str | None = None
    notes: tuple[str, ...] = ()
    patch_version: int = 0
    _explain: Callable[[], list[tuple[Reason, ...]]] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def reasons(self) -> list[tuple[Reason, ...]]:
        """The strongest reasons of each entry of ``items``, strongest first; computed when asked for.

        They are the model's own: each group of features is set to the average of the list, the model is run again,
        and the difference is the group's effect. Empty when the server's order came back.
        """
        return self._explain() if self._explain is not None else [() for _ in self.items]

    def as_dict(self) -> Mapping[str, object]:
        """Plain values for JSON: ids in order, scores, reasons, timings."""
        return {
            "items": [item.id for item in self.items],
            "order": self.order.tolist(),
            "scores": [round(float(score), 6) if np.isfinite(score) else None for score in self.scores],
            "reasons": [[{"group": r.group, "effect": round(r.effect, 4)} for r in own] for own in self.reasons],
            "timings": {name: round(value, 4) for name, value in vars(self.timings).items()},
            "backend": self.backend,
            "fallback": self.fallback,
            "notes": list(self.notes),
            "patch_version": self.patch_version,
        }
