"""The engine as a user calls it: wrong inputs of every kind, conversions, growth, threads, what stays right after."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine import load
from rerank_engine import runtime as runtime_module
from rerank_engine import session as session_module
from rerank_engine.errors import GraphError, InputError, ModelFileError
from rerank_engine.image import ExecutableMemory
from rerank_engine.model import Model
from rerank_engine.reference import evaluate
from rerank_engine.runtime import Engine
from rerank_engine.session import Session

Array = NDArray[Any]


def build(tools: Any) -> Any:
    """Every input dtype, two tables, an input without candidates, and a scaled one."""
    b = tools.GraphBuilder()
    table = np.random.default_rng(0).normal(size=(11, 4))
    x = b.input("float32", "N", 4, domain="plain")
    item = b.node("Gather", b.constant(table), b.input("int64", "N", domain="11"))
    other = b.node("Gather", b.constant(table[:7]), b.input("int32", "N", domain="7"))
    query = b.node("MatMul", b.input("float32", 1, 4, domain="plain"), b.constant(np.eye(4)))
    pair = b.node("Reshape", b.input("float32", ("N", 2), 2, domain="plain"), shape=("N", 4))
    score = b.node("Add", b.node("Mul", b.node("Add", item, other), query), b.node("Add", x, pair))
    score = b.node("Where", b.input("bool", "N", 4), score, x)
    return b.output(b.node("ReduceSum", score, axes=(1,), keepdims=0))


def dense(tools: Any, width: int = 4) -> Any:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", width, domain="plain")
    return b.output(b.node("Tanh", b.node("MatMul", x, b.constant(np.full((width, 3), 0.5)))))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def builder(tools: Any) -> Any:
    return build(tools)


@pytest.fixture
def engine(builder: Any, shared_cache: Path) -> Engine:
    return load(Model(builder.finish()), cache_dir=shared_cache)


def names_of(engine: Engine) -> list[str]:
    """Names of the inputs, in order."""
    return [value.name for value in engine.inputs]


def score(engine: Engine, feeds: Any) -> Array:
    """Run a model of one output."""
    result = engine.run(feeds)
    assert isinstance(result, np.ndarray)
    return result


def results_of(engine: Engine, feeds: Any) -> dict[str, Array]:
    """Run a model of several outputs."""
    results = engine.run(feeds)
    assert isinstance(results, dict)
    return results


def assert_right(tools: Any, engine: Engine, b: Any, candidates: int, seed: int = 0) -> None:
    feeds = b.feeds(candidates, seed)
    (expected,) = tools.expect(b.graph, feeds).values()
    tools.assert_close(score(engine, feeds), expected, f"N={candidates}", 1e-5, 1e-5)


def test_values_and_explanation(engine: Engine) -> None:
    assert [str(value) for value in engine.inputs][:2] == ["in0: float32(N, 4)", "in2: int64(N,)"]
    assert [value.dtype for value in engine.outputs] == ["float32"]
    found = engine.explain()
    assert found["backend"] == engine.backend == "cpu"
    assert found["model_hash"] == engine.model_hash
    assert found["reason"] == engine.backend_reason
    assert found["image"] == str(engine.cache_path)
    assert found["code_bytes"] > 100
    assert found["block"] == 128
    assert {step["runs"] for step in found["steps"]} == {"once", "per block"}
    assert any("MatMul" in step["label"] for step in found["steps"])


def test_any_number_of_candidates(tools: Any, builder: Any, engine: Engine) -> None:
    for candidates in (0, 1, 127, 128, 129, 10_000, 3, 10_000, 0, 700):
        assert_right(tools, engine, builder, candidates, seed=candidates)


def broken(feeds: dict[str, Array], name: str, array: Any) -> dict[str, Any]:
    return {**feeds, name: array}


def test_wrong_inputs_are_named_and_the_engine_stays_right(tools: Any, builder: Any, engine: Engine) -> None:
    feeds = builder.feeds(6)
    x, ids, small, query, pair, flag = names_of(engine)
    without = {name: array for name, array in feeds.items() if name != ids}
    wrong: list[tuple[Any, str]] = [
        (without, r"expected inputs in0: float32\(N, 4\), .*; got "),
        ({}, "expected inputs .*; got none"),
        ({**feeds, "extra": np.zeros(3)}, "expected inputs .*; got extra, in"),
        ({**without, "typo": feeds[ids]}, "expected inputs .*; got .*typo"),
        ({**without, 3: feeds[ids]}, "expected inputs .*; got 3, "),
        (feeds[x], "inputs must be a mapping from input name to array, got ndarray"),
        (None, "inputs must be a mapping"),
        ([feeds[x]], "inputs must be a mapping"),
        (broken(feeds, x, feeds[x].tolist()), f"input '{x}' must be a NumPy array, got list"),
        (broken(feeds, x, None), f"input '{x}' must be a NumPy array, got NoneType"),
        (broken(feeds, x, feeds[x][:, :3]), rf"input {x}: float32\(N, 4\) got shape \(6, 3\)"),
        (broken(feeds, x, feeds[x][0]), rf"input {x}: float32\(N, 4\) got shape \(4,\)"),
        (broken(feeds, x, feeds[x][None]), r"got shape \(1, 6, 4\)"),
        (broken(feeds, x, np.float32(3) + np.zeros(())), r"got shape \(\)|must be a NumPy array"),
        (broken(feeds, ids, feeds[ids][:5]), rf"input {ids}: int64\(N,\) got shape \(5,\); input 'in0' says N = 6"),
        (broken(feeds, query, np.zeros((2, 4), np.float32)), rf"input {query}: float32\(1, 4\) got shape \(2, 4\)"),
        (broken(feeds, pair, np.zeros((11, 2), np.float32)), r"got shape \(11, 2\): dimension 0 must have the form"),
        (broken(feeds, pair, np.zeros((10, 2), np.float32)), r"got shape \(10, 2\); input 'in0' says N = 6"),
        (broken(feeds, x, np.zeros((6, 4), np.int64)), "dtype int64 does not convert; give float32"),
        (broken(feeds, x, np.zeros((6, 4), np.complex64)), "dtype complex64 does not convert; give float32"),
        (broken(feeds, x, np.zeros((6, 4), object)), "dtype object does not convert; give float32"),
        (broken(feeds, x, np.zeros((6, 4), "U3")), "does not convert; give float32"),
        (broken(feeds, ids, feeds[ids].astype(np.float32)), "dtype float32 does not convert; give int64"),
        (broken(feeds, ids, feeds[ids].astype(np.uint64)), "dtype uint64 does not convert; give int64"),
        (broken(feeds, small, feeds[small].astype(np.int64)), "dtype int64 does not convert; give int32"),
        (broken(feeds, flag, feeds[flag].astype(np.uint8)), "dtype uint8 does not convert; give bool"),
    ]
    for inputs, why in wrong:
        with pytest.raises(InputError, match=why):
            engine.run(inputs)
    assert_right(tools, engine, builder, 6)


@pytest.mark.parametrize("bad", [11, -12, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("place", [0, 127, 128, 200])
def test_a_bad_id_is_named_with_its_table(tools: Any, builder: Any, engine: Engine, bad: int, place: int) -> None:
    feeds = builder.feeds(201)
    ids = names_of(engine)[1]
    feeds[ids][place] = bad
    with pytest.raises(
        InputError, match=rf"id {bad} in '{ids}' is outside the table of node 'gather\d+', which has 11 rows"
    ):
        engine.run(feeds)
    assert_right(tools, engine, builder, 201)


def test_a_bad_id_of_the_other_table(builder: Any, engine: Engine) -> None:
    feeds = builder.feeds(5)
    feeds[names_of(engine)[2]][3] = 7
    with pytest.raises(InputError, match=r"id 7 in 'in5' is outside the table of node .*, which has 7 rows"):
        engine.run(feeds)


def test_an_empty_table_has_no_good_id(tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    ids = b.input("int32", "N")
    graph = b.output(b.node("Gather", b.constant(np.zeros((0, 3))), ids)).finish()
    engine = load(Model(graph), cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"id 42 in .*, which has 0 rows"):
        engine.run({ids: np.array([42], np.int32)})
    assert score(engine, {ids: np.zeros(0, np.int32)}).shape == (0, 3)


def test_forms_of_the_same_arrays(builder: Any, engine: Engine) -> None:
    feeds = builder.feeds(50)
    expected = score(engine, feeds)
    x, ids, small, query, _, flag = names_of(engine)
    spaced = np.zeros((50, 9), np.float32)
    spaced[:, ::2][:, :4] = feeds[x]
    forms: list[dict[str, Array]] = [
        {x: feeds[x].astype(np.float64)},
        {x: feeds[x].astype(">f4")},
        {x: feeds[x].astype(">f8"), query: feeds[query].astype(np.float64)},
        {x: np.asfortranarray(feeds[x])},
        {x: spaced[:, ::2][:, :4]},
        {x: feeds[x][::-1].copy()[::-1]},
        {ids: feeds[ids].astype(np.int8)},
        {ids: feeds[ids].astype(np.uint32)},
        {ids: feeds[ids].astype(">i8")},
        {small: feeds[small].astype(np.uint16)},
        {flag: np.repeat(feeds[flag], 2, axis=0)[::2]},
        {x: feeds[x].view(type("Sub", (np.ndarray,), {}))},
    ]
    for form in forms:
        np.testing.assert_array_equal(score(engine, {**feeds, **form}), expected)
    for array in feeds.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(score(engine, feeds), expected)
    np.testing.assert_array_equal(score(engine, MappingProxyType(dict(reversed(feeds.items())))), expected)


def test_numbers_beyond_float32_become_infinite_quietly(tools: Any, tmp_path: Path) -> None:
    b = dense(tools)
    engine = load(Model(b.finish()), cache_dir=tmp_path)
    x = np.zeros((1, 4))
    x[0, 1] = 1e300
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(score(engine, {b.graph.inputs[0]: x}), [[1, 1, 1]])


def test_results_are_the_callers_own(builder: Any, engine: Engine) -> None:
    feeds = builder.feeds(20)
    first = score(engine, feeds)
    kept = first.copy()
    engine.run(builder.feeds(20, seed=9))
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    np.testing.assert_array_equal(score(engine, feeds), kept)


def test_scalars_in_and_out(tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    x, number = b.input("float32", domain="plain"), b.input("int64", domain="plain")
    names = b.node("Add", x, b.constant(1.0)), b.node("Neg", number), b.node("Greater", x, b.constant(0.0))
    graph = b.output(*names).finish()
    for engine in (load(Model(graph), cache_dir=tmp_path), numpy_engine(graph, tmp_path)):
        results = results_of(engine, {x: np.array(2.5, np.float64), number: np.array(7, np.int16)})
        assert list(results) == list(names)
        assert [array.item() for array in results.values()] == [3.5, -7, True]
        assert [(type(array), array.shape, array.dtype.name) for array in results.values()] == [
            (np.ndarray, (), "float32"),
            (np.ndarray, (), "int64"),
            (np.ndarray, (), "bool"),
        ]


def numpy_engine(graph: Any, cache_dir: Path) -> Engine:
    """An engine on a system that lets no generated code run."""
    with pytest.MonkeyPatch.context() as patch:

        def refuse(code: bytes) -> None:
            raise runtime_module.CompileError("this system does not let the process run generated code: test")

        patch.setattr(session_module, "ExecutableMemory", refuse)
        engine = load(Model(graph), cache_dir=cache_dir)
    assert engine.backend == "numpy"
    assert engine.backend_reason == "no machine code: this system does not let the process run generated code: test"
    return engine


def test_numpy_answers_where_no_code_may_run(tools: Any, builder: Any, engine: Engine, tmp_path: Path) -> None:
    fallback = numpy_engine(builder.finish(), tmp_path)
    assert fallback.explain()["backend"] == "numpy"
    assert fallback.explain()["code_bytes"] == 0
    for candidates in (0, 1, 131):
        feeds = builder.feeds(candidates, seed=candidates)
        result = score(
            fallback,
            {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()},
        )
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, score(engine, feeds), rtol=1e-5, atol=1e-5)
    feeds[names_of(engine)[1]][4] = 11
    with pytest.raises(InputError, match="id 11 is outside a table of 11 rows"):
        fallback.run(feeds)
    with pytest.raises(InputError, match="expected inputs"):
        fallback.run({})


def test_numpy_does_not_lend_its_weights(tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 2, domain="plain")
    graph = b.output(b.node("Identity", b.constant([1.0, 2.0])), b.node("Identity", x)).finish()
    engine = numpy_engine(graph, tmp_path)
    feeds = b.feeds(3)
    before = feeds[x].copy()
    for array in results_of(engine, feeds).values():
        array[:] = 99
    np.testing.assert_array_equal(feeds[x], before)
    np.testing.assert_array_equal(next(iter(results_of(engine, feeds).values())), [1, 2])


def test_a_missing_compiler_leaves_numpy(tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = dense(tools)
    monkeypatch.setitem(__import__("sys").modules, "rerank_engine.codegen.compile", None)
    engine = load(Model(b.finish()), cache_dir=tmp_path)
    assert engine.backend == "numpy"
    assert engine.backend_reason.startswith("no machine code: ")
    assert_right(tools, engine, b, 7)


def test_no_memory_for_more_candidates_leaves_the_engine_right(
    tools: Any, builder: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger buffers are taken over together or not at all."""
    assert_right(tools, engine, builder, 100)
    real, calls = session_module._buffer, iter(range(100))
    for stop in (0, 3, 6):
        calls = iter(range(100))

        def fail(value: Any, candidates: Any, stop: int = stop, calls: Any = calls) -> Any:
            if next(calls) >= stop:
                raise MemoryError
            return real(value, candidates)

        monkeypatch.setattr(session_module, "_buffer", fail)
        with pytest.raises(InputError, match=r"that needs [\d,]+ bytes, more than there is"):
            engine.run(builder.feeds(5000))
        monkeypatch.undo()
        for candidates in (100, 129, 300):
            assert_right(tools, engine, builder, candidates)


