"""Phases of blocks and of the whole list: values across them, buffers that grow and shrink, places that never meet."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine import load
from rerank_engine.arena import DynamicBuffer, Lifetime, place_dynamic, round_up
from rerank_engine.errors import InputError
from rerank_engine.graph import Dim, Graph, Node, Value, concrete, names_in
from rerank_engine.model import Model
from rerank_engine.plan import make_plan
from rerank_engine.plan import plan as planning
from rerank_engine.plan.plan import MAX_BLOCK, MIN_BLOCK

Array = NDArray[Any]
COUNTS = (1, 7, 127, 128, 129, 300, 2, 0, 257)
"""Below, at and above the size of a block, growing and shrinking."""


def check(tools: Any, b: Any, counts: tuple[int, ...] = COUNTS, tolerance: float = 3e-6) -> Any:
    """Run one engine over all sizes, one after the other."""
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for count in counts:
        feeds = b.feeds(count, seed=count)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            scale = float(np.abs(expected[name]).max(initial=1.0)) if expected[name].dtype.kind == "f" else 1.0
            tools.assert_close(
                array, expected[name], f"{graph.values[name]} at N={count}", tolerance, tolerance * scale
            )
    return make_plan(graph)


def modes(plan: Any) -> list[str]:
    return [phase.mode for phase in plan.phases]


def running(b: Any, x: str) -> str:
    """Sums over the candidates up to each, scaled so that a softmax of them is no matter of the last digits."""
    return str(b.node("Mul", b.node("CumSum", x, axis=0), b.constant(0.01)))


def over_list(b: Any, x: str) -> str:
    """One number for each column, over all candidates."""
    return str(b.node("ReduceMean", x, axes=(0,), keepdims=1))


def test_blocks_and_the_whole_list_alternate_many_times(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 12, domain="plain")
    for _ in range(9):
        hidden = b.node("Softmax", b.node("Tanh", x))
        x = b.node("Sub", b.node("Add", hidden, x), over_list(b, hidden))
    plan = check(tools, b.output(x))
    # The subtraction of one round and the softmax of the next are one phase of blocks.
    assert modes(plan) == ["block", *["whole", "block"] * 9]


def test_whole_steps_alone(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", 3, "N", domain="plain")
    x = b.node("Softmax", b.node("Transpose", b.node("Softmax", x), perm=(1, 0)), axis=-1)
    plan = check(tools, b.output(b.node("CumSum", x, axis=0), over_list(b, x)))
    assert set(modes(plan)) <= {"whole", "block"}
    assert modes(plan)[0] == "whole"


def test_steps_of_one_phase_that_do_not_wait_for_each_other(tools: Any) -> None:
    """As few phases as the order allows: what can run in the first phase of blocks does, wherever it stands."""
    b = tools.GraphBuilder()
    x, y = b.input("float32", "N", 5, domain="plain"), b.input("float32", "N", 5, domain="plain")
    mean = over_list(b, b.node("Softmax", x))
    late = b.node("Softmax", y)
    both = b.node("Mul", late, mean)
    plan = check(tools, b.output(both))
    assert modes(plan) == ["block", "whole", "block"]
    assert [step.label for step in plan.phases[0].steps] == ["Softmax", "Softmax"]


def test_a_value_read_in_many_phases(tools: Any) -> None:
    """By a step over blocks and by one over the whole list at once, and again after both."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 7, domain="plain")
    shared = b.node("Softmax", x)
    block = b.node("Softmax", b.node("Neg", shared))
    whole = running(b, shared)
    later = b.node("Softmax", b.node("Add", b.node("Add", block, whole), shared))
    last = running(b, b.node("Mul", later, shared))
    plan = check(tools, b.output(last, b.node("Softmax", b.node("Sub", last, shared))))
    assert shared not in plan.per_block


def test_what_one_phase_alone_reads_is_stored_for_a_block(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 7, domain="plain")
    inside = b.node("Softmax", x)
    across = b.node("Softmax", b.node("Neg", inside))
    after = b.node("Softmax", b.node("Sub", across, over_list(b, across)))
    final = b.node("Softmax", b.node("Mul", after, after))
    plan = check(tools, b.output(final))
    assert inside in plan.per_block
    assert after in plan.per_block
    assert across not in plan.per_block
    assert across in {buffer.name for buffer in plan.dynamic}


