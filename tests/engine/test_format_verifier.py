"""The verifier alone: its schema is that of model.fbs, and it finds each kind of broken structure."""

import re
import struct
from collections.abc import Callable
from importlib import resources

import flatbuffers
import numpy as np
import pytest

from rerank_engine.errors import ModelFileError
from rerank_engine.format.generated import model_generated as fbs
from rerank_engine.format.layout import Source
from rerank_engine.format.verifier import (
    MODEL_SCHEMA,
    Kind,
    Scalar,
    Schema,
    Table,
    Text,
    Union,
    Vector,
    verify_buffer,
)

SOURCE = Source("test")
WIDTHS = {"uint16": 2, "uint32": 4, "uint64": 8, "int64": 8, "float64": 8, "DType": 1, "OutOfRange": 1}


def parsed_schema() -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """Tables and unions of model.fbs as text."""
    text = resources.files("rerank_engine.format").joinpath("model.fbs").read_text()
    text = re.sub(r"//.*", "", text)
    tables = {
        name: dict(re.findall(r"(\w+)\s*:\s*(\[?\w+\]?)", body))
        for name, body in re.findall(r"table\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL)
    }
    unions = {
        name: re.findall(r"\w+", body) for name, body in re.findall(r"union\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL)
    }
    return tables, unions


def described(kind: Kind, declared: str, unions: dict[str, list[str]]) -> bool:
    """Whether the verifier's kind says what the schema's type says."""
    if declared.startswith("["):
        return isinstance(kind, Vector) and described(kind.of, declared[1:-1], unions)
    if declared == "bool":
        return kind == Scalar(1, largest=1)
    if declared in WIDTHS:
        return kind == Scalar(WIDTHS[declared])
    if declared == "string":
        return kind == Text()
    if declared in unions:
        return kind == Union(tuple(unions[declared]))
    return kind == Table(declared)


def test_the_verifier_has_the_schema_of_the_file() -> None:
    tables, unions = parsed_schema()
    assert tables.keys() == MODEL_SCHEMA.keys()
    for name, fields in tables.items():
        assert list(fields) == list(MODEL_SCHEMA[name]), name
        for field, declared in fields.items():
            assert described(MODEL_SCHEMA[name][field], declared, unions), f"{name}.{field}: {declared}"


class SlotRecorder:
    """Stands for a builder and notes which slot an Add function fills."""

    slots: list[int]

    def __init__(self) -> None:
        self.slots = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert name.startswith("Prepend")
        return lambda slot, *rest: self.slots.append(slot)


def test_the_generated_code_has_the_schema_of_the_file() -> None:
    _, unions = parsed_schema()
    for name, fields in MODEL_SCHEMA.items():
        recorder = SlotRecorder()
        for field, kind in fields.items():
            camel = "".join(word.capitalize() for word in field.split("_"))
            if isinstance(kind, Union):
                getattr(fbs, f"{name}Add{camel}Type")(recorder, 1)
            getattr(fbs, f"{name}Add{camel}")(recorder, 1)
        assert recorder.slots == list(range(len(recorder.slots))), name
    for name, members in unions.items():
        assert [getattr(getattr(fbs, name), member) for member in members] == list(range(1, len(members) + 1))


TOY: Schema = {
    "Root": {
        "label": Text(),
        "flag": Scalar(1, largest=1),
        "numbers": Vector(Scalar(8)),
        "children": Vector(Table("Leaf")),
    },
    "Leaf": {"word": Text()},
    "Chain": {"next": Vector(Table("Chain"))},
    "Parent": {"only": Table("Leaf")},
}


def verify(buffer: bytes, root: str = "Root", **options: bool) -> None:
    verify_buffer(buffer, SOURCE, schema=TOY, root=root, identifier=b"TOY0", **options)


def refused(buffer: bytes, root: str = "Root") -> str:
    with pytest.raises(ModelFileError) as error:
        verify(buffer, root)
    return str(error.value)


def table(builder: flatbuffers.Builder, *references: int) -> int:
    builder.StartObject(len(references))
    for slot, reference in enumerate(references):
        builder.PrependUOffsetTRelativeSlot(slot, reference, 0)
    return builder.EndObject()


def vector(builder: flatbuffers.Builder, references: list[int]) -> int:
    builder.StartVector(4, len(references), 4)
    for reference in reversed(references):
        builder.PrependUOffsetTRelative(reference)
    return builder.EndVector()


def finished(builder: flatbuffers.Builder, root: int) -> bytes:
    builder.Finish(root, file_identifier=b"TOY0")
    return bytes(builder.Output())


def toy(label: bytes = b"abc", extra_slots: int = 0, without: int | None = None, shared: int = 0) -> bytes:
    builder = flatbuffers.Builder(256)
    leaves = [table(builder, builder.CreateString(word)) for word in ("left", "right")]
    children = vector(builder, leaves + leaves[:1] * shared)
    numbers = builder.CreateNumpyVector(np.array([1, 2], np.int64))
    text = builder.CreateString(label)
    builder.ForceDefaults(True)
    builder.StartObject(4 + extra_slots)
    for slot, reference in ((0, text), (2, numbers), (3, children)):
        if slot != without:
            builder.PrependUOffsetTRelativeSlot(slot, reference, 0)
    if without != 1:
        builder.PrependBoolSlot(1, True, False)
    for slot in range(4, 4 + extra_slots):
        builder.PrependInt64Slot(slot, 1, 0)
    return finished(builder, builder.EndObject())


def edited(buffer: bytes, position: int, code: str, value: int) -> bytes:
    data = bytearray(buffer)
    struct.pack_into(code, data, position, value)
    return bytes(data)


def root_of(buffer: bytes) -> flatbuffers.table.Table:
    return flatbuffers.table.Table(buffer, struct.unpack_from("<I", buffer)[0])


def slot_of(buffer: bytes, slot: int) -> int:
    """Position of a field's bytes in the root table."""
    root = root_of(buffer)
    return root.Pos + root.Offset(4 + 2 * slot)


def target_of(buffer: bytes, slot: int) -> int:
    at = slot_of(buffer, slot)
    return at + struct.unpack_from("<I", buffer, at)[0]


def vtable_of(buffer: bytes) -> int:
    position = root_of(buffer).Pos
    return position - struct.unpack_from("<i", buffer, position)[0]


def test_a_sound_buffer_passes() -> None:
    verify(toy())
    verify(toy(b""))
    verify(toy("Größe".encode()))


@pytest.mark.parametrize("slot", [0, 1, 2, 3])
def test_every_field_is_required(slot: int) -> None:
    assert f"{list(TOY['Root'])[slot]}: required, but absent" in refused(toy(without=slot))


def test_fields_behind_the_known_ones_belong_to_newer_minor_versions() -> None:
    assert "6 fields, expected 4" in refused(toy(extra_slots=2))
    verify(toy(extra_slots=2), unknown_fields=True)


def test_shared_objects_cannot_multiply_the_work() -> None:
    assert "objects overlap" in refused(toy(shared=100))


@pytest.mark.parametrize(
    ("label", "problem"),
    [(b"\xff\xfe", "not UTF-8"), (b"ab\xc3", "not UTF-8"), (b"\xed\xa0\x80", "not UTF-8")],
)
def test_texts_are_utf8(label: bytes, problem: str) -> None:
    assert f"label: text is {problem}" in refused(toy(label))


def test_texts_end_in_nul() -> None:
    buffer = toy()
    assert "without its closing NUL" in refused(edited(buffer, target_of(buffer, 0) + 4 + 3, "<B", 1))


def test_bools_are_zero_or_one() -> None:
    buffer = toy()
    assert "flag: 2, expected at most 1" in refused(edited(buffer, slot_of(buffer, 1), "<B", 2))


@pytest.mark.parametrize("slot", [0, 2, 3])
@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 2**29, 1000])
def test_counts_stay_inside(slot: int, count: int) -> None:
    buffer = toy()
    assert "of a section of" in refused(edited(buffer, target_of(buffer, slot), "<I", count))


