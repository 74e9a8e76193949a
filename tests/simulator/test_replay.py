"""Replay: every policy sees the same, and the figures are those that one computes by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rerank_engine.errors import DataError, InputError, RerankError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_features import Event, FeatureSpec, Item
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.policies import OnDevice, Popularity, ServerOrder
from rerank_simulator.replay import replay
from rerank_simulator.timeline import Checkpoint, Delivery, Tracked

SPEC = FeatureSpec.from_toml("""
name = "taste"
[items]
categorical = ["genre"]
[[dense]]
kind = "count"
name = "genre_likes"
key = "genre"
kinds = ["like"]
window = "ever"
[[dense]]
kind = "server_rank"
name = "rank"
""")
ITEMS = tuple(Item(id=f"i{number}", categorical={"genre": "ab"[number % 2]}) for number in range(6))


@pytest.fixture(scope="module")
def bundle():
    """Likes of the genre count 100, the server's places -1: an order that one can tell by hand."""
    graph = Graph("by hand", inputs=["dense"], outputs=["score", "head_input"])
    for name, columns in (("dense", 2), ("score", 1), ("head_input", 2)):
        graph.values[name] = Value(name, "float32", (Dim("N"), columns))
    weight = graph.add_constant("w", np.array([[100.0], [-1.0]], np.float32))
    graph.nodes = [
        Node("MatMul", "last", ("dense", weight), ("score",)),
        Node("Identity", "head_input", ("dense",), ("head_input",)),
    ]
    return Bundle.build("by hand", Model(graph), SPEC)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("machine-code")


@pytest.fixture
def open_reranker(bundle, cache_dir, tmp_path):
    opened = []

    def make(name="state", **options):
        options = {"deadline_ms": None, "strict": True, **options}
        opened.append(Reranker.open(tmp_path / name, bundle, cache_dir=cache_dir, **options))
        return opened[-1]

    yield make
    for reranker in opened:
        reranker.close()


def delivery(visit, user="u", start_ms=0, popularity=(0, 5, 3, 5, 1, 2)):
    return Delivery(visit, user, f"visit-{visit}", start_ms, ITEMS, (6, 5, 4, 3, 2, 1.0), np.array(popularity))


def tracked(visit, item, time_ms, kind="like", user="u"):
    event = Event(user=user, item=f"i{item}", kind=kind, time_ms=time_ms, request=f"visit-{visit}")
    return Tracked(visit, event, ITEMS[item])


def checkpoint(listed, time_ms, done, relevant, seen=()):
    places = np.arange(6)
    return Checkpoint(listed, time_ms, done, np.isin(places, relevant).astype(np.float32), np.isin(places, list(seen)))


class Recorder(ServerOrder):
    """Keeps what it is shown, in order."""

    def __init__(self, order=None):
        self.seen, self._order = [], order

    def deliver(self, entry):
        self.seen.append(entry)

    def track(self, entry):
        self.seen.append(entry)

    def order(self, entry):
        self.seen.append(entry)
        return np.arange(6) if self._order is None else np.array(self._order)


def two_visits():
    first, second = delivery(1), delivery(2, "v")
    return [
        first,
        tracked(1, 0, 10),
        checkpoint(first, 10, 1, relevant=(2, 5), seen=(0,)),
        second,
        tracked(2, 1, 20, "dislike", "v"),
        checkpoint(second, 20, 1, relevant=(3,), seen=(1,)),
        tracked(1, 2, 30),
        checkpoint(first, 30, 2, relevant=(5,), seen=(0, 2)),
        tracked(1, 5, 40),
        checkpoint(first, 40, 3, relevant=(), seen=(0, 2, 5)),
    ]


# --- the figures -----------------------------------------------------------------------------------------------


def test_the_metrics_of_the_servers_order_by_hand():
    result = replay(two_visits(), {"server": ServerOrder()})
    # unseen, in order: 1 2* 3 4 5*;  0 2 3* 4 5;  1 3 4 5*
    ideal = 1 + 1 / np.log2(3)
    np.testing.assert_allclose(
        result.values["server"]["ndcg10"],
        [(1 / np.log2(3) + 1 / np.log2(6)) / ideal, 1 / np.log2(4), 1 / np.log2(5)],
    )
    np.testing.assert_allclose(result.values["server"]["mrr"], [1 / 2, 1 / 3, 1 / 4])
    np.testing.assert_allclose(result.values["server"]["recall10"], [1, 1, 1])
    assert result.users.tolist() == ["u", "v", "u"]
    assert result.events_done.tolist() == [1, 1, 2]
    assert result.lists_without_relevant == 1


