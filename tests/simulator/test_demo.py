"""The demonstration on a made-up log: what is told is what was replayed, and bad input is told early."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import DataError, ModelFileError, RerankError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_engine.passes.expose_head import expose_last_layer
from rerank_features import Event, FeatureSpec, Item
from rerank_features.spec import Count, ItemFields, SequenceFeature, ServerRank, ServerScore, Similarity
from rerank_sdk.bundle import Bundle
from rerank_simulator import demo
from rerank_simulator.intervals import Interval, Lift
from rerank_simulator.logs import RatingLog
from rerank_simulator.movielens import (
    PERSONALISED,
    SERVER,
    WITH_EVENTS,
    WITHOUT_EVENTS,
    make_timeline,
    replay_entries,
    standard_policies,
)
from rerank_simulator.replay import METRICS, replay
from rerank_simulator.report.result import AGAIN, FIRST, STAGES, TRACK, DemoResult, EventsResult, LiftResult
from rerank_simulator.timeline import Checkpoint, Delivery, Entry, Tracked

DAY_MS = 86_400_000
USERS, ITEMS, VISITS, EVENTS = 12, 60, 4, 9


def make_log() -> RatingLog:
    """Users of two tastes come every seventh day and rate nine films, ten seconds apart."""
    generator = np.random.default_rng(7)
    rows = []
    for user in range(USERS):
        own = generator.permutation(30) + 30 * (user % 2)
        other = generator.permutation(30) + 30 * (1 - user % 2)
        films = generator.permutation(np.concatenate([own[:28], other[:8]]))
        for number, film in enumerate(films):
            visit, event = divmod(number, EVENTS)
            time_ms = visit * 7 * DAY_MS + user * 3_600_000 + event * 10_000
            liked = (film // 30) == user % 2
            rows.append((user, film, generator.choice([4, 5] if liked else [2, 3]), time_ms))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return RatingLog.from_rows(
        *columns,
        user_ids=[f"u{number}" for number in range(USERS)],
        item_ids=[f"i{number}" for number in range(ITEMS)],
        titles=["", *(f"Film {number}" for number in range(1, ITEMS))],
        genres=[["Comedy" if number < 30 else "Drama"] for number in range(ITEMS)],
    )


def make_bundle() -> Bundle:
    """Two layers over five features: likes of the film's genre and similarity count most."""
    spec = FeatureSpec(
        name="tiny",
        items=ItemFields(multi_categorical={"genres": 2}, embedding_dim=32),
        dense=[
            ServerScore(name="score", transform="standardize", group="the server ranks it high"),
            ServerRank(name="rank", transform="log1p", group="the server ranks it high"),
            Count(
                name="likes", key="genres", kinds=["like"], window="session", reduce="mean", group="genres you liked"
            ),
            Similarity(name="similar", sequence="history", group="similar to what you rated"),
        ],
        sequences=[SequenceFeature(name="history", kinds=["like"], length=5, embedding=True)],
    )
    graph = Graph("tiny", inputs=["dense"], outputs=["y"])
    first = np.array([[0.3, 0.0], [-0.1, 0.0], [0.0, 0.5], [0.2, 0.6]], np.float32)
    graph.values["dense"] = Value("dense", "float32", (Dim("N"), 4))
    graph.values["hidden"] = Value("hidden", "float32", (Dim("N"), 2))
    graph.values["y"] = Value("y", "float32", (Dim("N"), 1))
    weights = (graph.add_constant("first", first), graph.add_constant("last", np.ones((2, 1), np.float32)))
    graph.nodes.append(Node("MatMul", "hidden", ("dense", weights[0]), ("hidden",)))
    graph.nodes.append(Node("MatMul", "score", ("hidden", weights[1]), ("y",)))
    return Bundle.build("tiny", Model(expose_last_layer(graph)), spec, {"seed": 3, "rate": 0.00002})