@pytest.mark.parametrize("slot", [0, 2, 3])
@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (0, "null reference"),
        (2**32 - 4, "of a section of"),
        (2**20, "of a section of"),
        (5, "aligned|of a section"),
    ],
)
def test_references_stay_inside(slot: int, offset: int, problem: str) -> None:
    buffer = toy()
    assert re.search(problem, refused(edited(buffer, slot_of(buffer, slot), "<I", offset)))


def test_elements_are_aligned() -> None:
    buffer = toy()
    shift = edited(buffer, slot_of(buffer, 2), "<I", target_of(buffer, 2) - slot_of(buffer, 2) + 4)
    shift = edited(shift, target_of(buffer, 2) + 4, "<I", 1)
    assert "8-byte aligned" in refused(shift)


@pytest.mark.parametrize(
    ("size", "problem"),
    [(2, "vtable of 2 bytes"), (0, "vtable of 0"), (7, "vtable of 7"), (65534, "section of")],
)
def test_vtable_sizes(size: int, problem: str) -> None:
    buffer = toy()
    assert problem in refused(edited(buffer, vtable_of(buffer), "<H", size))


@pytest.mark.parametrize(
    ("size", "problem"),
    [(0, "table of 0 bytes"), (3, "table of 3 bytes"), (4, "of a table of 4"), (65535, "section of")],
)
def test_table_sizes(size: int, problem: str) -> None:
    buffer = toy()
    assert problem in refused(edited(buffer, vtable_of(buffer) + 2, "<H", size))


