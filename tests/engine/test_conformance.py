"""ONNX's own node tests: every case passes on both backends, or is refused for a listed reason."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rerank_engine.conformance import CaseResult, Conformance, node_cases, run_case, run_cases
from rerank_engine.conformance_refusals import reason, refusals
from rerank_engine.importers.onnx_handlers import HANDLERS

PARTS = 24


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    return node_cases()


@pytest.mark.parametrize("part", range(PARTS))
def test_every_case_passes_or_is_refused_for_a_listed_reason(cases: list[Any], part: int) -> None:
    results = list(run_cases(cases[part::PARTS]))
    assert {result.name: result.detail for result in results if result.status == "failed"} == {}
    assert Conformance(tuple(results)).stale() == []
    assert sum(result.status == "passed" for result in results) > len(results) / 2


def test_the_list_of_refusals_names_cases_that_exist(cases: list[Any]) -> None:
    assert set(refusals()) <= {case.name for case in cases}
    assert all(len(why) > 20 for why in refusals().values())


def test_every_handler_of_onnx_has_a_case_or_a_test_of_its_own(cases: list[Any]) -> None:
    """What the node tests do not reach is tested beside its handler."""
    reached = {
        ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        for case in cases
        if not reason(case.name)
        for node in case.model.graph.node
    }
    sequences = {"ConcatFromSequence", "SplitToSequence"} | {
        f"Sequence{what}" for what in ("At", "Construct", "Empty", "Erase", "Insert", "Length")
    }
    elsewhere = {("", name) for name in (*sequences, "GlobalLpPool", "NonZero")}
    # Those of scikit-learn and of tree ensembles are compared with ONNX Runtime beside the trees.
    assert {key for key in HANDLERS if key[0] != "ai.onnx.ml"} - reached == elsewhere


def test_a_wrong_answer_fails(cases: list[Any]) -> None:
    case = copy.deepcopy(next(one for one in cases if one.name == "test_relu"))
    assert run_case(case).status == "passed"
    inputs, outputs = case.data_sets[0]
    case.data_sets[0] = (inputs, [outputs[0] + np.float32(1)])
    result = run_case(case)
    assert result.status == "failed"
    assert "Mismatched elements" in result.detail
    case.data_sets[0] = (inputs, [outputs[0].astype(np.float64)])
    assert "dtype float32, expected float64" in run_case(case).detail


def test_a_refusal_without_a_reason_fails(cases: list[Any]) -> None:
    case = copy.deepcopy(next(one for one in cases if one.name == "test_cast_FLOAT_to_FLOAT16"))
    assert run_case(case) == CaseResult(case.name, ("Cast",), "refused", reason(case.name))
    case.name = "test_of_nobody"
    result = run_case(case)
    assert result.status == "failed"
    assert "refused without a listed reason: UnsupportedOperatorError" in result.detail


def test_what_passes_must_not_stay_on_the_list() -> None:
    listed = next(iter(refusals()))
    assert Conformance((CaseResult(listed, ("Cast",), "passed"),)).stale() == [listed]
