"""Nothing knows the future: whatever happens after a moment, everything before it stays the same, bit for bit.

Each test changes all events from a moment on (other times, items, ratings, users, none at all, more of them) and
compares what happened before. The bundled model and its features run as in production.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rerank_features.training_set import build_training_set
from rerank_sdk.bundle import Bundle, builtin_bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.logs import RatingLog
from rerank_simulator.movielens import movielens_spec
from rerank_simulator.policies import OnDevice, Popularity, ServerOrder
from rerank_simulator.replay import replay
from rerank_simulator.server import ServerRecommender, fixed_item_embeddings
from rerank_simulator.timeline import Checkpoint, Delivery, Timeline, Tracked

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
START_MS = 880_000_000_000
USERS, ITEMS, DAYS = 10, 40, 28
DIM = 32
EMBEDDINGS_MS = START_MS + 8 * DAY_MS
LISTS_MS = START_MS + 15 * DAY_MS
END_MS = START_MS + 60 * DAY_MS
CHECKPOINTS = (0, 1, 3, 10)


def base_rows():
    """Visits of up to nine events, some at the same time, by users who like even or odd items."""
    generator = np.random.default_rng(8)
    rows = []
    for user in range(USERS):
        unrated = generator.permutation(ITEMS).tolist()
        for day in sorted(generator.choice(DAYS, size=6, replace=False).tolist()):
            time_ms = START_MS + day * DAY_MS + int(generator.integers(0, 20 * 60)) * MINUTE_MS
            for _ in range(min(len(unrated), int(generator.integers(3, 10)))):
                item = unrated.pop()
                liked = item % 2 == user % 2
                rating = int(generator.choice([4, 5] if liked else [1, 2, 3]))
                rows.append((user, item, rating, time_ms))
                time_ms += int(generator.choice([0, 1, 4, 9])) * MINUTE_MS
    return np.array(rows, np.int64)


ROWS = base_rows()


def make_log(rows):
    return RatingLog.from_rows(
        rows[:, 0],
        rows[:, 1],
        rows[:, 2],
        rows[:, 3],
        user_ids=[f"u{number}" for number in range(USERS)],
        item_ids=[f"i{number}" for number in range(ITEMS)],
        years=[1960 + number for number in range(ITEMS)],
        genres=[("Drama",) if number % 2 else ("Comedy", "Romance") for number in range(ITEMS)],
    )


def removed(before, after):
    return before


def other_items(before, after):
    changed = after.copy()
    changed[:, 1] = (after[:, 1] * 7 + 3) % ITEMS
    return np.concatenate([before, changed])


def turned_ratings(before, after):
    changed = after.copy()
    changed[:, 2] = 6 - after[:, 2]
    return np.concatenate([before, changed])


def other_times(before, after):
    changed = after.copy()
    changed[:, 3] += np.random.default_rng(1).integers(0, 9 * DAY_MS, len(after))
    return np.concatenate([before, changed])


def other_users(before, after):
    changed = after.copy()
    changed[:, 0] = (after[:, 0] + 3) % USERS
    return np.concatenate([before, changed])


def many_more(before, after):
    start_ms = int(after[:, 3].min())
    generator = np.random.default_rng(2)
    count = 300
    more = np.stack(
        [
            generator.integers(0, USERS, count),
            generator.integers(0, ITEMS, count),
            generator.integers(1, 6, count),
            start_ms + generator.integers(0, 5 * DAY_MS, count),
        ],
        axis=1,
    )
    return np.concatenate([before, after, more])


CHANGES = [removed, other_items, turned_ratings, other_times, other_users, many_more]


def moments():
    """In the middle of a visit just after a moment to reorder, at a tie's end, between visits, late."""
    timeline = original()
    entries = list(timeline.entries(LISTS_MS, END_MS))
    after_checkpoint = [
        entries[place + 1].event.time_ms
        for place, entry in enumerate(entries[:-1])
        if isinstance(entry, Checkpoint)
        and entry.events_done
        and isinstance(entries[place + 1], Tracked)
        and entries[place + 1].visit == entry.delivery.visit
        and entries[place + 1].event.time_ms > entry.time_ms
    ]
    deliveries = [entry.time_ms for entry in entries if isinstance(entry, Delivery)]
    count = len(after_checkpoint)
    return [after_checkpoint[count // 4], after_checkpoint[count // 2], after_checkpoint[-1], deliveries[6]]


@cache
def original():
    return Timeline(make_log(ROWS), EMBEDDINGS_MS, DIM, CHECKPOINTS)


def changed_log(change, moment_ms):
    late = ROWS[:, 3] >= moment_ms
    rows = change(ROWS[~late], ROWS[late])
    assert (rows[: (~late).sum()] == ROWS[~late]).all()
    assert rows.shape != ROWS.shape or (rows != ROWS).any()
    return make_log(rows)


def time_of(entry):
    return (entry.event if isinstance(entry, Tracked) else entry).time_ms


def past(timeline, moment_ms):
    """What happened before a moment to the users who got a list before it.

    Users who come later only are in the timeline or not, as they come or not; nobody else can see them.
    """
    entries = [entry for entry in timeline.entries(LISTS_MS, END_MS) if time_of(entry) < moment_ms]
    users = {entry.user for entry in entries if isinstance(entry, Delivery)}
    return [entry for entry in entries if not isinstance(entry, Tracked) or entry.event.user in users]


def plain(entry):
    """Everything but relevance, which is the future by its meaning."""
    if isinstance(entry, Delivery):
        fields = (entry.visit, entry.user, entry.request, entry.time_ms, entry.candidates, entry.scores)
        return ("delivery", *fields, entry.popularity.tobytes())
    if isinstance(entry, Tracked):
        return ("tracked", entry.visit, entry.event, entry.item)
    request = entry.delivery.as_request(entry.time_ms)
    return ("checkpoint", entry.delivery.visit, entry.time_ms, entry.events_done, entry.seen.tobytes(), request)


CASES = [(change, place) for change in CHANGES for place in range(4)]
NAMES = [f"{change.__name__}-{place}" for change, place in CASES]


@pytest.fixture(params=CASES, ids=NAMES)
def case(request):
    """(changed timeline, moment)."""
    change, place = request.param
    moment_ms = moments_once()[place]
    return Timeline(changed_log(change, moment_ms), EMBEDDINGS_MS, DIM, CHECKPOINTS), moment_ms


moments_once = cache(moments)


def test_the_log_is_worth_testing_on():
    """Every moment has lists, orders and events on both sides, and the changes can be seen after it."""
    entries = list(original().entries(LISTS_MS, END_MS))
    assert len(set(moments_once())) == 4
    for moment_ms in moments_once():
        before = past(original(), moment_ms)
        assert sum(isinstance(entry, Delivery) for entry in before) >= 3
        assert sum(isinstance(entry, Checkpoint) for entry in before) >= 6
        after = [plain(entry) for entry in entries if time_of(entry) >= moment_ms]
        for change in CHANGES:
            timeline = Timeline(changed_log(change, moment_ms), EMBEDDINGS_MS, DIM, CHECKPOINTS)
            other = [plain(entry) for entry in timeline.entries(LISTS_MS, END_MS) if time_of(entry) >= moment_ms]
            assert other != after
    relevance = [entry.relevance.sum() for entry in entries if isinstance(entry, Checkpoint)]
    assert np.mean(np.array(relevance) > 0) > 0.5


def test_no_delivery_no_event_and_no_request_changes(case):
    timeline, moment_ms = case
    assert [plain(entry) for entry in past(timeline, moment_ms)] == [
        plain(entry) for entry in past(original(), moment_ms)
    ]


def test_no_server_list_and_no_snapshot_changes(case):
    timeline, moment_ms = case
    server, expected = timeline.server, original().server
    for time_ms in np.linspace(LISTS_MS, moment_ms, 5).astype(int).tolist():
        for user in range(USERS):
            one, other = server.list_for(user, time_ms), expected.list_for(user, time_ms)
            assert one.candidates.tobytes() == other.candidates.tobytes()
            assert one.scores.tobytes() == other.scores.tobytes()
        one, other = server.snapshot_at(time_ms), expected.snapshot_at(time_ms)
        for name in ("item_popularity", "item_mean_rating", "popularity_score", "factors"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@pytest.mark.parametrize("change", CHANGES)
def test_no_embedding_changes(change):
    for before_ms in (EMBEDDINGS_MS, LISTS_MS):
        expected = fixed_item_embeddings(make_log(ROWS), before_ms, DIM)
        found = fixed_item_embeddings(changed_log(change, before_ms), before_ms, DIM)
        assert found.tobytes() == expected.tobytes()
        assert np.abs(expected).sum() > 0


def features_of(timeline, moment_ms):
    return build_training_set(movielens_spec(), timeline.labelled(iter(past(timeline, moment_ms))))


def test_no_feature_of_the_training_set_changes(case):
    timeline, moment_ms = case
    found, expected = features_of(timeline, moment_ms), features_of(original(), moment_ms)
    assert found.lists == expected.lists > 5
    assert found.spec_hash == expected.spec_hash
    for name in ("per_candidate", "per_list"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.keys() == other.keys()
        assert all(one[key].tobytes() == other[key].tobytes() for key in one)
    for name in ("offsets", "mask", "times_ms"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()


@pytest.fixture(scope="module")
def bundle():
    return Bundle.read(builtin_bundle())


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("machine-code")


def rankings(entries, bundle, cache_dir, moment_ms):
    """What each policy answers before a moment, in a replay that goes on after it."""
    with ExitStack() as stack:

        def on_device(**options):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            reranker = Reranker.open(folder, bundle, deadline_ms=None, strict=True, cache_dir=cache_dir)
            stack.callback(reranker.close)
            return Witness(OnDevice(reranker, **options))

        policies = {
            "server": Witness(ServerOrder()),
            "popularity": Witness(Popularity()),
            "recent": on_device(),
            "not recent": on_device(recent_events=False),
            "personalised": on_device(personalise=True),
        }
        replay(entries, policies)
        return {
            name: [answer for time_ms, answer in policy.answers if time_ms < moment_ms]
            for name, policy in policies.items()
        }


class Witness:
    """Passes everything on and keeps the answers."""

    def __init__(self, policy):
        self.deliver, self.track, self._policy, self.answers = policy.deliver, policy.track, policy, []

    def order(self, checkpoint):
        order = self._policy.order(checkpoint)
        last = getattr(self._policy, "last", None)
        details = () if last is None else (last.scores.tobytes(), last.patch_version, last.notes)
        self.answers.append((checkpoint.time_ms, (checkpoint.delivery.request, order.tolist(), *details)))
        return order


@cache
def expected_rankings(bundle_name, cache_dir, moment_ms):
    bundle = Bundle.read(Path(bundle_name))
    return rankings(list(original().entries(LISTS_MS, END_MS)), bundle, cache_dir, moment_ms)


@pytest.mark.parametrize(("change", "place"), CASES[::3], ids=NAMES[::3])
def test_no_ranking_of_any_policy_changes(change, place, bundle, cache_dir):
    moment_ms = moments_once()[place]
    timeline = Timeline(changed_log(change, moment_ms), EMBEDDINGS_MS, DIM, CHECKPOINTS)
    found = rankings(list(timeline.entries(LISTS_MS, END_MS)), bundle, cache_dir, moment_ms)
    expected = expected_rankings(str(builtin_bundle()), cache_dir, moment_ms)
    for name in expected:
        assert found[name] == expected[name], name
    assert len(expected["recent"]) > 5
    assert found["recent"] != found["not recent"]


def test_an_event_before_the_moment_does_change_something(bundle, cache_dir):
    """The comparison has teeth: one rating turned just before the moment is seen by the policies that may know it."""
    moment_ms = moments_once()[1]
    place = int(np.flatnonzero(make_log(ROWS).time_ms < moment_ms)[-1])
    log = make_log(ROWS)
    rows = np.stack([log.user, log.item, log.rating.astype(np.int64), log.time_ms], axis=1)
    rows[place, 2] = 6 - rows[place, 2] if rows[place, 2] != 3 else 5
    timeline = Timeline(make_log(rows), EMBEDDINGS_MS, DIM, CHECKPOINTS)
    found = rankings(list(timeline.entries(LISTS_MS, END_MS)), bundle, cache_dir, moment_ms)
    expected = expected_rankings(str(builtin_bundle()), cache_dir, moment_ms)
    assert found["server"] == expected["server"]
    assert found["not recent"] == expected["not recent"]
    assert found["recent"] != expected["recent"]


def test_relevance_knows_only_what_comes_after():
    """Turning every rating up to a moment to reorder leaves its labels as they are."""
    timeline = original()
    log = timeline.log
    for checkpoint in [entry for entry in timeline.entries(LISTS_MS, END_MS) if isinstance(entry, Checkpoint)][::9]:
        visit_rows = timeline.visits.events_of(checkpoint.delivery.visit)
        done = visit_rows[: checkpoint.events_done]
        rating = log.rating.copy()
        rating[done] = 6 - rating[done]
        other = RatingLog.from_rows(
            log.user,
            log.item,
            rating,
            log.time_ms,
            user_ids=log.user_ids,
            item_ids=log.item_ids,
            years=log.years,
            genres=log.genres,
        )
        again = Timeline(other, EMBEDDINGS_MS, DIM, CHECKPOINTS)._checkpoint(
            checkpoint.delivery, visit_rows, checkpoint.events_done
        )
        assert again.relevance.tobytes() == checkpoint.relevance.tobytes()


def test_a_fresh_server_and_a_used_one_agree():
    """Snapshots are kept: the order in which moments are asked about must not matter."""
    used, fresh = original().server, ServerRecommender(make_log(ROWS))
    late = START_MS + 27 * DAY_MS
    used.list_for(0, late)
    for time_ms in (late, LISTS_MS, START_MS + 20 * DAY_MS):
        for user in range(USERS):
            one, other = used.list_for(user, time_ms), fresh.list_for(user, time_ms)
            assert one.candidates.tobytes() == other.candidates.tobytes()
            assert one.scores.tobytes() == other.scores.tobytes()
