"""The process in which candidates are compiled, checked and timed: one may crash or hang and takes nothing else down.

``python -m rerank_engine.search.worker`` answers requests, one JSON object a line, until stdin ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from rerank_engine.codegen.elf import FlatImage
from rerank_engine.codegen.target import Target, host_target
from rerank_engine.image import Image
from rerank_engine.kernels.gemm import Product, Tiling
from rerank_engine.search.kernel import Kernel, Operands, build_kernel
from rerank_engine.search.model_call import ModelCall

Build = Callable[[Product, Tiling, Target, int], FlatImage]

_SLICE_NS = 60_000.0
"""Time of one measurement: long beside the clock's grain, short beside a scheduler's."""


class SearchWorker:
    """Kernels of this process by name.

    Parameters
    ----------
    build
        Compiles a kernel.
    """

    def __init__(self, build: Build = build_kernel) -> None:
        self._build = build
        self._target = host_target()
        self._built: dict[str, tuple[FlatImage, Product, Tiling, int]] = {}
        self._ready: dict[str, Kernel | ModelCall] = {}
        self._times: dict[str, int] = {}

    def do_target(self) -> dict[str, Any]:
        """Lanes and registers, which decide what is a candidate."""
        return {"lanes": self._target.lanes, "registers": self._target.registers}

    def do_build(self, name: str, product: dict[str, Any], tiling: list[int], rows: int) -> dict[str, Any]:
        """Compile a kernel for a fixed number of rows."""
        kind, cut = Product(**product), Tiling(*tiling)
        self._built[name] = self._build(kind, cut, self._target, rows), kind, cut, rows
        return {}

    def do_check(self, name: str) -> dict[str, Any]:
        """Run it once and compare with float64."""
        code, kind, cut, rows = self._built.pop(name)
        kernel = Kernel(code, kind, cut, self._target, Operands.draw(kind, rows))
        wrong = kernel.error()
        if not wrong:
            self._ready[name] = kernel
        return {"wrong": wrong}

    def do_open(self, name: str, path: str, candidates: int) -> dict[str, Any]:
        """Open a whole model and check it by its sample; it is then timed with the sample's rows, repeated."""
        call = ModelCall(Image.read(path), candidates)
        wrong = call.error()
        if not wrong:
            self._ready[name] = call
        return {"wrong": wrong}

    def do_time(self, names: list[str], rounds: int) -> dict[str, Any]:
        """Time kernels in turns; nanoseconds of each round by name."""
        for name in names:
            if name not in self._times:
                kernel = self._ready[name]
                once = max(1.0, kernel.time_ns(1))
                once = min(once, max(1.0, kernel.time_ns(max(1, int(_SLICE_NS / 4 / once)))))
                self._times[name] = max(1, int(_SLICE_NS / once))
        taken: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                taken[name].append(self._ready[name].time_ns(self._times[name]))
        return {"ns": taken}


def serve(worker: SearchWorker, requests: TextIO, answers: TextIO) -> None:
    """Answer until the requests end."""
    for line in requests:
        request = json.loads(line)
        try:
            reply = getattr(worker, "do_" + request.pop("do"))(**request)
        except Exception as error:  # the reason is the result: the search goes on without this candidate
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main(build: Build = build_kernel) -> None:
    """Serve stdin; what anything prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(SearchWorker(build), sys.stdin, answers)


if __name__ == "__main__":
    main()
