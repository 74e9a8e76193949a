"""Compare a converted model with its source, over many inputs, and find where they part.

Three computations answer each case: the source framework, the NumPy reference of the converted graph in float64, and
the compiled engine. The float64 one is the measure. The source must agree with it, or the conversion is wrong; the
engine must agree with it, or the machine code is wrong. An engine that is as near to it as the source is right.

What was not compared does not count as equal: a source that does not run, a missing output, a list of which nothing
could be compared is a failure with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rerank_engine.errors import ConversionError, InputError, MissingExtraError
from rerank_engine.graph import Graph
from rerank_engine.importers import convert
from rerank_engine.model import Model
from rerank_engine.passes import PASSES
from rerank_engine.runtime import load
from rerank_engine.verify.cases import CaseRunner
from rerank_engine.verify.compare import TOLERANCE
from rerank_engine.verify.inputs import LENGTHS, MUST_RUN, PLAIN, generate_cases
from rerank_engine.verify.localise import Localiser
from rerank_engine.verify.report import REFUSED, CaseResult, VerificationReport
from rerank_engine.verify.runner import SourceRunner
from rerank_engine.verify.sources import open_source


def verify(
    source: Any,
    model: Model | str | Path | None = None,
    *,
    runners: Sequence[SourceRunner] | None = None,
    candidates: str | None = None,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    layers: bool = False,
    vocabularies: Mapping[str, int] | None = None,
    cache_dir: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> VerificationReport:
    """Verify a converted model against the framework that it came from.

    Parameters
    ----------
    source
        What :func:`rerank_engine.convert` takes.
    model
        The converted model, or the path of its file; None converts the source now.
    runners
        Frameworks that run the source, the best first; None finds them by the kind of the source. The next one is
        asked where one does not run.
    candidates
        Name of the dimension that counts candidates, as for ``convert``.
    lengths
        Numbers of candidates to try.
    seed
        Of the inputs.
    tolerance
        Allowed error of an output in parts of its largest magnitude; more is allowed where rounding alone moves the
        result further, see :mod:`rerank_engine.verify.truth`.
    layers
        Compare every value that source and graph both name, in every case, not only when an output differs.
    vocabularies
        Number of ids by input, for inputs whose tables are not found by following the input through the graph.
    cache_dir
        Where machine code is kept, as for ``load``.
    progress
        Called with (done, total, text) before each case.

    Returns
    -------
    VerificationReport
        ``passed`` is the verdict; the same arguments give the same report.

    Raises
    ------
    InputError
        An option is wrong.
    ConversionError, UnsupportedOperatorError
        The source cannot be converted.
    ModelFileError
        The model file is damaged or of another version.

    Examples
    --------
    >>> import onnx
    >>> from onnx import TensorProto, helper
    >>> graph = helper.make_graph(
    ...     [helper.make_node("Tanh", ["x"], ["score"])],
    ...     "tiny",
    ...     [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
    ...     [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N"])],
    ... )
    >>> proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    >>> report = verify(proto, lengths=[1, 7])
    >>> report.passed, report.min_kendall_tau
    (True, 1.0)
    """
    _check_options(lengths, seed, tolerance)
    plain, converted = _convert(source, candidates, is_needed=model is None)
    given = model
    if model is None:
        assert converted is not None
        model = converted
    elif not isinstance(model, Model):
        model = Model.read(model)
    graph = model.graph
    engine = load(model, cache_dir=cache_dir, search_s=0)
    opened, failures = (tuple(runners), ()) if runners is not None else _open(source)
    if engine.backend != "cpu":
        failures += (f"the compiled engine did not run: {engine.backend_reason}",)
    if plain is not None:
        failures += _unlike(plain.graph, graph)
    runner = CaseRunner(graph, engine, opened, tolerance)
    localiser = Localiser(graph, plain.graph if plain is not None else None, runner, is_given=given is not None)
    cases: list[CaseResult] = []
    try:
        made = list(
            generate_cases(
                plain.graph if plain is not None else graph, lengths=lengths, seed=seed, vocabularies=vocabularies
            )
        )
        for number, case in enumerate(made):
            if progress is not None:
                progress(number, len(made), case.name)
            answers = runner.ask(case)
            cases.append(runner.judge(answers))
            if layers:
                localiser.compare_layers(answers)
            # Machine code that its own self-check has refused answers no case: its layers are looked at all the same.
            if cases[-1].failures or (engine.backend != "cpu" and case.kind == PLAIN):
                localiser.localise(answers)
    finally:
        if runners is None:
            for one in opened:
                one.close()
    failures += _missing_evidence(cases)
    if layers:
        failures += localiser.failures()
    return VerificationReport(
        model=model.name,
        model_hash=engine.model_hash,
        sources=tuple(one.name for one in opened),
        backend=engine.backend,
        seed=seed,
        lengths=tuple(lengths),
        tolerance=tolerance,
        cases=tuple(cases),
        layers=localiser.results(),
        unnamed_layers=localiser.unnamed(),
        first_difference=localiser.first,
        failures=failures,
        notes=tuple(dict.fromkeys((*runner.notes, *localiser.notes))),
    )


def _check_options(lengths: Sequence[int], seed: int, tolerance: float) -> None:
    if isinstance(lengths, str) or not all(isinstance(length, int) for length in lengths):
        raise InputError(f"lengths={lengths!r}: expected whole numbers")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r}: expected a whole number from 0")
    if not (isinstance(tolerance, int | float) and math.isfinite(tolerance) and tolerance > 0):
        raise InputError(f"tolerance={tolerance!r}: expected a finite number above 0")


def _convert(source: Any, candidates: str | None, *, is_needed: bool) -> tuple[Model | None, Model | None]:
    """The source without and with passes; the latter only when it is needed, and neither when that is not either."""
    try:
        plain = convert(source, candidates=candidates, skip_passes=tuple(PASSES))
        return plain, convert(source, candidates=candidates) if is_needed else None
    except (ConversionError, MissingExtraError):
        if is_needed:
            raise
        return None, None


def _open(source: Any) -> tuple[tuple[SourceRunner, ...], tuple[str, ...]]:
    try:
        return open_source(source), ()
    except (ConversionError, MissingExtraError) as error:
        return (), (f"the source does not run: {error}",)


def _unlike(source: Graph, model: Graph) -> tuple[str, ...]:
    """What a given model lacks, or has too much, to be the source's."""
    missing = [name for name in source.outputs if name not in model.outputs]
    found = [f"the model has no output {name!r}, which the source has" for name in missing]
    if set(source.inputs) != set(model.inputs):
        have, want = (", ".join(sorted(graph.inputs)) or "none" for graph in (model, source))
        found.append(f"the model takes the inputs {have}; the source takes {want}")
    return tuple(found)


def _missing_evidence(cases: Sequence[CaseResult]) -> tuple[str, ...]:
    """What must have been compared and was not: any number at all, and inputs that are made to be right."""
    found = [] if any(case.elements for case in cases) else ["no number of the source was compared"]
    found += [
        f"{case.name}: these inputs should be right, but everyone refuses them; if ids are out of range, say how many"
        " there are: vocabularies={input: count}"
        for case in cases
        if case.outcome == REFUSED and case.name.partition(": ")[2] in MUST_RUN
    ]
    return tuple(found)
