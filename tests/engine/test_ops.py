"""Every operator of the table, compiled, against the float64 reference: sizes, broadcasting, dtypes, special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rerank_engine.ops import OPERATORS
from rerank_engine.plan import make_plan

COUNTS = (0, 1, 2, 7, 50, 131, 1000)

Case = Callable[[Any], None]


def all_cases(tools: Any) -> dict[str, Case]:
    """The cases of all families, each in a file of its own."""
    return dict(tools.more("CASES"))


def test_every_operator_has_a_case(tools: Any) -> None:
    assert set(all_cases(tools)) == set(OPERATORS)


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_compiled_like_the_reference(tools: Any, op: str) -> None:
    b = tools.GraphBuilder()
    all_cases(tools)[op](b)
    graph = b.finish()
    compiled = tools.Compiled(graph)
    tolerance, absolute = tools.more("TOLERANCES").get(op, (3e-7, 2 * tools.TINY))
    for candidates in COUNTS:
        feeds = b.feeds(candidates, seed=candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            label = f"{graph.values[name]} at N={candidates}"
            tools.assert_close(array, expected[name], label, tolerance, absolute)
    if not OPERATORS[op].uses_sizes and all(step.mode != "whole" for step in make_plan(graph).steps):
        tools.assert_rows_alone(compiled, b.feeds(131, seed=7), (0, 1, 63, 64, 127, 128, 130))


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_summary_and_attributes_are_documented(op: str) -> None:
    operator = OPERATORS[op]
    assert operator.summary
    assert operator.name == op
    assert (operator.pointwise is None) != (operator.lower is None) or op == "Reshape"
