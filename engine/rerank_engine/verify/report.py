"""What a verification found, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rerank_engine.verify.compare import Comparison

COMPARED, REFUSED, FAILED = "compared", "refused", "failed"
"""Outcomes of a case: values were compared and agree, everyone refused the inputs, something is wrong or missing."""


@dataclass(frozen=True)
class OutputResult:
    """One output in one case.

    Attributes
    ----------
    name
        Of the output.
    source
        The source framework against float64; None when the source has no such output or did not answer.
    engine
        The compiled engine against float64.
    difference
        The compiled engine against the source, for information; None without a source.
    kendall_tau
        Between the scores of source and engine; None when the output is not one score a candidate, or all are equal.
    top_k_agreement
        Share of the k best candidates that both have, by k; only for k below the length of the list.
    """

    name: str
    source: Comparison | None
    engine: Comparison
    difference: Comparison | None = None
    kendall_tau: float | None = None
    top_k_agreement: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseResult:
    """One call.

    Attributes
    ----------
    name
        As in :class:`~rerank_engine.verify.inputs.InputCase`.
    sizes
        Sizes of the named dimensions.
    outcome
        :data:`COMPARED`, :data:`REFUSED` or :data:`FAILED`.
    source
        The framework that answered; empty when none did.
    outputs
        Results by output.
    failures
        What is wrong, in words.
    policies
        Where source and engine differ by design, in words: ids outside a table, NaN.
    """

    name: str
    sizes: Mapping[str, int]
    outcome: str
    source: str = ""
    outputs: tuple[OutputResult, ...] = ()
    failures: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """How many numbers of the source were compared and prove something."""
        compared = [output.source for output in self.outputs if output.source is not None]
        return sum(found.elements - found.undecided - found.dropped_nans for found in compared)


@dataclass(frozen=True)
class InputRange:
    """What came into a layer.

    Attributes
    ----------
    name
        Of the value.
    minimum, maximum
        Of its finite elements; None when there are none.
    not_finite
        How many elements are NaN or infinite.
    """

    name: str
    minimum: float | None
    maximum: float | None
    not_finite: int


@dataclass(frozen=True)
class LayerDifference:
    """The first layer that differs.

    Attributes
    ----------
    case
        In which case.
    stage
        ``"conversion"``: the graph as imported differs from the source. ``"passes"``: only the optimised graph does.
        ``"model"``: only the given model does. ``"machine code"``: the compiled function differs from its own graph.
    value
        Name of the value that differs.
    node, operator
        What makes it in the graph.
    source_node, source_operator
        What makes it in the source file; empty when the source has no such value.
    comparison
        By how much.
    inputs
        Ranges of what came into it.
    """

    case: str
    stage: str
    value: str
    node: str
    operator: str
    source_node: str
    source_operator: str
    comparison: Comparison
    inputs: tuple[InputRange, ...]

    def explain(self) -> str:
        """Say in words where it differs."""
        file = f", in the source {self.source_operator} {self.source_node!r}" if self.source_node else ""
        return (
            f"{self.case}: first difference at {self.value!r} ({self.stage}), made by {self.operator} {self.node!r}"
            f"{file}: {self.comparison.explain()}"
        )


@dataclass(frozen=True)
class LayerResult:
    """One layer over all cases.

    Attributes
    ----------
    value, node, operator
        As the source names them.
    cases
        In how many cases it was compared.
    source_error, engine_error
        Largest scaled error of the source and of the compiled graph, against float64.
    outside
        Elements that differ by more than is allowed, of both, over all cases.
    """

    value: str
    node: str
    operator: str
    cases: int
    source_error: float
    engine_error: float
    outside: int


@dataclass(frozen=True)
class VerificationReport:
    """Whether a converted model gives the numbers of its source.

    Attributes
    ----------
    model, model_hash
        Name and content hash of the converted model.
    sources
        Frameworks that were asked, the best first.
    backend
        What ran the converted model.
    seed, lengths, tolerance
        As they were asked for.
    cases
        Every call.
    layers
        Every layer that both sides name, when that was asked for.
    unnamed_layers
        Values of the source that the graph does not have: arithmetic on shapes, and what the importer merges.
    first_difference
        Where it begins to go wrong; None when nothing does, or when it cannot be told.
    failures
        What is wrong or missing beyond single cases.
    notes
        What should be known, but is no failure.
    """

    model: str
    model_hash: str
    sources: tuple[str, ...]
    backend: str
    seed: int
    lengths: tuple[int, ...]
    tolerance: float
    cases: tuple[CaseResult, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    unnamed_layers: tuple[str, ...] = ()
    first_difference: LayerDifference | None = None
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything was compared and agrees; no evidence is no pass."""
        return not self.problems and any(case.elements for case in self.cases)

    @property
    def problems(self) -> tuple[str, ...]:
        """Every failure in words: the general ones, then those of the cases."""
        return (*self.failures, *(f"{case.name}: {text}" for case in self.cases for text in case.failures))

    @property
    def policies(self) -> tuple[str, ...]:
        """Every difference by design in words, once each."""
        return tuple(dict.fromkeys(text for case in self.cases for text in case.policies))

    @property
    def max_abs_error(self) -> float | None:
        """Largest distance between engine and source over all outputs and cases; None when none was compared."""
        return _largest(found.max_abs_error for found in self._differences())

    @property
    def max_scaled_error(self) -> float | None:
        """The same in parts of each output's largest magnitude."""
        return _largest(found.scaled_error for found in self._differences())

    @property
    def min_kendall_tau(self) -> float | None:
        """Smallest rank correlation over all outputs and cases; None when there is none."""
        taus = [output.kendall_tau for case in self.cases for output in case.outputs if output.kendall_tau is not None]
        return min(taus, default=None)

    @property
    def min_top_k_agreement(self) -> dict[int, float]:
        """Smallest agreement by k."""
        found: dict[int, float] = {}
        for case in self.cases:
            for output in case.outputs:
                for count, share in output.top_k_agreement.items():
                    found[count] = min(share, found.get(count, 1.0))
        return dict(sorted(found.items()))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, with the verdict first; the same for the same model, source and seed."""
        summary = {
            "passed": self.passed,
            "max_abs_error": self.max_abs_error,
            "max_scaled_error": self.max_scaled_error,
            "min_kendall_tau": self.min_kendall_tau,
            "min_top_k_agreement": self.min_top_k_agreement,
            "problems": list(self.problems),
            "policies": list(self.policies),
        }
        return summary | asdict(self)

    def _differences(self) -> list[Comparison]:
        return [
            output.difference
            for case in self.cases
            for output in case.outputs
            if output.difference is not None and not output.difference.problem and output.difference.elements
        ]


def _largest(errors: Any) -> float | None:
    return max(errors, default=None)
