"""Damaged and hostile files: each is refused with ModelFileError, or reads as a graph that is sound."""

import hashlib
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
from rerank_engine.format.decoder import Extent
from rerank_engine.format.encoder import encode_graph
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.layout import (
    HEADER_SIZE,
    Header,
    Source,
    aligned,
    layout,
    pack_header,
    parse_header,
)
from rerank_engine.graph import Dim, Graph, Node, Value

ORDER = ["x", "w", "b", "h", "mask", "ids", "none", "y"]


def small_graph() -> Graph:
    graph = Graph("small", inputs=["x"], outputs=["y"], metadata={"source": "onnx", "opset": "18"})
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


DATA = model_bytes(small_graph())
HEADER = parse_header(DATA, len(DATA), Source("DATA"))
SECTION = DATA[HEADER.graph_offset : HEADER.graph_offset + HEADER.graph_size]
WEIGHTS = DATA[HEADER.weights_offset :]


def sealed(section: bytes, weights: bytes = WEIGHTS, **changes: int) -> bytes:
    """A file around a section, with right lengths and hashes, so that only the section's checks are left."""
    body = section + bytes(aligned(HEADER_SIZE + len(section)) - HEADER_SIZE - len(section)) + weights
    header = layout(len(section), len(weights), hashlib.sha256(body).digest())
    return pack_header(Header(**(vars(header) | changes))) + body


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
    extents = [Extent("w", 0, 24), Extent("b", 64, 8), Extent("mask", 128, 2)]
    extents += [Extent("ids", 192, 16), Extent("none", 256, 0)]
    assert encode_graph(small_graph(), ORDER, extents) == SECTION
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
        (8, "<H", 2, "format version 2.0 is newer than .* update rerank-sdk"),
        (8, "<H", 0, "format version 0.0 is older than .* convert the source model again"),
        (16, "<Q", 64, "graph_offset is 64"),
        (16, "<Q", 2**64 - 1, "graph_offset"),
        (24, "<Q", 2**64 - 1, "section GRAPH has"),
        (24, "<Q", 2**26 + 1, "section GRAPH has"),
        (24, "<Q", 0, "weights_offset"),
        (32, "<Q", HEADER.weights_offset + 64, "weights_offset"),
        (32, "<Q", HEADER.weights_offset + 1, "weights_offset"),
        (40, "<Q", 2**63, "file_size"),
        (48, "<Q", 2**63, "declares"),
        (56, "<Q", 1, "SHA-256"),
        (88, "<B", 1, "reserved bytes"),
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
    start = bytearray(DATA[:8] + struct.pack("<HHI", 2, 3, 256) + DATA[16:124] + bytes(128))
    data = bytes(start) + struct.pack("<I", zlib.crc32(start)) + DATA[HEADER_SIZE:]
    assert "format version 2.3 is newer" in refused(data)
    damaged = bytearray(data)
    damaged[200] ^= 1
    assert "checksum" in refused(bytes(damaged))


def test_a_header_size_of_another_length_in_this_version_is_refused() -> None:
    start = bytearray(DATA[:8] + struct.pack("<HHI", 1, 0, 256) + DATA[16:124] + bytes(128))
    assert "header size 256" in refused(bytes(start) + struct.pack("<I", zlib.crc32(start)) + DATA[HEADER_SIZE:])


def test_a_newer_minor_version_is_read() -> None:
    data = sealed(SECTION, minor_version=7)
    assert model_bytes(read_model(data)) == DATA


def test_padding_must_be_zero() -> None:
    data = bytearray(sealed(SECTION + bytes(8)))
    data[HEADER_SIZE + len(SECTION) + 8] = 1
    assert "padding" in refused(bytes(data), verify_hash=False)


def test_bool_constants_hold_only_zero_and_one() -> None:
    weights = bytearray(WEIGHTS)
    weights[128] = 2
    assert "section WEIGHTS: bool constant 'mask'" in refused(sealed(SECTION, bytes(weights)))


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
    ("extent", "problem"),
    [
        (Extent("b", 32, 8), "not 64-byte aligned"),
        (Extent("b", 0, 8), "'w' and 'b' overlap|'b' and 'w' overlap"),
        (Extent("b", 256, 8), "bytes 256 to 264 of 208"),
        (Extent("b", 2**64 - 64, 8), "of 208 in WEIGHTS"),
        (Extent("b", 64, 4), "has 4 bytes, expected 8"),
        (Extent("b", 64, 2**64 - 1), "expected 8"),
        (Extent("w", 64, 24), "'w' stands 2 times"),
        (Extent("x", 64, 12), "has no fixed shape"),
    ],
)
def test_constants_outside_of_their_place(extent: Extent, problem: str) -> None:
    section = encode_graph(small_graph(), ORDER, [Extent("w", 0, 24), extent])
    with pytest.raises(ModelFileError, match=problem):
        read_model(sealed(section, WEIGHTS[:208]))


def test_a_declared_constant_without_bytes_is_refused() -> None:
    section = encode_graph(small_graph(), ORDER, [Extent("w", 0, 24)])
    assert "reads 'b' before anything makes it" in refused(sealed(section, WEIGHTS[:24]))


def metadata_twice() -> bytes:
    graph = small_graph()
    graph.metadata = {"source": "a", "target": "b"}
    return encode_graph(graph, ORDER, []).replace(b"target\0", b"source\0")