def test_second_names_of_the_same_bytes_across_phases(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 6, domain="plain")
    flat = b.node("Reshape", x, shape=(("N", 6),))
    made = b.node("Softmax", x)
    pairs = b.node("Reshape", made, shape=(("N", 2), 3))
    line = b.node("Reshape", made, shape=(("N", 6),))
    sums = running(b, line)
    back = b.node("Reshape", sums, shape=("N", 3, 2))
    again = b.node("Softmax", b.node("Add", back, b.node("Reshape", made, shape=("N", 3, 2))))
    turned = b.node(
        "Reshape", b.node("Transpose", b.node("Reshape", again, shape=("N", 6)), perm=(1, 0)), shape=(2, 3, "N")
    )
    b.output(b.node("Softmax", pairs), b.node("Softmax", again), b.node("Neg", turned), b.node("Abs", flat))
    check(tools, b)


def test_rows_that_are_no_rows_of_the_source(tools: Any) -> None:
    """A reshape that puts the candidates elsewhere is read over the whole list, never block by block."""
    b = tools.GraphBuilder()
    made = b.node("Softmax", b.input("float32", "N", 6, domain="plain"))
    for shape in ((6, "N"), (2, ("N", 3)), (2, "N", 3), (1, "N", 6), (("N", 6), 1), (3, 1, ("N", 2))):
        other = b.node("Reshape", made, shape=shape)
        b.output(b.node("Softmax", other), b.node("Tanh", other), b.node("ReduceMean", other, axes=(0,), keepdims=0))
    check(tools, b)


def test_outputs_in_the_middle(tools: Any) -> None:
    """Results of every mode that later steps read, some under two names, some twice."""
    b = tools.GraphBuilder()
    x, query = b.input("float32", "N", 6, domain="plain"), b.input("float32", 1, 6, domain="plain")
    once = b.node("Softmax", query)
    first = b.node("Softmax", b.node("Mul", x, once))
    mean = over_list(b, first)
    second = b.node("Softmax", b.node("Sub", first, mean))
    total = running(b, second)
    b.output(first, b.node("Reshape", first, shape=("N", 3, 2)), once, mean, second, total, x)
    b.output(b.node("Softmax", b.node("Add", total, first)), b.node("Reshape", second, shape=(("N", 6),)))
    check(tools, b)


def test_buffers_of_recurrent_steps_in_both_modes(tools: Any) -> None:
    """Candidates with a history each run in blocks; one sequence over the candidates runs over all of them."""
    b = tools.GraphBuilder()
    random = np.random.default_rng(0)
    matrices = [b.constant(random.normal(0, 0.3, (5, 10))), b.constant(random.normal(0, 0.3, (5, 5)))]
    bias, state = b.constant(random.normal(size=5)), b.constant(np.zeros((1, 5)))
    rows = b.input("float32", "N", 4, 15, domain="plain")
    sequence, _ = b.nodes("GRU", [rows, *matrices, bias, state], 2)
    across = b.input("float32", "N", "N", 15, domain="plain")
    other, last = b.nodes("GRU", [across, *matrices, bias, state], 2)
    b.output(b.node("Softmax", sequence), b.node("Tanh", other), last)
    both = b.node(
        "Add", b.node("ReduceSum", sequence, axes=(1,), keepdims=0), b.node("ReduceMean", other, axes=(0,), keepdims=0)
    )
    b.output(b.node("CumSum", both, axis=0))
    plan = check(tools, b, tolerance=6e-6)
    mode_of = {step.writes[0]: step.mode for step in plan.steps}
    assert (mode_of[sequence], mode_of[other]) == ("block", "whole")
    assert all(name in plan.per_block for name in plan.scratch[sequence])
    assert all(name not in plan.per_block and name not in plan.offsets for name in plan.scratch[other])


