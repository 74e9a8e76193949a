"""Writing and reading model files: nothing is lost, bytes are deterministic, files are whole."""

import dataclasses
import hashlib
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.format import content_hash, model_bytes, read_model, write_model
from rerank_engine.format.decoder import DTYPE_CODES
from rerank_engine.format.shapes import sum_of_terms
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Sample, Shape, Value, concrete, dtype_name
from rerank_engine.ops import OPERATORS

T = TypeVar("T")
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
IDENTIFIERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:-]{0,15}", fullmatch=True)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = [st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=True), WORDS]
ATTRIBUTES = st.one_of(*PLAIN, *(st.lists(kind, max_size=4).map(tuple) for kind in PLAIN))
FIXED = st.lists(st.integers(0, 4), max_size=3).map(tuple)
SIZES = {"N": 3, "T": 2}
TERMS = st.dictionaries(
    st.lists(st.sampled_from(sorted(SIZES)), max_size=3).map(lambda names: tuple(sorted(names))),
    st.integers(0, 2**20),
    max_size=3,
).map(lambda terms: sum_of_terms(terms.items()))
SHAPES = st.one_of(FIXED, st.builds(lambda first, rest, last: (first, *rest, *last), TERMS, FIXED, FIXED))


def declared(graph: Graph, name: str, dtype: str, shape: tuple) -> str:
    graph.values[name] = Value(name, dtype, shape)
    return name


def store(graph: Graph, name: str, array: np.ndarray) -> str:
    graph.constants[name] = array
    return declared(graph, name, dtype_name(array.dtype), array.shape)


def drawn_sample(draw: st.DrawFn, graph: Graph) -> Sample:
    def arrays(names: list[str]) -> dict[str, np.ndarray]:
        values = [graph.values[name] for name in dict.fromkeys(names)]
        return {
            value.name: draw(hnp.arrays(DTYPES[value.dtype], concrete(value.shape, SIZES)))
            for value in reversed(values)
        }

    return Sample(arrays(graph.inputs), arrays(graph.outputs), draw(st.floats(0, 1)))


def is_small(shape: Shape) -> bool:
    return math.prod(concrete(shape, SIZES)) < 1000


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = iter(draw(st.lists(NAMES, min_size=14, max_size=14, unique=True)))
    graph = Graph(draw(NAMES), metadata=draw(st.dictionaries(NAMES, WORDS, max_size=3)))
    dtypes = st.sampled_from(sorted(DTYPES))
    for name in SIZES:
        graph.inputs.append(declared(graph, next(names), draw(dtypes), (Dim(name), *draw(FIXED))))
    graph.maxima = draw(st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(3, 2**64 - 1)))
    for _ in range(draw(st.integers(1, 4))):
        array = draw(hnp.arrays(DTYPES[draw(dtypes)], draw(FIXED)))
        store(graph, next(names), array)
    known = list(graph.values)
    for _ in range(draw(st.integers(0, 3))):
        inputs = tuple(draw(st.lists(st.sampled_from(known), max_size=3)))
        outputs = tuple(next(names) for _ in range(draw(st.integers(1, 2))))
        for name in outputs:
            declared(graph, name, draw(dtypes), draw(SHAPES))
        attributes = draw(st.dictionaries(IDENTIFIERS, ATTRIBUTES, max_size=3))
        graph.nodes.append(Node(draw(IDENTIFIERS), draw(NAMES), inputs, outputs, attributes))
        known += outputs
    graph.outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
    if all(is_small(graph.values[name].shape) for name in graph.outputs) and draw(st.booleans()):
        graph.sample = drawn_sample(draw, graph)
    return graph