def test_where_memory_has_no_room_to_grow_the_exact_size_is_taken(
    tools: Any, builder: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = session_module._buffer

    def limited(value: Any, candidates: Any) -> Any:
        if candidates["N"] > 5000:
            raise MemoryError
        return real(value, candidates)

    monkeypatch.setattr(session_module, "_buffer", limited)
    for candidates in (4097, 5000, 3):
        assert_right(tools, engine, builder, candidates)


def test_buffers_grow_to_powers_of_two_and_stay(tools: Any) -> None:
    b = dense(tools)
    graph = b.finish()
    session = tools.Compiled(graph)._session
    assert isinstance(session, Session)
    sizes = []
    for candidates in (1, 128, 129, 40, 1025, 0):
        session.run(b.feeds(candidates), {"N": candidates})
        sizes.append(session._capacity["N"])
    assert sizes == [128, 128, 256, 256, 2048, 2048]


def test_many_threads_at_once(tools: Any, builder: Any, engine: Engine) -> None:
    counts = (1, 40, 129, 300, 700, 7, 128, 50)
    feeds = [builder.feeds(candidates, seed=candidates) for candidates in counts]
    expected = [score(engine, one) for one in feeds]
    start = threading.Barrier(len(counts))
    wrong: list[tuple[int, Any]] = []

    def work(mine: int) -> None:
        start.wait()
        for turn in range(60):
            index = (mine + turn) % len(counts)
            if not np.array_equal(score(engine, feeds[index]), expected[index]):
                wrong.append((mine, turn))
            if turn % 20 == 0:
                bad = {**feeds[index], names_of(engine)[1]: np.full(counts[index], 11)}
                try:
                    engine.run(bad)
                except InputError:
                    continue
                wrong.append((mine, "a bad id went unnoticed"))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_engines_side_by_side(tools: Any, tmp_path: Path) -> None:
    builders = [dense(tools, width) for width in (1, 3, 4, 17)]
    engines = [load(Model(b.finish()), cache_dir=tmp_path) for b in builders]
    assert len({engine.model_hash for engine in engines}) == len({engine.cache_path for engine in engines}) == 4
    for candidates in (5, 200):
        for engine, b in zip(engines, builders, strict=True):
            assert_right(tools, engine, b, candidates)
    del engines[0]
    assert_right(tools, engines[0], builders[1], 9)


def test_twenty_thousand_calls_keep_no_memory(builder: Any, engine: Engine) -> None:
    """An array or any other object that stayed would be a block a call."""
    feeds = builder.feeds(10)
    for _ in range(100):
        engine.run(feeds)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20_000):
        engine.run(feeds)
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


