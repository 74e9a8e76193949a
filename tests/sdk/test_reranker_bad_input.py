"""Whatever comes in wrong has a defined answer: an error of the border, or the server's order with a reason."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

from rerank_engine.errors import BundleError, EventError, InputError, ModelFileError, RerankError, StoreError
from rerank_features import Event, Item, Request
from rerank_sdk import histories
from rerank_sdk.bundle import Bundle
from rerank_sdk.store import schema


def same(first, second):
    return first.order.tolist() == second.order.tolist() and first.scores.tobytes() == second.scores.tobytes()


def assert_server_order(ranking, request, reason):
    assert ranking.order.tolist() == list(range(len(request.candidates)))
    assert ranking.items == request.candidates
    assert ranking.backend == "server"
    assert reason in ranking.fallback
    json.dumps(ranking.as_dict(), allow_nan=False)


# --- events ----------------------------------------------------------------------------------------------------


def test_an_event_of_an_unknown_item_is_kept_and_counts_for_the_user(open_reranker, kit):
    reranker = open_reranker()
    before = reranker.rerank(kit.request())
    stranger = kit.event(0).model_copy(update={"item": "never-heard-of"})
    assert reranker.track(stranger) == 1
    assert same(before, reranker.rerank(kit.request()))
    assert [event["item"] for event in reranker.export("ann")["events"]] == ["never-heard-of"]


@pytest.mark.parametrize("event_id", [None, "e1"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_event_changes_nothing(open_reranker, kit, event_id, restart):
    reranker = open_reranker()
    reranker.remember(kit.items)
    assert reranker.track(kit.event(2, id=event_id, request="r")) == 1
    expected = reranker.rerank(kit.request(id="r"))
    if restart:
        reranker.close()
        reranker = open_reranker()
    assert reranker.track(kit.event(2, id=event_id, request="r")) == 0
    assert reranker.track([kit.event(2, id=event_id, request="r")] * 3) == 0
    assert same(reranker.rerank(kit.request(id="r")), expected)
    assert len(reranker.export("ann")["events"]) == 1


def test_a_repeated_event_within_one_batch_counts_once(open_reranker, kit):
    reranker, witness = open_reranker(), open_reranker("witness")
    assert reranker.track([kit.event(2), kit.event(5), kit.event(2)]) == 2
    assert witness.track([kit.event(2), kit.event(5)]) == 2
    assert same(reranker.rerank(kit.request()), witness.rerank(kit.request()))


@pytest.mark.parametrize("restart", [False, True])
def test_of_two_events_with_one_id_the_first_counts(open_reranker, kit, restart):
    reranker, witness = open_reranker(), open_reranker("witness")
    for one in (reranker, witness):
        one.remember(kit.items)
        one.track(kit.event(2, id="e"))
    if restart:
        reranker.close()
        reranker = open_reranker()
    assert reranker.track(kit.event(7, "dislike", 50, id="e")) == 0
    assert reranker.track(kit.event(7, "dislike", 50, id="e", user="bob")) == 1
    assert same(reranker.rerank(kit.request()), witness.rerank(kit.request()))
    assert reranker.export("ann") == witness.export("ann")


def test_the_order_of_arrival_does_not_matter(open_reranker, kit):
    events = [kit.event(number % 12, kind, 300 * number) for number, kind in enumerate(["click", "skip", "like"] * 6)]
    rankings = []
    for number in range(4):
        reranker = open_reranker(f"state-{number}")
        reranker.remember(kit.items)
        shuffled = np.random.default_rng(number).permutation(len(events)) if number else range(len(events))
        reranker.track([events[place] for place in shuffled])
        rankings.append(reranker.rerank(kit.request(after_s=6000)))
    assert all(same(rankings[0], ranking) for ranking in rankings[1:])


def test_a_clock_that_goes_back_is_noted_and_the_list_is_still_ranked(open_reranker, kit):
    reranker, witness = open_reranker(), open_reranker("witness")
    for one in (reranker, witness):
        one.track(kit.event(2, after_s=100))
    early = reranker.rerank(kit.request(after_s=40))
    now = witness.rerank(kit.request(after_s=100))
    assert early.fallback is None
    assert early.notes == ("the clock went back 60000 ms; features are as of the newest event",)
    assert now.notes == ()
    assert same(early, now)


def test_values_at_the_limits_are_taken(open_reranker, kit):
    reranker = open_reranker()
    reranker.track(
        [kit.event(place, after_s=place, value=value) for place, value in enumerate([1e308, -1e308, 5e-324])]
    )
    reranker.track(kit.event(3).model_copy(update={"time_ms": 0}))
    reranker.track(kit.event(4).model_copy(update={"time_ms": 4_102_444_800_000}))
    ranking = reranker.rerank(kit.request())
    assert (ranking.fallback, len(ranking.notes)) == (None, 1)


# --- the border ------------------------------------------------------------------------------------------------

BAD = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("bad", BAD)
def test_numbers_that_are_not_finite_stop_at_the_border(bad):
    with pytest.raises(EventError, match=r"numeric\.price.*finite"):
        Item(id="a", numeric={"price": bad})
    with pytest.raises(EventError, match=r"embedding\.1.*finite"):
        Item(id="a", embedding=(0.0, bad))
    with pytest.raises(EventError, match=r"scores\.0.*finite"):
        Request(user="u", time_ms=0, candidates=[Item(id="a")], scores=[bad])
    with pytest.raises(EventError, match=r"value.*finite"):
        Event(user="u", item="i", kind="dwell", time_ms=0, value=bad)
    with pytest.raises(EventError, match="context"):
        Request(user="u", time_ms=0, candidates=[], context={"hour": bad})


@pytest.mark.parametrize("field", ["user", "item", "request", "id"])
def test_ids_of_ten_kilobytes_stop_at_the_border(field):
    fields = {"user": "u", "item": "i", "kind": "click", "time_ms": 0}
    with pytest.raises(EventError, match=f"{field}.*1024 bytes"):
        Event(**{**fields, field: "x" * 10_240})
    assert getattr(Event(**{**fields, field: "x" * 1024}), field) == "x" * 1024
    with pytest.raises(EventError, match="1024 bytes"):
        Event(**{**fields, field: "ü" * 513})


def test_scores_must_fit_the_candidates():
    with pytest.raises(EventError, match="1 candidates but 2 scores"):
        Request(user="u", time_ms=0, candidates=[Item(id="a")], scores=[1, 2])


def test_times_of_a_wrong_unit_stop_at_the_border():
    for time_ms in (-1, 4_102_444_800_001, 1_700_000_000_000_000, 1.5):
        with pytest.raises(EventError, match="time_ms"):
            Event(user="u", item="i", kind="click", time_ms=time_ms)


# --- lists -----------------------------------------------------------------------------------------------------


def test_an_empty_list_is_no_fault(open_reranker, kit):
    ranking = open_reranker(strict=True).rerank(kit.request(0))
    assert (ranking.items, ranking.order.tolist(), ranking.scores.tolist()) == ((), [], [])
    assert (ranking.fallback, ranking.backend, ranking.reasons) == (None, "cpu", [])


def test_one_candidate_stays_where_it_is(open_reranker, kit):
    ranking = open_reranker(strict=True).rerank(kit.request(1))
    assert (ranking.order.tolist(), ranking.fallback) == ([0], None)
    assert np.isfinite(ranking.scores).all()
    assert ranking.reasons == [()]


def test_ten_thousand_candidates_are_ranked(open_reranker, kit):
    reranker = open_reranker(strict=True)
    reranker.track(kit.event(2))
    items = tuple(
        Item.model_construct(
            id=f"item-{number}",
            categorical={"genre": kit.GENRES[number % 3]},
            multi_categorical={},
            numeric={"price": float(number % 7)},
            embedding=(1.0, float(number % 5), 0.0),
        )
        for number in range(10_000)
    )
    ranking = reranker.rerank(kit.request(candidates=items, shown=10))
    assert sorted(ranking.order.tolist()) == list(range(10_000))
    assert (np.diff(ranking.scores[10:]) <= 0).all()
    few = reranker.rerank(kit.request(candidates=items[:50], scores=np.linspace(1, 0, 10_000)[:50].tolist()))
    many = np.empty(10_000, np.float32)
    many[ranking.order] = ranking.scores
    np.testing.assert_array_equal(few.scores, many[few.order])


def test_the_same_item_twice_gives_the_servers_order(open_reranker, kit):
    request = kit.request(candidates=(*kit.items[:4], kit.item(2), kit.items[5]))
    assert_server_order(open_reranker().rerank(request), request, "candidate 'item-2' is in the list twice")
    with pytest.raises(RerankError, match="'item-2' is in the list twice"):
        open_reranker("strict", strict=True).rerank(request)


def test_a_list_without_scores_is_ranked(open_reranker, kit):
    ranking = open_reranker(strict=True).rerank(kit.request(scores=None))
    zero = open_reranker("zero").rerank(kit.request(scores=[0.0] * 12))
    assert same(ranking, zero)


def test_more_candidates_than_the_spec_remembers(open_reranker, kit):
    reranker = open_reranker(bundle=kit.bundle(spec=kit.make_spec(max_items=10)))
    request = kit.request(12)
    assert_server_order(reranker.rerank(request), request, "max_items = 10")
    assert reranker.rerank(kit.request(10)).fallback is None
    with pytest.raises(InputError, match="max_items"):
        reranker.remember(kit.items)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_an_embedding_of_the_wrong_length_gives_the_servers_order(open_reranker, kit, length):
    reranker = open_reranker()
    bad = kit.item(3, embedding=(0.5,) * length)
    request = kit.request(candidates=(*kit.items[:3], bad))
    assert_server_order(reranker.rerank(request), request, f"item 'item-3': embedding of length {length}")
    with pytest.raises(EventError, match="item-3"):
        reranker.remember([kit.item(20), bad])
    assert reranker.rerank(kit.request()).fallback is None


def test_a_refused_item_does_not_reach_the_store(open_reranker, kit):
    """It would be read back at the next start, and be refused there again."""
    reranker = open_reranker()
    bad = kit.item(99, embedding=(0.5, 0.5))
    assert reranker.rerank(kit.request(candidates=(bad, kit.items[1]))).fallback is not None
    reranker.track(kit.event(99))
    reranker.flush()
    assert reranker._store.load_items() == {}
    reranker.close()
    assert open_reranker().rerank(kit.request()).fallback is None


def test_a_word_where_a_context_number_belongs(open_reranker, kit):
    reranker = open_reranker()
    request = kit.request(context={"hour": "noon"})
    assert_server_order(reranker.rerank(request), request, "request.context['hour']: expected a number")
    assert reranker.rerank(kit.request(context={"hour": 12, "weather": "rain"})).fallback is None
    assert reranker.rerank(kit.request(context={"hour": 10**400})).fallback is None


def test_a_missing_embedding_field_or_number_is_no_fault(open_reranker, kit):
    reranker = open_reranker(strict=True)
    bare = Item(id="bare")
    reranker.track(kit.event(2))
    ranking = reranker.rerank(kit.request(candidates=(bare, *kit.items[:3])))
    assert sorted(ranking.order.tolist()) == [0, 1, 2, 3]


def test_a_score_that_is_not_finite_names_the_candidate(open_reranker, kit):
    weight = np.array([0, 3e38, 0, 0, 0], np.float32)
    bundle = kit.bundle(kit.make_linear_model(weight), name="overflowing")
    reranker = open_reranker(bundle=bundle)
    free = [kit.item(number, numeric={"price": price}) for number, price in enumerate([0.0, 1.0, 50.0, 60.0])]
    request = kit.request(candidates=tuple(free))
    assert_server_order(reranker.rerank(request), request, "score of candidate 'item-2' is not a finite number")
    assert reranker.rerank(kit.request(candidates=tuple(free[:2]))).order.tolist() == [1, 0]
    with pytest.raises(RerankError, match="item-2"):
        open_reranker("strict", bundle=bundle, strict=True).rerank(request)


def test_a_score_that_is_no_number_names_the_candidate(open_reranker, kit):
    weight = np.array([0, 3e38, 0, 0, -3e38], np.float32)
    reranker = open_reranker(bundle=kit.bundle(kit.make_linear_model(weight), name="undefined"))
    request = kit.request(4, context={"hour": 9})  # infinity minus infinity for prices above 1
    ranking = reranker.rerank(request)
    assert_server_order(ranking, request, "is not a finite number")
    assert reranker.track(kit.event(1)) == 1


# --- bundles that cannot be used -------------------------------------------------------------------------------


def damaged(kind, good, folder):
    path = folder / "model.rrb"
    if kind == "missing":
        return path
    if kind == "a folder":
        path.mkdir()
        return path
    content = {
        "empty": b"",
        "no archive": b"this is no bundle",
        "truncated": good[: len(good) // 2],
        "a flipped byte": good[:100] + bytes([good[100] ^ 0xFF]) + good[101:],
    }[kind]
    path.write_bytes(content)
    return path


KINDS = ["missing", "a folder", "empty", "no archive", "truncated", "a flipped byte"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_usable_bundle_events_are_kept_and_the_servers_order_stands(
    open_reranker, kit, bundle, kind, tmp_path
):
    path = damaged(kind, bundle.to_bytes(), tmp_path)
    with pytest.raises(BundleError, match=r"model\.rrb"):
        open_reranker("strict", bundle=path, strict=True)
    reranker = open_reranker(bundle=path)
    events = [kit.event(number, after_s=number, request="r") for number in range(6)]
    assert reranker.track(events) == 6
    assert reranker.track(events[0]) == 0
    for request in (kit.request(id="r"), kit.request(0), kit.request(1), kit.request(scores=None)):
        assert_server_order(reranker.rerank(request), request, "no model: BundleError")
    reranker.remember(kit.items)
    reranker.track(kit.event(7))
    health = reranker.health()
    assert (health.bundle, health.backend) == (None, "server")
    assert "model.rrb" in health.problem
    assert reranker.personalise("ann").version == 0
    assert len(reranker.export("ann")["events"]) == 7
    reranker.close()
    reopened = open_reranker()
    assert reopened.track(events) == 0
    ranking = reopened.rerank(kit.request())
    witness = open_reranker("witness")
    witness.track(events)
    witness.remember(kit.items)
    witness.track(kit.event(7))
    assert same(ranking, witness.rerank(kit.request()))
    assert reopened.export("ann") == witness.export("ann")


def test_without_a_bundle_a_user_can_be_forgotten(open_reranker, kit, tmp_path):
    reranker = open_reranker(bundle=tmp_path / "missing.rrb")
    reranker.track(kit.event(1))
    assert reranker.forget("ann") == 1
    assert reranker.export("ann")["events"] == []


def test_parts_that_do_not_fit_each_other(open_reranker, kit, bundle):
    wide = kit.make_spec().to_toml() + '\n[[dense]]\nkind = "server_rank"\nname = "rank"\n'
    parts = {
        "the model reads 'dense'": Bundle("wide", bundle.model_bytes, wide),
        "ModelFileError": Bundle("no model", b"\0" * 100, bundle.spec_text),
        "SpecError": Bundle("no spec", bundle.model_bytes, "name = 5"),
    }
    for number, (reason, bad) in enumerate(parts.items()):
        with pytest.raises(RerankError):
            open_reranker(f"strict-{number}", bundle=bad, strict=True)
        reranker = open_reranker(f"state-{number}", bundle=bad)
        request = kit.request()
        assert_server_order(reranker.rerank(request), request, reason)
    with pytest.raises(ModelFileError):
        open_reranker("model", bundle=parts["ModelFileError"], strict=True)


@pytest.mark.parametrize("bundle", ["", 5, b"bundle.rrb"])
def test_what_is_no_path_is_no_wish_for_the_default(open_reranker, bundle):
    with pytest.raises(BundleError):
        open_reranker(bundle=bundle, strict=True)


# --- stores that cannot be used --------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_a_store_of_a_newer_schema_is_refused_and_left_as_it_is(open_reranker, kit, tmp_path, strict):
    open_reranker().close()
    path = tmp_path / "state" / "events.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="upgrade rerank-sdk"):
        open_reranker(strict=strict)
    assert path.read_bytes() == before


def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(open_reranker, tmp_path):
    path = tmp_path / "state" / "events.db"
    path.parent.mkdir()
    path.write_bytes(b"somebody's diary")
    with pytest.raises(StoreError, match="expected a SQLite file"):
        open_reranker()
    assert path.read_bytes() == b"somebody's diary"


def test_where_nothing_can_be_written_everything_works_in_memory(open_reranker, kit, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    reranker, witness = open_reranker("file/state"), open_reranker("witness")
    health = reranker.health().store
    assert (health.writable, health.pending) == (False, 0)
    assert "cannot open it for writing" in health.last_error
    for one in (reranker, witness):
        one.remember(kit.items)
        assert one.track([kit.event(number, after_s=number, request="r") for number in (2, 5, 8)]) == 3
        assert one.track(kit.event(2, after_s=2, request="r")) == 0
    assert same(reranker.rerank(kit.request(id="r")), witness.rerank(kit.request(id="r")))
    assert reranker.export("ann") == witness.export("ann")
    assert reranker.health().store.pending > 0
    with pytest.raises(StoreError, match="cannot open it for writing"):
        reranker.flush()
    assert reranker.forget("ann") == 3
    assert reranker.export("ann")["events"] == []
    reranker.close()
    assert (tmp_path / "file").read_bytes() == b""


def test_where_nothing_can_be_written_a_user_is_learned_in_memory(open_reranker, kit, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    reranker, witness = open_reranker("file/state"), open_reranker("witness")
    for one in (reranker, witness):
        for number in range(8):
            one.rerank(kit.request(id=f"r{number}"))
            for place in (5, 6):
                one.track(kit.event(place, "like", 10 * number + place, request=f"r{number}"))
        assert [one.personalise("ann").version for _ in range(2)] == [1, 2]
    found, expected = reranker.rerank(kit.request()), witness.rerank(kit.request())
    assert same(found, expected)
    assert found.patch_version == expected.patch_version == 2
    assert reranker.export("ann") == witness.export("ann")
    assert not reranker.health().store.writable
    reranker.forget("ann")
    assert reranker.rerank(kit.request()).patch_version == 0


def break_pages(path, table):
    """Overwrite the pages of one table and its indexes: SQLite finds out when it reads them."""
    connection = sqlite3.connect(path)
    roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = ?", (table,)).fetchall()
    connection.close()
    content = bytearray(path.read_bytes())
    for (page,) in roots:
        content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    path.write_bytes(content)


def test_a_history_that_cannot_be_read_loses_no_event(open_reranker, kit, tmp_path):
    first = open_reranker()
    first.track([kit.event(number, after_s=number) for number in range(12)])
    first.close()
    reranker = open_reranker()
    break_pages(tmp_path / "state" / "events.db", "events")  # while it is open: opening would restore it
    request = kit.request()
    assert_server_order(reranker.rerank(request), request, "StoreError")
    assert reranker.track(kit.event(3, after_s=20)) == 1
    assert reranker.track(kit.event(3, after_s=20)) == 0
    assert reranker.health().store.pending >= 1
    with pytest.raises(StoreError, match="damaged"):
        reranker.close()
    events = [getattr(operation, "event", operation) for operation in reranker._store._writer.waiting()]
    assert [event for event in events if isinstance(event, Event)] == [kit.event(3, after_s=20)]
    reranker._store._writer.close(discard=True)


def test_half_a_history_counts_for_nothing(open_reranker, kit, monkeypatch):
    first = open_reranker()
    first.remember(kit.items)
    first.track([kit.event(number % 12, after_s=number) for number in range(30)])
    first.close()
    reranker, witness = open_reranker(), open_reranker("witness")
    witness.remember(kit.items)
    witness.track([*(kit.event(number % 12, after_s=number) for number in range(30)), kit.event(8, after_s=40)])
    read = reranker._store.read

    def stop_half_way(user):
        for number, event in enumerate(read(user)):
            if number == 15:
                raise StoreError("the disk went away")
            yield event

    monkeypatch.setattr(reranker._store, "read", stop_half_way)
    assert "the disk went away" in reranker.rerank(kit.request()).fallback
    assert reranker.track(kit.event(8, after_s=40)) == 1
    assert reranker.track(kit.event(5, after_s=5)) == 1  # not recognised, because the history cannot be read
    monkeypatch.undo()
    assert same(reranker.rerank(kit.request()), witness.rerank(kit.request()))
    assert reranker.export("ann") == witness.export("ann")


def test_damaged_remembered_items_do_not_keep_the_app_from_opening(open_reranker, kit):
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track([kit.event(number, after_s=number) for number in range(6)])
    reranker._store.save_items([("item-1", b"no json"), ("item-2", b'{"id":"item-2","new_field":1}')])
    reranker.close()
    again = open_reranker(strict=True)
    assert set(again._items) == {"item-0", "item-3", "item-4", "item-5"}
    assert again.rerank(kit.request()).fallback is None


def test_a_bundle_with_other_embeddings_opens_on_old_items(open_reranker, kit):
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track([kit.event(number, after_s=number) for number in (2, 5, 8)])
    reranker.close()
    other = kit.bundle(spec=kit.make_spec(embedding_dim=2), name="other")
    fresh = tuple(kit.item(number, embedding=(1.0, number)) for number in range(12))
    updated = open_reranker(bundle=other, strict=True)
    ranking = updated.rerank(kit.request(candidates=fresh))
    horror = [fresh[place].categorical["genre"] for place in ranking.order[:4]]
    assert horror == ["horror"] * 4  # the genres of the old events still count
    updated.close()
    back = open_reranker(strict=True)
    assert back.rerank(kit.request()).fallback is None


def test_more_remembered_items_than_the_spec_holds(open_reranker, kit):
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track([kit.event(number, after_s=number) for number in range(20)])
    reranker.close()
    small = open_reranker(bundle=kit.bundle(spec=kit.make_spec(max_items=5)), strict=True)
    assert list(small._items) == [f"item-{number}" for number in range(15, 20)]
    assert small.rerank(kit.request(5)).fallback is None


def test_a_failed_opening_lets_go_of_the_store(open_reranker, kit, tmp_path, monkeypatch):
    from rerank_sdk import reranker as module

    opened = []
    real = module.EventStore.open

    def remember_store(*arguments, **options):
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(module.EventStore, "open", remember_store)
    with pytest.raises(BundleError):
        open_reranker(bundle=tmp_path / "missing.rrb", strict=True)

    def fail(*_):
        raise TypeError("a fault that nobody foresaw")

    monkeypatch.setattr(module, "Scorer", fail)
    with pytest.raises(TypeError, match="nobody foresaw"):
        open_reranker()
    for store in opened:
        with pytest.raises(StoreError, match="closed"):
            store.count()
    assert len(opened) == 2


@pytest.mark.parametrize(
    "change",
    [{"value": float("nan")}, {"value": "x"}, {"time_ms": "no"}, {"item": 5}, {"user": None}, {"kind": None}],
)
def test_an_event_changed_behind_the_border_reaches_nothing(open_reranker, kit, change):
    reranker, witness = open_reranker(), open_reranker("witness")
    for one in (reranker, witness):
        one.track(kit.event(1))
    broken = Event.model_construct(**{**kit.event(2, after_s=1).__dict__, **change})
    with pytest.raises(EventError, match="invalid Event"):
        reranker.track(broken)
    found, expected = reranker.rerank(kit.request()), witness.rerank(kit.request())
    assert found.fallback is None
    assert found.scores.tobytes() == expected.scores.tobytes()
    assert reranker.export("ann") == witness.export("ann")
    assert reranker.health().store.rejected == 0


def test_many_users_who_only_look_take_bounded_memory(open_reranker, kit, monkeypatch):
    monkeypatch.setattr(histories, "MAX_HISTORIES", 5)
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track([kit.event(2, after_s=place, user="ann") for place in range(4)])
    expected = reranker.rerank(kit.request(user="ann"))
    for number in range(20):
        reranker.rerank(kit.request(user=f"visitor-{number}"))
    assert len(reranker._histories) == 5
    again = reranker.rerank(kit.request(user="ann"))  # read from the store again, and not counted twice
    assert again.scores.tobytes() == expected.scores.tobytes()
    assert reranker.track(kit.event(2, after_s=0, user="ann")) == 0


@pytest.mark.parametrize("user", [5, None, ["a"], {}, "", "u" * 2000])
def test_what_is_no_user_is_refused_typed(open_reranker, user):
    reranker = open_reranker()
    for call in (reranker.personalise, reranker.forget, reranker.export):
        with pytest.raises(InputError):
            call(user)


@pytest.mark.parametrize("items", [None, 5])
def test_what_is_no_list_of_items_is_refused_typed(open_reranker, items):
    with pytest.raises(InputError, match="expected Items"):
        open_reranker().remember(items)


@pytest.mark.parametrize("options", [{"state_dir": None}, {"state_dir": 5}, {"state_dir": "a\0b"}, {"cache_dir": 5}])
def test_what_is_no_path_is_refused_typed(tmp_path, options):
    from rerank_sdk import Reranker

    with pytest.raises(InputError, match=next(iter(options))):
        Reranker.open(**{"state_dir": tmp_path / "state", **options})
