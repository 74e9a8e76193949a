"""Bundles: what goes in comes out, parts must fit, and no damage gets through."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rerank_engine.errors import BundleError, ModelFileError, SpecError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_features import FeatureSpec
from rerank_sdk.bundle import Bundle, builtin_bundle, check_fit

PARTS = ("manifest.json", "model.rrm", "features.toml")


def repack(content: bytes, **changes: bytes | None) -> bytes:
    """The archive with some parts replaced or, for None, left out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name in PARTS:
            part = changes.get(name.split(".")[0], archive.read(name))
            if part is not None:
                out.writestr(name, part)
    return buffer.getvalue()


def manifest_of(content: bytes) -> dict:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return json.loads(archive.read("manifest.json"))


def read(folder: Path, content: bytes) -> Bundle:
    path = folder / "some.rrb"
    path.write_bytes(content)
    return Bundle.read(path)


def read_or_reason(folder: Path, content: bytes) -> Bundle | str:
    try:
        return read(folder, content)
    except BundleError as error:
        return str(error)


def test_what_is_saved_is_read(bundle, kit, tmp_path):
    facts = {"data": "made by hand", "lists": 3, "nested": {"ndcg10": 0.5}}
    made = Bundle.build("tiny ✓", kit.make_model(), kit.make_spec(), facts)
    made.save(tmp_path / "tiny.rrb")
    found = Bundle.read(str(tmp_path / "tiny.rrb"))
    assert found == made
    assert found.facts == facts
    assert found.spec() == kit.make_spec()
    assert found.model().content_hash == kit.make_model().content_hash
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.rrb"]


def test_equal_parts_give_equal_bytes(bundle, kit, tmp_path):
    again = Bundle.build("tiny", kit.make_model(), kit.make_spec())
    assert again.to_bytes() == bundle.to_bytes()
    assert read(tmp_path, bundle.to_bytes()).to_bytes() == bundle.to_bytes()
    assert Bundle.build("other", kit.make_model(), kit.make_spec()).to_bytes() != bundle.to_bytes()
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes())) as archive:
        assert tuple(archive.namelist()) == PARTS
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_file_has_the_rights_of_an_ordinary_file(bundle, tmp_path):
    bundle.save(tmp_path / "tiny.rrb")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "tiny.rrb").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_bundle_that_cannot_be_written_changes_nothing(bundle, tmp_path):
    (tmp_path / "folder.rrb").mkdir()
    for path in (tmp_path / "folder.rrb", tmp_path / "missing" / "tiny.rrb"):
        with pytest.raises(BundleError, match="cannot write bundle"):
            bundle.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.rrb"]
    bundle.save(tmp_path / "tiny.rrb")
    before = (tmp_path / "tiny.rrb").read_bytes()
    with pytest.raises(TypeError):
        Bundle(bundle.name, bundle.model_bytes, bundle.spec_text, {"a set": {1}}).save(tmp_path / "tiny.rrb")
    assert (tmp_path / "tiny.rrb").read_bytes() == before


def test_the_builtin_bundle_fits_itself():
    found = Bundle.read(builtin_bundle())
    check_fit(found.model(), found.spec())
    assert found.facts["data"].startswith("MovieLens-100K")


# --- damage ----------------------------------------------------------------------------------------------------


def test_no_flipped_byte_gets_through(bundle, tmp_path):
    """Each byte of a file: either it is refused, or it was one that says nothing about the parts."""
    content = bundle.to_bytes()
    harmless = 0
    for place in range(len(content)):
        for flip in (0x01, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= flip
            found = read_or_reason(tmp_path, bytes(damaged))
            if isinstance(found, str):
                assert "some.rrb" in found
            else:
                assert found == bundle
                harmless += 1
    # times, versions, attributes of the archive's entries
    assert harmless < 400


def test_no_truncation_gets_through(bundle, tmp_path):
    content = bundle.to_bytes()
    for length in range(0, len(content), 7):
        with pytest.raises(BundleError, match=r"some\.rrb"):
            read(tmp_path, content[:length])
    with pytest.raises(BundleError):
        read(tmp_path, content[:-1])


def test_random_damage_is_always_a_bundle_error(bundle, tmp_path):
    content, generator = bundle.to_bytes(), random.Random(5)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(generator.randint(2, 20)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        found = read_or_reason(tmp_path, bytes(damaged))
        assert isinstance(found, str) or found == bundle


@pytest.mark.parametrize("method", [1, 6, 9, 12, 14, 93, 99])
def test_other_methods_of_packing_are_refused(bundle, tmp_path, method):
    """Also those that Python would unpack: their errors are of many kinds."""
    content = bytearray(bundle.to_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] = method
            place = content.find(signature, place + 4)
    with pytest.raises(BundleError):
        read(tmp_path, bytes(content))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_whole_archive_of_another_method_is_refused(bundle, tmp_path, method):
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes())) as archive:
        parts = {name: archive.read(name) for name in PARTS}
    with zipfile.ZipFile(tmp_path / "some.rrb", "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(BundleError, match=rf"some\.rrb.*packed by method {method}, expected deflate"):
        Bundle.read(tmp_path / "some.rrb")


@pytest.mark.parametrize("part", ["manifest", "model", "features"])
def test_a_missing_part_is_named(bundle, tmp_path, part):
    with pytest.raises(BundleError, match=r"expected \['manifest.json', 'model.rrm', 'features.toml'\]"):
        read(tmp_path, repack(bundle.to_bytes(), **{part: None}))


def test_a_part_more_is_refused(bundle, tmp_path):
    buffer = io.BytesIO(bundle.to_bytes())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("../evil.py", "print()")
    with pytest.raises(BundleError, match=r"evil\.py"):
        read(tmp_path, buffer.getvalue())
    assert [file.name for file in tmp_path.iterdir()] == ["some.rrb"]


@pytest.mark.parametrize(("part", "name"), [("model", "model"), ("features", "feature spec")])
def test_a_changed_part_does_not_match_the_manifest(bundle, tmp_path, part, name):
    with pytest.raises(BundleError, match=f"the {name}'s hash does not match"):
        read(tmp_path, repack(bundle.to_bytes(), **{part: b'name = "other"\n'}))


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format_version": 1}',
        b'{"format_version": "1"}',
        b'{"format_version": 1, "name": "n", "model_sha256": 5, "features_sha256": null, "facts": {}}',
    ],
)
def test_a_wrong_manifest_is_refused(bundle, tmp_path, manifest):
    with pytest.raises(BundleError, match=r"some\.rrb"):
        read(tmp_path, repack(bundle.to_bytes(), manifest=manifest))


