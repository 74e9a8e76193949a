"""Why an item stands where it stands, told by the model: take a group of features away and see what changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_sdk.ranking import Reason
from rerank_sdk.scorer import Scorer

HISTORY_GROUP = "your recent events"
PATCH_GROUP = "what you taught it"

_SHOWN = 3
_SMALLEST_EFFECT = 1e-3


def explain_scores(
    scorer: Scorer,
    arrays: Mapping[str, NDArray[Any]],
    base: NDArray[np.float32],
    scores: NDArray[np.float32],
    order: NDArray[np.int64],
) -> list[tuple[Reason, ...]]:
    """Find the strongest reasons of each candidate.

    A group of dense columns is set to the mean of the list; histories are emptied. The effect on a candidate is its
    base score minus the score without the group, minus the mean of that over the list: what the group does for this
    candidate and not for all.

    Parameters
    ----------
    scorer
        The model and its features.
    arrays
        Features of the list.
    base, scores
        (N,) float32 without and with the user's patch.
    order
        (N,) int64: candidates in their new order.

    Returns
    -------
    list of tuple of Reason
        In the new order; at most three each, strongest first.
    """
    effects: dict[str, NDArray[np.float32]] = {}
    if "dense" in scorer.input_names:
        for group, columns in scorer.pipeline.groups().items():
            changed = arrays["dense"].copy()
            changed[:, columns] = changed[:, columns].mean(axis=0)
            effects[group] = base - scorer.score({**arrays, "dense": changed})[0]
    masks = [name for name in scorer.input_names if name.endswith("_mask")]
    if masks:
        empty = {name: np.zeros_like(arrays[name]) for name in masks}
        effects[HISTORY_GROUP] = base - scorer.score({**arrays, **empty})[0]
    if scores is not base:
        effects[PATCH_GROUP] = scores - base
    names = list(effects)
    if not names:
        return [() for _ in order]
    table = np.stack([effects[name] - effects[name].mean() for name in names], axis=1)
    reasons = []
    for candidate in order:
        strongest = np.argsort(-np.abs(table[candidate]), kind="stable")[:_SHOWN]
        reasons.append(
            tuple(
                Reason(names[group], float(table[candidate, group]))
                for group in strongest
                if abs(table[candidate, group]) >= _SMALLEST_EFFECT
            )
        )
    return reasons
