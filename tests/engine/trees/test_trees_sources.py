"""Which framework a source is of, the UBJSON parser, and damaged sources: only typed errors, and quickly."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees import detect, import_lightgbm, import_xgboost
from rerank_engine.importers.trees.ubjson import parse_ubjson


def _models() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    features = random.standard_normal((300, 3))
    features[:, 2] = random.integers(0, 40, 300)
    target = features[:, 0] + (features[:, 2] % 3 == 0)
    dataset = lightgbm.Dataset(features, target, categorical_feature=[2])
    quiet = {"verbose": -1, "num_threads": 1, "num_leaves": 6, "min_data_per_group": 5}
    light = lightgbm.train({"objective": "regression", "linear_tree": True, **quiet}, dataset, 3)
    matrix = xgboost.DMatrix(features, target, feature_types=["q", "q", "c"], enable_categorical=True)
    extreme = xgboost.train({"max_depth": 3, "max_cat_to_onehot": 1, "nthread": 1}, matrix, 2)
    return {
        "text": light.model_to_string().encode(),
        "dump": json.dumps(light.dump_model()).encode(),
        "json": bytes(extreme.save_raw("json")),
        "ubj": bytes(extreme.save_raw("ubj")),
    }


MODELS = _models()
FRAMEWORKS = {"text": "lightgbm", "dump": "lightgbm", "json": "xgboost", "ubj": "xgboost"}
IMPORTERS: dict[str, Callable[[Any], Any]] = {"lightgbm": import_lightgbm, "xgboost": import_xgboost}


@pytest.mark.parametrize("form", list(MODELS))
def test_detection_by_content(form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(MODELS[form])
    assert detect(path) == detect(str(path)) == detect(MODELS[form]) == FRAMEWORKS[form]


def test_detection_of_objects_and_of_other_things(tmp_path: Path) -> None:
    assert detect(MODELS["text"].decode()) == "lightgbm"
    assert detect(json.loads(MODELS["dump"])) == "lightgbm"
    assert detect(json.loads(MODELS["json"])) == "xgboost"
    assert detect(lightgbm.LGBMRanker()) == "lightgbm"
    assert detect(xgboost.XGBRanker()) == "xgboost"
    assert detect(b"binf") == "xgboost"
    (tmp_path / "other.json").write_text('{"a": {"learner": 1}}')
    nothings: list[Any] = [b"", b"{}", b"\x08\x07", b"[1]", 3, None, {}, tmp_path, tmp_path / "missing", "no\0name"]
    for other in [*nothings, tmp_path / "other.json", b"treeline"]:
        assert detect(other) is None, other


def test_a_pretty_printed_model_with_sorted_keys_is_found() -> None:
    assert detect(json.dumps(json.loads(MODELS["json"]), indent=4, sort_keys=True).encode()) == "xgboost"
    assert detect(json.dumps(json.loads(MODELS["dump"]), indent=1, sort_keys=True).encode()) == "lightgbm"


# --- UBJSON ------------------------------------------------------------------------------------------------------


def test_ubjson_of_every_kind() -> None:
    document = (
        b"{i\x01aZ" + b"U\x01bT" + b"U\x01cF" + b"U\x01di\xff" + b"U\x01eU\xff" + b"U\x01fI\xff\xff"
        b"U\x01gl\x80\x00\x00\x00"
        + b"U\x01hL"
        + struct.pack(">q", -5)
        + b"U\x01jd"
        + struct.pack(">f", 0.5)
        + b"U\x01kD"
        + struct.pack(">d", 0.1)
        + b"U\x01lCx"
        + b"U\x01mSU\x02\xc3\xa9"
        + b"U\x01n[NT[]N]"
        + b"U\x01o[#U\x02TF"
        + b"U\x01p[$d#U\x02"
        + struct.pack(">ff", 1, 2)
        + b"U\x01q{$U#U\x01U\x01z\x07"
        + b"}"
    )
    found = parse_ubjson(document)
    assert found.pop("p").tolist() == [1.0, 2.0]
    assert found == {
        "a": None, "b": True, "c": False, "d": -1, "e": 255, "f": -1, "g": -(2**31), "h": -5, "j": 0.5, "k": 0.1,
        "l": "x", "m": "é", "n": [True, []], "o": [True, False], "q": {"z": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected"),
        (b"{U\x01a", "expected"),
        (b"TT", "follows the end"),
        (b"?", "unknown marker"),
        (b"[$d#L" + struct.pack(">q", 2**60), "are left"),
        (b"[$d#L" + struct.pack(">q", -1), "negative length"),
        (b"[$T#L" + struct.pack(">q", 2**60), "has no bytes"),
        (b"[#L" + struct.pack(">q", 2**60), "are left"),
        (b"[$d" + b"U", "no count"),
        (b"SL" + struct.pack(">q", 2**62), "are left"),
        (b"SU\x01\xff", "not UTF-8"),
        (b"Sd\x00\x00\x00\x00", "where a length is expected"),
        (b"[" * 100_000, "nested deeper"),
        (b"{U\x01aTU\x01aT}", "occurs twice"),
        (b"N" * 1000, "expected"),
    ],
)
def test_ubjson_that_is_damaged(data: bytes, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        parse_ubjson(data)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=300)
def test_ubjson_of_anything(data: bytes) -> None:
    try:
        parse_ubjson(data)
    except ConversionError as error:
        assert "UBJSON" in str(error)  # noqa: PT017  (most inputs raise, some do not)


# --- damage ------------------------------------------------------------------------------------------------------


def damage(data: bytes, random: np.random.Generator) -> bytes:
    """Cut, flip, repeat, drop or replace some bytes."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        at, size = int(random.integers(len(changed))), int(random.integers(1, 30))
        kind = int(random.integers(6))
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at] ^= 1 << int(random.integers(8))
        elif kind == 2:
            changed[at:at] = changed[at : at + size]
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at : at + 1] = bytes([random.choice(list(b'0123456789-.eE{}[]":,\n =\xff'))])
        else:
            numbers = [b"-1", b"4294967296", b"1e999", b"nan", b"99999999999999999999", b"0", b"null", b"[]"]
            changed[at : at + size] = numbers[int(random.integers(len(numbers)))]
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("form", list(MODELS))
def test_damaged_models_raise_typed_errors_or_are_read(form: str) -> None:
    random = np.random.default_rng(11)
    refused = 0
    for _ in range(400):
        changed = damage(MODELS[form], random)
        detect(changed)
        try:
            graph = IMPORTERS[FRAMEWORKS[form]](changed)
        except ConversionError:
            refused += 1
        else:
            graph.verify()
    assert refused > 100


@pytest.mark.parametrize("form", ["text", "ubj"])
def test_every_start_of_a_model_is_refused(form: str) -> None:
    whole = MODELS[form] if form == "ubj" else MODELS[form].partition(b"\nend of trees")[0]
    for size in range(0, len(whole), 37):
        with pytest.raises(ConversionError):
            IMPORTERS[FRAMEWORKS[form]](whole[:size])
