"""Convert a random model, run it at several sizes, and compare: ONNX Runtime, the float64 reference, machine code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from rerank_engine import convert, load
from rerank_engine.binding import bind_sizes
from rerank_engine.errors import ConversionError, InputError, RerankError
from rerank_engine.graph import Graph
from rerank_engine.model import Model
from rerank_engine.passes import PASSES
from rerank_engine.verify.compare import TOLERANCE, compare
from rerank_engine.verify.truth import compute_truth, measure_noise

from . import elementwise, indexing, layout, networks, products, reductions  # noqa: F401  (fill the table)
from . import sizes as _sizes  # noqa: F401
from .growing import Growing, begin

Array = NDArray[Any]

SAME, REFUSED, NO_ORACLE, DIFFERENT, UNTYPED = "same", "refused", "no oracle", "different", "untyped error"
FAILURES = (DIFFERENT, UNTYPED)

ORACLE_TOLERANCE = 2e-5
"""ONNX Runtime approximates some functions more coarsely than we do; a wrong meaning differs by far more."""

ORDINARY_SIZES: tuple[dict[str, int], ...] = (
    {"N": 1, "T": 1, "S": 2},
    {"N": 9, "T": 3, "S": 1},
    {"N": 140, "T": 10, "S": 4},
)
ODD_SIZES: tuple[dict[str, int], ...] = (
    {"N": 2, "T": 5, "S": 3},
    {"N": 17, "T": 2, "S": 2},
    {"N": 131, "T": 1, "S": 1},
    {"N": 1, "T": 7, "S": 4},
    {"N": 5, "T": 5, "S": 5},
    {"N": 128, "T": 4, "S": 2},
)
EMPTY_SIZES: tuple[dict[str, int], ...] = (
    {"N": 0, "T": 3, "S": 1},
    {"N": 4, "T": 0, "S": 2},
    {"N": 3, "T": 2, "S": 0},
    {"N": 0, "T": 0, "S": 0},
)


@dataclass(frozen=True)
class Inputs:
    """What a model is run with.

    Attributes
    ----------
    sizes
        Of the named dimensions, for messages.
    arrays
        By input.
    has_empty
        Whether some value is empty. ONNX Runtime has means and maxima of nothing of its own, and some of its
        operators end the process, so it is not asked.
    """

    sizes: Mapping[str, int]
    arrays: Mapping[str, Array]
    has_empty: bool = False


@dataclass
class Finding:
    """What became of one model.

    Attributes
    ----------
    kind
        One of the outcomes of this file.
    detail
        The reason, for people.
    reason
        For refusals: operator and message, without names and numbers, to count by.
    compared
        Pairs of arrays that were compared, by the oracle.
    """

    kind: str
    detail: str = ""
    reason: str = ""
    compared: dict[str, int] = field(default_factory=dict)


def grow_model(seed: int, case: int) -> tuple[Growing, np.random.Generator]:
    """The model with this number, and the generator for what follows."""
    random = np.random.default_rng([seed, case])
    model = begin(random)
    model.grow(int(random.integers(5, 26)))
    return model, random


def examine(seed: int, case: int, cache: Path, *, everything: bool = False) -> Finding:
    """Make one model and examine it.

    Parameters
    ----------
    seed, case
        Of the model.
    cache
        Folder for machine code.
    everything
        Compare every value of the model, not only some: to find the first that differs.
    """
    model, random = grow_model(seed, case)
    outputs = [tensor for tensor in model.tensors if tensor.name in model.made] if everything else model.outputs()
    source = model.model(outputs)
    chosen = [*ORDINARY_SIZES]
    chosen[int(random.integers(0, 3))] = ODD_SIZES[int(random.integers(0, len(ODD_SIZES)))]
    if random.random() < 0.5:
        chosen.append(EMPTY_SIZES[int(random.integers(0, len(EMPTY_SIZES)))])
    order = random.permutation(len(chosen)).tolist()
    cases = [
        Inputs(chosen[index], model.feeds(chosen[index], case + index), model.has_empty(chosen[index]))
        for index in order
    ]
    skipped = model.some_of(sorted(PASSES), 0) if model.chance(0.3) else ()
    return examine_model(source, model.candidates(), cases, cache, skipped)


def examine_model(
    source: onnx.ModelProto,
    candidates: str | None,
    cases: Sequence[Inputs],
    cache: Path,
    skip_passes: Sequence[str] = (),
) -> Finding:
    """Convert and compare one model over inputs of several sizes.

    Parameters
    ----------
    source
        A valid model.
    candidates, skip_passes
        As for ``convert``.
    cases
        What to run it with.
    cache
        Folder for machine code.
    """
    try:
        session = _session(source)
    except Exception as error:  # ONNX Runtime has many kinds of errors.
        return Finding(NO_ORACLE, str(error), _shorten(str(error)))
    try:
        graph = convert(source, candidates=candidates, skip_passes=skip_passes).graph
    except RerankError as error:
        return Finding(REFUSED, str(error), _shorten(str(error)))
    except Exception as error:
        return Finding(UNTYPED, f"convert: {error!r}")
    try:
        # Without the check against a stored sample, which would hide wrong code.
        engine = load(Model(replace(graph, sample=None)), cache_dir=cache)
    except RerankError as error:
        if isinstance(error, ConversionError):
            return Finding(REFUSED, f"load: {error}", f"load: {_shorten(str(error))}")
        return Finding(UNTYPED, f"load: {error!r}")
    except Exception as error:
        return Finding(UNTYPED, f"load: {error!r}")
    if engine.backend != "cpu":
        return Finding(DIFFERENT, f"no machine code: {engine.backend_reason}")
    finding = Finding(SAME)
    for one in cases:
        problem = _compare(graph, engine, None if one.has_empty else session, one.arrays, finding)
        if problem:
            kind = UNTYPED if problem.startswith("untyped") else DIFFERENT
            return Finding(kind, f"at {dict(one.sizes)}: {problem}", compared=finding.compared)
    return finding


def _compare(graph: Graph, engine: Any, session: Any, feeds: Mapping[str, Array], finding: Finding) -> str:
    """Compare at one size; returns what differs."""
    names = [entry.name for entry in session.get_outputs()] if session else []
    try:
        expected = dict(zip(names, session.run(names, dict(feeds)), strict=True)) if session else {}
    except Exception:
        expected = {}
    _count(finding, "onnxruntime" if expected else "onnxruntime does not run" if session else "empty")
    try:
        bound = bind_sizes([graph.values[name] for name in graph.inputs], feeds, graph.maxima)
        truth = compute_truth(graph, feeds, bound)
    except InputError:
        _count(finding, "refused when run")
        try:
            engine.run(feeds)
        except InputError:
            return ""
        # An index into nothing is no read when there is no row to read it for.
        return "" if 0 in bound.values() else "the reference refuses the inputs, the engine does not"
    try:
        found = engine.run(feeds)
    except Exception as error:
        return f"{'' if isinstance(error, InputError) else 'untyped: '}the engine fails: {error!r}"
    results = found if isinstance(found, dict) else {engine.outputs[0].name: found}
    noise: dict[str, Any] = {}

    def measured(name: str) -> Any:
        if not noise:
            noise.update(measure_noise(graph, feeds, bound, truth))
        # By chance all trials of an element may round alike; its neighbours tell what it may be off by.
        spread = noise[name].spread
        return replace(noise[name], spread=np.maximum(spread, spread.mean() if spread.size else 0.0))

    if session is not None and list(results) != names:
        return f"outputs {list(results)}, expected {names}"
    for name, array in results.items():
        for label, other, tolerance in (
            ("onnxruntime", expected.get(name), ORACLE_TOLERANCE),
            ("machine code", array, TOLERANCE),
        ):
            if other is None:
                continue
            if (other.dtype, other.shape) != (array.dtype, array.shape):
                return f"{name}: {label} has {other.dtype}{other.shape}, the engine {array.dtype}{array.shape}"
            outcome = compare(
                name,
                other,
                truth[name],
                tolerance=tolerance,
                noise=lambda name=name: measured(name),  # type: ignore[misc]
                typical=0.05 if label == "onnxruntime" else 1e-3,
            )
            _count(finding, label + " arrays")
            if not outcome.passed:
                return f"{name}: {label} against the reference: {outcome.explain()}"
    return ""


def _count(finding: Finding, key: str) -> None:
    finding.compared[key] = finding.compared.get(key, 0) + 1


def _session(source: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Without its optimiser: that fuses with approximations of its own.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _shorten(message: str) -> str:
    """A message without names and numbers."""
    message = re.sub(r"'[^']*'|\"[^\"]*\"|\([^()]*\)", "…", message.splitlines()[0] if message else "")
    return re.sub(r"\b[vcx]\d+\S*|[-+]?\d+", "#", message)[:160]