def test_a_call_leaves_nothing_for_the_garbage_collector(builder: Any, engine: Engine) -> None:
    feeds = builder.feeds(10)
    engine.run(feeds)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            engine.run(feeds)
        assert gc.collect() < 20
    finally:
        gc.enable()


def denormals_work() -> bool:
    tiny = np.full(64, 1e-38, np.float32)
    return bool((tiny * np.float32(0.01) > 0).all()) and bool((tiny * np.float32(0.01) * np.float32(100) > 0).all())


def test_the_callers_floating_point_mode_is_restored(builder: Any, engine: Engine, tools: Any, tmp_path: Path) -> None:
    assert denormals_work()
    feeds = builder.feeds(300)
    engine.run(feeds)
    assert denormals_work()
    feeds[names_of(engine)[1]][0] = 11
    with pytest.raises(InputError):
        engine.run(feeds)
    assert denormals_work()
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 32)
    inside = load(Model(b.output(b.node("Mul", x, b.constant(0.01))).finish()), cache_dir=tmp_path)
    assert not score(inside, {x: np.full((3, 32), 1e-38, np.float32)}).any(), "inside, denormals are zero"
    seen: list[bool] = []
    thread = threading.Thread(
        target=lambda: seen.extend([bool(score(inside, {x: np.ones((1, 32), np.float32)}).all()), denormals_work()])
    )
    thread.start()
    thread.join()
    assert seen == [True, True]


