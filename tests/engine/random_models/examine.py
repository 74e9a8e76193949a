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
from rerank_engine.graph import DTYPES, Graph, concrete
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

ORACLE_TOLERANCE = 1e-4
"""ONNX Runtime approximates some functions more coarsely than we do; a wrong meaning differs by far more."""

_TYPICAL = 0.5
"""A difference of equal numbers is of the size of their last digit, not of its own."""

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
    is_special
        Whether NaN and infinities are among the inputs, which ONNX Runtime takes for numbers here and there.
    """

    sizes: Mapping[str, int]
    arrays: Mapping[str, Array]
    has_empty: bool = False
    is_special: bool = False

    @property
    def has_oracle(self) -> bool:
        return not self.has_empty and not self.is_special


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


def examine(seed: int, case: int, cache: Path, *, everything: bool = False, compiled: bool = True) -> Finding:
    """Make one model and examine it.

    Parameters
    ----------
    seed, case
        Of the model.
    cache
        Folder for machine code.
    everything
        Compare every value of the model, not only some: to find the first that differs.
    compiled
        Run machine code, too; else only the reference is compared.
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
    if compiled:
        cases.append(Inputs(chosen[0], model.feeds(chosen[0], case, special=True), is_special=True))
    # The reference runs dead nodes, too, and may refuse what nobody asks for.
    skipped = model.some_of(sorted(set(PASSES) - {"remove_dead"}), 0) if model.chance(0.3) else ()
    return examine_model(source, model.candidates(), cases, cache if compiled else None, skipped)


def examine_model(
    source: onnx.ModelProto,
    candidates: str | None,
    cases: Sequence[Inputs],
    cache: Path | None,
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
        Folder for machine code; None leaves it out.
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
        engine = load(Model(replace(graph, sample=None)), cache_dir=cache) if cache is not None else None
    except RerankError as error:
        if isinstance(error, ConversionError):
            return Finding(REFUSED, f"load: {error}", f"load: {_shorten(str(error))}")
        return Finding(UNTYPED, f"load: {error!r}")
    except Exception as error:
        return Finding(UNTYPED, f"load: {error!r}")
    if engine is not None and engine.backend != "cpu":
        return Finding(DIFFERENT, f"no machine code: {engine.backend_reason}")
    finding = Finding(SAME)
    for one in cases:
        problem = _compare(graph, engine, session if one.has_oracle else None, one.arrays, finding)
        if problem:
            kind = UNTYPED if problem.startswith("untyped") else DIFFERENT
            return Finding(
                kind,
                f"at {dict(one.sizes)}{' with NaN' if one.is_special else ''}: {problem}",
                compared=finding.compared,
            )
    return finding


def _compare(graph: Graph, engine: Any, session: Any, feeds: Mapping[str, Array], finding: Finding) -> str:
    """Compare at one size; returns what differs."""
    names = [entry.name for entry in session.get_outputs()] if session else graph.outputs
    try:
        expected = dict(zip(names, session.run(names, dict(feeds)), strict=True)) if session else {}
    except Exception:  # Too short a list for a TopK, for example.
        expected = {}
    _count(finding, "onnxruntime" if expected else "onnxruntime does not run" if session else "without onnxruntime")
    if graph.outputs != names:
        return f"outputs {graph.outputs}, expected {names}"
    bound = bind_sizes([graph.values[name] for name in graph.inputs], feeds, graph.maxima)
    try:
        truth = compute_truth(graph, feeds, bound)
    except InputError as error:
        _count(finding, "refused when run")
        # A cut beyond the end of a list is an error of ours, and a shorter result for others.
        if expected and "cannot cut" not in str(error):
            return f"refused, where onnxruntime is not: {error}"
        # An index into nothing is no read when there is no row to read it for.
        return "" if engine is None or 0 in bound.values() else _refusal_of(engine, feeds)
    given = [("onnxruntime", expected, ORACLE_TOLERANCE)]
    if engine is not None:
        try:
            found = engine.run(feeds)
        except Exception as error:
            return f"{'' if isinstance(error, InputError) else 'untyped: '}the engine fails: {error!r}"
        given.append(("machine code", found if isinstance(found, dict) else {names[0]: found}, TOLERANCE))
        # What the second call takes over from the first is what it would have computed.
        for label in ("with a history key", "over the history of the last call"):
            again = engine.run(feeds, history_key="k")
            if not _same_bits(found, again):
                return f"other numbers {label}"
    noise: dict[str, Any] = {}

    def measured(name: str) -> Any:
        if not noise:
            noise.update(measure_noise(graph, feeds, bound, truth))
        # By chance all trials of an element may round alike; its neighbours tell what it may be off by.
        spread = noise[name].spread
        return replace(noise[name], spread=np.maximum(spread, spread.mean() if spread.size else 0.0))

    for label, arrays, tolerance in given:
        for name, array in arrays.items():
            value = graph.values[name]
            want = (DTYPES[value.dtype], concrete(value.shape, bound))
            if (array.dtype, array.shape) != want:
                return f"{name}: {label} has {array.dtype}{array.shape}, the graph {want[0]}{want[1]}"
            outcome = compare(
                name,
                array,
                truth[name],
                tolerance=tolerance,
                noise=lambda name=name: measured(name),  # type: ignore[misc]
                typical=_TYPICAL,
            )
            _count(finding, f"{label} arrays")
            if not outcome.passed:
                return f"{name}: {label} against the reference: {outcome.explain()}"
    return ""


def _same_bits(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same_bits(first[name], second[name]) for name in first)
    return bool(first.tobytes() == second.tobytes())


def _refusal_of(engine: Any, feeds: Mapping[str, Array]) -> str:
    try:
        engine.run(feeds)
    except InputError:
        return ""
    return "the reference refuses the inputs, the engine does not"


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