def exact(value: object) -> object:
    """A form in which NaN equals itself, -0.0 differs from 0.0, and True differs from 1."""
    if isinstance(value, tuple):
        return tuple(exact(element) for element in value)
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def assert_same_arrays(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        other = right[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape)
        assert array.tobytes() == other.tobytes()


def assert_same(left: Graph, right: Graph) -> None:
    assert (left.name, left.inputs, left.outputs) == (right.name, right.inputs, right.outputs)
    assert left.values == right.values
    assert (left.metadata, left.maxima, left.unknown_rows) == (right.metadata, right.maxima, right.unknown_rows)
    assert_same_arrays(left.constants, right.constants)
    assert (left.sample is None) == (right.sample is None)
    if left.sample is not None and right.sample is not None:
        assert_same_arrays(left.sample.inputs, right.sample.inputs)
        assert_same_arrays(left.sample.outputs, right.sample.outputs)
        assert left.sample.tolerance == right.sample.tolerance
    for mine, yours in zip(left.nodes, right.nodes, strict=True):
        assert (mine.op, mine.name, mine.inputs, mine.outputs) == (
            yours.op,
            yours.name,
            yours.inputs,
            yours.outputs,
        )
        assert {key: exact(value) for key, value in mine.attributes.items()} == {
            key: exact(value) for key, value in yours.attributes.items()
        }


def shuffled(graph: Graph) -> Graph:
    """The same graph, its dictionaries filled in the reverse order."""

    def back(mapping: Mapping[str, T]) -> dict[str, T]:
        return dict(reversed(list(mapping.items())))

    nodes = [Node(n.op, n.name, n.inputs, n.outputs, back(n.attributes)) for n in graph.nodes]
    return Graph(
        graph.name,
        list(graph.inputs),
        list(graph.outputs),
        nodes,
        back(graph.constants),
        back(graph.values),
        back(graph.metadata),
        back(graph.maxima),
        back(graph.unknown_rows),
        graph.sample and Sample(back(graph.sample.inputs), back(graph.sample.outputs), graph.sample.tolerance),
    )


def linear() -> Graph:
    graph = Graph("linear", inputs=["x"], outputs=["y"], metadata={"source": "test"})
    declared(graph, "x", "float32", (Dim("N"), 3))
    declared(graph, "y", "float32", (Dim("N"), 2))
    store(graph, "w", np.arange(6, dtype=np.float32).reshape(3, 2))
    store(graph, "b", np.array([0.5, -0.0], np.float32))
    graph.nodes.append(Node("Gemm", "dense", ("x", "w", "b"), ("y",), {"alpha": 1.0, "axes": (0, 1)}))
    return graph


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_round_trip_keeps_everything_and_bytes_are_canonical(graph: Graph) -> None:
    data = model_bytes(graph)
    back = read_model(data)
    assert_same(graph, back)
    assert model_bytes(back) == data
    assert model_bytes(shuffled(graph)) == data


def test_every_dtype_has_a_code_of_its_own() -> None:
    assert DTYPE_CODES.keys() == DTYPES.keys()
    assert len(set(DTYPE_CODES.values())) == len(DTYPES)


def test_write_equals_bytes_and_states_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "linear.rrm"
    stated = write_model(linear(), path)
    data = path.read_bytes()
    assert data == model_bytes(linear())
    assert stated == hashlib.sha256(data[32:64] + data[80:112]).hexdigest() == content_hash(path) == content_hash(data)
    assert [entry.name for entry in tmp_path.iterdir()] == ["linear.rrm"]
    assert_same(read_model(str(path)), linear())


def test_header_layout_is_what_the_documentation_says() -> None:
    data = model_bytes(linear())
    assert data[:8] == b"\x89RRM\r\n\x1a\n"
    assert np.frombuffer(data[8:12], "<u2").tolist() == [2, 0]
    assert int.from_bytes(data[12:16], "little") == 128
    graph_at, graph_size = np.frombuffer(data[16:32], "<u8").tolist()
    weights_at, weights_size = np.frombuffer(data[64:80], "<u8").tolist()
    size = int.from_bytes(data[112:120], "little")
    assert data[32:64] == hashlib.sha256(data[graph_at : graph_at + graph_size]).digest()
    assert data[80:112] == hashlib.sha256(data[weights_at:]).digest()
    assert (graph_at, weights_at % 64, size) == (128, 0, len(data))
    assert data[graph_at + 4 : graph_at + 8] == b"RRM2"
    assert weights_at + weights_size == size
    assert weights_at - graph_at - graph_size < 64
    assert data[weights_at : weights_at + 24] == linear().constants["w"].tobytes()


@pytest.mark.parametrize("mapped", [True, False])
def test_constants_are_aligned_read_only_views(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "linear.rrm"
    write_model(linear(), path)
    graph = read_model(path if mapped else path.read_bytes())
    path.unlink()
    for array in graph.constants.values():
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert graph.constants["w"].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.array(True),
        np.empty((0,), np.float32),
        np.empty((3, 0, 2), np.int64),
        np.array([2**40 + 3, -1], np.int64),
        np.array([True, False]),
        np.array([-(2**31)], np.int32),
        np.array([np.nan, np.inf, -0.0], np.float32),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(10, dtype=np.int32)[::3],
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_every_kind_of_constant(tmp_path: Path, array: np.ndarray) -> None:
    graph = Graph("constant", outputs=["c"])
    store(graph, "c", array)
    store(graph, "other", np.ones(3, np.float32))
    write_model(graph, tmp_path / "c.rrm")
    for source in (tmp_path / "c.rrm", model_bytes(graph)):
        back = read_model(source).constants["c"]
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()
        assert not back.flags.writeable


def test_a_file_of_empty_constants_alone(tmp_path: Path) -> None:
    graph = Graph("empty", outputs=["c"])
    store(graph, "c", np.empty((0, 4), np.float32))
    write_model(graph, tmp_path / "empty.rrm")
    assert read_model(tmp_path / "empty.rrm").constants["c"].shape == (0, 4)


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        (2**63, "does not fit into 64 bits"),
        ((1, 2.0), "expected bool, int, float, str"),
        ([1, 2], "of type list"),
        (None, "of type NoneType"),
        (np.float64(1), "of type float64"),
        ("\ud800", "not valid Unicode"),
        (((1,),), "expected bool, int, float, str"),
    ],
)
def test_attributes_that_the_file_cannot_hold(tmp_path: Path, attribute: object, problem: str) -> None:
    graph = linear()
    graph.nodes[0] = Node("Gemm", "dense", ("x", "w", "b"), ("y",), {"odd": attribute})
    with pytest.raises(GraphError, match=problem) as error:
        write_model(graph, tmp_path / "linear.rrm")
    assert "'odd'" in str(error.value)
    assert "'dense'" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def renamed_node(**changes: object) -> Graph:
    graph = linear()
    facts = {"op": "Gemm", "name": "dense", "inputs": ("x", "w", "b"), "outputs": ("y",), "attributes": {}}
    graph.nodes[0] = Node(**(facts | changes))  # type: ignore[arg-type]
    return graph


