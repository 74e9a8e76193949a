"""What runs in an engine's own process: loads a model, gives its scores, times its calls.

Started by path under the interpreter of any environment that has NumPy, so it imports nothing of this package.
``worker.py ENGINES.py`` reads one JSON object a line and answers each with one; ``worker.py --start ...`` times one
fresh start and prints one object. ``ENGINES.py`` defines ``ENGINES``, a dictionary from an engine's name to a
function ``(path, inputs)`` that returns a function from named arrays to scores, and ``LIBRARIES``, the
module that each engine imports.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import sys
from time import perf_counter_ns
from typing import Any

WARM_CALLS = 2
"""Before each block of timed calls: another engine ran on this core meanwhile. They are not counted."""


def main() -> int:
    """Serve requests until stdin ends, or time one start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engines")
    parser.add_argument("--core", type=int)
    parser.add_argument("--start", nargs=3, metavar=("ENGINE", "MODEL", "INPUTS"))
    options = parser.parse_args()
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})  # before any library starts threads
    # Libraries print: what was stdout goes to stderr, and only answers go to the reader.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module = _engines(options.engines)
    if options.start:
        engine, model, inputs = options.start
        _answer(answers, _time_start(module, engine, model, inputs))
        return 0
    worker = _Worker(module)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, "do_" + request.pop("do"))(**request)
        except Exception as error:  # the reason is the result: the benchmark reports it
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        _answer(answers, reply)
    return 0


class _Worker:
    """One engine with one model and the inputs that its calls take in turn."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._call: Any = None
        self._inputs: list[dict[str, Any]] = []

    def do_load(self, engine: str, model: str, inputs: str) -> dict[str, Any]:
        """Load a model and the inputs that its calls take."""
        self._call = None
        self._inputs = _read_inputs(inputs)
        self._call = self._module.ENGINES[engine](model, self._inputs[0])
        return {}

    def do_outputs(self, path: str) -> dict[str, Any]:
        """Write the scores of each set of inputs."""
        import numpy as np

        # Copied at once: some engines give a view of a buffer that the next call overwrites.
        scores = {str(place): np.array(self._call(arrays)) for place, arrays in enumerate(self._inputs)}
        np.savez(path, **scores)  # type: ignore[arg-type]
        return {}

    def do_time(self, calls: int) -> dict[str, Any]:
        """Time calls one by one, in nanoseconds."""
        call, inputs = self._call, self._inputs
        rotation = len(inputs)
        for place in range(WARM_CALLS):
            call(inputs[place % rotation])
        times = [0] * calls
        clock = perf_counter_ns
        gc.collect()
        gc.disable()
        try:
            for place in range(calls):
                arrays = inputs[place % rotation]
                started = clock()
                call(arrays)
                times[place] = clock() - started
        finally:
            gc.enable()
        return {"ns": times}


def _time_start(module: Any, engine: str, model: str, inputs: str) -> dict[str, Any]:
    """Import, load and first scores of a fresh process, and the memory that it then has."""
    arrays = _read_inputs(inputs)[0]
    begun = perf_counter_ns()
    importlib.import_module(module.LIBRARIES[engine])
    imported = perf_counter_ns()
    call = module.ENGINES[engine](model, arrays)
    loaded = perf_counter_ns()
    call(arrays)
    scored = perf_counter_ns()
    return {
        "import_ms": (imported - begun) / 1e6,
        "load_ms": (loaded - imported) / 1e6,
        "first_ms": (scored - loaded) / 1e6,
        "total_ms": (scored - begun) / 1e6,
        **_memory(),
    }


def _memory() -> dict[str, float]:
    """Resident memory now and at most, in MB of 10**6 bytes, as far as the system tells."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not loaded yet
            lines = dict(line.split(":", 1) for line in file if line.startswith(("VmRSS", "VmHWM")))
    except OSError:
        return {}
    kilobytes = {name: int(text.split()[0]) * 1.024e-3 for name, text in lines.items()}
    return {"rss_mb": kilobytes["VmRSS"], "peak_rss_mb": kilobytes["VmHWM"]}


def _read_inputs(path: str) -> list[dict[str, Any]]:
    """Sets of inputs from a file whose arrays are called ``0/name``, ``1/name`` and so on."""
    import numpy as np

    sets: dict[int, dict[str, Any]] = {}
    with np.load(path) as stored:
        for key in stored.files:
            place, _, name = key.partition("/")
            sets.setdefault(int(place), {})[name] = stored[key]
    return [sets[place] for place in sorted(sets)]


def _engines(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("benchmarked_engines", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(stream: Any, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
