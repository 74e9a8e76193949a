"""Triggers: rules that say after which events to re-rank, to personalise, or to ask the server for a fresh list.

``spec`` holds the rules as data, ``trie`` merges them, ``matcher`` feeds events through, ``advance`` moves the partial
matches in ``state`` on, ``snapshot`` keeps a user's state as bytes, and ``rules`` has the common rules ready.

>>> from rerank_features import Event
>>> from rerank_features.triggers import TriggerMatcher, default_triggers
>>> matcher = TriggerMatcher(default_triggers())
>>> [fired.action for fired in matcher.feed(Event(user="ann", item="a", kind="click", time_ms=1_000))]
['rerank']
"""

from __future__ import annotations

from rerank_features.triggers.fired import Fired
from rerank_features.triggers.matcher import TriggerMatcher
from rerank_features.triggers.rules import (
    default_triggers,
    dwell_over,
    exposures_without_click,
    list_used_up,
    on_click,
    on_hide,
    scroll_past,
)
from rerank_features.triggers.spec import TriggerRule, TriggerSpec, TriggerStep

__all__ = [
    "Fired",
    "TriggerMatcher",
    "TriggerRule",
    "TriggerSpec",
    "TriggerStep",
    "default_triggers",
    "dwell_over",
    "exposures_without_click",
    "list_used_up",
    "on_click",
    "on_hide",
    "scroll_past",
]
