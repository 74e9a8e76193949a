"""A log as an app lived it, checked by hand: lists, events, moments to reorder, and what counts as relevant."""

from __future__ import annotations

import numpy as np
import pytest

from rerank_engine.errors import InputError
from rerank_features import Event
from rerank_features.training_set import LabelledRequest
from rerank_simulator.logs import RatingLog
from rerank_simulator.timeline import Checkpoint, Delivery, Timeline, Tracked

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
START_MS = 880_000_000_000
ITEMS = 12
VISIT_MS = START_MS + 8 * DAY_MS
"""Start of the visits that are looked at: the server has been trained once, a day before."""


def make_log(rows):
    """Rows of (user, item, rating, time_ms) on top of a first week in which five users rate everything."""
    first_week = [
        (user, item, 5 if (user + item) % 3 else 2, START_MS + (user * ITEMS + item) * 3 * MINUTE_MS)
        for user in range(5)
        for item in range(ITEMS)
    ]
    user, item, rating, time_ms = zip(*first_week, *rows, strict=True)
    return RatingLog.from_rows(
        user,
        item,
        rating,
        time_ms,
        user_ids=[f"u{number}" for number in range(10)],
        item_ids=[f"i{number}" for number in range(ITEMS)],
        years=[1990 + number if number else 0 for number in range(ITEMS)],
        genres=[("Drama", "Comedy")[: 1 + number % 2] for number in range(ITEMS)],
    )


def minutes(*times):
    return [VISIT_MS + round(time * MINUTE_MS) for time in times]


def play(log, checkpoints=(1, 3), lists_from_ms=VISIT_MS, end_ms=VISIT_MS + 100 * DAY_MS, **options):
    timeline = Timeline(log, START_MS + 7 * DAY_MS, 4, checkpoints, **options)
    return list(timeline.entries(lists_from_ms, end_ms))


def of_kind(entries, kind):
    return [entry for entry in entries if isinstance(entry, kind)]


def relevant_items(checkpoint):
    ids = np.array([item.id for item in checkpoint.delivery.candidates])
    return set(ids[checkpoint.relevance > 0].tolist())


def seen_items(checkpoint):
    ids = np.array([item.id for item in checkpoint.delivery.candidates])
    return set(ids[checkpoint.seen].tolist())


def one_visit(*ratings, user=7, times=None):
    """Ratings of the items 0, 1, 2, … in one visit, a minute apart."""
    return [
        (user, item, rating, time)
        for item, (rating, time) in enumerate(zip(ratings, times or minutes(*range(len(ratings))), strict=True))
    ]


# --- what happens when -----------------------------------------------------------------------------------------


def test_a_visit_is_a_list_its_events_and_moments_to_reorder():
    entries = play(make_log(one_visit(5, 3, 1, 4)))
    kinds = [type(entry).__name__ for entry in entries]
    assert kinds == ["Delivery", "Tracked", "Checkpoint", "Tracked", "Tracked", "Checkpoint", "Tracked"]
    delivery = entries[0]
    assert (delivery.user, delivery.time_ms) == ("u7", VISIT_MS)
    assert [entry.event.item for entry in of_kind(entries, Tracked)] == ["i0", "i1", "i2", "i3"]
    first, second = of_kind(entries, Checkpoint)
    assert first.delivery is second.delivery is delivery
    assert (first.time_ms, first.events_done, second.time_ms, second.events_done) == (*minutes(0), 1, *minutes(2), 3)


def test_ratings_become_kinds():
    tracked = of_kind(play(make_log(one_visit(5, 4, 3.5, 3, 2.5, 1))), Tracked)
    assert [entry.event.kind for entry in tracked] == ["like", "like", "click", "click", "dislike", "dislike"]
    assert [entry.event.value for entry in tracked] == [5, 4, 3.5, 3, 2.5, 1]
    requests = {entry.event.request for entry in tracked}
    assert requests == {f"visit-{tracked[0].visit}"}


def test_the_request_is_the_list_at_a_moment():
    delivery = play(make_log(one_visit(5)))[0]
    request = delivery.as_request(VISIT_MS + 5)
    assert (request.user, request.id, request.time_ms) == ("u7", delivery.request, VISIT_MS + 5)
    assert all(one is other for one, other in zip(request.candidates, delivery.candidates, strict=True))
    assert request.scores == delivery.scores
    assert (np.diff(request.scores) <= 0).all()


def test_a_list_holds_what_the_user_has_not_rated_before():
    log = make_log([(2, 0, 5, VISIT_MS), *one_visit(5)])
    lists = {entry.user: {item.id for item in entry.candidates} for entry in of_kind(play(log), Delivery)}
    assert lists == {"u7": {f"i{number}" for number in range(ITEMS)}}  # u2 has rated everything: no list
    log = make_log([*one_visit(5), (7, 3, 4, VISIT_MS + 2 * DAY_MS)])
    second = of_kind(play(log), Delivery)[1]
    assert {item.id for item in second.candidates} == {f"i{number}" for number in range(1, ITEMS)}


