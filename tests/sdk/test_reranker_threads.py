"""Many threads at once give what one thread gives, for every user."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

USERS = tuple(f"user-{number}" for number in range(12))
ROUNDS = 15


@pytest.fixture(autouse=True)
def _switch_often():
    """Let threads interrupt each other everywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def live(reranker, kit, user, barrier=None):
    """One user's rounds of ranking, reacting and learning; what came out."""
    if barrier is not None:
        barrier.wait()
    generator = np.random.default_rng(int(user.split("-")[1]))
    out = []
    for number in range(ROUNDS):
        request = kit.request(15, 100 * number, user, id=f"r{number // 3}")
        ranking = reranker.rerank(request)
        out.append((ranking.order.tolist(), ranking.scores.tobytes(), ranking.fallback, ranking.patch_version))
        out.append([[reason.group for reason in reasons] for reasons in ranking.reasons])
        for place in generator.permutation(15)[:4].tolist():
            kind = str(generator.choice(["click", "like", "dislike", "impression"]))
            event = kit.event(place, kind, 100 * number + place, user, request=request.id)
            out.append(reranker.track([event, event]))
        if number % 5 == 4:
            result = reranker.personalise(user)
            out.append((result.accepted, result.pairs, result.loss_after, result.version))
    return out


def test_many_users_at_once_get_the_rankings_of_one_thread(open_reranker, kit):
    alone = open_reranker("alone")
    expected = [live(alone, kit, user) for user in USERS]
    together = open_reranker("together")
    barrier = threading.Barrier(len(USERS))
    with ThreadPoolExecutor(len(USERS)) as pool:
        found = list(pool.map(lambda user: live(together, kit, user, barrier), USERS))
    assert repr(found) == repr(expected)  # NaN losses are equal as text
    assert any("like" in str(alone.export(user)["events"]) for user in USERS)
    for user in USERS:
        assert together.export(user) == alone.export(user)


def test_forgetting_one_user_disturbs_no_other(open_reranker, kit):
    alone = open_reranker("alone")
    expected = [live(alone, kit, user) for user in USERS[:4]]
    together = open_reranker("together")
    stop = threading.Event()

    def come_and_go():
        number = 0
        while not stop.is_set():
            request = kit.request(15, number, "ghost", id="r")
            assert together.rerank(request).fallback is None
            together.track(kit.event(number % 15, "like", number, "ghost", request="r"))
            together.personalise("ghost")
            together.forget("ghost")
            number += 1
        return number

    with ThreadPoolExecutor(5) as pool:
        ghost = pool.submit(come_and_go)
        found = list(pool.map(lambda user: live(together, kit, user), USERS[:4]))
        stop.set()
        assert ghost.result() > 0
    assert repr(found) == repr(expected)
    held = together.export("ghost")
    assert not any(value for part, value in held.items() if part != "user")
    assert "ghost" not in together._decisions._decisions


def test_one_event_from_many_threads_is_new_once(open_reranker, kit):
    reranker = open_reranker()
    event = kit.event(3)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reranker.track, [event] * 200)) == 1
    assert len(reranker.export("ann")["events"]) == 1