@pytest.fixture(scope="module")
def log() -> RatingLog:
    return make_log()


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return make_bundle()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def calls() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def result(log: RatingLog, bundle: Bundle, cache_dir: Path, calls: list[tuple[int, int, str]]) -> DemoResult:
    return demo.run_demo(
        log, bundle, data_name="made up", progress=lambda *call: calls.append(call), cache_dir=cache_dir
    )


@pytest.fixture(scope="module")
def entries(log: RatingLog) -> list[Entry]:
    return list(replay_entries(make_timeline(log)))


def test_figures_are_those_of_the_replay(
    result: DemoResult, entries: list[Entry], bundle: Bundle, cache_dir: Path
) -> None:
    with standard_policies(bundle, cache_dir=cache_dir) as policies:
        again = replay(entries, policies)
    assert [one.policy for one in result.policies] == list(again.values)
    assert all(
        one.metrics == {metric: again.interval(one.policy, metric) for metric in METRICS} for one in result.policies
    )
    compared = {(WITH_EVENTS, SERVER), (WITH_EVENTS, WITHOUT_EVENTS), (PERSONALISED, WITH_EVENTS)}
    assert {(one.policy, one.baseline) for one in result.lifts} == compared
    assert all(one.lift == again.lift(one.policy, one.baseline, one.metric) for one in result.lifts)
    assert len(result.lifts) == 9
    gains = again.values[WITH_EVENTS]["ndcg10"] - again.values[SERVER]["ndcg10"]
    assert (result.gains.higher, result.gains.lower) == ((gains > 0).sum(), (gains < 0).sum())
    assert result.gains.higher + result.gains.equal + result.gains.lower == result.replay.lists == len(gains)
    facts = result.replay
    assert (facts.name, facts.users, facts.items) == ("made up", USERS, 60)
    assert (facts.lists_without_relevant, facts.level) == (again.lists_without_relevant, 0.95)
    assert (facts.first_day, facts.last_day) == ("1970-01-22", "1970-01-22")
    # The story's list is one of the replay's: its values are the replay's values.
    judged = [one for one in entries if isinstance(one, Checkpoint) and (one.relevance[~one.seen] > 0).any()]
    story = result.story
    place = next(i for i, one in enumerate(judged) if one.delivery.user == story.user and one.events_done == 3)
    assert story.ndcg10_server == pytest.approx(again.values[SERVER]["ndcg10"][place], abs=1e-12)
    assert story.ndcg10_model == pytest.approx(again.values[WITH_EVENTS]["ndcg10"][place], abs=1e-12)
    assert story.lists_with_larger_gain == (gains > gains[place] + 1e-12).sum()


def test_lists_by_events_cover_every_judged_list(result: DemoResult) -> None:
    assert [(one.fewest, one.most) for one in result.by_events] == [(1, 2), (3, 9)]
    assert sum(one.lists for one in result.by_events) == result.replay.lists
    assert all(set(one.ndcg10) == {SERVER, WITHOUT_EVENTS, WITH_EVENTS} for one in result.by_events)


def test_story_is_told_as_it_happened(result: DemoResult, log: RatingLog, entries: list[Entry]) -> None:
    story = result.story
    tracked = [one for one in entries if isinstance(one, Tracked) and one.event.user == story.user]
    visit = [one for one in tracked if one.event.time_ms >= 21 * DAY_MS]
    title = dict(zip(log.item_ids, log.titles, strict=True)) | {"i0": "i0"}
    assert [(one.title, one.kind, one.rating) for one in story.events] == [
        (title[one.event.item], one.event.kind, one.event.value) for one in visit[:3]
    ]
    assert story.past_events == len(tracked) - len(visit) == 27
    rated = {one.event.item for one in visit[:3]}
    liked_later = {one.event.item for one in visit[3:] if one.event.kind == "like"}
    for top in (story.server_top, story.model_top):
        assert len(top) == 10
        assert not {one.item for one in top} & rated
        assert all(one.relevant == (one.item in liked_later) and one.title == title[one.item] for one in top)
    assert [one.server_place for one in story.server_top] == list(range(1, 11))
    assert [one.model_place for one in story.model_top] == list(range(1, 11))
    both = {one.item: one for one in story.server_top}
    assert all(both.get(one.item, one) == one for one in story.model_top)
    groups = {"the server ranks it high", "genres you liked", "similar to what you rated"}
    reasons = [reason for one in story.model_top for reason in one.reasons]
    assert {reason.group for reason in reasons} <= groups
    assert any(reason.effect > 0 for reason in reasons)
    assert "exactly 3 events" in story.rule
    assert "at least 5 unrated films" in story.rule
    assert story.relevant >= 5