def test_items_are_as_the_server_knew_them():
    delivery = play(make_log(one_visit(5)))[0]
    by_id = {item.id: item for item in delivery.candidates}
    zero, one = by_id["i0"], by_id["i1"]
    assert zero.categorical == {"decade": "unknown"}
    assert "year" not in zero.numeric
    assert one.categorical == {"decade": "1990s"}
    assert one.numeric["year"] == 1991
    assert one.multi_categorical == {"genres": ("Drama", "Comedy")}
    assert one.numeric["popularity"] == pytest.approx(np.log1p(5))
    ratings = [5 if (user + 1) % 3 else 2 for user in range(5)]
    assert one.numeric["mean_rating"] == pytest.approx(np.mean(ratings))
    assert len(one.embedding) == 4
    assert delivery.popularity.tolist() == [5] * ITEMS


def test_events_of_several_users_come_in_order_of_time():
    rows = [*one_visit(5, 5, times=minutes(0, 10)), *one_visit(5, 5, user=8, times=minutes(5, 15))]
    entries = play(make_log(rows))
    times = [(entry.event if isinstance(entry, Tracked) else entry).time_ms for entry in entries]
    assert times == sorted(times)
    assert [entry.event.user for entry in of_kind(entries, Tracked)] == ["u7", "u8", "u7", "u8"]