def test_nothing_computed_for_no_candidates(tools: Any) -> None:
    """Whole steps over an empty list give the means, sums and maxima of nothing."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 3, domain="plain")
    made = b.node("Softmax", x)
    b.output(
        *(b.node(op, made, axes=(0,), keepdims=0) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"))
    )
    compiled = tools.Compiled(b.finish())
    found = [array.tolist() for array in compiled(b.feeds(0)).values()]
    np.testing.assert_array_equal(found, [[0.0] * 3, [np.nan] * 3, [-np.inf] * 3, [1.0] * 3])


# --- a second named dimension ------------------------------------------------------------------------------


def with_history(tools: Any) -> Graph:
    """Target attention over a history of T events, then the candidates over each other."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 8, domain="plain")
    events = b.input("float32", "T", 8, domain="plain")
    own = b.input("float32", "N", "T", 8, domain="plain")
    keys = b.node("Transpose", b.node("Softmax", events), perm=(1, 0))
    weights = b.node("Softmax", b.node("MatMul", x, keys))
    mixed = b.node("MatMul", weights, events)
    both = b.node("Add", mixed, b.node("ReduceSum", b.node("Softmax", own), axes=(1,), keepdims=0))
    both = b.node("Softmax", both)
    scores = b.node("MatMul", both, b.node("Transpose", both, perm=(1, 0)))
    listed = b.node("MatMul", b.node("Softmax", scores), both)
    b.output(listed, weights, b.node("ReduceMean", both, axes=(0,), keepdims=0), b.node("CumSum", weights, axis=1))
    return b.finish()


def draw(graph: Graph, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0, 1, concrete(graph.values[name].shape, sizes)).astype(np.float32) for name in graph.inputs
    }


def test_sizes_that_grow_and_shrink_between_calls(tools: Any) -> None:
    """What a longer list or history left behind is never seen by a shorter one, nor the other way round."""
    graph = with_history(tools)
    compiled = tools.Compiled(graph)
    seen: list[tuple[dict[str, Array], dict[str, Array]]] = []
    sizes = [
        (3, 2),
        (200, 2),
        (3, 150),
        (200, 150),
        (1, 1),
        (129, 3),
        (0, 7),
        (7, 0),
        (300, 33),
        (2, 300),
        (64, 64),
        (3, 2),
    ]
    for index, (count, steps) in enumerate(sizes):
        feeds = draw(graph, {"N": count, "T": steps}, index)
        expected = tools.expect(graph, feeds)
        found = compiled(feeds)
        for name, array in found.items():
            tools.assert_close(array, expected[name], f"{name} at N={count}, T={steps}", 4e-6, 4e-6)
        seen.append((feeds, found))
    for feeds, found in seen:
        again = compiled(feeds)
        fresh = tools.Compiled(graph)(feeds) if feeds[graph.inputs[0]].shape[0] == 129 else again
        for name, array in found.items():
            np.testing.assert_array_equal(again[name], array)
            np.testing.assert_array_equal(fresh[name], array)


def test_threads_with_different_sizes(tools: Any, tmp_path: Any) -> None:
    graph = with_history(tools)
    engine: Any = load(Model(graph), cache_dir=tmp_path)
    assert engine.backend == "cpu"
    sizes = [(5, 3), (140, 20), (1, 200), (300, 1)]
    work = [draw(graph, {"N": count, "T": steps}, index) for index, (count, steps) in enumerate(sizes)]
    expected = [{name: array.copy() for name, array in engine.run(feeds).items()} for feeds in work]
    wrong: list[str] = []
    start = threading.Barrier(len(work))

    def call(first: int) -> None:
        start.wait()
        for turn in range(40):
            which = (first + turn) % len(work)
            for name, array in engine.run(work[which]).items():
                if not np.array_equal(array, expected[which][name]):
                    wrong.append(f"{name} of {sizes[which]} in thread {first}")

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_blocks_are_smallest_where_a_row_has_no_known_size(tools: Any) -> None:
    plan = make_plan(with_history(tools))
    assert plan.block == MIN_BLOCK
    assert {names for buffer in plan.dynamic for names in names_in((buffer.size_bytes,))} == {"N", "T"}
    b = tools.GraphBuilder()
    b.output(b.node("Softmax", b.node("Softmax", b.input("float32", "N", 8))))
    assert make_plan(b.finish()).block == MAX_BLOCK