def test_options_and_files(tools: Any, tmp_path: Path) -> None:
    b = dense(tools)
    model = Model(b.finish())
    for options, why in (
        ({"threads": 0}, "threads=0: expected a number of at least 1"),
        ({"device": "tpu"}, "device 'tpu' is not known; known: auto, cpu"),
    ):
        with pytest.raises(InputError, match=why):
            load(model, cache_dir=tmp_path, **options)
    with pytest.raises(ModelFileError, match=r"missing\.rrm"):
        load(tmp_path / "missing.rrm", cache_dir=tmp_path)
    path = tmp_path / "dense.rrm"
    model.save(path)
    for source in (path, str(path), model):
        engine = load(source, cache_dir=tmp_path / "images", device="cpu")
        assert engine.model_hash == model.content_hash
        assert_right(tools, engine, b, 9)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ModelFileError, match=r"dense\.rrm: section WEIGHTS: SHA-256"):
        load(path, cache_dir=tmp_path / "new")
    # Stored machine code has the constants of the sound file, and only the header is read for it.
    assert_right(tools, load(path, cache_dir=tmp_path / "images"), b, 9)
    path.write_bytes(damaged[:-1])
    with pytest.raises(ModelFileError, match=r"dense\.rrm: header: declares"):
        load(path, cache_dir=tmp_path / "images")


