"""Random models over many operators and named dimensions: ONNX Runtime, the reference and machine code agree.

``bench/random_models.py`` does the same by the thousand.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from rerank_engine.ops import OPERATORS

SEED, MODELS, CHUNK = 20, 150, 15


examine, growing = (importlib.import_module(f"random_models.{name}") for name in ("examine", "growing"))


@pytest.mark.parametrize("first", range(0, MODELS, CHUNK))
def test_the_same_numbers(tmp_path: Path, first: int) -> None:
    """Every other model as machine code, too."""
    for case in range(first, first + CHUNK):
        finding = examine.examine(SEED, case, tmp_path, compiled=case % 2 == 0)
        assert finding.kind not in examine.FAILURES, f"case {case}: {finding.kind}: {finding.detail}"
        assert finding.kind != examine.NO_ORACLE, f"case {case}: {finding.detail}"


def test_models_are_valid_and_reach_most_operators() -> None:
    """What is compared is worth it: every kind of part occurs, in models that ONNX's checker accepts."""
    parts: set[str] = set()
    operators: set[str] = set()
    opsets: set[int] = set()
    for case in range(400):
        model, _ = examine.grow_model(SEED, case)
        parts.update(model.parts)
        opsets.add(model.opset)
        operators.update(node.op_type for node in model.nodes)
        if case % 10 == 0:
            onnx.checker.check_model(model.model(model.outputs()), full_check=True)
    assert set(growing.PARTS) == parts
    assert opsets == set(growing.OPSETS)
    assert len(operators) > 110


def test_a_model_follows_from_its_number() -> None:
    made = []
    for _ in range(2):
        model, _ = examine.grow_model(SEED, 7)
        made.append(model.model(model.outputs()).SerializeToString())
    assert made[0] == made[1]


def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with another function in the place of one, many models differ."""
    monkeypatch.setitem(vars(OPERATORS["Tanh"]), "reference", lambda inputs, *_: [np.tanh(inputs[0] * 1.01)])
    kinds = [examine.examine(SEED, case, tmp_path, compiled=False).kind for case in range(30)]
    assert examine.DIFFERENT in kinds