def test_an_output_that_shrinks_as_the_list_grows(tools: Any) -> None:
    """T - N entries are more for fewer candidates: room for the longest list is not room enough."""
    b = tools.GraphBuilder()
    x, y = b.input("float32", "N", domain="plain"), b.input("float32", "T", domain="plain")
    graph = b.graph
    rest = Dim("T") - Dim("N")
    for name, op, extra in (("late", "Range", {"count": (str(rest),)}), ("soft", "Cast", {"to": "float32"})):
        dtype = "int64" if op == "Range" else "float32"
        graph.values[name] = Value(name, dtype, (rest,))
        graph.nodes.append(Node(op, name, () if op == "Range" else ("late",), (name,), extra))
    b.output(x, y, "late", "soft", b.node("Softmax", "soft"))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for count, steps in ((128, 128), (1, 128), (0, 5000), (5000, 5001), (3, 5001)):
        feeds = draw(graph, {"N": count, "T": steps}, count)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{name} at N={count}, T={steps}", 1e-5, 1e-5)
    with pytest.raises(InputError, match="the inputs are too short"):
        load_alone(graph).run(draw(graph, {"N": 3, "T": 2}, 0))


def load_alone(graph: Graph) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load(Model(graph), cache_dir=folder)


def test_more_than_memory_holds_is_refused(tools: Any) -> None:
    """A value of N by N by N, and the engine still answers afterwards."""
    b = tools.GraphBuilder()
    x = b.input("float32", "N", domain="plain")
    cube = b.node(
        "Mul", b.node("Reshape", x, shape=("N", 1, 1)), b.node("Mul", b.node("Reshape", x, shape=("N", 1)), x)
    )
    engine = load_alone(b.output(b.node("ReduceSum", cube, axes=(0, 1, 2), keepdims=0)).finish())
    feeds = {x: np.ones(5, np.float32)}
    assert engine.run(feeds) == 125
    with pytest.raises(InputError, match=r"the inputs say .*: that needs .* bytes, more than there is"):
        engine.run({x: np.ones(1_000_000, np.float32)})
    assert engine.run(feeds) == 125


def test_a_session_starts_small_where_many_names_multiply(tools: Any) -> None:
    b = tools.GraphBuilder()
    wide = b.input("float32", "N", "T", "S", "U", 64, domain="plain")
    graph = b.output(b.node("Softmax", b.node("CumSum", wide, axis=0))).finish()
    compiled = tools.Compiled(graph)
    feeds = draw(graph, {"N": 3, "T": 2, "S": 4, "U": 1}, 0)
    expected = tools.expect(graph, feeds)
    for name, array in compiled(feeds).items():
        tools.assert_close(array, expected[name], name, 1e-5, 1e-5)


# --- places ------------------------------------------------------------------------------------------------


def test_places_have_room_for_every_size_up_to_the_capacity() -> None:
    """A size such as T - 1 or N*T - N counts as if nothing was taken away."""
    sizes = [Dim("N", 4), Dim.parse("4*T-4"), Dim.parse("8*N*T-8*N"), Dim.parse("-4*N+4*T")]
    buffers = [DynamicBuffer(str(index), size, 0, 1) for index, size in enumerate(sizes)]
    capacity = {"N": 70, "T": 33}
    places, total = place_dynamic(buffers, 1024, capacity)
    for count in (0, 1, 70):
        for steps in (0, 1, 33):
            ends = []
            for place, buffer in zip(places, buffers, strict=True):
                assert isinstance(buffer.size_bytes, Dim)
                needed = max(0, buffer.size_bytes.evaluate({"N": count, "T": steps}))
                ends.append((place, place + needed))
            assert all(place >= 1024 and end <= total for place, end in ends)
            ordered = sorted(ends)
            assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ordered))


def apart(lifetimes: list[Lifetime], start: int) -> tuple[dict[str, int], int]:
    """Places without sharing: one buffer behind the other."""
    offsets, end = {}, start
    for lifetime in lifetimes:
        offsets[lifetime.name] = end
        end += round_up(lifetime.size_bytes + 128)
    return offsets, end


@pytest.fixture
def no_sharing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(planning, "place", apart)


