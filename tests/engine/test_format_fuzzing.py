"""Corrupted files by the thousand: refused, or read as what they are; and the tools that see the rest see it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import CompileError
from rerank_engine.format import model_bytes, read_model

COMMAND = Path(__file__).parent.parent.parent / "bench" / "fuzz_models.py"


campaign, corpus, mutate, outcome, tree = (
    importlib.import_module(f"model_fuzzing.{name}") for name in ("campaign", "corpus", "mutate", "outcome", "tree")
)


@pytest.fixture(scope="module")
def subjects() -> list[Any]:
    return [outcome.Subject.of(model_bytes(make())) for make in corpus.CORPUS]


@pytest.mark.parametrize("make", corpus.CORPUS)
def test_taking_a_file_apart_loses_nothing(make: Any) -> None:
    data = model_bytes(make())
    graph, weights = tree.sections(data)
    parts = tree.explode(graph)
    assert tree.sealed(graph, weights) == data
    assert model_bytes(read_model(tree.sealed(tree.assemble(parts), weights))) == data
    assert tree.copied(parts) == parts


def test_corrupted_files_are_refused_or_read_as_what_they_are(subjects: list[Any]) -> None:
    kinds: Counter[str] = Counter()
    for case in range(3000):
        _, _, ended = outcome.run_case(subjects[case % len(subjects)], 20240229, case)
        assert ended.kind in outcome.ACCEPTED, f"case {case}: {ended}"
        kinds[ended.kind] += 1
    # The damage reaches all stages: bytes, meaning, nodes.
    assert kinds[outcome.REFUSED] > 1500
    assert kinds[outcome.REFUSED_LATER] > 50
    assert kinds[outcome.DIFFERENT] > 200


def test_every_prefix_of_every_model_is_refused(subjects: list[Any]) -> None:
    for subject in subjects:
        data = subject.original.data
        for length in range(len(data)):
            assert outcome.examine(subject, data[:length]).kind == outcome.REFUSED


def test_cases_follow_from_seed_and_number(subjects: list[Any]) -> None:
    first, again, other = (outcome.run_case(subjects[0], seed, 5) for seed in (1, 1, 2))
    assert first == again != other


def test_damage_is_never_no_damage(subjects: list[Any]) -> None:
    for case in range(300):
        _, data, _ = outcome.run_case(subjects[case % len(subjects)], 3, case)
        assert data != subjects[case % len(subjects)].original.data


def test_the_whole_way_through_machine_code_in_other_processes() -> None:
    command = [sys.executable, str(COMMAND), "--json", "--count", "150", "--seed", "4", "--compiled-share", "1"]
    done = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["failures"], result["cases"]) == (0, 0, 150), done.stdout + done.stderr
    assert result["outcomes"]["different_compiled"] > 10
    assert sum(sum(kinds.values()) for kinds in result["ways"].values()) == 150


def test_one_case_can_be_repeated_and_kept(tmp_path: Path, subjects: list[Any]) -> None:
    path = tmp_path / "case.rrm"
    command = [sys.executable, str(COMMAND), "--seed", "4", "--case", "17", "--save", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    way, data, ended = outcome.run_case(subjects[17 % len(subjects)], 4, 17)
    assert json.loads(done.stdout) == {"case": 17, "way": way, "kind": ended.kind, "detail": ended.detail}
    assert path.read_bytes() == data


@pytest.mark.parametrize("option", [["--count", "-1"], ["--workers", "0"], ["--models", "/nowhere/at/all"]])
def test_options_that_make_no_sense(option: list[str]) -> None:
    done = subprocess.run([sys.executable, str(COMMAND), *option], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cases" not in done.stdout


def test_an_exception_of_another_kind_is_a_failure(subjects: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(outcome, "evaluate", broken)
    ended = outcome.examine(subjects[0], subjects[0].original.data)
    assert ended.kind == outcome.UNTYPED
    assert "ZeroDivisionError: by design" in ended.detail


def test_another_output_under_the_same_hash_is_a_failure(subjects: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = subjects[0].original.data
    assert outcome.examine(subjects[0], data).kind == outcome.SAME
    evaluate = outcome.evaluate
    monkeypatch.setattr(
        outcome, "evaluate", lambda *given: {name: array + 1 for name, array in evaluate(*given).items()}
    )
    assert outcome.examine(subjects[0], data).kind == outcome.UNNOTICED
    monkeypatch.setattr(outcome, "check_nodes", lambda graph: (_ for _ in ()).throw(CompileError("late")))
    assert outcome.examine(subjects[0], data) == outcome.Outcome(outcome.UNNOTICED, "late")


def test_a_graph_that_cannot_be_written_again_is_a_failure(
    subjects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "model_bytes", lambda graph: subjects[1].original.data + b"x" * len(graph.name))
    ended = outcome.examine(subjects[0], subjects[0].original.data)
    assert ended.kind == outcome.UNSOUND


@pytest.mark.parametrize(
    ("left", "right", "close"),
    [
        ([1.0, np.nan, np.inf], [1.0001, np.nan, np.inf], True),
        ([1.0], [1.1], False),
        ([np.inf], [1.0], False),
        ([1e-6, 1000.0], [0.0, 1000.0], True),
    ],
)
def test_numbers_are_compared_in_their_scale(left: list[float], right: list[float], close: bool) -> None:
    assert outcome._close(np.array(left, np.float32), np.array(right, np.float32)) is close
    assert not outcome._close(np.array(left, np.float64), np.array(right, np.float32))
    assert not outcome._close(np.array([1, 2]), np.array([1, 3]))


WORKER = """
import json, os, pathlib, sys, time
for case in range(*map(int, sys.argv[1:])):
    print(json.dumps({"begin": case}), flush=True)
    if case == 4:
        os.abort()
    once = pathlib.Path("once")
    if case == 6 or case == 8 and once.exists():
        once.unlink(missing_ok=True)
        print("half a line", end="", flush=True)
        time.sleep(600)
    print(json.dumps({"end": case, "way": "raw", "kind": "refused", "detail": ""}), flush=True)
"""


def test_crashes_and_hangs_are_charged_to_their_case() -> None:
    seen: list[tuple[int, str]] = []
    command = [sys.executable, "-c", WORKER]
    campaign.supervise(command, range(0, 12, 2), 3.0, lambda case, way, ended: seen.append((case, ended.kind)))
    assert seen == [(0, "refused"), (2, "refused"), (4, "crash"), (6, "hang"), (8, "refused"), (10, "refused")]


def test_a_case_that_was_held_up_once_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "once").touch()
    seen: list[tuple[int, str]] = []
    command = [sys.executable, "-c", WORKER]
    campaign.supervise(command, range(7, 10), 3.0, lambda case, way, ended: seen.append((case, ended.kind)))
    assert seen == [(7, "refused"), (8, "refused"), (9, "refused")]


def test_a_campaign_counts_every_case_once() -> None:
    counts: list[int] = []
    tally = campaign.run_campaign(
        [sys.executable, "-c", WORKER], 6, 3, 30.0, lambda so_far: counts.append(so_far.cases)
    )
    assert counts == [1, 2, 3, 4, 5, 6]
    assert tally.outcomes == {"refused": 5, "crash": 1}
    assert [(finding["case"], finding["kind"]) for finding in tally.findings] == [(4, "crash")]
    assert "exit status" in tally.findings[0]["detail"]
