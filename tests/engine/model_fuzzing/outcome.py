"""What became of one corrupted file: refused, or read as what it is; anything else is a failure."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError, RerankError
from rerank_engine.format import content_hash, model_bytes, read_model
from rerank_engine.graph import DTYPES, Graph, concrete
from rerank_engine.model import Model
from rerank_engine.ops.registry import check_nodes
from rerank_engine.reference import evaluate
from rerank_engine.runtime import load

from .corpus import feeds, names_of
from .mutate import Original, mutate

Outputs = dict[str, NDArray[Any]]

REFUSED = "refused"
"""A typed error of the reader."""
REFUSED_LATER = "refused_later"
"""Read, with another identity; a typed error when nodes are checked or run."""
SAME = "same"
"""Read, with the same identity and the same output."""
DIFFERENT = "different"
"""Read, with another identity, and run: another model."""
NOT_RUN = "different_not_run"
"""Read, with another identity; it states sizes that are too large to run here."""
COMPILED = "different_compiled"
"""As ``different``, and machine code gave the same numbers as NumPy."""

UNTYPED = "untyped"
"""Failure: an exception that is none of ours."""
UNNOTICED = "unnoticed"
"""Failure: the same identity and another output."""
UNSOUND = "unsound"
"""Failure: what was read cannot be written again."""
DISAGREES = "disagrees"
"""Failure: machine code gives other numbers than NumPy."""
CRASH = "crash"
"""Failure: the process died."""
HANG = "hang"
"""Failure: no answer within the limit."""

ACCEPTED = (REFUSED, REFUSED_LATER, SAME, DIFFERENT, NOT_RUN, COMPILED)
FAILURES = (UNTYPED, UNNOTICED, UNSOUND, DISAGREES, CRASH, HANG)

MAX_RUN_BYTES = 32 * 1024 * 1024
"""Most bytes of all values of a model that is run."""


@dataclass(frozen=True)
class Outcome:
    """The end of one case.

    Attributes
    ----------
    kind
        One of the names above.
    detail
        The error, or what differs.
    """

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Subject:
    """A sound model, its file, and what it answers.

    Attributes
    ----------
    original
        The file and its parts.
    identity
        Content hash.
    outputs
        To the arrays of :func:`~.corpus.feeds`.
    """

    original: Original
    identity: str
    outputs: Outputs

    @classmethod
    def of(cls, data: bytes) -> Subject:
        """Take a sound file."""
        graph = read_model(data)
        return cls(Original(data), content_hash(data), evaluate(graph, feeds(graph)))


def run_case(subject: Subject, seed: int, index: int, compiled_share: float = 0.0) -> tuple[str, bytes, Outcome]:
    """Make case ``index`` of a campaign and examine it; returns the way of damage, the file and the outcome."""
    random = Random(f"{seed}:{index}")
    way, data = mutate(subject.original, random)
    return way, data, examine(subject, data, compiled=random.random() < compiled_share)


def examine(subject: Subject, data: bytes, *, compiled: bool = False) -> Outcome:
    """Read a file, and if it reads run it, and tell the outcome; never raises.

    Parameters
    ----------
    subject
        What the file was before.
    data
        The corrupted file.
    compiled
        Run it as machine code too.
    """
    try:
        return _examined(subject, data, compiled)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(UNTYPED, f"{type(error).__name__}: {error} ({place.filename}:{place.lineno} {place.name})")


def _examined(subject: Subject, data: bytes, compiled: bool) -> Outcome:
    try:
        graph = read_model(data)
    except RerankError as error:
        return Outcome(REFUSED, str(error))
    same = content_hash(data) == subject.identity
    try:
        written = model_bytes(graph)
        again = model_bytes(read_model(written))
    except RerankError as error:
        return Outcome(UNSOUND, str(error))
    if again != written:
        return Outcome(UNSOUND, "written, read and written again, it has other bytes")
    try:
        check_nodes(graph)
        if value_bytes(graph) > MAX_RUN_BYTES:
            return Outcome(NOT_RUN)
        inputs = feeds(graph)
        outputs = evaluate(graph, inputs)
    except RerankError as error:
        return Outcome(UNNOTICED if same else REFUSED_LATER, str(error))
    if same:
        return Outcome(SAME) if _equal(outputs, subject.outputs) else Outcome(UNNOTICED, "another output")
    return compared(graph, inputs, outputs) if compiled else Outcome(DIFFERENT)


def value_bytes(graph: Graph) -> int:
    """Bytes of all values when each named dimension has the size that :func:`feeds` gives it.

    Raises
    ------
    GraphError
        A value would have a negative size then.
    """
    names = {name for value in graph.values.values() for name in names_of(value.shape)}
    sizes = {name: min(3, graph.maxima.get(name, 3)) for name in names}
    total = 0
    for value in graph.values.values():
        shape = concrete(value.shape, sizes)
        if min(shape, default=0) < 0:
            raise GraphError(f"{value} is too short")
        total += prod(shape) * DTYPES[value.dtype].itemsize
    return total


def _equal(left: Outputs, right: Outputs) -> bool:
    return left.keys() == right.keys() and all(
        (array.dtype, array.shape, array.tobytes()) == (right[name].dtype, right[name].shape, right[name].tobytes())
        for name, array in left.items()
    )


def compared(graph: Graph, inputs: Outputs, expected: Outputs) -> Outcome:
    """Run a model as machine code and compare with what NumPy gave."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            engine = load(Model(graph), cache_dir=directory)
            if engine.backend != "cpu":
                return Outcome(DIFFERENT, engine.backend_reason)
            found = engine.run(inputs)
        except RerankError as error:
            return Outcome(REFUSED_LATER, str(error))
    outputs = found if isinstance(found, dict) else {graph.outputs[0]: found}
    for name, array in expected.items():
        if not _close(outputs[name], array):
            return Outcome(DISAGREES, f"{graph.values[name]}: {outputs[name].tolist()!r:.200}, {array.tolist()!r:.200}")
    return Outcome(COMPILED)


def _close(left: NDArray[Any], right: NDArray[Any]) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if right.dtype.kind != "f":
        return bool((left == right).all())
    finite = right[np.isfinite(right)]
    scale = float(np.abs(finite).max(initial=0.0))
    return bool(np.allclose(left, right, rtol=1e-3, atol=1e-3 * scale + 1e-30, equal_nan=True))