@pytest.mark.parametrize("facts", [None, 5, "text", [1, 2]])
def test_facts_must_be_an_object(bundle, tmp_path, facts):
    manifest = {**manifest_of(bundle.to_bytes()), "facts": facts}
    with pytest.raises(BundleError, match="damaged"):
        read(tmp_path, repack(bundle.to_bytes(), manifest=json.dumps(manifest).encode()))


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_format_version_asks_for_an_update(bundle, tmp_path, version):
    manifest = {**manifest_of(bundle.to_bytes()), "format_version": version}
    with pytest.raises(BundleError, match="this version reads 1: update rerank-sdk"):
        read(tmp_path, repack(bundle.to_bytes(), manifest=json.dumps(manifest).encode()))


def test_a_part_that_unpacks_to_too_much_is_refused(bundle, tmp_path):
    content = repack(bundle.to_bytes(), manifest=b" " * (1024 * 1024 + 1))
    with pytest.raises(BundleError, match=r"'manifest\.json' has 1048577 bytes, at most 1048576"):
        read(tmp_path, content)


def test_parts_are_verified_when_they_are_used(bundle):
    with pytest.raises(ModelFileError):
        Bundle("n", bundle.model_bytes[:-1], bundle.spec_text).model()
    with pytest.raises(SpecError):
        Bundle("n", bundle.model_bytes, "dense = 5").spec()


# --- fit -------------------------------------------------------------------------------------------------------


def model(name: str, shape: tuple, output: tuple = (Dim("N"), 1)) -> Model:
    graph = Graph("odd", inputs=[name], outputs=["score"])
    graph.values[name] = Value(name, "float32", shape)
    graph.values["score"] = Value("score", "float32", output)
    weight = graph.add_constant("w", np.ones((shape[-1], output[-1] if len(output) > 1 else 1), np.float32))
    graph.nodes = [Node("MatMul", "last", (name, weight), ("score",))]
    return Model(graph)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("dense", (Dim("N"), 4), r"'dense' with shape \(N, 4\).*'tiny' emits \('N', 5\)"),
        ("dense", (Dim("N"), 6), r"'dense' with shape \(N, 6\)"),
        ("dense", (Dim("N", 2), 5), r"'dense' with shape \(2\*N, 5\)"),
        ("embedding", (Dim("N"), 3), "no such array"),
        ("opened_mask", (9,), r"'opened_mask' with shape \(9,\)"),
    ],
)
def test_a_model_that_reads_what_the_spec_does_not_emit(kit, name, shape, message):
    with pytest.raises(BundleError, match=message):
        Bundle.build("bad", model(name, shape), kit.make_spec())


@pytest.mark.parametrize("output", [(Dim("N"), 2), (5, 1), (Dim("N", 2), 1), (Dim("N"), 1, 1)])
def test_a_model_must_give_one_score_a_candidate(kit, output):
    wrong = model("dense", (Dim("N"), 5))
    wrong.graph.values["score"] = Value("score", "float32", output)
    with pytest.raises(BundleError, match="one score a candidate"):
        check_fit(wrong, kit.make_spec())


def test_a_model_may_read_less_than_the_spec_emits(kit):
    spec = FeatureSpec(**{**kit.make_spec().model_dump(), "ids": [{"name": "id", "field": "item", "buckets": 10}]})
    check_fit(kit.make_model(), spec)
