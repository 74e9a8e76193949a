"""The loop: events change the order, seen candidates stay, learning helps, forgetting leaves nothing."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rerank_engine.errors import EventError, InputError, RerankError, StoreError
from rerank_features import FeaturePipeline, FeatureSpec, Item
from rerank_sdk import Reranker
from rerank_sdk import reranker as reranker_module
from rerank_sdk.personal import Patch
from rerank_sdk.store import Example


def ids(ranking):
    return [item.id for item in ranking.items]


def same(first, second):
    return first.order.tolist() == second.order.tolist() and first.scores.tobytes() == second.scores.tobytes()


def teach(reranker, kit, user="ann", *, dear=True, lists=8):
    """Show lists; like the dear items of each, or the cheap ones."""
    for number in range(lists):
        start_s = 10_000 * (number + 1)
        request = kit.request(after_s=start_s, user=user, id=f"visit-{number}")
        reranker.rerank(request)
        for place, item in enumerate(request.candidates):
            if item.numeric["price"] in ((5, 6) if dear else (0, 1)):
                reranker.track(kit.event(place, "like", start_s + 1 + place, user, request=request.id))


# --- ranking ---------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_scores(open_reranker, kit):
    ranking = open_reranker().rerank(kit.request())
    assert sorted(ranking.order.tolist()) == list(range(12))
    assert ids(ranking) == [kit.items[place].id for place in ranking.order]
    assert (np.diff(ranking.scores) <= 0).all()
    assert (ranking.backend, ranking.fallback, ranking.notes, ranking.patch_version) == ("cpu", None, (), 0)
    assert (ranking.order.dtype, ranking.scores.dtype) == (np.int64, np.float32)
    parts = ranking.timings.features_ms + ranking.timings.scoring_ms + ranking.timings.policy_ms
    assert 0 < parts == pytest.approx(ranking.timings.total_ms)


def test_the_scores_are_the_models(open_reranker, kit):
    ranking = open_reranker().rerank(kit.request(context={"hour": 7}))
    server = np.linspace(1, 0, 12, dtype=np.float32)
    price = np.array([item.numeric["price"] for item in kit.items[:12]], np.float32)
    zero = np.zeros(12, np.float32)
    dense = np.stack([server, price, zero, zero, np.full(12, 7, np.float32)], axis=1)
    graph = kit.make_model().graph
    expected = (np.maximum(dense @ graph.constants["w1"], 0) @ graph.constants["w2"]).ravel()
    np.testing.assert_allclose(ranking.scores, expected[ranking.order], rtol=1e-5, atol=1e-6)


def test_an_event_moves_its_genre_up(open_reranker, kit):
    reranker = open_reranker()
    before = reranker.rerank(kit.request())
    reranker.track([kit.event(2, after_s=place) for place in range(5)])
    after = reranker.rerank(kit.request())
    places = [np.flatnonzero(np.isin(ranking.order, (5, 8, 11))).mean() for ranking in (before, after)]
    assert places[1] < places[0]


def test_asking_twice_gives_the_same_bits(open_reranker, kit):
    reranker = open_reranker()
    reranker.track(kit.event(1))
    assert same(reranker.rerank(kit.request(id="r")), reranker.rerank(kit.request(id="r")))


def test_an_event_of_one_user_changes_nothing_for_another(open_reranker, kit):
    reranker = open_reranker()
    before = reranker.rerank(kit.request(user="bob"))
    reranker.track(kit.event(4, request="r"))
    assert same(before, reranker.rerank(kit.request(user="bob", id="r")))


def test_events_are_taken_one_or_several_and_counted(open_reranker, kit):
    reranker = open_reranker()
    assert reranker.track(kit.event(1)) == 1
    assert reranker.track(kit.event(number, after_s=1) for number in range(3)) == 3
    assert reranker.track([]) == 0
    assert len(reranker.export("ann")["events"]) == 4


def test_an_event_counts_with_the_fields_of_a_remembered_item(open_reranker, kit):
    reranker, other = open_reranker("one"), open_reranker("two")
    strange = kit.item(500, id="from-search", categorical={"genre": "horror"})
    reranker.remember([strange])
    for one in (reranker, other):
        one.track(kit.event(0).model_copy(update={"item": "from-search"}))
    genre = [kit.items[place].categorical["genre"] == "horror" for place in range(12)]
    known, unknown = reranker.rerank(kit.request()), other.rerank(kit.request())
    lift = np.empty(12, np.float32)
    lift[known.order] = known.scores
    lift[unknown.order] -= unknown.scores
    assert (lift[genre] > 0.5).all()


# --- what stays in its place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [0, 1, 5, 11, 12, 40])
def test_candidates_on_screen_keep_their_places(open_reranker, kit, shown):
    reranker = open_reranker()
    reranker.track([kit.event(2, after_s=place) for place in range(5)])
    ranking = reranker.rerank(kit.request(shown=shown))
    kept = min(shown, 12)
    assert ranking.order[:kept].tolist() == list(range(kept))
    assert (np.diff(ranking.scores[kept:]) <= 0).all()
    assert sorted(ranking.order.tolist()) == list(range(12))


@pytest.mark.parametrize("kind", ["impression", "click", "dwell", "like", "dislike", "hide", "purchase", "skip", "own"])
def test_a_candidate_with_any_sign_in_this_list_stays_and_the_others_move(open_reranker, kit, kind):
    reranker = open_reranker()
    first = reranker.rerank(kit.request(id="r")).order.tolist()
    assert first != list(range(12))
    stay = [first.index(0), first.index(7)]
    reranker.track([kit.event(place, kind, request="r") for place in (0, 7)])
    ranking = reranker.rerank(kit.request(id="r"))
    assert ranking.order[stay].tolist() == [0, 7]
    free = [place for place in range(12) if place not in stay]
    assert (np.diff(ranking.scores[free]) <= 0).all()
    assert sorted(ranking.order[free].tolist()) == [place for place in range(12) if place not in (0, 7)]


@pytest.mark.parametrize("shown", [1, 4, 12])
def test_what_is_on_screen_is_what_was_shown_last(open_reranker, kit, shown):
    reranker = open_reranker()
    first = reranker.rerank(kit.request(id="r")).order.tolist()
    reranker.track([kit.event(2, after_s=place) for place in range(5)])
    again = reranker.rerank(kit.request(id="r", shown=shown)).order.tolist()
    assert again[:shown] == first[:shown]
    changed = reranker.rerank(kit.request(11, id="r", shown=min(shown, 11))).order.tolist()
    assert changed[: min(shown, 11)] == list(range(min(shown, 11)))  # another list: the server's order stands


def test_a_list_without_an_id_stands_in_the_server_order(open_reranker, kit):
    reranker = open_reranker()
    reranker.rerank(kit.request())
    assert reranker.rerank(kit.request(shown=3)).order[:3].tolist() == [0, 1, 2]


def test_signs_about_another_list_or_another_item_hold_nothing(open_reranker, kit):
    reranker = open_reranker()
    free = reranker.rerank(kit.request(id="r"))
    assert free.order[0] != 0
    reranker.track(kit.event(0, "impression", request="other"))
    reranker.track(kit.event(0, "impression", after_s=1))
    reranker.track(kit.event(29, "impression", request="r"))
    assert same(free, reranker.rerank(kit.request(id="r")))
    assert same(free, reranker.rerank(kit.request()))


def test_a_list_may_grow_and_shrink_under_its_id(open_reranker, kit):
    """Pages are appended and read items dropped: feedback must find the place that holds now."""
    reranker = open_reranker()
    reranker.rerank(kit.request(12, id="r"))
    reranker.rerank(kit.request(5, id="r"))
    assert reranker.track(kit.event(11, request="r")) == 1
    assert reranker.export("ann")["examples"] == []
    turned = tuple(reversed(kit.items[:6]))
    reranker.rerank(kit.request(candidates=turned, id="r"))
    head_input = {}
    for item, row in zip(turned, _head_input(reranker, kit.request(candidates=turned)), strict=True):
        head_input[item.id] = row
    reranker.track(kit.event(0, "dislike", 70, request="r"))
    (example,) = reranker.export("ann")["examples"]
    expected = [head_input[item.id] - head_input["item-0"] for item in turned[:-1]]
    assert any(np.array_equal(example["features"][:-1], one) for one in expected)


def _head_input(reranker, request):
    scorer = reranker._scorer
    return scorer.score(scorer.pipeline.emit(request).arrays)[1]


# --- falling back ----------------------------------------------------------------------------------------------


def assert_server_order(ranking, request, reason):
    assert ranking.order.tolist() == list(range(len(request.candidates)))
    assert ranking.items == request.candidates
    assert ranking.backend == "server"
    assert reason in ranking.fallback
    assert ranking.reasons == [()] * len(request.candidates)
    assert ranking.patch_version == 0
    json.dumps(ranking.as_dict(), allow_nan=False)


def test_after_the_deadline_the_servers_order_comes(open_reranker, kit):
    reranker = open_reranker(deadline_ms=1e-6)
    request = kit.request(id="r")
    ranking = reranker.rerank(request)
    assert_server_order(ranking, request, "the deadline is 1e-06 ms")
    np.testing.assert_allclose(ranking.scores, request.scores, rtol=1e-6)


def test_after_the_deadline_feedback_teaches_about_the_list_that_was_shown(open_reranker, kit):
    reranker = open_reranker(deadline_ms=1e-6)
    reranker.rerank(kit.request(id="r"))
    decision = reranker._decisions._decisions["ann"]["r"]
    assert decision.shown_order.tolist() == list(range(12))
    reranker.track(kit.event(3, request="r"))
    assert len(reranker.export("ann")["examples"]) == 8


@pytest.mark.parametrize("deadline_ms", [0, -1.0, float("nan"), "50"])
def test_a_deadline_must_be_positive(open_reranker, deadline_ms):
    with pytest.raises(InputError, match="deadline_ms"):
        open_reranker(deadline_ms=deadline_ms)


class _Broken:
    backend = "cpu"

    def run(self, inputs):
        raise RuntimeError("the chip is on fire")


def test_a_failing_engine_gives_the_servers_order(open_reranker, kit, monkeypatch):
    reranker = open_reranker()
    monkeypatch.setattr(reranker._scorer, "engine", _Broken())
    request = kit.request(scores=None)
    ranking = reranker.rerank(request)
    assert_server_order(ranking, request, "RuntimeError: the chip is on fire")
    assert np.isnan(ranking.scores).all()
    assert ranking.as_dict()["scores"] == [None] * 12
    assert reranker.track(kit.event(1)) == 1
    monkeypatch.undo()
    assert reranker.rerank(request).fallback is None


def test_with_strict_a_failing_engine_raises(open_reranker, kit, monkeypatch):
    reranker = open_reranker(strict=True)
    monkeypatch.setattr(reranker._scorer, "engine", _Broken())
    with pytest.raises(RuntimeError, match="on fire"):
        reranker.rerank(kit.request())
    late = open_reranker("late", strict=True, deadline_ms=1e-6)
    with pytest.raises(RerankError, match="deadline"):
        late.rerank(kit.request())


# --- health, export, end ---------------------------------------------------------------------------------------


def test_health_tells_what_is_in_use(open_reranker, tmp_path):
    health = open_reranker().health()
    assert (health.bundle, health.backend, health.problem) == ("tiny", "cpu", None)
    assert health.store.path == str(tmp_path / "state" / "events.db")
    assert health.store.writable


def test_the_export_holds_everything_and_is_json(open_reranker, kit):
    reranker = open_reranker()
    teach(reranker, kit)
    result = reranker.personalise("ann")
    assert result.accepted
    exported = reranker.export("ann")
    assert json.loads(json.dumps(exported, allow_nan=False)) == exported
    assert exported["user"] == "ann"
    assert len(exported["events"]) == 8 * 2
    assert len(exported["examples"]) == result.pairs
    (patch,) = exported["patches"]
    assert Patch.from_bytes(base64.b64decode(patch["patch"])).base_model == patch["base_model"]
    held = reranker.export("nobody")
    assert not any(value for part, value in held.items() if part != "user")


def test_a_closed_reranker_refuses_events_and_falls_back(open_reranker, kit):
    reranker = open_reranker()
    reranker.track(kit.event(1))
    reranker.close()
    reranker.close()
    with pytest.raises(StoreError, match="closed"):
        reranker.track(kit.event(2))
    assert "closed" in reranker.rerank(kit.request(user="new")).fallback


def test_flush_writes_the_events(open_reranker, kit):
    reranker = open_reranker()
    reranker.track([kit.event(number) for number in range(5)])
    reranker.flush()
    assert (reranker.health().store.pending, reranker.health().store.written) == (0, 5)


# --- forgetting ------------------------------------------------------------------------------------------------


def stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def test_forgetting_leaves_no_trace_and_no_mark_on_others(open_reranker, kit, tmp_path):
    reranker, witness = open_reranker(), open_reranker("witness")
    for one in (reranker, witness):
        teach(one, kit, user="bob")
        one.personalise("bob")
    teach(reranker, kit, user="ann-the-forgotten", dear=False)
    assert reranker.personalise("ann-the-forgotten").version == 1
    reranker.flush()
    assert b"ann-the-forgotten" in stored_bytes(tmp_path / "state")
    assert reranker.forget("ann-the-forgotten") > 30
    assert b"ann-the-forgotten" not in stored_bytes(tmp_path / "state")
    for memory in (
        reranker._decisions._decisions,
        reranker._decisions._seen,
        reranker._patches._known,
        reranker._histories,
        (known[0] for known in reranker._recent_events),
        reranker._scorer.pipeline._state.user_rows,
    ):
        assert "ann-the-forgotten" not in memory
    fresh, mine = (
        reranker.rerank(kit.request(user=user, id="visit-7", after_s=80_100)) for user in ("new", "ann-the-forgotten")
    )
    assert same(fresh, mine)
    assert mine.patch_version == 0
    bob, expected = (one.rerank(kit.request(user="bob", id="visit-7", after_s=80_100)) for one in (reranker, witness))
    assert same(bob, expected)
    assert bob.patch_version == expected.patch_version == 1
    assert reranker.export("bob") == witness.export("bob")
    assert reranker.forget("ann-the-forgotten") == 0


def test_what_a_forgotten_user_did_may_happen_again(open_reranker, kit):
    reranker, witness = open_reranker(), open_reranker("witness")
    events = [kit.event(number, after_s=number) for number in (2, 5, 6, 8)]
    reranker.track(events)
    reranker.forget("ann")
    assert reranker.track(events) == witness.track(events) == 4
    assert same(reranker.rerank(kit.request()), witness.rerank(kit.request()))


def test_with_the_last_user_the_items_go_too(open_reranker, kit, tmp_path):
    reranker = open_reranker()
    secret = kit.item(700, id="a-very-private-film")
    reranker.remember([secret])
    reranker.track(kit.event(0).model_copy(update={"item": secret.id}))
    reranker.forget("ann")
    reranker.close()
    assert b"a-very-private-film" not in stored_bytes(tmp_path / "state")


def test_items_are_kept_again_after_a_forgotten_user(open_reranker, kit):
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track(kit.event(2))
    reranker.forget("ann")
    reranker.track(kit.event(2, after_s=1, user="bob"))
    expected = reranker.rerank(kit.request(user="bob"))
    reranker.close()
    assert same(open_reranker().rerank(kit.request(user="bob")), expected)


def test_forgetting_while_learning_leaves_no_patch(open_reranker, kit, monkeypatch):
    reranker = open_reranker()
    teach(reranker, kit)
    train, rounds = reranker_module.train_patch, []

    def forget_first(examples, base_model):
        learned = train(examples, base_model)
        rounds.append(len(examples))
        if len(rounds) == 1:
            assert learned[1].accepted
            reranker.forget("ann")
        return learned

    monkeypatch.setattr(reranker_module, "train_patch", forget_first)
    result = reranker.personalise("ann")
    assert (result.accepted, result.pairs, result.version) == (False, 0, 0)
    assert rounds[1] == 0
    held = reranker.export("ann")
    assert not any(value for part, value in held.items() if part != "user")
    assert reranker.rerank(kit.request()).patch_version == 0


def test_forgetting_while_ranking_keeps_no_features(open_reranker, kit, monkeypatch):
    reranker = open_reranker()
    reranker.track(kit.event(2))
    score = reranker._scorer.score

    def forget_first(arrays):
        reranker.forget("ann")
        return score(arrays)

    monkeypatch.setattr(reranker._scorer, "score", forget_first)
    assert reranker.rerank(kit.request(id="r")).fallback is None
    assert "ann" not in reranker._decisions._decisions


# --- learning from feedback ------------------------------------------------------------------------------------


def test_a_patch_raises_what_the_user_wants(open_reranker, kit):
    reranker = open_reranker()
    teach(reranker, kit)
    request = kit.request(after_s=1_000_000)
    before = reranker.rerank(request)
    result = reranker.personalise("ann")
    after = reranker.rerank(request)
    assert (result.accepted, result.version, after.patch_version) == (True, 1, 1)
    assert result.loss_after < result.loss_before
    assert not same(before, after)
    patch = Patch.from_bytes(base64.b64decode(reranker.export("ann")["patches"][0]["patch"]))
    delta = patch.delta(_head_input(reranker, request))
    scores = np.empty(12, np.float32)
    scores[before.order] = before.scores
    np.testing.assert_array_equal(after.scores, (scores + delta)[after.order])


def test_versions_grow_and_learning_again_from_the_same_gives_the_same(open_reranker, kit):
    reranker = open_reranker()
    teach(reranker, kit)
    assert [reranker.personalise("ann").version for _ in range(5)] == [1, 2, 3, 4, 5]
    patches = reranker.export("ann")["patches"]
    assert [patch["version"] for patch in patches] == [3, 4, 5]
    assert len({patch["patch"] for patch in patches}) == 1


def test_too_little_feedback_leaves_the_shared_model(open_reranker, kit):
    reranker = open_reranker()
    reranker.rerank(kit.request(id="r"))
    reranker.track([kit.event(place, "like", 61, request="r") for place in (0, 3)])
    result = reranker.personalise("ann")
    assert (result.accepted, result.pairs, result.version) == (False, 16, 0)
    assert np.isnan(result.loss_before)
    assert np.isnan(result.loss_after)
    assert "16 pairs, at least 24 are needed" in result.reason
    assert reranker.export("ann")["patches"] == []
    assert reranker.personalise("nobody").pairs == 0


def pair(reranker, kit, number, sign):
    """An example that says: more (or less) of what the first hidden number stands for."""
    features = np.zeros(kit.HIDDEN + 1, np.float32)
    features[0] = sign
    return Example("ann", f"r{number}", "pair", kit.START_MS + number, 1.0, features, reranker._scorer.model_hash)


def test_a_taste_that_turned_returns_the_user_to_the_shared_model(open_reranker, kit):
    reranker = open_reranker()
    shared = reranker.rerank(kit.request())
    reranker._store.save_examples(pair(reranker, kit, number, 1) for number in range(40))
    assert reranker.personalise("ann").version == 1
    assert not same(reranker.rerank(kit.request()), shared)
    reranker._store.save_examples(pair(reranker, kit, number, -1) for number in range(40, 60))
    result = reranker.personalise("ann")
    assert (result.accepted, result.version, result.pairs) == (False, 0, 60)
    assert result.loss_after >= result.loss_before
    for _ in range(2):
        back = reranker.rerank(kit.request())
        assert (back.patch_version, same(back, shared)) == (0, True)
        reranker.close()
        reranker = open_reranker()
    reranker._store.save_examples(pair(reranker, kit, number, -1) for number in range(60, 200))
    assert reranker.personalise("ann").version == 3


def test_items_may_come_as_an_iterator(open_reranker, kit):
    reranker = open_reranker()
    reranker.remember(iter(kit.items))
    reranker.track(kit.event(2))
    assert reranker.rerank(kit.request()).fallback is None


def test_a_wrong_argument_is_an_error_of_the_border(open_reranker, kit):
    reranker = open_reranker()
    for wrong in (None, 5, {"user": "ann"}, "ann", [kit.event(1), "ann"]):
        with pytest.raises(EventError, match="expected"):
            reranker.track(wrong)
    assert len(reranker.export("ann")["events"]) == 1
    for wrong in (None, "request", kit.event(1)):
        with pytest.raises(EventError, match="expected a Request"):
            reranker.rerank(wrong)
    with pytest.raises(InputError, match="expected an Item"):
        reranker.remember([Item(id="a"), "b"])


# --- the first call ----------------------------------------------------------------------------------------------


def test_no_compiler_is_loaded_once_the_machine_code_is_there(tmp_path):
    """Neither at the start nor when tables grow, and no call misses its deadline for one."""
    FeaturePipeline(FeatureSpec(name="any"))
    code = """
