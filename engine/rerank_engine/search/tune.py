"""Search the tilings of a model and keep the machine code that is faster for them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

from rerank_engine.codegen.compile import compile_graph
from rerank_engine.errors import RerankError
from rerank_engine.graph import Graph
from rerank_engine.image import Image
from rerank_engine.kernels.gemm import Tilings, choose_tiling
from rerank_engine.model import Model
from rerank_engine.runtime import image_key, image_path
from rerank_engine.search.background import attempts_of
from rerank_engine.search.products import is_too_small, nothing_to_search, products_of
from rerank_engine.search.trials import WORKER, CandidateBench, SearchResult, Trial, search_tilings
from rerank_engine.workers import WorkerFailed

SIZES = (10, 50, 200)
"""Numbers of candidates at which whole models are compared."""

GIVEN_UP = "given up"
"""How the reason of a search begins that says nothing of the candidates. It is not stored."""

_LEAST_GAIN = 1.02
_LARGEST_LOSS = 0.98


def tune_model(
    model: Model,
    *,
    budget_s: float,
    cache_dir: str | Path | None = None,
    progress: Callable[[Trial], None] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Tune a model where :func:`rerank_engine.load` will find the result.

    Parameters
    ----------
    model
        A converted model.
    budget_s
        Time to search, in seconds, without compiling the model again.
    cache_dir
        Where machine code is kept; by default the user's cache directory.
    progress
        Called with each trial.

    Returns
    -------
    tuple
        Path of the machine code, and the report of :func:`tune`.

    Raises
    ------
    CompileError
        There is no machine code for this model on this machine.
    OSError
        The image cannot be written.

    Examples
    --------
    >>> path, report = tune_model(model, budget_s=20.0)  # doctest: +SKIP
    """
    key = image_key(model.file_identity)
    path = Path(image_path(key, cache_dir))
    return path, tune(model.graph, path, key, budget_s, progress=progress)


def tune(
    graph: Graph,
    image: Path,
    key: str,
    budget_s: float,
    *,
    progress: Callable[[Trial], None] | None = None,
) -> dict[str, Any]:
    """Search, compile with what was found, and put it in the place of the stored machine code if it is faster.

    The stored machine code is made first where there is none. With what an earlier search has found it keeps its place
    until new code has given the numbers of the model's sample and was faster: over the mean of three list lengths,
    and slower at none.

    Parameters
    ----------
    graph
        The model.
    image
        Where its machine code is stored.
    key
        Name under which the engine expects it, see :func:`rerank_engine.runtime.image_key`.
    budget_s
        Time to search, without compiling the model again.
    progress
        Called with each trial.

    Returns
    -------
    dict
        The report, also in the image: ``reason``, ``is_used``, ``tilings``, ``model_ratios``, ``trials``, times.

    Raises
    ------
    CompileError
        There is no machine code for this model on this machine.
    OSError
        The image cannot be written.

    Examples
    --------
    >>> tune(model.graph, engine.cache_path, "…", 10.0)["reason"]  # doctest: +SKIP
    'faster: 1.04x at N=10, 1.03x at N=50, 1.03x at N=200'
    """
    started = perf_counter()
    report: dict[str, Any] = {"budget_s": budget_s, "is_used": False, "tilings": {}, "model_ratios": {}, "trials": []}
    stored = _stored(image, key) or _compiled(graph, key)
    candidate: Image | None = None
    if is_too_small(graph):
        report |= nothing_to_search()
    else:
        try:
            found = search_tilings(products_of(graph), budget_s, command=WORKER, progress=progress)
        except WorkerFailed as error:
            # A processor that is taken away, a process that is killed: that is not what this machine can do.
            if not image.exists():
                stored.write(image)
            return {**report, "reason": f"{GIVEN_UP}: {error}", "elapsed_s": round(perf_counter() - started, 3)}
        report |= _described(found, stored)
        if found.tilings:
            candidate = _faster(_compiled(graph, key, found.tilings), stored, report)
        else:
            report["reason"] = "no tiling is faster than the default"
    report["elapsed_s"] = round(perf_counter() - started, 3)
    attempts_of(image).unlink(missing_ok=True)
    if candidate is None:
        # What is there by now may be better than what this search began with.
        stored = _stored(image, key) or stored
        earlier = stored.meta.get("search", {})
        if earlier.get("is_used"):
            return {**report, "is_used": True, "tilings": earlier["tilings"], "reason": f"kept: {earlier['reason']}"}
    chosen = candidate or stored
    chosen.meta["search"] = report
    chosen.write(image)
    return report


def _stored(path: Path, key: str) -> Image | None:
    """Machine code that was compiled before, with what an earlier search has found."""
    try:
        image = Image.read(path)
    except (RerankError, OSError, ValueError):
        return None
    return image if image.meta.get("key") == key else None


def _described(found: SearchResult, default: Image) -> dict[str, Any]:
    target = default.meta["target"]
    tilings = {}
    for (inner, columns), tiling in found.tilings.items():
        usual = choose_tiling(columns, target["lanes"], target["registers"])
        ratio = round(found.ratios[inner, columns], 3)
        tilings[f"{inner}x{columns}"] = {"default": str(usual), "chosen": str(tiling), "ratio": ratio}
    return {
        "tilings": tilings,
        "trials": [asdict(trial) for trial in found.trials],
        "search_s": round(found.elapsed_s, 3),
        "is_complete": found.is_complete,
    }


def _compiled(graph: Graph, key: str, tilings: Tilings | None = None) -> Image:
    image = compile_graph(graph, tilings=tilings)
    image.meta["key"] = key
    return image


def _faster(candidate: Image, stored: Image, report: dict[str, Any]) -> Image | None:
    """The candidate, where the whole model is faster with it than with what is stored."""
    with tempfile.TemporaryDirectory(prefix="rerank-search-") as folder:
        paths = Path(folder) / "stored.rri", Path(folder) / "candidate.rri"
        stored.write(paths[0])
        candidate.write(paths[1])
        bench = CandidateBench(WORKER, Path(folder) / "log")
        try:
            ratios = bench.compare_images(*paths, SIZES)
        except WorkerFailed as error:
            report["reason"] = f"the whole model with what was found fails: {error}"
            return None
        finally:
            bench.close()
    report["model_ratios"] = {str(size): round(ratio, 3) for size, ratio in ratios.items()}
    told = ", ".join(f"{ratio:.2f}x at N={size}" for size, ratio in ratios.items())
    if prod(ratios.values()) ** (1 / len(ratios)) < _LEAST_GAIN or min(ratios.values()) < _LARGEST_LOSS:
        report["reason"] = f"the whole model is not faster with what was found: {told}"
        return None
    report["is_used"], report["reason"] = True, f"faster: {told}"
    return candidate
