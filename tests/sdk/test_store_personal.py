"""What is learnt about a user, remembered items, and the export of all of it."""

from __future__ import annotations

import base64
import json
import sqlite3

import numpy as np
import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event, Item
from rerank_sdk.store import EventStore, Example, StoredPatch
from rerank_sdk.store.rows import check_id


@pytest.fixture
def store(tmp_path):
    with EventStore.open(tmp_path / "events.db", examples_per_user=4, items_limit=5) as opened:
        yield opened


def example(item="i1", *, user="u1", request="r1", time_ms=0, label=1.0, features=(0.5,), base_model="m1"):
    return Example(user, request, item, time_ms, label, np.array(features), base_model)


def fields(found):
    return [(one.request, one.item, one.time_ms, one.label, one.features.tolist(), one.base_model) for one in found]


def test_an_example_copies_and_protects_its_features():
    row = np.array([1.0, 2.0], dtype=np.float64)
    made = Example("u", "r", "i", 0, True, row, "m")
    row[0] = 9.0
    assert made.features.tolist() == [1.0, 2.0]
    assert made.features.dtype == np.float32
    assert made.label == 1.0
    with pytest.raises(ValueError, match="read-only"):
        made.features[0] = 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": ""}, "user"),
        ({"item": 7}, "item"),
        ({"request": "r" * 1_025}, "request: expected at most 1024 bytes, got 1025"),
        ({"base_model": "\ud800"}, "base_model"),
        ({"time_ms": -1}, "time_ms"),
        ({"label": float("nan")}, "label"),
        ({"label": "1"}, "label"),
        ({"label": None}, "label"),
        ({"features": [[1.0]]}, r"shape \(1, 1\)"),
        ({"features": [np.inf]}, "NaN or infinity"),
        ({"features": [1e300]}, "NaN or infinity"),
        ({"features": ["x"]}, "features"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_wrong_example_is_refused(change, message):
    good = {
        "user": "u",
        "request": "r",
        "item": "i",
        "time_ms": 0,
        "label": 1.0,
        "features": [1.0],
        "base_model": "m",
    }
    with pytest.raises(InputError, match=message):
        Example(**{**good, **change})


def test_the_newest_examples_are_kept_by_time_not_by_arrival(store):
    store.save_examples([example(f"i{n}", time_ms=10 - n) for n in range(6)])
    assert [one.item for one in store.load_examples("u1")] == ["i3", "i2", "i1", "i0"]
    store.append_example(example("old", time_ms=1))
    assert [one.item for one in store.load_examples("u1")] == ["i3", "i2", "i1", "i0"]
    store.append_example(example("other", user="u2"))
    assert [one.item for one in store.load_examples("u2")] == ["other"]


def test_a_later_label_replaces_the_earlier_one(store):
    store.append_example(example(label=0.0))
    store.flush()
    store.append_example(example(label=1.0, features=(1.0, 2.0)))
    store.append_example(example("i2", base_model="m2"))
    assert [one[:4] for one in fields(store.load_examples("u1"))] == [("r1", "i1", 0, 1.0), ("r1", "i2", 0, 1.0)]
    assert [one.item for one in store.load_examples("u1", base_model="m2")] == ["i2"]


def test_features_survive_bit_for_bit(tmp_path):
    row = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    row[:2] = np.float32(1e-45), np.finfo(np.float32).max
    with EventStore.open(tmp_path / "events.db") as store:
        store.append_example(example(features=row))
    with EventStore.open(tmp_path / "events.db") as store:
        assert store.load_examples("u1")[0].features.tobytes() == row.tobytes()


def test_the_three_newest_patches_are_kept(store):
    for version in (1, 2, 5, 7):
        store.save_patch("u1", bytes([version]), version=version, base_model="m", created_ms=version)
    assert store.patch_versions("u1") == [2, 5, 7]
    assert store.load_patch("u1") == StoredPatch(b"\x07", 7, "m", 7)
    assert store.load_patch("u1", version=5) == StoredPatch(b"\x05", 5, "m", 5)
    assert store.load_patch("u1", version=1) is None
    assert store.load_patch("u2") is None
    assert store.users() == ["u1"]


def test_what_is_no_longer_kept_is_gone_from_the_file(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path, examples_per_user=2, items_limit=2) as store:
        for n in range(6):
            store.save_patch("u1", b"p", version=n, base_model="m", created_ms=n)
            store.append_example(example(f"i{n}", time_ms=n))
            store.save_items([(f"i{n}", b"{}")])
    connection = sqlite3.connect(path)
    counts = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("patches", "examples", "remembered_items")
    }
    connection.close()
    assert counts == {"patches": 3, "examples": 2, "remembered_items": 2}


