"""Damaged and hostile files: each is refused with ModelFileError, or reads as a graph that is sound."""

import hashlib
import math
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import ModelFileError
from rerank_engine.format import content_hash, model_bytes, read_model
from rerank_engine.format.arrays import Extent, Placement
from rerank_engine.format.encoder import encode_graph
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.layout import (
    HEADER_SIZE,
    Source,
    aligned,
    layout,
    pack_header,
    parse_header,
)
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Sample, Value

ORDER = ["x", "w", "b", "h", "mask", "ids", "none", "y"]


def small_graph() -> Graph:
    graph = Graph("small", inputs=["x"], outputs=["y"], metadata={"source": "onnx", "opset": "18"}, maxima={"N": 50})
    graph.values["x"] = Value("x", "float32", (Dim("N"), 3))
    graph.values["h"] = Value("h", "float32", (Dim("N", 2), 2))
    graph.values["y"] = Value("y", "float32", (Dim("N"), 4))
    graph.add_constant("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    graph.add_constant("b", np.ones(2, np.float32))
    graph.add_constant("mask", np.array([True, False]))
    graph.add_constant("ids", np.array([2**40, 1], np.int64))
    graph.add_constant("none", np.empty((0, 2), np.int32))
    graph.nodes = [
        Node("Gemm", "dense", ("x", "w", "b"), ("h",), {"alpha": 0.5, "transposed": True, "axes": (0, -1)}),
        Node(
            "Mix",
            "mixed",
            ("h", "mask", "ids", "none"),
            ("y",),
            {"mode": "sum", "names": ("a", "é"), "flags": (True, False), "rates": (1.5, -0.0), "axis": 1},
        ),
    ]
    return graph


def extent(name: str, byte_offset: int, byte_size: int | None = None, value: str | None = None) -> Extent:
    """Where an array of the small graph might stand; its size is the right one unless another is given."""
    value_of = small_graph().values[value or name]
    shape = tuple(dim for dim in value_of.shape if isinstance(dim, int))
    size = DTYPES[value_of.dtype].itemsize * math.prod(shape) if byte_size is None else byte_size
    return Extent(name, value_of.dtype, shape, byte_offset, size)


PLACEMENT = Placement((extent("w", 0), extent("b", 64), extent("mask", 128), extent("ids", 192), extent("none", 256)))
DATA = model_bytes(small_graph())
HEADER = parse_header(DATA, len(DATA), Source("DATA"))
SECTION = DATA[HEADER.graph_offset : HEADER.graph_offset + HEADER.graph_size]
WEIGHTS = DATA[HEADER.weights_offset :]


def sealed(section: bytes, weights: bytes = WEIGHTS, **changes: int) -> bytes:
    """A file around a section, with right lengths and hashes, so that only the section's checks are left."""
    body = section + bytes(aligned(HEADER_SIZE + len(section)) - HEADER_SIZE - len(section)) + weights
    hashes = hashlib.sha256(section).digest(), hashlib.sha256(weights).digest()
    header = layout(len(section), len(weights), *hashes)
    return pack_header(header.replace(**changes)) + body


def reheadered(data: bytes, offset: int, layout_code: str, value: object) -> bytes:
    """Change a field of the header and make its checksum right again."""
    start = bytearray(data)
    struct.pack_into(layout_code, start, offset, value)
    struct.pack_into("<I", start, 124, zlib.crc32(start[:124]))
    return bytes(start)


def refused(data: bytes, **options: bool) -> str:
    with pytest.raises(ModelFileError) as error:
        read_model(data, **options)
    return str(error.value)


def refused_or_sound(data: bytes, **options: bool) -> bool:
    """Whether the file was read; then its graph must keep the rules and all of its weights must be there."""
    try:
        graph = read_model(data, **options)
    except ModelFileError:
        return False
    graph.verify()
    model_bytes(graph)
    return True


def test_the_pieces_of_these_tests_fit() -> None:
    assert sealed(SECTION) == DATA
    assert refused_or_sound(DATA)
    assert encode_graph(small_graph(), ORDER, PLACEMENT) == SECTION
    assert 1500 < len(DATA) < 6000


def test_every_changed_byte_is_refused() -> None:
    for position in range(len(DATA)):
        data = bytearray(DATA)
        data[position] ^= 0xFF
        refused(bytes(data))


def test_every_changed_byte_without_the_hash_is_refused_or_sound() -> None:
    read = 0
    for position in range(len(DATA)):
        data = bytearray(DATA)
        data[position] ^= 1 << position % 8
        read += refused_or_sound(bytes(data), verify_hash=False)
    # Weights, texts and numbers may change unnoticed; the header, offsets and counts may not.
    assert 0 < read < len(DATA) / 2


def test_every_prefix_is_refused() -> None:
    for length in range(len(DATA)):
        refused(DATA[:length])
        refused(DATA[:length], verify_hash=False)


@pytest.mark.parametrize("tail", [b"\0", bytes(64), DATA])
def test_longer_files_are_refused(tail: bytes) -> None:
    assert "declares" in refused(DATA + tail)


def test_junk_is_refused() -> None:
    source = random.Random(1)
    for length in (0, 1, 7, 8, 127, 128, 129, 5000):
        assert "not a .rrm model file" in refused(source.randbytes(length))
        refused(DATA[:8] + source.randbytes(length))
        refused(DATA[:HEADER_SIZE] + source.randbytes(length))


def test_text_mode_transfer_is_recognised() -> None:
    assert "binary mode" in refused(DATA.replace(b"\r\n", b"\n"))
    assert "binary mode" in refused(DATA.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("offset", "code", "value", "problem"),
    [
        (8, "<H", 3, "format version 3.0 is newer than .* update rerank-sdk"),
        (8, "<H", 1, "format version 1.0 is older than .* convert the source model again"),
        (16, "<Q", 64, "graph_offset is 64"),
        (16, "<Q", 2**64 - 1, "graph_offset"),
        (24, "<Q", 2**64 - 1, "section GRAPH has"),
        (24, "<Q", 2**26 + 1, "section GRAPH has"),
        (24, "<Q", 0, "weights_offset"),
        (32, "<Q", 1, "section GRAPH: SHA-256"),
        (64, "<Q", HEADER.weights_offset + 64, "weights_offset"),
        (64, "<Q", HEADER.weights_offset + 1, "weights_offset"),
        (72, "<Q", 2**63, "file_size"),
        (80, "<Q", 1, "section WEIGHTS: SHA-256"),
        (112, "<Q", 2**63, "declares"),
        (120, "<B", 1, "reserved bytes"),
        (123, "<B", 1, "reserved bytes"),
    ],
)
def test_header_fields(offset: int, code: str, value: int, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read_model(reheadered(DATA, offset, code, value))


@pytest.mark.parametrize("size", [0, 127, 4097, 2**32 - 1])
def test_header_sizes(size: int) -> None:
    assert f"header size {size}" in refused(DATA[:12] + struct.pack("<I", size) + DATA[16:])


def test_a_newer_version_with_a_larger_header_is_told_apart_from_damage() -> None:
    start = bytearray(DATA[:8] + struct.pack("<HHI", 3, 3, 256) + DATA[16:124] + bytes(128))
    data = bytes(start) + struct.pack("<I", zlib.crc32(start)) + DATA[HEADER_SIZE:]
    assert "format version 3.3 is newer" in refused(data)
    damaged = bytearray(data)
    damaged[200] ^= 1
    assert "checksum" in refused(bytes(damaged))


def test_a_header_size_of_another_length_in_this_version_is_refused() -> None:
    start = bytearray(DATA[:8] + struct.pack("<HHI", 2, 0, 256) + DATA[16:124] + bytes(128))
    assert "header size 256" in refused(bytes(start) + struct.pack("<I", zlib.crc32(start)) + DATA[HEADER_SIZE:])


def test_a_newer_minor_version_is_read() -> None:
    data = sealed(SECTION, minor_version=7)
    assert model_bytes(read_model(data)) == DATA


def test_a_newer_minor_version_may_hold_more_arrays() -> None:
    more = WEIGHTS + bytes(64)
    assert "section WEIGHTS: 320 bytes, but its arrays end at 256" in refused(sealed(SECTION, more))
    assert model_bytes(read_model(sealed(SECTION, more, minor_version=7))) == DATA


@pytest.mark.parametrize("section", ["GRAPH", "WEIGHTS"])
def test_the_damaged_section_is_named(section: str) -> None:
    data = bytearray(DATA)
    data[HEADER.graph_offset + 40 if section == "GRAPH" else HEADER.weights_offset + 3] ^= 1
    assert f"section {section}: SHA-256 is" in refused(bytes(data))


def test_every_flipped_bit_of_the_header_is_refused() -> None:
    for bit in range(8 * HEADER_SIZE):
        data = bytearray(DATA)
        data[bit // 8] ^= 1 << bit % 8
        refused(bytes(data))


def test_padding_between_arrays_must_be_zero() -> None:
    weights = bytearray(WEIGHTS)
    weights[30] = 1
    assert "section WEIGHTS: padding before 'b'" in refused(sealed(SECTION, bytes(weights)))


def test_padding_must_be_zero() -> None:
    data = bytearray(sealed(SECTION + bytes(8)))
    data[HEADER_SIZE + len(SECTION) + 8] = 1
    assert "padding" in refused(bytes(data), verify_hash=False)


def test_bool_constants_hold_only_zero_and_one() -> None:
    weights = bytearray(WEIGHTS)
    weights[128] = 2
    assert "section WEIGHTS: bool array 'mask'" in refused(sealed(SECTION, bytes(weights)))


def test_paths_are_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.rrm"
    path.write_bytes(DATA[:-1])
    for function in (read_model, content_hash):
        with pytest.raises(ModelFileError, match=r"damaged\.rrm: header: declares"):
            function(path)
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="it is empty"):
        read_model(path)


@pytest.mark.parametrize("name", ["missing.rrm", "pipe", ".", "a\0b"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="give the path of a"):
        read_model(f"{tmp_path}/{name}")


def test_what_is_no_path() -> None:
    with pytest.raises(ModelFileError, match="cannot read a model file"):
        read_model(3)  # type: ignore[arg-type]


def test_all_byte_types_are_read() -> None:
    for data in (DATA, bytearray(DATA), memoryview(DATA), memoryview(DATA * 2)[: len(DATA)]):
        assert model_bytes(read_model(data)) == DATA
    mutable = bytearray(DATA)
    graph = read_model(mutable)
    mutable[:] = bytes(len(mutable))
    assert model_bytes(graph) == DATA


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (extent("b", 32), "'b' at bytes 32 to 40 of WEIGHTS, expected to begin at 64"),
        (extent("b", 0), "expected to begin at 64"),
        (extent("b", 128), "expected to begin at 64"),
        (extent("b", 2**64 - 64), "expected to begin at 64"),
        (extent("b", 64, 4), "'b' has 4 bytes, expected 8"),
        (extent("b", 64, 2**64 - 1), "expected 8"),
        (extent("ids", 64), "'ids' at bytes 64 to 80 of 72 in WEIGHTS"),
        (extent("w", 64), "'w' stands 2 times"),
        (extent("x", 64), "has no fixed shape"),
    ],
)
def test_constants_outside_of_their_place(second: Extent, problem: str) -> None:
    section = encode_graph(small_graph(), ORDER, Placement((extent("w", 0), second)))
    with pytest.raises(ModelFileError, match=problem):
        read_model(sealed(section, WEIGHTS[:72]))


def test_a_declared_constant_without_bytes_is_refused() -> None:
    section = encode_graph(small_graph(), ORDER, Placement((extent("w", 0),)))
    assert "reads 'b' before anything makes it" in refused(sealed(section, WEIGHTS[:24]))


def test_an_input_is_no_constant_and_stands_once() -> None:
    graph = small_graph()
    graph.inputs = ["x", "w"]
    assert "inputs and constants: 'w' stands 2 times" in refused(sealed(encode_graph(graph, ORDER, PLACEMENT)))
    graph.inputs = ["x", "x"]
    assert "inputs: 'x' stands 2 times" in refused(sealed(encode_graph(graph, ORDER, PLACEMENT)))


def metadata_twice() -> bytes:
    graph = small_graph()
    graph.metadata = {"source": "a", "target": "b"}
    return encode_graph(graph, ORDER, Placement()).replace(b"target\0", b"source\0")


def test_names_that_stand_twice() -> None:
    graph = small_graph()
    graph.values["b"] = Value("w", "float32", (2,))
    assert "'w' stands 2 times" in refused(sealed(encode_graph(graph, ORDER, Placement())))
    assert "nodes[1].attributes: a name stands twice" in refused(sealed(SECTION.replace(b"flags\0", b"names\0")))
    assert "metadata: 'source' stands 2 times" in refused(sealed(metadata_twice()))


@pytest.mark.parametrize(
    ("find", "field", "code", "value", "problem"),
    [
        (lambda root: root.Values(1), 6, "<B", 12, r"values\[1\].dtype: code 12 of 'w'"),
        (lambda root: root.Values(1), 6, "<B", 0, r"values\[1\].dtype: code 0"),
        (lambda root: root.Nodes(0), 6, "<H", 2, "'dense' has version 2 of operator Gemm, .* version 1; update it"),
        (lambda root: root.Nodes(0), 6, "<H", 0, "version 0 of operator Gemm, .* convert the source model again"),
        (lambda root: root.Constants(0), 4, "<I", 99, r"constants\[0\]: value 99 of 8"),
        (lambda root: root.Constants(0), 4, "<I", 2**32 - 1, "value 4294967295 of 8"),
        (lambda root: root.Inputs(0), 4, "<I", 8, "inputs: value 8 of 8"),
        (lambda root: root.Inputs(0), 6, "<q", 7, r"inputs\[0\].vocabulary: 7 of 'x', by its tables -1"),
        (lambda root: root.Inputs(0), 8, "<B", 0, "policy 0 of 'x'"),
        (lambda root: root.Inputs(0), 8, "<B", 3, "policy 3 of 'x'"),
        (lambda root: root.Inputs(0), 8, "<B", 2, "'x' declares unknown row 0, its tables have no unknown row"),
        (lambda root: root.Inputs(0), 10, "<Q", 1, "row 1 of 'x', which has no unknown row"),
        (lambda root: root.DimensionNames(0), 6, "<Q", 2**63, None),
        (lambda root: root.Dimensions(1).Terms(0), 4, "<q", 0, r"dimensions\[1\]: not in canonical form, which is 0"),
        (lambda root: root.Dimensions(1).Terms(0), 4, "<q", 1, "an expression stands twice"),
        (lambda root: root.Dimensions(1).Terms(0), 4, "<q", 2**48 + 1, "is beyond 281474976710656"),
        (lambda root: root.Dimensions(1).Terms(0), 4, "<q", -(2**63), "is beyond"),
        (lambda root: root.Dimensions(1).Terms(0), 4, "<q", 2**48, "have more than 1099511627776 bytes"),
    ],
)
def test_fields_whose_meaning_is_wrong(
    find: Callable[[Any], Any], field: int, code: str, value: int, problem: str | None
) -> None:
    section = bytearray(SECTION)
    table = find(fbs.Graph.GetRootAs(section, 0))._tab
    struct.pack_into(code, section, table.Pos + table.Offset(field), value)
    if problem is None:
        assert read_model(sealed(bytes(section))).maxima["N"] == value
    else:
        with pytest.raises(ModelFileError, match=problem):
            read_model(sealed(bytes(section)))


@pytest.mark.parametrize(
    ("entry", "size", "problem"),
    [
        (0, -3, r"values\[0\].shape\[0\]: dimension 2 of 2"),
        (0, -2, "dimension 1 before 0; they stand in order of their first use"),
        (0, 5, "dimension 1 before 0"),
        (0, -(2**63), "dimension 9223372036854775807 of 2"),
        (1, 2**62, "have more than 1099511627776 bytes"),
    ],
)
def test_sizes_of_a_shape(entry: int, size: int, problem: str) -> None:
    section = bytearray(SECTION)
    fbs.Graph.GetRootAs(section, 0).Values(0).ShapeAsNumpy()[entry] = size
    with pytest.raises(ModelFileError, match=problem):
        read_model(sealed(bytes(section)))


def test_indices_of_terms() -> None:
    section = bytearray(SECTION)
    fbs.Graph.GetRootAs(section, 0).Dimensions(0).Terms(0).NamesAsNumpy()[0] = 1
    assert "dimensions[0].terms[0].names: name 1 of 1" in refused(sealed(bytes(section)))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((Dim("N") * Dim("T"),), "inputs: none of them gives the size of 'N' alone"),
        (tuple(Dim(f"D{i}") for i in range(9)), "a product of 9 names, at most 8"),
        (
            (math.prod([Dim(f"D{i}") + 1 for i in range(4)]), math.prod([Dim(f"E{i}") + 1 for i in range(3)])),
            "128 terms",
        ),
        (tuple(Dim("D") for _ in range(33)), "33 dimensions, at most 32"),
        (tuple(sum(Dim(f"D{i + k}") for i in range(11)) for k in range(0, 66, 11)), "66 names, at most 64"),
        ((math.prod([Dim("D")] * 9),), "9 factors, at most 8"),
    ],
)
def test_dimensions_that_are_too_large_to_work_with(shape: tuple[int | Dim, ...], problem: str) -> None:
    graph = Graph("wide", inputs=["x"], outputs=["x"])
    graph.values["x"] = Value("x", "float32", shape)
    assert problem in refused(sealed(encode_graph(graph, ["x"], Placement()), b""))