def test_the_metrics_of_an_order_by_hand():
    result = replay(two_visits(), {"turned": Recorder([5, 4, 3, 2, 1, 0])})
    # unseen: 5* 4 3 2* 1;  5 4 3* 2 0;  5* 4 3 1
    np.testing.assert_allclose(result.values["turned"]["mrr"], [1, 1 / 3, 1])
    ideal = 1 + 1 / np.log2(3)
    np.testing.assert_allclose(result.values["turned"]["ndcg10"], [(1 + 1 / np.log2(5)) / ideal, 1 / np.log2(4), 1])


def test_popularity_sorts_by_count_and_keeps_ties():
    result = replay(two_visits(), {"popular": Popularity()})
    # 1 3 2 5 4 0;  unseen: 1 3 2* 5* 4;  3* 2 5 4 0;  1 3 5* 4
    np.testing.assert_allclose(result.values["popular"]["mrr"], [1 / 3, 1, 1 / 3])


def test_an_interval_is_over_users():
    result = replay(two_visits(), {"server": ServerOrder(), "turned": Recorder([5, 4, 3, 2, 1, 0])})
    assert result.interval("server", "mrr").mean == pytest.approx(((1 / 2 + 1 / 4) / 2 + 1 / 3) / 2)
    lift = result.lift("turned", "server", "mrr")
    assert lift == result.lift("turned", "server", "mrr")
    assert result.lift("server", "server", "mrr").absolute.mean == 0
    summary = result.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["server"]["mrr"]["mean"] == result.interval("server", "mrr").mean


def test_more_than_ten_candidates_cut_the_list_at_ten():
    items = tuple(Item(id=f"n{number}") for number in range(15))
    listed = Delivery(1, "u", "visit-1", 0, items, tuple(range(15, 0, -1)), np.zeros(15, np.int64))
    relevance = np.zeros(15, np.float32)
    relevance[[9, 10, 14]] = 1
    seen = np.zeros(15, np.bool_)
    seen[0] = True
    result = replay([listed, Checkpoint(listed, 0, 1, relevance, seen)], {"server": ServerOrder()})
    # with the first one seen, places 9 and 10 have ranks 9 and 10, and 14 has rank 14
    assert result.values["server"]["recall10"][0] == pytest.approx(2 / 3)
    assert result.values["server"]["mrr"][0] == pytest.approx(1 / 9)


# --- what policies see -----------------------------------------------------------------------------------------


def test_every_policy_sees_the_same_entries_in_the_same_order():
    entries = two_visits()
    policies = {"one": Recorder(), "two": Recorder([5, 4, 3, 2, 1, 0])}
    result = replay(iter(entries), policies)
    for policy in policies.values():
        assert [id(entry) for entry in policy.seen] == [id(entry) for entry in entries]
    for name in policies:
        assert (result.track_us[name].shape, result.order_us[name].shape) == ((4,), (4,))
        assert (result.track_us[name] >= 0).all()


def test_progress_counts_to_the_end():
    calls = []
    replay(two_visits(), {"a": ServerOrder(), "b": ServerOrder()}, progress=lambda *call: calls.append(call))
    assert calls[0] == (0, 20, "a")
    assert calls[-1] == (20, 20, "b")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [0] * 6, list(range(7))])
def test_an_order_that_loses_a_candidate_is_refused(order):
    with pytest.raises(InputError, match="policy 'bad' did not return every candidate once"):
        replay(two_visits(), {"bad": Recorder(order)})


@pytest.mark.parametrize("entries", [[], [delivery(1)], [delivery(1), checkpoint(delivery(1), 0, 0, relevant=())]])
def test_nothing_to_judge_is_an_error(entries):
    with pytest.raises(DataError, match="nothing can be judged"):
        replay(entries, {"server": ServerOrder()})


def test_a_relevant_candidate_that_was_seen_judges_nothing():
    listed = delivery(1)
    with pytest.raises(DataError):
        replay([listed, checkpoint(listed, 0, 1, relevant=(0,), seen=(0,))], {"server": ServerOrder()})


def test_unknown_names_are_refused():
    result = replay(two_visits(), {"server": ServerOrder()})
    with pytest.raises(InputError, match="no policy 'model' was replayed; replayed: server"):
        result.interval("model", "mrr")
    with pytest.raises(InputError, match="no metric is called 'auc'"):
        result.lift("server", "server", "auc")


# --- the production path ---------------------------------------------------------------------------------------


def test_on_device_is_the_reranker_fed_event_by_event(open_reranker):
    policy, witness = OnDevice(open_reranker("policy")), open_reranker("witness")
    for entry in two_visits():
        if isinstance(entry, Delivery):
            policy.deliver(entry)
        elif isinstance(entry, Tracked):
            policy.track(entry)
            witness.remember([entry.item])
            witness.track(entry.event)
        else:
            expected = witness.rerank(entry.delivery.as_request(entry.time_ms))
            assert policy.order(entry).tolist() == expected.order.tolist()
            assert policy.last.scores.tobytes() == expected.scores.tobytes()