def random_graph(tools: Any, seed: int) -> Any:
    """Some twenty steps of all modes over values of several sizes, most of them read more than once."""
    random = np.random.default_rng(seed)
    b = tools.GraphBuilder()
    rows = [b.input("float32", "N", width, domain="plain") for width in (6, 6, 12)]
    rows.append(b.input("float32", "N", "T", 6, domain="plain"))
    facts = [b.input("float32", 1, 6, domain="plain"), b.input("float32", "T", 6, domain="plain")]

    def shape(name: str) -> tuple[Any, ...]:
        return tuple(b.graph.values[name].shape)

    for _ in range(22):
        x = rows[int(random.integers(max(0, len(rows) - 6), len(rows)))]
        kind = int(random.integers(0, 8))
        if kind == 0:
            made = b.node("Softmax", x)
        elif kind == 1:
            made = b.node("Sub", x, b.node("ReduceMean", x, axes=(0,), keepdims=1))
        elif kind == 2:
            made = b.node("CumSum", x, axis=0)
            made = b.node("Tanh", made)
        elif kind == 3 and shape(x)[-1] == 6:
            fact = facts[int(random.integers(0, len(facts) - 1))]
            made = b.node("Mul", x, b.node("Softmax", fact))
        elif kind == 4:
            made = b.node("MatMul", x, b.constant(random.normal(0, 0.4, (shape(x)[-1], 6))))
        elif kind == 5 and len(shape(x)) == 2:
            keys = b.node("Transpose", x, perm=(1, 0))
            made = b.node("MatMul", b.node("Softmax", b.node("MatMul", x, keys)), x)
        elif kind == 6 and shape(x) == (Dim("N"), 6):
            made = b.node("Softmax", b.node("MatMul", x, b.node("Transpose", facts[1], perm=(1, 0))))
            made = b.node("MatMul", made, facts[1])
        else:
            like = [name for name in rows if shape(name) == shape(x)]
            made = b.node("Add", b.node("Softmax", x), like[int(random.integers(0, len(like)))])
        rows.append(made)
    chosen = random.permutation(rows[4:])[:4].tolist()
    return b.output(*dict.fromkeys([*chosen, rows[-1]])).finish()


@pytest.mark.parametrize("seed", range(6))
def test_shared_places_change_nothing(tools: Any, no_sharing: Callable[[], None], seed: int) -> None:
    """The same bits as with a place of its own for every value."""
    graph = random_graph(tools, seed)
    shared = make_plan(graph)
    cases = [
        draw(graph, {"N": count, "T": steps}, seed) for count, steps in ((1, 1), (140, 9), (19, 40), (0, 2), (140, 9))
    ]
    compiled = tools.Compiled(graph)
    results = [compiled(feeds) for feeds in cases]
    for feeds, found in zip(cases, results, strict=True):
        expected = tools.expect(graph, feeds)
        for name, array in found.items():
            scale = float(np.abs(expected[name]).max(initial=1.0))
            tools.assert_close(array, expected[name], name, 1e-4, 1e-4 * scale)
    no_sharing()
    alone = make_plan(graph)
    assert alone.fixed_bytes >= shared.fixed_bytes
    compiled = tools.Compiled(graph)
    for feeds, found in zip(cases, results, strict=True):
        for name, array in compiled(feeds).items():
            np.testing.assert_array_equal(array, found[name], err_msg=f"{name} of seed {seed}")


@pytest.mark.parametrize("seed", range(12))
def test_what_is_alive_together_lies_apart(tools: Any, seed: int) -> None:
    """Walk over the steps of a plan as they run, blocks repeated, and see who writes over whom."""
    graph = random_graph(tools, 100 + seed)
    plan = make_plan(graph)
    sizes = {"N": 50, "T": 9}
    places, _ = place_dynamic(plan.dynamic, plan.fixed_bytes, sizes)
    start = dict(plan.offsets) | {buffer.name: place for buffer, place in zip(plan.dynamic, places, strict=True)}

    def span(name: str) -> range:
        value: Value = plan.values[name]
        count = min(plan.block, sizes["N"]) if name in plan.per_block else sizes["N"]
        size = 4 * int(np.prod(concrete(value.shape, sizes | {"N": count})))
        return range(start[name], start[name] + size)

    owner: dict[int, str] = {}

    def write(name: str) -> None:
        if name in start:
            owner.update(dict.fromkeys(range(span(name).start, span(name).stop, 4), name))

    for phase in plan.phases:
        # Two rounds of a phase of blocks: what the first leaves for the second must be there.
        for _ in range(2 if phase.mode == "block" else 1):
            for step in phase.steps:
                for name in (plan.storage(read) for read in step.reads):
                    if name in start:
                        lost = {owner[at] for at in range(span(name).start, span(name).stop, 4)} - {name}
                        assert not lost, f"{step.label} reads {name}, over which {lost} was written"
                for name in (*plan.scratch.get(step.writes[0], ()), *step.writes):
                    write(name)
