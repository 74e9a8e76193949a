"""Our engine as the benchmark's worker sees it. Read by path, like the files of other engines.

``RERANK_BENCHMARK_CACHE`` names the folder of the machine code.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

CACHE_VARIABLE = "RERANK_BENCHMARK_CACHE"

FORMS: dict[str, Callable[[Any], Callable[[Mapping[str, Any]], Any]]] = {
    "ours": lambda engine: engine.run,
    "ours_cached": lambda engine: functools.partial(engine.run, history_key="the same in all calls"),
}
"""Forms of a call that can be compared, each from a loaded engine. The cached one gets inputs with one history."""

CACHED = "ours_cached"


def _opener(form: Callable[[Any], Callable[[Mapping[str, Any]], Any]]) -> Callable[[str, Mapping[str, Any]], Any]:
    def open_model(path: str, _: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
        from rerank_engine.runtime import load

        engine = load(path, cache_dir=os.environ[CACHE_VARIABLE], search_s=0)
        if engine.backend == "numpy":
            raise RuntimeError(f"not measured without machine code: {engine.backend_reason}")
        return form(engine)

    return open_model


ENGINES = {name: _opener(form) for name, form in FORMS.items()}
LIBRARIES = dict.fromkeys(FORMS, "rerank_engine.runtime")
