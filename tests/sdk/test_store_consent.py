"""Consent: nothing is recorded, and nothing leaves the device, without it."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import Consent, ConsentError, EventStore, Example, schema


def click(n, user="u1"):
    return Event(user=user, item=f"i{n}", kind="click", time_ms=n)


def test_by_default_everyone_has_agreed(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        store.append(click(1))
        assert store.consent("u1") == Consent(True, True)
        assert list(store.read(purpose="upload")) == [click(1)]
        assert store.health().without_consent == 0


def test_who_refuses_is_not_recorded_and_counted(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as store:
        store.append(click(1))
        store.set_consent("u1", record=False, upload=True)
        store.append(click(2))
        store.append_many([click(3), click(4, "u2")])
        store.append_example(Example("u1", "r", "i", 0, 1.0, np.ones(2), "m"))
        store.save_state("u1", "spec", 1, b"state")
        assert list(store.read()) == [click(1), click(4, "u2")]
        assert (store.load_examples("u1"), store.load_state("u1", "spec")) == ([], None)
        assert store.health().without_consent == 4
    with EventStore.open(path) as store:
        store.append(click(5))
        assert store.count("u1") == 1
        assert store.export("u1")["consent"] == {"record": False, "upload": True}


def test_required_consent_must_be_given_first(tmp_path):
    with EventStore.open(tmp_path / "events.db", require_consent=True) as store:
        store.append(click(1))
        store.set_consent("u1", record=True, upload=False)
        store.append(click(2))
        assert list(store.read()) == [click(2)]
        assert list(store.read(purpose="upload")) == list(store.read("u1", purpose="upload")) == []
        store.set_consent("u1", record=True, upload=True)
        assert list(store.read("u1", purpose="upload")) == [click(2)]


def test_the_own_answer_counts_before_the_one_for_everyone(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        store.set_consent("u1", record=True, upload=False)
        store.set_consent(None, record=False, upload=False)
        store.append_many([click(1), click(2, "u2")])
        assert list(store.read()) == [click(1)]
        store.set_consent(None, record=True, upload=True)
        store.append(click(2, "u2"))
        assert list(store.read(purpose="upload")) == [click(2, "u2")]
        assert store.users() == ["u1", "u2"]


def test_strict_consent_raises(tmp_path):
    with EventStore.open(tmp_path / "events.db", require_consent=True, strict_consent=True) as store:
        with pytest.raises(ConsentError, match="set_consent"):
            store.append(click(1))
        with pytest.raises(ConsentError):
            store.append_many([click(1)])
        assert (store.count(), store.health().without_consent) == (0, 0)


def test_forgetting_erases_the_answer(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        store.set_consent("user-to-forget", record=False, upload=False)
        store.forget("user-to-forget")
        assert store.consent("user-to-forget") == Consent(True, True)
        for file in tmp_path.iterdir():
            assert b"user-to-forget" not in file.read_bytes()


def test_another_connection_learns_with_its_next_batch(tmp_path):
    path = tmp_path / "events.db"
    with EventStore.open(path) as first, EventStore.open(path) as second:
        second.append(click(1))
        second.flush()
        first.set_consent("u1", record=False, upload=False)
        assert list(second.read(purpose="upload")) == []
        second.append(click(2, "u2"))
        second.flush()
        second.append(click(3))
        assert second.count("u1") == 1


def test_an_answer_that_cannot_be_stored_holds_nevertheless(tmp_path, monkeypatch):
    path = tmp_path / "events.db"
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 20)
    with EventStore.open(path) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="consent"):
            store.set_consent("u1", record=False, upload=False)
        store.append(click(1))
        assert store.count() == 0
        assert store.consent("u1") == Consent(False, False)
        holder.close()


def test_wrong_arguments_are_refused(tmp_path):
    with EventStore.open(tmp_path / "events.db") as store:
        with pytest.raises(InputError, match="record"):
            store.set_consent("u1", record=1, upload=False)
        with pytest.raises(InputError, match="user"):
            store.set_consent("", record=True, upload=False)
        with pytest.raises(InputError, match="purpose"):
            store.read(purpose="sale")
    with pytest.raises(InputError, match="require_consent"):
        EventStore.open(tmp_path / "events.db", require_consent="yes")