import sys
import tempfile
from rerank_sdk import Event, Item, Request, Reranker

with tempfile.TemporaryDirectory() as state, Reranker.open(state, deadline_ms=None) as reranker:
    films = [
        Item(id=f"i{n}", multi_categorical={"genres": ("War", "Drama")[: n % 3]}, numeric={"year": 1990.0 + n},
             embedding=tuple(float(n == k) for k in range(32)) if n % 2 else None)
        for n in range(20)
    ]
    for user in ("u", "v"):
        reranker.rerank(Request(user=user, candidates=films, scores=list(range(20)), time_ms=1, id="r"))
        for n in range(30):
            reranker.track(Event(user=user, item=f"i{n}", kind="like", value=4, time_ms=n, request="r"))
        assert reranker.rerank(Request(user=user, candidates=films[:1], time_ms=40, id="r")).fallback is None
    many = [Event(user=f"u{n}", item=f"i{m}", kind="like", value=4, time_ms=m) for n in range(150) for m in range(40)]
    reranker.remember([Item(id=f"i{m}", multi_categorical={"genres": (f"g{m}",)}) for m in range(2000)])
    reranker.track(many)  # tables grow
    reranker.forget("u")
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_file_is_no_state_folder(tmp_path):
    (tmp_path / "state").write_text("not a folder")
    with pytest.raises(StoreError, match="it is a file; give the folder"):
        Reranker.open(tmp_path / "state")
    assert (tmp_path / "state").read_text() == "not a folder"


def test_a_bundle_that_cannot_be_used_is_in_the_log(tmp_path, caplog):
    with Reranker.open(tmp_path / "state", tmp_path / "nope.rrb"):
        pass
    assert "every list keeps the server's order" in caplog.text
    assert "nope.rrb" in caplog.text
