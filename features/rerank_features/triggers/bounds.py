"""The bounds of a step as one function, made when the rules are compiled: it asks only what the step bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rerank_features.triggers.spec import TriggerStep

Accepts = Callable[[dict[str, Any], dict[str | None, int]], bool]
"""From an event's fields and the lengths of the lists that were delivered to whether the event keeps the bounds."""


def bounds_of(step: TriggerStep) -> Accepts | None:
    """The bounds of a step; None when it has none."""
    tests: list[Accepts] = []
    if step.min_value is not None or step.max_value is not None:
        tests.append(_within("value", step.min_value, step.max_value))
    if step.min_position is not None or step.max_position is not None:
        tests.append(_within("position", step.min_position, step.max_position))
    if step.min_share is not None:
        tests.append(_share(step.min_share))
    if len(tests) <= 1:
        return tests[0] if tests else None
    return lambda known, lengths: all(test(known, lengths) for test in tests)


def _within(field: str, minimum: float | None, maximum: float | None) -> Accepts:
    least = -math.inf if minimum is None else minimum
    most = math.inf if maximum is None else maximum

    def accepts(known: dict[str, Any], _: dict[str | None, int]) -> bool:
        number = known[field]
        return number is not None and least <= number <= most

    return accepts


def _share(share: float) -> Accepts:
    def accepts(known: dict[str, Any], lengths: dict[str | None, int]) -> bool:
        position, length = known["position"], lengths.get(known["request"], 0)
        # Divided, not multiplied: 7 of 100 is the same float as 0.07, while 0.07 times 100 is above 7.
        return position is not None and length > 0 and (position + 1) / length >= share

    return accepts
