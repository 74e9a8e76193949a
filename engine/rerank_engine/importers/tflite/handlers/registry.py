"""The table of handlers, one for each TFLite operator that is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_engine.importers.tflite.call import Call

Handler = Callable[["Call"], None]

HANDLERS: dict[str, Handler] = {}
"""Operator name to what translates it."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Enter a handler under the names of its operators."""

    def enter(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return enter