def test_latencies_rest_on_enough_calls(result: DemoResult) -> None:
    latency = result.latency
    assert [row.stage for row in latency.rows] == [TRACK, *STAGES, AGAIN, FIRST]
    assert all(latency.row(stage).calls >= demo.MIN_RERANKS for stage in (*STAGES, AGAIN))
    assert all(0 < row.p50_us <= row.p99_us and row.calls > 0 for row in latency.rows)
    assert latency.row("compute features").p50_us < latency.row(AGAIN).p50_us
    assert latency.backend in ("cpu", "numpy")
    with pytest.raises(RerankError, match="no stage 'sleep'"):
        latency.row("sleep")


def test_progress_rises_to_the_end(result: DemoResult, calls: list[tuple[int, int, str]]) -> None:
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (1, calls[-1][1])
    assert len({call[1] for call in calls}) == 1
    assert {WITH_EVENTS, PERSONALISED, "server lists", "production re-ranker"} <= {call[2] for call in calls}


def test_same_input_gives_the_same_result_but_for_latencies(
    result: DemoResult, log: RatingLog, bundle: Bundle, cache_dir: Path
) -> None:
    again = demo.run_demo(log, bundle, data_name="made up", cache_dir=cache_dir)
    assert replace(again, latency=result.latency) == result


def test_result_becomes_json(result: DemoResult) -> None:
    plain = result.as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["policies"][0]["policy"] == SERVER
    assert set(plain["policies"][0]["metrics"]["mrr"]) == {"mean", "low", "high"}
    # Figures are rounded for readers, the bundle's own facts are not touched.
    assert plain["bundle_facts"] == {"seed": 3, "rate": 0.00002}
    assert plain["lifts"][0]["lift"]["mean_a"] == round(result.lifts[0].lift.mean_a, 4)
    assert plain["lifts"][0]["verdict"] == result.lifts[0].verdict
    assert plain["warnings"] == list(result.warnings)
    assert replace(result, bundle_facts={"loss": float("nan")}).as_dict()["bundle_facts"] == {"loss": None}


def lift_of(low: float, high: float) -> LiftResult:
    return LiftResult("a", "b", "mrr", Lift(0.5, 0.4, Interval((low + high) / 2, low, high, 9, 9, 0, 0.95), None))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.2, "better"), (-0.2, -0.01, "worse"), (-0.1, 0.2, "cannot tell"), (0.0, 0.2, "cannot tell")],
)
def test_verdict_follows_the_interval(result: DemoResult, low: float, high: float, verdict: str) -> None:
    lift = lift_of(low, high)
    assert lift.verdict == verdict
    warned = [text for text in replace(result, lifts=(lift,)).warnings if text.startswith("a against b: ")]
    assert (verdict == "better") == (not warned)
    assert all(verdict in text and "MRR" in text for text in warned)


def test_a_story_that_does_not_gain_is_warned_of(result: DemoResult) -> None:
    text = "On the list of the story the model is not above"
    for ndcg10_model, expected in ((0.2, 1), (0.3, 1), (0.31, 0)):
        story = replace(result.story, ndcg10_server=0.3, ndcg10_model=ndcg10_model)
        assert sum(one.startswith(text) for one in replace(result, story=story).warnings) == expected


@pytest.mark.parametrize(("fewest", "most", "label"), [(1, 2, "1 to 2"), (3, 3, "3"), (30, None, "30 or more")])
def test_label_of_a_range(fewest: int, most: int | None, label: str) -> None:
    assert EventsResult(fewest, most, 1, 1, {}).label == label