def test_names_of_dimensions_are_names() -> None:
    section = SECTION.replace(b"\x01\0\0\0N\0", b"\x01\0\0\x007\0")
    assert section != SECTION
    assert "dimension_names[0].name: '7' is no name for a dimension" in refused(sealed(section))


def sampled(sample: Sample) -> bytes:
    """A file with a sample that may not fit; the writer would refuse it."""
    graph = Graph("sampled", inputs=["x"], outputs=["y", "x"], sample=sample)
    graph.values["x"] = Value("x", "float32", (Dim("N"), 2))
    graph.values["y"] = Value("y", "bool", (Dim("N"),))
    graph.nodes = [Node("Odd", "odd", ("x",), ("y",))]
    extents: list[list[Extent]] = [[], []]
    weights = b""
    for group, arrays in zip(extents, (sample.inputs, sample.outputs), strict=True):
        for name, array in arrays.items():
            weights += bytes(aligned(len(weights)) - len(weights))
            group.append(Extent(name, graph.values[name].dtype, array.shape, len(weights), array.nbytes))
            weights += array.tobytes()
    return sealed(encode_graph(graph, ["x", "y"], Placement((), *map(tuple, extents))), weights)


X, Y = np.ones((3, 2), np.float32), np.array([True, False, True])


def test_a_sample_that_fits_is_read() -> None:
    sample = read_model(sampled(Sample({"x": X}, {"y": Y, "x": X}, 1e-5))).sample
    assert sample is not None
    assert (sample.inputs["x"].tolist(), sample.outputs["y"].tolist()) == (X.tolist(), Y.tolist())
    assert sample.tolerance == 1e-5


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (Sample({}, {"y": Y, "x": X}), "sample: input 'x' is missing"),
        (Sample({"x": X, "y": Y}, {"y": Y, "x": X}), "sample: input 'y' is unknown"),
        (Sample({"x": X}, {"y": Y}), "sample: output 'x' is missing"),
        (Sample({"x": X[:, :1]}, {"y": Y, "x": X}), r"input x: float32\(N, 2\) got shape \(3, 1\)"),
        (Sample({"x": X[0]}, {"y": Y, "x": X}), "got shape"),
        (Sample({"x": X}, {"y": Y[:2], "x": X}), r"output y: bool\(N,\) has shape \(2,\), expected \(3,\)"),
        (Sample({"x": X}, {"y": Y, "x": X}, math.nan), "tolerance nan"),
        (Sample({"x": X}, {"y": Y, "x": X}, math.inf), "tolerance inf"),
        (Sample({"x": X}, {"y": Y, "x": X}, -1e-9), "tolerance -1e-09"),
        (Sample({"x": X}, {"y": Y.view(np.uint8) * 2, "x": X}), "bool array 'y' holds bytes other than"),
    ],
)
def test_samples_that_do_not_fit(sample: Sample, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read_model(sampled(sample))


def test_there_is_at_most_one_sample_and_each_array_stands_once() -> None:
    data = sampled(Sample({"x": X}, {"y": Y, "x": X}))
    header = parse_header(data, len(data), Source("sampled"))
    section, weights = data[128 : 128 + header.graph_size], data[header.weights_offset :]
    changed = bytearray(section)
    array = fbs.Graph.GetRootAs(changed, 0).Samples(0).Outputs(0)._tab
    struct.pack_into("<I", changed, array.Pos + array.Offset(4), 0)
    assert "samples[0].outputs: 'x' stands 2 times" in refused(sealed(bytes(changed), weights))
    shape = bytearray(section)
    fbs.Graph.GetRootAs(shape, 0).Samples(0).Inputs(0).ShapeAsNumpy()[0] = -1
    assert "samples[0].inputs[0].shape: (-1, 2) of 'x'" in refused(sealed(bytes(shape), weights))
    fbs.Graph.GetRootAs(shape, 0).Samples(0).Inputs(0).ShapeAsNumpy()[0] = 2**61
    assert "have more than" in refused(sealed(bytes(shape), weights))


@pytest.mark.parametrize("find", [lambda root: root.OutputsAsNumpy(), lambda root: root.Nodes(0).InputsAsNumpy()])
def test_indices_out_of_range(find: Callable[[Any], Any]) -> None:
    section = bytearray(SECTION)
    find(fbs.Graph.GetRootAs(section, 0))[0] = 8
    assert "value 8 of 8" in refused(sealed(bytes(section)))


@pytest.mark.parametrize("count", [2**16, 2**28, 2**31, 2**32 - 1])
def test_huge_declared_counts_are_refused_before_anything_is_allocated(count: int) -> None:
    """Each vector length, offset and size in turn becomes huge."""
    for position in range(0, len(SECTION), 4):
        section = bytearray(SECTION)
        struct.pack_into("<I", section, position, count)
        refused_or_sound(sealed(bytes(section)))


def test_random_bytes_as_graph_section_with_a_right_hash() -> None:
    source = random.Random(7)
    for length in (0, 4, 8, 12, 100, 1000):
        for _ in range(50):
            section = source.randbytes(4) + b"RRM2" + source.randbytes(length)
            refused(sealed(section[: length + 8]))
            refused(sealed(source.randbytes(length)))