def test_visits_before_the_lists_only_track_their_events():
    earlier = [(7, 0, 5, VISIT_MS - DAY_MS // 2), (8, 0, 5, VISIT_MS - DAY_MS // 2)]
    entries = play(make_log([*earlier, (7, 1, 5, VISIT_MS)]))
    assert [type(entry).__name__ for entry in entries] == ["Tracked", "Delivery", "Tracked", "Checkpoint"]
    assert [entry.event.user for entry in of_kind(entries, Tracked)] == ["u7", "u7"]  # u8 never comes back


def test_visits_from_the_end_on_are_left_out():
    log = make_log([*one_visit(5), (8, 0, 5, VISIT_MS + DAY_MS)])
    assert [entry.user for entry in of_kind(play(log, end_ms=VISIT_MS + DAY_MS), Delivery)] == ["u7"]
    assert [entry.user for entry in of_kind(play(log, end_ms=VISIT_MS + DAY_MS + 1), Delivery)] == ["u7", "u8"]
    assert play(log, end_ms=START_MS) == []


def test_lists_before_the_embeddings_are_refused():
    timeline = Timeline(make_log(one_visit(5)), VISIT_MS, 4)
    with pytest.raises(InputError, match="deliver later lists"):
        list(timeline.entries(VISIT_MS - 1, VISIT_MS + DAY_MS))


# --- moments to reorder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "checkpoints", "expected"),
    [
        ((0, 1, 2, 3), (1, 3), [1, 3]),
        ((0, 1, 2, 3), (0, 2), [0, 2]),
        ((0, 1, 2, 3), (4, 30), [4]),
        ((0, 0, 0, 3), (1, 3), [3]),  # the first moment has three events: none of them is known before the others
        ((0, 0, 2, 2), (1, 3), [2, 4]),
        ((0, 0, 0, 0), (1, 2, 3), [4]),
        ((0, 0, 0, 0), (0, 1), [0, 4]),
        ((0, 1, 1, 1), (1, 3), [1, 4]),
        ((0, 1, 2, 3), (), []),
    ],
)
def test_a_moment_to_reorder_waits_for_all_events_of_its_time(times, checkpoints, expected):
    entries = play(make_log(one_visit(5, 4, 5, 4, times=minutes(*times))), checkpoints)
    found = of_kind(entries, Checkpoint)
    assert [checkpoint.events_done for checkpoint in found] == expected
    for checkpoint in found:
        done = checkpoint.events_done
        assert checkpoint.time_ms == (minutes(times[done - 1])[0] if done else VISIT_MS)
        assert seen_items(checkpoint) == {f"i{number}" for number in range(done)}
        before = entries[: [entry is checkpoint for entry in entries].index(True)]
        assert len(of_kind(before, Tracked)) == done


def test_on_delivery_nothing_is_seen_and_everything_is_still_to_come():
    (checkpoint,) = of_kind(play(make_log(one_visit(5, 3, 4)), (0,)), Checkpoint)
    assert not checkpoint.seen.any()
    assert relevant_items(checkpoint) == {"i0", "i2"}


# --- relevance -------------------------------------------------------------------------------------------------


def test_relevant_is_what_is_liked_later_in_the_visit():
    first, third = of_kind(play(make_log(one_visit(5, 4, 3, 5, 2, 4))), Checkpoint)
    assert relevant_items(first) == {"i1", "i3", "i5"}
    assert relevant_items(third) == {"i3", "i5"}
    assert seen_items(third) == {"i0", "i1", "i2"}
    assert (first.relevance.dtype, first.seen.dtype) == (np.float32, np.bool_)


def test_relevant_is_what_is_liked_within_a_day_after_the_visit():
    end_ms = minutes(2)[0]
    later = [
        (7, 5, 5, end_ms + DAY_MS - 1),
        (7, 6, 4, end_ms + DAY_MS),
        (7, 7, 5, end_ms + DAY_MS + 1),
        (7, 8, 3, end_ms + 60 * MINUTE_MS),
        (8, 9, 5, end_ms + 60 * MINUTE_MS),
    ]
    checkpoints = of_kind(play(make_log([*one_visit(5, 4, 5), *later])), Checkpoint)
    first, third = (one for one in checkpoints if one.delivery.time_ms == VISIT_MS)
    assert relevant_items(first) == {"i1", "i2", "i5", "i6"}
    assert relevant_items(third) == {"i5", "i6"}


def test_events_of_one_time_are_not_relevant_to_each_other():
    rows = one_visit(5, 4, 5, 4, times=minutes(0, 0, 1, 1))
    first, last = of_kind(play(make_log(rows), (1, 4)), Checkpoint)
    assert (first.events_done, last.events_done) == (2, 4)
    assert relevant_items(first) == {"i2", "i3"}
    assert relevant_items(last) == set()


def test_what_is_relevant_may_not_be_in_the_list():
    """The list was made when the visit started; an item that was unknown then cannot be a candidate."""
    rows = [(6, 11, 5, VISIT_MS - DAY_MS), *one_visit(5, 4)]
    log = make_log(rows)
    first = of_kind(play(log), Checkpoint)[0]
    assert relevant_items(first) == {"i1"}


# --- training --------------------------------------------------------------------------------------------------


def test_the_training_stream_is_the_timeline():
    timeline = Timeline(make_log(one_visit(5, 3, 4)), START_MS + 7 * DAY_MS, 4, (1, 3))
    entries = list(timeline.entries(VISIT_MS, VISIT_MS + DAY_MS))
    stream = list(timeline.labelled(iter(entries)))
    labelled = [entry for entry in stream if isinstance(entry, LabelledRequest)]
    events = [entry for entry in stream if isinstance(entry, Event)]
    tracked, checkpoints = of_kind(entries, Tracked), of_kind(entries, Checkpoint)
    assert events == [entry.event for entry in tracked]
    for event in events:
        (item,) = stream[stream.index(event) - 1]
        assert item.id == event.item
    for one, checkpoint in zip(labelled, checkpoints, strict=True):
        assert one.request == checkpoint.delivery.as_request(checkpoint.time_ms)
        np.testing.assert_array_equal(one.labels, checkpoint.relevance)
        np.testing.assert_array_equal(one.mask, ~checkpoint.seen)


def test_two_runs_are_the_same():
    log = make_log([*one_visit(5, 4, 3), *one_visit(4, 4, user=8)])
    first, second = play(log), play(log)
    for one, other in zip(first, second, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Delivery):
            assert (one.candidates, one.scores, one.request) == (other.candidates, other.scores, other.request)
        elif isinstance(one, Tracked):
            assert one == other
        else:
            assert one.relevance.tobytes() == other.relevance.tobytes()


def test_an_embargo_leaves_out_what_cannot_be_judged_before_the_end():
    early = [(5, item, 5, time) for item, time in zip(range(3), minutes(0, 1, 2), strict=True)]
    straddling = [(6, item, 5, VISIT_MS + DAY_MS + item * MINUTE_MS) for item in range(3)]
    log = make_log(early + straddling)
    end_ms = VISIT_MS + DAY_MS + 3 * MINUTE_MS
    timeline = Timeline(log, START_MS + 7 * DAY_MS, 4, (1,))
    assert {entry.user for entry in of_kind(timeline.entries(VISIT_MS, end_ms), Delivery)} == {"u5", "u6"}
    kept = list(timeline.entries(VISIT_MS, end_ms, embargo=True))
    assert {entry.user for entry in of_kind(kept, Delivery)} == {"u5"}
    assert not [entry for entry in of_kind(kept, Tracked) if entry.event.user == "u6"]
    # One millisecond earlier the day after the first visit is not over either.
    last_ms = early[-1][3]
    assert not of_kind(timeline.entries(VISIT_MS, last_ms + DAY_MS, embargo=True), Delivery)
    assert of_kind(timeline.entries(VISIT_MS, last_ms + DAY_MS + 1, embargo=True), Delivery)
