"""One case: ask source, reference and engine, and judge what they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import CANDIDATES, Graph
from rerank_engine.ops.registry import Array
from rerank_engine.runtime import Engine
from rerank_engine.verify.compare import compare, kendall_tau, magnitudes, top_k_agreement
from rerank_engine.verify.inputs import MINUS_ONE, PLAIN, InputCase
from rerank_engine.verify.layers import run_named
from rerank_engine.verify.report import COMPARED, FAILED, REFUSED, CaseResult, OutputResult
from rerank_engine.verify.runner import SourceRunner
from rerank_engine.verify.sizes import scores_per_candidate
from rerank_engine.verify.truth import Noise, compute_truth, measure_noise

TOP_K = (1, 5, 10)
"""List lengths at which the best candidates are compared."""


@dataclass(frozen=True)
class Answer:
    """What one of the three said: values by name, or why there are none.

    Attributes
    ----------
    values
        By name; None when there are none.
    refusal
        The message with which the inputs were refused.
    fault
        The message of any other error.
    """

    values: Mapping[str, Array] | None = None
    refusal: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Answers:
    """What all three said to a case.

    Attributes
    ----------
    case
        The case.
    truth
        The reference in float64: every value of the graph.
    engine
        The compiled engine: every output.
    source
        The source: outputs and what else it names. It refuses by any error.
    source_name
        The framework that answered, or refused.
    """

    case: InputCase
    truth: Answer
    engine: Answer
    source: Answer
    source_name: str


class CaseRunner:
    """Asks and judges.

    Attributes
    ----------
    notes
        Frameworks that did not run, and why, once each.
    plain_case
        The plain mix of the list length at hand.
    typical
        Largest magnitudes of all values in it.
    """

    def __init__(self, graph: Graph, engine: Engine, runners: Sequence[SourceRunner], tolerance: float) -> None:
        self.graph = graph
        self.engine = engine
        self.runners = runners
        self.tolerance = tolerance
        self.notes: list[str] = []
        self.plain_case: InputCase | None = None
        self.typical: dict[str, float] = {}

    def ask(self, case: InputCase) -> Answers:
        """Ask the reference, the engine, and the first source that runs."""
        truth = answer_of(lambda: compute_truth(self.graph, case.inputs, case.sizes))
        if case.kind == PLAIN:
            self.plain_case, self.typical = case, magnitudes(truth.values or {})
        engine = answer_of(lambda: run_named(self.engine, case.inputs))
        source, name = self._ask_source(case)
        return Answers(case, truth, engine, source, name)

    def _ask_source(self, case: InputCase) -> tuple[Answer, str]:
        refusals: list[str] = []
        for position, runner in enumerate(self.runners):
            try:
                found = dict(runner.run(case.inputs))
            except Exception as error:  # whatever a foreign framework raises is its refusal
                refusals.append(f"{runner.name}: {error}")
                if case.outside is not None:
                    break  # a refusal is what is expected here
                continue
            if position:
                self.notes.append(f"{runner.name} was asked where {refusals[-1]}")
            return Answer(found), runner.name
        if not refusals:
            return Answer(fault="no framework runs the source"), ""
        return Answer(refusal="; ".join(refusals)), self.runners[0].name

    def judge(self, answers: Answers) -> CaseResult:
        """Compare what was answered."""
        case, truth, engine, source = answers.case, answers.truth, answers.engine, answers.source
        asked = (("reference", truth), ("engine", engine))
        failures = [f"the {who} failed: {one.fault}" for who, one in asked if one.fault]
        if bool(truth.refusal) != bool(engine.refusal) and not failures:
            who, text = ("reference", truth.refusal) if truth.refusal else ("engine", engine.refusal)
            failures.append(f"only the {who} refuses these inputs: {text}")
        if failures:
            return CaseResult(case.name, case.sizes, FAILED, answers.source_name, failures=tuple(failures))
        if truth.values is None or engine.values is None:
            return self._judge_refused(answers)
        policies: list[str] = []
        if self.graph.unknown_rows and (case.outside is not None or case.kind == MINUS_ONE):
            policies.append(f"{_outside_text(case)}: the model takes the row for unknown ids, the source does not")
            answers = replace(answers, source=Answer())
        elif source.values is None:
            if case.outside is not None and source.refusal:
                policies.append(f"{_outside_text(case)}: the source refuses it, the model answers")
            else:
                text = f"the source did not run: {source.refusal or source.fault}"
                if case.sizes.get(CANDIDATES) == 0 and not any(truth.values[name].size for name in self.graph.outputs):
                    # No number is left to compare: the model answers, rightly, with nothing.
                    policies.append(f"empty list: {text}; the model answers with no scores")
                else:
                    failures.append(text)
        noise = LazyNoise(self.graph, case.inputs, case.sizes, truth.values)
        outputs = [self._compare_output(name, answers, noise, failures, policies) for name in self.graph.outputs]
        outcome = FAILED if failures else COMPARED
        return CaseResult(
            case.name, case.sizes, outcome, answers.source_name, tuple(outputs), tuple(failures), tuple(policies)
        )

    def _judge_refused(self, answers: Answers) -> CaseResult:
        case, text = answers.case, answers.truth.refusal
        policies, failures = [], []
        if answers.source.values is not None:
            if case.outside is not None or case.kind == MINUS_ONE:
                policies.append(f"{_outside_text(case)}: {answers.source_name} answers, the model refuses")
            else:
                failures.append(f"the model refuses what the source answers: {text}")
        outcome = FAILED if failures else REFUSED
        return CaseResult(
            case.name, case.sizes, outcome, answers.source_name, failures=tuple(failures), policies=tuple(policies)
        )

    def _compare_output(
        self, name: str, answers: Answers, noise: LazyNoise, failures: list[str], policies: list[str]
    ) -> OutputResult:
        assert answers.truth.values is not None
        assert answers.engine.values is not None
        truth, actual = answers.truth.values[name], answers.engine.values[name]
        value = self.graph.values[name]
        double = value.dtype == "float64"
        given = (answers.source.values or {}).get(name)
        source = None
        if given is not None:
            source = compare(
                name,
                given,
                truth,
                double=double,
                tolerance=self.tolerance,
                noise=noise.of(name),
                typical=self.typical.get(name, 0.0),
                may_drop_nans=answers.case.has_nan,
            )
            if not source.passed:
                failures.append(f"output {name!r}: the source differs from the converted graph: {source.explain()}")
            if source.dropped_nans:
                policies.append(f"output {name!r}: {answers.source_name} gives numbers where NaN went in")
        elif answers.source.values is not None and self._source_names(name):
            failures.append(f"output {name!r}: the source gave no array for it")
        elif answers.source.values is not None:
            self.notes.append(f"output {name!r}: the source has none of this name; compared with float64 only")
        engine = compare(
            name,
            actual,
            truth,
            double=double,
            tolerance=self.tolerance,
            noise=noise.of(name),
            typical=self.typical.get(name, 0.0),
            accepted_error=source.max_abs_error if source is not None and source.passed else 0.0,
        )
        if not engine.passed:
            failures.append(f"output {name!r}: the compiled engine differs from float64: {engine.explain()}")
        if given is None or given.shape != actual.shape:
            return OutputResult(name, source, engine)
        typical = self.typical.get(name, 0.0)
        difference = compare(name, actual, given, double=double, tolerance=self.tolerance, typical=typical)
        if not scores_per_candidate(value, answers.case.sizes) or given.dtype.kind not in "fiu":
            return OutputResult(name, source, engine, difference)
        tied = self.tolerance * max(typical, magnitudes({name: given})[name])
        return OutputResult(name, source, engine, difference, *_rankings(given.reshape(-1), actual.reshape(-1), tied))

    def _source_names(self, name: str) -> bool:
        return any(name in runner.outputs for runner in self.runners)


class LazyNoise:
    """The noise of all values in one case, measured when something differs, and only once."""

    def __init__(
        self, graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int], truth: Mapping[str, Array]
    ) -> None:
        self._arguments = (graph, inputs, sizes, truth)
        self._found: dict[str, Noise] | None = None

    def of(self, name: str) -> Callable[[], Noise]:
        """What :func:`~rerank_engine.verify.compare.compare` asks."""

        def measured() -> Noise:
            if self._found is None:
                try:
                    self._found = measure_noise(*self._arguments)
                except InputError:
                    # Rounding moves an id over the end of its table: nothing is known, so nothing more is allowed.
                    self._found = {}
            shape = self._arguments[3][name].shape
            return self._found.get(name) or Noise(np.zeros(shape), np.zeros(shape, np.bool_))

        return measured


def answer_of(compute: Callable[[], Mapping[str, Array]]) -> Answer:
    """Ask the reference or the engine: an input error is a refusal, anything else that is raised a fault."""
    try:
        return Answer(compute())
    except InputError as error:
        return Answer(refusal=str(error))
    except Exception as error:  # a fault of the program is what a verification looks for
        return Answer(fault=f"{type(error).__name__}: {error}")


def _outside_text(case: InputCase) -> str:
    return "id -1" if case.outside is None else "id {1} in input {0!r}".format(*case.outside)


def _rankings(left: Array, right: Array, tied: float) -> tuple[float | None, dict[int, float]]:
    """Kendall tau and top-k agreement of source and engine, over candidates that have a number on both sides."""
    numbers = ~(np.isnan(left.astype(np.float64)) | np.isnan(right.astype(np.float64)))
    left, right = left[numbers], right[numbers]
    return kendall_tau(left, right), {k: top_k_agreement(left, right, k, tied) for k in TOP_K if k < len(left)}
