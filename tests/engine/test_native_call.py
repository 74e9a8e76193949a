"""Arrays that machine code reads where they lie, without an interpreter in between, and the history it keeps."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine import Model, load, native_call
from rerank_engine.errors import InputError
from rerank_engine.graph import DTYPES, Graph
from rerank_engine.runtime import Engine

Array = NDArray[Any]


def scorer(tools: Any) -> Any:
    """Candidates and a history that is read once: ids of both, a table, a product, attention, an exact mean."""
    b = tools.GraphBuilder()
    table = b.constant(np.random.default_rng(0).normal(size=(30, 6)))
    item = b.node("Gather", table, b.input("int64", "N", domain="30"))
    past = b.node("Gather", table, b.input("int32", "T", domain="30"))
    past = b.node("Tanh", b.node("MatMul", past, b.constant(np.random.default_rng(1).normal(size=(6, 6)))))
    user = b.input("float32", 1, 6)
    keys = b.node("Transpose", past, perm=(1, 0))
    summary = b.node("Attention", item, keys, past, scale=0.3)
    pair = b.node("Reshape", b.input("float32", ("N", 2), 3), shape=("N", 6))
    flag = b.input("bool", "N", 6)
    total = b.node("Where", flag, b.node("Add", b.node("Mul", summary, user), pair), item)
    return b.output(b.node("ReduceSum", total, axes=(1,), keepdims=0))


@pytest.fixture(scope="module")
def builder(tools: Any) -> Any:
    return scorer(tools)


@pytest.fixture(scope="module")
def graph(builder: Any) -> Graph:
    made: Graph = builder.finish()
    return made


@pytest.fixture
def engine(graph: Graph, tmp_path: Path) -> Engine:
    made = load(Model(graph), cache_dir=tmp_path)
    assert made.backend == "cpu", made.backend_reason
    return made


class Calls:
    """What the direct way answered."""

    def __init__(self, engine: Engine, feeds: Any) -> None:
        engine.run(feeds)
        self.statuses: list[int] = []
        session = engine._local.session
        self._inner: Callable[[Any, Any], int] = session._direct
        assert self._inner is not None, "this interpreter has no direct way"
        session._direct = self

    def __call__(self, context: Any, inputs: Any) -> int:
        self.statuses.append(self._inner(context, inputs))
        return self.statuses[-1]


def feeds_of(graph: Graph, n: int, t: int, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    feeds = {}
    for name in graph.inputs:
        value = graph.values[name]
        shape = [dim if isinstance(dim, int) else dim.evaluate({"N": n, "T": t}) for dim in value.shape]
        if value.dtype == "bool":
            feeds[name] = random.random(shape) < 0.5
        elif value.dtype == "float32":
            feeds[name] = random.normal(size=shape).astype(np.float32)
        else:
            feeds[name] = random.integers(0, 30, shape).astype(DTYPES[value.dtype])
    return feeds


def test_this_interpreter_is_supported() -> None:
    assert native_call.is_supported() is (sys.implementation.name == "cpython" and object.__basicsize__ == 16)


@pytest.mark.parametrize(("n", "t"), [(0, 0), (0, 3), (1, 1), (7, 0), (13, 5), (128, 128), (3, 50)])
def test_both_ways_give_the_same_bits(graph: Graph, engine: Engine, n: int, t: int) -> None:
    feeds = feeds_of(graph, n, t)
    calls = Calls(engine, feeds)
    direct, general = engine.run(feeds), engine.run(MappingProxyType(feeds))
    assert calls.statuses == [0]
    assert isinstance(direct, np.ndarray)
    assert isinstance(general, np.ndarray)
    assert direct.tobytes() == general.tobytes()
    assert direct.shape == (n,)


def at_the_end_of_a_page(array: Array, keep: list[Any]) -> Array:
    """A copy whose last byte is the last before memory that may not be read."""
    pages = -(-max(array.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(address + pages * mmap.PAGESIZE)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    keep.append(memory)
    raw = (ctypes.c_char * array.nbytes).from_address(address + pages * mmap.PAGESIZE - array.nbytes)
    copy = np.frombuffer(memoryview(raw), array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.parametrize(("n", "t"), [(1, 1), (5, 3), (16, 50), (127, 9), (128, 128)])
def test_nothing_beyond_the_page_of_the_last_element_is_read(graph: Graph, engine: Engine, n: int, t: int) -> None:
    feeds = feeds_of(graph, n, t)
    expected = engine.run(MappingProxyType(feeds))
    keep: list[Any] = []
    calls = Calls(engine, feeds)
    guarded = {name: at_the_end_of_a_page(array, keep) for name, array in feeds.items()}
    found = engine.run(guarded)
    assert calls.statuses == [0]
    np.testing.assert_array_equal(found, expected)


class Other(np.ndarray[Any, Any]):
    """A subclass, whose elements might mean something else."""


def test_what_is_not_plain_goes_the_general_way(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 9, 4)
    expected = engine.run(feeds)
    calls = Calls(engine, feeds)
    floats = [name for name in graph.inputs if graph.values[name].dtype == "float32"]
    ids = next(name for name in graph.inputs if graph.values[name].dtype == "int64")
    for change in (
        {floats[1]: np.asfortranarray(feeds[floats[1]])},
        {floats[1]: np.repeat(feeds[floats[1]], 2, axis=1)[:, ::2]},
        {floats[1]: feeds[floats[1]].astype(np.float64)},
        {floats[1]: feeds[floats[1]].astype(">f4")},
        {floats[1]: feeds[floats[1]].view(Other)},
        {ids: feeds[ids].astype(np.int16)},
    ):
        np.testing.assert_array_equal(engine.run({**feeds, **change}), expected)
    assert calls.statuses == [native_call.NOT_TAKEN] * 6
    # Of one row or one column, an array in Fortran's order is one in C's, too.
    assert engine.run(feeds) is not None
    assert calls.statuses[-1] == 0


def test_wrong_inputs_are_explained_by_the_general_way(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 9, 4)
    calls = Calls(engine, feeds)
    expected = engine.run(feeds)
    first, *_, last = graph.inputs
    wrong: list[tuple[Any, str]] = [
        ({name: feeds[name] for name in graph.inputs[1:]}, "expected inputs"),
        ({**feeds, "more": feeds[first]}, "expected inputs"),
        ({**{name: feeds[name] for name in graph.inputs[1:]}, "other": feeds[first]}, "expected inputs"),
        ({**feeds, first: feeds[first][:8]}, "N = "),
        ({**feeds, first: feeds[first][:, None]}, "got shape"),
        ({**feeds, last: feeds[last][:, :5]}, "got shape"),
        ({**feeds, first: None}, "must be a NumPy array"),
        ({**feeds, first: 3}, "must be a NumPy array"),
        ({**feeds, first: feeds[first].astype(np.float32)}, "does not convert"),
        ({**feeds, first: np.array([object()] * 9)}, "does not convert"),
    ]
    for given, words in wrong:
        with pytest.raises(InputError, match=words):
            engine.run(given)
        assert calls.statuses[-1] == native_call.NOT_TAKEN
        np.testing.assert_array_equal(engine.run(feeds), expected)


def test_a_key_that_fails_to_compare_leaves_no_error_behind(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 3, 3)
    first = graph.inputs[0]

    class Unequal:
        def __hash__(self) -> int:
            return hash(first)

        def __eq__(self, other: object) -> bool:
            raise ValueError("by design")

        def __str__(self) -> str:
            return "unequal"

    calls = Calls(engine, feeds)
    given: dict[Any, Array] = {Unequal(): feeds[first], **{name: feeds[name] for name in graph.inputs[1:]}}
    with pytest.raises(ValueError, match="by design"):
        engine.run(given)
    assert calls.statuses == [native_call.NOT_TAKEN]


def test_a_bad_id_is_named(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 9, 4)
    calls = Calls(engine, feeds)
    ids = next(name for name in graph.inputs if graph.values[name].dtype == "int64")
    bad = feeds[ids].copy()
    bad[4] = 30
    with pytest.raises(InputError, match="30"):
        engine.run({**feeds, ids: bad})
    assert calls.statuses[-1] > 0


def test_a_list_beyond_the_room_grows_it(graph: Graph, engine: Engine) -> None:
    calls = Calls(engine, feeds_of(graph, 3, 3))
    feeds = feeds_of(graph, 300, 200)
    expected = engine.run(MappingProxyType(feeds))
    # The context of the smaller room is gone with it.
    np.testing.assert_array_equal(engine.run(feeds), expected)
    np.testing.assert_array_equal(engine.run(feeds_of(graph, 600, 3)), engine.run(feeds_of(graph, 600, 3)))
    assert calls.statuses == [0, native_call.NOT_TAKEN, 0]


def test_a_declared_maximum_holds(tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    b.output(b.node("Relu", b.input("float32", "N", 2)))
    made = b.finish()
    made.maxima["N"] = 100
    engine = load(Model(made), cache_dir=tmp_path)
    (name,) = made.inputs
    for count in (100, 100):
        engine.run({name: np.ones((count, 2), np.float32)})
    for _ in range(2):
        with pytest.raises(InputError, match="above the model's declared maximum of 100"):
            engine.run({name: np.ones((101, 2), np.float32)})


def test_references_and_memory_stay_as_they_were(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 9, 4)
    calls = Calls(engine, feeds)
    given = [feeds, *feeds.values(), *feeds, *(array.dtype for array in feeds.values())]
    fortran = {**feeds, graph.inputs[-1]: np.asfortranarray(feeds[graph.inputs[-1]])}
    engine.run(feeds), engine.run(fortran)
    before = [sys.getrefcount(one) for one in given]
    for _ in range(50):
        engine.run(feeds)
        engine.run(fortran)
    del calls.statuses[:]
    gc.collect()
    grown = [sys.getrefcount(one) - count for one, count in zip(given, before, strict=True)]
    assert max(grown) < 50, "a reference is kept by every call"
    assert min(grown) > -50, "a reference is given up that was never taken"


def test_threads_share_an_engine(graph: Graph, engine: Engine) -> None:
    cases = [feeds_of(graph, n, t, seed=n) for n, t in ((3, 2), (40, 9), (128, 17), (1, 60))]
    expected = [engine.run(MappingProxyType(feeds)) for feeds in cases]
    wrong: list[int] = []

    def work(index: int) -> None:
        for turn in range(200):
            which = (index + turn) % len(cases)
            key = which if turn % 3 else None
            if not np.array_equal(np.asarray(engine.run(cases[which], history_key=key)), np.asarray(expected[which])):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_interpreter_of_another_kind_goes_the_general_way(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank_engine.native_call.is_supported", lambda: False)
    engine = load(Model(graph), cache_dir=tmp_path)
    feeds = feeds_of(graph, 5, 2)
    first = engine.run(feeds)
    assert engine._local.session._direct is None
    np.testing.assert_array_equal(engine.run(feeds), first)


# --- history --------------------------------------------------------------------------------------------------------


def history_of(graph: Graph) -> str:
    return next(name for name in graph.inputs if graph.values[name].dtype == "int32")


@pytest.mark.parametrize("general", [False, True])
def test_the_same_key_computes_the_history_once(graph: Graph, engine: Engine, general: bool) -> None:
    """A changed history under an unchanged key is not looked at: this is how one sees that it is kept."""

    def run(feeds: dict[str, Array], key: Any) -> Any:
        return engine.run(MappingProxyType(feeds) if general else feeds, history_key=key)

    feeds = feeds_of(graph, 9, 4)
    name = history_of(graph)
    other = {**feeds, name: (feeds[name] + 1) % 30}
    run(feeds, None)
    old, new = run(feeds, None), run(other, None)
    assert not np.array_equal(old, new)
    np.testing.assert_array_equal(run(feeds, "a"), old)
    np.testing.assert_array_equal(run(other, "a"), old)
    np.testing.assert_array_equal(run(other, "b"), new)
    np.testing.assert_array_equal(run(feeds, "b"), new)
    np.testing.assert_array_equal(run(feeds, None), old)
    np.testing.assert_array_equal(run(other, "b"), new)


def test_other_candidates_over_the_same_history(graph: Graph, engine: Engine) -> None:
    base = feeds_of(graph, 9, 11)
    for n in (9, 1, 0, 128, 40, 300, 3, 3):
        feeds = feeds_of(graph, n, 11, seed=n)
        for name in graph.inputs:
            if "N" not in str(graph.values[name].shape):
                feeds[name] = base[name]
        expected = engine.run(MappingProxyType(feeds))
        engine.run(base, history_key=1)
        np.testing.assert_array_equal(engine.run(feeds, history_key=1), expected)


def test_a_history_of_another_length_is_computed_whatever_the_key(graph: Graph, engine: Engine) -> None:
    for t in (5, 9, 0, 9, 5):
        feeds = feeds_of(graph, 6, t)
        expected = engine.run(MappingProxyType(feeds))
        np.testing.assert_array_equal(engine.run(feeds, history_key=1), expected)
    small, large = feeds_of(graph, 6, 9), feeds_of(graph, 6, 200)
    expected = engine.run(MappingProxyType(small))
    engine.run(small, history_key=2)
    np.testing.assert_array_equal(engine.run(large, history_key=2), engine.run(MappingProxyType(large)))
    np.testing.assert_array_equal(engine.run(small, history_key=2), expected)


def test_a_call_that_failed_leaves_no_history(graph: Graph, engine: Engine) -> None:
    feeds = feeds_of(graph, 9, 4)
    name = history_of(graph)
    expected = engine.run(feeds, history_key=1)
    bad = {**feeds, name: feeds[name] * 0 + 30}
    for _ in range(2):
        with pytest.raises(InputError, match="30"):
            engine.run(bad, history_key=2)
    np.testing.assert_array_equal(engine.run(feeds, history_key=2), expected)
    with pytest.raises(InputError, match="expected inputs"):
        engine.run({}, history_key=2)
    np.testing.assert_array_equal(engine.run(feeds, history_key=2), expected)


def test_the_fallback_ignores_the_key(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: bytes) -> None:
        from rerank_engine.errors import CompileError

        raise CompileError("by design")

    monkeypatch.setattr("rerank_engine.session.ExecutableMemory", refuse)
    engine = load(Model(graph), cache_dir=tmp_path)
    assert engine.backend == "numpy"
    for seed in (0, 1):
        feeds = feeds_of(graph, 4, 3, seed)
        np.testing.assert_array_equal(engine.run(feeds, history_key=1), engine.run(feeds))