@pytest.mark.parametrize(
    ("offset", "problem"),
    [(1, "of a table of"), (3, "of a table of"), (65535, "of a table of"), (5, "4-byte aligned")],
)
def test_slots_stay_in_their_table(offset: int, problem: str) -> None:
    buffer = toy()
    assert problem in refused(edited(buffer, vtable_of(buffer) + 4, "<H", offset))


@pytest.mark.parametrize("distance", [2**31 - 1, -(2**31), 10_000, -10_000])
def test_vtables_stay_inside(distance: int) -> None:
    buffer = toy()
    assert "(vtable)" in refused(edited(buffer, root_of(buffer).Pos, "<i", distance))


@pytest.mark.parametrize("buffer", [b"", b"TOY0", bytes(7)])
def test_buffers_without_a_root(buffer: bytes) -> None:
    assert "root: bytes 0 to 8" in refused(buffer)


def test_roots() -> None:
    buffer = toy()
    assert "root: identifier b'RRM1'" in refused(buffer[:4] + b"RRM1" + buffer[8:])
    assert "root: null reference" in refused(edited(buffer, 0, "<I", 0))
    assert "root: bytes" in refused(edited(buffer, 0, "<I", 2**32 - 1))


def chain(depth: int) -> bytes:
    builder = flatbuffers.Builder(256)
    reference = table(builder, vector(builder, []))
    for _ in range(depth - 1):
        reference = table(builder, vector(builder, [reference]))
    return finished(builder, reference)


def test_nesting_is_bounded() -> None:
    verify(chain(16), "Chain")
    assert "nested deeper than 16" in refused(chain(17), "Chain")
    assert "nested deeper than 16" in refused(chain(5000), "Chain")


def test_the_number_of_tables_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank_engine.format.verifier.MAX_TABLES", 2)
    assert "more than 2 tables" in refused(toy())


def test_a_single_table_as_field() -> None:
    builder = flatbuffers.Builder(64)
    buffer = finished(builder, table(builder, table(builder, builder.CreateString("word"))))
    verify(buffer, "Parent")
    broken = edited(buffer, slot_of(buffer, 0), "<I", 0)
    assert "only: null reference" in refused(broken, "Parent")