def reshaped_input(shape: tuple) -> Graph:
    graph = Graph("shaped", inputs=["x"], outputs=["x"])
    declared(graph, "x", "float32", shape)
    return graph


def misnamed_value() -> Graph:
    graph = linear()
    graph.values[1] = Value(1, "float32", ())  # type: ignore[arg-type, index]
    return graph


def with_facts(**facts: object) -> Graph:
    graph = linear()
    for name, value in facts.items():
        setattr(graph, name, value)
    return graph


def dirty_bool() -> Graph:
    graph = Graph("mask", outputs=["m"])
    store(graph, "m", np.array([1, 2], np.uint8).view(np.bool_))
    return graph


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (Graph("nothing"), "no output"),
        (renamed_node(op="has space"), "no identifier"),
        (renamed_node(op=""), "no identifier"),
        (renamed_node(attributes={"": 1}), "no identifier"),
        (renamed_node(attributes={1: 1}), "expected str"),
        (renamed_node(inputs=("x", 1)), "reads 1 before"),
        (misnamed_value(), "value name 1 is int"),
        (renamed_node(name="a\0b"), "NUL"),
        (renamed_node(name="x" * 5000), "at most 4096"),
        (renamed_node(name=None), "expected str"),
        (reshaped_input((Dim("N", 2**45), 3)), "more than"),
        (reshaped_input((Dim("N") * Dim("T"), 3)), "no input gives the size of 'N'"),
        (reshaped_input((2**64, 3)), "too large"),
        (reshaped_input((2**62, 2**62)), "more than"),
        (reshaped_input((0, 2**62, 2**62)), "more than"),
        (reshaped_input((1.5, 2)), "no integer"),
        (reshaped_input((1,) * 33), "at most 32"),
        (dirty_bool(), "other than 0 and 1"),
        (with_facts(maxima={"N": 2**64}), "maximum of 'N' is 18446744073709551616"),
        (with_facts(maxima={"N": 2.5}), "maximum of 'N' is 2.5"),
        (with_facts(unknown_rows={"x": 0}), "declares unknown row 0, its tables have no unknown row"),
        (with_facts(unknown_rows={"x": -1}), "unknown row of input 'x' is -1"),
        (with_facts(sample=Sample({}, {})), "input 'x' is missing"),
        (with_facts(sample=Sample({"x": np.ones((2, 3))}, {"y": np.ones((2, 2), np.float32)})), "is float64, expected"),
        (with_facts(sample=Sample({"x": [1.0]}, {"y": np.ones((2, 2), np.float32)})), "is list, expected"),  # type: ignore[dict-item]
    ],
)
def test_graphs_that_could_not_be_read_back_are_not_written(tmp_path: Path, graph: Graph, problem: str) -> None:
    path = tmp_path / "graph.rrm"
    path.write_bytes(b"old")
    with pytest.raises(GraphError, match=problem):
        write_model(graph, path)
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "linear.rrm"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rerank_engine.format.writer.os.fsync", full)
    with pytest.raises(ModelFileError, match="No space left"):
        write_model(linear(), path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["linear.rrm"]


def test_a_changed_operator_needs_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = linear()
    graph.nodes[0] = Node("Relu", "dense", ("x",), ("y",))
    old = model_bytes(graph)
    monkeypatch.setitem(OPERATORS, "Relu", dataclasses.replace(OPERATORS["Relu"], version=2))
    new = model_bytes(graph)
    assert model_bytes(read_model(new)) == new
    with pytest.raises(ModelFileError, match=r"version 1 of operator Relu, .* knows version 2"):
        read_model(old)


def test_graphs_with_too_large_a_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank_engine.format.writer.MAX_GRAPH_SIZE", 100)
    with pytest.raises(GraphError, match="at most 100 are allowed; keep large attributes"):
        model_bytes(linear())


@pytest.mark.parametrize("bad", ["missing/linear.rrm", "", "a\0b"])
def test_paths_that_cannot_be_written(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ModelFileError, match="cannot write"):
        write_model(linear(), f"{tmp_path}/{bad}")
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.rrm"
    variants = []
    for number in range(4):
        graph = linear()
        graph.constants["w"] = np.full((3, 2), number, np.float32)
        variants.append(graph)
    write_model(variants[0], path)
    allowed = {hashlib.sha256(model_bytes(graph)).hexdigest() for graph in variants}
    problems: list[object] = []

    def work(graph: Graph) -> None:
        try:
            for _ in range(10):
                write_model(graph, path)
                w = read_model(path).constants["w"]
                if not (w == w[0, 0]).all() or hashlib.sha256(path.read_bytes()).hexdigest() not in allowed:
                    problems.append("mixed file")
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(graph,)) for graph in variants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.rrm"]


def test_replacing_a_file_does_not_change_a_model_that_was_read_from_it(tmp_path: Path) -> None:
    path = tmp_path / "linear.rrm"
    write_model(linear(), path)
    before = read_model(path)
    other = linear()
    other.constants["w"] = np.zeros((3, 2), np.float32)
    write_model(other, path)
    assert_same(before, linear())
    assert_same(read_model(path), other)