def test_a_model_file_that_lies_about_shapes_is_refused(tools: Any, tmp_path: Path) -> None:
    b = dense(tools)
    graph = b.finish()
    value = graph.values[graph.outputs[0]]
    graph.values[value.name] = value.replace(shape=(*value.shape[:1], 2))
    path = tmp_path / "lie.rrm"
    Model(graph).save(path)
    with pytest.raises(GraphError, match="but the graph declares"):
        load(path, cache_dir=tmp_path)


def test_the_reference_is_the_fallbacks_own_code(tools: Any, builder: Any) -> None:
    feeds = builder.feeds(9)
    single = evaluate(builder.graph, feeds)
    double = evaluate(builder.graph, feeds, precise=True)
    for name, array in single.items():
        assert array.dtype == np.float32
        assert double[name].dtype == np.float64
        np.testing.assert_allclose(array, double[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [None, 5, b"x", object()])
def test_what_is_no_model_is_refused_typed(model: Any) -> None:
    with pytest.raises(InputError, match="expected the path of a model file or a Model"):
        load(model)


# --- the caller's arrays ----------------------------------------------------------------------------------------------


def test_scores_go_into_the_callers_array(tools: Any, tmp_path: Path) -> None:
    b = dense(tools)
    engine = load(Model(b.finish()), cache_dir=tmp_path)
    (given,), (made,) = (value.name for value in engine.inputs), engine.outputs
    x = np.random.default_rng(0).normal(size=(40, *[int(str(dim)) for dim in engine.inputs[0].shape[1:]]))
    x = x.astype(np.float32)
    for threads in (1, 2):
        for array in (x, x.astype(np.float64), x[::2]):  # straight into machine code, converted, not contiguous
            engine = load(Model(b.finish()), cache_dir=tmp_path, threads=threads)
            want = engine.run({given: array})
            assert isinstance(want, np.ndarray)
            out = np.full_like(want, np.nan)
            assert engine.run({given: array}, out=out) is out
            np.testing.assert_array_equal(out, want)
            wide = np.full((*want.shape, 2), np.nan, np.float32)
            engine.run({given: array}, out=wide[..., 1])
            np.testing.assert_array_equal(wide[..., 1], want)
            assert np.isnan(wide[..., 0]).all()
            by_name = {made.name: np.zeros_like(want)}
            assert engine.run({given: array}, out=by_name) is by_name[made.name]
            np.testing.assert_array_equal(by_name[made.name], want)
    frozen = np.zeros_like(want)
    frozen.flags.writeable = False
    wrong: list[Any] = [want[:-1], want.astype(np.float64), want.tolist(), frozen, {}, {"other": want}, want[None]]
    for bad in wrong:
        with pytest.raises(InputError, match=r"^out: "):
            engine.run({given: x[::2]}, out=bad)


def test_several_outputs_go_into_the_callers_arrays(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 5, domain="plain")
    b.output(b.node("Relu", x), b.node("ReduceSum", x, axes=(1,), keepdims=0))
    model = Model(b.finish())
    feeds = b.feeds(7)

    def refuse(*_: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    for backend in ("cpu", "numpy"):
        if backend == "numpy":
            monkeypatch.setattr(ExecutableMemory, "_map_posix", refuse)
            monkeypatch.setattr("rerank_engine.image._map_windows", refuse)
        engine = load(model, cache_dir=tmp_path)
        assert engine.backend == backend
        want = engine.run(feeds)
        assert isinstance(want, dict)
        out = {name: np.full_like(array, np.nan) for name, array in want.items()}
        found = engine.run(feeds, out=out)
        assert isinstance(found, dict)
        assert all(found[name] is out[name] for name in want)
        for name, array in want.items():
            np.testing.assert_array_equal(out[name], array)
        untouched = {name: np.zeros_like(array) for name, array in want.items()}
        bad = {**untouched, list(want)[-1]: np.zeros(3, np.float32)}
        with pytest.raises(InputError, match=r"needs a writable float32 array of shape \(7,\)"):
            engine.run(feeds, out=bad)
        assert not any(array.any() for array in untouched.values()), "all or nothing"
        with pytest.raises(InputError, match="an array for each of the outputs"):
            engine.run(feeds, out=next(iter(out.values())))


@pytest.mark.parametrize("key", [[1], {"user": 7}, np.arange(3), ("user", [1])])
def test_a_key_that_may_change_is_refused(tools: Any, tmp_path: Path, key: Any) -> None:
    b = dense(tools)
    engine = load(Model(b.finish()), cache_dir=tmp_path)
    with pytest.raises(InputError, match="history_key: expected what never changes"):
        engine.run(b.feeds(3), history_key=key)
