"""Layer by layer: where source, graph and machine code part, and how far each layer is from float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rerank_engine.graph import Graph
from rerank_engine.ops.registry import Array
from rerank_engine.runtime import Engine
from rerank_engine.verify.cases import Answers, CaseRunner, LazyNoise, answer_of
from rerank_engine.verify.compare import Comparison, compare, magnitudes
from rerank_engine.verify.layers import (
    Compare,
    all_results,
    describe_difference,
    first_difference,
    load_with_outputs,
    run_named,
    shared_values,
)
from rerank_engine.verify.report import LayerDifference, LayerResult
from rerank_engine.verify.runner import SourceLayer
from rerank_engine.verify.truth import compute_truth


@dataclass
class _Tally:
    """What is known of one layer so far."""

    cases: int = 0
    source_error: float = 0.0
    engine_error: float = 0.0
    outside: int = 0

    def add(self, source: Comparison, engine: Comparison) -> None:
        self.cases += 1
        self.source_error = max(self.source_error, source.scaled_error)
        self.engine_error = max(self.engine_error, engine.scaled_error)
        self.outside += source.outside + engine.outside + bool(source.problem) + bool(engine.problem)


class Localiser:
    """Finds the first layer that differs.

    Parameters
    ----------
    graph
        The graph of the model.
    plain
        The source as imported, without passes; None when it cannot be had.
    runner
        Ran the cases.
    is_given
        The model was given, not made from the source just now.

    Attributes
    ----------
    first
        The first difference that was found.
    notes
        What should be known.
    """

    def __init__(self, graph: Graph, plain: Graph | None, runner: CaseRunner, *, is_given: bool) -> None:
        self._graph = graph
        self._plain = plain
        self._runner = runner
        self._is_given = is_given
        self._engines: dict[tuple[str, ...], Engine] = {}
        self._tallies: dict[str, _Tally] = {}
        self._plain_magnitudes: tuple[str, dict[str, float]] | None = None
        self.first: LayerDifference | None = None
        self.notes: list[str] = []

    @property
    def _layers(self) -> dict[str, SourceLayer]:
        """Values that any of the source's frameworks names."""
        return {layer.value: layer for runner in self._runner.runners for layer in runner.layers}

    def localise(self, answers: Answers) -> None:
        """Find the first difference in a case that failed, or in one where NumPy had to answer for the machine code."""
        if self.first is None:
            self.first = self._first_of_source(answers) or self._first_of_engine(answers)

    def _first_of_source(self, answers: Answers) -> LayerDifference | None:
        given = answers.source.values
        if given is None:
            return None
        graphs = (("conversion", self._plain), ("model" if self._is_given else "passes", self._graph))
        for stage, graph in graphs:
            if graph is None:
                continue
            truth = self._truth(graph, answers)
            if truth is None:
                continue
            names = shared_values(graph, self._layers)
            accept = self._compare(graph, answers, truth, may_drop_nans=answers.case.has_nan)
            found = first_difference(names, given, truth, accept)
            if found is not None:
                return describe_difference(answers.case.name, stage, found, graph, truth, self._layers.values())
        return None

    def _first_of_engine(self, answers: Answers) -> LayerDifference | None:
        for graph in (self._graph, self._plain):
            truth = self._truth(graph, answers) if graph is not None else None
            if graph is None or truth is None:
                continue
            found = self._engine_values(graph, all_results(graph), answers)
            if found is None:
                continue
            difference = first_difference(all_results(graph), found, truth, self._compare(graph, answers, truth))
            if difference is not None:
                return describe_difference(
                    answers.case.name, "machine code", difference, graph, truth, self._layers.values()
                )
        return self._fused_difference(answers)

    def _fused_difference(self, answers: Answers) -> LayerDifference | None:
        """An output that differs only while nothing in between is asked for."""
        truth, engine = answers.truth.values, answers.engine.values
        if truth is None or engine is None:
            return None
        compare_value = self._compare(self._graph, answers, truth)
        found = first_difference(self._graph.outputs, engine, truth, compare_value)
        if found is None:
            return None
        self.notes.append(
            f"{found.name!r} differs only in the fused function: with every layer as an output, all agree"
        )
        return describe_difference(answers.case.name, "machine code", found, self._graph, truth, self._layers.values())

    def compare_layers(self, answers: Answers) -> None:
        """Compare every value that source and imported graph both name."""
        graph = self._plain if self._plain is not None else self._graph
        given, truth = answers.source.values, self._truth(graph, answers)
        if given is None or truth is None:
            return
        names = [name for name in shared_values(graph, self._layers) if name in given]
        made = self._engine_values(graph, shared_values(graph, self._layers), answers)
        if made is None:
            return
        judge_source = self._compare(graph, answers, truth, may_drop_nans=answers.case.has_nan)
        judge_engine = self._compare(graph, answers, truth)
        for name in names:
            source = judge_source(name, given[name], truth[name])
            engine = judge_engine(name, made[name], truth[name])
            self._tallies.setdefault(name, _Tally()).add(source, engine)
            if self.first is None and not (source.passed and engine.passed):
                stage, found = ("machine code", engine) if source.passed else ("conversion", source)
                self.first = describe_difference(answers.case.name, stage, found, graph, truth, self._layers.values())

    def results(self) -> tuple[LayerResult, ...]:
        """What is known of every layer, in the order of the source."""
        return tuple(
            LayerResult(
                name, layer.node, layer.operator, tally.cases, tally.source_error, tally.engine_error, tally.outside
            )
            for name, layer in self._layers.items()
            if (tally := self._tallies.get(name)) is not None
        )

    def unnamed(self) -> tuple[str, ...]:
        """Values of the source that the imported graph does not have."""
        graph = self._plain if self._plain is not None else self._graph
        return tuple(name for name in self._layers if name not in graph.values)

    def failures(self) -> tuple[str, ...]:
        """Layers that differ, and missing evidence, after :meth:`compare_layers`."""
        if not self._tallies:
            return ("no layer was compared: source and graph name no value together, or did not run",)
        return tuple(
            f"layer {found.value!r} ({found.operator} {found.node!r}): {found.outside} elements differ"
            for found in self.results()
            if found.outside
        )

    def _truth(self, graph: Graph, answers: Answers) -> Mapping[str, Array] | None:
        if graph is self._graph:
            return answers.truth.values
        return answer_of(lambda: compute_truth(graph, answers.case.inputs, answers.case.sizes)).values

    def _typical(self, graph: Graph) -> Mapping[str, float]:
        """Magnitudes of all values in the plain case of the same list length."""
        case = self._runner.plain_case
        if graph is self._graph or case is None:
            return self._runner.typical
        if self._plain_magnitudes is None or self._plain_magnitudes[0] != case.name:
            found = answer_of(lambda: compute_truth(graph, case.inputs, case.sizes)).values
            self._plain_magnitudes = (case.name, magnitudes(found or {}))
        return self._plain_magnitudes[1]

    def _engine_values(self, graph: Graph, names: list[str], answers: Answers) -> Mapping[str, Array] | None:
        if not names:
            return None
        key = ("imported" if graph is self._plain else "optimised", *names)
        if key not in self._engines:
            try:
                self._engines[key] = load_with_outputs(graph, names)
            except Exception as error:  # whatever it is, what was found so far is still worth telling
                self.notes.append(f"layers of the machine code could not be had: {type(error).__name__}: {error}")
                return None
        return answer_of(lambda: run_named(self._engines[key], answers.case.inputs)).values

    def _compare(
        self, graph: Graph, answers: Answers, truth: Mapping[str, Array], *, may_drop_nans: bool = False
    ) -> Compare:
        typical = self._typical(graph)
        noise = LazyNoise(graph, answers.case.inputs, answers.case.sizes, truth)

        def accept(name: str, actual: Array, expected: Array) -> Comparison:
            return compare(
                name,
                actual,
                expected,
                double=graph.values[name].dtype == "float64",
                tolerance=self._runner.tolerance,
                noise=noise.of(name),
                typical=typical.get(name, 0.0),
                may_drop_nans=may_drop_nans,
            )

        return accept