def test_with_recent_events_the_liked_genre_rises(open_reranker):
    listed = delivery(1)
    policy = OnDevice(open_reranker())
    policy.deliver(listed)
    policy.track(tracked(1, 1, 10))
    order = policy.order(checkpoint(listed, 10, 1, (3,), (1,)))
    # i1 was reacted to and keeps its place; the other odd ones have 100 for the like
    assert order.tolist() == [3, 1, 5, 0, 2, 4]


def visits_of(user, count, likes):
    """Visits with two events each; a list on delivery, after each event and at the end of the visit."""
    for visit in range(1, count + 1):
        listed = delivery(visit, user, visit * 10_000)
        yield listed
        yield checkpoint(listed, visit * 10_000, 0, (5,))
        for done in (1, 2):
            time_ms = visit * 10_000 + 10 * done
            yield tracked(visit, (likes + 2 * done) % 6, time_ms, user=user)
            yield checkpoint(listed, time_ms, done, (5,), ((likes + 2 * done) % 6,))


def merged(*streams):
    return [entry for group in zip(*streams, strict=True) for entry in group]


def test_without_recent_events_the_model_knows_earlier_visits_only(open_reranker):
    """Also at the last moment of a visit, and while other users are in the middle of theirs."""
    entries = merged(visits_of("u", 4, 1), visits_of("v", 4, 0))
    policy, witness = OnDevice(open_reranker("policy"), recent_events=False), open_reranker("witness")
    past = {"u": [], "v": []}
    for entry in entries:
        if isinstance(entry, Tracked):
            policy.track(entry)
            past[entry.event.user].append(entry)
        elif isinstance(entry, Delivery):
            policy.deliver(entry)
        else:
            user, visit = entry.delivery.user, entry.delivery.visit
            for one in past[user]:
                if one.visit < visit:
                    witness.remember([one.item])
                    witness.track(one.event)
            expected = witness.rerank(entry.delivery.as_request(entry.time_ms))
            assert policy.order(entry).tolist() == expected.order.tolist()
            assert policy.last.scores.tobytes() == expected.scores.tobytes()


def test_an_earlier_visit_without_a_list_counts_too(open_reranker):
    """A visit before the lists begin has events only; the next visit must know them from its first event on."""
    policy = OnDevice(open_reranker(), recent_events=False)
    policy.track(tracked(1, 1, 10))
    policy.track(tracked(1, 3, 20))
    listed = delivery(2, start_ms=10_000)
    policy.deliver(listed)
    assert policy.order(checkpoint(listed, 10_000, 0, (5,))).tolist() == [1, 3, 5, 0, 2, 4]
    policy.track(tracked(2, 0, 10_010))
    policy.track(tracked(2, 2, 10_020))
    assert policy.order(checkpoint(listed, 10_020, 2, (5,))).tolist() == [1, 3, 5, 0, 2, 4]
    policy.track(tracked(3, 4, 20_000))
    later = delivery(4, start_ms=30_000)
    policy.deliver(later)
    assert policy.order(checkpoint(later, 30_000, 0, (5,))).tolist() == [0, 2, 4, 1, 3, 5]


def test_a_personalised_policy_learns_when_a_list_comes_and_before_each_order(open_reranker):
    reranker = open_reranker()
    calls = []
    reranker.personalise = lambda user: calls.append(user)
    policy = OnDevice(reranker, personalise=True)
    for entry in two_visits()[:6]:
        if isinstance(entry, Delivery):
            policy.deliver(entry)
        elif isinstance(entry, Tracked):
            policy.track(entry)
        else:
            policy.order(entry)
    assert calls == ["u", "u", "v", "v"]


def test_a_fault_in_a_replay_is_an_error_and_no_result(open_reranker):
    lenient = OnDevice(open_reranker(deadline_ms=1e-6, strict=False))
    with pytest.raises(RerankError, match="fell back in a replay: took"):
        replay(two_visits(), {"model": lenient})
    assert lenient.last.fallback is not None


def test_two_replays_are_the_same(open_reranker):
    entries = merged(visits_of("u", 5, 1), visits_of("v", 5, 0))
    results = [
        replay(entries, {"model": OnDevice(open_reranker(f"state-{number}"), personalise=True)}) for number in range(2)
    ]
    for metric in ("ndcg10", "mrr", "recall10"):
        first, second = (result.values["model"][metric] for result in results)
        assert first.tobytes() == second.tobytes()
