"""A call on several threads: cut where rows are independent; the same numbers, the same errors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from rerank_engine import Model, load, threads
from rerank_engine.errors import InputError
from rerank_engine.runtime import Engine
from rerank_engine.threads import _quota, usable_processors


@pytest.fixture(autouse=True)
def _many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight processors, on which every list of two rows is worth two threads."""
    monkeypatch.setattr(threads, "usable_processors", lambda: 8)
    monkeypatch.setattr(threads, "WORTH_NS", 1)


def independent(tools: Any) -> Any:
    """Rows of candidates, two rows each, and a history that all share."""
    random = np.random.default_rng(0)
    b = tools.GraphBuilder()
    item = b.node("Gather", b.constant(random.normal(size=(20, 4))), b.input("int64", "N", domain="20"))
    past = b.input("float32", "T", 4, domain="plain")
    keys = b.node("Transpose", past, perm=(1, 0))
    summary = b.node("Attention", item, keys, past, scale=0.5)
    pairs = b.node("Reshape", b.input("float32", ("N", 2), 2, domain="plain"), shape=("N", 4))
    total = b.node("Add", b.node("Add", item, summary), pairs)
    return b.output(total, b.node("ReduceSum", total, axes=(1,), keepdims=0))


def mixing(tools: Any) -> Any:
    b = tools.GraphBuilder()
    return b.output(b.node("Softmax", b.input("float32", "N", 2), axis=0))


def engine_of(b: Any, folder: Path, count: int = 3) -> Engine:
    return load(Model(b.finish()), cache_dir=folder, threads=count)


@pytest.mark.parametrize("count", [2, 3, 8, 99])
def test_the_bits_of_one_thread(tools: Any, tmp_path: Path, count: int) -> None:
    b = independent(tools)
    engine = engine_of(b, tmp_path, count)
    assert engine.explain()["threads"] == min(count, 8)
    single = load(Model(b.graph), cache_dir=tmp_path)
    for n in (0, 1, 2, 3, 17, 100, 1000, 5):
        feeds = b.feeds(n, T=6)
        expected = single.run(feeds)
        for given in (feeds, MappingProxyType(feeds)):
            for key in (None, n, n):
                found = engine.run(given, history_key=key)
                assert found.keys() == expected.keys()  # type: ignore[union-attr]
                for name in found:
                    assert found[name].tobytes() == expected[name].tobytes()


def test_lists_are_cut(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = independent(tools)
    engine = engine_of(b, tmp_path)
    lengths: list[int] = []
    real = engine._splitter._run  # type: ignore[union-attr]

    def noted(inputs: Any, key: Any) -> Any:
        lengths.append(len(inputs[b.graph.inputs[0]]))
        return real(inputs, key)

    monkeypatch.setattr(engine._splitter, "_run", noted)
    engine.run(b.feeds(100, T=2))
    assert lengths == [100], "nothing is known yet of how long a row takes"
    engine.run(b.feeds(100, T=2))
    assert sorted(lengths[1:]) == [33, 33, 34]
    monkeypatch.setattr(threads, "WORTH_NS", 10**12)
    engine.run(b.feeds(100, T=2))
    assert lengths[4:] == [100], "too little work"


def test_models_that_mix_candidates_run_on_one_thread(tools: Any, tmp_path: Path) -> None:
    b = mixing(tools)
    engine = engine_of(b, tmp_path)
    told = engine.explain()
    assert told["threads"] == 1
    assert told["threads_reason"] == "step Softmax sees the whole list"
    feeds = b.feeds(50)
    np.testing.assert_array_equal(engine.run(feeds), load(Model(b.graph), cache_dir=tmp_path).run(feeds))


@pytest.mark.parametrize("shape", ["columns", "sum", "once"])
def test_other_shapes_run_on_one_thread(tools: Any, tmp_path: Path, shape: str) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 2)
    made = {
        "columns": lambda: b.node("Transpose", x, perm=(1, 0)),
        "sum": lambda: b.node("ReduceSum", x, axes=(0,), keepdims=0),
        "once": lambda: b.node("Exp", b.input("float32", 3)),
    }[shape]()
    b.output(made, b.node("Exp", x))
    assert engine_of(b, tmp_path).explain()["threads"] == 1


def test_errors_are_those_of_one_thread(tools: Any, tmp_path: Path) -> None:
    b = independent(tools)
    engine, single = engine_of(b, tmp_path), load(Model(b.graph), cache_dir=tmp_path)
    feeds = b.feeds(64, T=3)
    ids, past, pairs = b.graph.inputs
    expected = engine.run(feeds)
    bad = feeds[ids].copy()
    bad[50] = 20
    for given in (
        {**feeds, ids: bad},
        {**feeds, pairs: feeds[pairs][:100]},
        {**feeds, pairs: feeds[pairs][:127]},
        {**feeds, past: feeds[past][:, :3]},
        {**feeds, ids: 7},
        {ids: feeds[ids]},
        7,
    ):
        messages = []
        for one in (engine, single):
            with pytest.raises(InputError) as caught:
                one.run(given)  # type: ignore[arg-type]
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        again = engine.run(feeds)
        assert all(again[name].tobytes() == expected[name].tobytes() for name in expected)


def test_options(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = independent(tools)
    model = Model(b.finish())
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(InputError, match="expected a number of at least 1"):
            load(model, cache_dir=tmp_path, threads=wrong)  # type: ignore[arg-type]
    monkeypatch.setattr(threads, "usable_processors", lambda: 1)
    told = load(model, cache_dir=tmp_path, threads=4).explain()
    assert (told["threads"], told["threads_reason"]) == (1, "this process may use one processor")


def test_affinity_and_quota_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpu.max"
    for text, expected in (("max 100000", 1 << 16), ("150000 100000", 2), ("100000 100000", 1), ("5", 1 << 16)):
        file.write_text(text)
        assert _quota(str(file)) == expected
    assert _quota(str(tmp_path / "missing")) == 1 << 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert usable_processors() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(threads, "_quota", lambda _: 3)
    assert usable_processors() == 3


def test_a_key_holds_for_calls_that_follow_each_other(tools: Any, tmp_path: Path) -> None:
    """Other threads and calls in between do not make old contents of a key come back."""
    b = independent(tools)
    engine = engine_of(b, tmp_path, 2)
    single = load(Model(b.graph), cache_dir=tmp_path)

    def check(place: int, rows: int, key: Any) -> None:
        feeds = b.feeds(rows, T=6, seed=place)
        expected = single.run(feeds)
        for name, array in engine.run(feeds, history_key=key).items():  # type: ignore[union-attr]
            np.testing.assert_array_equal(array, expected[name])  # type: ignore[call-overload]

    check(1, 400, 0)
    check(2, 1, 1)  # too short to be cut: the pool sees nothing of it
    check(3, 400, 0)
    check(0, 400, "k")
    with ThreadPoolExecutor(1) as other:
        other.submit(check, 2, 400, "k").result()
    check(0, 400, "k")
    check(0, 400, None)
    check(1, 400, "k")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(tools: Any, tmp_path: Path) -> None:
    b = independent(tools)
    engine = engine_of(b, tmp_path, 2)
    feeds = b.feeds(400, T=6)
    expected = engine.run(feeds)
    engine.run(feeds)
    child = os.fork()
    if child == 0:
        found = engine.run(feeds)
        same = all((found[name] == expected[name]).all() for name in expected)  # type: ignore[call-overload]
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