def test_the_newest_patch_may_be_replaced_an_older_one_may_not_come(store):
    store.save_patch("u1", b"a", version=3, base_model="m", created_ms=0)
    store.save_patch("u1", b"b", version=3, base_model="n", created_ms=1)
    assert store.load_patch("u1") == StoredPatch(b"b", 3, "n", 1)
    with pytest.raises(StoreError, match="version 2 is older than version 3"):
        store.save_patch("u1", b"c", version=2, base_model="m", created_ms=2)
    assert store.patch_versions("u1") == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": ""}, "user"),
        ({"patch": "text"}, "patch"),
        ({"version": -1}, "version"),
        ({"version": 1 << 63}, "version"),
        ({"version": True}, "version"),
        ({"base_model": None}, "base_model"),
        ({"created_ms": 0.5}, "created_ms"),
    ],
)
def test_a_wrong_patch_is_refused(store, change, message):
    good = {"user": "u1", "patch": b"", "version": 1, "base_model": "m", "created_ms": 0}
    with pytest.raises(InputError, match=message):
        store.save_patch(**{**good, **change})
    assert store.users() == []


def test_items_are_replaced_when_they_change_and_bounded(store):
    store.save_items([(f"i{n}", b"{}") for n in range(4)])
    store.save_items([("i1", b'{"a":1}')])
    store.save_items([("i1", b'{"a":1}'), ("i0", b"{}")])
    assert store.load_items() == {"i0": b"{}", "i1": b'{"a":1}', "i2": b"{}", "i3": b"{}"}
    store.save_items([(f"new{n}", b"{}") for n in range(3)])
    assert list(store.load_items()) == ["i2", "i3", "new0", "new1", "new2"]
    store.save_items([("i0", b'{"back":true}')])
    assert "i0" in store.load_items()


def test_wrong_items_and_examples_are_refused_as_a_whole(store):
    with pytest.raises(InputError, match="bytes"):
        store.save_items([("i1", b"{}"), ("i2", "{}")])
    with pytest.raises(InputError, match="item"):
        store.save_items([("", b"{}")])
    with pytest.raises(InputError, match="Example"):
        store.save_examples([example(), None])
    assert store.load_items() == {}
    assert store.load_examples("u1") == []


def test_an_export_is_json_and_gives_everything_back(store):
    events = [
        Event(user="u1", item="ï", kind="dwell", time_ms=5, value=1.5, attributes={"ok": True, "n": 2, "s": "é"}),
        Event(user="u1", item="i2", kind="click", time_ms=6, position=3, request="r1", id="e"),
    ]
    store.append_many([*events, Event(user="u2", item="i2", kind="click", time_ms=6)])
    store.append_example(example(features=(0.1, 0.2)))
    store.save_patch("u1", b"\x00\xff", version=1, base_model="m", created_ms=9)
    export = json.loads(json.dumps(store.export("u1"), allow_nan=False))
    assert set(export) == {"user", "events", "examples", "patches"}
    given = [{name: value for name, value in one.items() if value is not None} for one in export["events"]]
    assert [Event(**one) for one in given] == events
    (one,) = export["examples"]
    again = Example(export["user"], **one)
    assert fields([again]) == fields(store.load_examples("u1"))
    (patch,) = export["patches"]
    patch["patch"] = base64.b64decode(patch["patch"])
    assert StoredPatch(**patch) == store.load_patch("u1")
    nobody = store.export("nobody")
    assert not any(value for part, value in nobody.items() if part != "user")


def test_an_id_is_measured_in_bytes():
    assert check_id("user", "é" * 512) == "é" * 512
    with pytest.raises(InputError, match="got 1026"):
        check_id("user", "é" * 513)


def test_items_are_taken_as_values_too(tmp_path):
    item = Item(id="i1", categorical={"genre": "drama"}, embedding=(0.5, 1.0))
    with EventStore.open(tmp_path / "events.db") as store:
        store.save_items([item, ("i2", b"{}")])
        pending = store.load_items()
        store.flush()
        assert store.load_items() == pending == {"i1": item.model_dump_json().encode(), "i2": b"{}"}
        assert Item.from_json(pending["i1"]) == item
