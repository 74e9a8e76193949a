"""Trigger rules inside the re-ranker: what is tracked moves them, what fired stays fired."""

from __future__ import annotations

from typing import Any

import pytest

from rerank_engine.errors import InputError
from rerank_features.triggers import Fired, TriggerSpec, list_used_up, on_click

BORED = TriggerSpec.from_toml("""
name = "feed"
[[rules]]
name = "bored"
action = "rerank"
steps = [{kinds = ["impression"], count = 3, without = ["click"]}]
""")


def shown(kit: Any, place: int, user: str = "ann", **more: Any) -> Any:
    return kit.event(place, kind="impression", after_s=100 + place, user=user, **more)


def test_rules_fire_once_for_each_user(open_reranker: Any, kit: Any) -> None:
    fired: list[Fired] = []
    reranker = open_reranker(triggers=BORED, on_trigger=fired.append)
    for place in range(3):
        for user in ("ann", "bob"):
            event = shown(kit, place, user)
            assert reranker.track(event) == 1
            assert reranker.track(event) == 0  # a repeated delivery moves nothing
    assert [(one.rule, one.action, one.user) for one in fired] == [
        ("bored", "rerank", "ann"),
        ("bored", "rerank", "bob"),
    ]


def test_a_restart_neither_forgets_nor_repeats(open_reranker: Any, kit: Any) -> None:
    fired: list[Fired] = []
    with open_reranker(triggers=BORED, on_trigger=fired.append) as reranker:
        reranker.track([shown(kit, place) for place in range(5)])
    assert len(fired) == 1
    with open_reranker(triggers=BORED, on_trigger=fired.append) as reranker:
        reranker.rerank(kit.request())  # reads the user
        assert len(fired) == 1
        reranker.track(shown(kit, 5))
    assert len(fired) == 2  # the fourth and fifth were before the restart


def test_a_list_that_is_ranked_again_is_the_same_list(open_reranker: Any, kit: Any) -> None:
    fired: list[Fired] = []
    rules = TriggerSpec(name="feed", rules=[list_used_up(0.5)])
    reranker = open_reranker(triggers=rules, on_trigger=fired.append)
    request = kit.request(4, id="list")
    reranker.rerank(request)
    reranker.track(shown(kit, 2, position=2, request="list"))
    reranker.rerank(request)
    reranker.track(shown(kit, 3, position=3, request="list"))
    assert [one.action for one in fired] == ["refresh"]
    reranker.rerank(kit.request(8, id="list"))  # it has grown: a new list
    reranker.track(kit.event(4, kind="impression", after_s=109, position=6, request="list"))
    assert len(fired) == 2


def test_forgotten_users_begin_anew(open_reranker: Any, kit: Any) -> None:
    fired: list[Fired] = []
    reranker = open_reranker(triggers=BORED, on_trigger=fired.append)
    reranker.track([shown(kit, place) for place in range(2)])
    reranker.forget("ann")
    reranker.track(shown(kit, 2))
    assert fired == []


def test_an_error_of_the_callback_loses_no_event(
    open_reranker: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Fired) -> None:
        raise RuntimeError("the app's own")

    reranker = open_reranker(triggers=TriggerSpec(name="feed", rules=[on_click()]), on_trigger=fail)
    assert reranker.track([kit.event(1), kit.event(2, after_s=60)]) == 2
    assert len(list(reranker._store.read("ann"))) == 2
    assert "the app's own" in caplog.text


def test_a_callback_may_use_the_re_ranker(open_reranker: Any, kit: Any) -> None:
    scores: list[int] = []
    reranker = open_reranker(
        triggers=TriggerSpec(name="feed", rules=[on_click()]),
        on_trigger=lambda fired: scores.append(len(reranker.rerank(kit.request(user=fired.user)).items)),
    )
    reranker.track(kit.event(1))
    assert scores == [12]


def test_rules_without_callback_are_refused(open_reranker: Any) -> None:
    with pytest.raises(InputError, match="give both, or none"):
        open_reranker(triggers=BORED)
    with pytest.raises(InputError, match="give both, or none"):
        open_reranker(on_trigger=print)
