"""ONNX's own node tests, run through import, passes, machine code and the NumPy reference.

Each case is one small model with inputs and outputs that the ONNX project publishes. A case *passes* when both
backends give the published outputs (dtype, shape and numbers within the case's tolerance), is *refused* when conversion
stops with a typed error and the case stands in the committed list with a reason
(:mod:`rerank_engine.conformance_refusals`), and *fails* otherwise.

Inputs that decide shapes or axes are graph inputs in these models; where a model is refused because one of them must be
known, it is bound with ``convert(…, constants=…)``, as a user would do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import MissingExtraError, RerankError

if TYPE_CHECKING:
    import onnx

Status = Literal["passed", "refused", "failed"]


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one case.

    Attributes
    ----------
    name
        Of the case.
    operators
        Operators of its model, sorted.
    status
        "passed", "refused" (for a listed reason) or "failed".
    detail
        The error or difference, or the reason of the list; empty when passed.
    bound
        Inputs that were bound as constants.
    """

    name: str
    operators: tuple[str, ...]
    status: Status
    detail: str = ""
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conformance:
    """All outcomes.

    Examples
    --------
    >>> report = Conformance((CaseResult("test_abs", ("Abs",), "passed"),))
    >>> report.counts()
    {'passed': 1, 'refused': 0, 'failed': 0}
    """

    results: tuple[CaseResult, ...]

    def counts(self) -> dict[str, int]:
        """Number of cases by status."""
        return {
            status: sum(result.status == status for result in self.results)
            for status in ("passed", "refused", "failed")
        }

    def stale(self) -> list[str]:
        """Cases of the refusal list that were run and were not refused."""
        from rerank_engine.conformance_refusals import reason

        return [result.name for result in self.results if result.status != "refused" and reason(result.name)]


def node_cases(only: str = "") -> list[Any]:
    """ONNX's node test cases whose name contains the regular expression ``only``.

    Raises
    ------
    MissingExtraError
        ``onnx`` is not installed.
    """
    try:
        from onnx.backend.test.case.node import collect_testcases
    except ImportError as error:
        raise MissingExtraError("ONNX's node tests", "convert") from error
    with np.errstate(all="ignore"):
        cases = collect_testcases(None)
    return sorted((case for case in cases if re.search(only, case.name)), key=lambda case: case.name)


def run_case(case: Any, *, machine_code: bool = True) -> CaseResult:
    """Run one case.

    Parameters
    ----------
    case
        An ``onnx.backend.test.case.test_case.TestCase``.
    machine_code
        Whether compiled code runs beside the NumPy reference.
    """
    operators = tuple(sorted({node.op_type for node in case.model.graph.node}))
    finish = partial(CaseResult, case.name, operators)
    try:
        arrays = [(_named(case.model.graph.input, ins), outs) for ins, outs in case.data_sets]
    except (TypeError, ValueError) as error:
        arrays, broken = [], str(error)
    try:
        if not arrays:
            return _refused(finish, f"the case has inputs that are no arrays: {broken}")
        converted = _convert(case.model, arrays[0][0])
    except RerankError as error:
        return _refused(finish, f"{type(error).__name__}: {error}")
    graph, bound = converted
    try:
        for feeds, expected in arrays:
            _check(case, graph, {name: feeds[name] for name in graph.inputs}, expected, machine_code)
    except (AssertionError, RerankError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return finish("failed", f"{type(error).__name__}: {error}", bound)
    return finish("passed", "", bound)


def run_cases(cases: Iterable[Any], *, machine_code: bool = True) -> Iterator[CaseResult]:
    """Run cases one after the other."""
    for case in cases:
        yield run_case(case, machine_code=machine_code)


def _refused(finish: Any, message: str) -> CaseResult:
    from rerank_engine.conformance_refusals import reason

    known = reason(finish.args[0])
    return finish("refused", known) if known else finish("failed", f"refused without a listed reason: {message}")


def _named(inputs: Sequence[onnx.ValueInfoProto], arrays: Sequence[Any]) -> dict[str, NDArray[Any]]:
    return {entry.name: _array(given, f"input {entry.name!r}") for entry, given in zip(inputs, arrays, strict=False)}


def _array(given: Any, label: str) -> NDArray[Any]:
    from onnx import TensorProto, numpy_helper

    if isinstance(given, TensorProto):
        return np.asarray(numpy_helper.to_array(given))
    if not isinstance(given, np.ndarray | np.generic):
        raise TypeError(f"{label} is a {type(given).__name__}")
    return np.asarray(given)


def _convert(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> tuple[Any, tuple[str, ...]]:
    """Convert as it is; if that is refused, with the small inputs that may decide shapes bound to their values."""
    from rerank_engine.importers import convert

    choices = [
        {},
        {name: array for name, array in feeds.items() if array.dtype.kind in "iub" and array.ndim <= 1},
        {name: array for name, array in feeds.items() if array.ndim <= 1},
    ]
    first: RerankError | None = None
    for bound in choices:
        try:
            return convert(model, constants=bound).graph, tuple(bound)
        except RerankError as error:
            first = first or error
    assert first is not None
    raise first


def _check(case: Any, graph: Any, feeds: Mapping[str, Any], expected: Sequence[Any], machine_code: bool) -> None:
    from rerank_engine.reference import evaluate

    results = {"reference": evaluate(graph, feeds)}
    if machine_code:
        results["machine code"] = run_compiled(graph, feeds)
    for backend, outputs in results.items():
        for name, want in zip(graph.outputs, expected, strict=True):
            label = f"{backend}, output {name!r}"
            have, want = outputs[name], _array(want, label)
            assert have.dtype == want.dtype, f"{label}: dtype {have.dtype}, expected {want.dtype}"
            assert have.shape == want.shape, f"{label}: shape {have.shape}, expected {want.shape}"
            np.testing.assert_allclose(have, want, rtol=case.rtol, atol=case.atol, err_msg=label, verbose=True)


def run_compiled(graph: Any, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Compile a graph, without a cache, and run it once."""
    from rerank_engine.binding import bind_sizes
    from rerank_engine.codegen.compile import compile_graph
    from rerank_engine.session import MachineCode, Session

    sizes = bind_sizes([graph.values[name] for name in graph.inputs], feeds, graph.maxima)
    return Session(MachineCode(compile_graph(graph))).run(feeds, sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the outcome of the cases that match ``--only``; for work on one operator."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(prog="python -m rerank_engine.conformance", description=__doc__)
    parser.add_argument("--only", default="", help="regular expression that a case's name must contain")
    parser.add_argument("--reference", action="store_true", help="the NumPy reference alone, without machine code")
    parser.add_argument("--passed", action="store_true", help="list the passed cases too")
    options = parser.parse_args(arguments)
    results = []
    for result in run_cases(node_cases(options.only), machine_code=not options.reference):
        results.append(result)
        if result.status != "passed" or options.passed:
            sys.stdout.write(f"{result.status:8} {result.name}: {result.detail[:600]}\n")
            sys.stdout.flush()
    counts = Conformance(tuple(results)).counts()
    sys.stdout.write(f"{counts}\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
