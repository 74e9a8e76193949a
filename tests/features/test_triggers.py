"""Triggers: the rules as data, what fires when, bad input, bounds, and snapshots."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_engine.errors import EventError, SpecError, StoreError
from rerank_features import Event, Item, Request, TriggerMatcher, TriggerSpec
from rerank_features.triggers import (
    TriggerRule,
    TriggerStep,
    default_triggers,
    dwell_over,
    exposures_without_click,
    list_used_up,
    on_click,
    scroll_past,
)
from rerank_features.triggers.recent import RECENT_EVENTS
from rerank_features.triggers.state import MAX_ACTIVE, MAX_LISTS

CLICK: dict[str, Any] = {"name": "c", "action": "rerank", "steps": [{"kinds": ["click"]}]}


def event(kind: str, time_s: float, **more: Any) -> Event:
    return Event(**{"user": "ann", "item": "i", "kind": kind, "time_ms": round(time_s * 1000), **more})


def matcher_of(*rules: TriggerRule, **options: Any) -> TriggerMatcher:
    return TriggerMatcher(TriggerSpec(name="test", rules=rules, **options))


def fired(matcher: TriggerMatcher, *events: Event) -> list[list[str]]:
    return [[one.rule for one in matcher.feed(one)] for one in events]


# --- rules as data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({**CLICK, "debounce": 1}, r"rule 'c': debounce: unknown option; .*did you mean 'debounce_s'\?"),
        ({**CLICK, "action": "rerun"}, r"rule 'c': action: 'rerun' is none of .*did you mean 'rerank'\?"),
        ({**CLICK, "scope": "sesion"}, r"did you mean 'session'\?"),
        ({**CLICK, "steps": []}, "rule 'c': steps: .*at least 1"),
        ({**CLICK, "steps": [{"kind": ["click"]}]}, r"^rule 'c': step 1: kind: unknown option; .*mean 'kinds'\?"),
        ({**CLICK, "steps": [{"kinds": ["Click"]}]}, "lower-case identifiers"),
        ({**CLICK, "steps": [{"kinds": ["click"], "without": ["click"]}]}, "'click' is under kinds and under without"),
        ({**CLICK, "steps": [{"min_value": 2.0, "max_value": 1.0}]}, "min_value = 2.0 is above max_value = 1.0"),
        ({**CLICK, "steps": [{"count": 600}, {"count": 600}]}, "at most 1000 events, got 1200"),
        ({**CLICK, "within_s": float("nan")}, "rule 'c': within_s: "),
        ({"name": "c", "steps": [{}]}, "rule 'c': action: it is missing; add it"),
    ],
)
def test_a_rule_that_is_wrong_says_where(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        TriggerSpec(name="test", rules=[rule])


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match="rule 'c': the name is used twice"):
        TriggerSpec(name="test", rules=[CLICK, CLICK])


def test_toml_and_python_are_the_same_spec(tmp_path: Path) -> None:
    spec = default_triggers()
    path = tmp_path / "triggers.toml"
    path.write_text(spec.to_toml(), encoding="utf-8")
    assert TriggerSpec.from_toml(path) == spec
    assert TriggerSpec.from_toml(spec.to_toml()).content_hash() == spec.content_hash()
    assert spec.content_hash() != TriggerSpec(name="default", rules=spec.rules[:-1]).content_hash()


@pytest.mark.parametrize("source", ["a = = 1", Path("no-such-file"), 3])
def test_toml_that_cannot_be_read(source: Any) -> None:
    with pytest.raises(SpecError):
        TriggerSpec.from_toml(source)


# --- what fires --------------------------------------------------------------------------------------------


def test_the_default_set() -> None:
    matcher = TriggerMatcher(default_triggers())
    matcher.note_request(
        Request(user="ann", time_ms=0, id="r", candidates=[Item(id=f"i{position}") for position in range(10)])
    )
    shown = [
        event("impression", position, item=f"i{position}", position=position, request="r") for position in range(10)
    ]
    assert fired(matcher, *shown) == [
        *[[]] * 4,
        ["exposures_without_click_5"],
        *[[]] * 2,
        ["list_used_up"],
        [],
        ["exposures_without_click_5"],
    ]
    assert fired(matcher, event("click", 20), event("dislike", 21)) == [["click"], ["hide"]]


def test_a_click_starts_the_count_of_exposures_anew() -> None:
    matcher = matcher_of(exposures_without_click(3))
    kinds = ["impression", "impression", "click", "impression", "impression", "impression"]
    assert fired(matcher, *(event(kind, second) for second, kind in enumerate(kinds))) == [
        *[[]] * 5,
        ["exposures_without_click_3"],
    ]


def test_bounds_of_value_and_position() -> None:
    matcher = matcher_of(dwell_over(10.0), scroll_past(5))
    assert fired(matcher, event("dwell", 1), event("dwell", 2, value=9.9), event("dwell", 3, value=10.0)) == [
        [],
        [],
        ["dwell_over_10.0_s"],
    ]
    assert fired(
        matcher, event("impression", 4), event("impression", 5, position=7), event("impression", 6, position=8)
    ) == [[], ["scroll_past_5"], []]


def test_a_list_without_a_known_length_is_never_used_up() -> None:
    assert fired(matcher_of(list_used_up(0.1)), event("impression", 1, position=9, request="r")) == [[]]


def test_a_list_that_comes_again_starts_anew() -> None:
    matcher = matcher_of(scroll_past(0))
    request = Request(user="ann", time_ms=0, id="r", candidates=[Item(id="i")])
    shown = [event("impression", second, position=0, request="r") for second in range(3)]
    assert fired(matcher, *shown[:2]) == [["scroll_past_0"], []]
    matcher.note_request(request)
    assert fired(matcher, shown[2]) == [["scroll_past_0"]]


def test_a_wildcard_stands_for_any_kind() -> None:
    steps = [TriggerStep(kinds=["click"]), TriggerStep(), TriggerStep(kinds=["purchase"])]
    matcher = matcher_of(TriggerRule(name="r", action="refresh", steps=steps, gaps=False))
    kinds = ["click", "purchase", "click", "my_own_kind", "purchase"]
    assert fired(matcher, *(event(kind, second) for second, kind in enumerate(kinds))) == [*[[]] * 4, ["r"]]


def test_a_match_slides_within_its_time() -> None:
    rule = TriggerRule(name="r", action="rerank", steps=[TriggerStep(kinds=["click"], count=3)], within_s=10.0)
    # From the first click the third is too late; from the second it is not.
    assert fired(matcher_of(rule), *(event("click", second) for second in (0, 8, 12, 15))) == [[], [], [], ["r"]]


def test_debounce_and_cooldown() -> None:
    clicks = [event("click", second) for second in range(7)]
    assert fired(matcher_of(on_click(debounce_s=3.0)), *clicks) == [["click"], [], [], ["click"], [], [], ["click"]]
    rule = TriggerRule(**CLICK, cooldown_events=2)
    assert fired(matcher_of(rule), *clicks) == [["c"], [], [], ["c"], [], [], ["c"]]


def test_priority_orders_what_one_event_fires() -> None:
    rules = [
        TriggerRule(**{**CLICK, "name": name}, priority=priority) for name, priority in (("a", 0), ("b", 1), ("c", 1))
    ]
    assert fired(matcher_of(*rules), event("click", 1)) == [["b", "c", "a"]]


# --- bad input ---------------------------------------------------------------------------------------------


def test_a_repeated_event_counts_once() -> None:
    matcher = matcher_of(on_click())
    assert fired(matcher, event("click", 1), event("click", 1), event("click", 1, attributes={"a": 1})) == [
        ["click"],
        [],
        ["click"],
    ]
    assert fired(matcher, event("click", 2, id="e"), event("click", 3, id="e")) == [["click"], []]


def test_the_newest_events_are_recognised() -> None:
    matcher = matcher_of(on_click())
    clicks = [event("click", second) for second in range(100)]
    for number, click in enumerate(clicks):
        matcher.feed(click)
        assert not any(matcher.feed(again) for again in clicks[max(number + 1 - RECENT_EVENTS, 0) : number + 1])


def test_a_clock_set_back_does_not_silence_a_rule() -> None:
    matcher = matcher_of(on_click(debounce_s=60.0), max_late_s=300.0)
    assert fired(matcher, event("click", 4_000_000_000), event("click", 1_000), event("click", 1_001)) == [
        ["click"],
        ["click"],
        [],
    ]


def test_a_late_event_counts_at_the_newest_time() -> None:
    matcher = matcher_of(on_click(), max_late_s=300.0)
    assert [matcher.feed(event("click", second))[0].time_ms for second in (1000, 900)] == [1_000_000, 1_000_000]


@pytest.mark.parametrize("thing", [None, 3, "click", {"kind": "click"}])
def test_what_is_no_event_is_refused_and_changes_nothing(thing: Any) -> None:
    matcher = TriggerMatcher(default_triggers())
    with pytest.raises(EventError, match="feed: expected an Event, got "):
        matcher.feed(thing)
    with pytest.raises(EventError, match="note_request: expected a Request, got "):
        matcher.note_request(thing)
    assert len(matcher) == 0


def test_what_is_no_spec_is_refused() -> None:
    with pytest.raises(SpecError, match="expected a TriggerSpec, got list"):
        TriggerMatcher([on_click()])  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 3, 7, 29, 30, 49, 100, 1000])
def test_a_share_is_reached_at_the_very_position(length: int) -> None:
    request = Request(user="ann", time_ms=0, id="r", candidates=[Item(id=f"i{n}") for n in range(length)])
    # Parts of a hundred as people write them: 0.07 times 100 is above 7.
    for shown in range(1, length + 1, max(length // 25, 1)):
        matcher = matcher_of(list_used_up(shown / length))
        matcher.note_request(request)
        before = event("impression", 1, position=shown - 2, request="r") if shown > 1 else event("impression", 1)
        assert fired(matcher, before, event("impression", 2, position=shown - 1, request="r")) == [
            [],
            ["list_used_up"],
        ]


def test_a_list_of_nothing_is_never_used_up() -> None:
    matcher = matcher_of(list_used_up(0.5))
    matcher.note_request(Request(user="ann", time_ms=0, id="r", candidates=[]))
    assert fired(matcher, event("impression", 1, position=0, request="r")) == [[]]


def test_repeats_count_where_the_caller_vouches_that_there_are_none() -> None:
    matcher = TriggerMatcher(TriggerSpec(name="test", rules=[on_click()]), recognise_repeats=False)
    assert fired(matcher, event("click", 1, id="e"), event("click", 1, id="e")) == [["click"], ["click"]]
    assert len(matcher.snapshot("ann")) < len(some_snapshot()[1])


def test_large_attributes_leave_nothing_large() -> None:
    matcher = matcher_of(on_click())
    for second in range(100):
        matcher.feed(event("click", second, attributes={"text": "x" * 100_000}))
    assert len(matcher.snapshot("ann")) < 20_000
    assert fired(matcher, event("click", 99, attributes={"text": "x" * 100_000})) == [[]]


# --- cost and bounds ---------------------------------------------------------------------------------------


def lines_run(matcher: TriggerMatcher, events: list[Event]) -> int:
    """How many lines of Python the matcher runs for some events: its cost, the same on every machine."""
    count = 0

    def local_trace(frame: FrameType, what: str, argument: object) -> Any:
        nonlocal count
        count += what == "line"
        return local_trace

    def trace(frame: FrameType, what: str, argument: object) -> Any:
        return local_trace if "triggers" in frame.f_code.co_filename else None

    others = sys.gettrace()
    sys.settrace(trace)
    try:
        for one in events:
            matcher.feed(one)
    finally:
        sys.settrace(others)
    return count


def cost(rule_count: int) -> int:
    """Of one stream, with so many rules of which ten concern it."""
    rules = [
        TriggerRule(
            name=f"r{i}",
            action="rerank",
            steps=[TriggerStep(kinds=[f"kind{i}"]), TriggerStep(kinds=["click"], count=2), TriggerStep(kinds=["hide"])],
            within_s=60.0,
        )
        for i in range(rule_count)
    ]
    kinds = [*(f"kind{i}" for i in range(10)), "click", "hide"]
    random_kinds = random.Random(1)
    return lines_run(matcher_of(*rules), [event(random_kinds.choice(kinds), second) for second in range(300)])


def test_ten_thousand_rules_cost_what_a_thousand_cost() -> None:
    assert cost(10_000) == cost(1_000)
    # Of few rules the nodes that can go on are looked at, of many those with a partial match, at most two a rule here.
    assert cost(10_000) <= 2 * cost(10)


def test_a_shared_prefix_is_looked_at_once() -> None:
    def matcher(rule_count: int) -> TriggerMatcher:
        steps = [[TriggerStep(kinds=["click"]), TriggerStep(kinds=[f"kind{i}"])] for i in range(rule_count)]
        return matcher_of(*(TriggerRule(name=f"r{i}", action="rerank", steps=one) for i, one in enumerate(steps)))

    pair = [event("click", 1), event("kind7", 2)]
    assert fired(matcher(1000), *pair) == [[], ["r7"]]
    assert lines_run(matcher(1000), pair) == lines_run(matcher(10), pair)


def test_a_kind_that_no_rule_names_leaves_nothing() -> None:
    matcher = matcher_of(on_click())
    assert matcher.feed(event("seen", 1)) == ()
    assert len(matcher) == 0


def test_users_are_bounded_and_the_one_not_heard_of_goes() -> None:
    matcher = matcher_of(exposures_without_click(2), max_users=2)
    for second, user in enumerate(("ann", "bob", "ann", "cleo", "bob")):
        got = matcher.feed(event("impression", second, user=user))
        assert bool(got) == (second == 2)  # Bob's first impression went when Cleo came.
    assert len(matcher) == 2


def test_lists_of_a_user_are_bounded() -> None:
    matcher = matcher_of(scroll_past(0))
    for number in range(MAX_LISTS + 1):
        matcher.feed(event("impression", number, position=0, request=f"r{number}"))
    assert fired(
        matcher,
        event("impression", 50, position=0, request=f"r{MAX_LISTS}"),
        event("impression", 51, position=0, request="r0"),
    ) == [[], ["scroll_past_0"]]


def test_partial_matches_are_bounded() -> None:
    rules = [
        TriggerRule(
            name=f"r{i}", action="rerank", steps=[TriggerStep(kinds=[f"k{i}"], count=2), TriggerStep(kinds=["click"])]
        )
        for i in range(MAX_ACTIVE + 1)
    ]
    matcher = matcher_of(*rules)
    for second in range(2 * MAX_ACTIVE + 2):
        matcher.feed(event(f"k{second // 2}", second))
    # The last one dropped all before it, and goes on itself.
    assert fired(matcher, event("click", 10_000)) == [[f"r{MAX_ACTIVE}"]]


def test_many_users_keep_their_states_apart() -> None:
    matcher = matcher_of(exposures_without_click(2), scroll_past(3))
    users = [f"user {number}" for number in range(500)]
    for second in range(4):
        for user in users:
            shown = event("impression", second, user=user, position=second, request="r")
            want = [[], ["exposures_without_click_2"], [], ["exposures_without_click_2", "scroll_past_3"]][second]
            assert fired(matcher, shown) == [want]
    assert len(matcher) == 500


def test_a_list_that_was_left_goes_on_where_it_was() -> None:
    steps = [TriggerStep(kinds=["impression"], count=2), TriggerStep(kinds=["click"])]
    matcher = matcher_of(TriggerRule(name="r", action="rerank", steps=steps, scope="request"))
    stream = [("impression", "a"), ("impression", "b"), ("impression", "a"), ("click", "b"), ("click", "a")]
    events = [event(kind, second, request=request) for second, (kind, request) in enumerate(stream)]
    assert fired(matcher, *events) == [[], [], [], [], ["r"]]


def test_a_forgotten_user_starts_from_nothing() -> None:
    matcher = matcher_of(exposures_without_click(2))
    matcher.feed(event("impression", 1))
    assert (matcher.forget("ann"), matcher.forget("ann")) == (True, False)
    assert fired(matcher, event("impression", 2), event("impression", 3)) == [[], ["exposures_without_click_2"]]


# --- snapshots ---------------------------------------------------------------------------------------------


def some_snapshot() -> tuple[TriggerMatcher, bytes]:
    matcher = TriggerMatcher(default_triggers())
    matcher.note_request(Request(user="ann", time_ms=0, id="r", candidates=[Item(id="i")]))
    fired(matcher, event("impression", 1, position=0, request="r", attributes={"a": "b"}), event("click", 2))
    return matcher, matcher.snapshot("ann")


@given(st.data())
def test_a_damaged_snapshot_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    matcher, good = some_snapshot()
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    for broken in (bad, good[:place], good + b"x"):
        with pytest.raises(StoreError, match="trigger snapshot: "):
            matcher.restore("ann", broken)
    assert matcher.snapshot("ann") == good


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(StoreError, match="trigger snapshot: "):
        TriggerMatcher(default_triggers()).restore("ann", garbage)


def test_a_snapshot_of_another_spec_is_refused() -> None:
    with pytest.raises(StoreError, match="belongs to the spec"):
        matcher_of(on_click()).restore("ann", some_snapshot()[1])


def test_a_snapshot_of_something_else_than_bytes_is_refused() -> None:
    with pytest.raises(StoreError, match="expected bytes, got str"):
        matcher_of(on_click()).restore("ann", "text")  # type: ignore[arg-type]