# --- which list is told --------------------------------------------------------------------------------------


def visit_of(number: int, user: str, relevant: int, events_done: int = 3) -> list[Entry]:
    """A list of twelve films, some events, and one reordering."""
    films = tuple(Item(id=f"i{place}") for place in range(12))
    delivery = Delivery(number, user, f"visit-{number}", number, films, (0.0,) * 12, np.zeros(12, np.int64))
    events: list[Entry] = [
        Tracked(number, Event(user=user, item=f"x{place}", kind="like", time_ms=number), films[0])
        for place in range(events_done)
    ]
    relevance = (np.arange(12) < relevant).astype(np.float32)
    return [delivery, *events, Checkpoint(delivery, number, events_done, relevance, np.zeros(12, np.bool_))]


Visits = list[tuple[str, int, int]]


@pytest.mark.parametrize(
    ("visits", "expected"),
    [
        # A user with a past comes before an earlier one without.
        ([("a", 12, 3), ("b", 12, 3), ("a", 10, 3), ("b", 11, 3)], 2),
        # The highest number of relevant films that any list of such a user reaches decides, then time.
        ([("a", 0, 3), ("a", 5, 3), ("a", 9, 3)], 1),
        ([("a", 0, 3), ("a", 1, 3), ("a", 3, 3), ("a", 4, 3)], 2),
        # Only reorderings after exactly three events count.
        ([("a", 0, 3), ("a", 12, 4), ("a", 12, 2), ("a", 1, 3)], 3),
        # Without anyone who came before, a new user will do.
        ([("a", 2, 3), ("b", 5, 3)], 1),
    ],
)
def test_the_rule_chooses_by_what_the_user_did(visits: Visits, expected: int) -> None:
    entries = [
        entry
        for number, (user, relevant, done) in enumerate(visits)
        for entry in visit_of(number, user, relevant, done)
    ]
    chosen = demo._choose_story(entries)
    assert chosen.checkpoint.delivery.visit == expected
    assert chosen.past_events == sum(done for user, _, done in visits[:expected] if user == visits[expected][0])
    assert ("earlier visit" in chosen.rule) == (chosen.past_events > 0)


def test_seen_films_do_not_count_for_the_rule() -> None:
    entries = visit_of(0, "a", 1)
    checkpoint = entries[-1]
    assert isinstance(checkpoint, Checkpoint)
    entries[-1] = replace(checkpoint, seen=checkpoint.relevance > 0)
    with pytest.raises(DataError, match="none of 1 lists holds a relevant candidate"):
        demo._choose_story(entries)


# --- refusals ------------------------------------------------------------------------------------------------


def cut(log: RatingLog, keep: Callable[[RatingLog], Any]) -> RatingLog:
    rows = np.flatnonzero(keep(log))
    return RatingLog.from_rows(
        log.user[rows],
        log.item[rows],
        log.rating[rows],
        log.time_ms[rows],
        user_ids=log.user_ids,
        item_ids=log.item_ids,
    )


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda log: log.user < 0, "needs a log with ratings"),
        (lambda log: log.time_ms < DAY_MS, "no list can be told"),
        (lambda log: log.rating < 4, "no list can be told"),
        (lambda log: (log.user == 0) | (log.time_ms < DAY_MS), "at least 2 users"),
    ],
    ids=["empty", "shorter than a visit", "without a like", "one user only"],
)
def test_a_log_that_tells_nothing_is_refused(
    log: RatingLog, bundle: Bundle, cache_dir: Path, keep: Callable[[RatingLog], Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        demo.run_demo(cut(log, keep), bundle, cache_dir=cache_dir)


def test_a_damaged_bundle_is_refused_before_the_long_work(log: RatingLog, bundle: Bundle) -> None:
    calls: list[tuple[int, int, str]] = []
    damaged = replace(bundle, model_bytes=bundle.model_bytes[:-1])
    with pytest.raises(ModelFileError):
        demo.run_demo(log, damaged, progress=lambda *call: calls.append(call))
    assert not calls