def test_names_that_stand_twice() -> None:
    graph = small_graph()
    graph.values["b"] = Value("w", "float32", (2,))
    assert "'w' stands 2 times" in refused(sealed(encode_graph(graph, ORDER, [])))
    assert "nodes[1].attributes: a name stands twice" in refused(sealed(SECTION.replace(b"flags\0", b"names\0")))
    assert "metadata: 'source' stands 2 times" in refused(sealed(metadata_twice()))


@pytest.mark.parametrize(
    ("find", "field", "code", "value", "problem"),
    [
        (lambda root: root.Values(1), 6, "<B", 9, r"values\[1\].dtype: code 9 of 'w'"),
        (lambda root: root.Values(1), 6, "<B", 0, r"values\[1\].dtype: code 0"),
        (lambda root: root.Nodes(0), 6, "<H", 2, "version 2 of operator Gemm, .* knows version 1"),
        (lambda root: root.Constants(0), 4, "<I", 99, r"constants\[0\]: value 99 of 8"),
        (lambda root: root.Constants(0), 4, "<I", 2**32 - 1, "value 4294967295 of 8"),
        (lambda root: root.Values(1).Shape(0), None, "<q", -3, r"values\[1\].shape\[0\]: fixed .* size -3"),
        (lambda root: root.Values(1).Shape(0), None, "<q", 2**62, "more than"),
        (lambda root: root.Values(0).Shape(0), None, "<qII", (0, 1, 7), "dimension name 7 of 1"),
        (
            lambda root: root.Values(0).Shape(0),
            None,
            "<qII",
            (0, 0, 1),
            "named dimension with size 0 and scale 0",
        ),
        (lambda root: root.Values(0).Shape(0), None, "<qII", (5, 1, 1), "named dimension with size 5"),
        (
            lambda root: root.Values(0).Shape(1),
            None,
            "<qII",
            (3, 2, 0),
            "fixed dimension with size 3 and scale 2",
        ),
        (lambda root: root.Values(0).Shape(1), None, "<qII", (0, 1, 1), "only the first dimension"),
    ],
)
def test_fields_whose_meaning_is_wrong(
    find: Callable[[Any], Any], field: int | None, code: str, value: int | tuple[int, ...], problem: str
) -> None:
    section = bytearray(SECTION)
    table = find(fbs.Graph.GetRootAs(section, 0))._tab
    position = table.Pos if field is None else table.Pos + table.Offset(field)
    struct.pack_into(code, section, position, *(value if isinstance(value, tuple) else (value,)))
    with pytest.raises(ModelFileError, match=problem):
        read_model(sealed(bytes(section)))


@pytest.mark.parametrize("vector", ["Inputs", "Outputs"])
@pytest.mark.parametrize("owner", ["graph", "node"])
def test_indices_out_of_range(vector: str, owner: str) -> None:
    section = bytearray(SECTION)
    root = fbs.Graph.GetRootAs(section, 0)
    indices = getattr(root if owner == "graph" else root.Nodes(0), f"{vector}AsNumpy")()
    indices[0] = 8
    assert "value 8 of 8" in refused(sealed(bytes(section)))


@pytest.mark.parametrize("count", [2**16, 2**28, 2**31, 2**32 - 1])
def test_huge_declared_counts_are_refused_before_anything_is_allocated(count: int) -> None:
    """Each vector length, offset and size in turn becomes huge."""
    for position in range(0, len(SECTION), 4):
        section = bytearray(SECTION)
        struct.pack_into("<I", section, position, count)
        refused_or_sound(sealed(bytes(section)))


def mutated(section: bytes, source: random.Random) -> bytes:
    """One to four random edits of the kinds that offsets, counts and texts suffer from."""
    data = bytearray(section)
    words = (0, 1, 2, 3, 4, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF, len(data), len(data) - 4)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(0, len(data) - 16)
        match source.randrange(7):
            case 0:
                data[at] = source.randrange(256)
            case 1:
                data[at] ^= 1 << source.randrange(8)
            case 2:
                struct.pack_into("<I", data, at & ~3, source.choice(words))
            case 3:
                struct.pack_into("<H", data, at & ~1, source.choice(words) & 0xFFFF)
            case 4:
                (word,) = struct.unpack_from("<I", data, at & ~3)
                struct.pack_into("<I", data, at & ~3, (word + source.randint(-16, 16)) & 0xFFFFFFFF)
            case 5:
                other = source.randrange(0, len(data) - 16)
                data[at : at + 16] = data[other : other + 16]
            case 6:
                if source.random() < 0.3:
                    del data[source.randrange(len(data) // 2, len(data)) :]
                else:
                    data += source.randbytes(source.randint(1, 32))
    return bytes(data)


def test_mutations_of_the_graph_section_with_a_right_hash() -> None:
    source = random.Random(20240229)
    read = sum(refused_or_sound(sealed(mutated(SECTION, source))) for _ in range(5000))
    # Both outcomes happen often, so the mutations reach the depth of the checks.
    assert 100 < read < 4000


def test_random_bytes_as_graph_section_with_a_right_hash() -> None:
    source = random.Random(7)
    for length in (0, 4, 8, 12, 100, 1000):
        for _ in range(50):
            section = source.randbytes(4) + b"RRM1" + source.randbytes(length)
            refused(sealed(section[: length + 8]))
            refused(sealed(source.randbytes(length)))
