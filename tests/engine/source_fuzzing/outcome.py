"""What became of one corrupted source: refused, or a model that holds what it says; anything else is a failure."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from model_fuzzing.corpus import feeds  # type: ignore[import-not-found]
from model_fuzzing.outcome import (  # type: ignore[import-not-found]
    COMPILED,
    DISAGREES,
    MAX_RUN_BYTES,
    UNSOUND,
    UNTYPED,
    Outcome,
    compared,
    value_bytes,
)
from numpy.typing import NDArray

from rerank_engine import convert
from rerank_engine.errors import GraphError, InputError, RerankError
from rerank_engine.format import model_bytes, read_model
from rerank_engine.graph import Graph
from rerank_engine.model import Model
from rerank_engine.ops.registry import check_nodes
from rerank_engine.reference import evaluate
from rerank_engine.sample import are_stable

from .mutate import mutate
from .source import SHARES, Files, Source

REFUSED = "refused"
"""A typed error of ``convert``."""
CONVERTED = "converted"
"""A model that can be written, read back, checked and run in NumPy."""
CONVERTED_COMPILED = "converted_compiled"
"""As before, and machine code gave the same numbers."""
INPUT_REFUSED = "converted_input_refused"
"""A model that refuses our inputs with a typed error, such as for an id outside of its table."""
NOT_RUN = "converted_not_run"
"""A model that states sizes too large to run here."""

ACCEPTED = (REFUSED, CONVERTED, CONVERTED_COMPILED, INPUT_REFUSED, NOT_RUN)

OUTSIDE = b"what lies outside of a model's folder is none of its business;"
"""Content, many times over, of a file beside the model's folder, which no model may read."""
OUTSIDE_NAME = "outside.bin"

_LARGE, _SMALL = 1e15, 1e-15

MOST_GROWTH_BYTES = 1 << 30
"""Most memory that one case may take beyond what any case before it took."""


def run_case(
    sources: Sequence[Source], seed: int, index: int, directory: Path, compiled_share: float = 0.0
) -> tuple[str, Files, Outcome]:
    """Make case ``index`` of a campaign and examine it; returns kind and way of damage, the files and the outcome.

    Parameters
    ----------
    sources
        Sound models, of any kinds.
    seed, index
        The case follows from these and the sources alone.
    directory
        An empty folder, or the one of the case before.
    compiled_share
        Share of the cases that run as machine code, where they convert.
    """
    random = Random(f"{seed}:{index}")
    kinds = [kind for kind in SHARES if any(source.kind == kind for source in sources)]
    (kind,) = random.choices(kinds, [SHARES[kind] for kind in kinds])
    source = random.choice([source for source in sources if source.kind == kind])
    way, files = mutate(source, random)
    compiled = random.random() < compiled_share
    return f"{kind}/{way}", files, examine(source, files, directory, compiled=compiled)


def examine(source: Source, files: Files, directory: Path, *, compiled: bool = False) -> Outcome:
    """Convert files, and use the model if there is one, and tell the outcome; never raises.

    Parameters
    ----------
    source
        Which of the files is converted, with which options.
    files
        The corrupted files.
    directory
        Where they may be written.
    compiled
        Run the model as machine code too.
    """
    before = _most_memory_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            outcome = _examined(source, files, directory, compiled)
    except Exception as error:
        return Outcome(UNTYPED, _described(error))
    if (growth := _most_memory_bytes() - before) > MOST_GROWTH_BYTES:
        return Outcome(UNTYPED, f"{growth >> 20} MiB of memory were taken; {outcome.kind}: {outcome.detail}")
    return outcome


def _examined(source: Source, files: Files, directory: Path, compiled: bool) -> Outcome:
    folder = directory / "model"
    folder.mkdir(exist_ok=True)
    (directory / OUTSIDE_NAME).write_bytes(OUTSIDE * 2000)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    options: dict[str, Any] = dict(source.options)
    if "weights" in options:
        options["weights"] = folder / options["weights"]
    try:
        model = convert(folder / source.main, **options)
    except RerankError as error:
        if any(isinstance(cause, MemoryError) for cause in _causes(error)):
            return Outcome(UNTYPED, f"MemoryError behind {_described(error)}")
        return Outcome(REFUSED, str(error))
    return _used(model, directory, compiled)


def _used(model: Model, directory: Path, compiled: bool) -> Outcome:
    """Do with a model what its owner would do."""
    graph = model.graph
    try:
        graph.verify()
        check_nodes(graph)
        written = model_bytes(graph)
        model.save(directory / "model.rrm")
        again = model_bytes(read_model(directory / "model.rrm"))
    except RerankError as error:
        return Outcome(UNSOUND, _described(error))
    if again != written:
        return Outcome(UNSOUND, "written, read and written again, it has other bytes")
    if _holds_outside(graph):
        return Outcome(UNSOUND, "it holds bytes of a file outside of the model's folder")
    try:
        size = value_bytes(graph)
    except GraphError as error:
        return Outcome(INPUT_REFUSED, str(error))
    if size > MAX_RUN_BYTES:
        return Outcome(NOT_RUN)
    try:
        inputs = feeds(graph)
        outputs = evaluate(graph, inputs)
    except InputError as error:
        return Outcome(INPUT_REFUSED, str(error))
    if not compiled:
        return Outcome(CONVERTED)
    ended = compared(graph, inputs, outputs)
    if ended.kind == COMPILED:
        return Outcome(CONVERTED_COMPILED)
    exact = evaluate(graph, inputs, precise=True)
    if not _is_ordinary(graph, inputs) or not are_stable(graph, inputs, exact, outputs):
        return Outcome(CONVERTED)
    return Outcome(ended.kind if ended.kind == DISAGREES else UNSOUND, f"as machine code: {ended.detail}")


def _holds_outside(graph: Graph) -> bool:
    return any(OUTSIDE[:16] in array.tobytes() for array in graph.constants.values())


def _is_ordinary(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> bool:
    """Whether all numbers are of sizes that machine code promises the reference's results for.

    Where squares overflow, or numbers are so small that they count as zero, the backends may differ.
    """
    every = replace(graph, outputs=[name for node in graph.nodes for name in node.outputs])
    for array in (*graph.constants.values(), *evaluate(every, inputs).values()):
        if array.dtype.kind == "f":
            sizes = np.abs(array[np.isfinite(array) & (array != 0)])
            if sizes.size and (sizes.max() > _LARGE or sizes.min() < _SMALL):
                return False
    return True


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _described(error: BaseException) -> str:
    """The error, where it was raised, and where our code was last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((frame for frame in reversed(frames) if "rerank_engine" in frame.filename), frames[-1])
    places = dict.fromkeys(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in (ours, frames[-1]))
    return f"{type(error).__name__}: {str(error)[:300]} ({', '.join(places)})"


def _most_memory_bytes() -> int:
    """The most memory that this process ever had in use, where the system tells."""
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)
